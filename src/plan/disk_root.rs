//! The steps that put an image on a disk, and those that boot what is on it already.

mod ending;
mod overwrite;
mod second_boot;

use super::layout::{Shape, twins};
use super::refusal::Refusal;
use super::step::{Changes, Esp, Handoff, Seen, Span, Start, Step, Target};
use super::teardown::{self, Teardown};
use super::{Plan, clear, keep, preserve, target, tree_root};
use crate::config::request::{DiskInstall, Named, Request, Then};
use crate::config::wire::{BootPolicy, Guids, RecordPolicy, Wipe};
use crate::host::tables::TablePartition;
use crate::host::{Disk, DiskKind, Facts, Firmware, RecordIdentity};
use crate::image::record::DiskIdentity;
use crate::units::{Bytes, MIB, SectorSize};
use ending::{boot_entry, handoff, start_installed};
use overwrite::may_overwrite;

pub use second_boot::boot_installed;

/// Smaller devices are no disks for an operating system, and head, record and tail would overlap.
const SMALLEST_DISK: Bytes = Bytes(4 * MIB);

/// The steps of an installation.
pub fn install(
    request: &Request,
    install: &DiskInstall,
    facts: &Facts,
    identity: String,
) -> Result<Plan, Refusal> {
    let owner = target::Owner {
        identity: &identity,
        claim: &request.claim,
    };
    let disk = target::choose(install, facts, owner)?;
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
    notes.extend(target::notes(&install.select, disk, facts, owner));
    notes.extend(keep::warning_of_another_claim(&kept, disk, &request.claim));
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
    let first_boot;
    if tree_root::is_wanted(install) {
        let root = tree_root::root_of(&mut shape.add);
        // It takes the rest in any case.
        shape.grow = None;
        // They are new in any case, and the tree is told them before the table is made.
        shape.guids = Guids::Keep;
        notes.extend(twins::warning_of_kept(&kept, &shape.taken));
        let lasting = preserve::lasting::decide(request, facts, disk, &kept, &shape.add)?;
        notes.extend(lasting.notes.clone());
        shape.lasting = lasting.on_added();
        let look_ahead = lasting.look_ahead();
        first_boot = lasting.begin_first_boot();
        let keep_paths = keep_paths(lasting);
        notes.extend(tree_root::note(install));
        let beside = tree_root::Beside {
            shape: &shape,
            first,
            root,
            open: kept_of(keep_paths.as_ref()),
            look_ahead,
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
        first_boot = lasting.begin_first_boot();
        steps.extend(body(install, disk, record, (kept, first), &shape, lasting));
    }
    if disk.kind == DiskKind::DeviceMapper && steps.iter().any(works_on_partitions) {
        return Err(no_partitions(disk));
    }
    steps.push(Step::CommitHead {
        record: keep_record,
    });
    steps.extend(first_boot);
    steps.push(Step::RereadPartitions);
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

fn works_on_partitions(step: &Step) -> bool {
    matches!(
        step,
        Step::OpenPartitions { .. } | Step::MakePartitions { .. }
    )
}

/// BLKPG is nothing that device-mapper knows: kpartx(8) makes a map for each partition instead.
fn no_partitions(disk: &Disk) -> Refusal {
    Refusal::Partitions {
        what: format!(
            "what is asked for is work on partitions, and the kernel gives none to {}, a device-mapper device: only a disk image as it is can be written there",
            disk.name
        ),
        next: "leave out `disk.grow`, `disk.partitions`, `disk.files`, `disk.kernelArguments`, `ignition` and `preserve`, or install on one path of the disk, with the others disconnected",
    }
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
    let mut steps = vec![Step::OpenImage {
        locations: image.locations.iter().map(ToString::to_string).collect(),
        digest: image.digest.clone(),
        content_digest: image.content_digest.clone(),
        record: install.record,
        shape: Box::new(shape.clone()),
    }];
    steps.extend(lasting.look_ahead());
    steps.push(Step::WriteMark { record });
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
