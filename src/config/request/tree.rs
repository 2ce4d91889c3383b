//! How a tree of files becomes a bootable disk.

use std::path::Path;

use super::{Problems, wire};
use crate::config::quantity::{Amount, SizeText};

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

/// Label of the partition that stands for the root.
const ROOT: &str = crate::plan::tree_layout::ROOT_LABEL;

/// What a tree's root leaves to others must be said: it takes the rest by itself.
fn root_among_partitions(disk: &wire::Disk, problems: &mut Problems) {
    let root = disk.partitions.iter().position(|p| p.label == ROOT);
    let sized = root
        .and_then(|i| disk.partitions.get(i))
        .is_some_and(|root| root.size != SizeText::Rest);
    for (i, partition) in disk.partitions.iter().enumerate() {
        let at = |key: &str| format!("disk.partitions[{i}].{key}");
        if Some(i) == root {
            let own = [
                ("type", partition.kind.is_some()),
                ("filesystem", partition.filesystem.is_some()),
            ];
            for (key, _) in own.iter().filter(|(_, given)| *given) {
                problems.add(
                    &at(key),
                    "a tree's root has its type and ext4; only its size can be given",
                );
            }
            continue;
        }
        let part = match partition.size {
            SizeText::Rest => Some("the `Rest`"),
            SizeText::Amount(Amount::Percent(_)) => Some("a part of the free space"),
            SizeText::Amount(Amount::Bytes(_)) => None,
        };
        if let (false, Some(part)) = (sized, part) {
            problems.add(
                &at("size"),
                format!("{part} is the root's: give the root a size too, by a partition with the label {ROOT:?}"),
            );
        }
    }
}

/// Reads those keys of `disk` that only a tree has, and refuses those that it does not carry out.
pub(super) fn read(image: &super::Image, disk: &wire::Disk, problems: &mut Problems) -> TreeDisk {
    let tree = image.kind == wire::ImageKind::Tree;
    let arguments = &disk.kernel_arguments;
    match disk.bootloader {
        wire::Bootloader::Auto => {}
        _ if !tree => problems.add(
            "disk.bootloader",
            "only with `image.kind`: Tree; a disk image brings its own",
        ),
        _ => {}
    }
    if tree {
        problems.unsupported("image.verifyDisk", image.verify_disk);
        problems.unsupported("disk.grow", disk.grow.is_some());
        root_among_partitions(disk, problems);
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
