//! The kernel's view of the new partitions: judged by what sysfs lists, not by what an ioctl returned (a
//! kernel without a parser for the table answers BLKRRPART with success and drops every partition).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::target_disk::TargetDisk;
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::DevNum;
use crate::host::tables::TablePartition;
use crate::sys::block;
use crate::units::Bytes;

/// A partition as the kernel has it: offset and length.
pub(super) type View = BTreeMap<u32, (Bytes, Bytes)>;

/// BLKRRPART fails with `EBUSY` while somebody (udevd) looks at a partition; that passes.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// Makes the kernel see `partitions` on `disk`: by its own parser, else one by one.
pub fn reread(disk: &TargetDisk, partitions: &[TablePartition]) -> Result<()> {
    let Some(dev) = disk.target().dev else {
        return Ok(());
    };
    // An extended partition is listed with another length, and its logical partitions are not in the head
    // that the table was read from: with one of these the kernel's own parser has the last word.
    let whole = !partitions.iter().any(|p| p.kind.is_extended());
    let wanted: View = partitions
        .iter()
        .filter(|p| !p.kind.is_extended())
        .map(|p| (p.number, (p.start, p.size)))
        .collect();
    let right = |view: &View| {
        wanted.iter().all(|(n, place)| view.get(n) == Some(place))
            && (!whole || view.len() == wanted.len())
    };
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let _ = block::reread_partitions(disk.file());
        let have = view(dev)?;
        if right(&have) || (whole && edit(disk, &have, &wanted).is_ok() && right(&view(dev)?)) {
            return Ok(());
        }
    }
    let have = view(dev)?;
    Err(Failure::new(
        Class::Media,
        format!(
            "the kernel lists partitions {:?} of {}, its table has {:?}",
            have.keys().collect::<Vec<_>>(),
            disk.target().path.display(),
            wanted.keys().collect::<Vec<_>>()
        ),
    )
    .hint("the disk is installed; the kernel sees its partitions after a reboot"))
}

/// Removes what is wrong and adds what is missing (BLKPG).
fn edit(disk: &TargetDisk, have: &View, wanted: &View) -> std::io::Result<()> {
    for number in have
        .iter()
        .filter(|(n, place)| wanted.get(n) != Some(place))
        .map(|(n, _)| *n)
    {
        block::delete_partition(disk.file(), number)?;
    }
    for (number, (start, size)) in wanted
        .iter()
        .filter(|(n, place)| have.get(n) != Some(place))
    {
        block::add_partition(disk.file(), *number, *start, *size)?;
    }
    Ok(())
}

/// The partitions that sysfs lists. Its numbers are in units of 512 bytes whatever the sector size
/// (Documentation/ABI/stable/sysfs-block).
pub(super) fn view(dev: DevNum) -> Result<View> {
    let directory = Path::new("/sys/dev/block").join(dev.to_string());
    let entries = std::fs::read_dir(&directory).context(Class::Media, || {
        format!("listing partitions in {}", directory.display())
    })?;
    let number = |path: &Path, file: &str| -> Option<u64> {
        std::fs::read_to_string(path.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    Ok(entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let n = u32::try_from(number(&path, "partition")?).ok()?;
            let start = number(&path, "start")?.checked_mul(512)?;
            let size = number(&path, "size")?.checked_mul(512)?;
            Some((n, (Bytes(start), Bytes(size))))
        })
        .collect())
}
