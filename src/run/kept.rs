//! Kept partitions on the locked disk: still what the plan was made for, and their entries byte for byte.

use super::target_disk::TargetDisk;
use crate::error::{Class, Failure, Result};
use crate::host::tables::{self, TablePartition};
use crate::plan::keep::describe;
use crate::plan::layout::entry::{Entries, Entry};

/// The entries of `kept`, in this order.
pub fn entries(disk: &TargetDisk, kept: &[TablePartition]) -> Result<Vec<Entry>> {
    if kept.is_empty() {
        return Ok(Vec::new());
    }
    let target = disk.target();
    let changed = |what: String| {
        Failure::new(
            Class::Refused,
            format!(
                "the partition table of {} is not what the plan was made for any more: {what}",
                target.path.display()
            ),
        )
        .hint("run again: something else changed the disk meanwhile")
    };
    let now = tables::read(&mut disk.file(), target.size, target.sector);
    let raw = tables::gpt_entries(&mut disk.file(), target.size, target.sector);
    let raw = Entries::read(&raw.ok_or_else(|| changed("it cannot be read".to_owned()))?);
    kept.iter()
        .map(|wanted| {
            let there = now.partitions().contains(wanted);
            let entry = raw.get(wanted.number).filter(Entry::is_used);
            entry
                .filter(|_| there)
                .ok_or_else(|| changed(format!("{} is gone", describe(wanted))))
        })
        .collect()
}
