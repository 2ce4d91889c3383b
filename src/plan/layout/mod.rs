//! The second plan: how an image's head fits this disk. Pure arithmetic on the first MiB of the image; the
//! result is every byte that will be written outside the image's body.
//!
//! The GPT is patched in place (UEFI specification 2.10, section 5.3): entries, numbers, names and
//! attributes stay byte for byte; only the places of the backup and the end of the usable space change, and
//! what the config asks for: kept and added partitions, one that grows, new GUIDs.

pub mod bytes;
pub mod create;
pub mod entry;
pub mod extend;
pub mod gpt;
pub mod header;
pub mod kept;
pub mod mbr;
pub mod space;
#[cfg(test)]
mod tests;
pub mod twins;

use serde::Serialize;

use self::entry::Entry;
use self::extend::Added;
use self::kept::Interim;
use self::space::Extent;
use super::refusal::Refusal;
use super::step::{Span, Target};
use crate::config::quantity::{Amount, SizeText};
use crate::config::request::{Addition, Named};
use crate::config::wire::{Guids, RecordPolicy};
use crate::host::seed::Seed;
use crate::host::tables::{self, Table, TablePartition};
use crate::image::record;
use crate::units::{Bytes, MIB, SectorSize};

/// What the table shall be, besides the image's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// Partitions of the disk that stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<TablePartition>,
    /// The partition of the image that grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grow: Option<Named>,
    /// Partitions that are added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<Addition>,
    /// Whether the image's GUIDs stay.
    pub guids: Guids,
    /// What new GUIDs are made of.
    pub seed: Seed,
    /// Disk GUID of the table that lists only what is kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interim_guid: String,
    /// An added partition on which paths last.
    #[serde(skip)]
    pub lasting: Option<String>,
    /// GUIDs of the machine's other disks.
    #[serde(skip)]
    pub taken: Vec<twins::Taken>,
}

impl Shape {
    /// What of the image's table changes, for people; empty where nothing does.
    pub fn changes(&self) -> Vec<String> {
        let grows = self
            .grow
            .iter()
            .map(|name| format!("partition {name} grows"));
        let size = |size: &SizeText| match size {
            SizeText::Amount(Amount::Bytes(bytes)) => bytes.short(),
            SizeText::Amount(Amount::Percent(percent)) => format!("{percent}% of the free space"),
            SizeText::Rest => "the rest".to_owned(),
        };
        let added = self
            .add
            .iter()
            .map(|a| format!("partition {:?} of {} is added", a.label, size(&a.size)));
        let new = (self.guids == Guids::New).then(|| "new GUIDs".to_owned());
        grows.chain(added).chain(new).collect()
    }
}

/// Every byte that is written outside the image's body, and what was learnt from the head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// The image's first MiB as it will stand on this disk, without the record.
    pub head: Vec<u8>,
    /// Backup GPT: where, and its bytes. `None` for an MBR image.
    pub tail: Option<(Bytes, Vec<u8>)>,
    /// The image's own backup GPT, which would stand in the middle of a larger disk.
    pub stale_backup: Option<Span>,
    /// The image's table.
    pub image: Table,
    /// The table that the disk will have.
    pub table: Table,
    /// Partitions of the disk that stay.
    pub kept: Vec<TablePartition>,
    /// The table that lists only these; `None` where nothing is kept.
    pub interim: Option<Interim>,
    /// Number of the partition that grows.
    pub grown: Option<u32>,
    /// Partitions that are added.
    pub added: Vec<Added>,
}

impl Layout {
    /// Where the image's body must end: behind it stands a backup table, now or later.
    pub fn body_end(&self) -> Option<Bytes> {
        let interim = self.interim.as_ref().map(|table| table.backup.0);
        let tail = self.tail.as_ref().map(|(at, _)| *at);
        interim.into_iter().chain(tail).min()
    }

    /// The bytes of kept partitions.
    pub fn spared(&self) -> Vec<Span> {
        self.kept.iter().map(span).collect()
    }
}

/// The bytes of a partition.
pub fn extent(partition: &TablePartition) -> Extent {
    Extent {
        start: partition.start.0,
        end: partition.start.0.saturating_add(partition.size.0),
    }
}

/// The same as a span.
pub fn span(partition: &TablePartition) -> Span {
    Span {
        start: partition.start,
        length: partition.size,
    }
}

/// What is known of an image's length before it has been read to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length {
    /// The whole length, where it is certain.
    pub exact: Option<Bytes>,
    /// No less than this, by what the stream's headers declare.
    pub at_least: Bytes,
}

/// How the head of an image fits `target`. `kept` are the entries of the partitions that `shape` keeps, as they
/// stand on the disk. Fails before anything is written.
pub fn adopt(
    head: &[u8],
    length: Length,
    target: &Target,
    record: RecordPolicy,
    shape: &Shape,
    kept: &[Entry],
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
    match &table {
        Table::Gpt(table) => gpt::adopt(head, table, length, target, shape, kept),
        Table::Mbr(table) => mbr::adopt(head, table, length, target, shape),
        // Refused above.
        Table::None | Table::Damaged { .. } => Err(not_an_image("it has no table".to_owned())),
    }
}

/// A new disk signature of an MBR, which no disk has as zero.
fn sign(head: &mut [u8], seed: &Seed) {
    const SIGNATURE: usize = 440;
    let (signature, ..) = seed.guid("disk signature").as_fields();
    bytes::put(head, SIGNATURE, &signature.max(1).to_le_bytes());
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

/// A checked number for what cannot overflow with a table that was read; if it does, the table lied.
fn sane<T>(value: Option<T>) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::NotADiskImage {
        why: "its GPT header makes no sense".to_owned(),
    })
}
