//! The firmware is told to boot the new system: an entry of ours, and BootNext.

use std::path::Path;

use super::efi;
use crate::config::wire;
use crate::error::{Class, Failure, Result};
use crate::plan::step::Esp;
use crate::report::Reporter;

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
