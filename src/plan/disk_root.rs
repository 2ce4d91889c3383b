//! The steps that put an image on a disk, and those that boot what is on it already.

use super::layout::Shape;
use super::refusal::{Refusal, summary};
use super::step::{Esp, Handoff, Step, Target};
use super::{Plan, clear, keep, target};
use crate::config::request::{DiskInstall, Request, Then};
use crate::config::wire::{BootPolicy, Overwrite, RecordPolicy};
use crate::host::tables::TablePartition;
use crate::host::{Disk, Facts, Firmware, RecordFound, RecordIdentity};
use crate::image::record::DiskIdentity;
use crate::units::{Bytes, MIB, SectorSize};

/// Smaller devices are no disks for an operating system, and head, record and tail would overlap.
const SMALLEST_DISK: Bytes = Bytes(4 * MIB);

/// The steps of an installation.
pub fn install(
    request: &Request,
    install: &DiskInstall,
    facts: &Facts,
    identity: String,
) -> Result<Plan, Refusal> {
    let disk = target::choose(install, facts, &identity)?;
    if let Some(refusal) = target::obstacle(disk) {
        return Err(refusal);
    }
    let decision = keep::decide(&install.keep, disk);
    let kept = decision.as_ref().map_or(&[][..], |d| d.kept.as_slice());
    may_overwrite(install.overwrite, disk, &identity, kept)?;
    let keep::Decision {
        kept,
        first,
        mut notes,
    } = decision?;
    if disk.size < SMALLEST_DISK {
        return Err(Refusal::TooSmall {
            disk: disk.name.clone(),
            what: "any installation".to_owned(),
            need: SMALLEST_DISK,
            have: disk.size,
        });
    }
    let target = target_of(disk);
    let record = RecordIdentity {
        identity: identity.clone(),
        claim: request.claim.clone(),
        image: install.image.name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: facts.now,
    };
    let keep_record = (install.record == RecordPolicy::Required).then(|| record.clone());
    let shape = shape(install, facts, &identity, kept.clone(), &mut notes);
    let read_back = install.image.verify_disk.then_some(Step::ReadBack);
    let mut steps = vec![
        Step::LockDisk {
            target: target.clone(),
        },
        Step::OpenImage {
            locations: install
                .image
                .locations
                .iter()
                .map(ToString::to_string)
                .collect(),
            digest: install.image.digest.clone(),
            content_digest: install.image.content_digest.clone(),
            record: install.record,
            shape: Box::new(shape.clone()),
        },
        Step::WriteMark { record },
    ];
    let spans = clear::spans(disk, &kept);
    if !kept.is_empty() {
        steps.push(Step::ReplaceTable { kept, first });
    }
    steps.extend([
        Step::ClearDisk { spans },
        Step::WriteBody {
            remember: install.image.verify_disk,
        },
    ]);
    steps.extend(read_back);
    steps.extend(work_on_partitions(&shape));
    steps.extend([
        Step::CommitHead {
            record: keep_record,
        },
        Step::RereadPartitions,
    ]);
    // Who installs at each network boot must not come back by itself: without BootNext that is a loop.
    let repeats =
        request.policy == BootPolicy::NetworkBootAlways || install.record == RecordPolicy::Skip;
    steps.extend(boot_entry(install, facts, None, repeats));
    let told = facts.machine.firmware == Firmware::Uefi && install.efi.boot_next;
    let hand = match handoff(request.then) {
        Handoff::Reboot if repeats && !told => Handoff::Park {
            reason: "installed; a restart over the network would install again: put the disk first in the boot order, then restart".to_owned(),
        },
        other => other,
    };
    steps.push(Step::Handoff(hand));
    Ok(Plan {
        summary: format!("install {} on {target}", install.image.name()),
        identity,
        steps,
        notes,
    })
}

/// What the table shall be. A partition that is added and one that is kept under the same label are one.
fn shape(
    install: &DiskInstall,
    facts: &Facts,
    identity: &str,
    kept: Vec<TablePartition>,
    notes: &mut Vec<String>,
) -> Shape {
    let is_kept = |label: &String| kept.iter().any(|p| p.name.as_ref() == Some(label));
    let (there, add): (Vec<_>, Vec<_>) = install
        .partitions
        .iter()
        .cloned()
        .partition(|wanted| is_kept(&wanted.label));
    for wanted in there {
        notes.push(format!(
            "partition {:?} is kept as it is, not made again",
            wanted.label
        ));
    }
    Shape {
        interim_guid: if kept.is_empty() {
            String::new()
        } else {
            keep::interim_guid(identity)
        },
        kept,
        grow: install.grow.clone(),
        add,
        guids: install.guids,
        seed: facts.seed.clone(),
    }
}

/// Between the verdict and the head: the partitions that are new or have grown.
fn work_on_partitions(shape: &Shape) -> Vec<Step> {
    if shape.add.is_empty() && shape.grow.is_none() {
        return Vec::new();
    }
    let make = shape.add.iter().filter_map(|added| {
        Some(Step::MakeFilesystem {
            label: added.label.clone(),
            filesystem: added.filesystem?,
        })
    });
    let grow = shape.grow.iter().map(|partition| Step::GrowFilesystem {
        partition: partition.clone(),
    });
    std::iter::once(Step::OpenPartitions)
        .chain(make)
        .chain(grow)
        .chain([Step::ClosePartitions])
        .collect()
}

/// The steps that boot what is installed on `disk`: no block device is written.
pub fn boot_installed(
    request: &Request,
    install: &DiskInstall,
    facts: &Facts,
    disk: &Disk,
    identity: &str,
) -> Plan {
    let mut notes = Vec::new();
    if target::allowed(&install.select, facts).len() > 1 {
        notes.push(format!(
            "several disks match the selector; {} holds this installation",
            disk.name
        ));
    }
    let mut steps: Vec<Step> = boot_entry(install, facts, esp_of(disk), true)
        .into_iter()
        .collect();
    let hand = match facts.machine.firmware {
        Firmware::Uefi if install.efi.boot_next => handoff(request.then),
        Firmware::Uefi | Firmware::UefiWithoutVariables | Firmware::Bios => Handoff::Park {
            reason: format!(
                "{} holds this installation already; {}: put the disk first in the boot order",
                disk.name,
                if facts.machine.firmware == Firmware::Uefi {
                    "`efi.bootNext` is off"
                } else {
                    "this firmware cannot be told to boot it next"
                }
            ),
        },
    };
    steps.push(Step::Handoff(hand));
    Plan {
        summary: format!(
            "this installation is on {} already: boot it, write nothing",
            target_of(disk)
        ),
        identity: identity.to_owned(),
        steps,
        notes,
    }
}

fn target_of(disk: &Disk) -> Target {
    Target {
        path: disk.path.clone(),
        name: disk.name.clone(),
        dev: (disk.dev != crate::host::DevNum::default()).then_some(disk.dev),
        size: disk.size,
        sector: disk.sector.unwrap_or(SectorSize::S512),
        identity: DiskIdentity::of(disk),
    }
}

fn handoff(then: Then) -> Handoff {
    match then {
        Then::Reboot => Handoff::Reboot,
        Then::PowerOff => Handoff::PowerOff,
        // Only a session from memory boots from here; the config's reader sees to that.
        Then::Boot | Then::Park => Handoff::Park {
            reason: "`then` is Park".to_owned(),
        },
    }
}

fn boot_entry(
    install: &DiskInstall,
    facts: &Facts,
    esp: Option<Esp>,
    required: bool,
) -> Option<Step> {
    let wanted = install.efi.entry || install.efi.boot_next;
    match facts.machine.firmware {
        Firmware::Uefi if wanted => Some(Step::BootEntry {
            efi: install.efi,
            description: "ironroot".to_owned(),
            esp,
            required,
        }),
        Firmware::Uefi | Firmware::UefiWithoutVariables | Firmware::Bios => None,
    }
}

/// The ESP of a disk that is installed already, from its own table.
fn esp_of(disk: &Disk) -> Option<Esp> {
    esp_in(
        disk.table.partitions(),
        disk.sector.unwrap_or(SectorSize::S512),
    )
}

/// The first EFI system partition of `partitions`.
pub fn esp_in(
    partitions: &[crate::host::tables::TablePartition],
    sector: SectorSize,
) -> Option<Esp> {
    partitions.iter().find(|p| p.kind.is_esp()).map(|p| Esp {
        number: p.number,
        start: p.start,
        size: p.size,
        partuuid: p.partuuid.clone(),
        sector,
    })
}

fn may_overwrite(
    overwrite: Overwrite,
    disk: &Disk,
    identity: &str,
    kept: &[TablePartition],
) -> Result<(), Refusal> {
    let refuse = |found: Vec<String>, allow| {
        Err(Refusal::NotBlank {
            disk: disk.name.clone(),
            found,
            allow,
        })
    };
    if overwrite == Overwrite::Always {
        return Ok(());
    }
    match &disk.record {
        RecordFound::Mark(_) | RecordFound::Installed(_) if overwrite == Overwrite::IfOurs => {
            return Ok(());
        }
        RecordFound::Mark(_) if target::is_cut_off(disk, identity) => {
            if !keep::forgets_one(&disk.table, identity, kept) {
                return Ok(());
            }
            let mut found = vec![
                "this installation was cut off here while it kept partitions that `disk.keep` does not name any more".to_owned(),
            ];
            let lost = disk.table.partitions().iter().filter(|p| !kept.contains(p));
            found.extend(lost.map(keep::describe));
            return refuse(found, "IfOurs");
        }
        RecordFound::Mark(mark) if mark.identity == identity => {
            let mut found = summary(&disk.contents);
            found.push(
                "this installation was cut off here, and the disk was changed since".to_owned(),
            );
            return refuse(found, "IfOurs");
        }
        RecordFound::Mark(mark) => {
            return refuse(
                vec![format!(
                    "another installation was cut off here (claim {:?})",
                    mark.claim
                )],
                "IfOurs",
            );
        }
        RecordFound::Installed(found) => {
            return refuse(
                vec![format!(
                    "an installation by ironroot (claim {:?})",
                    found.claim
                )],
                "IfOurs",
            );
        }
        RecordFound::None | RecordFound::Foreign { .. } => {}
    }
    if let Some(why) = &disk.unreadable {
        return refuse(vec![format!("it could not be read ({why})")], "Always");
    }
    let mut found = summary(&disk.contents);
    if let RecordFound::Foreign { why } = &disk.record {
        found.push(format!(
            "a record of ironroot that does not count here: {why}"
        ));
    }
    if found.is_empty() {
        Ok(())
    } else {
        refuse(found, "Always")
    }
}
