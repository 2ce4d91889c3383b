//! A unified kernel image as its systemd-stub starts it: with the addons and other files that lie beside it
//! (systemd-stub(7), "Companion Files").

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::arguments::names;
use super::entry::{Bootable, Opened, Part};
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::boot::uki::{self, Section};
use crate::image::boot::{addon, menu};
use crate::sys::beneath::{Root, Walk};

/// Command lines, os-release and names are no longer.
const TEXT: u64 = 1 << 16;

/// What the stub packs into an initrd of its own; each is in a directory for one image and in one for all.
const PACKED: [&str; 2] = [".cred", ".raw"];

/// Where an image is.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// The root below which it was found.
    pub root: &'a Root,
    /// Its path there.
    pub path: PathBuf,
    /// Where the file system begins that it is on: what lies beside it is looked for on that alone.
    pub base: PathBuf,
}

/// A PE file and its sections.
struct Program {
    file: File,
    sections: Vec<Section>,
}

impl Program {
    fn open(root: &Root, path: &Path) -> Result<Program> {
        let file = root.file(path, Walk::InRoot)?;
        let sections =
            uki::sections(&mut &file).context(Class::Handover, || "reading its sections")?;
        Ok(Program { file, sections })
    }

    fn part(&self, name: &str) -> Result<Option<Part>> {
        let Some(Section { place, .. }) = uki::section(&self.sections, name) else {
            return Ok(None);
        };
        let file = self
            .file
            .try_clone()
            .context(Class::Handover, || "opening it again")?;
        Ok(Some(Part::of(file, place.clone())))
    }

    /// A section that holds text, without the zeros and blanks around it.
    fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(mut part) = self.part(name)? else {
            return Ok(None);
        };
        let failed = || format!("reading its section {name}");
        if part.length().0 > TEXT {
            let why = format!("its section {name} is too long");
            return Err(Failure::new(Class::Handover, why));
        }
        let mut bytes = Vec::new();
        part.reader()
            .and_then(|mut reader| reader.read_to_end(&mut bytes))
            .context(Class::Handover, failed)?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        Ok(Some(text.to_owned()))
    }
}

/// The os-release(5) of the system that an image starts; empty where it has none.
pub fn release(root: &Root, path: &Path) -> String {
    Program::open(root, path)
        .and_then(|program| program.text(".osrel"))
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// The words in an image's section `.sdmagic`, which systemd-boot and systemd-stub have; empty where it has none.
pub fn magic(root: &Root, path: &Path) -> String {
    Program::open(root, path)
        .and_then(|program| program.text(".sdmagic"))
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// Opens an image with what its stub adds. `words` of a boot loader's entry stand instead of its own.
///
/// # Errors
/// Class handover or media where it has no kernel, or cannot be read.
pub fn open(place: &Place<'_>, words: &str) -> Result<Opened> {
    let program = Program::open(place.root, &place.path)?;
    let kernel = program
        .part(".linux")?
        .ok_or_else(|| Failure::new(Class::Handover, "it has no kernel in it"))?;
    let mut options = match words {
        "" => program.text(".cmdline")?.unwrap_or_default(),
        words => words.to_owned(),
    };
    let magic = program.text(".sdmagic")?.unwrap_or_default();
    let mut ucode: Vec<Part> = program.part(".ucode")?.into_iter().collect();
    let mut initrds: Vec<Part> = program.part(".initrd")?.into_iter().collect();
    if let Some(version) = addon::stub_version(magic.as_bytes()) {
        if let Some(file) = packed(place) {
            return Ok(Opened::Never(format!(
                "{}: its systemd-stub gives {} to its initrd, which only a start by the firmware does",
                place.path.display(),
                file.display()
            )));
        }
        if addon::reads_addons(version) {
            let name = program.text(".uname")?;
            for addon in addons(place, name.as_deref()) {
                if let Ok(Some(more)) = addon.text(".cmdline")
                    && !more.is_empty()
                {
                    let blank = if options.is_empty() { "" } else { " " };
                    options = format!("{options}{blank}{more}");
                }
                if addon::reads_initrds(version) {
                    // Of microcode the kernel takes what comes first, of other files what comes last.
                    ucode.splice(0..0, addon.part(".ucode")?);
                    initrds.extend(addon.part(".initrd")?);
                }
            }
        }
    }
    Ok(Opened::Ready(Bootable {
        kernel,
        initrds: ucode.into_iter().chain(initrds).collect(),
        options,
        name: place.path.display().to_string(),
    }))
}

/// The directory of files for this image alone.
fn beside(place: &Place<'_>) -> PathBuf {
    let name = place.path.file_name().unwrap_or_default();
    let mut directory = OsString::from(menu::without_counter(&name.to_string_lossy()));
    directory.push(".extra.d");
    place.path.with_file_name(directory)
}

/// A file that the stub would pack into an initrd.
fn packed(place: &Place<'_>) -> Option<PathBuf> {
    let directories = [
        beside(place),
        place.base.join("loader/credentials"),
        place.base.join("loader/extensions"),
    ];
    let mut files = directories
        .iter()
        .flat_map(|directory| names(place.root, directory, ""));
    files.find(|file| PACKED.iter().any(|suffix| ends_with(file, suffix)))
}

/// The addons that count for an image, in the stub's order: those for all images, then those for this one.
fn addons(place: &Place<'_>, name: Option<&str>) -> Vec<Program> {
    let directories = [place.base.join("loader/addons"), beside(place)];
    directories
        .iter()
        .flat_map(|directory| names(place.root, directory, ""))
        .filter(|file| ends_with(file, ".addon.efi"))
        // What cannot be read is passed over, as the stub does.
        .filter_map(|file| Program::open(place.root, &file).ok())
        .filter(|addon| uki::section(&addon.sections, ".linux").is_none())
        .filter(|addon| match (name, addon.text(".uname")) {
            (Some(name), Ok(Some(wanted))) => name == wanted,
            _ => true,
        })
        .collect()
}

/// Names on a FAT have no case.
fn ends_with(path: &Path, suffix: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.to_lowercase().ends_with(suffix)
}
