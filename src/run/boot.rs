//! The firmware is told what to boot: an entry of ours, BootNext, and under `bootPolicy: None` an entry that is
//! there already.

use std::path::Path;

use super::efi;
use crate::config::wire;
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::boot_entries::{DISK_TRIED, VENDOR};
use crate::plan::step::Esp;
use crate::report::Reporter;
use crate::sys::efivar::{self, BOOT_ATTRIBUTES, Variable};

/// Makes the boot entry and sets BootNext as `wanted` says. `root` is where /sys is.
pub fn entry(
    root: &Path,
    arch: &str,
    wanted: wire::Efi,
    description: &str,
    esp: Option<&Esp>,
    reporter: &Reporter,
) -> Result<()> {
    let esp = esp.ok_or_else(|| {
        Failure::new(
            Class::Handover,
            "the image has no EFI system partition, and this machine boots by UEFI",
        )
        .hint("boot the disk from the firmware's menu, or use an image for UEFI machines")
    })?;
    let loader = efi::default_loader(arch).ok_or_else(|| {
        Failure::new(
            Class::Handover,
            format!("the default UEFI boot loader of architecture {arch:?} is not known"),
        )
    })?;
    let place = efi::EspLocation {
        partition_number: esp.number,
        start_lba: esp.start.0 / esp.sector.get(),
        size_lba: esp.size.0 / esp.sector.get(),
        partuuid: esp.partuuid.clone(),
    };
    let order = match wanted.boot_order {
        wire::BootOrder::Unchanged => efi::BootOrder::Unchanged,
        wire::BootOrder::DiskFirst => efi::BootOrder::DiskFirst,
        wire::BootOrder::NetworkFirst => efi::BootOrder::NetworkFirst,
    };
    // BootNext names an entry: without `entry` there must be one already, which only we can have made.
    let number = efi::ensure_entry(root, &place, description, loader, order)?;
    // What was tried with the disk's old content says nothing of the new one.
    if let Err(failure) = forget_disk(root) {
        log::warn!("{}", crate::error::chain(&failure));
    }
    if wanted.boot_next {
        efi::set_boot_next(root, number)?;
    }
    reporter.info(format!(
        "UEFI: Boot{number:04X} {description:?} is {loader} on partition {} ({}){}",
        esp.number,
        esp.partuuid,
        if wanted.boot_next {
            ", next to boot"
        } else {
            ""
        }
    ));
    Ok(())
}

/// Has the firmware boot its entry `number` next, once. That this was tried is noted first: a machine that comes
/// back over the network finds the note.
pub fn disk_once(root: &Path, number: u16, time: u64) -> Result<()> {
    let note = Variable {
        attributes: BOOT_ATTRIBUTES,
        data: time.to_le_bytes().to_vec(),
    };
    efivar::write(root, DISK_TRIED, VENDOR, &note)
        .context(Class::Handover, || {
            format!("writing the UEFI variable {DISK_TRIED}")
        })
        .map_err(|f| f.hint("put the disk first in the boot order, in the firmware's setup"))?;
    efi::set_boot_next(root, number)
}

/// Forgets that booting from the disk was tried.
pub fn forget_disk(root: &Path) -> Result<()> {
    efivar::delete(root, DISK_TRIED, VENDOR).context(Class::Handover, || {
        format!("deleting the UEFI variable {DISK_TRIED}")
    })
}
