//! The steps that boot what an earlier network boot installed.

use super::super::layout::twins;
use super::super::step::{Esp, Handoff, Start, Step};
use super::super::{Plan, disk_boot, drift, target};
use super::ending::{boot_entry, handoff, start_installed};
use super::{esp_in, target_of};
use crate::config::request::{DiskInstall, Then};
use crate::host::{Disk, DiskTries, Facts, Firmware, RecordFound};
use crate::units::SectorSize;

/// The steps that boot what is installed on `disk`, and end as `then` says: no block device is written.
pub fn boot_installed(
    then: Then,
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
    let counts = then == Then::Reboot && can_be_told;
    let is_back = counts && row.count >= disk_boot::TOLD;
    let start = match then {
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
    notes.extend(twins::warning_of_installed(disk, &facts.disks));
    let started = |start| start_installed(facts, &target_of(disk), start, kept.clone());
    let mut steps = Vec::new();
    let end;
    if is_back {
        notes.push(format!(
            "{}: its own kernel is started from here",
            came_back(disk, row)
        ));
        steps.push(Step::CountStart {
            tries: disk_boot::one_more(row),
        });
        steps.extend(start.and_then(started));
        // Only where that fails the run goes on.
        steps.extend(tell_again(install, facts, disk, row));
        end = handoff(then);
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
        if let Some(start) = start.and_then(started) {
            steps.push(start);
            if can_be_told {
                steps.extend(tell_again(install, facts, disk, row));
            }
        }
        end = match then {
            // What starts nothing needs no firmware that can be told.
            Then::PowerOff | Then::Park => handoff(then),
            Then::Reboot | Then::Boot | Then::Kexec if can_be_told => handoff(then),
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
        };
    }
    if !matches!(steps.last(), Some(Step::GiveUp { .. })) {
        steps.push(Step::Handoff(end));
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

/// What is done where the system did not start from here: the firmware is told, but not for ever, and by one that takes
/// nothing not at all. The machine's next start after that tries once more: whoever switches it on wants to see it boot.
fn tell_again(install: &DiskInstall, facts: &Facts, disk: &Disk, row: DiskTries) -> Vec<Step> {
    if row.count >= disk_boot::STARTED {
        let reason = format!("{}, and it does not start from here", came_back(disk, row));
        return vec![Step::ForgetDiskBoot, Step::GiveUp { reason }];
    }
    let mut entry = boot_entry(install.efi, facts, esp_of(disk), vec![]);
    if let Some(Step::BootEntry {
        required, tries, ..
    }) = &mut entry
    {
        *required = true;
        *tries = Some(disk_boot::one_more(row));
    }
    entry.into_iter().collect()
}

fn came_back(disk: &Disk, row: DiskTries) -> String {
    format!(
        "this machine came back over the network {} times within a day after it was told to start the system on {}",
        row.count, disk.name
    )
}

/// The ESP of a disk that is installed already, from its own table.
fn esp_of(disk: &Disk) -> Option<Esp> {
    esp_in(
        disk.table.partitions(),
        disk.sector.unwrap_or(SectorSize::S512),
    )
}
