//! What a disk carries: one table of signatures, on the disk itself and in every partition that the
//! kernel or the table on the disk names.
//!
//! To add one: a row in [`SIGNATURES`]. The names are libblkid's where it knows the format, so that an
//! operator can compare with `blkid -p` and `wipefs`.
//!
//! **Blank** means: no row matches anywhere, and the first and the last MiB are all zeros, or both are all ones
//! (erased flash), the record area of [`crate::image::record`] aside, which has a verdict of its own, and no copy of a
//! superblock stands further in ([`copies`]). A few sectors of ones among zeros are somebody's data. A disk with other bytes there carries [`UNKNOWN`]: somebody's data in a format that is not in
//! the table, or the remains that `wipefs` leaves behind (it only breaks the magic).

pub mod copies;
mod filesystems;
mod label;
pub mod media;
mod raid;
pub mod unfinished;

use std::fs::File;
use std::io;

use self::label::Label;
use self::media::Media;
use super::tables::Table;
use super::{Content, Disk};
use crate::units::{Bytes, MIB, SectorSize};

/// [`Content::what`] of a disk whose head or tail is neither blank nor known.
pub const UNKNOWN: &str = "unknown data";

/// What one row found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    what: &'static str,
    label: Option<String>,
    uuid: Option<String>,
}

impl Found {
    fn new(what: &'static str, label: Option<String>) -> Found {
        Found {
            what,
            label,
            uuid: None,
        }
    }

    fn with_uuid(self, uuid: Option<String>) -> Found {
        Found { uuid, ..self }
    }
}

/// How a signature is recognised.
#[derive(Clone, Copy)]
enum Rule {
    /// This magic at this offset.
    Magic(u64, &'static [u8], Label),
    /// The same, and 16 bytes of UUID at another offset.
    WithUuid(u64, &'static [u8], Label, u64),
    /// One of these: a function, where a magic at a place is not enough.
    Probe(fn(&Media<'_>) -> io::Result<Vec<Found>>),
}

/// The table: name, rule. Sources: the formats' own headers in the kernel, and libblkid's superblocks.
const SIGNATURES: &[(&str, Rule)] = &[
    ("ext4", Rule::Probe(filesystems::ext)),
    ("vfat", Rule::Probe(filesystems::vfat)),
    ("exfat", Rule::Probe(filesystems::exfat)),
    ("swap", Rule::Probe(filesystems::swap)),
    ("crypto_LUKS", Rule::Probe(filesystems::luks)),
    ("LVM2_member", Rule::Probe(filesystems::lvm2)),
    ("hfsplus", Rule::Probe(filesystems::hfsplus)),
    ("linux_raid_member", Rule::Probe(raid::md)),
    ("ddf_raid_member", Rule::Probe(raid::ddf)),
    ("isw_raid_member", Rule::Probe(raid::imsm)),
    ("zfs_member", Rule::Probe(raid::zfs)),
    ("xfs", Rule::WithUuid(0, b"XFSB", Label::Text(108, 12), 32)),
    (
        "btrfs",
        Rule::WithUuid(0x1_0040, b"_BHRfS_M", Label::Text(0x1_012b, 256), 0x1_0020),
    ),
    (
        "f2fs",
        Rule::WithUuid(
            1024,
            b"\x10\x20\xf5\xf2",
            Label::Utf16(1024 + 124, 1024),
            1024 + 108,
        ),
    ),
    ("ntfs", Rule::Magic(3, b"NTFS    ", Label::None)),
    ("ReFS", Rule::Magic(0, b"\0\0\0ReFS\0", Label::None)),
    ("BitLocker", Rule::Magic(3, b"-FVE-FS-", Label::None)),
    ("apfs", Rule::Magic(32, b"NXSB", Label::None)),
    (
        "iso9660",
        Rule::Magic(0x8001, b"CD001", Label::Text(0x8028, 32)),
    ),
    ("udf", Rule::Magic(0x8001, b"BEA01", Label::None)),
    ("squashfs", Rule::Magic(0, b"hsqs", Label::None)),
    ("squashfs3", Rule::Magic(0, b"sqsh", Label::None)),
    (
        "erofs",
        Rule::WithUuid(
            1024,
            b"\xe2\xe1\xf5\xe0",
            Label::Text(1024 + 64, 16),
            1024 + 48,
        ),
    ),
    ("cramfs", Rule::Magic(0, b"\x45\x3d\xcd\x28", Label::None)),
    (
        "reiserfs",
        Rule::Magic(0x1_0034, b"ReIsEr2Fs", Label::Text(0x1_0064, 16)),
    ),
    (
        "reiserfs",
        Rule::Magic(0x1_0034, b"ReIsEr3Fs", Label::Text(0x1_0064, 16)),
    ),
    ("jfs", Rule::Magic(0x8000, b"JFS1", Label::Text(0x8098, 16))),
    (
        "gfs2",
        Rule::Magic(0x1_0000, b"\x01\x16\x19\x70", Label::None),
    ),
    ("ocfs2", Rule::Magic(0x2000, b"OCFSV2", Label::None)),
    (
        "bcache",
        Rule::Magic(0x1018, BCACHE, Label::Text(0x1048, 32)),
    ),
    ("bcachefs", Rule::Magic(0x1018, BCACHEFS, Label::None)),
    (
        "ceph_bluestore",
        Rule::Magic(0, b"bluestore block device", Label::None),
    ),
    (
        "VMFS_volume_member",
        Rule::Magic(0x10_0000, b"\x0d\xd0\x01\xc0", Label::None),
    ),
    (
        "VMFS",
        Rule::Magic(0x20_0000, b"\x5e\xf1\xab\x2f", Label::Text(0x20_001d, 128)),
    ),
    ("DM_verity_hash", Rule::Magic(0, b"verity\0\0", Label::None)),
    ("DM_integrity", Rule::Magic(0, b"integrt\0", Label::None)),
    ("vdo", Rule::Magic(0, b"dmvdo001", Label::None)),
    (
        unfinished::UNFINISHED_FILESYSTEM,
        Rule::Probe(unfinished::probe),
    ),
];

const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// What a disk carries, and what could not be read of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Signatures, disk first, then partitions by place.
    pub found: Vec<Content>,
    /// The first read error.
    pub unreadable: Option<String>,
    /// Kernel names of what is blank: the disk, or partitions of it.
    pub blank: Vec<String>,
}

/// Probes `disk` and its partitions: those that the kernel knows, and those of `table`, which was read
/// from the same `file`. `ours` says that the record area holds something of ours.
///
/// Reads a few KiB per signature and partition, half a MiB of ZFS labels per partition, and two MiB of a
/// disk on which nothing was found. Never writes.
pub fn probe(file: &File, disk: &Disk, table: &Table, ours: bool) -> Contents {
    let mut contents = Contents::default();
    let whole = Media::new(file, disk.size.0);
    contents.device(&disk.name, &whole);
    contents.tables(&disk.name, &whole, table);
    for (name, start, size) in parts(disk, table) {
        if let Some(part) = whole.part(start, size) {
            contents.device(&name, &part);
        }
    }
    if contents.found.is_empty() && contents.unreadable.is_none() {
        match is_blank(&whole, ours).and_then(|blank| remains(&whole, blank)) {
            Ok(None) if !ours => contents.blank.push(disk.name.clone()),
            Ok(None) => {}
            Ok(Some(what)) => contents.add(&disk.name, Found::new(what, None)),
            Err(error) => contents.error(&disk.name, &error),
        }
    }
    contents
}

/// Probes one device by itself, as it is now: a disk without its partitions, or a partition.
pub fn probe_one(file: &File, name: &str, size: Bytes) -> Contents {
    let alone = Disk {
        name: name.to_owned(),
        size,
        ..Disk::default()
    };
    let table = super::tables::read(&mut &*file, size, SectorSize::S512);
    let mut contents = probe(file, &alone, &Table::None, false);
    // A table makes a disk not blank even where all else of it is gone.
    if table != Table::None && contents.found.is_empty() {
        contents.blank.clear();
        contents.add(name, Found::new(UNKNOWN, None));
    }
    contents
}

impl Contents {
    /// Reads both ends of each partition without a signature, and notes which of them are blank.
    pub fn look_for_blanks(&mut self, file: &File, disk: &Disk, table: &Table) {
        let whole = Media::new(file, disk.size.0);
        for (name, start, size) in parts(disk, table) {
            let Some(part) = whole.part(start, size) else {
                continue;
            };
            if self.unreadable.is_some() || self.found.iter().any(|c| c.device == name) {
                continue;
            }
            match is_blank(&part, false).and_then(|blank| remains(&part, blank)) {
                Ok(None) => self.blank.push(name),
                Ok(Some(UNKNOWN)) => {}
                Ok(Some(what)) => self.add(&name, Found::new(what, None)),
                Err(error) => self.error(&name, &error),
            }
        }
    }

    fn add(&mut self, device: &str, found: Found) {
        self.found.push(Content {
            device: device.to_owned(),
            what: found.what.to_owned(),
            label: found.label,
            uuid: found.uuid,
        });
    }

    fn error(&mut self, device: &str, error: &io::Error) {
        self.unreadable
            .get_or_insert_with(|| format!("reading {device}: {error}"));
    }

    fn device(&mut self, device: &str, media: &Media<'_>) {
        for (what, rule) in SIGNATURES {
            match apply(what, *rule, media) {
                Ok(found) => {
                    for one in found {
                        self.add(device, one);
                    }
                }
                Err(error) => self.error(device, &error),
            }
        }
    }

    /// Tables count on whole disks only. A GPT header alone, at any of its places, is one: firmware,
    /// tools and a later kernel bring it back.
    fn tables(&mut self, device: &str, whole: &Media<'_>, table: &Table) {
        match gpt_header(whole) {
            Ok(true) => self.add(device, Found::new("gpt", None)),
            Ok(false) => {}
            Err(error) => self.error(device, &error),
        }
        let protects_a_gpt = |c: &Content| c.what == "gpt";
        match table {
            Table::Mbr(_) => self.add(device, Found::new("dos", None)),
            Table::Damaged { .. } if !self.found.iter().any(protects_a_gpt) => {
                self.add(device, Found::new("dos", None));
            }
            Table::Damaged { .. } | Table::Gpt(_) | Table::None => {}
        }
    }
}

fn apply(what: &'static str, rule: Rule, media: &Media<'_>) -> io::Result<Vec<Found>> {
    match rule {
        Rule::Probe(probe) => probe(media),
        Rule::Magic(at, magic, label) if media.has(at, magic)? => {
            Ok(vec![Found::new(what, label.read(media)?)])
        }
        Rule::WithUuid(at, magic, label, uuid_at) if media.has(at, magic)? => {
            let uuid = media.bytes(uuid_at, 16)?.and_then(|b| label::uuid(&b));
            Ok(vec![Found::new(what, label.read(media)?).with_uuid(uuid)])
        }
        Rule::Magic(..) | Rule::WithUuid(..) => Ok(vec![]),
    }
}

fn gpt_header(whole: &Media<'_>) -> io::Result<bool> {
    let from_end = |back: u64| whole.size().checked_sub(back);
    for at in [Some(512), Some(4096), from_end(512), from_end(4096)]
        .into_iter()
        .flatten()
    {
        if whole.has(at, b"EFI PART")? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Every partition once: the kernel's, and those of the table that differ from them.
fn parts(disk: &Disk, table: &Table) -> Vec<(String, u64, u64)> {
    let mut parts: Vec<(String, u64, u64)> = disk
        .partitions
        .iter()
        .map(|p| (p.name.clone(), p.start.0, p.size.0))
        .collect();
    for partition in table.partitions().iter().filter(|p| !p.kind.is_extended()) {
        let (start, size) = (partition.start.0, partition.size.0);
        // A hybrid image has an entry that begins with the disk: that is the disk.
        if start > 0 && !parts.iter().any(|(_, s, z)| (*s, *z) == (start, size)) {
            parts.push((partition_name(&disk.name, partition.number), start, size));
        }
    }
    parts.sort_by_key(|(_, start, _)| *start);
    parts
}

/// The kernel's name for partition `number` of `disk`: `sda1`, `nvme0n1p1` (kernel: block/partitions/core.c).
pub fn partition_name(disk: &str, number: u32) -> String {
    let separator = if disk.ends_with(|c: char| c.is_ascii_digit()) {
        "p"
    } else {
        ""
    };
    format!("{disk}{separator}{number}")
}

/// What no medium holds but where nothing was ever stored, or all of it was erased: zeros alone, or ones alone (erased
/// flash). A few sectors of ones among zeros are data.
#[derive(Clone, Copy, Debug)]
pub struct Blank {
    zeros: bool,
    ones: bool,
}

impl Blank {
    /// Of nothing yet.
    pub const UNSEEN: Blank = Blank {
        zeros: true,
        ones: true,
    };

    /// With `bytes` too.
    #[must_use]
    pub fn and(self, bytes: &[u8]) -> Blank {
        let all = |byte: u8| bytes.iter().all(|b| *b == byte);
        Blank {
            zeros: self.zeros && all(0),
            ones: self.ones && all(0xff),
        }
    }

    /// Whether all that was seen is blank.
    pub fn is_so(self) -> bool {
        self.zeros || self.ones
    }

    /// Whether it is so and has ones.
    pub fn is_erased_flash(self) -> bool {
        self.ones && !self.zeros
    }
}

/// What is there although no signature is: of a device whose ends are `blank` a copy further in.
fn remains(media: &Media<'_>, blank: bool) -> io::Result<Option<&'static str>> {
    if blank {
        copies::find(media)
    } else {
        Ok(Some(UNKNOWN))
    }
}

/// Whether the first and the last MiB are blank.
fn is_blank(whole: &Media<'_>, ours: bool) -> io::Result<bool> {
    use crate::image::record;
    const CHUNK: usize = 64 << 10;
    let tail = whole.size().saturating_sub(MIB);
    let mut blank = Blank::UNSEEN;
    for region in [0, tail] {
        let mut at = region;
        let end = region.saturating_add(MIB).min(whole.size());
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = whole.bytes(at, length)?.unwrap_or_default();
            let skip = record::OFFSET
                .checked_sub(at)
                .and_then(|o| usize::try_from(o).ok())
                .filter(|_| ours);
            // The record, where it is in this chunk, counts as neither.
            let around = skip.and_then(|from| {
                Some((
                    chunk.get(..from)?,
                    chunk.get(from.checked_add(record::SIZE)?..)?,
                ))
            });
            let (before, behind) = around.unwrap_or((&chunk, &[]));
            blank = blank.and(before).and(behind);
            if !blank.is_so() {
                return Ok(false);
            }
            at = at.saturating_add(CHUNK as u64);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
