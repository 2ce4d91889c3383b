//! How a tree of files becomes a bootable disk.

use std::path::Path;

use super::{Problems, wire};

/// What `disk` says of a tree alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeDisk {
    /// Who starts its kernel.
    pub bootloader: wire::Bootloader,
}

/// Where the EFI system partition of a tree's disk is mounted.
const ESP: [&str; 2] = ["/efi", "/boot/efi"];

/// Why no file is put there.
pub const ESP_IS_THE_LOADERS: &str =
    "the EFI system partition of a tree's disk is its boot loader's";

/// Whether `path` is on the EFI system partition of a tree's disk.
pub fn is_on_esp(path: &Path) -> bool {
    ESP.iter().any(|esp| path.starts_with(esp))
}

/// Reads those keys of `disk` that only a tree has, and refuses those that it does not carry out.
pub(super) fn read(image: &super::Image, disk: &wire::Disk, problems: &mut Problems) -> TreeDisk {
    let tree = image.kind == wire::ImageKind::Tree;
    let arguments = &disk.kernel_arguments;
    match disk.bootloader {
        wire::Bootloader::Grub | wire::Bootloader::ImageScript => problems.add(
            "disk.bootloader",
            format!(
                "boot loader {:?} is not supported in this version: use Auto, Uki, SystemdBoot or None",
                disk.bootloader
            ),
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
        problems.unsupported("disk.keep", !disk.keep.is_empty());
        problems.unsupported("disk.grow", disk.grow.is_some());
        problems.unsupported("disk.partitions", !disk.partitions.is_empty());
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
        for (i, file) in disk.files.iter().enumerate() {
            if is_on_esp(Path::new(&file.path)) {
                problems.add(&format!("disk.files[{i}].path"), ESP_IS_THE_LOADERS);
            }
        }
    }
    TreeDisk {
        bootloader: disk.bootloader,
    }
}
