//! The disk that holds this claim's system already goes before whatever `pick` says: else kept partitions stay behind
//! on it, and the machine has two systems.

use super::{allowed, ambiguous, describe, is_unasked_usb, only_by_path, passed_over};
use crate::config::request::DiskInstall;
use crate::config::wire::{Pick, Select};
use crate::host::{DevNum, Disk, DiskKind, Facts, Holder, RecordFound, wwn};
use crate::plan::refusal::{Candidate, Refusal};
use crate::plan::{target, teardown};

/// Whose system a disk is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The installation.
    pub identity: &'a str,
    /// `metadata.claim`; whoever has none is one owner like any other.
    pub claim: &'a str,
}

/// What a disk holds of its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// This very installation, complete or cut off.
    This,
    /// Another one of the same claim: an earlier generation, another image.
    Claim,
}

impl Owner<'_> {
    fn on(self, disk: &Disk) -> Option<Holds> {
        match &disk.record {
            RecordFound::Mark(found) | RecordFound::Installed(found) => {
                if found.identity == self.identity {
                    Some(Holds::This)
                } else {
                    (found.claim == self.claim).then_some(Holds::Claim)
                }
            }
            RecordFound::None | RecordFound::Foreign { .. } => None,
        }
    }

    /// Whether `disk` has a system of this owner whose table is damaged.
    fn left_on(self, disk: &Disk) -> Option<&str> {
        match &disk.record {
            RecordFound::Foreign { why, of: Some(of) }
                if of.identity == self.identity || of.claim == self.claim =>
            {
                Some(why)
            }
            RecordFound::None
            | RecordFound::Mark(_)
            | RecordFound::Installed(_)
            | RecordFound::Foreign { .. } => None,
        }
    }
}

/// The disk on which the installation `identity` is complete, among all that `select` allows. It is booted whatever
/// it is: nothing is written.
pub fn installed<'a>(
    select: &Select,
    facts: &'a Facts,
    identity: &str,
) -> Result<Option<&'a Disk>, Refusal> {
    let is_it = |disk: &&Disk| matches!(&disk.record, RecordFound::Installed(found) if found.identity == identity);
    let found = allowed(select, facts).into_iter().filter(is_it);
    let found = apart(&found.collect::<Vec<_>>());
    let fixed: Vec<&Disk> = found
        .iter()
        .copied()
        .filter(|d| only_by_path(d, facts.machine.booted_from.as_deref()).is_none())
        .collect();
    match if fixed.is_empty() { &found } else { &fixed }.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        several => Err(twice(several, "this installation")),
    }
}

/// The disk that holds the system of `owner`, among those that `select` allows; `None` where none of them does.
pub(super) fn find<'a>(
    install: &DiskInstall,
    allowed: &[&'a Disk],
    facts: &Facts,
    owner: Owner<'_>,
) -> Result<Option<&'a Disk>, Refusal> {
    let select = &install.select;
    for (holds, what) in [
        (Holds::This, "this installation"),
        (Holds::Claim, "an installation of this claim"),
    ] {
        let found: Vec<&Disk> = allowed
            .iter()
            .copied()
            .filter(|d| owner.on(d) == Some(holds) && !is_never_meant(select, d, facts))
            .collect();
        let disk = match apart(&found).as_slice() {
            [] => continue,
            [one] => *one,
            several => return Err(twice(several, what)),
        };
        let Some(why) = passed_over(select, disk, install.overwrite, facts) else {
            // What is left are paths to one disk.
            let free = |d: &&Disk| passed_over(select, d, install.overwrite, facts).is_none();
            let paths: Vec<&Disk> = found.into_iter().filter(free).collect();
            if install.pick == Pick::Only && paths.len() > 1 {
                return Err(ambiguous(describe(select), &paths, super::PATHS));
            }
            return Ok(Some(disk));
        };
        return Err(Refusal::Ours {
            disk: disk.name.clone(),
            what,
            why: Box::new(because(disk, &why, install, facts)),
        });
    }
    Ok(None)
}

/// Refuses to take `picked` where another disk may hold the system of `owner`, and cannot say so.
pub(super) fn must_not_be_elsewhere(
    picked: &Disk,
    install: &DiskInstall,
    facts: &Facts,
    owner: Owner<'_>,
) -> Result<(), Refusal> {
    let others = allowed(&install.select, facts).into_iter().filter(|d| {
        d.name != picked.name
            && !is_one_disk(d, picked)
            && !is_never_meant(&install.select, d, facts)
    });
    for disk in others {
        if let Some(why) = owner.left_on(disk) {
            return Err(Refusal::Left {
                disk: disk.name.clone(),
                why: why.to_owned(),
            });
        }
        if let Some(why) = unread(disk) {
            return Err(Refusal::Unreadable {
                disk: disk.name.clone(),
                why: why.to_owned(),
            });
        }
    }
    Ok(())
}

/// The first disk that `select` may mean and that cannot be read: it may hold the system that is looked for.
pub fn first_unread<'a>(select: &Select, facts: &'a Facts) -> Option<(&'a Disk, &'a str)> {
    let named = target::named_path(select).is_some();
    allowed(select, facts)
        .into_iter()
        .filter(|d| named || !is_never_meant(select, d, facts))
        .find_map(|d| Some((d, unread(d)?)))
}

/// Why nobody knows what `disk` holds. What is in use belongs to who uses it.
fn unread(disk: &Disk) -> Option<&str> {
    let may_hold = disk.record == RecordFound::None && disk.size.0 > 0 && disk.holders.is_empty();
    disk.unreadable.as_deref().filter(|_| may_hold)
}

/// What is worth saying about a choice: which disk it fell on where several match, and where this owner has other
/// systems, which stay as they are.
pub fn notes(select: &Select, chosen: &Disk, facts: &Facts, owner: Owner<'_>) -> Vec<String> {
    let by_record = owner
        .on(chosen)
        .filter(|_| allowed(select, facts).len() > 1);
    let why = by_record.map(|holds| {
        let what = match holds {
            Holds::This => "this installation",
            Holds::Claim => "an installation of this claim",
        };
        format!(
            "several disks match the selector; {} holds {what}",
            chosen.name
        )
    });
    why.into_iter()
        .chain(warning_of_others(chosen, facts, owner))
        .collect()
}

fn warning_of_others(chosen: &Disk, facts: &Facts, owner: Owner<'_>) -> Option<String> {
    // Systems without a claim are nobody's in particular: on a machine that makes images there are many.
    let is_theirs = |disk: &Disk| match owner.on(disk) {
        Some(Holds::This) => true,
        Some(Holds::Claim) => !owner.claim.is_empty(),
        None => false,
    };
    // A file that becomes a disk is another machine's.
    let is_a_disk = chosen.dev != DevNum::default() && chosen.kind != DiskKind::Loop;
    let others = facts.disks.iter().filter(|d| {
        d.kind == DiskKind::Disk && d.dev != chosen.dev && !is_one_disk(d, chosen) && is_theirs(d)
    });
    let others = apart(&others.filter(|_| is_a_disk).collect::<Vec<_>>());
    if others.is_empty() {
        return None;
    }
    let names: Vec<&str> = others.iter().map(|d| d.name.as_str()).collect();
    let (holds, stays) = if names.len() == 1 {
        ("holds an installation", "stays as it is")
    } else {
        ("hold installations", "stay as they are")
    };
    Some(format!(
        "{} {holds} of this claim too and {stays}: this machine has more than one system then",
        names.join(", "),
    ))
}

/// What a selector without a path never means, whatever is on it.
fn is_never_meant(select: &Select, disk: &Disk, facts: &Facts) -> bool {
    let kept_apart = match disk.kind {
        // The disks below are refused as parts of it; by itself it holds a system all the same.
        DiskKind::DeviceMapper | DiskKind::Md => disk.removable,
        DiskKind::Disk
        | DiskKind::Loop
        | DiskKind::Ram
        | DiskKind::Zram
        | DiskKind::Floppy
        | DiskKind::Optical
        | DiskKind::Other => only_by_path(disk, facts.machine.booted_from.as_deref()).is_some(),
    };
    kept_apart || is_unasked_usb(select, disk)
}

/// Those of `found` that are disks by themselves: without what another of them stands on, and with the first of
/// several paths to one.
pub(super) fn apart<'a>(found: &[&'a Disk]) -> Vec<&'a Disk> {
    let carries_another = |disk: &&Disk| {
        disk.holders.iter().any(|holder| {
            matches!(holder, Holder::Device { holder, .. } if found.iter().any(|d| d.name == *holder))
        })
    };
    let mut apart: Vec<&Disk> = Vec::new();
    for disk in found.iter().copied().filter(|d| !carries_another(d)) {
        if !apart.iter().any(|d| is_one_disk(d, disk)) {
            apart.push(disk);
        }
    }
    apart
}

/// Whether two devices are paths to one disk.
pub(super) fn is_one_disk(a: &Disk, b: &Disk) -> bool {
    a.wwn
        .as_deref()
        .zip(b.wwn.as_deref())
        .is_some_and(|(a, b)| wwn::bare(a) == wwn::bare(b))
}

fn twice(disks: &[&Disk], what: &'static str) -> Refusal {
    Refusal::Twice {
        what,
        candidates: disks.iter().map(|d| Candidate::new(d, "")).collect(),
    }
}

/// Why `disk` cannot be taken, in a refusal of its own where there is one.
fn because(disk: &Disk, why: &str, install: &DiskInstall, facts: &Facts) -> Refusal {
    match super::held(disk, install.overwrite, facts) {
        Some(why) => teardown::busy(disk, why),
        None if disk.read_only => Refusal::ReadOnly {
            disk: disk.name.clone(),
        },
        None => {
            // The name of a map lasts, its node's does not.
            let lasting = disk.links.iter().find(|l| l.starts_with("/dev/mapper"));
            let path = lasting.unwrap_or(&disk.path).display().to_string();
            Refusal::NotADisk {
                next: format!("select it by its path: {path}"),
                path,
                what: format!("is passed over ({why})"),
            }
        }
    }
}
