//! A disk image with a GPT on its disk: the table is moved to both ends, and gets what the config asks for.

use std::io::{self, Read, Seek, SeekFrom};

use super::entry::{Entries, Entry};
use super::extend::{self, Extended, Room};
use super::header::{Copies, Header};
use super::kept::{self, Claim};
use super::space::Extent;
use super::{Layout, Length, Shape, bytes, extent, sane, span, too_small};
use crate::config::wire::Guids;
use crate::host::tables::{self, CopyState, Gpt, Table};
use crate::image::record;
use crate::plan::refusal::Refusal;
use crate::plan::step::{Span, Target};
use crate::units::{Bytes, MIB};

/// How an image that begins with `head`, whose table is `gpt`, fits `target`.
pub(super) fn adopt(
    head: &[u8],
    gpt: &Gpt,
    length: Length,
    target: &Target,
    shape: &Shape,
    kept: &[Entry],
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
    let mut header = sane(Header::read(head, sector))?;
    let array_range = array_range(&header, sector)?;
    let mut array = Entries::read(sane(head.get(array_range.clone()))?);

    let array_sectors = sane(u64::try_from(array.bytes().len()).ok())?.div_ceil(sector);
    let last_lba = sane((target.size.0 / sector).checked_sub(1))?;
    let backup_array_lba = sane(last_lba.checked_sub(array_sectors))?;
    // The table that lists only what is kept stands there meanwhile; it may be the longer one.
    let interim = if shape.kept.is_empty() {
        None
    } else {
        Some(kept::interim(shape, kept, target)?)
    };
    let tail_lba = interim.as_ref().map_or(backup_array_lba, |t| {
        backup_array_lba.min(t.backup.0.0 / sector)
    });
    let last_usable = sane(tail_lba.checked_sub(1))?;
    let limit = sane(tail_lba.checked_mul(sector))?;
    for p in &gpt.partitions {
        let end = extent(p).end;
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
    let old_alternate = sane(header.alternate())?;
    // A compressed image does not say how long it is; its table does.
    let by_table = old_alternate.saturating_add(1).saturating_mul(sector);
    if length.exact.is_none() && by_table > target.size.0 {
        return Err(too_small(
            target,
            "the image (by its own GPT)",
            Bytes(by_table),
        ));
    }
    let length = length.exact.unwrap_or(length.at_least.max(Bytes(by_table)));
    let claim = Claim {
        partitions: &gpt.partitions,
        length,
        entries: array.count(),
        limit,
    };
    kept::must_fit(claim, shape, target)?;

    if shape.guids == Guids::New {
        header.set_guid(shape.seed.guid("disk"));
        for p in &gpt.partitions {
            let mut entry = sane(array.get(p.number))?;
            entry.set_guid(shape.seed.guid(&format!("partition {}", p.number)));
            sane(array.set(p.number, &entry).then_some(()))?;
        }
    }
    kept::merge(&mut array, shape, kept)?;
    let lowest = shape.kept.iter().map(|p| p.start.0 / sector).min();
    if let Some(lowest) = lowest.filter(|l| header.first_usable().is_some_and(|f| *l < f)) {
        header.set_first_usable(lowest);
    }
    let room = Room {
        image: &gpt.partitions,
        length: length.0,
        limit,
    };
    let Extended { grown, added } = extend::extend(&mut array, room, shape, target)?;
    let copies = header.on_disk(&array, sector, last_lba, last_usable)?;

    let mut new_head = head.to_vec();
    let sector_len = sane(usize::try_from(sector).ok())?;
    sane(new_head.get_mut(sector_len..2 * sector_len))?.copy_from_slice(&copies.primary);
    sane(new_head.get_mut(array_range))?.copy_from_slice(array.bytes());
    protect(&mut new_head, last_lba);
    let stale_backup = stale(gpt, old_alternate, array_sectors, backup_array_lba, sector)
        .filter(|stale| shape.kept.iter().all(|p| !overlap(*stale, span(p))));
    let table = read_back(&new_head, &copies, target)?;
    Ok(Layout {
        head: new_head,
        tail: Some((copies.backup_at, copies.backup)),
        stale_backup,
        image: Table::Gpt(gpt.clone()),
        table,
        kept: shape.kept.clone(),
        interim,
        grown,
        added,
    })
}

/// Where in the head the array of entries is.
pub(super) fn array_range(header: &Header, sector: u64) -> Result<std::ops::Range<usize>, Refusal> {
    let length = sane(header.entries_length().filter(|l| *l <= MIB / 2))?;
    let start = sane(header.entries_lba().and_then(|lba| lba.checked_mul(sector)))?;
    let end = sane(start.checked_add(length))?;
    if start < 2 * sector || end > record::OFFSET {
        return Err(Refusal::NotADiskImage {
            why: format!("its GPT entries lie at bytes {start} to {end}, outside the first MiB"),
        });
    }
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    sane(range.map(|(start, end)| start..end))
}

fn overlap(a: Span, b: Span) -> bool {
    let extent = |s: Span| Extent {
        start: s.start.0,
        end: s.start.0.saturating_add(s.length.0),
    };
    extent(a).overlaps(extent(b))
}

/// The table as a reader of the finished disk finds it: both copies whole, each partition where it should be.
pub(super) fn read_back(head: &[u8], copies: &Copies, target: &Target) -> Result<Table, Refusal> {
    let mut disk = Ends {
        head,
        tail: &copies.backup,
        tail_at: copies.backup_at.0,
        at: 0,
    };
    let table = tables::read(&mut disk, target.size, target.sector);
    match table.why_not_whole(target.sector) {
        None => Ok(table),
        Some(why) => Err(Refusal::NotADiskImage {
            why: format!("the table that would be made of it is not whole: {why}"),
        }),
    }
}

/// A disk of which only both ends are there.
struct Ends<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    tail_at: u64,
    at: u64,
}

impl Read for Ends<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = |bytes: &'_ [u8], from: u64| -> Option<Vec<u8>> {
            let from = usize::try_from(self.at.checked_sub(from)?).ok()?;
            let left = bytes.get(from..)?;
            Some(left.get(..left.len().min(buffer.len()))?.to_vec())
        };
        let found = rest(self.head, 0)
            .filter(|r| !r.is_empty())
            .or_else(|| rest(self.tail, self.tail_at))
            .unwrap_or_default();
        for (to, from) in buffer.iter_mut().zip(&found) {
            *to = *from;
        }
        self.at = self.at.saturating_add(found.len() as u64);
        Ok(found.len())
    }
}

impl Seek for Ends<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        // Nobody asks for anything else: the disk's size is known.
        let SeekFrom::Start(at) = to else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        self.at = at;
        Ok(at)
    }
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
        if head.get(at + 4) == Some(&PROTECTIVE) && bytes::get32(head, at + 8) == Some(1) {
            bytes::put(head, at + 12, &sectors.to_le_bytes());
        }
    }
}
