//! How a run ends, and what starts then.

use std::path::PathBuf;

use serde::Serialize;

use crate::units::{Bytes, SectorSize};

/// How an installed system is started without the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    /// In this kernel; by its own kernel where it has no modules for this one.
    Root,
    /// By its own kernel.
    Kexec,
}

/// Who switches to a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Switch {
    /// Our own PID 1.
    Ours,
    /// The PID 1 of the initrd that we are a helper in.
    Initrds,
}

/// An EFI system partition, as a boot entry names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Esp {
    /// Partition number.
    pub number: u32,
    /// Byte offset.
    pub start: Bytes,
    /// Size.
    pub size: Bytes,
    /// PARTUUID.
    pub partuuid: String,
    /// Logical sector size of the disk.
    pub sector: SectorSize,
}

/// What happens at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(
    tag = "handoff",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Handoff {
    /// Restart the machine.
    Reboot,
    /// Power off.
    PowerOff,
    /// The root is mounted for the initrd's own PID 1, which switches to it.
    Sysroot {
        /// Where.
        root: PathBuf,
    },
    /// Start the kernel that was loaded.
    Kexec,
    /// Stay.
    Park {
        /// Why, for the console.
        reason: String,
    },
    /// Start the system whose root file system is mounted already, in this kernel.
    SwitchRoot {
        /// Where it is mounted.
        root: PathBuf,
        /// Its init, as `init=` names it inside the new root; `None` for the usual places.
        init: Option<String>,
    },
}
