//! Whether the disk that was written has the boot loader that firmware looks for by itself. Read-only, after the
//! disk is complete: nothing here can fail an installation.

use std::path::Path;

use super::target_disk::TargetDisk;
use crate::error::{Class, Context as _, Failure, Result};
use crate::plan::step::Esp;
use crate::sys::loopdev::{LoopDevice, Range};
use crate::sys::mount::{Flags, Guard};

/// Where the ESP is mounted for a moment.
const PLACE: &str = "/run/ironroot/esp";

/// What was found.
#[derive(Debug)]
pub enum Look {
    /// It is there.
    Found,
    /// It is not.
    Missing,
    /// The ESP cannot be looked into.
    Unknown(Failure),
}

/// Looks for `loader` (such as `\\EFI\\BOOT\\BOOTX64.EFI`) on the ESP of `disk`.
pub fn look(disk: &TargetDisk, esp: &Esp, loader: &str) -> Look {
    match is_there(disk, esp, loader) {
        Ok(true) => Look::Found,
        Ok(false) => Look::Missing,
        Err(failure) => Look::Unknown(failure),
    }
}

/// The disk is claimed, so its partitions cannot be mounted; a loop device over the same bytes can.
fn is_there(disk: &TargetDisk, esp: &Esp, loader: &str) -> Result<bool> {
    let place = Path::new(PLACE);
    std::fs::create_dir_all(place)
        .context(Class::Handover, || format!("making {}", place.display()))?;
    let range = Range {
        start: esp.start,
        length: Some(esp.size),
        sector: esp.sector,
    };
    let device = LoopDevice::attach(disk.file(), &disk.target().path, range)?;
    let flags = Flags::MS_RDONLY | Flags::MS_NOSUID | Flags::MS_NODEV | Flags::MS_NOEXEC;
    let mounted = Guard::attach(device.path(), place, "vfat", flags, "")?;
    let file = place.join(loader.trim_start_matches('\\').replace('\\', "/"));
    let found = file.is_file();
    mounted.unmount()?;
    Ok(found)
}
