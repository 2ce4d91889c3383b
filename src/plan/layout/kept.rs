//! Kept partitions beside an image: whether both fit on the disk, and the table that lists only what is kept while
//! the image is being written.

use super::entry::{Entries, Entry};
use super::header::{Copies, Header};
use super::space::Extent;
use super::{Shape, extent, sane};
use crate::config::wire::Guids;
use crate::host::tables::TablePartition;
use crate::plan::keep::{self, describe};
use crate::plan::refusal::Refusal;
use crate::plan::step::Target;
use crate::units::{Bytes, MIB};

/// The table that lists only the kept partitions: it has no boot code, and LBA 0 stays zero meanwhile, so that
/// neither firmware nor kernel takes it for a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interim {
    /// Where the primary copy begins, and its bytes.
    pub primary: (Bytes, Vec<u8>),
    /// The same of the backup.
    pub backup: (Bytes, Vec<u8>),
}

/// Makes the interim table.
pub fn interim(shape: &Shape, entries: &[Entry], target: &Target) -> Result<Interim, Refusal> {
    let mut array = Entries::empty(keep::ENTRIES);
    for (kept, entry) in shape.kept.iter().zip(entries) {
        sane(array.set(kept.number, entry).then_some(()))?;
    }
    let sector = target.sector.get();
    let last_lba = sane((target.size.0 / sector).checked_sub(1))?;
    let (head, tail) = sane(keep::interim_places(target.size, target.sector))?;
    let usable = sane((tail.start.0 / sector).checked_sub(1))?;
    let guid = sane(uuid::Uuid::try_parse(&shape.interim_guid).ok())?;
    let first_usable = head.start.0.saturating_add(head.length.0) / sector;
    let header = Header::fresh(guid, sector, first_usable);
    let Copies {
        primary,
        backup_at,
        backup,
    } = header.on_disk(&array, sector, last_lba, usable)?;
    let mut whole = primary;
    whole.extend_from_slice(array.bytes());
    whole.resize(sane(usize::try_from(head.length.0).ok())?, 0);
    Ok(Interim {
        primary: (head.start, whole),
        backup: (backup_at, backup),
    })
}

/// What the image takes of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Its partitions.
    pub partitions: &'a [TablePartition],
    /// Its whole length, as far as it is known.
    pub length: Bytes,
    /// How many entries its table has room for.
    pub entries: u32,
    /// Where the backup table begins.
    pub limit: u64,
}

/// Refuses what an image and a kept partition both want, and names both.
pub fn must_fit(claim: Claim<'_>, shape: &Shape, target: &Target) -> Result<(), Refusal> {
    for kept in &shape.kept {
        let place = extent(kept);
        let collision = |with: String| {
            Err(Refusal::Keep {
                disk: target.name.clone(),
                what: format!("{} is to be kept, and {with}", describe(kept)),
                next: "use an image that leaves this number and these bytes alone, or leave the partition out of `disk.keep` and lose it",
            })
        };
        if place.start < MIB {
            return collision("the image's first MiB would overwrite it".to_owned());
        }
        if place.end > claim.limit {
            return collision(format!(
                "the backup table begins at byte {} of this disk",
                claim.limit
            ));
        }
        if kept.number > claim.entries {
            return collision(format!(
                "the image's table has room for {} partitions only",
                claim.entries
            ));
        }
        let is_taken = |p: &&TablePartition| {
            p.number == kept.number
                || extent(p).overlaps(place)
                || (shape.guids == Guids::Keep && p.partuuid == kept.partuuid)
        };
        if let Some(other) = claim.partitions.iter().find(is_taken) {
            let what = if other.number == kept.number {
                "has the same number"
            } else if extent(other).overlaps(place) {
                "lies over it"
            } else {
                "has the same PARTUUID"
            };
            return collision(format!("{} of the image {what}", describe(other)));
        }
        let whole = Extent {
            start: 0,
            end: claim.length.0,
        };
        if whole.overlaps(place) {
            return collision(format!("the image is {} long", claim.length));
        }
    }
    Ok(())
}

/// Puts the kept entries into the image's array, at their own numbers.
pub fn merge(array: &mut Entries, shape: &Shape, entries: &[Entry]) -> Result<(), Refusal> {
    for (kept, entry) in shape.kept.iter().zip(entries) {
        sane(array.set(kept.number, entry).then_some(()))?;
    }
    Ok(())
}

/// The entry of a kept partition as the plan knows it; on a disk its own bytes count.
#[cfg(test)]
pub fn entry_of(kept: &TablePartition, sector: u64) -> Option<Entry> {
    let first = kept.start.0.checked_div(sector)?;
    let last = first
        .checked_add(kept.size.0.checked_div(sector)?)?
        .checked_sub(1)?;
    let guid = uuid::Uuid::try_parse(&kept.partuuid).ok()?;
    let name = kept.name.as_deref().unwrap_or_default();
    Some(Entry::new(
        super::entry::type_guid(&kept.kind)?,
        guid,
        first,
        last,
        name,
    ))
}
