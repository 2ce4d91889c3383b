//! Members of arrays and pools. Many keep their superblock at the end, where it outlives a new table.

use std::io;

use super::Found;
use super::label::text;
use super::media::{Fields, Media};

const MD_MAGIC: u32 = 0xa92b_4efc;

/// Linux software RAID (kernel: include/uapi/linux/raid/md_p.h). Version 0.90 lies in the last whole
/// 64 KiB but one; 1.0 near the end, 1.1 at the start, 1.2 at 4 KiB.
pub(super) fn md(media: &Media<'_>) -> io::Result<Vec<Found>> {
    let end_of_old = (media.size() & !0xffff).checked_sub(0x1_0000);
    if let Some(at) = end_of_old
        && let Some(block) = media.bytes(at, 8)?.map(Fields)
        // 0.90 is written in the byte order of the machine.
        && (block.u32(0) == MD_MAGIC || block.u32_be(0) == MD_MAGIC)
        && (block.u32(4) == 0 || block.u32_be(4) == 0)
    {
        return Ok(vec![Found::new("linux_raid_member", None)]);
    }
    let near_end = (media.size() >> 9)
        .checked_sub(16)
        .map(|sectors| (sectors & !7) << 9);
    for at in [near_end, Some(0), Some(4096)].into_iter().flatten() {
        let Some(block) = media.bytes(at, 64)?.map(Fields) else {
            continue;
        };
        if block.u32(0) == MD_MAGIC && block.u32(4) == 1 {
            return Ok(vec![Found::new(
                "linux_raid_member",
                text(block.slice(32, 32)),
            )]);
        }
    }
    Ok(vec![])
}

/// SNIA DDF: the anchor header is in the last block, or 257 blocks before the end (SNIA DDF 2.0,
/// section 5.2; the second place is libblkid's).
pub(super) fn ddf(media: &Media<'_>) -> io::Result<Vec<Found>> {
    let places = [512, 257 * 512, 4096];
    from_end(media, &places, b"\xde\x11\xde\x11", "ddf_raid_member")
}

/// Intel Matrix RAID (mdadm: super-intel.c): the last block but one.
pub(super) fn imsm(media: &Media<'_>) -> io::Result<Vec<Found>> {
    from_end(
        media,
        &[2 * 512, 2 * 4096],
        b"Intel Raid ISM Cfg Sig. ",
        "isw_raid_member",
    )
}

fn from_end(
    media: &Media<'_>,
    places: &[u64],
    magic: &[u8],
    what: &'static str,
) -> io::Result<Vec<Found>> {
    for back in places {
        // Firmware counts whole sectors.
        let end = media.size() & !511;
        if let Some(at) = end.checked_sub(*back)
            && media.has(at, magic)?
        {
            return Ok(vec![Found::new(what, None)]);
        }
    }
    Ok(vec![])
}

/// A member of a ZFS pool (OpenZFS: include/sys/vdev_impl.h, `vdev_label_t`). Four labels of 256 KiB, two
/// at each end: at 16 KiB of each an XDR list that names the pool, at 128 KiB a ring of uberblocks. One
/// label, or one uberblock, is enough for an import to find the disk.
pub(super) fn zfs(media: &Media<'_>) -> io::Result<Vec<Found>> {
    const LABEL: u64 = 256 << 10;
    const RING: u64 = 128 << 10;
    const UBERBLOCK: u64 = 0x00ba_b10c;
    let end = media.size() & !(LABEL - 1);
    if end < 4 * LABEL {
        return Ok(vec![]);
    }
    let mut ring_found = false;
    for label in [0, LABEL, end - 2 * LABEL, end - LABEL] {
        let list = media.bytes(label + (16 << 10), 4096)?.unwrap_or_default();
        // NV_ENCODE_XDR, byte order, two reserved; version 0; NV_UNIQUE_NAME.
        if list.starts_with(&[1]) && list.get(4..12) == Some(&[0, 0, 0, 0, 0, 0, 0, 1]) {
            return Ok(vec![Found::new("zfs_member", pool_name(&list))]);
        }
        let ring = media.bytes(label + RING, 128 << 10)?.unwrap_or_default();
        ring_found |= ring.chunks_exact(1024).any(|slot| {
            slot.first_chunk::<8>().is_some_and(|magic| {
                u64::from_le_bytes(*magic) == UBERBLOCK || u64::from_be_bytes(*magic) == UBERBLOCK
            })
        });
    }
    Ok(if ring_found {
        vec![Found::new("zfs_member", None)]
    } else {
        vec![]
    })
}

/// The value of the pair `name`: XDR strings are a big-endian length and bytes padded to four.
fn pool_name(list: &[u8]) -> Option<String> {
    // Length 4, "name", type 9 (string), one element, then the string.
    const PAIR: &[u8] = b"\0\0\0\x04name\0\0\0\x09\0\0\0\x01";
    let at = list
        .windows(PAIR.len())
        .position(|w| w == PAIR)?
        .checked_add(PAIR.len())?;
    let rest = list.get(at..)?;
    let (length, value) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    text(value.get(..length.min(256))?)
}
