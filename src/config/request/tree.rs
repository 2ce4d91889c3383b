//! How a tree of files becomes a bootable disk.

use super::{Problems, wire};

/// What `disk` says of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeDisk {
    /// Who starts its kernel.
    pub bootloader: wire::Bootloader,
    /// Words for the kernel's command line.
    pub append: Vec<String>,
    /// Words that go from it: `word`, `word=` with any value, or `word=value`.
    pub remove: Vec<String>,
}

/// Reads those keys of `disk` that only a tree has, and refuses those that it does not carry out.
pub(super) fn read(image: &super::Image, disk: &wire::Disk, problems: &mut Problems) -> TreeDisk {
    let tree = image.kind == wire::ImageKind::Tree;
    let arguments = &disk.kernel_arguments;
    match disk.bootloader {
        wire::Bootloader::Grub => problems.add(
            "disk.bootloader",
            "boot loader Grub is not supported in this version: use Auto, Uki, SystemdBoot, ImageScript or None",
        ),
        wire::Bootloader::Auto => {}
        _ if !tree => problems.add(
            "disk.bootloader",
            "only with `image.kind`: Tree; a disk image brings its own",
        ),
        _ => {}
    }
    if tree {
        problems.unsupported("image.verifyDisk", image.verify_disk);
        let given = !arguments.append.is_empty() || !arguments.remove.is_empty();
        let own = match disk.bootloader {
            wire::Bootloader::Uki => Some("a unified kernel image carries its own command line"),
            wire::Bootloader::None => Some("nothing carries them with `disk.bootloader`: None"),
            wire::Bootloader::Auto
            | wire::Bootloader::SystemdBoot
            | wire::Bootloader::Grub
            | wire::Bootloader::ImageScript => None,
        };
        if let (true, Some(why)) = (given, own) {
            problems.add("disk.kernelArguments", why);
        }
        for (key, words) in [("append", &arguments.append), ("remove", &arguments.remove)] {
            for (i, word) in words.iter().enumerate() {
                if word.trim().is_empty() || word.chars().any(char::is_control) {
                    let path = format!("disk.kernelArguments.{key}[{i}]");
                    problems.add(&path, "not a word of a kernel command line");
                }
            }
        }
    }
    TreeDisk {
        bootloader: disk.bootloader,
        append: arguments.append.clone(),
        remove: arguments.remove.clone(),
    }
}
