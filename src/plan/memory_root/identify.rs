//! What an image is, by its first bytes.

use serde::Serialize;

use crate::config::wire::ImageKind;
use crate::host::tables::{self, PartitionKind, Table, TablePartition};
use crate::image::superblock::{self, FileSystem};
use crate::plan::refusal::Refusal;
use crate::units::{Bytes, SectorSize};

/// What an image is, by its head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RootImage {
    /// A file system.
    FileSystem(FileSystem),
    /// A whole disk, and the partition with the root.
    Partition {
        /// Its number.
        number: u32,
        /// Byte offset.
        start: Bytes,
        /// Size.
        size: Bytes,
    },
    /// A tar archive.
    Tar,
}

impl std::fmt::Display for RootImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RootImage::FileSystem(fs) => write!(f, "{fs}"),
            RootImage::Partition { number, .. } => {
                write!(f, "a disk, its root in partition {number}")
            }
            RootImage::Tar => f.write_str("a tar archive"),
        }
    }
}

impl RootImage {
    /// It is a file system, or has one in it; else an archive.
    pub const fn is_mounted(&self) -> bool {
        match self {
            RootImage::FileSystem(_) | RootImage::Partition { .. } => true,
            RootImage::Tar => false,
        }
    }
}

pub(super) fn identify(head: &[u8], kind: ImageKind, arch: &str) -> Result<RootImage, Refusal> {
    let not_a_root = |why: &str| Refusal::NotARoot {
        why: why.to_owned(),
    };
    let image = if let Some(fs) = superblock::of(head) {
        RootImage::FileSystem(fs)
    } else if is_tar(head) {
        RootImage::Tar
    } else {
        let mut seekable = std::io::Cursor::new(head);
        let table = tables::read(&mut seekable, Bytes(u64::MAX >> 1), SectorSize::S512);
        match &table {
            Table::None => {
                return Err(not_a_root(
                    "it begins with no file system, no tar archive and no partition table",
                ));
            }
            Table::Damaged { why } => return Err(not_a_root(why)),
            Table::Gpt(_) | Table::Mbr(_) => root_partition(&table, arch)?,
        }
    };
    let is_disk = matches!(image, RootImage::Partition { .. });
    match kind {
        ImageKind::Disk if !is_disk => Err(Refusal::NotARoot {
            why: format!("it is {image}, and `image.kind` is Disk"),
        }),
        ImageKind::Tree if is_disk => Err(not_a_root("it is a disk, and `image.kind` is Tree")),
        ImageKind::Auto | ImageKind::Disk | ImageKind::Tree => Ok(image),
    }
}

/// A tar archive begins with a header that says so (POSIX.1-2017, pax, "ustar Interchange Format"; GNU's
/// differs in the two bytes after it).
pub fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Type GUIDs of root partitions (UAPI.2 Discoverable Partitions Specification).
pub fn root_guid(arch: &str) -> Option<&'static str> {
    Some(match arch {
        "x86_64" => "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
        "aarch64" => "b921b045-1df0-41c3-af44-4c6f280d3fae",
        "i686" | "i586" | "i386" => "44479540-f297-41b2-9af7-d131d5f0458a",
        "riscv64" => "72ec70a6-cf74-40e6-bd49-4bda08e8f224",
        "ppc64le" => "c31c45e6-3f39-412e-80fb-4809c4980599",
        "s390x" => "5eead9a9-fe09-4a1e-a1d7-520d00531306",
        "loongarch64" => "77055800-792c-4f94-b39a-98c91b762bb6",
        "armv7l" | "armv6l" => "69dad710-2ce4-4e3c-b16c-21a1d49abed3",
        _ => return None,
    })
}

/// "Linux filesystem data", which most image builders give to the root.
pub const LINUX_DATA: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";

fn root_partition(table: &Table, arch: &str) -> Result<RootImage, Refusal> {
    let with_guid = |guid: &str| -> Vec<&TablePartition> {
        let is = |p: &&TablePartition| matches!(&p.kind, PartitionKind::Guid(g) if g == guid);
        table.partitions().iter().filter(is).collect()
    };
    let linux = || -> Vec<&TablePartition> {
        let is = |p: &&TablePartition| match &p.kind {
            PartitionKind::Guid(guid) => guid == LINUX_DATA,
            PartitionKind::Byte(byte) => *byte == 0x83,
        };
        table.partitions().iter().filter(is).collect()
    };
    let typed = root_guid(arch).map(with_guid).unwrap_or_default();
    let (found, what) = if typed.is_empty() {
        (linux(), "of type Linux")
    } else {
        (typed, "with the type of a root")
    };
    match found.as_slice() {
        [one] => Ok(RootImage::Partition {
            number: one.number,
            start: one.start,
            size: one.size,
        }),
        [] => Err(Refusal::NotARoot {
            why: format!("it is a disk without a root partition for {arch}"),
        }),
        several => Err(Refusal::NotARoot {
            why: format!(
                "it is a disk with {} partitions {what}; give the root the type GUID of a root for {arch}",
                several.len()
            ),
        }),
    }
}
