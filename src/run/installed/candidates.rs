//! What on the disk can be started, in the order in which its boot loader would try it.
//!
//! Which boot loader that is, the program says that the firmware finds by itself: `\EFI\BOOT\BOOTX64.EFI` and the like.

use std::path::{Path, PathBuf};

use super::arguments::{Found, PLACES, Reader, configurations, unified_images};
use super::entry::{self, Disk};
use super::unified::{self, Place};
use crate::error::Result;
use crate::image::boot::menu::{self, Item};
use crate::image::boot::{Entry, bls, extlinux, grub_menu};
use crate::run::efi;
use crate::sys::beneath::{Root, Walk};

/// The nearest first: what is mounted below another comes before that.
const BASES: [&str; 4] = ["/boot/efi", "/boot", "/efi", "/"];

/// Something that can be started.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// The root below which it was found.
    pub root: &'a Root,
    /// What it is.
    pub what: What<'a>,
    /// Whether its boot loader tells the kernel which disk it is on.
    pub tells_the_disk: bool,
}

/// What can be started.
#[derive(Debug)]
pub enum What<'a> {
    /// A kernel of an entry in a configuration.
    Kernel(PathBuf, Entry),
    /// A unified kernel image, and the words that an entry has for it.
    Unified(Place<'a>, String),
}

impl Candidate<'_> {
    /// The file that names it, for messages.
    pub fn path(&self) -> &Path {
        match &self.what {
            What::Kernel(path, _) => path,
            What::Unified(place, _) => &place.path,
        }
    }
}

/// What the firmware finds by itself.
enum Loader {
    SystemdBoot,
    /// A unified kernel image, which asks no configuration.
    Unified,
    /// GRUB, what starts GRUB, something else, or nothing.
    Other,
}

/// All that can be started.
///
/// # Errors
/// Class media where a directory cannot be read.
pub fn of<'a>(disk: &Disk<'a>) -> Result<Vec<Candidate<'a>>> {
    let mut files: Vec<(&Root, Found)> = Vec::new();
    let mut images: Vec<Place<'a>> = Vec::new();
    for root in &disk.roots {
        files.extend(configurations(root)?.into_iter().map(|f| (*root, f)));
        images.extend(
            unified_images(root)
                .into_iter()
                .map(|path| place(root, path)),
        );
    }
    let (first, mut in_menus): (Vec<_>, Vec<_>) = images
        .into_iter()
        .partition(|image| is_first(image, disk.arch));
    // What else is in the firmware's directory is in no menu.
    let (rest, menu_images): (Vec<_>, Vec<_>) = std::mem::take(&mut in_menus)
        .into_iter()
        .partition(|image| !in_directory(&image.path, "Linux"));
    let loader = loader(disk, &first);
    let saved = disk
        .roots
        .iter()
        .find_map(|root| entry::grub_environment(root, "saved_entry"));
    let saved = saved.as_deref();
    let of = |wanted: Reader| files.iter().filter(move |(_, f)| f.reader == wanted);
    let grub_texts = || of(Reader::Grub).map(|(_, f)| f.text.as_str());

    let unified = |image: Place<'a>, words: String| Candidate {
        root: image.root,
        what: What::Unified(image, words),
        tells_the_disk: true,
    };
    let kernel = |root: &'a Root, path: &Path, entry: Entry, tells_the_disk: bool| Candidate {
        root,
        what: What::Kernel(path.to_owned(), entry),
        tells_the_disk,
    };
    let is_systemd_boot = matches!(loader, Loader::SystemdBoot);
    let entries: Vec<(Item, Candidate<'a>)> = of(Reader::Bls)
        .filter(|(_, file)| bls::is_for(&file.text, disk.arch))
        .filter_map(|(root, file)| {
            let item = Item::of_entry(&name(&file.path), &file.text);
            if let Some(entry) = bls::parse(&file.text) {
                return Some((item, kernel(root, &file.path, entry, is_systemd_boot)));
            }
            let (program, words) = bls::program(&file.text)?;
            let image = resolve(root, &file.path, program)?;
            Some((item, unified(image, words)))
        })
        .collect();
    let images: Vec<(Item, Candidate<'a>)> = menu_images
        .into_iter()
        .map(|image| {
            let release = unified::release(image.root, &image.path);
            let item = Item::of_unified(&name(&image.path), &release);
            (item, unified(image, String::new()))
        })
        .collect();
    let grub: Vec<Candidate<'a>> = of(Reader::Grub)
        .filter_map(|(root, f)| {
            let entry = grub_menu::default_entry(&f.text, saved)?;
            Some(kernel(root, &f.path, entry, false))
        })
        .collect();
    let extlinux: Vec<Candidate<'a>> = of(Reader::Extlinux)
        .filter_map(|(root, f)| Some(kernel(root, &f.path, extlinux::parse(&f.text)?, false)))
        .collect();
    let first: Vec<Candidate<'a>> = first
        .into_iter()
        .chain(rest)
        .map(|image| unified(image, String::new()))
        .collect();

    let configured = disk.roots.iter().find_map(|root| loader_default(root));
    let mut all = Vec::new();
    match loader {
        Loader::Unified | Loader::SystemdBoot => {
            let mut menu: Vec<_> = entries.into_iter().chain(images).collect();
            menu::sort(&mut menu, configured.as_deref(), Item::order);
            let menu = menu.into_iter().map(|(_, candidate)| candidate);
            if is_systemd_boot {
                all.extend(menu.chain(grub).chain(extlinux).chain(first));
            } else {
                all.extend(first.into_iter().chain(menu).chain(grub).chain(extlinux));
            }
        }
        Loader::Other => {
            let by_grub = grub_texts().any(grub_menu::reads_entries);
            let named = grub_texts().find_map(|text| grub_menu::wanted(text, saved));
            let default = named
                .filter(|_| by_grub)
                .or_else(|| saved.map(str::to_owned))
                .or_else(|| configured.clone());
            let order = if by_grub { Item::by_name } else { Item::order };
            let (mut entries, mut images) = (entries, images);
            menu::sort(&mut entries, default.as_deref(), order);
            menu::sort(&mut images, configured.as_deref(), Item::order);
            let entries = entries.into_iter().map(|(_, candidate)| candidate);
            // A menu of GRUB's own has them only where it says so.
            if by_grub {
                all.extend(entries.chain(grub));
            } else {
                all.extend(grub.into_iter().chain(entries));
            }
            all.extend(extlinux);
            all.extend(images.into_iter().map(|(_, candidate)| candidate));
            all.extend(first);
        }
    }
    Ok(all)
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Whether the directory of `path` has this name; names on a FAT have no case.
fn in_directory(path: &Path, name: &str) -> bool {
    let directory = path.parent().and_then(Path::file_name);
    directory.is_some_and(|d| d.eq_ignore_ascii_case(name))
}

/// What the firmware of a machine of `arch` finds by itself.
fn is_first(image: &Place<'_>, arch: &str) -> bool {
    let wanted = efi::default_loader(arch).and_then(|path| path.rsplit('\\').next());
    let is = |wanted: &str| name(&image.path).eq_ignore_ascii_case(wanted);
    in_directory(&image.path, "BOOT") && wanted.is_some_and(is)
}

fn loader(disk: &Disk<'_>, first: &[Place<'_>]) -> Loader {
    if !first.is_empty() {
        return Loader::Unified;
    }
    let Some(program) = efi::default_loader(disk.arch) else {
        return Loader::Other;
    };
    let program = program.trim_start_matches('\\').replace('\\', "/");
    let is_systemd_boot = disk.roots.iter().any(|root| {
        PLACES.iter().any(|place| {
            let magic = unified::magic(root, &Path::new(place).join(&program));
            magic.contains("LoaderInfo: systemd-boot")
        })
    });
    if is_systemd_boot {
        Loader::SystemdBoot
    } else {
        Loader::Other
    }
}

/// The pattern of the entry that systemd-boot starts (loader.conf(5)); `@saved` is a matter of the firmware's memory.
fn loader_default(root: &Root) -> Option<String> {
    let places = ["/efi", "/boot/efi", "/boot", "/"];
    let text = places.iter().find_map(|place| {
        let path = Path::new(place).join("loader/loader.conf");
        root.read(&path, Walk::InRoot, 1 << 16).ok()
    })?;
    let text = String::from_utf8_lossy(&text).into_owned();
    bls::field(&text, "default")
        .filter(|default| !default.starts_with('@'))
        .map(str::to_owned)
}

/// Places where the file system of `path` may begin, the nearest first.
pub fn bases(path: &Path) -> impl Iterator<Item = &'static Path> {
    BASES
        .into_iter()
        .map(Path::new)
        .filter(move |base| path.starts_with(base))
}

/// An image, and where its file system begins.
pub fn place(root: &Root, path: PathBuf) -> Place<'_> {
    let base = bases(&path).next().unwrap_or(Path::new("/")).to_owned();
    Place { root, path, base }
}

/// The program that an entry names: its path begins where the entry's file system does.
fn resolve<'a>(root: &'a Root, entry: &Path, program: &str) -> Option<Place<'a>> {
    let relative = program.trim_start_matches('/');
    bases(entry).find_map(|base| {
        let path = base.join(relative);
        let is_there = root.exists(&path, Walk::InRoot).unwrap_or(false);
        is_there.then(|| Place {
            root,
            path,
            base: base.to_owned(),
        })
    })
}
