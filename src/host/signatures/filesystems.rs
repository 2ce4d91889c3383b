//! File systems and swap whose signature is more than one magic at one place.

use std::io;

use super::Found;
use super::label::{text, utf16, uuid};
use super::media::{Fields, Media};

/// ext2, ext3, ext4 and external journals (kernel: Documentation/filesystems/ext4/super.rst). The three
/// differ by feature bits only; the rule is libblkid's.
pub(super) fn ext(media: &Media<'_>) -> io::Result<Vec<Found>> {
    const COMPAT_HAS_JOURNAL: u32 = 0x4;
    const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
    // What ext3 knows: sparse_super, large_file, btree_dir; filetype, recover, meta_bg.
    const EXT3_RO_COMPAT: u32 = 0x7;
    const EXT3_INCOMPAT: u32 = 0x2 | 0x4 | 0x10;
    let Some(block) = media.bytes(1024, 256)?.map(Fields) else {
        return Ok(vec![]);
    };
    if block.u16(0x38) != 0xef53 {
        return Ok(vec![]);
    }
    let (compat, incompat, ro_compat) = (block.u32(0x5c), block.u32(0x60), block.u32(0x64));
    let what = if incompat & INCOMPAT_JOURNAL_DEV != 0 {
        "jbd"
    } else if incompat & !EXT3_INCOMPAT != 0 || ro_compat & !EXT3_RO_COMPAT != 0 {
        "ext4"
    } else if compat & COMPAT_HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    let found = Found::new(what, text(block.slice(0x78, 16)));
    Ok(vec![found.with_uuid(uuid(block.slice(0x68, 16)))])
}

/// FAT12, FAT16, FAT32: a boot sector whose parameter block makes sense (Microsoft FAT specification,
/// section 3.1). The name in the boot sector is the label; "NO NAME" is none.
pub(super) fn vfat(media: &Media<'_>) -> io::Result<Vec<Found>> {
    let Some(boot) = fat_boot_sector(media)? else {
        return Ok(vec![]);
    };
    // FAT32 has no 16-bit FAT size, and its extended parameter block is further back.
    let (label_at, serial_at) = if boot.u16(22) == 0 {
        (71, 67)
    } else {
        (43, 39)
    };
    let label = text(boot.slice(label_at, 11)).filter(|l| l != "NO NAME");
    let serial = boot.u32(serial_at);
    let uuid = (serial != 0).then(|| format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff));
    Ok(vec![Found::new("vfat", label).with_uuid(uuid)])
}

fn fat_boot_sector(media: &Media<'_>) -> io::Result<Option<Fields>> {
    let Some(boot) = media.bytes(0, 512)?.map(Fields) else {
        return Ok(None);
    };
    let bytes_per_sector = boot.u16(11);
    let sane = boot.slice(510, 2) == [0x55, 0xaa]
        && bytes_per_sector.is_power_of_two()
        && (512..=4096).contains(&bytes_per_sector)
        && boot.u8(13).is_power_of_two()
        && boot.u16(14) > 0
        && (1..=2).contains(&boot.u8(16))
        && (boot.u8(21) == 0xf0 || boot.u8(21) >= 0xf8);
    Ok(sane.then_some(boot))
}

/// Whether the root directory of a FAT has, or had, an entry other than its label (Microsoft FAT specification,
/// sections 3.5 and 6). Of a FAT32 its first cluster is looked at, where mkfs leaves nothing.
pub(super) fn has_names(media: &Media<'_>) -> io::Result<bool> {
    const LABEL: u8 = 0x08;
    const ENTRY: usize = 32;
    const LIMIT: usize = 64 << 10;
    let Some(boot) = fat_boot_sector(media)? else {
        return Ok(false);
    };
    let sector = u64::from(boot.u16(11));
    let cluster = u64::from(boot.u8(13)).saturating_mul(sector);
    let small = u64::from(boot.u16(22));
    let of_a_fat = if small == 0 {
        u64::from(boot.u32(36))
    } else {
        small
    };
    let fats = u64::from(boot.u8(16)).saturating_mul(of_a_fat);
    let behind_fats = fats
        .saturating_add(u64::from(boot.u16(14)))
        .saturating_mul(sector);
    let (at, length) = if small == 0 {
        let before = u64::from(boot.u32(44)).saturating_sub(2);
        let before = before.saturating_mul(cluster);
        (behind_fats.saturating_add(before), cluster)
    } else {
        (
            behind_fats,
            u64::from(boot.u16(17)).saturating_mul(ENTRY as u64),
        )
    };
    let length = usize::try_from(length).unwrap_or(LIMIT).min(LIMIT);
    let root = media.bytes(at, length)?.unwrap_or_default();
    Ok(root
        .chunks_exact(ENTRY)
        .take_while(|entry| entry.first() != Some(&0))
        .any(|entry| entry.get(11) != Some(&LABEL)))
}

/// exFAT; its label is an entry of the root directory (Microsoft exFAT specification, sections 3.1, 7.3).
pub(super) fn exfat(media: &Media<'_>) -> io::Result<Vec<Found>> {
    let Some(boot) = media.bytes(0, 512)?.map(Fields) else {
        return Ok(vec![]);
    };
    if boot.slice(3, 8) != b"EXFAT   " {
        return Ok(vec![]);
    }
    let (sector_shift, cluster_shift) = (u32::from(boot.u8(108)), u32::from(boot.u8(109)));
    let root = u64::from(boot.u32(96))
        .checked_sub(2)
        .and_then(|cluster| cluster.checked_shl(cluster_shift))
        .and_then(|sectors| sectors.checked_add(u64::from(boot.u32(88))))
        .and_then(|sector| sector.checked_mul(1u64.checked_shl(sector_shift)?));
    let entries = match root {
        Some(at) => media.bytes(at, 512)?.unwrap_or_default(),
        None => Vec::new(),
    };
    let label = entries
        .chunks_exact(32)
        .find(|entry| entry.first() == Some(&0x83))
        .and_then(|entry| utf16(entry.get(2..24)?));
    Ok(vec![Found::new("exfat", label)])
}

/// Swap and hibernation images: the magic ends the first page, whatever the page size of the machine that
/// wrote it (kernel: include/linux/swap.h).
pub(super) fn swap(media: &Media<'_>) -> io::Result<Vec<Found>> {
    const PAGES: [u64; 5] = [4096, 8192, 16384, 32768, 65536];
    const SUSPENDED: [&[u8]; 4] = [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"];
    for page in PAGES {
        let Some(magic) = media.bytes(page - 10, 10)? else {
            continue;
        };
        if magic == b"SWAPSPACE2" || magic == b"SWAP-SPACE" {
            let label = media.bytes(1024 + 28, 16)?.and_then(|b| text(&b));
            let uuid = media.bytes(1024 + 12, 16)?.and_then(|b| uuid(&b));
            return Ok(vec![Found::new("swap", label).with_uuid(uuid)]);
        }
        if SUSPENDED.iter().any(|s| magic.starts_with(s)) {
            return Ok(vec![Found::new("swsuspend", None)]);
        }
    }
    Ok(vec![])
}

/// LUKS 1 and 2 (LUKS2 on-disk format specification, section 2.1). A second LUKS2 header lies at one of a
/// few offsets and brings a wiped one back.
pub(super) fn luks(media: &Media<'_>) -> io::Result<Vec<Found>> {
    if let Some(header) = media.bytes(0, 72)?.map(Fields)
        && header.slice(0, 6) == b"LUKS\xba\xbe"
    {
        // Version is big-endian; LUKS1 has no label.
        let label = match header.slice(6, 2) {
            [0, 2] => text(header.slice(24, 48)),
            _ => None,
        };
        // In words already.
        let uuid = media.bytes(168, 40)?.and_then(|b| text(&b));
        return Ok(vec![Found::new("crypto_LUKS", label).with_uuid(uuid)]);
    }
    for shift in 14..=22 {
        if media.has(1 << shift, b"SKUL\xba\xbe")? {
            return Ok(vec![Found::new("crypto_LUKS", None)]);
        }
    }
    Ok(vec![])
}

/// A physical volume of LVM2: its label is in one of the first four sectors
/// (lvm2: lib/label/label.h, `struct label_header`).
pub(super) fn lvm2(media: &Media<'_>) -> io::Result<Vec<Found>> {
    let block = Fields(media.bytes(0, 2048)?.unwrap_or_default());
    let found = (0..4).any(|sector| {
        block.slice(sector * 512, 8) == b"LABELONE"
            && block.slice(sector * 512 + 24, 8) == b"LVM2 001"
    });
    Ok(if found {
        vec![Found::new("LVM2_member", None)]
    } else {
        vec![]
    })
}

/// HFS+ and HFSX: two bytes are little, so the version is checked too (Apple TN1150).
pub(super) fn hfsplus(media: &Media<'_>) -> io::Result<Vec<Found>> {
    let head = media.bytes(1024, 4)?.unwrap_or_default();
    let known = head == [b'H', b'+', 0, 4] || head == [b'H', b'X', 0, 5];
    Ok(if known {
        vec![Found::new("hfsplus", None)]
    } else {
        vec![]
    })
}
