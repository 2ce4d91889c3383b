//! What a network boot under `bootPolicy: None` comes to: the machine shall run what is on its disk. No block
//! device is written; UEFI firmware is told to boot the disk next, once.

use super::Plan;
use super::step::{Handoff, Step};
use crate::host::{BootEntries, BootEntry, Facts, Firmware, Place};

/// A machine that comes back over the network within this many seconds could not boot from its disk: it parks, and
/// does not go round for ever.
const FAILED_WITHIN: u64 = 15 * 60;

/// The plan.
pub fn leave_alone(facts: &Facts) -> Plan {
    let machine = &facts.machine;
    let steps = match (&facts.place, machine.firmware, &machine.boot) {
        // That is no network boot: nobody asks what comes next.
        (Place::Running, _, _) => vec![Step::Handoff(Handoff::Park {
            reason: "bootPolicy is None: nothing was touched".to_owned(),
        })],
        (_, Firmware::Uefi, Some(boot)) => by_uefi(boot, facts.now),
        (_, Firmware::Uefi | Firmware::UefiWithoutVariables, _) => {
            vec![park("the UEFI variables of this machine cannot be read")]
        }
        (_, Firmware::Bios, _) => vec![park("this firmware cannot be told to boot the disk")],
    };
    Plan {
        summary: "bootPolicy is None: no block device is written".to_owned(),
        identity: String::new(),
        steps,
        notes: vec![],
        drift: Vec::new(),
    }
}

fn by_uefi(boot: &BootEntries, now: u64) -> Vec<Step> {
    let first = boot.order.iter().find(|e| e.active && !e.network);
    let failed = boot
        .disk_tried
        .is_some_and(|tried| tried.abs_diff(now) < FAILED_WITHIN);
    match first {
        None => vec![park(
            "its firmware has no boot entry but those for the network",
        )],
        // The next start of the machine tries again: whoever switches it on wants to see it boot.
        Some(_) if failed => vec![
            Step::ForgetDiskBoot,
            park("it came back over the network a moment after it was told to boot from its disk"),
        ],
        Some(BootEntry {
            number,
            description,
            ..
        }) => vec![
            Step::BootDisk {
                number: *number,
                description: description.clone(),
                time: now,
            },
            Step::Handoff(Handoff::Reboot),
        ],
    }
}

fn park(why: &str) -> Step {
    Step::Handoff(Handoff::Park {
        reason: format!(
            "bootPolicy is None: nothing was touched, and {why}; put the disk first in the boot order"
        ),
    })
}
