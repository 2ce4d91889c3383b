//! Removes what is in a directory, however much and however deep, without recursion and without leaving the
//! file system: what is mounted below stays, and so do the directories that lead to it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::census::bump;
use super::parents::Id;
use super::refusal::shown;
use crate::error::{Class, Failure, Result};
use crate::sys::beneath;
use crate::sys::inode_flags::{self, APPEND, IMMUTABLE};

/// Open directories at a time. What lies deeper is moved up first.
const DEPTH: usize = 64;

/// What [`remove_children`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Entries that are gone.
    pub removed: u64,
    /// Mount points, which stay.
    pub mount_points: u64,
}

/// Tells of an entry, by its directory and its name, that it stays.
pub(super) type Spare<'a> = &'a dyn Fn(Id, &OsStr) -> bool;

/// Removes everything in `directory`, which itself stays; `name` stands for it in messages. Mount points
/// (bind mounts too) stay as they are, with what is mounted on them.
pub fn remove_children(directory: &impl AsFd, name: &Path) -> Result<Removed> {
    clear(directory, name, None)
}

/// As [`remove_children`], but what `spare` names stays. A spared directory is still emptied of what is not
/// spared in it, and a directory in which something is spared stays as well.
pub(super) fn clear(
    directory: &impl AsFd,
    name: &Path,
    spare: Option<Spare<'_>>,
) -> Result<Removed> {
    let failed = |errno: Errno| {
        Failure::new(
            Class::Media,
            format!("removing what is in {}", shown(name.as_os_str().as_bytes())),
        )
        .caused_by(errno)
    };
    let top = open(directory, OsStr::new(".")).map_err(failed)?;
    let mut sweep = Sweep {
        spare,
        moved: 0,
        done: Removed::default(),
        levels: vec![],
    };
    sweep.enter(top, OsString::new(), true).map_err(failed)?;
    while !sweep.levels.is_empty() {
        sweep.step().map_err(failed)?;
    }
    Ok(sweep.done)
}

struct Level {
    directory: OwnedFd,
    /// On a descriptor of its own, as it owns it.
    entries: OwningIter,
    id: Id,
    /// Its name in the level above.
    name: OsString,
    /// Whether it goes itself when it is empty.
    stays: bool,
    /// Whether this pass over its entries removed anything: another one may then find more, as a file
    /// system may pass over entries while others go.
    progress: bool,
    /// Mount points that this pass met, here and below.
    mount_points: u64,
}

struct Sweep<'a> {
    spare: Option<Spare<'a>>,
    moved: u64,
    done: Removed,
    levels: Vec<Level>,
}

impl Sweep<'_> {
    fn enter(&mut self, fd: OwnedFd, name: OsString, stays: bool) -> nix::Result<()> {
        let stat = fstat(&fd)?;
        self.levels.push(Level {
            entries: entries(&fd)?,
            directory: fd,
            id: (stat.st_dev, stat.st_ino),
            name,
            stays,
            progress: false,
            mount_points: 0,
        });
        Ok(())
    }

    /// Deals with one entry of the deepest open directory, or leaves that directory.
    fn step(&mut self) -> nix::Result<()> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(());
        };
        let Some(entry) = level.entries.next() else {
            return self.leave();
        };
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        if name == "." || name == ".." {
            return Ok(());
        }
        let spared = self.spare.is_some_and(|spare| spare(level.id, &name));
        let is_directory = match entry.file_type() {
            Some(nix::dir::Type::Directory) => true,
            // Not every file system tells the type; unlinkat(2) below does.
            None if spared => open(&level.directory, &name).is_ok(),
            Some(_) | None => false,
        };
        if spared && !is_directory {
            return Ok(());
        }
        if !is_directory {
            match unlink(&level.directory, &name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) => {
                    level.progress = true;
                    bump(&mut self.done.removed, 1);
                    return Ok(());
                }
                Err(Errno::ENOENT) => return Ok(()),
                Err(Errno::EBUSY) => {
                    self.mount_point();
                    return Ok(());
                }
                Err(Errno::EISDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.directory(name, spared)
    }

    fn directory(&mut self, name: OsString, spared: bool) -> nix::Result<()> {
        let depth = self.levels.len();
        let (Some(top), Some(level)) = (self.levels.first(), self.levels.last()) else {
            return Ok(());
        };
        let fd = match open(&level.directory, &name) {
            Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EXDEV) => {
                self.mount_point();
                return Ok(());
            }
            fd => fd?,
        };
        if depth < DEPTH {
            return self.enter(fd, name, spared);
        }
        if self.spare.is_some() {
            return Err(Errno::ELOOP);
        }
        // Too deep to be held open: it goes to the top, where a further pass finds it.
        self.moved = self.moved.saturating_add(1);
        let place = OsString::from(format!(".ironroot-removing-{}", self.moved));
        let rename = || {
            renameat(
                &level.directory,
                name.as_os_str(),
                &top.directory,
                place.as_os_str(),
            )
        };
        let mut renamed = rename();
        if renamed == Err(Errno::EPERM) && unprotect(&level.directory, &name)? {
            renamed = rename();
        }
        match renamed {
            // A name that is taken already is left of an earlier attempt: the next pass tries the next number.
            Ok(()) | Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            Err(errno) => return Err(errno),
        }
        if let Some(top) = self.levels.first_mut() {
            top.progress = true;
        }
        if let Some(level) = self.levels.last_mut() {
            level.progress = true;
        }
        Ok(())
    }

    /// The deepest open directory has no further entry.
    fn leave(&mut self) -> nix::Result<()> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(());
        };
        if std::mem::take(&mut level.progress) {
            level.entries = entries(&level.directory)?;
            level.mount_points = 0;
            return Ok(());
        }
        let Some(left) = self.levels.pop() else {
            return Ok(());
        };
        let Some(above) = self.levels.last_mut() else {
            self.done.mount_points = left.mount_points;
            return Ok(());
        };
        bump(&mut above.mount_points, left.mount_points);
        if left.stays {
            return Ok(());
        }
        match unlink(&above.directory, &left.name, UnlinkatFlags::RemoveDir) {
            Ok(()) => {
                above.progress = true;
                bump(&mut self.done.removed, 1);
            }
            // Something in it stays.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOENT) => {}
            Err(Errno::EBUSY) => self.mount_point(),
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn mount_point(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            bump(&mut level.mount_points, 1);
        }
    }
}

/// unlinkat(2), also of what a flag of chattr(1) protects, or its directory: who had the file system before was root on
/// it. The flags are taken away once, and it is tried again once.
pub fn unlink(directory: &OwnedFd, name: &OsStr, how: UnlinkatFlags) -> nix::Result<()> {
    match unlinkat(directory, name, how) {
        Err(Errno::EPERM) if unprotect(directory, name)? => unlinkat(directory, name, how),
        done => done,
    }
}

const PLAIN: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_CLOEXEC);

/// Takes away what protects an entry, and its directory, from being removed; whether there was anything.
fn unprotect(directory: &OwnedFd, name: &OsStr) -> nix::Result<bool> {
    // A descriptor that only names the directory cannot be asked.
    let around = openat(directory, ".", PLAIN, Mode::empty())?;
    let around = inode_flags::clear(around.as_fd(), IMMUTABLE | APPEND)?;
    let stat = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    // Nothing else can have them, and opening it might do something.
    if !matches!(beneath::kind(&stat), SFlag::S_IFREG | SFlag::S_IFDIR) {
        return Ok(around);
    }
    let entry = openat(directory, name, PLAIN, Mode::empty())?;
    Ok(inode_flags::clear(entry.as_fd(), IMMUTABLE | APPEND)? || around)
}

fn entries(directory: &OwnedFd) -> nix::Result<OwningIter> {
    Ok(Dir::from_fd(open(directory, OsStr::new("."))?)?.into_iter())
}

/// A directory on the same mount as its parent; a mount point is `EXDEV`.
fn open(parent: &impl AsFd, name: &OsStr) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    openat2(parent, name, how)
}
