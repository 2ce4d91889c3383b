//! A partition of the image that grows, and partitions that are added behind the image's.

use super::entry::{Entries, Entry};
use super::space::{self, Extent, align_down, align_up, gaps};
use super::{Shape, extent, sane};
use crate::config::request::Named;
use crate::config::request::preserve::NewFileSystem;
use crate::host::tables::TablePartition;
use crate::plan::clear;
use crate::plan::refusal::Refusal;
use crate::plan::step::{Span, Target};
use crate::units::{Bytes, MIB};

/// A partition that is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Its number.
    pub number: u32,
    /// Its label.
    pub label: String,
    /// The file system that it gets.
    pub filesystem: Option<NewFileSystem>,
    /// Where it is.
    pub place: Extent,
}

/// What changes in the image's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Number of the partition that grows, whether or not there was room to.
    pub grown: Option<u32>,
    /// Partitions that are added.
    pub added: Vec<Added>,
}

/// The room that there is.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// The partitions of the image.
    pub image: &'a [TablePartition],
    /// How long the image is.
    pub length: u64,
    /// Where the backup table begins.
    pub limit: u64,
}

/// Carries out `shape`'s wishes in `array`.
pub fn extend(
    array: &mut Entries,
    room: Room<'_>,
    shape: &Shape,
    target: &Target,
) -> Result<Extended, Refusal> {
    let grown = match &shape.grow {
        Some(name) => Some(wanted(name, room.image)?),
        None => None,
    };
    if let Some(addition) = shape
        .add
        .iter()
        .find(|a| room.image.iter().any(|p| p.name.as_ref() == Some(&a.label)))
    {
        return Err(Refusal::Partitions {
            what: format!(
                "`disk.partitions` adds {:?}, and the image has a partition with this label",
                addition.label
            ),
            next: "give the added partition another label",
        });
    }
    let from = room.image.iter().map(|p| extent(p).end).max();
    let kept: Vec<Extent> = shape.kept.iter().map(extent).collect();
    // Behind all of the image, whose last partition may end before it does: else the same image would collide with
    // what is kept the next time. What grows is in front of that, and what is added stands at the other end.
    let from = from.max(grown.is_none().then_some(room.length));
    let within = Extent {
        start: from.unwrap_or_default().max(MIB),
        end: room.limit,
    };
    let gaps = gaps(&kept, within);
    let sizes: Vec<_> = shape.add.iter().map(|a| a.size).collect();
    let behind = grown.map(|p| align_up(extent(p).end));
    let places = space::place(&sizes, &gaps, behind).map_err(|no| {
        let label = shape.add.get(no.index).map_or("", |a| a.label.as_str());
        Refusal::Partitions {
            what: format!(
                "there is no room on {} for partition {label:?} of {}: the largest free range is {}",
                target.name,
                Bytes(no.need),
                Bytes(no.largest)
            ),
            next: "use a larger disk, ask for less, or keep less",
        }
    })?;
    let sector = target.sector.get();
    let mut added = Vec::new();
    for (addition, place) in shape.add.iter().zip(&places) {
        let full = || Refusal::Partitions {
            what: format!(
                "the image's table has room for {} partitions, and none is left for {:?}",
                array.count(),
                addition.label
            ),
            next: "use an image whose table has more entries",
        };
        let number = array.lowest_free().ok_or_else(full)?;
        let kind = sane(uuid::Uuid::try_parse(&addition.kind).ok())?;
        let guid = shape.seed.guid(&format!("added {}", addition.label));
        let last = sane((place.end / sector).checked_sub(1))?;
        let entry = Entry::new(kind, guid, place.start / sector, last, &addition.label);
        sane(array.set(number, &entry).then_some(()))?;
        added.push(Added {
            number,
            label: addition.label.clone(),
            filesystem: addition.filesystem,
            place: *place,
        });
    }
    if let Some(partition) = grown {
        let own = extent(partition);
        let image = room.image.iter().map(extent);
        let next = image
            .chain(kept)
            .chain(places)
            .filter(|other| other.start >= own.end)
            .map(|other| other.start)
            .min();
        let end = align_down(next.unwrap_or(room.limit).min(room.limit));
        if end > own.end {
            let mut entry = sane(array.get(partition.number))?;
            entry.set_last(sane((end / sector).checked_sub(1))?);
            sane(array.set(partition.number, &entry).then_some(()))?;
        }
    }
    Ok(Extended {
        grown: grown.map(|p| p.number),
        added,
    })
}

fn wanted<'a>(
    name: &Named,
    partitions: &'a [TablePartition],
) -> Result<&'a TablePartition, Refusal> {
    let is_it = |p: &&TablePartition| match name {
        Named::Number(number) => p.number == *number,
        Named::Label(label) => p.name.as_ref() == Some(label),
    };
    let mut found = partitions.iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(partition), None) => Ok(partition),
        (Some(_), Some(_)) => Err(Refusal::Partitions {
            what: format!(
                "`disk.grow` names {name}, and the image has several partitions with this label"
            ),
            next: "name it by its number",
        }),
        (None, _) => {
            let all: Vec<String> = partitions
                .iter()
                .map(|p| match &p.name {
                    Some(label) => format!("{} {label:?}", p.number),
                    None => format!("{} without a label", p.number),
                })
                .collect();
            Err(Refusal::Partitions {
                what: format!(
                    "`disk.grow` names {name}, and the image has no such partition: there are {}",
                    all.join(", ")
                ),
                next: "name a partition of the image, by its label or number",
            })
        }
    }
}

/// What is zeroed in each added partition: an older file system at the same place must not be found in it.
pub fn fresh(added: &[Added]) -> Vec<Span> {
    let places = added.iter().map(|a| a.place);
    places.flat_map(|p| clear::ends(p.start, p.end)).collect()
}
