//! Whose the records on a source are. Whoever owns the root of a file system can rename what is in it: records of its making
//! would tell ironroot to erase what is not its own.

use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::stat::{FileStat, Mode, fstat};
use nix::sys::statfs::{FsType, MSDOS_SUPER_MAGIC, fstatfs};

use crate::error::{Class, Context as _, Failure, Result};

/// File systems without owners, whose mount says what is shown (linux/magic.h; fs/ntfs3/super.c).
const OWNERLESS: [FsType; 3] = [MSDOS_SUPER_MAGIC, FsType(0x2011_bab0), FsType(0x7366_746e)];

/// Refuses what somebody else than root made or can write: `fd` is `path` on `source`.
///
/// # Errors
/// Class preserve, with whose it is.
pub fn must_be_roots(fd: &impl AsFd, path: &Path, source: &str) -> Result<()> {
    let what = || format!("looking at {} on {source}", path.display());
    let stat = fstat(fd).context(Class::Preserve, what)?;
    let Some(why) = mistrust(&stat) else {
        return Ok(());
    };
    let kind = fstatfs(fd)
        .context(Class::Preserve, what)?
        .filesystem_type();
    if OWNERLESS.contains(&kind) {
        return Ok(());
    }
    Err(Failure::new(
        Class::Preserve,
        format!(
            "{} on {source} {why}: what it says may not be ironroot's",
            path.display()
        ),
    )
    .hint(
        "look who could write to the root of that file system (an entry without `subdir` gives it to its `owner`), put the records back, or remove .ironroot where this machine may use what is there",
    ))
}

/// Why `stat` is no record of root's.
fn mistrust(stat: &FileStat) -> Option<String> {
    let others = Mode::S_IWGRP.union(Mode::S_IWOTH);
    if stat.st_uid != 0 {
        return Some(format!("belongs to user {}", stat.st_uid));
    }
    Mode::from_bits_truncate(stat.st_mode)
        .intersects(others)
        .then(|| {
            format!(
                "can be written by others (mode {:04o})",
                stat.st_mode & 0o7777
            )
        })
}
