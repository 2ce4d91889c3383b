//! The firmware is told what to boot: an entry of ours, BootNext, and under `bootPolicy: None` an entry that is
//! there already.

use std::path::Path;

use super::default_loader::{self, Look};
use super::efi;
use super::target_disk::TargetDisk;
use crate::config::wire;
use crate::error::{Class, Context as _, Failure, Result, chain};
use crate::host::DiskTries;
use crate::host::boot_entries::{DISK_TRIED, VENDOR, tries_as_bytes};
use crate::plan::step::Esp;
use crate::report::Reporter;
use crate::sys::efivar::{self, BOOT_ATTRIBUTES, Variable};

/// The entry that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What the config says.
    pub efi: wire::Efi,
    /// Its name.
    pub description: &'a str,
    /// Architecture as `uname -m` names it.
    pub arch: &'a str,
    /// Where the boot loader is.
    pub esp: Option<&'a Esp>,
    /// PARTUUIDs whose entries of ours start nothing any more.
    pub replaced: &'a [String],
    /// This try, for a disk that was not written now.
    pub tries: Option<DiskTries>,
}

/// Makes the boot entry and sets BootNext as `wanted` says. `root` is where /sys is. `disk` is the one that was
/// written, where one was: if the firmware takes no entry, the failure says whether it finds the boot loader there
/// by itself.
pub fn entry(
    root: &Path,
    wanted: &Wanted<'_>,
    disk: Option<&TargetDisk>,
    reporter: &Reporter,
) -> Result<()> {
    let esp = wanted.esp.ok_or_else(|| {
        Failure::new(
            Class::Handover,
            "the image has no EFI system partition, and this machine boots by UEFI",
        )
        .hint("boot the disk from the firmware's menu, or use an image for UEFI machines")
    })?;
    let loader = efi::default_loader(wanted.arch).ok_or_else(|| {
        Failure::new(
            Class::Handover,
            format!(
                "the default UEFI boot loader of architecture {:?} is not known",
                wanted.arch
            ),
        )
    })?;
    match wanted.tries {
        // Who cannot count must not restart: that may be for ever.
        Some(tries) => count(root, tries)?,
        // What was tried with the disk's old content says nothing of the new one.
        None => {
            if let Err(failure) = disk.map_or(Ok(()), |_| forget_disk(root)) {
                log::warn!("{}", chain(&failure));
            }
        }
    }
    let number = tell(root, wanted, esp, loader, reporter).map_err(|failure| {
        let hint = match disk.map(|disk| default_loader::look(disk, esp, loader)) {
            Some(Look::Found) => format!(
                "the disk has {loader}, which firmware finds by itself: put the disk first in the boot order"
            ),
            Some(Look::Missing) => format!(
                "the disk has no {loader}, so firmware does not find its boot loader by itself: make a boot entry in the firmware's setup"
            ),
            Some(Look::Unknown(why)) => {
                log::info!("looking for {loader}: {}", chain(&why));
                return failure;
            }
            None => return failure,
        };
        failure.hint(hint)
    })?;
    reporter.info(format!(
        "UEFI: Boot{number:04X} {:?} is {loader} on partition {} ({}){}",
        wanted.description,
        esp.number,
        esp.partuuid,
        if wanted.efi.boot_next {
            ", next to boot"
        } else {
            ""
        }
    ));
    Ok(())
}

fn tell(
    root: &Path,
    wanted: &Wanted<'_>,
    esp: &Esp,
    loader: &str,
    reporter: &Reporter,
) -> Result<u16> {
    let place = efi::EspLocation {
        partition_number: esp.number,
        start_lba: esp.start.0 / esp.sector.get(),
        size_lba: esp.size.0 / esp.sector.get(),
        partuuid: esp.partuuid.clone(),
    };
    let order = match wanted.efi.boot_order {
        wire::BootOrder::Unchanged => efi::BootOrder::Unchanged,
        wire::BootOrder::DiskFirst => efi::BootOrder::DiskFirst,
        wire::BootOrder::NetworkFirst => efi::BootOrder::NetworkFirst,
    };
    // The firmware's memory is small: what starts nothing any more makes room for what does.
    let gone: Vec<String> = wanted
        .replaced
        .iter()
        .filter(|p| !p.eq_ignore_ascii_case(&esp.partuuid))
        .cloned()
        .collect();
    let tell = |changes: Vec<String>| {
        for change in changes {
            reporter.info(format!("UEFI: {change}"));
        }
    };
    tell(efi::remove_ours(root, &gone)?);
    // BootNext names an entry: without `entry` there must be one already, which only we can have made.
    let efi::Ensured { number, changes } =
        efi::ensure_entry(root, &place, wanted.description, loader, order)?;
    tell(changes);
    if wanted.efi.boot_next {
        efi::set_boot_next(root, number)?;
    }
    Ok(number)
}

/// Has the firmware boot its entry `number` next, once. That this was tried is noted first: a machine that comes
/// back over the network finds the note.
pub fn disk_once(root: &Path, number: u16, tries: DiskTries) -> Result<()> {
    count(root, tries)?;
    efi::set_boot_next(root, number)
}

/// Notes how often the disk was tried.
pub fn count(root: &Path, tries: DiskTries) -> Result<()> {
    let note = Variable {
        attributes: BOOT_ATTRIBUTES,
        data: tries_as_bytes(tries),
    };
    efivar::write(root, DISK_TRIED, VENDOR, &note)
        .map_err(|error| efi::refused(DISK_TRIED, note.data.len(), error))
}

/// Forgets that booting from the disk was tried.
pub fn forget_disk(root: &Path) -> Result<()> {
    efivar::delete(root, DISK_TRIED, VENDOR).context(Class::Handover, || {
        format!("deleting the UEFI variable {DISK_TRIED}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::boot_entries;
    use crate::report::Sink;
    use crate::report::jsonl::JsonLines;
    use crate::units::{Bytes, MIB, SectorSize};

    fn firmware() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/firmware/efi/efivars")).unwrap();
        dir
    }

    fn esp(last: &str) -> Esp {
        Esp {
            number: 1,
            start: Bytes(MIB),
            size: Bytes(8 * MIB),
            partuuid: format!("00000000-0000-0000-0000-0000000000{last}"),
            sector: SectorSize::S512,
        }
    }

    fn wanted(esp: &Esp) -> Wanted<'_> {
        Wanted {
            efi: wire::Efi::default(),
            description: "ironroot",
            arch: "x86_64",
            esp: Some(esp),
            replaced: &[],
            tries: None,
        }
    }

    fn install(root: &Path, esp: &Esp, replaced: &[String]) {
        let wanted = Wanted {
            replaced,
            ..wanted(esp)
        };
        entry(root, &wanted, None, &Reporter::default()).unwrap();
    }

    fn ours(root: &Path) -> Vec<String> {
        let entries = efi::entries(root).unwrap();
        entries
            .into_iter()
            .filter_map(|e| e.option?.partuuid())
            .collect()
    }

    #[test]
    fn a_reinstall_leaves_one_entry_whether_the_partition_is_new_or_not() {
        let dir = firmware();
        let root = dir.path();
        let (first, second, elsewhere) = (esp("aa"), esp("bb"), esp("cc"));
        install(root, &elsewhere, &[]);
        install(root, &first, &[]);
        install(root, &first, std::slice::from_ref(&first.partuuid));
        assert_eq!(ours(root), [&*elsewhere.partuuid, &*first.partuuid]);
        install(root, &second, &[first.partuuid.to_uppercase()]);
        assert_eq!(ours(root), [&*elsewhere.partuuid, &*second.partuuid]);
        assert_eq!(efi::boot_order(root).unwrap(), [0, 1]);
        // Somebody may have made it: whoever looks for it finds out where it went.
        let lines = root.join("events");
        let file = std::fs::File::create(&lines).unwrap();
        let reporter = Reporter::new(vec![Sink::JsonLines(JsonLines::new(Box::new(file)))]);
        let gone = [second.partuuid.clone()];
        let wanted = Wanted {
            replaced: &gone,
            ..wanted(&first)
        };
        entry(root, &wanted, None, &reporter).unwrap();
        let said = std::fs::read_to_string(lines).unwrap();
        assert!(
            said.contains(
                r#"UEFI: Boot0001 \"ironroot\" was removed: it named a partition that is gone"#
            ),
            "{said}"
        );
    }

    #[test]
    fn the_disk_is_tried_and_that_is_counted() {
        let dir = firmware();
        let root = dir.path();
        let once = DiskTries {
            since: 1000,
            count: 1,
        };
        assert!(disk_once(root, 0, once).is_err(), "there is no such entry");
        forget_disk(root).unwrap();
        install(root, &esp("aa"), &[]);
        let tried = || boot_entries::read(root).unwrap().disk_tried;
        assert_eq!(tried(), None);
        disk_once(root, 0, once).unwrap();
        assert_eq!(tried(), Some(once));
        let next = efivar::read(root, "BootNext", efivar::GLOBAL).unwrap();
        assert_eq!(next.unwrap().data, [0, 0]);
        // A second network boot goes on counting.
        let esp = esp("aa");
        let twice = DiskTries { count: 2, ..once };
        let wanted = Wanted {
            tries: Some(twice),
            ..wanted(&esp)
        };
        entry(root, &wanted, None, &Reporter::default()).unwrap();
        assert_eq!(tried(), Some(twice));
        forget_disk(root).unwrap();
        forget_disk(root).unwrap();
        assert_eq!(tried(), None);
    }
}
