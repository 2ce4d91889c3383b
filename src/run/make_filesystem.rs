//! File systems on partitions that were added: after the verdict, before the disk can boot.

use std::time::Duration;

use super::install::Working;
use crate::config::request::preserve::NewFileSystem;
use crate::error::{Class, Failure, Result};
use crate::report::Reporter;
use crate::sys::tool::{self, Tool};

/// The largest file systems with the slowest disks take minutes.
const MAKE: Duration = Duration::from_secs(30 * 60);

/// Fails where the program for it is missing: to be asked before anything is erased.
pub fn can_be_made(kind: NewFileSystem) -> Result<()> {
    program(kind).require().map(drop)
}

/// The program that makes it.
pub const fn program(kind: NewFileSystem) -> Tool {
    match kind {
        NewFileSystem::Ext4 => Tool::Mke2fs,
        NewFileSystem::Xfs => Tool::MkfsXfs,
        NewFileSystem::Vfat => Tool::MkfsVfat,
    }
}

/// Makes a file system on the partition that was added as `label`. It gets this label too, where it has room.
pub fn on_added(
    working: &Working,
    label: &str,
    kind: NewFileSystem,
    reporter: &Reporter,
) -> Result<()> {
    let added = working.layout().added.iter().find(|a| a.label == label);
    let added = added.ok_or_else(|| {
        Failure::new(
            Class::Bug,
            format!("partition {label:?} is not one that was added"),
        )
    })?;
    let node = working.shared().node(added.number)?;
    reporter.info(format!(
        "making {} on partition {} {label:?}",
        kind.name(),
        added.number
    ));
    let path = node.path.to_string_lossy();
    let (labelled, limit): (&[&str], usize) = match kind {
        NewFileSystem::Ext4 => (&["-q", "-F", "-t", "ext4", "-L", label, &path], 16),
        NewFileSystem::Xfs => (&["-q", "-f", "-L", label, &path], 12),
        // FAT labels are upper case, in a code page.
        NewFileSystem::Vfat => (&[], 0),
    };
    let plain: &[&str] = match kind {
        NewFileSystem::Ext4 => &["-q", "-F", "-t", "ext4", &path],
        NewFileSystem::Xfs => &["-q", "-f", &path],
        NewFileSystem::Vfat => &["-I", &path],
    };
    let fits = label.len() <= limit && !label.starts_with('-') && !label.contains(' ');
    tool::run(program(kind), if fits { labelled } else { plain }, MAKE)
        .map(drop)
        .map_err(|f| {
            Failure::new(
                Class::Media,
                format!("partition {} {label:?} has no {}", added.number, kind.name()),
            )
            .caused_by(f)
            .hint("the disk does not boot; give the partition more room or another file system, then install again")
        })
}
