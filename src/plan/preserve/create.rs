//! Partitions that are made where a source is missing: on free space of one disk, whose table is whole, or which is
//! blank. Nothing that is there is moved, and nothing is made while a disk may still come that has the source.

mod disk;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::contents::{Agreed, agreed};
use super::{SourceDevice, Trouble};
use crate::config::quantity::{Amount, SizeText};
use crate::config::request::Source;
use crate::config::request::preserve::{Creation, NewFileSystem, Preserved};
use crate::config::wire::Select;
use crate::host::tables::TablePartition;
use crate::host::{DevNum, Disk, DiskKind, Facts};
use crate::image::record::DiskIdentity;
use crate::plan::layout::extent;
use crate::plan::layout::space::{self, Extent, gaps};
use crate::plan::step::Target;
use crate::plan::target;
use crate::units::{Bytes, MIB};
use disk::State;
pub(super) use disk::{listed_on, no_disk_can_come, unreadable};

/// Type of what is made: Linux file system data (UAPI.2 Discoverable Partitions Specification).
const LINUX_DATA: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";

/// What a new table has room for, as every tool makes it.
pub const ENTRIES: u32 = 128;

/// A partition that is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPartition {
    /// Number.
    pub number: u32,
    /// Name.
    pub label: String,
    /// Type GUID.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// PARTUUID.
    pub partuuid: String,
    /// Byte offset.
    pub start: Bytes,
    /// Size.
    pub size: Bytes,
    /// The file system that it will get.
    pub filesystem: NewFileSystem,
    /// The key file, where it will be encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The boot stops without it.
    pub required: bool,
}

impl NewPartition {
    /// Whether this entry of a table is the one that is made.
    pub fn is(&self, entry: &TablePartition) -> bool {
        (entry.number, entry.start, entry.size) == (self.number, self.start, self.size)
            && entry.name.as_deref() == Some(self.label.as_str())
    }
}

/// The partitions that are made on one disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPartitions {
    /// The disk.
    pub target: Target,
    /// GUID of its table.
    pub disk_guid: String,
    /// The disk is blank and gets a table.
    pub new_table: bool,
    /// This was begun before and cut off: where the partitions shall be, the disk has to be blank.
    pub begun: bool,
    /// The partitions that are there, which the disk must still have.
    pub there: Vec<TablePartition>,
    /// Those that are made.
    pub add: Vec<NewPartition>,
    /// The boot stops where they cannot be made.
    pub required: bool,
}

impl fmt::Display for NewPartitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("make ")?;
        for (i, p) in self.add.iter().enumerate() {
            if i > 0 {
                f.write_str(" and ")?;
            }
            write!(
                f,
                "partition {} {:?} ({})",
                p.number,
                p.label,
                p.size.short()
            )?;
        }
        write!(f, " on {}", self.target)?;
        if self.begun {
            f.write_str(", where that was cut off")
        } else if self.new_table {
            f.write_str(", which is blank and gets a partition table")
        } else {
            f.write_str(", on free space")
        }
    }
}

/// What is made, and for which entries.
#[derive(Debug, Default)]
pub struct Made {
    /// For each disk.
    pub disks: Vec<NewPartitions>,
    /// For each new partition: the entries that live on it, what they agree on, PARTUUID and disk.
    sources: Vec<(Vec<usize>, Agreed, NewPartition, Target)>,
}

impl Made {
    /// The sources on what is made, numbered from `first`; for each the entries that live there.
    pub fn sources(&self, entries: &[&Preserved], first: usize) -> Vec<(SourceDevice, Vec<usize>)> {
        let all = self.sources.iter().zip(first..);
        all.map(|((users, agreed, new, disk), number)| {
            let entries: Vec<&Preserved> = users
                .iter()
                .filter_map(|i| entries.get(*i).copied())
                .collect();
            let luks = agreed.luks(number);
            let mut options: Vec<String> = Vec::new();
            for word in entries.iter().flat_map(|e| &e.options.file_system) {
                if !options.iter().any(|o| o == word) {
                    options.push((*word).to_owned());
                }
            }
            let source = SourceDevice {
                number,
                name: format!("the new partition {:?} of {}", new.label, disk.name),
                path: disk.path.clone(),
                dev: DevNum::default(),
                size: new.size,
                disk: disk.identity.clone(),
                wanted: format!("partlabel={}", crate::error::printable(&new.label)),
                filesystem: match luks {
                    Some(_) => "crypto_LUKS".to_owned(),
                    None => new.filesystem.name().to_owned(),
                },
                uuid: None,
                partuuid: Some(new.partuuid.clone()),
                on_target: None,
                made: Some(new.partuuid.clone()),
                format: Some(new.filesystem),
                luks,
                read_only: false,
                options,
                required: entries.iter().any(|e| e.required),
            };
            (source, users.clone())
        })
        .collect()
    }
}

/// A partition that is asked for, and the entries that will live on it.
struct Wanted<'a> {
    creation: &'a Creation,
    users: Vec<(usize, &'a Preserved)>,
    agreed: Agreed,
}

impl Wanted<'_> {
    fn required(&self) -> bool {
        self.users.iter().any(|(_, u)| u.required)
    }

    fn indices(&self) -> Vec<usize> {
        self.users.iter().map(|(i, _)| *i).collect()
    }
}

/// Decides for the entries whose source is missing; what cannot be made becomes the trouble in `found`.
pub fn decide<T>(entries: &[&Preserved], found: &mut [Result<T, Trouble>], facts: &Facts) -> Made {
    let mut made = Made::default();
    let mut seen: Vec<&str> = Vec::new();
    let mut disks: Vec<(&Disk, Vec<Wanted<'_>>)> = Vec::new();
    for entry in entries {
        let Some(creation) = &entry.create else {
            continue;
        };
        let label = creation.label.as_str();
        if seen.contains(&label) {
            continue;
        }
        seen.push(label);
        let named = |e: &Preserved| matches!(&e.source, Source::Partlabel(l) if l == label);
        let users: Vec<(usize, &Preserved)> = entries
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, e)| named(e))
            .collect();
        let is_missing = |(i, _): &(usize, &Preserved)| {
            matches!(found.get(*i), Some(Err(Trouble::Missing { .. })))
        };
        if !users.iter().all(is_missing) || !disk::may_begin(creation, facts) {
            continue;
        }
        let indices: Vec<usize> = users.iter().map(|(i, _)| *i).collect();
        match wanted(creation, users, facts) {
            Ok((disk, wanted)) => match disks.iter_mut().find(|(d, _)| d.dev == disk.dev) {
                Some((_, all)) => all.push(wanted),
                None => disks.push((disk, vec![wanted])),
            },
            Err(trouble) => put(found, &indices, &trouble),
        }
    }
    // What a disk gets is looked at together: it was written together, and may have been cut off.
    for (disk, wanted) in &disks {
        on_one_disk(disk, wanted, facts, found, &mut made);
    }
    made
}

fn put<T>(found: &mut [Result<T, Trouble>], indices: &[usize], trouble: &Trouble) {
    for i in indices {
        if let Some(slot) = found.get_mut(*i) {
            *slot = Err(trouble.clone());
        }
    }
}

fn wanted<'a>(
    creation: &'a Creation,
    users: Vec<(usize, &'a Preserved)>,
    facts: &'a Facts,
) -> Result<(&'a Disk, Wanted<'a>), Trouble> {
    if users
        .iter()
        .any(|(_, u)| u.create.as_ref().is_some_and(|c| c != creation))
    {
        return Err(Trouble::Conflict(
            "its entries have different sizes or disks for `create`".to_owned(),
        ));
    }
    if users.iter().all(|(_, u)| u.options.flags.read_only) {
        return Err(Trouble::Conflict(
            "it is to be made, and all of its entries are read-only".to_owned(),
        ));
    }
    let agreed = agreed(&users)?;
    let disk = disk::choose(&creation.disk, facts)?;
    if let Some(listing) = disk::listed(&creation.label, disk, facts) {
        return Err(listing);
    }
    let wanted = Wanted {
        creation,
        users,
        agreed,
    };
    Ok((disk, wanted))
}

/// Finds places on `disk` for all that is wanted there.
fn on_one_disk<T>(
    disk: &Disk,
    all: &[Wanted<'_>],
    facts: &Facts,
    found: &mut [Result<T, Trouble>],
    made: &mut Made,
) {
    let everybody: Vec<usize> = all.iter().flat_map(Wanted::indices).collect();
    let state = match disk::state(disk) {
        Ok(state) => state,
        Err(trouble) => return put(found, &everybody, &trouble),
    };
    let mut planned = NewPartitions {
        target: target_of(disk, &state),
        disk_guid: state.gpt.map_or_else(
            || {
                facts
                    .seed
                    .guid(&format!("preserve on {}", disk.name))
                    .to_string()
            },
            |gpt| gpt.disk_guid.clone(),
        ),
        new_table: state.gpt.is_none(),
        begun: state.begun,
        there: state.there.to_vec(),
        add: Vec::new(),
        required: false,
    };
    let mut sources = Vec::new();
    for wanted in all {
        match place(wanted, &state, &planned, disk, facts) {
            Ok(new) => {
                planned.add.push(new.clone());
                planned.required |= wanted.required();
                let agreed = wanted.agreed.clone();
                sources.push((wanted.indices(), agreed, new, planned.target.clone()));
            }
            Err(trouble) => put(found, &wanted.indices(), &trouble),
        }
    }
    let other = state
        .listed
        .iter()
        .find(|p| !planned.add.iter().any(|new| new.is(p)));
    if let Some(other) = other {
        return put(found, &everybody, &disk::not_asked_for(other, &state, disk));
    }
    if !planned.add.is_empty() {
        made.sources.extend(sources);
        made.disks.push(planned);
    }
}

fn target_of(disk: &Disk, state: &State<'_>) -> Target {
    Target {
        path: disk.path.clone(),
        name: disk.name.clone(),
        dev: Some(disk.dev),
        size: disk.size,
        sector: state.sector,
        identity: DiskIdentity {
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            ..DiskIdentity::default()
        },
    }
}

/// Refuses a source that was found on another disk than the one that it would be made on.
pub fn is_elsewhere(entry: &Preserved, disk: &Disk, facts: &Facts) -> Option<Trouble> {
    let select = &entry.create.as_ref()?.disk;
    let elsewhere = disk.kind == DiskKind::Disk
        && **select != Select::default()
        && !target::allowed(select, facts)
            .iter()
            .any(|d| d.dev == disk.dev);
    elsewhere.then(|| {
        Trouble::Conflict(format!(
            "a partition of that name is on {}, and `source.disk` is {}",
            disk.name,
            target::describe(select)
        ))
    })
}

fn place(
    wanted: &Wanted<'_>,
    state: &State<'_>,
    planned: &NewPartitions,
    disk: &Disk,
    facts: &Facts,
) -> Result<NewPartition, Trouble> {
    let Wanted {
        creation, agreed, ..
    } = wanted;
    let taken = |number: u32| {
        state.there.iter().any(|p| p.number == number)
            || planned.add.iter().any(|p| p.number == number)
    };
    let number = (1..=state.entries)
        .find(|n| !taken(*n))
        .ok_or_else(|| Trouble::NoTable {
            disk: disk.name.clone(),
            why: "its table has no free entry".to_owned(),
        })?;
    let bytes = |lba: u64| lba.saturating_mul(state.sector.get());
    let within = Extent {
        start: bytes(state.usable.0).max(MIB),
        end: bytes(state.usable.1.saturating_add(1)).min(disk.size.0),
    };
    let new = planned.add.iter().map(|p| Extent {
        start: p.start.0,
        end: p.start.0.saturating_add(p.size.0),
    });
    let occupied: Vec<Extent> = state.there.iter().map(extent).chain(new).collect();
    let size = SizeText::Amount(Amount::Bytes(creation.size));
    let places = space::place(&[size], &gaps(&occupied, within), None);
    let place = places
        .as_ref()
        .map_err(|no| Trouble::NoRoom {
            disk: disk.name.clone(),
            need: Bytes(no.need),
            largest: Bytes(no.largest),
        })?
        .first()
        .copied()
        .unwrap_or(Extent { start: 0, end: 0 });
    Ok(NewPartition {
        number,
        label: creation.label.clone(),
        kind: LINUX_DATA,
        partuuid: facts
            .seed
            .guid(&format!("preserve {}", creation.label))
            .to_string(),
        start: Bytes(place.start),
        size: Bytes(place.length()),
        filesystem: agreed.inside.filesystem.unwrap_or(NewFileSystem::Ext4),
        key_file: agreed.key_file.clone(),
        required: wanted.required(),
    })
}

#[cfg(test)]
mod tests;
