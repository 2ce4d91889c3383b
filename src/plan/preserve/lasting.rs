//! Preserved paths of an installed system: they last without ironroot, and so their sources have to be there after
//! the installation: partitions of other disks, and of the target those that are kept or added.

use std::path::PathBuf;

use super::candidates;
use super::contents::{Agreed, agreed};
use super::{
    Attach, Binding, Decided, SourceDevice, Trouble, binding_of, create, decide_among, shared, sort,
};
use crate::config::request::preserve::{NewFileSystem, Preserved};
use crate::config::request::{Addition, Named, Request, Source};
use crate::host::tables::TablePartition;
use crate::host::{DevNum, Disk, DiskKind, Facts, RecordFound};
use crate::image::record::DiskIdentity;
use crate::plan::refusal::Refusal;
use crate::plan::step::Step;
use crate::units::Bytes;

/// What is preserved, and where.
#[derive(Debug, Default)]
pub struct Lasting {
    /// The devices.
    pub sources: Vec<SourceDevice>,
    /// The paths, parents first.
    pub bindings: Vec<Binding>,
    /// Optional paths that will show the image's content, and why.
    pub notes: Vec<String>,
}

impl Lasting {
    /// An added partition on which paths last.
    pub fn on_added(&self) -> Option<String> {
        self.sources
            .iter()
            .find_map(|source| match &source.on_target {
                Some(Named::Label(label)) => Some(label.clone()),
                Some(Named::Number(_)) | None => None,
            })
    }

    /// What is written beside machine ids when the disk boots.
    pub fn begin_first_boot(&self) -> Option<Step> {
        let is_id = |path: &&Binding| path.attach == Attach::MachineId;
        let bindings: Vec<Binding> = self.bindings.iter().filter(is_id).cloned().collect();
        let has_id = |source: &&SourceDevice| {
            !source.read_only && bindings.iter().any(|b| b.source == source.number)
        };
        let sources: Vec<SourceDevice> = self.sources.iter().filter(has_id).cloned().collect();
        (!sources.is_empty()).then_some(Step::BeginFirstBoot { sources, bindings })
    }

    /// What can be asked before the first write: required paths on file systems that are there already.
    pub fn look_ahead(&self) -> Option<Step> {
        let is_there = |source: &&SourceDevice| {
            let is_new = matches!(source.on_target, Some(Named::Label(_)));
            source.required && source.format.is_none() && !is_new
        };
        let sources: Vec<SourceDevice> = self.sources.iter().filter(is_there).cloned().collect();
        let is_asked =
            |path: &&Binding| path.required && sources.iter().any(|s| s.number == path.source);
        let bindings: Vec<Binding> = self.bindings.iter().filter(is_asked).cloned().collect();
        (!bindings.is_empty()).then_some(Step::LookAtSources { sources, bindings })
    }
}

/// Decides for an installation on `disk`, of which `kept` stay and to which `added` come.
pub fn decide(
    request: &Request,
    facts: &Facts,
    disk: &Disk,
    kept: &[TablePartition],
    added: &[Addition],
) -> Result<Lasting, Refusal> {
    let is_new = |entry: &&Preserved| new_partition(&entry.source, added).is_some();
    let (fresh, old): (Vec<&Preserved>, Vec<&Preserved>) =
        request.preserve.iter().partition(is_new);
    let all = candidates::all(facts);
    for entry in &fresh {
        is_the_only_one(entry, &all, facts, disk, kept)
            .map_err(|trouble| refuse(entry, trouble))?;
        may_begin(request, facts).map_err(|trouble| refuse(entry, trouble))?;
    }
    for entry in &old {
        goes_away(entry, &all, facts, disk, kept)?;
        is_temporary(entry, &all, facts, disk)?;
    }
    let survivors = survivors(facts, disk, kept);
    let Decided {
        sources,
        bindings,
        notes,
        // `create` is for sessions only.
        partitions: _,
    } = decide_among(request, &old, &survivors)?;
    let mut lasting = Lasting {
        notes,
        ..Lasting::default()
    };
    for step in sources {
        if let Step::OpenSource { source } = step {
            let number = disk.partitions.iter().find(|p| p.dev == source.dev);
            lasting.sources.push(SourceDevice {
                on_target: number.map(|p| Named::Number(p.number)),
                ..*source
            });
        }
    }
    for (_, step) in bindings {
        if let Step::Preserve { binding } = step {
            lasting.bindings.push(*binding);
        }
    }
    for entry in &fresh {
        let users: Vec<(usize, &Preserved)> = fresh
            .iter()
            .filter(|other| other.source == entry.source)
            .map(|other| (0, *other))
            .collect();
        let agreed = agreed(&users).map_err(|trouble| refuse(entry, trouble))?;
        add(request, (entry, &agreed), disk, added, &mut lasting)?;
    }
    sort_bindings(&mut lasting.bindings);
    Ok(lasting)
}

fn refuse(entry: &Preserved, trouble: Trouble) -> Refusal {
    Refusal::Preserve {
        target: entry.target.clone(),
        source: entry.source.to_string(),
        trouble,
    }
}

/// The partition that is added under the name of `source`.
fn new_partition<'a>(source: &Source, added: &'a [Addition]) -> Option<&'a Addition> {
    match source {
        Source::Partlabel(label) => added.iter().find(|a| a.label == *label),
        Source::Partuuid(_) | Source::Label(_) | Source::Uuid(_) | Source::Disk { .. } => None,
    }
}

/// Refuses to make a partition beside another of its name: what is preserved would be there, and not be seen, and two
/// devices would have the name at the next boot.
fn is_the_only_one(
    entry: &Preserved,
    all: &[candidates::Candidate<'_>],
    facts: &Facts,
    disk: &Disk,
    kept: &[TablePartition],
) -> Result<(), Trouble> {
    let Source::Partlabel(label) = &entry.source else {
        return Ok(());
    };
    let elsewhere: Vec<&str> = all
        .iter()
        .filter(|d| d.disk.dev != disk.dev && d.is_called(label))
        .map(|d| d.name)
        .collect();
    if !elsewhere.is_empty() {
        return Err(Trouble::Conflict(format!(
            "{} has that name already, and `disk.partitions` would make another on {}: leave it out there, or give one of them another name",
            elsewhere.join(" and "),
            disk.name
        )));
    }
    // What is a path of the target, or below another, shows the same table.
    let is_a_part = |d: &Disk| {
        let mut holders = d.holders.iter();
        holders
            .any(|h| matches!(h, crate::host::Holder::Device { device, .. } if *device == d.name))
    };
    let others = facts
        .disks
        .iter()
        .filter(|d| d.dev != disk.dev && !is_a_part(d));
    if let Some(listing) = create::listed_on(label, others) {
        return Err(listing);
    }
    let has = |p: &&TablePartition| {
        p.name.as_deref() == Some(label.as_str()) && !kept.iter().any(|k| k.number == p.number)
    };
    match disk.table.partitions().iter().find(has) {
        Some(there) if !is_unused(there, disk) => Err(Trouble::Conflict(format!(
            "partition {} of {} has that name, and the installation would erase it and make another: name it in `disk.keep`, or erase it yourself (`blkdiscard`) where what it holds may be lost",
            there.number, disk.name
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Nothing has ever been kept there: it is blank, or an installation that was cut off has begun to replace it.
fn is_unused(there: &TablePartition, disk: &Disk) -> bool {
    if let RecordFound::Mark(mark) = &disk.record {
        return !mark.kept.contains(&there.number);
    }
    let mut known = disk.partitions.iter();
    known.any(|p| (p.number, p.start, p.size) == (there.number, there.start, there.size) && p.blank)
}

/// A disk that comes late may have the partition, as where a session makes one.
fn may_begin(request: &Request, facts: &Facts) -> Result<(), Trouble> {
    let select = request.disk().map(|install| &install.select);
    if select.is_some_and(|select| create::no_disk_can_come(select, facts)) {
        return Ok(());
    }
    Err(Trouble::Missing {
        unreadable: create::unreadable(facts),
    })
}

/// Refuses a source that this very installation erases.
fn goes_away(
    entry: &Preserved,
    all: &[candidates::Candidate<'_>],
    facts: &Facts,
    disk: &Disk,
    kept: &[TablePartition],
) -> Result<(), Refusal> {
    let goes = |found: &candidates::Candidate<'_>| {
        let stays = found
            .partition
            .is_some_and(|p| kept.iter().any(|k| k.number == p.number));
        found.disk.dev == disk.dev && !stays
    };
    let found = match candidates::find(entry, all, facts) {
        Ok(found) => found,
        // Of two, the one that stays is not thereby the one that is meant.
        Err(several @ Trouble::Several(_)) if candidates::named(entry, all).any(goes) => {
            return Err(refuse(entry, several));
        }
        Err(_) => return Ok(()),
    };
    if goes(found) {
        return Err(refuse(
            entry,
            Trouble::Conflict(format!(
                "{} is on the disk that is installed, and nothing keeps it: name it in `disk.keep`",
                found.name
            )),
        ));
    }
    Ok(())
}

/// Refuses a source that only this session has: nobody would set it up again when the installed system boots. Where
/// the target is a loop device itself, an image is being made, and others stand for disks.
fn is_temporary(
    entry: &Preserved,
    all: &[candidates::Candidate<'_>],
    facts: &Facts,
    disk: &Disk,
) -> Result<(), Refusal> {
    let Ok(found) = candidates::find(entry, all, facts) else {
        return Ok(());
    };
    let source = found.disk;
    let encrypted = |uuid: &String| uuid.starts_with("CRYPT-");
    let what = match source.kind {
        DiskKind::Loop if disk.kind != DiskKind::Loop => "a loop device",
        DiskKind::Ram | DiskKind::Zram => "memory",
        DiskKind::DeviceMapper if source.map_uuid.as_ref().is_some_and(encrypted) => {
            "the inside of an encrypted device"
        }
        _ => return Ok(()),
    };
    Err(refuse(
        entry,
        Trouble::Conflict(format!(
            "{} is {what}, which the installed system would not find at its boots",
            found.name
        )),
    ))
}

/// What is there after the installation, apart from the image and what is added.
fn survivors(facts: &Facts, disk: &Disk, kept: &[TablePartition]) -> Facts {
    let mut facts = facts.clone();
    for other in facts.disks.iter_mut().filter(|d| d.dev == disk.dev) {
        other
            .partitions
            .retain(|p| kept.iter().any(|k| k.number == p.number));
        // Named as a whole it is the target, which holds the system itself.
        other.contents.retain(|c| c.device != other.name);
    }
    facts
}

/// A path on a partition that does not exist yet, of which all its users say this.
fn add(
    request: &Request,
    (entry, agreed): (&Preserved, &Agreed),
    disk: &Disk,
    added: &[Addition],
    lasting: &mut Lasting,
) -> Result<(), Refusal> {
    let Some(addition) = new_partition(&entry.source, added) else {
        return Ok(());
    };
    let wanted = Named::Label(addition.label.clone());
    let made = addition.filesystem;
    let filesystem = match (made, agreed.inside.filesystem) {
        (Some(made), Some(other)) if made != other => {
            return Err(refuse(
                entry,
                Trouble::OtherFileSystem(format!(
                    "`disk.partitions` makes {} there, and `filesystem` is {}",
                    made.name(),
                    other.name()
                )),
            ));
        }
        (Some(fs), _) | (None, Some(fs)) => fs,
        (None, None) => NewFileSystem::Ext4,
    };
    let format = match (made, agreed.inside.format) {
        (Some(_), _) => None,
        (None, true) => Some(filesystem),
        (None, false) => {
            return Err(refuse(
                entry,
                Trouble::Blank(format!("the new partition {wanted}")),
            ));
        }
    };
    let is_there = |other: &Binding| {
        let mut sources = lasting.sources.iter();
        sources.any(|s| s.number == other.source && s.on_target.as_ref() == Some(&wanted))
    };
    let folds = filesystem == NewFileSystem::Vfat;
    let clash = lasting
        .bindings
        .iter()
        .filter(|other| is_there(other))
        .find_map(|other| Some((other, shared(folds, &other.subdir, &entry.subdir)?)));
    if let Some((other, how)) = clash {
        return Err(refuse(
            entry,
            Trouble::Conflict(format!("{} is preserved at {how}", other.target.display())),
        ));
    }
    let known = lasting
        .sources
        .iter_mut()
        .find(|s| s.on_target.as_ref() == Some(&wanted));
    let number = if let Some(source) = known {
        source.required |= entry.required;
        for word in &entry.options.file_system {
            if !source.options.iter().any(|known| known == word) {
                source.options.push((*word).to_owned());
            }
        }
        source.number
    } else {
        let number = lasting.sources.len();
        lasting.sources.push(SourceDevice {
            number,
            name: format!("the new partition {wanted} of {}", disk.name),
            path: disk.path.clone(),
            dev: DevNum::default(),
            size: Bytes::ZERO,
            disk: DiskIdentity {
                serial: disk.serial.clone(),
                wwn: disk.wwn.clone(),
                ..DiskIdentity::default()
            },
            wanted: entry.source.to_string(),
            filesystem: filesystem.name().to_owned(),
            uuid: None,
            partuuid: None,
            on_target: Some(wanted),
            made: None,
            format,
            luks: None,
            read_only: false,
            options: entry
                .options
                .file_system
                .iter()
                .map(|word| (*word).to_owned())
                .collect(),
            required: entry.required,
        });
        number
    };
    lasting.bindings.push(binding_of(request, entry, number));
    Ok(())
}

fn sort_bindings(bindings: &mut Vec<Binding>) {
    let mut steps: Vec<(PathBuf, Step)> = std::mem::take(bindings)
        .into_iter()
        .map(|binding| {
            (
                binding.target.clone(),
                Step::Preserve {
                    binding: Box::new(binding),
                },
            )
        })
        .collect();
    sort(&mut steps);
    bindings.extend(steps.into_iter().filter_map(|(_, step)| match step {
        Step::Preserve { binding } => Some(*binding),
        _ => None,
    }));
}

/// Whether a path of the installed system is provided by a mount, and not by a copy.
pub fn is_mounted(binding: &Binding) -> bool {
    match binding.attach {
        Attach::Directory | Attach::File | Attach::Overlay => true,
        Attach::MachineId => false,
    }
}
