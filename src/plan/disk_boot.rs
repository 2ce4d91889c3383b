//! What a network boot under `bootPolicy: None` comes to: the machine shall run what is on its disk. No block
//! device is written; UEFI firmware is told to boot the disk next, a few times.

use super::Plan;
use super::step::{Handoff, Step};
use crate::host::{BootEntries, BootEntry, DiskTries, Facts, Firmware, Place};

/// Nothing that lasts tells whether a system ran in between, so a machine is told so often within [`ROW`], and then
/// parks instead of going round for ever. A machine that is merely restarted twice in an hour is told each time.
const TRIES: u8 = 3;

/// As [`TRIES`], for a disk that holds this installation: its own kernel is started from here after that.
pub const TOLD: u8 = 3;
/// After so many network boots within [`ROW`] a machine of which neither firmware nor kexec starts the disk is given up.
pub const STARTED: u8 = 12;

/// A row of tries is forgotten after so many seconds: a day. With a clock that stands still it never is, so that it
/// ends in parking.
const ROW: u64 = 24 * 60 * 60;

/// The row of tries that this machine is in.
pub fn row(boot: Option<&BootEntries>, now: u64) -> DiskTries {
    boot.and_then(|boot| boot.disk_tried)
        .filter(|tries| tries.since.abs_diff(now) < ROW)
        .unwrap_or(DiskTries {
            since: now,
            count: 0,
        })
}

/// The same with one more.
pub fn one_more(tries: DiskTries) -> DiskTries {
    DiskTries {
        count: tries.count.saturating_add(1),
        ..tries
    }
}

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
    let tries = row(Some(boot), now);
    match first {
        None => vec![park(
            "its firmware has no boot entry but those for the network",
        )],
        // The next start of the machine tries again: whoever switches it on wants to see it boot.
        Some(_) if tries.count >= TRIES => vec![
            Step::ForgetDiskBoot,
            park(&format!(
                "it came back over the network {} times within a day, each time after it was told to boot from its disk",
                tries.count
            )),
        ],
        Some(BootEntry {
            number,
            description,
            ..
        }) => vec![
            Step::BootDisk {
                number: *number,
                description: description.clone(),
                tries: one_more(tries),
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
