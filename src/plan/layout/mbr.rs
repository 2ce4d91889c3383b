//! A disk image with an MBR on its disk: its four entries, one of which may grow, and some of which may be added.
//! (The format: "Partitioning" of the BIOS Boot Specification's time; Linux: block/partitions/msdos.c.)

use uuid::Uuid;

use super::entry::{Entries, Entry};
use super::extend::{self, Extended, Room};
use super::space::align_down;
use super::{Layout, Length, Shape, bytes, extent, read_head, sign, too_small};
use crate::config::wire::Guids;
use crate::host::tables::{Mbr, Table};
use crate::plan::refusal::Refusal;
use crate::plan::step::Target;
use crate::units::Bytes;

/// Where the four entries of 16 bytes are.
const ENTRIES: usize = 446;

/// Entries, and so partitions that are not inside of another.
pub const COUNT: u32 = 4;

/// Sectors are counted in 32 bits.
const SECTORS: u64 = 1 << 32;

/// What stands in the place of cylinder, head and sector where these mean nothing any more: their largest.
const NO_CHS: [u8; 3] = [0xfe, 0xff, 0xff];

/// Starts first in the system that it belongs to.
const ACTIVE: u8 = 0x80;

/// An entry of an MBR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primary {
    /// Whether it is the active one.
    pub active: bool,
    /// What is in it.
    pub kind: u8,
    /// First sector.
    pub first: u32,
    /// Number of sectors.
    pub count: u32,
}

impl Primary {
    /// As it stands on a disk.
    fn bytes(self) -> [u8; 16] {
        let mut all = [0; 16];
        bytes::put(&mut all, 0, &[if self.active { ACTIVE } else { 0 }]);
        bytes::put(&mut all, 1, &NO_CHS);
        bytes::put(&mut all, 4, &[self.kind]);
        bytes::put(&mut all, 5, &NO_CHS);
        bytes::put(&mut all, 8, &self.first.to_le_bytes());
        bytes::put(&mut all, 12, &self.count.to_le_bytes());
        all
    }
}

/// Sets the entry of partition `number`, 1 to 4.
pub fn set(lba0: &mut [u8], number: u32, entry: Primary) -> Option<()> {
    let at = usize::try_from(number.checked_sub(1).filter(|n| *n < COUNT)?).ok()?;
    bytes::put(
        lba0,
        ENTRIES.checked_add(at.checked_mul(16)?)?,
        &entry.bytes(),
    );
    Some(())
}

/// How many bytes of a disk an MBR reaches.
pub fn reach(target: &Target) -> u64 {
    target
        .size
        .0
        .min(SECTORS.saturating_mul(target.sector.get()))
}

/// The byte that says what a GPT says by a type GUID, of those that a partition which is added can have.
pub fn kind_of(guid: &str) -> Option<u8> {
    const LINUX: u8 = 0x83;
    Some(match guid {
        // Plain data, home, srv, var, tmp.
        "0fc63daf-8483-4772-8e79-3d69d8477de4"
        | "933ac7e1-2eb4-4f13-b844-0e14e2aef915"
        | "3b8f8425-20e0-4f3b-907f-1a25a76f98e8"
        | "4d21b016-b534-45c2-a9fb-5c16e091fd2d"
        | "7ec6f557-3bc5-4aca-b293-16ef5df639d1" => LINUX,
        // Swap, LVM, RAID.
        "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f" => 0x82,
        "e6d6d379-f507-44c2-a23c-238f2a3df928" => 0x8e,
        "a19d880f-05fc-4d3b-a006-743f0f84911e" => 0xfd,
        _ => return None,
    })
}

/// How an image that begins with `head`, whose table is `mbr`, fits `target`.
pub(super) fn adopt(
    head: &[u8],
    mbr: &Mbr,
    length: Length,
    target: &Target,
    shape: &Shape,
) -> Result<Layout, Refusal> {
    must_be_possible(shape, target)?;
    for p in &mbr.partitions {
        let end = p.start.checked_add(p.size).unwrap_or(Bytes(u64::MAX));
        if end > target.size {
            return Err(too_small(
                target,
                &format!("partition {} of the image", p.number),
                end,
            ));
        }
    }
    let mut new_head = head.to_vec();
    if shape.guids == Guids::New {
        sign(&mut new_head, &shape.seed);
    }
    let Extended { grown, added } = extended(&mut new_head, mbr, length, target, shape)?;
    let mut table = read_head(&new_head, target);
    if let Table::Mbr(table) = &mut table {
        // An MBR has no names: they are known as long as this runs.
        for added in &added {
            let mut all = table.partitions.iter_mut();
            if let Some(partition) = all.find(|p| p.number == added.number) {
                partition.name = Some(added.label.clone());
            }
        }
    }
    Ok(Layout {
        table,
        head: new_head,
        image: Table::Mbr(mbr.clone()),
        grown,
        added,
        ..Layout::default()
    })
}

/// Carries out the wishes with the four entries as a table of their own.
fn extended(
    head: &mut [u8],
    mbr: &Mbr,
    length: Length,
    target: &Target,
    shape: &Shape,
) -> Result<Extended, Refusal> {
    if shape.grow.is_none() && shape.add.is_empty() {
        return Ok(Extended::default());
    }
    let lied = || Refusal::NotADiskImage {
        why: "its MBR makes no sense".to_owned(),
    };
    let sector = target.sector.get();
    let mut array = Entries::empty(usize::try_from(COUNT).unwrap_or_default());
    let used = Uuid::max();
    let before: Vec<Option<(u64, u64)>> = (1..=COUNT)
        .map(|number| {
            let p = mbr.partitions.iter().find(|p| p.number == number)?;
            let last = (extent(p).end / sector).checked_sub(1)?;
            Some((p.start.0 / sector, last))
        })
        .collect();
    for (number, place) in (1..=COUNT).zip(&before) {
        if let Some((first, last)) = place {
            let entry = Entry::new(used, used, *first, *last, "");
            array.set(number, &entry).then_some(()).ok_or_else(lied)?;
        }
    }
    let room = Room {
        image: &mbr.partitions,
        length: length.exact.unwrap_or(length.at_least).0,
        limit: align_down(reach(target)),
    };
    let extended = extend::extend(&mut array, room, shape, target)?;
    if let Some(number) = extended.grown {
        let partition = mbr.partitions.iter().find(|p| p.number == number);
        if number > COUNT || partition.is_none_or(|p| p.kind.is_extended()) {
            return Err(Refusal::Partitions {
                what: format!(
                    "`disk.grow` names partition {number}, and of an MBR only primary partitions grow"
                ),
                next: "use an image with a GPT",
            });
        }
    }
    for (number, old) in (1..=COUNT).zip(before) {
        let Some(entry) = array.get(number).filter(Entry::is_used) else {
            continue;
        };
        if old == Some((entry.first(), entry.last())) {
            continue;
        }
        let first = u32::try_from(entry.first()).map_err(|_| lied())?;
        let count = entry.last().checked_sub(entry.first()).ok_or_else(lied)?;
        let count = count.checked_add(1).and_then(|n| u32::try_from(n).ok());
        let count = count.ok_or_else(lied)?;
        if old.is_some() {
            // What it is, and whether it is active, stays.
            let at = usize::try_from(number.saturating_sub(1)).map_err(|_| lied())?;
            let at = ENTRIES.saturating_add(at.saturating_mul(16));
            bytes::put(head, at.saturating_add(5), &NO_CHS);
            bytes::put(head, at.saturating_add(12), &count.to_le_bytes());
            continue;
        }
        let label = extended.added.iter().find(|a| a.number == number);
        let addition = label.and_then(|a| shape.add.iter().find(|w| w.label == a.label));
        let kind = addition.and_then(|a| kind_of(&a.kind)).ok_or_else(lied)?;
        let primary = Primary {
            active: false,
            kind,
            first,
            count,
        };
        set(head, number, primary).ok_or_else(lied)?;
    }
    Ok(extended)
}

/// Refuses what an MBR has no room for.
fn must_be_possible(shape: &Shape, target: &Target) -> Result<(), Refusal> {
    let next = "use an image with a GPT";
    if let Some(kept) = shape.kept.first() {
        return Err(Refusal::Keep {
            disk: target.name.clone(),
            what: format!(
                "{} is to be kept, and the image has an MBR, which cannot list it",
                crate::plan::keep::describe(kept)
            ),
            next,
        });
    }
    if let Some(label) = &shape.lasting {
        return Err(Refusal::Partitions {
            what: format!(
                "paths are to last on the added partition {label:?}, and the image has an MBR, in which nobody finds it by its name again"
            ),
            next,
        });
    }
    match shape.add.iter().find(|a| kind_of(&a.kind).is_none()) {
        Some(addition) => Err(Refusal::Partitions {
            what: format!(
                "partition {:?} is to have the type {}, and the image has an MBR, which has none for it",
                addition.label, addition.kind
            ),
            next,
        }),
        None => Ok(()),
    }
}
