//! The steps that put an image on a disk, and those that boot what is on it already.

use std::path::PathBuf;

use super::layout::{Shape, twins};
use super::refusal::{Refusal, summary};
use super::step::{Changes, Esp, Handoff, Seen, Span, Start, Step, Switch, Target};
use super::teardown::{self, Teardown};
use super::{Plan, clear, disk_boot, drift, keep, memory_root, preserve, target, tree_root};
use crate::config::request::{DiskInstall, Named, Request, Then};
use crate::config::wire::{BootPolicy, Efi, Guids, Overwrite, RecordPolicy, Wipe};
use crate::host::tables::TablePartition;
use crate::host::{Disk, Facts, Firmware, Place, RecordFound, RecordIdentity};
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
    if let Some(refusal) = target::obstacle(disk, install.overwrite, facts) {
        return Err(refusal);
    }
    let decision = keep::decide(&install.keep, disk);
    let kept = decision.as_ref().ok().map(|d| d.kept.as_slice());
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
        kept: kept.iter().map(|p| p.number).collect(),
        sections: Some(install.sections.clone()),
    };
    let keep_record = (install.record == RecordPolicy::Required).then(|| record.clone());
    let kept_now = kept.clone();
    let (mut steps, more) = take(disk, &target, facts)?;
    notes.extend(more);
    let mut shape = shape(install, facts, &identity, kept.clone(), &mut notes);
    shape.taken = twins::taken(&facts.disks, disk);
    if tree_root::is_wanted(install) {
        let root = tree_root::root_of(&mut shape.add);
        // It takes the rest in any case.
        shape.grow = None;
        // They are new in any case, and the tree is told them before the table is made.
        shape.guids = Guids::Keep;
        let lasting = preserve::lasting::decide(request, facts, disk, &kept, &shape.add)?;
        notes.extend(lasting.notes.clone());
        shape.lasting = lasting.on_added();
        let keep_paths = keep_paths(lasting);
        notes.extend(tree_root::note(install));
        let beside = tree_root::Beside {
            shape: &shape,
            first,
            root,
            open: kept_of(keep_paths.as_ref()),
            keep_paths,
        };
        steps.extend(tree_root::steps(
            install,
            facts,
            (disk, &target),
            record,
            beside,
        )?);
    } else {
        let lasting = preserve::lasting::decide(request, facts, disk, &kept, &shape.add)?;
        notes.extend(lasting.notes.clone());
        shape.lasting = lasting.on_added();
        steps.extend(body(install, disk, record, (kept, first), &shape, lasting));
    }
    steps.extend([
        Step::CommitHead {
            record: keep_record,
        },
        Step::RereadPartitions,
    ]);
    // Who installs at each network boot must not come back by itself: without BootNext that is a loop.
    let repeats =
        request.policy == BootPolicy::NetworkBootAlways || install.record == RecordPolicy::Skip;
    let replaced = disk.table.partitions().iter();
    let replaced = replaced.map(|p| p.partuuid.clone()).collect();
    let start = match request.then {
        Then::Boot => Some(Start::Root),
        Then::Kexec => Some(Start::Kexec),
        Then::Reboot | Then::PowerOff | Then::Park => None,
    };
    // Who starts it from here and wants the network's config at each boot does not want the disk next time.
    let mut efi = install.efi;
    efi.boot_next &= start.is_none() || !repeats;
    let repeats_now = repeats && start.is_none();
    steps.extend(boot_entry(efi, facts, None, replaced).map(|mut step| {
        if let Step::BootEntry { required, .. } = &mut step {
            *required = repeats_now;
        }
        step
    }));
    let told = facts.machine.firmware == Firmware::Uefi && efi.boot_next;
    let hand = match handoff(request.then) {
        Handoff::Reboot if repeats && !told => Handoff::Park {
            reason: "installed; a restart over the network would install again: put the disk first in the boot order, then restart".to_owned(),
        },
        other => other,
    };
    let kept: Vec<u32> = kept_now.iter().map(|p| p.number).collect();
    steps.extend(start.and_then(|start| start_installed(facts, &target, start, kept)));
    steps.push(Step::Handoff(hand));
    Ok(Plan {
        summary: format!("install {} on {target}", install.image.name()),
        identity,
        steps,
        notes,
        drift: Vec::new(),
    })
}

/// The step that provides paths which last, if there are any.
fn keep_paths(lasting: preserve::lasting::Lasting) -> Option<Step> {
    (!lasting.bindings.is_empty()).then_some(Step::KeepPaths {
        sources: lasting.sources,
        bindings: lasting.bindings,
    })
}

/// The steps between the lock and the commit of a disk that takes an image as it is.
fn body(
    install: &DiskInstall,
    disk: &Disk,
    record: RecordIdentity,
    (kept, first): (Vec<TablePartition>, keep::Copy),
    shape: &Shape,
    lasting: preserve::lasting::Lasting,
) -> Vec<Step> {
    let image = &install.image;
    let mut steps = vec![
        Step::OpenImage {
            locations: image.locations.iter().map(ToString::to_string).collect(),
            digest: image.digest.clone(),
            content_digest: image.content_digest.clone(),
            record: install.record,
            shape: Box::new(shape.clone()),
        },
        Step::WriteMark { record },
    ];
    let spared = clear::spared(disk, &kept);
    if !kept.is_empty() {
        steps.push(Step::ReplaceTable { kept, first });
    }
    steps.extend(erase(disk, install.wipe, &spared));
    steps.push(Step::WriteBody {
        remember: image.verify_disk,
    });
    steps.extend(image.verify_disk.then_some(Step::ReadBack));
    steps.extend(work_on_partitions(shape, install, keep_paths(lasting)));
    steps
}

/// The steps that make `disk` ours alone, what stands on it taken down, and what is worth saying about that.
/// Whether that may go was asked before ([`target::obstacle`]).
pub fn take(
    disk: &Disk,
    target: &Target,
    facts: &Facts,
) -> Result<(Vec<Step>, Vec<String>), Refusal> {
    let target = target.clone();
    let seen = Box::new(Seen::of(disk));
    if disk.holders.is_empty() {
        return Ok((vec![Step::LockDisk { target, seen }], vec![]));
    }
    let Teardown { devices, notes } = teardown::plan(disk, facts)?;
    let mut steps = vec![Step::LockStack {
        target,
        seen,
        devices: devices.clone(),
    }];
    steps.extend(devices.into_iter().map(|device| Step::TakeDown { device }));
    steps.push(Step::ClaimDisk);
    Ok((steps, notes))
}

/// The steps that erase what was on `disk`, but for what lies in `spare`. Signatures go last of all: what a
/// device reads where it was told to discard is its own choice.
pub fn erase(disk: &Disk, wipe: Wipe, spare: &[Span]) -> Vec<Step> {
    let whole = match wipe {
        Wipe::Signatures => None,
        Wipe::Discard | Wipe::Zero => Some(Step::WipeDisk {
            method: wipe,
            spans: clear::whole(disk, spare),
        }),
    };
    let signatures = Step::ClearDisk {
        spans: clear::spans(disk, spare),
    };
    whole.into_iter().chain([signatures]).collect()
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
        taken: Vec::new(),
        lasting: None,
    }
}

/// Between the verdict and the head: the partitions that are new or have grown, and the installed system.
fn work_on_partitions(shape: &Shape, install: &DiskInstall, keep_paths: Option<Step>) -> Vec<Step> {
    let make = shape.add.iter().filter_map(|added| {
        Some(Step::MakeFilesystem {
            label: added.label.clone(),
            filesystem: added.filesystem?,
        })
    });
    let grow = shape.grow.iter().map(|partition| Step::GrowFilesystem {
        partition: partition.clone(),
    });
    let change = (!install.changes.is_empty()).then(|| Step::ChangeSystem {
        changes: Changes::of(&install.changes),
    });
    let work: Vec<Step> = make.chain(grow).chain(change).chain(keep_paths).collect();
    // What was added without a file system has old content to lose all the same.
    if work.is_empty() && shape.add.is_empty() {
        return work;
    }
    let kept = kept_of(work.last());
    std::iter::once(Step::OpenPartitions { kept })
        .chain(work)
        .chain([Step::ClosePartitions])
        .collect()
}

/// Numbers of the kept partitions on which a step provides paths.
fn kept_of(step: Option<&Step>) -> Vec<u32> {
    let Some(Step::KeepPaths { sources, .. }) = step else {
        return Vec::new();
    };
    sources
        .iter()
        .filter_map(|source| match source.on_target {
            Some(Named::Number(number)) => Some(number),
            Some(Named::Label(_)) | None => None,
        })
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
    let can_be_told = facts.machine.firmware == Firmware::Uefi && install.efi.boot_next;
    let row = disk_boot::row(facts.machine.boot.as_ref(), facts.now);
    // A machine that was told before and is here again may have a disk that does not boot.
    let counts = request.then == Then::Reboot && can_be_told;
    let is_back = counts && row.count >= disk_boot::TOLD;
    let start = match request.then {
        Then::Boot => Some(Start::Root),
        Then::Kexec => Some(Start::Kexec),
        // A firmware that cannot be told to boot the disk next need not be asked.
        Then::Reboot if !can_be_told || is_back => Some(Start::Kexec),
        Then::Reboot | Then::PowerOff | Then::Park => None,
    };
    let (kept, drift) = match &disk.record {
        RecordFound::Installed(record) => {
            (record.kept.clone(), drift::drift(&install.sections, record))
        }
        RecordFound::None | RecordFound::Mark(_) | RecordFound::Foreign { .. } => {
            (Vec::new(), Vec::new())
        }
    };
    notes.extend(drift::note(&drift));
    let started = |start| start_installed(facts, &target_of(disk), start, kept.clone());
    let mut steps = Vec::new();
    if is_back {
        let often = format!(
            "this machine came back over the network {} times within a day after it was told to start the system on {}",
            row.count, disk.name
        );
        notes.push(format!("{often}: its own kernel is started from here"));
        steps.push(Step::CountStart {
            tries: disk_boot::one_more(row),
        });
        steps.extend(start.and_then(started));
        // Only where that fails the run goes on. The firmware is told again, but not for ever; the machine's next
        // start after that tries once more: whoever switches it on wants to see it boot.
        if row.count >= disk_boot::STARTED {
            steps.extend([Step::ForgetDiskBoot, Step::GiveUp { reason: often }]);
        } else {
            steps.extend(boot_entry(install.efi, facts, esp_of(disk), vec![]));
            steps.push(Step::Handoff(handoff(request.then)));
        }
    } else {
        let entry = boot_entry(install.efi, facts, esp_of(disk), vec![]);
        steps.extend(entry.map(|mut step| {
            if let Step::BootEntry {
                required,
                tries,
                otherwise,
                ..
            } = &mut step
            {
                *required = start.is_none();
                *tries = counts.then(|| disk_boot::one_more(row));
                *otherwise = tries.and_then(|_| started(Start::Kexec)).map(Box::new);
            }
            step
        }));
        steps.extend(start.and_then(started));
        steps.push(Step::Handoff(match request.then {
            // What starts nothing needs no firmware that can be told.
            Then::PowerOff | Then::Park => handoff(request.then),
            Then::Reboot | Then::Boot | Then::Kexec if can_be_told => handoff(request.then),
            Then::Reboot | Then::Boot | Then::Kexec => Handoff::Park {
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
        }));
    }
    Plan {
        summary: format!(
            "this installation is on {} already: boot it, write nothing",
            target_of(disk)
        ),
        identity: identity.to_owned(),
        steps,
        notes,
        drift,
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
        // What starts from here restarts where that does not work.
        Then::Reboot | Then::Boot | Then::Kexec => Handoff::Reboot,
        Then::PowerOff => Handoff::PowerOff,
        Then::Park => Handoff::Park {
            reason: "`then` is Park".to_owned(),
        },
    }
}

/// Starts the system from here; on a running Linux nothing is started.
fn start_installed(facts: &Facts, target: &Target, start: Start, kept: Vec<u32>) -> Option<Step> {
    let (place, switch) = match &facts.place {
        Place::Init => (PathBuf::from(memory_root::ROOT), Switch::Ours),
        Place::Initrd { sysroot } => (sysroot.clone(), Switch::Initrds),
        Place::Running => return None,
    };
    Some(Step::StartInstalled {
        target: target.clone(),
        start,
        place,
        init: facts.init.clone(),
        switch,
        kept,
    })
}

fn boot_entry(efi: Efi, facts: &Facts, esp: Option<Esp>, replaced: Vec<String>) -> Option<Step> {
    let wanted = efi.entry || efi.boot_next;
    match facts.machine.firmware {
        Firmware::Uefi if wanted => Some(Step::BootEntry {
            efi,
            description: "ironroot".to_owned(),
            esp,
            replaced,
            required: false,
            tries: None,
            otherwise: None,
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

/// The loader that firmware looks for on a disk without entries (UEFI specification, section 3.5.1.1), for
/// an architecture as `uname -m` names it.
pub fn default_loader(arch: &str) -> Option<&'static str> {
    match arch {
        "x86_64" => Some("\\EFI\\BOOT\\BOOTX64.EFI"),
        "aarch64" => Some("\\EFI\\BOOT\\BOOTAA64.EFI"),
        "riscv64" => Some("\\EFI\\BOOT\\BOOTRISCV64.EFI"),
        _ => None,
    }
}

/// `kept`: what is kept; `None` where that is refused, which says more.
fn may_overwrite(
    overwrite: Overwrite,
    disk: &Disk,
    identity: &str,
    kept: Option<&[TablePartition]>,
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
        RecordFound::Mark(mark) if target::is_cut_off(disk, identity) => {
            let Some(kept) = kept.filter(|kept| keep::forgets_one(&disk.table, mark, kept)) else {
                return Ok(());
            };
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
