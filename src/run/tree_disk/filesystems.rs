//! The file systems of a fresh table.

use std::time::Duration;

use super::esp::{self, Esp};
use crate::error::{Failure, Result};
use crate::plan::tree_root::{NewFileSystem, NewFileSystemKind};
use crate::report::Reporter;
use crate::run::partitions::Shared;
use crate::sys::tool::{self, Tool};

/// The largest disks with the slowest writes take minutes.
const MAKE: Duration = Duration::from_secs(30 * 60);

/// Features that the e2fsck of an older system does not know (e2fsprogs before 1.47), which would stop its boot.
const WITHOUT: &str = "^orphan_file,^metadata_csum_seed";

/// Features of xfs since 2022 (`nrext64`, xfsprogs 5.19) and 2024 (the others, 6.10 and later).
const OLD_XFS: [&str; 6] = ["-i", "nrext64=0", "-i", "exchange=0", "-n", "parent=0"];

/// Makes each of `all` on its partition.
pub fn make(shared: &Shared, all: &[NewFileSystem], reporter: &Reporter) -> Result<()> {
    for new in all {
        let node = shared.node(new.partition)?;
        match new.kind {
            NewFileSystemKind::Fat => {
                let sector = shared.disk()?.target().sector;
                // Empty for now: a tree's own script may fill it.
                Esp::new(&esp::open(node)?, node, sector, &new.uuid)?.finish()?;
            }
            NewFileSystemKind::Ext4 => ext4(&node.path.to_string_lossy(), new)?,
            NewFileSystemKind::Xfs => xfs(&node.path.to_string_lossy(), new)?,
        }
        reporter.info(format!("made {new}"));
    }
    Ok(())
}

/// Fails where the program for it is missing: to be asked before anything is erased.
pub fn can_be_made(kind: NewFileSystemKind) -> Result<()> {
    match kind {
        NewFileSystemKind::Fat => Ok(()),
        NewFileSystemKind::Ext4 => Tool::Mke2fs.require().map(drop),
        NewFileSystemKind::Xfs => Tool::MkfsXfs.require().map(drop),
    }
}

/// Without the features that neither the kernels of older systems nor GRUB 2.06 know.
fn xfs(path: &str, new: &NewFileSystem) -> Result<()> {
    let uuid = format!("uuid={}", new.uuid);
    let common = ["-q", "-f", "-L", new.label, "-m", &uuid];
    let with = |more: &[&str]| {
        let args: Vec<&str> = common.iter().chain(more).chain(&[path]).copied().collect();
        tool::run(Tool::MkfsXfs, &args, MAKE)
    };
    // It tells its usage then, and of that the end is kept.
    let unknown = |failure: &Failure| failure.to_string().contains("<value> is xxx");
    let mut last = with(&OLD_XFS);
    // A mkfs.xfs that does not know a feature does not switch it on either.
    for keep in [2, 0] {
        match &last {
            Err(failure) if unknown(failure) => {
                last = with(OLD_XFS.get(..keep).unwrap_or_default());
            }
            _ => break,
        }
    }
    last.map(drop)
}

fn ext4(path: &str, new: &NewFileSystem) -> Result<()> {
    let common = ["-q", "-F", "-t", "ext4", "-L", new.label, "-U", &new.uuid];
    let with = |more: &[&str]| {
        let args: Vec<&str> = common.iter().chain(more).chain(&[path]).copied().collect();
        tool::run(Tool::Mke2fs, &args, MAKE)
    };
    // A mke2fs that does not know the features does not switch them on either.
    with(&["-O", WITHOUT]).or_else(|first| {
        if first.to_string().contains("ilesystem option set")
            || first.to_string().contains("feature")
        {
            with(&[])
        } else {
            Err(first)
        }
    })?;
    Ok(())
}
