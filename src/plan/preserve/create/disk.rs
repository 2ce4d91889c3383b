//! What stands on the disk on which partitions are to be made, and whether it may get them.

use std::path::Path;

use super::ENTRIES;
use crate::config::request::Source;
use crate::config::request::preserve::{Creation, Preserved};
use crate::config::wire::Select;
use crate::host::tables::{CopyState, Gpt, Table, TablePartition};
use crate::host::{Disk, DiskKind, Facts, Holder, RecordFound};
use crate::plan::layout::create::fresh_usable;
use crate::plan::preserve::Trouble;
use crate::plan::target;
use crate::units::{Bytes, SectorSize};

/// Whether no disk can come any more that has the source.
pub fn may_begin(creation: &Creation, facts: &Facts) -> bool {
    no_disk_can_come(&creation.disk, facts)
}

/// Whether a partition may be made on the disk of `select`, because no other disk can come that has it: it has been
/// waited for, or one disk is named, and there.
pub fn no_disk_can_come(select: &Select, facts: &Facts) -> bool {
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

/// Disks of which nobody knows what they hold. Drives that have no partitions hold none of that name.
pub fn unreadable(facts: &Facts) -> Vec<String> {
    let disks = facts.disks.iter();
    disks
        .filter(|d| d.unreadable.is_some())
        .filter(|d| !matches!(d.kind, DiskKind::Floppy | DiskKind::Optical))
        .map(|d| d.name.clone())
        .collect()
}

/// The one disk.
pub fn choose<'a>(select: &Select, facts: &'a Facts) -> Result<&'a Disk, Trouble> {
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
        [one] => match why_no_partitions(one.kind) {
            None => Ok(one),
            Some(why) => Err(Trouble::Conflict(format!(
                "it would be made on {}, which gets no partitions: {why}",
                one.name
            ))),
        },
        other => Err(Trouble::Disks {
            wanted: target::describe(select),
            found: other.iter().map(|d| d.name.clone()).collect(),
        }),
    }
}

/// A partition of that name that stands in a table and is none of the kernel's: it is not made a second time.
pub fn listed(label: &str, chosen: &Disk, facts: &Facts) -> Option<Trouble> {
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
pub fn listed_on<'a>(label: &str, mut disks: impl Iterator<Item = &'a Disk>) -> Option<Trouble> {
    let has = |p: &&TablePartition| p.name.as_deref() == Some(label);
    disks.find_map(|disk| {
        let entry = disk.table.partitions().iter().find(has)?;
        Some(Trouble::NotInKernel(format!(
            "the table of {} lists it as partition {}",
            disk.name, entry.number
        )))
    })
}

/// The kernel gives no partitions to these (Linux, `GENHD_FL_NO_PART`).
fn why_no_partitions(kind: DiskKind) -> Option<&'static str> {
    match kind {
        DiskKind::DeviceMapper => Some(
            "it is a map of the device mapper, of which the kernel makes no partitions; make a logical volume or a file system there, and name that",
        ),
        DiskKind::Zram => Some("it is memory (zram), which has no partitions and forgets"),
        DiskKind::Ram => Some("it is memory, which forgets"),
        DiskKind::Floppy | DiskKind::Optical => Some("such a drive has no partitions"),
        DiskKind::Disk | DiskKind::Loop | DiskKind::Md | DiskKind::Other => None,
    }
}

/// A table without a protective MBR, which is written last, on a disk where nothing else is.
fn is_begun_table(disk: &Disk) -> bool {
    let Table::Gpt(gpt) = &disk.table else {
        return false;
    };
    !gpt.protective
        && disk.partitions.is_empty()
        && disk.record == RecordFound::None
        && disk
            .contents
            .iter()
            .all(|c| c.device == disk.name && c.what == "gpt")
}

/// What a disk is to be made partitions on.
#[derive(Debug)]
pub struct State<'a> {
    /// Its sectors.
    pub sector: SectorSize,
    /// The table that is there; `None` where it gets one.
    pub gpt: Option<&'a Gpt>,
    /// Making partitions was begun there and cut off.
    pub begun: bool,
    /// Those of them that are listed: each must be one that is asked for.
    pub listed: Vec<&'a TablePartition>,
    /// The partitions that stay.
    pub there: &'a [TablePartition],
    /// First and last usable block.
    pub usable: (u64, u64),
    /// How many entries there are.
    pub entries: u32,
}

/// What `disk` is to be made partitions on.
pub fn state(disk: &Disk) -> Result<State<'_>, Trouble> {
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
    let fresh = |begun, listed| match fresh_usable(disk.size, sector) {
        None => no("it is too small for a table".to_owned()),
        Some(usable) => Ok(State {
            sector,
            gpt: None,
            begun,
            listed,
            there: &[],
            usable,
            entries: ENTRIES,
        }),
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
            (None, None) => fresh(false, Vec::new()),
        },
        Table::Gpt(gpt) if is_begun_table(disk) && gpt.sector == sector => {
            fresh(true, gpt.partitions.iter().collect())
        }
        Table::Gpt(gpt) => {
            let listed = in_backup_alone(gpt);
            if let Some(why) = disk
                .table
                .why_not_whole(sector)
                .filter(|_| listed.is_empty())
            {
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
                begun: !listed.is_empty(),
                listed,
                there: &gpt.partitions,
                usable: gpt.usable,
                entries: gpt.entries,
            })
        }
    }
}

/// What the backup, which is written first, lists beside all that the primary does.
fn in_backup_alone(gpt: &Gpt) -> Vec<&TablePartition> {
    let valid = gpt.primary == CopyState::Valid && gpt.backup == CopyState::Valid;
    match &gpt.backup_lists {
        Some(backup)
            if valid && gpt.protective && gpt.partitions.iter().all(|p| backup.contains(p)) =>
        {
            let new = backup.iter().filter(|p| !gpt.partitions.contains(p));
            new.collect()
        }
        Some(_) | None => Vec::new(),
    }
}

/// The refusal of a disk where something else was begun than what is asked for now.
pub fn not_asked_for(entry: &TablePartition, state: &State<'_>, disk: &Disk) -> Trouble {
    let name = crate::error::printable(entry.name.as_deref().unwrap_or_default());
    let which = format!(
        "partition {} {name:?} ({} at {})",
        entry.number,
        entry.size.short(),
        entry.start.short()
    );
    let why = match state.gpt {
        Some(_) => format!(
            "the two copies of the GPT differ: the second one lists {which}, which is none that would be made now"
        ),
        None => format!(
            "sector 0 is no protective MBR, and the table lists {which}, which is none that would be made now"
        ),
    };
    Trouble::Begun {
        disk: disk.name.clone(),
        why,
        whole_disk: state.gpt.is_none(),
    }
}
