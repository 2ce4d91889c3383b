//! The superblock of a file system image: which file system, and how long it says it is. Pure; what the kernel
//! makes of the rest, it checks itself.

use std::fmt;

use serde::Serialize;

use crate::units::Bytes;

/// A file system that can be a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FileSystem {
    /// squashfs 4.0 (kernel: fs/squashfs/squashfs_fs.h).
    Squashfs {
        /// `bytes_used`: all that there is.
        length: Bytes,
    },
    /// erofs (kernel: fs/erofs/erofs_fs.h).
    Erofs {
        /// Blocks times block size.
        length: Bytes,
    },
    /// One that is made to be written to; its image is mostly holes.
    Other {
        /// Its name for mount(2).
        name: &'static str,
    },
}

impl FileSystem {
    /// Its name for mount(2).
    pub const fn name(&self) -> &'static str {
        match self {
            FileSystem::Squashfs { .. } => "squashfs",
            FileSystem::Erofs { .. } => "erofs",
            FileSystem::Other { name } => name,
        }
    }

    /// How long its superblock says it is.
    pub const fn length(&self) -> Option<Bytes> {
        match self {
            FileSystem::Squashfs { length } | FileSystem::Erofs { length } => Some(*length),
            FileSystem::Other { .. } => None,
        }
    }

    /// Options without which a read-only mount would replay a journal, which a read-only device refuses.
    pub const fn read_only_options(&self) -> &'static [&'static str] {
        match self.name().as_bytes() {
            b"ext4" => &["noload"],
            b"xfs" => &["norecovery"],
            _ => &[],
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many bytes from the start of a file system must be there for [`of`].
pub const HEAD: usize = 0x1_0048;

/// The file system that begins with `head`.
pub fn of(head: &[u8]) -> Option<FileSystem> {
    let has = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|h| h.starts_with(magic));
    if has(0, b"hsqs") {
        let length = Bytes(u64::from_le_bytes(field(head, 40)?));
        return Some(FileSystem::Squashfs { length });
    }
    if has(1024, b"\xe2\xe1\xf5\xe0") {
        let shift = u32::from(*head.get(1024 + 12)?);
        let blocks = u64::from(u32::from_le_bytes(field(head, 1024 + 36)?));
        // A size that overflows is a lie; the kernel will say so.
        let length = Bytes(blocks.checked_shl(shift).unwrap_or(u64::MAX));
        return Some(FileSystem::Erofs { length });
    }
    let name = if has(1024 + 0x38, &[0x53, 0xef]) {
        "ext4"
    } else if has(0, b"XFSB") {
        "xfs"
    } else if has(0x1_0040, b"_BHRfS_M") {
        "btrfs"
    } else {
        return None;
    };
    Some(FileSystem::Other { name })
}

fn field<const N: usize>(head: &[u8], at: usize) -> Option<[u8; N]> {
    head.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_file_system_is_known_by_its_superblock() {
        let mut squashfs = vec![0; 96];
        squashfs[..4].copy_from_slice(b"hsqs");
        squashfs[40..48].copy_from_slice(&12345u64.to_le_bytes());
        assert_eq!(
            of(&squashfs),
            Some(FileSystem::Squashfs {
                length: Bytes(12345)
            })
        );
        let mut erofs = vec![0; 2048];
        erofs[1024..1028].copy_from_slice(b"\xe2\xe1\xf5\xe0");
        erofs[1036] = 12;
        erofs[1060..1064].copy_from_slice(&7u32.to_le_bytes());
        assert_eq!(of(&erofs).and_then(|fs| fs.length()), Some(Bytes(7 << 12)));
        let mut ext4 = vec![0; 2048];
        ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(
            of(&ext4).map(|fs| fs.read_only_options()),
            Some(&["noload"][..])
        );
        assert_eq!(of(&[0; 2048]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let _ = of(&bytes);
            let mut with_magic = b"hsqs".to_vec();
            with_magic.extend(&bytes);
            let _ = of(&with_magic);
        }
    }
}
