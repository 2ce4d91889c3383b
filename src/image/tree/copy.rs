//! Copies a file or a directory with all that is in it from one file system to another, and loses nothing of
//! it: the same attributes as [`super::unpack()`] keeps, from a mounted tree.

mod content;
pub mod running;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use super::attributes::{Failed, Subject};
use super::census::{Census, bump};
use super::ledger::{Content, Ledger};
use super::member::{Time, Xattr};
use super::parents::Id;
use super::refusal::{failed_to_copy, shown};
use crate::error::{Class, Failure, Result};
use crate::sys::beneath::{Root, Walk, kind};
use crate::sys::xattr::{self, Of};

/// Three descriptors for each level stay open; a process has 1024.
const DEPTH: usize = 200;
/// Files whose further names have not all been met yet.
const LINKS_MAX: usize = 1 << 18;
const BUFFER: usize = 256 << 10;

/// Copies what `source` in `from` leads to (a directory or a regular file; links on the way are followed in
/// that root) to `target` in `to`, where no link is followed.
///
/// A directory that exists at `target` is filled and gets the attributes of the source; one that is missing
/// is made, in a parent that exists. Nothing else is ever replaced: what exists already is an error
/// (`EEXIST`). Mount points in the source are not entered: there is an empty directory, or an empty file,
/// instead. Nothing is flushed: that is the caller's (syncfs(2)). `progress` counts the bytes written.
///
/// # Errors
/// Class space where the target is full, with what was needed; media otherwise. What was copied so far stays
/// and is of no use ([`super::remove_children`]).
pub fn copy(
    from: &Root,
    source: &Path,
    to: &Root,
    target: &Path,
    progress: &AtomicU64,
) -> Result<Census> {
    copy_remembering(from, source, to, target, (progress, None))
}

/// The same, and `ledger` remembers the contents.
///
/// # Errors
/// As [`copy`], and as [`Ledger::remember`].
pub fn copy_remembering(
    from: &Root,
    source: &Path,
    to: &Root,
    target: &Path,
    (progress, ledger): (&AtomicU64, Option<&mut Ledger>),
) -> Result<Census> {
    let mut copying = Copying::new(to, progress, ledger);
    tree(&mut copying, from, source, target)?;
    Ok(copying.census)
}

fn tree(copying: &mut Copying<'_>, from: &Root, source: &Path, target: &Path) -> Result<()> {
    let to = copying.to;
    let handle = from.handle(source, Walk::InRoot)?;
    let stat = fstat(&handle).map_err(|errno| {
        failed_to_copy("looking at", source.as_os_str().as_bytes(), errno, 0, from)
    })?;
    let path = target.as_os_str().as_bytes();
    match kind(&stat) {
        SFlag::S_IFDIR => {
            let there = match to.directory(target, Walk::NoLinks) {
                Err(error) if error.errno == Errno::ENOENT => {
                    to.make_directory(target, 0o700, Walk::NoLinks)?
                }
                there => there?,
            };
            // What it hands down to entries in it would be wrong on them.
            let subject = Subject::open(there.as_fd());
            subject
                .drop_stale_xattrs(&[])
                .map_err(|e| copying.not_set(path, &e))?;
            let entries = from.directory(source, Walk::InRoot)?;
            copying.enter(entries, there, path.to_vec())?;
            while !copying.levels.is_empty() {
                copying.step()?;
            }
        }
        SFlag::S_IFREG => {
            let file = from.file(source, Walk::InRoot)?;
            let (parent, name) = to.parent(target, Walk::NoLinks)?;
            copying.file(&file, &stat, &parent, name, path)?;
        }
        _ => {
            return Err(Failure::new(
                Class::Media,
                format!(
                    "copying {}: it is neither a directory nor a regular file",
                    shown(source.as_os_str().as_bytes())
                ),
            ));
        }
    }
    Ok(())
}

struct Level {
    source: OwnedFd,
    /// On a descriptor of its own, as it owns it.
    entries: OwningIter,
    stat: FileStat,
    target: OwnedFd,
    path: Vec<u8>,
}

struct Copying<'a> {
    to: &'a Root,
    progress: &'a AtomicU64,
    ledger: Option<&'a mut Ledger>,
    levels: Vec<Level>,
    /// Of files with several names: where the first one is, and how many names are still to come.
    links: HashMap<Id, (Vec<u8>, u64)>,
    census: Census,
    buffer: Vec<u8>,
    /// Where the source is in use.
    running: Option<running::Running<'a>>,
}

impl<'a> Copying<'a> {
    fn new(to: &'a Root, progress: &'a AtomicU64, ledger: Option<&'a mut Ledger>) -> Copying<'a> {
        Copying {
            to,
            progress,
            ledger,
            levels: vec![],
            links: HashMap::new(),
            census: Census::default(),
            buffer: vec![0; BUFFER],
            running: None,
        }
    }

    /// Where the sum of a file's content is made, if anybody wants it.
    fn sum(&self) -> Option<Content> {
        self.ledger.as_ref().map(|_| Content::default())
    }

    fn remember(&mut self, file: &File, path: &[u8], sum: Option<u64>) -> Result<()> {
        let (Some(ledger), Some(sum)) = (&mut self.ledger, sum) else {
            return Ok(());
        };
        let wrong = |errno| failed_to_copy("looking at", path, errno, 0, self.to);
        ledger.remember(fstat(file).map_err(wrong)?.st_ino, sum)
    }

    fn enter(&mut self, source: OwnedFd, target: OwnedFd, path: Vec<u8>) -> Result<()> {
        let wrong = |errno| failed_to_copy("reading the directory", &path, errno, 0, self.to);
        if self.levels.len() >= DEPTH {
            return Err(wrong(Errno::ELOOP));
        }
        let stat = fstat(&source).map_err(wrong)?;
        let entries = open_here(
            &source,
            OsStr::new("."),
            OFlag::O_RDONLY | OFlag::O_DIRECTORY,
        )
        .and_then(Dir::from_fd)
        .map_err(wrong)?
        .into_iter();
        bump(&mut self.census.entries, 1);
        bump(&mut self.census.directories, 1);
        self.levels.push(Level {
            source,
            entries,
            stat,
            target,
            path,
        });
        Ok(())
    }

    /// Copies one entry of the deepest open directory, or finishes that directory.
    fn step(&mut self) -> Result<()> {
        let Some(mut level) = self.levels.pop() else {
            return Ok(());
        };
        let entry = level.entries.next();
        let wrong = |errno| failed_to_copy("reading the directory", &level.path, errno, 0, self.to);
        let Some(entry) = entry.transpose().map_err(wrong)? else {
            // Last, as each entry changes the times of its directory.
            return self.settle(
                &level.path,
                &level.stat,
                Of::Open(level.source.as_fd()),
                Subject::open(level.target.as_fd()),
            );
        };
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        let below = if name == "." || name == ".." {
            None
        } else {
            self.entry(&level, &name)?
        };
        self.levels.push(level);
        match below {
            Some((source, target, path)) => self.enter(source, target, path),
            None => Ok(()),
        }
    }

    /// Copies an entry; a directory is made and returned, to be entered.
    fn entry(
        &mut self,
        level: &Level,
        name: &OsStr,
    ) -> Result<Option<(OwnedFd, OwnedFd, Vec<u8>)>> {
        let path = if level.path.is_empty() {
            name.as_bytes().to_vec()
        } else {
            [&level.path, &b"/"[..], name.as_bytes()].concat()
        };
        let to = self.to;
        let wrong = |doing| {
            let path = path.clone();
            move |errno| failed_to_copy(doing, &path, errno, 0, to)
        };
        let source = &level.source;
        let stat = match fstatat(source, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(errno) if self.is_gone(errno, &path) => return Ok(None),
            stat => stat.map_err(wrong("looking at"))?,
        };
        if self.leaves_out(&path, &stat) {
            return Ok(None);
        }
        let kind = kind(&stat);
        if kind == SFlag::S_IFSOCK {
            bump(&mut self.census.sockets, 1);
            return Ok(None);
        }
        if kind != SFlag::S_IFDIR && stat.st_nlink > 1 && self.link(&stat, level, name, &path)? {
            return Ok(None);
        }
        match kind {
            SFlag::S_IFDIR => {
                mkdirat(&level.target, name, Mode::S_IRWXU)
                    .map_err(wrong("making the directory"))?;
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
                let target = openat(
                    &level.target,
                    name,
                    flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
                    Mode::empty(),
                )
                .map_err(wrong("opening the directory"))?;
                match open_here(source, name, flags) {
                    Ok(inner) if self.empties(&path) => {
                        bump(&mut self.census.entries, 1);
                        bump(&mut self.census.directories, 1);
                        let subject = Subject::open(target.as_fd());
                        self.settle(&path, &stat, Of::Open(inner.as_fd()), subject)?;
                    }
                    Ok(inner) => return Ok(Some((inner, target, path))),
                    Err(errno) if self.is_gone(errno, &path) => {
                        drop(target);
                        unlinkat(&level.target, name, UnlinkatFlags::RemoveDir)
                            .map_err(wrong("removing the directory"))?;
                    }
                    Err(Errno::EXDEV) => {
                        bump(&mut self.census.entries, 1);
                        bump(&mut self.census.mount_points, 1);
                        let subject = Subject::open(target.as_fd());
                        self.attributes(&path, &stat, &[], subject)?;
                    }
                    Err(errno) => return Err(wrong("reading the directory")(errno)),
                }
            }
            SFlag::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
                match open_here(source, name, flags) {
                    Ok(fd) => {
                        let file = File::from(fd);
                        let stat = self.as_opened(&file, &stat).map_err(wrong("looking at"))?;
                        self.file(&file, &stat, &level.target, name, &path)?;
                    }
                    Err(errno) if self.is_gone_with_links(errno, &stat, &path) => {}
                    Err(Errno::EXDEV) => {
                        bump(&mut self.census.entries, 1);
                        bump(&mut self.census.mount_points, 1);
                        let fd = create(&level.target, name).map_err(wrong("creating the file"))?;
                        let empty = self.sum().map(|content| content.finish(0));
                        self.remember(&fd, &path, empty)?;
                        self.attributes(&path, &stat, &[], Subject::open(fd.as_fd()))?;
                    }
                    Err(errno) => return Err(wrong("opening")(errno)),
                }
            }
            _ => {
                bump(&mut self.census.entries, 1);
                let is_link = kind == SFlag::S_IFLNK;
                if is_link {
                    bump(&mut self.census.symlinks, 1);
                    let text = match readlinkat(source, name) {
                        Err(errno) if self.is_gone_with_links(errno, &stat, &path) => {
                            return Ok(None);
                        }
                        text => text.map_err(wrong("reading the link"))?,
                    };
                    symlinkat(text.as_os_str(), &level.target, name)
                        .map_err(wrong("making the symbolic link"))?;
                } else {
                    let count = if kind == SFlag::S_IFIFO {
                        &mut self.census.fifos
                    } else {
                        &mut self.census.devices
                    };
                    bump(count, 1);
                    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
                    mknodat(&level.target, name, kind, mode, stat.st_rdev)
                        .map_err(wrong("making the device"))?;
                }
                let subject = Subject::entry(level.target.as_fd(), name, is_link);
                self.settle(&path, &stat, Of::Entry(source.as_fd(), name), subject)?;
            }
        }
        Ok(None)
    }

    /// Makes a hard link if another name of the file was copied before; else remembers this one.
    fn link(&mut self, stat: &FileStat, level: &Level, name: &OsStr, path: &[u8]) -> Result<bool> {
        let id = (stat.st_dev, stat.st_ino);
        let Some((first, left)) = self.links.get_mut(&id) else {
            if self.links.len() >= LINKS_MAX {
                return Err(Failure::new(
                    Class::Media,
                    format!("copying {}: too many files have several names", shown(path)),
                ));
            }
            let others = stat.st_nlink.saturating_sub(1);
            self.links.insert(id, (path.to_vec(), others));
            return Ok(false);
        };
        let (parent, first_name) = self
            .to
            .parent(Path::new(OsStr::from_bytes(first)), Walk::NoLinks)?;
        linkat(&parent, first_name, &level.target, name, AtFlags::empty())
            .map_err(|errno| failed_to_copy("making the hard link", path, errno, 0, self.to))?;
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.links.remove(&id);
        }
        bump(&mut self.census.entries, 1);
        bump(&mut self.census.hard_links, 1);
        Ok(true)
    }

    fn file(
        &mut self,
        source: &File,
        stat: &FileStat,
        parent: &OwnedFd,
        name: &OsStr,
        path: &[u8],
    ) -> Result<()> {
        bump(&mut self.census.entries, 1);
        bump(&mut self.census.files, 1);
        let target = create(parent, name)
            .map_err(|errno| failed_to_copy("creating the file", path, errno, 0, self.to))?;
        self.content(source, stat, &target, path)?;
        self.compare(source, stat, path);
        let subject = Subject::open(target.as_fd());
        self.settle(path, stat, Of::Open(source.as_fd()), subject)
    }

    fn settle(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        source: Of<'_>,
        subject: Subject<'_>,
    ) -> Result<()> {
        let xattrs = match read_xattrs(source) {
            Err(errno) if self.is_gone(errno, path) => Vec::new(),
            xattrs => xattrs.map_err(|errno| {
                failed_to_copy("reading the attributes of", path, errno, 0, self.to)
            })?,
        };
        self.attributes(path, stat, &xattrs, subject)
    }

    fn attributes(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        xattrs: &[Xattr],
        subject: Subject<'_>,
    ) -> Result<()> {
        let time = |seconds, nanoseconds| Time {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        let census = &mut self.census;
        let set = subject.owner(stat.st_uid, stat.st_gid).and_then(|()| {
            subject.mode(stat.st_mode & 0o7777)?;
            subject.xattrs(xattrs, census)?;
            subject.times(
                time(stat.st_mtime, stat.st_mtime_nsec),
                Some(time(stat.st_atime, stat.st_atime_nsec)),
            )
        });
        set.map_err(|e| self.not_set(path, &e))
    }

    fn not_set(&self, path: &[u8], failure: &Failed) -> Failure {
        failed_to_copy(failure.doing, path, failure.errno, 0, self.to)
    }
}

pub(super) fn read_xattrs(of: Of<'_>) -> nix::Result<Vec<Xattr>> {
    let mut xattrs = Vec::new();
    for name in xattr::list(of)? {
        if let Some(value) = xattr::get(of, &name)? {
            xattrs.push((name, value));
        }
    }
    Ok(xattrs)
}

fn create(parent: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
}

/// An entry on the same mount as its directory; a mount point is `EXDEV`.
pub(super) fn open_here(directory: &OwnedFd, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    openat2(directory, name, how)
}

pub(super) fn unsigned(offset: i64) -> u64 {
    u64::try_from(offset).unwrap_or(0)
}

pub(super) fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
