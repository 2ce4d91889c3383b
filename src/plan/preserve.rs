//! Preserved paths: each source resolved to one device by its number, whether it gets a file system, and the
//! order of what is attached.

mod candidates;
mod contents;
pub mod create;
pub mod lasting;
mod trouble;
mod upper;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::refusal::Refusal;
use super::step::Step;
use crate::config::request::preserve::{
    MountFlags, NewFileSystem, Preserved, depth, is_fat, overlap, overlap_folded,
};
use crate::config::request::{Named, Request, Source};
use crate::config::wire::{OtherClaim, PreserveKind, PreserveMethod, Seed};
use crate::error::printable;
use crate::host::{DevNum, Facts, Holder};
use crate::image::record::DiskIdentity;
use crate::units::Bytes;
use candidates::Candidate;
use contents::{Content, agreed};

pub use contents::{Inside, UNFINISHED, begins_again, inside};
pub use trouble::Trouble;
pub use upper::{Upper, upper};

/// A systemd that finds this file mounted takes it for its own temporary one and fails to save it.
const MACHINE_ID: &str = "/etc/machine-id";

/// A device with preserved content, and all that is done to it before its paths are attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceDevice {
    /// Which source of this plan it is; it is mounted at /run/ironroot/state/NUMBER.
    pub number: usize,
    /// Kernel name.
    pub name: String,
    /// Device node.
    pub path: PathBuf,
    /// Device number; the opened device must have it.
    pub dev: DevNum,
    /// Size; the opened device must have it.
    pub size: Bytes,
    /// Serial and WWN of the disk, for the log.
    pub disk: DiskIdentity,
    /// How the config names it.
    pub wanted: String,
    /// Type of the file system, as the kernel names it; `crypto_LUKS` where it is inside.
    pub filesystem: String,
    /// UUID of the file system, or of the LUKS header, that was found: the opened device must have it.
    pub uuid: Option<String>,
    /// PARTUUID, where it is a partition of a table.
    pub partuuid: Option<String>,
    /// It is this partition of the disk that is installed: the kernel gives it another number meanwhile.
    pub on_target: Option<Named>,
    /// It is this partition, which is made first: the kernel does not know it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made: Option<String>,
    /// The device is blank and gets this file system.
    pub format: Option<NewFileSystem>,
    /// It is encrypted, and the file system is inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub luks: Option<Luks>,
    /// It is mounted read-only.
    pub read_only: bool,
    /// Options of the file system.
    pub options: Vec<String>,
    /// The boot stops where it cannot be mounted.
    pub required: bool,
}

impl fmt::Display for SourceDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.path.display(), self.size.short())?;
        if let Some(serial) = &self.disk.serial {
            write!(f, ", serial {}", printable(serial))?;
        }
        write!(f, ", {})", self.dev)
    }
}

/// How an encrypted source is opened. Of the key, only the place of its file is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Luks {
    /// The key file in the initrd.
    pub key_file: PathBuf,
    /// Name of the mapping.
    pub name: String,
    /// What may be inside.
    pub inside: Inside,
}

/// How a preserved path is provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Attach {
    /// A bind mount of a directory.
    Directory,
    /// A bind mount of a file.
    File,
    /// An overlay over the image's directory.
    Overlay,
    /// A value that is copied into the root: the machine id.
    MachineId,
}

/// One preserved path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// The path in the new root.
    pub target: PathBuf,
    /// [`SourceDevice::number`] of where it lives.
    pub source: usize,
    /// The place in the source's file system; empty for its root.
    pub subdir: PathBuf,
    /// How it is provided.
    pub attach: Attach,
    /// Whether the image's content fills it at first use.
    pub seed: Seed,
    /// Mode of what is made; `None`: the image's.
    pub mode: Option<u32>,
    /// Owner and group of what is made; `None`: the image's.
    pub owner: Option<(u32, u32)>,
    /// Flags of the mount.
    pub flags: MountFlags,
    /// Whose session this is.
    pub claim: String,
    /// The place belongs to one claim.
    pub claim_bound: bool,
    /// What happens to what another claim left.
    pub other_claim: OtherClaim,
    /// The boot stops without it.
    pub required: bool,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.attach {
            Attach::Directory => "bind",
            Attach::File => "bind, a file",
            Attach::Overlay => "overlay",
            Attach::MachineId => "copied, a value",
        };
        write!(f, "preserve {}: ", self.target.display())?;
        if self.subdir.as_os_str().is_empty() {
            write!(f, "source {}", self.source)?;
        } else {
            write!(f, "{} of source {}", self.subdir.display(), self.source)?;
        }
        write!(f, " ({how}")?;
        if self.attach != Attach::MachineId {
            write!(f, "; {}", self.flags)?;
        }
        if self.seed == Seed::FromImageOnce {
            f.write_str("; filled from the image once")?;
        }
        if self.claim_bound {
            write!(f, "; for claim {}", printable(&self.claim))?;
        }
        if self.other_claim == OtherClaim::Erase {
            f.write_str(", ERASE what another left")?;
        }
        f.write_str(if self.required { ")" } else { "; optional)" })
    }
}

/// Steps, and what is worth a warning.
#[derive(Debug, Default)]
pub struct Decided {
    /// One step for each disk on which partitions are made, before the root is mounted.
    pub partitions: Vec<Step>,
    /// One step for each source.
    pub sources: Vec<Step>,
    /// One step for each path, parents first.
    pub bindings: Vec<(PathBuf, Step)>,
    /// Optional paths that will show the image's content, and why.
    pub notes: Vec<String>,
}

/// Decides everything that can be known before anything is opened.
pub fn decide(request: &Request, facts: &Facts) -> Result<Decided, Refusal> {
    let entries: Vec<&Preserved> = request.preserve.iter().collect();
    decide_among(request, &entries, facts)
}

/// [`decide`] for some of the entries.
fn decide_among(
    request: &Request,
    entries: &[&Preserved],
    facts: &Facts,
) -> Result<Decided, Refusal> {
    let devices = candidates::all(facts);
    let mut found: Vec<Result<&Candidate<'_>, Trouble>> = entries
        .iter()
        .map(|entry| candidates::find(entry, &devices, facts))
        .collect();
    for (entry, slot) in entries.iter().zip(&mut found) {
        let elsewhere = slot.as_ref().ok();
        if let Some(trouble) = elsewhere.and_then(|d| create::is_elsewhere(entry, d.disk, facts)) {
            *slot = Err(trouble);
        }
    }
    overlaps(entries, &mut found);
    let made = create::decide(entries, &mut found, facts);
    for (entry, slot) in entries.iter().zip(&mut found) {
        if let Some(trouble) = create::is_only_listed(entry, slot.as_ref().err(), facts) {
            *slot = Err(trouble);
        }
    }
    let mut decided = Decided::default();
    for device in &devices {
        let users: Vec<(usize, &Preserved)> = entries
            .iter()
            .copied()
            .enumerate()
            .filter(|(i, _)| {
                found
                    .get(*i)
                    .and_then(|f| f.as_ref().ok())
                    .is_some_and(|d| d.dev == device.dev)
            })
            .collect();
        if users.is_empty() {
            continue;
        }
        let number = decided.sources.len();
        match source(device, &users, number) {
            Ok(source) => decided.sources.push(Step::OpenSource {
                source: Box::new(source),
            }),
            Err(trouble) => {
                for (i, _) in &users {
                    if let Some(slot) = found.get_mut(*i) {
                        *slot = Err(trouble.clone());
                    }
                }
            }
        }
    }
    let sources = made.sources(entries, decided.sources.len());
    decided.partitions = made
        .disks
        .into_iter()
        .map(|partitions| Step::AddPartitions {
            partitions: Box::new(partitions),
        })
        .collect();
    let mut on_new = vec![None; entries.len()];
    for (source, users) in sources {
        for i in users {
            if let Some(slot) = on_new.get_mut(i) {
                *slot = Some(source.number);
            }
        }
        decided.sources.push(Step::OpenSource {
            source: Box::new(source),
        });
    }
    for ((entry, found), new) in entries.iter().zip(&found).zip(on_new) {
        if let Some(number) = new {
            let step = Step::Preserve {
                binding: Box::new(binding_of(request, entry, number)),
            };
            decided.bindings.push((entry.target.clone(), step));
            continue;
        }
        let writes = !entry.options.flags.read_only;
        let device = match found {
            Ok(device) if device.disk.read_only && writes => {
                Err(Trouble::ReadOnly(device.name.to_owned()))
            }
            other => other.clone(),
        };
        match device {
            Ok(device) => {
                let step = binding(request, entry, device, &decided.sources);
                decided
                    .bindings
                    .extend(step.map(|step| (entry.target.clone(), step)));
            }
            // What is optional is waited for as well.
            Err(trouble) if entry.required || (trouble.may_heal() && !facts.waited) => {
                return Err(Refusal::Preserve {
                    target: entry.target.clone(),
                    source: entry.source.to_string(),
                    trouble,
                });
            }
            Err(trouble) => decided.notes.push(format!(
                "{} is not preserved and shows the image's content: source {}: {trouble}",
                entry.target.display(),
                entry.source
            )),
        }
    }
    Ok(decided)
}

/// How two places are one, or one is in the other, on a file system that `folds` names or not.
fn shared(folds: bool, one: &Path, other: &Path) -> Option<&'static str> {
    if overlap(one, other) {
        Some("the same place, or one is inside the other")
    } else if folds && overlap_folded(one, other) {
        Some("the same place, or one is inside the other: FAT does not tell upper from lower case")
    } else {
        None
    }
}

/// The same place under two names.
fn overlaps(entries: &[&Preserved], found: &mut [Result<&Candidate<'_>, Trouble>]) {
    for i in 0..entries.len() {
        let clash = entries.iter().take(i).enumerate().find(|(j, other)| {
            let (Some(Ok(one)), Some(Ok(two)), Some(entry)) =
                (found.get(i), found.get(*j), entries.get(i))
            else {
                return false;
            };
            let folds = one.contents().iter().any(|c| c.what == "vfat")
                || is_fat(entry.filesystem.or(other.filesystem));
            one.dev == two.dev && shared(folds, &entry.subdir, &other.subdir).is_some()
        });
        let clash = clash.and_then(|(_, other)| {
            let how = shared(true, &entries.get(i)?.subdir, &other.subdir)?;
            Some(format!("{} is preserved at {how}", other.target.display()))
        });
        if let (Some(clash), Some(slot)) = (clash, found.get_mut(i)) {
            *slot = Err(Trouble::Conflict(clash));
        }
    }
}

fn binding(
    request: &Request,
    entry: &Preserved,
    device: &Candidate<'_>,
    sources: &[Step],
) -> Option<Step> {
    let source = sources.iter().find_map(|step| match step {
        Step::OpenSource { source } if source.dev == device.dev => Some(source.number),
        _ => None,
    })?;
    Some(Step::Preserve {
        binding: Box::new(binding_of(request, entry, source)),
    })
}

fn binding_of(request: &Request, entry: &Preserved, source: usize) -> Binding {
    let attach = match (entry.kind, entry.method) {
        (PreserveKind::File, _) if entry.target == std::path::Path::new(MACHINE_ID) => {
            Attach::MachineId
        }
        (PreserveKind::File, _) => Attach::File,
        (PreserveKind::Dir, PreserveMethod::Overlay) => Attach::Overlay,
        (PreserveKind::Dir, PreserveMethod::Bind | PreserveMethod::Mount) => Attach::Directory,
    };
    Binding {
        target: entry.target.clone(),
        source,
        subdir: entry.subdir.clone(),
        attach,
        seed: entry.seed,
        mode: entry.mode,
        owner: entry.owner,
        flags: entry.options.flags,
        claim: request.claim.clone(),
        claim_bound: entry.claim.is_some(),
        other_claim: entry.other_claim,
        required: entry.required,
    }
}

/// What becomes of one device.
fn source(
    device: &Candidate<'_>,
    users: &[(usize, &Preserved)],
    number: usize,
) -> Result<SourceDevice, Trouble> {
    let disk = device.disk;
    if let Some(why) = &disk.unreadable {
        return Err(Trouble::Unreadable(why.clone()));
    }
    let holder = disk.holders.iter().find(|holder| match holder {
        Holder::Mount { device: name, .. }
        | Holder::Swap { device: name }
        | Holder::Device { device: name, .. } => *name == device.name,
    });
    if let Some(holder) = holder {
        return Err(Trouble::InUse(holder.to_string()));
    }
    let agreed = agreed(users)?;
    let Content {
        filesystem,
        uuid,
        format,
    } = contents::of(device, &agreed)?;
    let mut options: Vec<String> = Vec::new();
    for word in users.iter().flat_map(|(_, u)| &u.options.file_system) {
        if !options.iter().any(|o| o == word) {
            options.push((*word).to_owned());
        }
    }
    // On a device that cannot be written those entries stay that do not write.
    let read_only = disk.read_only || users.iter().all(|(_, u)| u.options.flags.read_only);
    if format.is_some() && read_only {
        return Err(Trouble::ReadOnly(device.name.to_owned()));
    }
    let wanted = users.first().map(|(_, u)| u.source.to_string());
    Ok(SourceDevice {
        number,
        name: device.name.to_owned(),
        path: device.path.clone(),
        dev: device.dev,
        size: device.size,
        disk: DiskIdentity {
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            ..DiskIdentity::default()
        },
        wanted: wanted.unwrap_or_default(),
        filesystem,
        uuid,
        partuuid: device.partuuid(),
        on_target: None,
        made: None,
        format,
        luks: agreed.luks(number),
        read_only,
        options,
        required: users.iter().any(|(_, u)| u.required),
    })
}

/// Sorts what is mounted in the root: parents before what is below them, and last of all the machine id: it is copied to
/// where the system looks for it, whatever is mounted there.
pub fn sort(steps: &mut [(PathBuf, Step)]) {
    let is_copied = |step: &Step| matches!(step, Step::Preserve { binding } if binding.attach == Attach::MachineId);
    steps.sort_by(|(a, one), (b, other)| {
        (is_copied(one), depth(a)).cmp(&(is_copied(other), depth(b)))
    });
}

/// Whether a disk that appears later could change which device an entry means.
pub fn may_be_ambiguous<'a>(entries: impl IntoIterator<Item = &'a Preserved>) -> bool {
    entries.into_iter().any(|entry| match &entry.source {
        Source::Partlabel(_) | Source::Partuuid(_) | Source::Label(_) | Source::Uuid(_) => true,
        Source::Disk { select, .. } => {
            select.serial.is_none() && select.wwn.is_none() && select.path.is_none()
        }
    })
}

#[cfg(test)]
mod tests;
