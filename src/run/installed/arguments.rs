//! Kernel arguments, in whatever the installed system's boot loader reads.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::dir::Dir;

use super::replace::{Like, replace};
use super::{Installed, LIMIT, candidates, words_added};
use crate::error::{Class, Failure, Result};
use crate::image::boot::arguments::Edit;
use crate::image::boot::{bls, extlinux, grub, uki};
use crate::report::Reporter;
use crate::sys::beneath::{Root, Walk};

/// More entries than any menu has.
const ENTRIES: usize = 1024;

/// Where boot loaders look, below a root and below a boot partition.
pub(super) const PLACES: [&str; 4] = ["/boot", "/boot/efi", "/efi", "/"];

const GRUB: [&str; 2] = ["grub/grub.cfg", "grub2/grub.cfg"];
const EXTLINUX: [&str; 4] = [
    "extlinux/extlinux.conf",
    "extlinux.conf",
    "syslinux/syslinux.cfg",
    "syslinux.cfg",
];

/// What reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// systemd-boot, or GRUB with blscfg.
    Bls,
    /// GRUB.
    Grub,
    /// extlinux, syslinux, U-Boot.
    Extlinux,
}

/// A configuration of a boot loader.
#[derive(Clone, Debug)]
pub struct Found {
    /// What reads it.
    pub reader: Reader,
    /// Its path below the root that it was found in.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

/// Changes the arguments of every kernel that the installed system's boot loader can start, and of those that it
/// will install.
///
/// # Errors
/// Class media where nothing was found that carries kernel arguments.
pub fn change(
    system: &Installed,
    edit: &Edit,
    secure_boot: bool,
    reporter: &Reporter,
) -> Result<()> {
    let mut changed = Vec::new();
    let mut unified = Vec::new();
    for root in system.roots() {
        for found in configurations(root)? {
            let text = match found.reader {
                Reader::Bls => bls::edit(&with_variables(root, &found.text), edit),
                Reader::Grub => grub::edit(&found.text, edit),
                Reader::Extlinux => extlinux::edit(&found.text, edit),
            };
            if let Some(text) = text {
                replace(root, &found.path, text.as_bytes(), Like::Old)?;
                changed.push(found.path.display().to_string());
            }
        }
        unified.extend(
            unified_images(root)
                .into_iter()
                .map(|path| candidates::place(root, path)),
        );
    }
    let kept = match unified.is_empty() {
        true => None,
        false => words_added::cannot_be(&unified, edit, secure_boot)?,
    };
    if kept.is_none() {
        changed.extend(words_added::to(&unified, edit)?);
    }
    if changed.is_empty() {
        let found = match &kept {
            Some(why) => format!("it starts a unified kernel image, {why}"),
            None => "it has no boot loader entries, no grub.cfg and no extlinux.conf with a kernel"
                .to_owned(),
        };
        return Err(Failure::new(
            Class::Media,
            format!("`kernelArguments` cannot be changed in the installed system: {found}"),
        )
        .hint("build the arguments into the image, or leave out `disk.kernelArguments`"));
    }
    if let Ok(root) = system.root() {
        changed.extend(defaults(root, edit)?);
    }
    reporter.info(format!(
        "kernel arguments changed in {}",
        changed.join(", ")
    ));
    if let Some(why) = kept {
        reporter.warn(format!(
            "unified kernel images keep their own arguments: {why}"
        ));
    }
    Ok(())
}

/// A word that stands in GRUB's environment block cannot be taken away from an entry: the entry gets them all.
fn with_variables(root: &Root, text: &str) -> String {
    const VARIABLE: &str = "$kernelopts";
    if !text.contains(VARIABLE) {
        return text.to_owned();
    }
    match super::entry::grub_environment(root, "kernelopts") {
        Some(value) => text.replace(VARIABLE, &value),
        None => text.to_owned(),
    }
}

/// Unified kernel images, those of boot menus before the one that firmware starts by itself.
pub fn unified_images(root: &Root) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for directory in ["EFI/Linux", "EFI/BOOT"] {
        for place in PLACES {
            let mut here = names(root, &Path::new(place).join(directory), "");
            here.retain(|p| is_unified(root, p));
            // Names hold versions: the newest first.
            here.reverse();
            found.extend(here);
        }
    }
    found
}

/// Whether it carries a kernel: boot loaders are PE files with the same names.
fn is_unified(root: &Root, path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("efi"))
        && root.file(path, Walk::InRoot).is_ok_and(|file| {
            uki::sections(&mut &file).is_ok_and(|all| all.iter().any(|s| s.name == ".linux"))
        })
}

/// What the next kernel's entry is made from.
fn defaults(root: &Root, edit: &Edit) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    let grub_defaults = Path::new("/etc/default/grub");
    if let Some(text) = read(root, grub_defaults) {
        let text = grub::edit_defaults(&text, edit);
        replace(root, grub_defaults, text.as_bytes(), Like::Old)?;
        changed.push(grub_defaults.display().to_string());
    }
    // kernel-install(8)
    let command_line = Path::new("/etc/kernel/cmdline");
    if let Some(text) = read(root, command_line) {
        let text = edit.apply(&text) + "\n";
        replace(root, command_line, text.as_bytes(), Like::Old)?;
        changed.push(command_line.display().to_string());
    }
    Ok(changed)
}

/// Every configuration below `root`. The same file under two paths is found once.
pub fn configurations(root: &Root) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    let mut seen = Vec::new();
    let mut add = |reader, path: PathBuf| {
        let Ok(stat) = root.stat(&path, Walk::InRoot) else {
            return;
        };
        let id = (stat.st_dev, stat.st_ino);
        if !seen.contains(&id)
            && let Some(text) = read(root, &path)
        {
            seen.push(id);
            all.push(Found { reader, path, text });
        }
    };
    for place in PLACES.map(Path::new) {
        for path in names(root, &place.join("loader/entries"), ".conf") {
            add(Reader::Bls, path);
        }
        for name in GRUB {
            add(Reader::Grub, place.join(name));
        }
        for vendor in names(root, &place.join("EFI"), "") {
            add(Reader::Grub, vendor.join("grub.cfg"));
        }
        for name in EXTLINUX {
            add(Reader::Extlinux, place.join(name));
        }
    }
    Ok(all)
}

/// The text of a file; `None` where it is missing, is no text or cannot be configuration.
fn read(root: &Root, path: &Path) -> Option<String> {
    let bytes = root.read(path, Walk::InRoot, LIMIT).ok()?;
    String::from_utf8(bytes).ok()
}

/// Paths of what is in a directory and ends with `suffix`, sorted.
pub(super) fn names(root: &Root, directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let Ok(fd) = root.directory(directory, Walk::InRoot) else {
        return Vec::new();
    };
    let Ok(open) = Dir::from_fd(fd) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = open
        .into_iter()
        .take(ENTRIES)
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().to_bytes();
            (!name.starts_with(b".") && name.ends_with(suffix.as_bytes()))
                .then(|| directory.join(OsStr::from_bytes(name)))
        })
        .collect();
    found.sort();
    found
}
