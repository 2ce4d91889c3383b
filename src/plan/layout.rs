//! The second plan: how an image's head fits this disk. Pure arithmetic on the first MiB of the image; the
//! result is every byte that will be written outside the image's body.
//!
//! The GPT is patched in place (UEFI specification 2.10, section 5.3): entries, numbers, names and
//! attributes stay byte for byte; only the places of the backup and the end of the usable space change.

use flate2::Crc;

use super::refusal::Refusal;
use super::step::{Span, Target};
use crate::config::wire::RecordPolicy;
use crate::host::tables::{self, CopyState, Gpt, Table};
use crate::image::record;
use crate::units::{Bytes, MIB, SectorSize};

/// Every byte that is written outside the image's body, and what was learnt from the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The image's first MiB as it will stand on this disk, without the record.
    pub head: Vec<u8>,
    /// Backup GPT: where, and its bytes. `None` for an MBR image.
    pub tail: Option<(Bytes, Vec<u8>)>,
    /// The image's own backup GPT, which would stand in the middle of a larger disk.
    pub stale_backup: Option<Span>,
    /// The image's table.
    pub table: Table,
}

/// What is known of an image's length before it has been read to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length {
    /// The whole length, where it is certain.
    pub exact: Option<Bytes>,
    /// No less than this, by what the stream's headers declare.
    pub at_least: Bytes,
}

/// How the head of an image fits `target`. Fails before anything is written.
pub fn adopt(
    head: &[u8],
    length: Length,
    target: &Target,
    record: RecordPolicy,
) -> Result<Layout, Refusal> {
    let not_an_image = |why: String| Refusal::NotADiskImage { why };
    if u64::try_from(head.len()).ok() != Some(MIB) {
        return Err(not_an_image(format!("it has only {} bytes", head.len())));
    }
    let declared = length.exact.unwrap_or_default().max(length.at_least);
    if declared > target.size {
        return Err(too_small(target, "the image", declared));
    }
    // The table's own sector size speaks for the image; an MBR is written for 512 bytes.
    let table = read_head(head, target);
    let image_sector = match &table {
        Table::Gpt(gpt) => gpt.sector,
        Table::Mbr(_) => SectorSize::S512,
        Table::None => {
            return Err(not_an_image(
                "it begins with no partition table and no boot sector".to_owned(),
            ));
        }
        Table::Damaged { why } => return Err(not_an_image(why.clone())),
    };
    if image_sector != target.sector {
        return Err(Refusal::SectorSize {
            disk: target.name.clone(),
            image: image_sector,
            have: target.sector,
        });
    }
    if let Some(length) = length.exact {
        must_be_whole(&table, length)?;
    }
    if record == RecordPolicy::Required {
        room_for_record(head, &table)?;
    }
    if let Table::Gpt(gpt) = &table {
        return adopt_gpt(head, gpt, &table, length.exact, target);
    }
    for p in table.partitions() {
        let end = p.start.checked_add(p.size).unwrap_or(Bytes(u64::MAX));
        if end > target.size {
            return Err(too_small(
                target,
                &format!("partition {} of the image", p.number),
                end,
            ));
        }
    }
    Ok(Layout {
        head: head.to_vec(),
        tail: None,
        stale_backup: None,
        table,
    })
}

/// Refuses an image whose content ends inside a partition: it was cut short where no decoder and no length
/// could tell.
pub fn must_be_whole(table: &Table, length: Bytes) -> Result<(), Refusal> {
    // The end of an extended partition is that of a container; nothing need be there.
    let partitions = table.partitions().iter();
    let cut = partitions
        .filter(|p| !p.kind.is_extended())
        .map(|p| (p.start.0.saturating_add(p.size.0), p.number))
        .max()
        .filter(|(end, _)| *end > length.0);
    match cut {
        Some((end, number)) => Err(Refusal::NotADiskImage {
            why: format!(
                "it is cut short: it has {} bytes, and its partition {number} ends at byte {end}",
                length.0
            ),
        }),
        None => Ok(()),
    }
}

/// The table of an image's head. The size is not known yet: the disk's is the largest that can be right.
fn read_head(head: &[u8], target: &Target) -> Table {
    tables::read(&mut std::io::Cursor::new(head), target.size, target.sector)
}

fn too_small(target: &Target, what: &str, need: Bytes) -> Refusal {
    Refusal::TooSmall {
        disk: target.name.clone(),
        what: what.to_owned(),
        need,
        have: target.size,
    }
}

fn room_for_record(head: &[u8], table: &Table) -> Result<(), Refusal> {
    let area = usize::try_from(record::OFFSET)
        .ok()
        .and_then(|at| head.get(at..))
        .unwrap_or_default();
    if area.iter().any(|b| *b != 0) {
        return Err(Refusal::RecordArea {
            why: "the image has data in the last 4 KiB before byte 1 MiB".to_owned(),
        });
    }
    match table
        .partitions()
        .iter()
        .find(|p| p.start.0 < MIB && p.start.0.saturating_add(p.size.0) > record::OFFSET)
    {
        Some(p) => Err(Refusal::RecordArea {
            why: format!(
                "partition {} of the image covers the last 4 KiB before byte 1 MiB",
                p.number
            ),
        }),
        None => Ok(()),
    }
}

/// Byte offsets of a GPT header's fields (UEFI specification 2.10, table 5-5).
mod field {
    pub const HEADER_SIZE: usize = 12;
    pub const HEADER_CRC: usize = 16;
    pub const MY_LBA: usize = 24;
    pub const ALTERNATE_LBA: usize = 32;
    pub const LAST_USABLE: usize = 48;
    pub const ENTRIES_LBA: usize = 72;
    pub const ENTRY_COUNT: usize = 80;
    pub const ENTRY_SIZE: usize = 84;
}

/// A checked number for what cannot overflow with a table that was read; if it does, the table lied.
fn sane<T>(value: Option<T>) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::NotADiskImage {
        why: "its GPT header makes no sense".to_owned(),
    })
}

fn adopt_gpt(
    head: &[u8],
    gpt: &Gpt,
    table: &Table,
    length: Option<Bytes>,
    target: &Target,
) -> Result<Layout, Refusal> {
    if let CopyState::Invalid { why } = &gpt.primary {
        return Err(Refusal::NotADiskImage {
            why: format!("its GPT is damaged: {why}"),
        });
    }
    if !gpt.protective {
        return Err(Refusal::NotADiskImage {
            why: "its GPT has no protective MBR".to_owned(),
        });
    }
    let sector = target.sector.get();
    let sector_len = sane(usize::try_from(sector).ok())?;
    let header = sane(head.get(sector_len..2 * sector_len))?.to_vec();
    let entries_lba = sane(get64(&header, field::ENTRIES_LBA))?;
    let count = u64::from(sane(get32(&header, field::ENTRY_COUNT))?);
    let entry_size = u64::from(sane(get32(&header, field::ENTRY_SIZE))?);
    let array_len = sane(
        count
            .checked_mul(entry_size)
            .filter(|l| *l > 0 && *l <= MIB / 2),
    )?;
    let array_start = sane(entries_lba.checked_mul(sector))?;
    let array_end = sane(array_start.checked_add(array_len))?;
    if array_start < 2 * sector || array_end > record::OFFSET {
        return Err(Refusal::NotADiskImage {
            why: format!(
                "its GPT entries lie at bytes {array_start} to {array_end}, outside the first MiB"
            ),
        });
    }
    let array = sane(
        usize::try_from(array_start)
            .ok()
            .zip(usize::try_from(array_end).ok())
            .and_then(|(a, b)| head.get(a..b)),
    )?;

    let array_sectors = array_len.div_ceil(sector);
    let last_lba = sane((target.size.0 / sector).checked_sub(1))?;
    let backup_array_lba = sane(last_lba.checked_sub(array_sectors))?;
    let last_usable = sane(backup_array_lba.checked_sub(1))?;
    for p in &gpt.partitions {
        let end = p.start.0.saturating_add(p.size.0);
        let limit = last_usable.saturating_add(1).saturating_mul(sector);
        if end > limit {
            // The room that the backup GPT takes belongs to the need.
            let need = Bytes(end.saturating_add(target.size.0.saturating_sub(limit)));
            return Err(too_small(
                target,
                &format!("partition {} of the image", p.number),
                need,
            ));
        }
    }
    let old_alternate = sane(get64(&header, field::ALTERNATE_LBA))?;
    if length.is_none() {
        // A compressed image does not say how long it is; its table does.
        let need = old_alternate.saturating_add(1).saturating_mul(sector);
        if need > target.size.0 {
            return Err(too_small(target, "the image (by its own GPT)", Bytes(need)));
        }
    }

    let mut primary = header.clone();
    put64(&mut primary, field::ALTERNATE_LBA, last_lba);
    put64(&mut primary, field::LAST_USABLE, last_usable);
    seal(&mut primary)?;
    let mut backup = primary.clone();
    put64(&mut backup, field::MY_LBA, last_lba);
    put64(&mut backup, field::ALTERNATE_LBA, 1);
    put64(&mut backup, field::ENTRIES_LBA, backup_array_lba);
    seal(&mut backup)?;

    let mut new_head = head.to_vec();
    sane(new_head.get_mut(sector_len..2 * sector_len))?.copy_from_slice(&primary);
    protect(&mut new_head, last_lba);
    let mut tail = array.to_vec();
    tail.resize(sane(usize::try_from(array_sectors * sector).ok())?, 0);
    tail.extend_from_slice(&backup);
    let stale_backup = stale(gpt, old_alternate, array_sectors, backup_array_lba, sector);
    Ok(Layout {
        head: new_head,
        tail: Some((Bytes(sane(backup_array_lba.checked_mul(sector))?), tail)),
        stale_backup,
        table: table.clone(),
    })
}

/// The image's own backup GPT, as far as it would be left between the image and the new backup, and in no
/// partition.
fn stale(gpt: &Gpt, old: u64, array_sectors: u64, new_start: u64, sector: u64) -> Option<Span> {
    let first = old.checked_sub(array_sectors)?;
    let start = first.checked_mul(sector)?;
    let end = old.checked_add(1)?.min(new_start).checked_mul(sector)?;
    let in_partition = gpt
        .partitions
        .iter()
        .any(|p| p.start.0 < end && p.start.0.saturating_add(p.size.0) > start);
    let length = end.checked_sub(start).filter(|l| *l > 0)?;
    (start >= MIB && !in_partition).then_some(Span {
        start: Bytes(start),
        length: Bytes(length),
    })
}

/// Sets the size of the protective entry (UEFI specification 2.10, table 5-4): the disk's last LBA, or the
/// largest number that fits. Boot code and every other entry stay.
fn protect(head: &mut [u8], last_lba: u64) {
    const ENTRIES: usize = 446;
    const PROTECTIVE: u8 = 0xee;
    let sectors = u32::try_from(last_lba).unwrap_or(u32::MAX);
    for i in 0..4usize {
        let at = ENTRIES + i * 16;
        if head.get(at + 4) == Some(&PROTECTIVE) && get32(head, at + 8) == Some(1) {
            put32(head, at + 12, sectors);
        }
    }
}

/// Computes the header's own CRC32 (over its declared size, with the CRC field zero).
fn seal(header: &mut [u8]) -> Result<(), Refusal> {
    put32(header, field::HEADER_CRC, 0);
    let size = sane(
        get32(header, field::HEADER_SIZE)
            .and_then(|s| usize::try_from(s).ok())
            .filter(|s| *s >= 92),
    )?;
    let mut crc = Crc::new();
    crc.update(sane(header.get(..size))?);
    put32(header, field::HEADER_CRC, crc.sum());
    Ok(())
}

fn get64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..at.checked_add(8)?)?
        .try_into()
        .ok()
        .map(u64::from_le_bytes)
}

fn get32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at.checked_add(4)?)?
        .try_into()
        .ok()
        .map(u32::from_le_bytes)
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}
