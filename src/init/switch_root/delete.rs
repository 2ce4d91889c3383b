//! Freeing the memory of the initrd: its files are deleted once nothing needs them any more.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::stat::fstat;
use nix::sys::statfs::{FsType, TMPFS_MAGIC, fstatfs};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// linux/magic.h
const RAMFS_MAGIC: u32 = 0x8584_58f6;

/// Deeper than any initrd; each level holds a descriptor.
const MAX_DEPTH: usize = 200;

/// Whether `directory` is on a file system that holds its files in memory only: what an initrd is unpacked
/// into, and nothing else that may ever be deleted.
pub fn is_in_memory(directory: impl AsFd) -> bool {
    fstatfs(directory).is_ok_and(|fs| {
        let FsType(magic) = fs.filesystem_type();
        let FsType(tmpfs) = TMPFS_MAGIC;
        // The type of the field differs between C libraries.
        magic == tmpfs || u32::try_from(magic).is_ok_and(|m| m == RAMFS_MAGIC)
    })
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Files and directories that are gone.
    pub gone: u64,
    /// Those that are still there: on other file systems, or mounted on.
    pub left: u64,
}

struct Level {
    directory: OwnedFd,
    /// What is left to do here, each name once; a directory comes back once its content has been gone through.
    names: Vec<(CString, Stage)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fresh,
    GoneThrough,
}

/// Deletes what is in `root`, a directory of a file system in memory. Symbolic links are deleted, not followed;
/// another mount is not entered, whatever its file system is.
pub fn children(root: OwnedFd) -> Deleted {
    let mut deleted = Deleted::default();
    if !is_in_memory(&root) {
        return deleted;
    }
    let Ok(device) = fstat(&root).map(|s| s.st_dev) else {
        return deleted;
    };
    let mut levels = vec![Level::of(root)];
    // Every name is turned to at most twice, so this ends.
    while let Some(level) = levels.last_mut() {
        let Some((name, stage)) = level.names.pop() else {
            levels.pop();
            continue;
        };
        let delete = |flag| unlinkat(&level.directory, name.as_c_str(), flag);
        let result = match stage {
            Stage::Fresh => match delete(UnlinkatFlags::NoRemoveDir) {
                Err(Errno::EISDIR) => delete(UnlinkatFlags::RemoveDir),
                other => other,
            },
            Stage::GoneThrough => delete(UnlinkatFlags::RemoveDir),
        };
        if result.is_ok() {
            deleted.gone += 1;
            continue;
        }
        let inner = (stage == Stage::Fresh && result == Err(Errno::ENOTEMPTY))
            .then(|| level.inner(&name, device))
            .flatten();
        match inner {
            Some(inner) if levels.len() < MAX_DEPTH => {
                if let Some(level) = levels.last_mut() {
                    level.names.push((name, Stage::GoneThrough));
                }
                levels.push(inner);
            }
            _ => deleted.left += 1,
        }
    }
    deleted
}

impl Level {
    fn of(directory: OwnedFd) -> Level {
        let names = Dir::openat(
            &directory,
            ".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            nix::sys::stat::Mode::empty(),
        )
        .map(|mut dir| {
            dir.iter()
                .filter_map(|entry| entry.ok().map(|e| e.file_name().to_owned()))
                .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
                .map(|name| (name, Stage::Fresh))
                .collect()
        });
        Level {
            directory,
            names: names.unwrap_or_default(),
        }
    }

    /// The directory `name`, unless it belongs to another mount or file system.
    fn inner(&self, name: &CString, device: libc::dev_t) -> Option<Level> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS);
        openat2(&self.directory, name.as_c_str(), how)
            .ok()
            .filter(|fd| fstat(fd).is_ok_and(|s| s.st_dev == device))
            .map(Level::of)
    }
}
