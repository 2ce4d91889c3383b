//! Places with different names that are one. On FAT, and in directories of ext4 and f2fs that fold names, `State` and
//! `state` are; two names of one file are as well. By another name a claim would see what belongs to another.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;

use super::place::OWN;
use super::record::{Record, WALK};
use super::source::Source;
use crate::config::request::preserve::overlap;
use crate::error::{Class, Failure, Result};

/// What a path leads to, held open: not every file system has a number for what nobody uses.
struct Led {
    id: (u64, u64),
    _held: OwnedFd,
}

fn led(source: &Source, path: &Path) -> Option<Led> {
    let held = source.root.handle(path, WALK).ok()?;
    let stat = fstat(&held).ok()?;
    Some(Led {
        id: (stat.st_dev, stat.st_ino),
        _held: held,
    })
}

/// Refuses `path` where it is, is in, or is around a place that is known by another name.
pub fn refuse(path: &Path, source: &Source, records: &[Record]) -> Result<()> {
    let own = OWN.iter().map(Path::new);
    let known = records.iter().map(|record| record.path.as_path());
    for other in own.chain(known) {
        // What is plain to see is judged elsewhere.
        if overlap(path, other) {
            continue;
        }
        let depth = path.components().count().min(other.components().count());
        let top = |path: &Path| path.components().take(depth).collect::<PathBuf>();
        let (Some(one), Some(two)) = (led(source, &top(path)), led(source, &top(other))) else {
            continue;
        };
        if one.id == two.id {
            return Err(Failure::new(
                Class::Preserve,
                format!(
                    "{} on {} is the same place as {}, or one is inside the other: its file system does not tell the names apart",
                    path.display(),
                    source.name,
                    other.display()
                ),
            )
            .hint(format!("name it as before, {}, or name another `subdir`", other.display())));
        }
    }
    Ok(())
}
