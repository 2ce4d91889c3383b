//! The two copies of a GPT. The crate `gpt` decodes bytes that were bounded and copied here: it asserts
//! an entry size of 128, allocates by the entry count, and opens disks for writing where it may.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek};

use gpt::disk::LogicalBlockSize;
use gpt::header::Header;
use gpt::partition::Partition;

use super::{CopyState, Gpt, PartitionKind, Table, TablePartition, bytes_at};
use crate::error::printable;
use crate::units::{Bytes, SectorSize};

const SIGNATURE: &[u8] = b"EFI PART";
/// The specification asks for room for at least 128 entries; nothing in the field has more than this.
const ENTRIES_LIMIT: u32 = 1024;
/// The only entry size in the field, and the only one the crate decodes.
const ENTRY_SIZE: u32 = 128;

struct Copy {
    header: Header,
    partitions: BTreeMap<u32, Partition>,
    entries: Vec<u8>,
}

impl Copy {
    /// Where its entries end on the disk.
    fn end(&self, sector: SectorSize) -> Bytes {
        let start = self.header.part_start.saturating_mul(sector.get());
        let length = u64::from(self.header.num_parts).saturating_mul(u64::from(ENTRY_SIZE));
        Bytes(start.saturating_add(length))
    }
}

enum Found {
    Valid(Box<Copy>),
    Missing,
    Invalid(String),
}

/// Reads both copies of a GPT for sectors of `sector` bytes.
pub(super) fn read<R: Read + Seek + ?Sized>(
    reader: &mut R,
    size: Bytes,
    sector: SectorSize,
    protective: bool,
) -> Table {
    let Some(last) = (size.0 / sector.get()).checked_sub(1).filter(|l| *l > 1) else {
        return Table::None;
    };
    let primary = copy_at(reader, 1, size, sector);
    let backup_lba = match &primary {
        Found::Valid(copy) => copy.header.backup_lba,
        Found::Missing | Found::Invalid(_) => last,
    };
    let backup = match copy_at(reader, backup_lba, size, sector) {
        // A table that was copied to a larger or smaller disk may still have a backup at the true end.
        Found::Missing | Found::Invalid(_) if backup_lba > last => {
            copy_at(reader, last, size, sector)
        }
        found => found,
    };
    let (primary_state, backup_state) = (state(&primary), state(&backup));
    let primary_end = match &primary {
        Found::Valid(copy) => copy.end(sector),
        Found::Missing | Found::Invalid(_) => Bytes::ZERO,
    };
    let copies_agree = match (&primary, &backup) {
        (Found::Valid(a), Found::Valid(b)) => {
            a.header.disk_guid == b.header.disk_guid
                && a.header.crc32_parts == b.header.crc32_parts
                && a.header.num_parts == b.header.num_parts
        }
        _ => false,
    };
    let backup_at_end = match &backup {
        Found::Valid(copy) => copy.header.current_lba == last,
        Found::Missing | Found::Invalid(_) => false,
    };
    let backup_lists = match (&primary, &backup) {
        (Found::Valid(_), Found::Valid(b)) if !copies_agree => Some(partitions(b, size, sector).0),
        _ => None,
    };
    let copy = match (primary, backup) {
        (Found::Valid(copy), _) | (_, Found::Valid(copy)) => copy,
        (Found::Invalid(why), _) => {
            return Table::Damaged {
                why: format!("the primary GPT is damaged ({why}) and there is no valid backup"),
            };
        }
        (Found::Missing, Found::Invalid(why)) => {
            return Table::Damaged {
                why: format!("the primary GPT is missing and the backup is damaged ({why})"),
            };
        }
        (Found::Missing, Found::Missing) => return Table::None,
    };
    let (partitions, flaws) = partitions(&copy, size, sector);
    Table::Gpt(Gpt {
        sector,
        disk_guid: copy.header.disk_guid.to_string(),
        protective,
        primary: primary_state,
        primary_end,
        backup: backup_state,
        copies_agree,
        backup_lists,
        backup_at_end,
        usable: (copy.header.first_usable, copy.header.last_usable),
        entries: copy.header.num_parts,
        partitions,
        flaws,
    })
}

/// The array of entries of the copy that [`read`] takes.
pub(super) fn entries<R: Read + Seek + ?Sized>(
    reader: &mut R,
    size: Bytes,
    sector: SectorSize,
) -> Option<Vec<u8>> {
    let last = (size.0 / sector.get()).checked_sub(1).filter(|l| *l > 1)?;
    [1, last]
        .into_iter()
        .find_map(|lba| match copy_at(reader, lba, size, sector) {
            Found::Valid(copy) => Some(copy.entries),
            Found::Missing | Found::Invalid(_) => None,
        })
}

fn state(found: &Found) -> CopyState {
    match found {
        Found::Valid(_) => CopyState::Valid,
        Found::Missing => CopyState::Missing,
        Found::Invalid(why) => CopyState::Invalid { why: why.clone() },
    }
}

fn copy_at<R: Read + Seek + ?Sized>(
    reader: &mut R,
    lba: u64,
    size: Bytes,
    sector: SectorSize,
) -> Found {
    let Some(offset) = lba
        .checked_mul(sector.get())
        .filter(|o| o.checked_add(sector.get()).is_some_and(|end| end <= size.0))
    else {
        return Found::Missing;
    };
    let Ok(bytes) = bytes_at(reader, offset, 512) else {
        // Past the end of an image's head, or unreadable: what the disk prober says about read errors
        // is said there.
        return Found::Missing;
    };
    if !bytes.starts_with(SIGNATURE) {
        return Found::Missing;
    }
    match decode(reader, &bytes, lba, size, sector) {
        Ok(copy) => Found::Valid(Box::new(copy)),
        Err(why) => Found::Invalid(why),
    }
}

fn decode<R: Read + Seek + ?Sized>(
    reader: &mut R,
    header_bytes: &[u8],
    lba: u64,
    size: Bytes,
    sector: SectorSize,
) -> Result<Copy, String> {
    let block = LogicalBlockSize::try_from(sector.get()).map_err(|e| e.to_string())?;
    // The crate reads "the primary": the second block of whatever it is given.
    let mut two_blocks = vec![0; block.as_usize()];
    two_blocks.extend_from_slice(header_bytes);
    let header =
        gpt::header::read_header_from_arbitrary_device(&mut Cursor::new(two_blocks), block)
            .map_err(|e| e.to_string())?;
    if header.current_lba != lba {
        return Err(format!(
            "the header at block {lba} says that it belongs at block {}",
            header.current_lba
        ));
    }
    if header.part_size != ENTRY_SIZE || !(1..=ENTRIES_LIMIT).contains(&header.num_parts) {
        return Err(format!(
            "{} entries of {} bytes; up to {ENTRIES_LIMIT} entries of {ENTRY_SIZE} bytes are understood",
            header.num_parts, header.part_size
        ));
    }
    let length = u64::from(header.num_parts) * u64::from(ENTRY_SIZE);
    let offset = header
        .part_start
        .checked_mul(sector.get())
        .filter(|o| o.checked_add(length).is_some_and(|end| end <= size.0))
        .ok_or_else(|| {
            format!(
                "its entries at block {} are past the end",
                header.part_start
            )
        })?;
    let length = usize::try_from(length).map_err(|e| e.to_string())?;
    let entries =
        bytes_at(reader, offset, length).map_err(|e| format!("reading its entries: {e}"))?;
    let mut at_zero = header.clone();
    at_zero.part_start = 0;
    let partitions =
        gpt::partition::file_read_partitions(&mut Cursor::new(&entries), &at_zero, block)
            .map_err(|e| e.to_string())?;
    Ok(Copy {
        header,
        partitions,
        entries,
    })
}

fn partitions(copy: &Copy, size: Bytes, sector: SectorSize) -> (Vec<TablePartition>, Vec<String>) {
    let mut good = Vec::new();
    let mut flaws = Vec::new();
    for (number, entry) in copy.partitions.iter().filter(|(_, p)| p.is_used()) {
        let start = entry.first_lba.checked_mul(sector.get());
        let end = entry
            .last_lba
            .checked_add(1)
            .and_then(|blocks| blocks.checked_mul(sector.get()));
        let (Some(start), Some(end)) = (start, end) else {
            flaws.push(format!("partition {number} is past the end of every disk"));
            continue;
        };
        let Some(length) = end.checked_sub(start) else {
            flaws.push(format!("partition {number} ends before it starts"));
            continue;
        };
        if end > size.0 {
            flaws.push(format!("partition {number} ends past the end of the disk"));
        }
        if entry.first_lba < copy.header.first_usable || entry.last_lba > copy.header.last_usable {
            flaws.push(format!(
                "partition {number} is outside of the usable blocks"
            ));
        }
        good.push(TablePartition {
            number: *number,
            start: Bytes(start),
            size: Bytes(length),
            kind: PartitionKind::Guid(entry.part_type_guid.guid.to_string()),
            partuuid: entry.part_guid.to_string(),
            name: (!entry.name.is_empty()).then(|| printable(&entry.name)),
            attributes: entry.flags,
        });
    }
    flaws.extend(overlaps(&good));
    (good, flaws)
}

fn overlaps(partitions: &[TablePartition]) -> Vec<String> {
    let mut by_start: Vec<&TablePartition> = partitions.iter().collect();
    by_start.sort_by_key(|p| p.start);
    by_start
        .iter()
        .zip(by_start.iter().skip(1))
        .filter(|(a, b)| a.start.checked_add(a.size).is_none_or(|end| end > b.start))
        .map(|(a, b)| format!("partitions {} and {} overlap", a.number, b.number))
        .collect()
}
