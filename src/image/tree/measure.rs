//! How much memory a mounted tree takes when it is copied to a tmpfs.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use nix::sys::statfs::{FsType, fstatfs};

use super::census::bump;
use super::copy::running::LeftOut;
use super::parents::Id;
use super::refusal::failed_to_copy;
use crate::error::Result;
use crate::sys::beneath::{Root, Walk, kind};
use crate::units::Bytes;

/// What a tree takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Of its files, each in whole pages, holes left out.
    pub bytes: Bytes,
    /// Files, directories and all else.
    pub inodes: u64,
}

/// Two descriptors for each level stay open; a process has 1024.
const DEPTH: usize = 200;

/// Files with several names that are known by their number; more are counted once for each name.
const LINKS_MAX: usize = 1 << 18;

/// A page of any architecture that matters here; with larger ones a few bytes are missed for each file.
const PAGE: u64 = 4096;

/// The number of blocks says how large the data is after compression (Linux: include/uapi/linux/magic.h).
const EROFS: FsType = FsType(0xe0f5_e1e2);

/// The size of all that is in `root`, on one file system. Ends early, with what it has by then, at more than
/// `limit` inodes.
///
/// # Errors
/// Class media where something cannot be read.
pub fn measure(root: &Root, limit: u64) -> Result<Size> {
    measure_but(root, limit, None)
}

/// The same of a tree in use, without what [`super::copy_running`] leaves out.
///
/// # Errors
/// As [`measure`].
pub fn measure_running(root: &Root, limit: u64, left_out: &LeftOut) -> Result<Size> {
    measure_but(root, limit, Some(left_out))
}

fn measure_but(root: &Root, limit: u64, running: Option<&LeftOut>) -> Result<Size> {
    let wrong = |errno| failed_to_copy("reading the directory", b"/", errno, 0, root);
    let top = root.directory(Path::new("/"), Walk::InRoot)?;
    let blocks_are_data = fstatfs(&top).map_err(wrong)?.filesystem_type() != EROFS;
    let mut size = Size {
        inodes: 1,
        ..Size::default()
    };
    let mut links: HashSet<Id> = HashSet::new();
    let mut levels = vec![open(top).map_err(wrong)?];
    loop {
        let depth = levels.len();
        let Some((directory, entries)) = levels.last_mut() else {
            break;
        };
        let Some(entry) = entries.next().transpose().map_err(wrong)? else {
            levels.pop();
            continue;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        let wrong = |errno| failed_to_copy("looking at", name.to_bytes(), errno, 0, root);
        let stat = match fstatat(&*directory, name, flags) {
            Err(Errno::ENOENT) if running.is_some() => continue,
            stat => stat.map_err(wrong)?,
        };
        if running.is_some_and(|left_out| left_out.has(&stat)) {
            continue;
        }
        let kind = kind(&stat);
        if kind != SFlag::S_IFDIR && stat.st_nlink > 1 {
            let id = (stat.st_dev, stat.st_ino);
            if links.contains(&id) {
                continue;
            }
            if links.len() < LINKS_MAX {
                links.insert(id);
            }
        }
        bump(&mut size.inodes, 1);
        if size.inodes > limit {
            break;
        }
        bump(
            &mut size.bytes.0,
            match kind {
                SFlag::S_IFREG => data(&stat, blocks_are_data),
                // Linux: mm/shmem.c, SHORT_SYMLINK_LEN.
                SFlag::S_IFLNK if stat.st_size >= 128 => PAGE,
                _ => 0,
            },
        );
        let stays_empty = running.is_some() && depth == 1 && LeftOut::empties(name.to_bytes());
        if kind == SFlag::S_IFDIR && !stays_empty {
            let how = OpenHow::new()
                .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
                .resolve(
                    ResolveFlag::RESOLVE_BENEATH
                        | ResolveFlag::RESOLVE_NO_SYMLINKS
                        | ResolveFlag::RESOLVE_NO_XDEV,
                );
            match openat2(&*directory, name, how) {
                // A mount point: not entered.
                Err(Errno::EXDEV) => {}
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) if running.is_some() => {}
                Ok(_) if levels.len() >= DEPTH => return Err(wrong(Errno::ELOOP)),
                opened => levels.push(opened.and_then(open).map_err(wrong)?),
            }
        }
    }
    Ok(size)
}

/// A directory, and what reads it, on a descriptor of its own, as it owns it.
fn open(directory: OwnedFd) -> nix::Result<(OwnedFd, OwningIter)> {
    fstat(&directory)?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let again = nix::fcntl::openat(&directory, c".", flags, nix::sys::stat::Mode::empty())?;
    Ok((directory, Dir::from_fd(again)?.into_iter()))
}

fn data(stat: &FileStat, blocks_are_data: bool) -> u64 {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let stored = u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512);
    let data = if blocks_are_data {
        size.min(stored)
    } else {
        size
    };
    data.div_ceil(PAGE).saturating_mul(PAGE)
}
