//! Partitions that are made where a source is missing: on free space of one disk, whose table is whole, or which is
//! blank. Nothing that is there is moved, and nothing is made while a disk may still come that has the source.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::contents::{Agreed, agreed};
use super::{SourceDevice, Trouble};
use crate::config::quantity::{Amount, SizeText};
use crate::config::request::Source;
use crate::config::request::preserve::{Creation, NewFileSystem, Preserved};
use crate::config::wire::Select;
use crate::host::tables::{CopyState, Gpt, Table, TablePartition};
use crate::host::{DevNum, Disk, DiskKind, Facts, Holder, RecordFound};
use crate::image::record::DiskIdentity;
use crate::plan::layout::create::fresh_usable;
use crate::plan::layout::extent;
use crate::plan::layout::space::{self, Extent, gaps};
use crate::plan::step::Target;
use crate::plan::target;
use crate::units::{Bytes, MIB, SectorSize};

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

/// Decides for the entries whose source is missing; what cannot be made becomes the trouble in `found`.
pub fn decide<T>(entries: &[&Preserved], found: &mut [Result<T, Trouble>], facts: &Facts) -> Made {
    let mut made = Made::default();
    let mut seen: Vec<&str> = Vec::new();
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
        if !users.iter().all(is_missing) || !may_begin(creation, facts) {
            continue;
        }
        if let Err(trouble) = one(creation, &users, facts, &mut made) {
            for (i, _) in &users {
                if let Some(slot) = found.get_mut(*i) {
                    *slot = Err(trouble.clone());
                }
            }
        }
    }
    made
}

/// Whether no disk can come any more that has the source.
fn may_begin(creation: &Creation, facts: &Facts) -> bool {
    no_disk_can_come(&creation.disk, facts)
}

/// Whether a partition may be made on the disk of `select`, because no other disk can come that has it: it has been
/// waited for, or one disk is named, and there.
pub(super) fn no_disk_can_come(select: &Select, facts: &Facts) -> bool {
    // What the kernel calls a disk, and the number of a SCSI host, are another disk's after the next start.
    let stable = |path: &Path| {
        let kept = ["/dev/disk/by-id", "/dev/disk/by-path"];
        kept.iter().any(|folder| path.starts_with(folder))
            || path.to_string_lossy().starts_with("/dev/loop")
    };
    let names_one = select.serial.is_some()
        || select.wwn.is_some()
        || target::named_path(select).is_some_and(|path| stable(Path::new(path)));
    names_one || (facts.waited && unreadable(facts).is_empty())
}

/// Disks of which nobody knows what they hold.
pub(super) fn unreadable(facts: &Facts) -> Vec<String> {
    let disks = facts.disks.iter();
    disks
        .filter(|d| d.unreadable.is_some() && d.kind != DiskKind::Floppy)
        .map(|d| d.name.clone())
        .collect()
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

fn one(
    creation: &Creation,
    users: &[(usize, &Preserved)],
    facts: &Facts,
    made: &mut Made,
) -> Result<(), Trouble> {
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
    let agreed = agreed(users)?;
    let disk = choose(&creation.disk, facts)?;
    if let Some(listing) = listed(&creation.label, disk, facts) {
        return Err(listing);
    }
    let state = state(disk, creation)?;
    let mut planned = match made.disks.iter().find(|d| d.target.dev == Some(disk.dev)) {
        Some(planned) => planned.clone(),
        None => NewPartitions {
            target: Target {
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
            },
            disk_guid: state.gpt.map_or_else(
                || {
                    facts
                        .seed
                        .guid(&format!("preserve on {}", disk.name))
                        .to_string()
                },
                |gpt| gpt.disk_guid.clone(),
            ),
            new_table: state.new_table,
            begun: state.begun,
            there: state.there.to_vec(),
            add: Vec::new(),
            required: false,
        },
    };
    let filesystem = agreed.inside.filesystem.unwrap_or(NewFileSystem::Ext4);
    let seed = facts.seed.guid(&format!("preserve {}", creation.label));
    let new = place(
        creation,
        &state,
        &planned,
        disk,
        seed.to_string(),
        filesystem,
    )?;
    planned.add.push(new.clone());
    planned.required |= users.iter().any(|(_, u)| u.required);
    made.sources.push((
        users.iter().map(|(i, _)| *i).collect(),
        agreed,
        new,
        planned.target.clone(),
    ));
    match made
        .disks
        .iter_mut()
        .find(|d| d.target.dev == Some(disk.dev))
    {
        Some(slot) => *slot = planned,
        None => made.disks.push(planned),
    }
    Ok(())
}

/// The one disk.
fn choose<'a>(select: &Select, facts: &'a Facts) -> Result<&'a Disk, Trouble> {
    let named = target::named_path(select).is_some();
    let part_of = |d: &Disk| {
        d.holders
            .iter()
            .any(|h| matches!(h, Holder::Device { device, .. } if *device == d.name))
    };
    let serves = |d: &&Disk| {
        let fixed = d.kind == DiskKind::Disk && !d.removable && !target::is_boot_medium(d, facts);
        d.size > Bytes::ZERO && (named || (fixed && !part_of(d)))
    };
    let all: Vec<&Disk> = target::allowed(select, facts)
        .into_iter()
        .filter(serves)
        .collect();
    match all.as_slice() {
        [one] => Ok(one),
        other => Err(Trouble::Disks {
            wanted: target::describe(select),
            found: other.iter().map(|d| d.name.clone()).collect(),
        }),
    }
}

/// A partition of that name that stands in a table and is none of the kernel's: it is not made a second time.
fn listed(label: &str, chosen: &Disk, facts: &Facts) -> Option<Trouble> {
    // What was begun there and cut off is looked at with the table.
    let begun = |d: &Disk| d.dev == chosen.dev && is_begun_table(d);
    listed_on(label, facts.disks.iter().filter(|d| !begun(d)))
}

/// A name that stands in a table, whose partition the kernel does not know: what is to be done about that is another
/// thing than where no disk has it.
pub fn is_only_listed(
    entry: &Preserved,
    trouble: Option<&Trouble>,
    facts: &Facts,
) -> Option<Trouble> {
    let (Source::Partlabel(label), None) = (&entry.source, &entry.create) else {
        return None;
    };
    match trouble {
        Some(Trouble::Missing { .. }) => listed_on(label, facts.disks.iter()),
        _ => None,
    }
}

/// [`listed`] for some of the disks.
pub(super) fn listed_on<'a>(
    label: &str,
    mut disks: impl Iterator<Item = &'a Disk>,
) -> Option<Trouble> {
    let has = |p: &&TablePartition| p.name.as_deref() == Some(label);
    disks.find_map(|disk| {
        let entry = disk.table.partitions().iter().find(has)?;
        Some(Trouble::NotInKernel(format!(
            "the table of {} lists it as partition {}",
            disk.name, entry.number
        )))
    })
}

/// A table without a protective MBR, which is written last, on a disk where nothing else is.
fn is_begun_table(disk: &Disk) -> bool {
    let Table::Gpt(gpt) = &disk.table else {
        return false;
    };
    !gpt.protective
        && gpt.partitions.len() == 1
        && disk.partitions.is_empty()
        && disk.record == RecordFound::None
        && disk
            .contents
            .iter()
            .all(|c| c.device == disk.name && c.what == "gpt")
}

/// What a disk is to be made partitions on.
struct State<'a> {
    sector: SectorSize,
    gpt: Option<&'a Gpt>,
    new_table: bool,
    begun: bool,
    there: &'a [TablePartition],
    /// First and last usable block, and how many entries there are.
    usable: (u64, u64),
    entries: u32,
}

fn state<'a>(disk: &'a Disk, creation: &Creation) -> Result<State<'a>, Trouble> {
    if let Some(why) = &disk.unreadable {
        return Err(Trouble::Unreadable(why.clone()));
    }
    if disk.read_only {
        return Err(Trouble::ReadOnly(disk.name.clone()));
    }
    if let Some(holder) = disk.holders.first() {
        return Err(Trouble::InUse(holder.to_string()));
    }
    let no = |why: String| {
        Err(Trouble::NoTable {
            disk: disk.name.clone(),
            why,
        })
    };
    let sector = disk.sector.unwrap_or(SectorSize::S512);
    let other = disk
        .contents
        .iter()
        .find(|c| c.device == disk.name && c.what != "gpt" && c.what != "dos");
    if let Some(other) = other {
        return Err(Trouble::Occupied(other.to_string()));
    }
    let ours = |p: &TablePartition| {
        p.name.as_deref() == Some(creation.label.as_str())
            && p.size == Bytes(space::align_up(creation.size.0))
    };
    let blank = |begun| {
        let usable = fresh_usable(disk.size, sector).ok_or_else(|| Trouble::NoRoom {
            disk: disk.name.clone(),
            need: creation.size,
            largest: Bytes::ZERO,
        })?;
        Ok(State {
            sector,
            gpt: None,
            new_table: true,
            begun,
            there: &[],
            usable,
            entries: ENTRIES,
        })
    };
    match &disk.table {
        Table::Mbr(_) => no("it has an MBR, and partitions are made in a GPT only".to_owned()),
        Table::Damaged { why } => no(why.clone()),
        Table::None if disk.record != RecordFound::None => Err(Trouble::Occupied(format!(
            "{} carries the record of an installation",
            disk.name
        ))),
        Table::None => match (disk.contents.first(), disk.partitions.first()) {
            (Some(content), _) => Err(Trouble::Occupied(content.to_string())),
            (None, Some(partition)) => no(format!(
                "the kernel knows {} there, and no table lists it",
                partition.name
            )),
            (None, None) => blank(false),
        },
        Table::Gpt(gpt) if is_begun_table(disk) && gpt.partitions.iter().all(ours) => blank(true),
        Table::Gpt(gpt) => {
            let begun = is_begun_entry(gpt, ours);
            if let Some(why) = disk.table.why_not_whole(sector).filter(|_| !begun) {
                return no(why);
            }
            if let Some(flaw) = gpt.flaws.first() {
                return no(flaw.clone());
            }
            let stray = disk.partitions.iter().find(|p| {
                !gpt.partitions
                    .iter()
                    .any(|e| (e.number, e.start, e.size) == (p.number, p.start, p.size))
            });
            if let Some(stray) = stray {
                return no(format!(
                    "the kernel knows {} there, and its table does not list it so",
                    stray.name
                ));
            }
            Ok(State {
                sector,
                gpt: Some(gpt),
                new_table: false,
                begun,
                there: &gpt.partitions,
                usable: gpt.usable,
                entries: gpt.entries,
            })
        }
    }
}

/// The backup, which is written first, has one partition more than the primary, and it is the one.
fn is_begun_entry(gpt: &Gpt, ours: impl Fn(&TablePartition) -> bool) -> bool {
    let valid = gpt.primary == CopyState::Valid && gpt.backup == CopyState::Valid;
    let Some(backup) = gpt
        .backup_lists
        .as_ref()
        .filter(|_| valid && gpt.protective)
    else {
        return false;
    };
    let new: Vec<&TablePartition> = backup
        .iter()
        .filter(|p| !gpt.partitions.contains(p))
        .collect();
    let all_there = gpt.partitions.iter().all(|p| backup.contains(p));
    all_there && matches!(new.as_slice(), [one] if ours(one))
}

fn place(
    creation: &Creation,
    state: &State<'_>,
    planned: &NewPartitions,
    disk: &Disk,
    partuuid: String,
    filesystem: NewFileSystem,
) -> Result<NewPartition, Trouble> {
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
        partuuid,
        start: Bytes(place.start),
        size: Bytes(place.length()),
        filesystem,
    })
}
