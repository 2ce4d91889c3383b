//! The mark of a device on which ironroot is making a file system. mkfs writes in an order of its own, and what a
//! power cut leaves of it is neither blank nor a file system. The mark is on the medium before the first write of
//! mkfs and gone before the first mount, so that whatever is beside it can be made again: nobody ever kept anything
//! there.
//!
//! It stands where no mkfs writes: mke2fs and mkfs.xfs zero up to the last 128 KiB, where RAID superblocks are, and a
//! small ext4 may have metadata in one of the two places.

use std::io;

use sha2::{Digest as _, Sha256};

use super::Found;
use super::filesystems;
use super::media::Media;
use crate::units::Bytes;

/// [`crate::host::Content::what`] of it.
pub const UNFINISHED_FILESYSTEM: &str = "unfinished file system";

/// Size of what is written: a sector of any disk.
pub const SIZE: usize = 4096;

/// All that counts stands in one sector of the disks with the smallest ones: a power cut leaves it or not, and never a
/// half that is neither a mark nor blank. Behind it are zeros.
const SECTOR: usize = 512;

const MAGIC: &[u8; 16] = b"ironroot-mkfs-02";

/// Distances from the end of the device.
const FROM_END: [u64; 2] = [256 << 10, 768 << 10];

/// Smaller ones have none.
const SMALLEST: u64 = 4 << 20;

/// Longer names of partitions do not exist (a GUID has 36 characters).
const NAME: usize = 255;

/// Where the marks of a device of `size` are; nowhere on a very small one.
pub fn places(size: Bytes) -> Vec<Bytes> {
    if size.0 < SMALLEST {
        return Vec::new();
    }
    let aligned = |back: &u64| size.0.checked_sub(*back).map(|at| Bytes(at & !0xfff));
    FROM_END.iter().filter_map(aligned).collect()
}

/// The mark of the device of this size with this PARTUUID, which is empty for what is no partition.
pub fn mark(size: Bytes, partuuid: &str) -> Vec<u8> {
    let name = partuuid.as_bytes();
    let name = name.get(..NAME).unwrap_or(name);
    let mut bytes = Vec::with_capacity(SIZE);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&size.0.to_le_bytes());
    bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(name);
    bytes.resize(SECTOR - 32, 0);
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes.resize(SIZE, 0);
    bytes
}

/// The PARTUUID in a mark that was made for a device of this size.
fn read(bytes: &[u8], size: u64) -> Option<String> {
    let bytes = bytes.get(..SECTOR)?;
    let name = bytes.strip_prefix(MAGIC)?.get(8..)?;
    let (length, name) = name.split_first()?;
    let name = std::str::from_utf8(name.get(..usize::from(*length))?).ok()?;
    mark(Bytes(size), name)
        .starts_with(bytes)
        .then(|| name.to_owned())
}

/// Whether beside a mark there is what only a complete file system has, whoever made it: the mark says nothing then. Of
/// a FAT the beginning looks like the whole; without a name in its root directory it holds nothing.
fn is_used(media: &Media<'_>) -> io::Result<bool> {
    Ok(is_complete_xfs(media)? || filesystems::has_names(media)?)
}

/// mkfs.xfs takes `sb_inprogress` away when all else is there (Linux: fs/xfs/libxfs/xfs_format.h, struct xfs_dsb).
fn is_complete_xfs(media: &Media<'_>) -> io::Result<bool> {
    const IN_PROGRESS: usize = 126;
    let superblock = media.bytes(0, 512)?.unwrap_or_default();
    Ok(superblock.starts_with(b"XFSB") && superblock.get(IN_PROGRESS) == Some(&0))
}

/// Its UUID is the PARTUUID of the device that it was made for.
pub(super) fn probe(media: &Media<'_>) -> io::Result<Vec<Found>> {
    for at in places(Bytes(media.size())) {
        let found = media.bytes(at.0, SIZE)?;
        if let Some(partuuid) = found.and_then(|bytes| read(&bytes, media.size())) {
            if is_used(media)? {
                return Ok(vec![]);
            }
            return Ok(vec![
                Found::new(UNFINISHED_FILESYSTEM, None).with_uuid(Some(partuuid)),
            ]);
        }
    }
    Ok(vec![])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mark_is_its_devices_alone(size in 0u64.., partuuid in "[0-9a-f-]{0,40}", at in 0..SECTOR, bit in 0..8) {
            let bytes = mark(Bytes(size), &partuuid);
            prop_assert_eq!(bytes.len(), SIZE);
            prop_assert_eq!(read(&bytes, size), Some(partuuid));
            prop_assert_eq!(read(&bytes, size ^ 4096), None);
            let mut flipped = bytes;
            flipped[at] ^= 1u8 << bit;
            prop_assert_eq!(read(&flipped, size), None);
        }

        #[test]
        fn a_cut_leaves_a_mark_or_nothing(size in 0u64.., partuuid in "[0-9a-f-]{0,36}", written in any::<u8>()) {
            let whole = mark(Bytes(size), &partuuid);
            // Any of its eight sectors of 512 bytes may be on the medium, and the others not, in either direction.
            for (mut there, new) in [(vec![0; SIZE], whole.clone()), (whole, vec![0; SIZE])] {
                for (i, sector) in new.chunks(512).enumerate() {
                    if written & (1 << i) != 0 {
                        there[i * 512..][..512].copy_from_slice(sector);
                    }
                }
                let is_mark = read(&there, size).as_deref() == Some(partuuid.as_str());
                prop_assert!(is_mark || there.iter().all(|b| *b == 0));
            }
        }

        #[test]
        fn any_bytes_are_a_mark_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..SIZE)) {
            prop_assert_eq!(read(&bytes, 1 << 30), None);
            let mut begun = MAGIC.to_vec();
            begun.extend(bytes);
            prop_assert_eq!(read(&begun, 1 << 30), None);
        }

        #[test]
        fn the_places_are_within_the_last_mib_and_not_in_what_mkfs_zeroes(size in 0u64..1 << 50) {
            for at in places(Bytes(size)) {
                prop_assert!(at.0 % 4096 == 0);
                let end = at.0 + SIZE as u64;
                prop_assert!(end + (128 << 10) <= size && at.0 + (1 << 20) >= size);
            }
        }
    }
}
