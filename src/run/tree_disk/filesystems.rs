//! The file systems of a fresh table.

use std::time::Duration;

use super::esp::{self, Esp};
use crate::error::Result;
use crate::plan::tree_root::{NewFileSystem, NewFileSystemKind};
use crate::report::Reporter;
use crate::run::partitions::Shared;
use crate::sys::tool::{self, Tool};

/// The largest disks with the slowest writes take minutes.
const MAKE: Duration = Duration::from_secs(30 * 60);

/// Features that the e2fsck of an older system does not know (e2fsprogs before 1.47), which would stop its boot.
const WITHOUT: &str = "^orphan_file,^metadata_csum_seed";

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
        }
        reporter.info(format!("made {new}"));
    }
    Ok(())
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
