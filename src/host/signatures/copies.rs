//! The copies of a superblock that a file system keeps further in. They outlive zeros over both ends of a device, and
//! with them the file system can be brought back (`e2fsck -b`, `btrfs rescue super-recover`, `xfs_repair`): a device
//! with one is not blank, although no probe of its first and last MiB says so.
//!
//! Only the first copy of each kind is looked for, where its format's own tools put it without further options.

use std::io;

use super::media::{Fields, Media};
use crate::units::Bytes;

/// First copy of ext2, ext3 and ext4: the block at which group 1 begins, by block size (kernel:
/// Documentation/filesystems/ext4/super.rst; a group has eight times as many blocks as a block has bytes, and begins a
/// block later where blocks have 1 KiB).
const EXT: [(u64, u32); 3] = [(8193 << 10, 0), (32 << 20, 1), (128 << 20, 2)];

/// Copies of btrfs (kernel: fs/btrfs/fs.h, `btrfs_sb_offset`).
const BTRFS: [u64; 2] = [64 << 20, 256 << 30];

/// Block size of xfs where mkfs was told nothing else.
const XFS_BLOCK: u64 = 4096;

/// Names of what was found.
const EXT_COPY: &str = "backup superblock of ext4";
const BTRFS_COPY: &str = "backup superblock of btrfs";
const XFS_COPY: &str = "backup superblock of xfs";

/// Where a device of `size` may have copies, within it: what makes a new file system's place zeroes a page at each.
pub fn places(size: Bytes) -> impl Iterator<Item = u64> {
    let ext = EXT.into_iter().map(|(at, _)| at);
    let all = ext.chain(BTRFS).chain(second_group_of_xfs(size.0));
    all.filter(move |at| *at < size.0)
}

/// The second of four allocation groups, which mkfs.xfs makes of a single device below 4 TiB (xfsprogs:
/// `calc_default_ag_geometry`).
fn second_group_of_xfs(size: u64) -> Option<u64> {
    (size / XFS_BLOCK).div_ceil(4).checked_mul(XFS_BLOCK)
}

/// The first copy on `media`, by its name.
pub(super) fn find(media: &Media<'_>) -> io::Result<Option<&'static str>> {
    for (at, block_size) in EXT {
        if let Some(block) = media.bytes(at, 256)?.map(Fields) {
            // Its magic, in a block of this size, in group 1.
            let is_copy =
                block.u16(0x38) == 0xef53 && block.u32(0x18) == block_size && block.u16(0x5a) == 1;
            if is_copy {
                return Ok(Some(EXT_COPY));
            }
        }
    }
    for at in BTRFS {
        // Its magic, and its own place.
        let place = at.saturating_add(0x30);
        if media.has(place.saturating_add(0x10), b"_BHRfS_M")?
            && media.has(place, &at.to_le_bytes())?
        {
            return Ok(Some(BTRFS_COPY));
        }
    }
    if let Some(at) = second_group_of_xfs(media.size())
        && media.has(at, b"XFSB")?
    {
        return Ok(Some(XFS_COPY));
    }
    Ok(None)
}
