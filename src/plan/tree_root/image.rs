//! What the image of a tree is, once its head has been read, and whether there is room for what is in it.

use crate::config::wire::TableKind;
use crate::host::tables::{self, Table};
use crate::image::superblock::{self, FileSystem};
use crate::plan::memory_root::{self, Lengths};
use crate::plan::refusal::Refusal;
use crate::plan::step::Target;
use crate::plan::tree_layout::NewTable;
use crate::units::{Bytes, SectorSize};

/// What a tree is, by its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeImage {
    /// A file system, which is mounted and copied.
    FileSystem(FileSystem),
    /// A tar archive, which is unpacked while it comes.
    Tar,
}

impl std::fmt::Display for TreeImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TreeImage::FileSystem(fs) => write!(f, "{fs}"),
            TreeImage::Tar => f.write_str("a tar archive"),
        }
    }
}

/// Whether an image that begins with `head` is a tree.
pub fn identify(head: &[u8]) -> Option<TreeImage> {
    match superblock::of(head) {
        Some(fs) => Some(TreeImage::FileSystem(fs)),
        None => memory_root::identify::is_tar(head).then_some(TreeImage::Tar),
    }
}

/// What an image that begins with `head` is, where it is no disk but a tree. `several`: it comes in layers.
pub fn instead_of_a_disk(head: &[u8], several: bool) -> Option<String> {
    let table = tables::read(
        &mut std::io::Cursor::new(head),
        Bytes(u64::MAX >> 1),
        SectorSize::S512,
    );
    match identify(head) {
        // A file system that is made to be written to may be anything's first partition.
        Some(TreeImage::FileSystem(FileSystem::Other { .. })) => None,
        Some(image) if table == Table::None => Some(image.to_string()),
        Some(_) | None if several => Some("an image in layers".to_owned()),
        Some(_) | None => None,
    }
}

/// What the tree is that begins with `head`, and the least that it must have to be whole. Fails before anything is
/// written, where it does not fit.
pub fn adopt(
    head: &[u8],
    lengths: Lengths,
    target: &Target,
    table: &NewTable,
) -> Result<(TreeImage, Bytes), Refusal> {
    let Some(image) = identify(head) else {
        return Err(Refusal::NotATree {
            why: "it begins with no file system and no tar archive".to_owned(),
        });
    };
    let own = match &image {
        TreeImage::FileSystem(fs) => fs.length().unwrap_or_default(),
        TreeImage::Tar => Bytes::ZERO,
    };
    if let Some(exact) = lengths.exact.filter(|exact| own > *exact) {
        return Err(Refusal::NotATree {
            why: format!(
                "it is cut short: {image} of {} bytes, and it has {}",
                own.0, exact.0
            ),
        });
    }
    let content = lengths
        .exact
        .or(lengths.declared)
        .unwrap_or_default()
        .max(lengths.at_least)
        .max(own);
    let sure = match &image {
        // The image lies beside what is copied out of it, which is no shorter.
        TreeImage::FileSystem(FileSystem::Squashfs { .. } | FileSystem::Erofs { .. }) => {
            content.0.saturating_mul(2)
        }
        // Mostly holes, perhaps.
        TreeImage::FileSystem(FileSystem::Other { .. }) => 0,
        TreeImage::Tar => content.0,
    };
    fits(sure, &format!("unpacked from {image}"), target, table)?;
    Ok((image, own))
}

/// Whether there is room for the root that is running. Fails before anything is written, where there is not.
pub fn adopt_running(size: Bytes, target: &Target, table: &NewTable) -> Result<(), Refusal> {
    fits(size.0, "copied from the one that is running", target, table)
}

fn fits(sure: u64, from: &str, target: &Target, table: &NewTable) -> Result<(), Refusal> {
    let root = table.root().map_or(Bytes::ZERO, |p| p.size);
    if sure <= root.0 {
        return Ok(());
    }
    let beside = target.size.0.saturating_sub(root.0);
    let esp = match table.kind {
        TableKind::Gpt => ", with the EFI system partition",
        TableKind::Mbr => "",
    };
    Err(Refusal::TooSmall {
        disk: target.name.clone(),
        what: format!("the root, {from}{esp}"),
        need: Bytes(sure.saturating_add(beside)),
        have: target.size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::seed::Seed;
    use crate::image::record::DiskIdentity;
    use crate::plan::tree_layout::{self, Guids, Wanted};
    use crate::units::MIB;

    fn fits(head: &[u8], lengths: Lengths, mib: u64) -> Result<(TreeImage, Bytes), Refusal> {
        let target = Target {
            path: "/dev/x".into(),
            name: "x".to_owned(),
            dev: None,
            size: Bytes(mib * MIB),
            sector: SectorSize::S512,
            identity: DiskIdentity::default(),
        };
        let guids = Guids::of(&Seed::default());
        let table = tree_layout::partitions(&target, "x86_64", &Wanted::default(), &guids)?;
        adopt(head, lengths, &target, &table)
    }

    fn squashfs(length: u64) -> Vec<u8> {
        let mut head = vec![0; 4096];
        head[..4].copy_from_slice(b"hsqs");
        head[40..48].copy_from_slice(&length.to_le_bytes());
        head
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let lengths = Lengths::default();
        // The root of a disk of 512 MiB has 446.
        assert!(fits(&squashfs(223 * MIB), lengths, 512).is_ok());
        let refusal = fits(&squashfs(224 * MIB), lengths, 512).unwrap_err();
        let text = refusal.to_string();
        assert!(
            text.contains("needs 514.0 MiB") && text.contains("has 512.0 MiB"),
            "{text}"
        );
        let declared = Lengths {
            declared: Some(Bytes(1 << 40)),
            ..lengths
        };
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(fits(&tar, lengths, 512), Ok((TreeImage::Tar, Bytes(0))));
        assert!(matches!(
            fits(&tar, declared, 512),
            Err(Refusal::TooSmall { .. })
        ));
    }

    #[test]
    fn a_tree_is_told_from_a_disk() {
        let mut tar = vec![0; 1 << 20];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(
            instead_of_a_disk(&tar, false).as_deref(),
            Some("a tar archive")
        );
        assert_eq!(
            instead_of_a_disk(&squashfs(1), false).as_deref(),
            Some("squashfs")
        );
        assert_eq!(instead_of_a_disk(b"<html>", false), None);
        assert!(instead_of_a_disk(&squashfs(1), true).is_some());
        // A boot sector with a partition counts, whatever else is there.
        tar[510..512].copy_from_slice(&[0x55, 0xaa]);
        tar[446 + 4] = 0x83;
        tar[446 + 8] = 1;
        tar[446 + 12] = 100;
        assert_eq!(instead_of_a_disk(&tar, false), None);
    }

    #[test]
    fn what_is_no_tree_and_what_is_cut_short_is_refused() {
        let lengths = Lengths::default();
        for head in [&b"<html>"[..], &[0; 4096]] {
            assert!(matches!(
                fits(head, lengths, 512),
                Err(Refusal::NotATree { .. })
            ));
        }
        let exact = Lengths {
            exact: Some(Bytes(MIB)),
            ..lengths
        };
        let refusal = fits(&squashfs(2 * MIB), exact, 512).unwrap_err();
        assert!(refusal.to_string().contains("cut short"), "{refusal}");
    }
}
