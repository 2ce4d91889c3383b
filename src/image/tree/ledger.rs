//! What was written into the files of a tree, remembered while it is written, to be compared with what is read from
//! the medium afterwards: a sum of each file's content, and one of all names and attributes.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use nix::unistd::{Whence, lseek};
use sha2::{Digest as _, Sha256};

use super::census::bump;
use super::copy::{errno, open_here, read_xattrs, unsigned};
use super::refusal::shown;
use crate::error::{Class, Failure, Result};
use crate::sys::beneath::{Root, Walk, kind};
use crate::sys::xattr::Of;
use crate::units::Bytes;

/// Files that are remembered: 72 MiB of memory at most, and ten times what a large desktop has.
const FILES_MAX: usize = 1 << 21;

/// Two descriptors for each level stay open; a process has 1024. No tree that is written here is deeper.
const DEPTH: usize = 300;

/// Files with several names that are known by their number; more are read once for each name.
const LINKS_MAX: usize = 1 << 18;

/// Zeros count by pages: whether they are stored or a hole says nothing about the content.
const PAGE: usize = 4096;

const BUFFER: usize = 256 << 10;

/// The sum of one file's content. 64 bits tell what a disk loses; nobody chooses what it loses.
#[derive(Debug)]
pub struct Content {
    hash: Sha256,
    /// The page that has begun.
    page: Vec<u8>,
    /// Where it begins.
    start: u64,
}

impl Default for Content {
    fn default() -> Content {
        Content {
            hash: Sha256::new(),
            page: Vec::with_capacity(PAGE),
            start: 0,
        }
    }
}

impl Content {
    /// Adds what stands at `offset`. Offsets only rise; what is left out is zeros.
    pub fn put(&mut self, offset: u64, mut data: &[u8]) {
        let page = PAGE as u64;
        let here = self.start.saturating_add(self.page.len() as u64);
        if offset > here {
            let first = offset / page * page;
            if first > self.start {
                self.close();
                self.start = first;
            }
            let zeros = offset.saturating_sub(self.start);
            self.page
                .resize(usize::try_from(zeros).unwrap_or(PAGE).min(PAGE), 0);
        }
        while !data.is_empty() {
            if self.page.len() >= PAGE {
                self.close();
            }
            let room = PAGE.saturating_sub(self.page.len());
            let (now, later) = data.split_at_checked(room).unwrap_or((data, &[]));
            if now.len() == PAGE {
                add(&mut self.hash, self.start, now);
                self.start = self.start.saturating_add(page);
            } else {
                self.page.extend_from_slice(now);
            }
            data = later;
        }
    }

    fn close(&mut self) {
        if !self.page.is_empty() {
            self.page.resize(PAGE, 0);
            add(&mut self.hash, self.start, &self.page);
            self.page.clear();
            self.start = self.start.saturating_add(PAGE as u64);
        }
    }

    /// The sum of a file of `size` bytes.
    pub fn finish(mut self, size: u64) -> u64 {
        self.close();
        self.hash.update(size.to_le_bytes());
        let [word, ..] = words(self.hash);
        word
    }
}

fn add(hash: &mut Sha256, at: u64, page: &[u8]) {
    static ZEROS: [u8; PAGE] = [0; PAGE];
    if page != ZEROS {
        hash.update(at.to_le_bytes());
        hash.update(page);
    }
}

fn words(hash: Sha256) -> [u64; 4] {
    let digest = hash.finalize();
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(digest.chunks_exact(8)) {
        *word = bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
    }
    words
}

/// The contents of all files that were written, by the number of their inode.
#[derive(Debug, Default)]
pub struct Ledger {
    sums: HashMap<u64, u64>,
}

/// Names and attributes of a whole tree, in whatever order they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    entries: u64,
    sum: [u64; 4],
}

/// What was read and found to be as it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Regular files.
    pub files: u64,
    /// Their bytes, holes left out.
    pub bytes: Bytes,
}

impl Ledger {
    /// Remembers the content of a file that is complete. One that is written anew has the same number, or a number
    /// that was another's.
    ///
    /// # Errors
    /// Class space where no more fit.
    pub fn remember(&mut self, inode: u64, sum: u64) -> Result<()> {
        if self.sums.len() >= FILES_MAX && !self.sums.contains_key(&inode) {
            return Err(Failure::new(
                Class::Space,
                format!("the tree has more than {FILES_MAX} files, whose contents are not all remembered"),
            )
            .hint("leave `image.verifyDisk` out, or use an image of a file system with fewer files"));
        }
        self.sums.insert(inode, sum);
        Ok(())
    }

    /// Names and attributes of what is in `root`, as they were just written.
    ///
    /// # Errors
    /// Class media where something cannot be read; bug where a file is not known.
    pub fn list(&self, root: &Root) -> Result<Listing> {
        let mut listing = Listing::default();
        let mut known = |found: &Found<'_>| {
            if found.is_file() && !self.sums.contains_key(&found.stat.st_ino) {
                let path = shown(&found.path());
                return Err(Failure::new(
                    Class::Bug,
                    format!("the content of {path} was not remembered"),
                ));
            }
            listing.add(found)
        };
        walk(root, &mut known)?;
        Ok(listing)
    }

    /// Reads all of `root` and compares it with what was written.
    ///
    /// # Errors
    /// Class media where it differs or cannot be read.
    pub fn compare(&self, root: &Root, written: &Listing) -> Result<Compared> {
        let mut listing = Listing::default();
        let mut compared = Compared::default();
        let mut seen: HashSet<u64> = HashSet::new();
        let mut buffer = vec![0; BUFFER];
        walk(root, &mut |found| {
            listing.add(found)?;
            let inode = found.stat.st_ino;
            if !found.is_file() || seen.contains(&inode) {
                return Ok(());
            }
            if found.stat.st_nlink > 1 && seen.len() < LINKS_MAX {
                seen.insert(inode);
            }
            let sum = found.content(&mut buffer, &mut compared.bytes.0)?;
            bump(&mut compared.files, 1);
            if self.sums.get(&inode) == Some(&sum) {
                return Ok(());
            }
            let path = shown(&found.path());
            Err(differs(format!(
                "the content of {path} is not what was written"
            )))
        })?;
        if listing != *written {
            return Err(differs(format!(
                "of {} entries that were written {} are there, and their names, owners, modes, times or attributes differ",
                written.entries, listing.entries
            )));
        }
        Ok(compared)
    }
}

fn differs(what: String) -> Failure {
    Failure::new(Class::Media, what).hint("the disk loses data: replace it; it does not boot now")
}

impl Listing {
    fn add(&mut self, found: &Found<'_>) -> Result<()> {
        let stat = &found.stat;
        let mut hash = Sha256::new();
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(&found.path());
        let is_directory = kind(stat) == SFlag::S_IFDIR;
        // Of a directory it says how it is stored.
        let size = if is_directory { 0 } else { stat.st_size };
        field(&stat.st_ino.to_le_bytes());
        field(&stat.st_rdev.to_le_bytes());
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            field(&number.to_le_bytes());
        }
        for number in [size, stat.st_mtime, stat.st_mtime_nsec] {
            field(&number.to_le_bytes());
        }
        if kind(stat) == SFlag::S_IFLNK {
            let text = readlinkat(found.directory, found.name).map_err(|e| found.wrong(e))?;
            field(text.as_bytes());
        }
        let of = Of::Entry(found.directory.as_fd(), found.name);
        let mut xattrs = read_xattrs(of).map_err(|e| found.wrong(e))?;
        xattrs.sort_unstable();
        for (name, value) in xattrs {
            field(&name);
            field(&value);
        }
        for (sum, word) in self.sum.iter_mut().zip(words(hash)) {
            *sum = sum.wrapping_add(word);
        }
        bump(&mut self.entries, 1);
        Ok(())
    }
}

/// An entry on the way through a tree.
struct Found<'a> {
    directory: &'a OwnedFd,
    /// Path of the directory.
    parent: &'a [u8],
    name: &'a OsStr,
    stat: FileStat,
}

impl Found<'_> {
    fn is_file(&self) -> bool {
        kind(&self.stat) == SFlag::S_IFREG
    }

    fn path(&self) -> Vec<u8> {
        [self.parent, b"/", self.name.as_bytes()].concat()
    }

    fn wrong(&self, errno: Errno) -> Failure {
        unreadable(&self.path(), errno)
    }

    /// The sum of the content as it is read now.
    fn content(&self, buffer: &mut [u8], bytes: &mut u64) -> Result<u64> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = open_here(self.directory, self.name, flags).map_err(|e| self.wrong(e))?;
        let file = File::from(file);
        let mut content = Content::default();
        let mut at = 0i64;
        while at < self.stat.st_size {
            at = match lseek(&file, at, Whence::SeekData) {
                // A hole up to the end.
                Err(Errno::ENXIO) => break,
                Err(Errno::EINVAL) => at,
                found => found.map_err(|e| self.wrong(e))?,
            };
            let end = match lseek(&file, at, Whence::SeekHole) {
                Err(Errno::EINVAL | Errno::ENXIO) => self.stat.st_size,
                found => found.map_err(|e| self.wrong(e))?.min(self.stat.st_size),
            };
            if end <= at {
                break;
            }
            let (mut offset, stop) = (unsigned(at), unsigned(end));
            while offset < stop {
                let want = usize::try_from(stop.saturating_sub(offset)).unwrap_or(BUFFER);
                let room = buffer.len().min(want);
                let part = buffer.get_mut(..room).unwrap_or_default();
                let got = match file.read_at(part, offset) {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                    Ok(0) => return Err(self.wrong(Errno::EIO)),
                    got => got.map_err(|e| self.wrong(errno(&e)))?,
                };
                content.put(offset, buffer.get(..got).unwrap_or_default());
                offset = offset.saturating_add(got as u64);
                bump(bytes, got as u64);
            }
            at = end;
        }
        Ok(content.finish(unsigned(self.stat.st_size)))
    }
}

fn unreadable(path: &[u8], errno: Errno) -> Failure {
    Failure::new(Class::Media, format!("reading back {}", shown(path)))
        .caused_by(errno)
        .hint("the disk loses data: replace it; it does not boot now")
}

struct Level {
    directory: OwnedFd,
    entries: OwningIter,
    path: Vec<u8>,
}

impl Level {
    fn new(directory: OwnedFd, path: Vec<u8>) -> Result<Level> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // What reads it owns its descriptor.
        let entries = openat(&directory, c".", flags, Mode::empty())
            .and_then(Dir::from_fd)
            .map_err(|e| unreadable(&path, e))?
            .into_iter();
        Ok(Level {
            directory,
            entries,
            path,
        })
    }
}

/// Calls `visit` for the root and everything in it, on one file system.
fn walk(root: &Root, visit: &mut dyn FnMut(&Found<'_>) -> Result<()>) -> Result<()> {
    let top = root.directory(Path::new(""), Walk::NoLinks)?;
    let at = AtFlags::AT_SYMLINK_NOFOLLOW;
    let stat = fstatat(&top, c".", at).map_err(|e| unreadable(b"/", e))?;
    visit(&Found {
        directory: &top,
        parent: b"",
        name: OsStr::new("."),
        stat,
    })?;
    let mut levels = vec![Level::new(top, Vec::new())?];
    while let Some(level) = levels.last_mut() {
        let entry = level.entries.next().transpose();
        let Some(entry) = entry.map_err(|e| unreadable(&level.path, e))? else {
            levels.pop();
            continue;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let name = OsStr::from_bytes(name.to_bytes());
        let path = [&level.path, &b"/"[..], name.as_bytes()].concat();
        let stat = fstatat(&level.directory, name, at).map_err(|e| unreadable(&path, e))?;
        visit(&Found {
            directory: &level.directory,
            parent: &level.path,
            name,
            stat,
        })?;
        if kind(&stat) != SFlag::S_IFDIR {
            continue;
        }
        match open_here(&level.directory, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            // A mount point is no part of it.
            Err(Errno::EXDEV) => {}
            Ok(_) if levels.len() >= DEPTH => return Err(unreadable(&path, Errno::ELOOP)),
            opened => {
                let opened = opened.map_err(|e| unreadable(&path, e))?;
                levels.push(Level::new(opened, path)?);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
