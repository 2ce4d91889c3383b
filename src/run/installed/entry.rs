//! What the installed system's boot loader would start: kernel, initrds and command line, opened.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::Installed;
use super::arguments::{Reader, configurations, unified_images};
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::boot::uki::{self, Section};
use crate::image::boot::{Entry, bls, extlinux, grub_menu};
use crate::sys::beneath::{Root, Walk};
use crate::units::Bytes;

/// More than any initrd needs, and less than what would fill a machine.
const LARGEST: u64 = 1 << 30;

/// The parts of a boot entry, as bytes in files.
#[derive(Debug)]
pub struct Bootable {
    /// The kernel.
    pub kernel: Part,
    /// The initrds, in order.
    pub initrds: Vec<Part>,
    /// The command line.
    pub options: String,
    /// What named it, for the log.
    pub name: String,
}

/// A range of a file.
#[derive(Debug)]
pub struct Part {
    file: File,
    start: u64,
    length: u64,
}

impl Part {
    /// All of it.
    pub(in crate::run) fn whole(file: File) -> Result<Part> {
        let length = file
            .metadata()
            .context(Class::Media, || "asking a boot file for its size")?
            .len();
        Ok(Part {
            file,
            start: 0,
            length,
        })
    }

    /// How long it is.
    pub fn length(&self) -> Bytes {
        Bytes(self.length)
    }

    /// Its content.
    pub fn reader(&mut self) -> std::io::Result<impl std::io::Read + '_> {
        self.file.seek(SeekFrom::Start(self.start))?;
        Ok((&mut self.file).take(self.length))
    }
}

/// Finds what is started first.
///
/// # Errors
/// Class handover where nothing that can be loaded was found.
pub fn find(system: &Installed) -> Result<Bootable> {
    let mut problems = Vec::new();
    for root in system.roots() {
        let all = configurations(root)?;
        let of = |wanted: Reader| all.iter().filter(move |f| f.reader == wanted);
        let saved = grub_environment(root, "saved_entry");
        let default = loader_default(root).or_else(|| saved.clone());
        let mut entries: Vec<_> = of(Reader::Bls).collect();
        entries.sort_by(|a, b| {
            let name = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned());
            let (left, right) = (name(&a.path), name(&b.path));
            bls::order(
                (left.as_deref().unwrap_or_default(), &a.text),
                (right.as_deref().unwrap_or_default(), &b.text),
            )
        });
        // The default goes first, even one that failed before; of the others those that failed go last.
        entries.sort_by_key(|found| {
            let name = found.path.file_name().map(|n| n.to_string_lossy());
            let name = name.as_deref().unwrap_or_default();
            let is_default = default
                .as_deref()
                .is_some_and(|default| bls::is_default(name, default));
            (!is_default, bls::is_known_bad(name))
        });
        let parsed = entries
            .into_iter()
            .map(|f| (f, bls::parse(&f.text)))
            .chain(
                of(Reader::Grub).map(|f| (f, grub_menu::default_entry(&f.text, saved.as_deref()))),
            )
            .chain(of(Reader::Extlinux).map(|f| (f, extlinux::parse(&f.text))));
        for (found, entry) in parsed {
            let Some(entry) = entry else { continue };
            match open(root, &found.path, &entry) {
                Ok(bootable) => return Ok(bootable),
                Err(failure) => problems.push(format!(
                    "{}: {}",
                    found.path.display(),
                    crate::error::chain(&failure)
                )),
            }
        }
    }
    for root in system.roots() {
        for path in unified_images(root) {
            match open_unified(root, &path) {
                Ok(bootable) => return Ok(bootable),
                Err(failure) => problems.push(format!(
                    "{}: {}",
                    path.display(),
                    crate::error::chain(&failure)
                )),
            }
        }
    }
    let why = match problems.as_slice() {
        [] => "no boot loader entry, grub.cfg, extlinux.conf or unified kernel image".to_owned(),
        some => some.join("; "),
    };
    Err(Failure::new(
        Class::Handover,
        format!("no kernel of the installed system can be started from here: {why}"),
    ))
}

/// The pattern of the entry that systemd-boot starts (loader.conf(5)); `@saved` is a matter of the firmware's memory.
fn loader_default(root: &Root) -> Option<String> {
    let places = ["/boot", "/boot/efi", "/efi", "/"];
    let text = places.iter().find_map(|place| {
        let path = Path::new(place).join("loader/loader.conf");
        root.read(&path, Walk::InRoot, 1 << 16).ok()
    })?;
    let text = String::from_utf8_lossy(&text).into_owned();
    bls::field(&text, "default")
        .filter(|default| !default.starts_with('@'))
        .map(str::to_owned)
}

/// Paths in a configuration begin at the root of the file system that it is on.
fn open(root: &Root, configuration: &Path, entry: &Entry) -> Result<Bootable> {
    let bases = ["/boot", "/boot/efi", "/efi", "/"];
    let file = |path: &str| -> Result<File> {
        let relative = path.trim_start_matches('/');
        let mut last = None;
        // The nearest first: where /boot is a file system of its own, paths begin there.
        for base in bases.iter().filter(|b| configuration.starts_with(b)) {
            match root.file(&Path::new(base).join(relative), Walk::InRoot) {
                Ok(file) => return Ok(file),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(
            || Failure::new(Class::Handover, format!("{path} was not found")),
            Failure::from,
        ))
    };
    let mut options = entry.options.clone();
    if options.contains("$kernelopts") {
        let variable = grub_environment(root, "kernelopts").ok_or_else(|| {
            Failure::new(Class::Handover, "grubenv does not say what kernelopts is")
        })?;
        options = options.replace("$kernelopts", &variable);
    }
    let options: Vec<&str> = options
        .split_whitespace()
        .filter(|word| !word.starts_with('$'))
        .collect();
    Ok(Bootable {
        kernel: Part::whole(file(&entry.kernel)?)?,
        initrds: entry
            .initrds
            .iter()
            .map(|path| Part::whole(file(path)?))
            .collect::<Result<_>>()?,
        options: options.join(" "),
        name: format!("{} of {}", entry.kernel, configuration.display()),
    })
}

/// A variable of GRUB's environment block (GRUB manual, "Environment block").
pub(super) fn grub_environment(root: &Root, name: &str) -> Option<String> {
    [
        "/boot/grub2/grubenv",
        "/boot/grub/grubenv",
        "/grub2/grubenv",
        "/grub/grubenv",
    ]
    .iter()
    .find_map(|path| root.read(Path::new(path), Walk::InRoot, 1 << 16).ok())
    .and_then(|bytes| {
        String::from_utf8_lossy(&bytes)
            .lines()
            .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    })
}

fn open_unified(root: &Root, path: &Path) -> Result<Bootable> {
    let file = root.file(path, Walk::InRoot)?;
    let sections = uki::sections(&mut &file).context(Class::Handover, || "reading its sections")?;
    let copy = || {
        file.try_clone()
            .context(Class::Handover, || "opening it again")
    };
    let part = |name: &str| -> Result<Option<Part>> {
        let Some(Section { place, .. }) = sections.iter().find(|s| s.name == name) else {
            return Ok(None);
        };
        Ok(Some(Part {
            file: copy()?,
            start: place.start,
            length: place.end.saturating_sub(place.start),
        }))
    };
    let kernel =
        part(".linux")?.ok_or_else(|| Failure::new(Class::Handover, "it has no kernel in it"))?;
    let mut options = String::new();
    if let Some(mut section) = part(".cmdline")? {
        if section.length > 1 << 16 {
            return Err(Failure::new(
                Class::Handover,
                "its command line is too long",
            ));
        }
        section
            .reader()
            .and_then(|mut reader| reader.read_to_string(&mut options))
            .context(Class::Handover, || "reading its command line")?;
    }
    Ok(Bootable {
        kernel,
        // Microcode goes before the initrd, as the stub has it.
        initrds: [part(".ucode")?, part(".initrd")?]
            .into_iter()
            .flatten()
            .collect(),
        options: options.trim_matches(['\0', '\n', ' ']).to_owned(),
        name: path.display().to_string(),
    })
}

/// Refuses what would fill the memory.
pub fn must_be_reasonable(bootable: &Bootable) -> Result<()> {
    let all = bootable.initrds.iter().chain([&bootable.kernel]);
    let total = all.fold(0u64, |sum, part| sum.saturating_add(part.length));
    if total <= LARGEST {
        return Ok(());
    }
    Err(Failure::new(
        Class::Handover,
        format!(
            "{} has {} of kernel and initrds",
            bootable.name,
            Bytes(total).short()
        ),
    ))
}
