//! How a tree of files becomes a bootable disk.

use std::path::Path;

use super::preserve::NewFileSystem;
use super::{Addition, Named, Problems, wire};
use crate::config::quantity::{Amount, SizeText};

/// What `disk` says of a tree alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeDisk {
    /// Who starts its kernel.
    pub bootloader: wire::Bootloader,
    /// The kind of its partition table.
    pub table: wire::TableKind,
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
            if partition.kind.is_some() {
                problems.add(&at("type"), "a tree's root has the type of a root");
            }
            if partition.filesystem.as_deref() == Some(NewFileSystem::Vfat.name()) {
                problems.add(&at("filesystem"), NO_ROOT_ON_FAT);
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

/// Why nothing of a tree can be unpacked into it.
pub const NO_ROOT_ON_FAT: &str = "a tree's root is on ext4 or xfs: vfat has no owners and no links";

/// Why the partition that shall grow is none that does, beside `partitions`.
pub fn wrong_to_grow(
    grow: &Named,
    table: wire::TableKind,
    partitions: &[Addition],
) -> Option<&'static str> {
    let is_root = match grow {
        Named::Label(label) => label == ROOT,
        Named::Number(number) => *number == crate::plan::tree_layout::root(table),
    };
    let sized = partitions
        .iter()
        .any(|p| p.label == ROOT && p.size != SizeText::Rest);
    if !is_root {
        return Some("of a tree's disk only the root takes the rest: name it, \"root\"");
    }
    sized.then_some("the root has a size: leave that or `disk.grow` out")
}

/// Reads those keys of `disk` that only a tree has, and refuses those that it does not carry out.
pub(super) fn read(
    image: &super::Image,
    disk: &wire::Disk,
    (grow, partitions): (Option<&Named>, &[Addition]),
    problems: &mut Problems,
) -> TreeDisk {
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
    match (disk.table, image.kind) {
        (Some(_), wire::ImageKind::Disk) => {
            problems.add("disk.table", "a disk image brings its own");
        }
        (Some(wire::TableKind::Mbr), wire::ImageKind::Auto) => problems.add(
            "disk.table",
            "only with `image.kind`: Tree; a disk image brings its own",
        ),
        (Some(wire::TableKind::Mbr), wire::ImageKind::Tree) => mbr(disk, partitions, problems),
        (None | Some(wire::TableKind::Gpt), _) => {}
    }
    let table = disk.table.unwrap_or(wire::TableKind::Gpt);
    if tree {
        if let Some(why) = grow.and_then(|grow| wrong_to_grow(grow, table, partitions)) {
            problems.add("disk.grow", why);
        }
        root_among_partitions(disk, problems);
        let given = !arguments.append.is_empty() || !arguments.remove.is_empty();
        match disk.bootloader {
            wire::Bootloader::Uki if !arguments.remove.is_empty() => problems.add(
                "disk.kernelArguments.remove",
                "a unified kernel image carries its own command line: words can be added to it, none taken away",
            ),
            wire::Bootloader::None if given => problems.add(
                "disk.kernelArguments",
                "nothing carries them with `disk.bootloader`: None",
            ),
            wire::Bootloader::Uki
            | wire::Bootloader::None
            | wire::Bootloader::Auto
            | wire::Bootloader::SystemdBoot
            | wire::Bootloader::Grub
            | wire::Bootloader::ImageScript => {}
        }
        for (i, file) in disk.files.iter().enumerate() {
            if is_on_esp(Path::new(&file.path)) {
                problems.add(&format!("disk.files[{i}].path"), ESP_IS_THE_LOADERS);
            }
        }
    }
    TreeDisk {
        bootloader: disk.bootloader,
        table,
    }
}

/// What an MBR cannot have.
fn mbr(disk: &wire::Disk, partitions: &[Addition], problems: &mut Problems) {
    if !disk.keep.is_empty() {
        problems.add(
            "disk.keep",
            "a partition is kept in a GPT only: leave `disk.table` out",
        );
    }
    match disk.bootloader {
        wire::Bootloader::Uki | wire::Bootloader::SystemdBoot => problems.add(
            "disk.bootloader",
            "UEFI starts it, and `disk.table`: mbr is for machines that boot by BIOS",
        ),
        wire::Bootloader::Auto
        | wire::Bootloader::Grub
        | wire::Bootloader::ImageScript
        | wire::Bootloader::None => {}
    }
    let others = partitions.iter().filter(|p| p.label != ROOT).count();
    if others > 3 {
        problems.add(
            "disk.partitions",
            format!("an MBR has four partitions, one of which is the root: three others, and not {others}"),
        );
    }
    for (i, addition) in partitions.iter().enumerate() {
        if crate::plan::layout::mbr::kind_of(&addition.kind).is_none() {
            problems.add(
                &format!("disk.partitions[{i}].type"),
                "an MBR has no such type: linux, home, srv, var, tmp, swap, lvm, raid",
            );
        }
    }
}
