//! MBR and its chain of extended boot records. `mbrman` decodes single sectors; the chain is walked
//! here, with an end.

use std::io::{Cursor, Read, Seek};

use mbrman::{MBRHeader, MBRPartitionEntry};

use super::{Mbr, PartitionKind, TablePartition, bytes_at};
use crate::units::{Bytes, SectorSize};

/// The kernel's own limit is 256 partitions; a chain that is longer is a loop or an attack.
const LOGICAL_LIMIT: u32 = 124;
const PROTECTIVE: u8 = 0xee;
/// Bit 2 of a GPT entry's attributes says "legacy BIOS bootable", which is what "active" means.
const ACTIVE: u64 = 1 << 2;

/// The MBR in a sector 0; `None` where the signature is missing or a boot flag is neither 0 nor 0x80.
pub(super) fn parse(lba0: &[u8]) -> Option<MBRHeader> {
    MBRHeader::read_from(&mut Cursor::new(lba0)).ok()
}

/// One of the entries protects a GPT.
pub(super) fn is_protective(header: &MBRHeader) -> bool {
    header.iter().any(|(_, entry)| entry.sys == PROTECTIVE)
}

/// One of the entries is a partition.
pub(super) fn has_partitions(header: &MBRHeader) -> bool {
    header.iter().any(|(_, entry)| is_used(entry))
}

/// The boot sector of a FAT on a whole disk, with a table of one partition that begins where it does itself: mkfs.fat(8)
/// writes that (`--mbr`), so that other systems take the disk for a partitioned one.
pub(super) fn is_only_for_show(header: &MBRHeader, lba0: &[u8]) -> bool {
    let mut used = header.iter().filter(|(_, entry)| is_used(entry));
    is_file_system(lba0) && used.all(|(_, entry)| entry.starting_lba == 0)
}

fn is_used(entry: &MBRPartitionEntry) -> bool {
    entry.is_used() && entry.sectors > 0
}

/// Whether a sector that ends in 55 AA is the boot sector of a FAT, exFAT or NTFS file system: these name
/// themselves, or have a FAT's parameter block (jump, bytes per sector, sectors per cluster, FATs, media).
pub(super) fn is_file_system(lba0: &[u8]) -> bool {
    let at = |offset: usize| lba0.get(offset).copied().unwrap_or(0);
    let text = |offset: usize, len: usize| lba0.get(offset..offset + len).unwrap_or_default();
    if [b"NTFS    ", b"EXFAT   "]
        .iter()
        .any(|id| text(3, 8) == id.as_slice())
    {
        return true;
    }
    let bytes_per_sector = u32::from(at(12)) << 8 | u32::from(at(11));
    matches!(at(0), 0xeb | 0xe9)
        && SectorSize::new(bytes_per_sector).is_some()
        && at(13).is_power_of_two()
        && (1..=2).contains(&at(16))
        && (at(21) == 0xf0 || at(21) >= 0xf8)
}

/// Lists the partitions of `header`, logical ones included.
pub(super) fn read<R: Read + Seek + ?Sized>(
    reader: &mut R,
    header: &MBRHeader,
    sector: SectorSize,
) -> Mbr {
    let signature = format!("{:08x}", u32::from_le_bytes(header.disk_signature));
    let mut partitions = Vec::new();
    let mut extended = None;
    for (number, entry) in header.iter().filter(|(_, e)| is_used(e)) {
        let Ok(number) = u32::try_from(number) else {
            continue;
        };
        if entry.is_extended() {
            extended.get_or_insert(entry.starting_lba);
        }
        partitions.extend(partition(&signature, number, 0, entry, sector));
    }
    if let Some(first) = extended {
        partitions.extend(logical(reader, u64::from(first), &signature, sector));
    }
    Mbr {
        signature,
        partitions,
    }
}

/// Each extended boot record has the form of an MBR: its first entry is a logical partition, relative to
/// the record; its second the next record, relative to the extended partition.
fn logical<R: Read + Seek + ?Sized>(
    reader: &mut R,
    extended: u64,
    signature: &str,
    sector: SectorSize,
) -> Vec<TablePartition> {
    let mut partitions = Vec::new();
    let mut record = extended;
    let mut number = 5;
    for _ in 0..LOGICAL_LIMIT {
        let Some(ebr) = record
            .checked_mul(sector.get())
            .and_then(|offset| bytes_at(reader, offset, 512).ok())
            .and_then(|bytes| parse(&bytes))
        else {
            break;
        };
        let (first, second) = (&ebr.partition_1, &ebr.partition_2);
        if is_used(first) && !first.is_extended() {
            partitions.extend(partition(signature, number, record, first, sector));
            number += 1;
        }
        if !is_used(second) || !second.is_extended() || second.starting_lba == 0 {
            break;
        }
        record = extended + u64::from(second.starting_lba);
    }
    partitions
}

fn partition(
    signature: &str,
    number: u32,
    base: u64,
    entry: &MBRPartitionEntry,
    sector: SectorSize,
) -> Option<TablePartition> {
    let start = base.checked_add(u64::from(entry.starting_lba))?;
    Some(TablePartition {
        number,
        start: Bytes(start.checked_mul(sector.get())?),
        size: Bytes(u64::from(entry.sectors).checked_mul(sector.get())?),
        kind: PartitionKind::Byte(entry.sys),
        partuuid: format!("{signature}-{number:02x}"),
        name: None,
        attributes: if entry.is_active() { ACTIVE } else { 0 },
    })
}
