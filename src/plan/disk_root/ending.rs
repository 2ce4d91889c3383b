//! What comes after an installation, and after one that was found: how its system starts.

use std::path::PathBuf;

use super::super::memory_root;
use super::super::step::{Esp, Handoff, Start, Step, Switch, Target};
use crate::config::request::Then;
use crate::config::wire::Efi;
use crate::host::{Facts, Firmware, Place};

/// What ends the run.
pub(super) fn handoff(then: Then) -> Handoff {
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
pub(super) fn start_installed(
    facts: &Facts,
    target: &Target,
    start: Start,
    kept: Vec<u32>,
) -> Option<Step> {
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

/// The step that tells UEFI firmware to boot the disk.
pub(super) fn boot_entry(
    efi: Efi,
    facts: &Facts,
    esp: Option<Esp>,
    replaced: Vec<String>,
) -> Option<Step> {
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
