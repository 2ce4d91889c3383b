//! What the installed system's boot loader would start: kernel, initrds and command line, opened.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::candidates::{self, Candidate, What};
use super::volumes::RootByType;
use super::{Installed, unified};
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::boot::{Entry, root_word};
use crate::sys::beneath::{Root, Walk};
use crate::sys::mount;
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

    /// These bytes of it.
    pub(super) fn of(file: File, place: Range<u64>) -> Part {
        Part {
            file,
            start: place.start,
            length: place.end.saturating_sub(place.start),
        }
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

/// What an attempt to open something came to.
#[derive(Debug)]
pub enum Opened {
    /// It can be loaded.
    Ready(Bootable),
    /// It is what the boot loader starts, and only that can start it: the reason.
    Never(String),
}

/// Where is looked for what can be started.
#[derive(Debug)]
pub struct Disk<'a> {
    /// All that boot loaders read from.
    pub roots: Vec<&'a Root>,
    /// What systemd finds by its type.
    pub root_by_type: &'a RootByType,
    /// As `uname -m` has it.
    pub arch: &'a str,
    /// Subvolumes that are mounted: where, and their paths from the top of their file system.
    pub subvolumes: Vec<(PathBuf, PathBuf)>,
}

/// Finds what is started first.
///
/// # Errors
/// Class handover where nothing that can be loaded was found.
pub fn find(system: &Installed, arch: &str) -> Result<Bootable> {
    choose(&Disk {
        roots: system.roots().collect(),
        root_by_type: &system.root_by_type,
        arch,
        subvolumes: subvolumes(),
    })
}

/// [`find`], in what is mounted already.
fn choose(disk: &Disk<'_>) -> Result<Bootable> {
    let mut problems = Vec::new();
    for candidate in candidates::of(disk)? {
        let opened = match &candidate.what {
            What::Kernel(path, entry) => open(disk, candidate.root, path, entry),
            What::Unified(place, words) => unified::open(place, words),
        };
        match opened.map(|opened| with_its_root(disk, &candidate, opened)) {
            Ok(Opened::Ready(bootable)) => return Ok(bootable),
            Ok(Opened::Never(why)) => {
                return Err(Failure::new(
                    Class::Handover,
                    format!(
                        "what the installed system starts with cannot be started from here: {why}"
                    ),
                ));
            }
            Err(failure) => problems.push(format!(
                "{}: {}",
                candidate.path().display(),
                crate::error::chain(&failure)
            )),
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

/// Names the root to a system that would have found it only after a start by the firmware.
fn with_its_root(disk: &Disk<'_>, candidate: &Candidate<'_>, opened: Opened) -> Opened {
    let Opened::Ready(bootable) = opened else {
        return opened;
    };
    if !candidate.tells_the_disk || !root_word::is_by_type(&bootable.options) {
        return Opened::Ready(bootable);
    }
    match disk.root_by_type {
        // Neither would systemd find one.
        RootByType::None => Opened::Ready(bootable),
        RootByType::One(partuuid) => Opened::Ready(Bootable {
            options: root_word::with_root(&bootable.options, partuuid),
            ..bootable
        }),
        RootByType::Unclear(why) => Opened::Never(format!(
            "{} names no root, and which one its initrd would find is not known here: {why}",
            bootable.name
        )),
    }
}

/// Subvolumes of btrfs that are mounted, each with its path from the top.
fn subvolumes() -> Vec<(PathBuf, PathBuf)> {
    let mounted = mount::mounted().unwrap_or_default();
    mounted
        .into_iter()
        .filter(|mount| mount.kind == "btrfs" && mount.root != Path::new("/"))
        .map(|mount| (mount.target, mount.root))
        .collect()
}

/// Paths in a configuration begin at the root of the file system that it is on; for GRUB that is the top of a btrfs,
/// whatever part of it is mounted.
fn open(disk: &Disk<'_>, root: &Root, configuration: &Path, entry: &Entry) -> Result<Opened> {
    let below_top = |path: &str| {
        let absolute = Path::new("/").join(path.trim_start_matches('/'));
        let seen = disk.subvolumes.iter().filter_map(|(target, top)| {
            let at = target.strip_prefix(root.name()).ok()?;
            Some(at.join(absolute.strip_prefix(top).ok()?))
        });
        seen.collect::<Vec<PathBuf>>()
    };
    let file = |path: &str| -> Result<File> {
        let relative = path.trim_start_matches('/');
        // The nearest first: where /boot is a file system of its own, paths begin there.
        let places = candidates::bases(configuration).map(|base| base.join(relative));
        let mut last = None;
        for place in places.chain(below_top(path)) {
            match root.file(&place, Walk::InRoot) {
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
    Ok(Opened::Ready(Bootable {
        kernel: Part::whole(file(&entry.kernel)?)?,
        initrds: entry
            .initrds
            .iter()
            .map(|path| Part::whole(file(path)?))
            .collect::<Result<_>>()?,
        options: options.join(" "),
        name: format!("{} of {}", entry.kernel, configuration.display()),
    }))
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

#[cfg(test)]
mod tests;
