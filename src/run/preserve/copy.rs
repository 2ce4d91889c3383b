//! Copies a tree from the image to a source with all that a file is: owner, mode, times, extended attributes (ACLs
//! and capabilities are some), hard links, holes. Without recursion, by descriptors only, and without leaving the
//! image's file system.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{
    FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, fstat, fstatat,
    futimens, mkdirat, mknodat, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, Whence, fchown, fchownat, linkat, lseek64, symlinkat};

use crate::error::{Class, Failure, Result};
use crate::sys::beneath;
use crate::sys::xattr::{self, Of};

/// Open directories at a time, two for each level.
const DEPTH: usize = 200;

/// Files with several names that are kept in mind.
const LINKS: usize = 1 << 20;

/// What could not be kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Extended attributes that the source's file system does not take.
    pub attributes: u64,
    /// Sockets, which are nothing without the program that made them, and what is mounted in the image.
    pub passed_over: u64,
}

/// Copies what is in the directory `from` into the directory `to`, which is empty, and gives `to` the attributes
/// of `from`.
pub fn directory(from: &OwnedFd, to: &OwnedFd) -> Result<Lost> {
    let mut copy = Copy {
        lost: Lost::default(),
        links: HashMap::new(),
        levels: Vec::new(),
        device: 0,
    };
    copy.run(from, to).map_err(|errno| {
        let at: PathBuf = copy.levels.iter().map(|l| l.name.as_os_str()).collect();
        failure(errno, &at)
    })?;
    Ok(copy.lost)
}

/// Copies the content and the attributes of the file `from` into the file `to`, which is empty.
pub fn file(from: &mut File, to: &mut File) -> Result<Lost> {
    let mut lost = Lost::default();
    let stat = fstat(&*from).map_err(|errno| failure(errno, Path::new("")))?;
    content(from, to, &stat)
        .and_then(|()| attributes(&*from, &*to, &stat, &mut lost))
        .map_err(|errno| failure(errno, Path::new("")))?;
    Ok(lost)
}

fn failure(errno: Errno, at: &Path) -> Failure {
    let full = matches!(errno, Errno::ENOSPC | Errno::EDQUOT);
    let class = if full { Class::Space } else { Class::Preserve };
    let place = if at.as_os_str().is_empty() {
        String::new()
    } else {
        format!(" (in {})", at.display())
    };
    let failure =
        Failure::new(class, format!("copying the image's content{place}")).caused_by(errno);
    if full {
        failure.hint("the source is too small for what the image has there, or full")
    } else {
        failure
    }
}

struct Level {
    entries: Vec<OsString>,
    from: OwnedFd,
    to: OwnedFd,
    stat: FileStat,
    name: OsString,
}

struct Copy {
    lost: Lost,
    /// Where a file with several names was copied to first.
    links: HashMap<u64, PathBuf>,
    levels: Vec<Level>,
    device: u64,
}

impl Copy {
    fn run(&mut self, from: &OwnedFd, to: &OwnedFd) -> nix::Result<()> {
        self.device = fstat(from)?.st_dev;
        self.enter(
            from.try_clone().map_err(io)?,
            to.try_clone().map_err(io)?,
            OsString::new(),
        )?;
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.entries.pop() {
                self.entry(&name)?;
                continue;
            }
            let Some(level) = self.levels.pop() else {
                break;
            };
            // Last: whatever is made in a directory changes its times.
            attributes(&level.from, &level.to, &level.stat, &mut self.lost)?;
        }
        Ok(())
    }

    fn enter(&mut self, from: OwnedFd, to: OwnedFd, name: OsString) -> nix::Result<()> {
        if self.levels.len() >= DEPTH {
            return Err(Errno::ELOOP);
        }
        let mut listing = Dir::from_fd(open(&from, OsStr::new("."))?)?;
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." {
                entries.push(name);
            }
        }
        let stat = fstat(&from)?;
        self.levels.push(Level {
            entries,
            from,
            to,
            stat,
            name,
        });
        Ok(())
    }

    fn entry(&mut self, name: &OsStr) -> nix::Result<()> {
        let within: PathBuf = self.levels.iter().map(|l| l.name.as_os_str()).collect();
        let Some(top) = self.levels.first() else {
            return Ok(());
        };
        let Some(level) = self.levels.last() else {
            return Ok(());
        };
        let (from, to) = (&level.from, &level.to);
        let stat = fstatat(from, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let kind = beneath::kind(&stat);
        if stat.st_dev != self.device || kind == SFlag::S_IFSOCK {
            self.lost.passed_over = self.lost.passed_over.saturating_add(1);
            return Ok(());
        }
        if kind == SFlag::S_IFDIR {
            mkdirat(to, name, Mode::S_IRWXU)?;
            let (below_from, below_to) = (open(from, name)?, open(to, name)?);
            return self.enter(below_from, below_to, name.to_owned());
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino) {
                return linkat(&top.to, first.as_path(), to, name, AtFlags::empty());
            }
            if self.links.len() >= LINKS {
                return Err(Errno::EMLINK);
            }
            self.links.insert(stat.st_ino, within.join(name));
        }
        if kind == SFlag::S_IFREG {
            let read = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let write = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let mut source: File = openat(from, name, read, Mode::empty())?.into();
            let mut copy: File = openat(to, name, write, Mode::S_IRUSR | Mode::S_IWUSR)?.into();
            content(&mut source, &mut copy, &stat)?;
            return attributes(&source, &copy, &stat, &mut self.lost);
        }
        if kind == SFlag::S_IFLNK {
            symlinkat(readlinkat(from, name)?.as_os_str(), to, name)?;
        } else {
            mknodat(to, name, kind, Mode::S_IRUSR | Mode::S_IWUSR, stat.st_rdev)?;
        }
        by_name(from.as_fd(), to.as_fd(), name, &stat, &mut self.lost)
    }
}

fn open(parent: &impl AsFd, name: &OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

#[allow(clippy::needless_pass_by_value)] // For map_err.
fn io(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Data where there is data; the rest stays a hole.
fn content(from: &mut File, to: &mut File, stat: &FileStat) -> nix::Result<()> {
    let mut at = 0i64;
    loop {
        let data = match lseek64(&*from, at, Whence::SeekData) {
            Ok(data) => data,
            Err(Errno::ENXIO) => break,
            // A file system that knows no holes: all of it is data.
            Err(Errno::EINVAL) if at == 0 => 0,
            Err(errno) => return Err(errno),
        };
        let end = lseek64(&*from, data, Whence::SeekHole).unwrap_or(stat.st_size);
        let (Ok(position), Ok(length)) =
            (u64::try_from(data), u64::try_from(end.saturating_sub(data)))
        else {
            break;
        };
        if length == 0 {
            break;
        }
        from.seek(SeekFrom::Start(position)).map_err(io)?;
        to.seek(SeekFrom::Start(position)).map_err(io)?;
        io::copy(&mut (&*from).take(length), to).map_err(io)?;
        at = end;
    }
    to.flush().map_err(io)?;
    to.set_len(u64::try_from(stat.st_size).unwrap_or(0))
        .map_err(io)
}

fn times(stat: &FileStat) -> (TimeSpec, TimeSpec) {
    (
        TimeSpec::new(stat.st_atime, stat.st_atime_nsec),
        TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec),
    )
}

/// Owner, mode, attributes and times of what is open; in this order: chown(2) clears capabilities and set-user-ID
/// bits, and an ACL holds a part of the mode.
fn attributes(
    from: &impl AsFd,
    to: &impl AsFd,
    stat: &FileStat,
    lost: &mut Lost,
) -> nix::Result<()> {
    fchown(
        to,
        Some(Uid::from_raw(stat.st_uid)),
        Some(Gid::from_raw(stat.st_gid)),
    )?;
    fchmod(to, Mode::from_bits_truncate(stat.st_mode))?;
    extended(Of::Open(from.as_fd()), Of::Open(to.as_fd()), lost)?;
    let (atime, mtime) = times(stat);
    futimens(to, &atime, &mtime)
}

/// The same for what cannot be opened without an effect.
fn by_name(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &OsStr,
    stat: &FileStat,
    lost: &mut Lost,
) -> nix::Result<()> {
    fchownat(
        to,
        name,
        Some(Uid::from_raw(stat.st_uid)),
        Some(Gid::from_raw(stat.st_gid)),
        AtFlags::AT_SYMLINK_NOFOLLOW,
    )?;
    if beneath::kind(stat) != SFlag::S_IFLNK {
        fchmodat(
            to,
            name,
            Mode::from_bits_truncate(stat.st_mode),
            FchmodatFlags::FollowSymlink,
        )?;
    }
    extended(Of::Entry(from, name), Of::Entry(to, name), lost)?;
    let (atime, mtime) = times(stat);
    utimensat(to, name, &atime, &mtime, UtimensatFlags::NoFollowSymlink)
}

fn extended(from: Of<'_>, to: Of<'_>, lost: &mut Lost) -> nix::Result<()> {
    for name in xattr::list(from)? {
        // An overlay obeys these; in a source they are somebody else's.
        if name.starts_with(b"trusted.") {
            continue;
        }
        let Some(value) = xattr::get(from, &name)? else {
            continue;
        };
        match xattr::set(to, &name, &value) {
            Ok(()) => {}
            Err(Errno::EOPNOTSUPP) => lost.attributes = lost.attributes.saturating_add(1),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn sh(script: &str, dir: &Path) -> String {
        let out = Command::new("bash")
            .args(["-ec", script])
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8(out.stdout).unwrap()
    }

    /// Needs root. The listing has everything that find(1) can tell, and the attributes.
    #[test]
    fn a_copy_is_in_every_respect_what_the_tree_was() {
        let dir = tempfile::tempdir().unwrap();
        sh(
            r#"mkdir -m 0711 from to && cd from && mkdir -p a/b empty && chmod 2750 a && chown 3:4 a
            echo hello >a/f && ln a/f a/b/again && ln -s /etc/passwd link && ln link link2
            chown -h 7:8 link && mkfifo -m 0640 fifo && mknod -m 0600 dev c 1 3 && chown 9:9 dev
            cp /bin/true a/suid && chmod 4755 a/suid && chown 0:5 a/suid && chmod 4755 a/suid
            truncate -s 8M sparse && printf x | dd of=sparse bs=1 seek=4194304 conv=notrunc status=none
            touch -d '2001-02-03 04:05:06.789' a/f && touch -h -d '2002-01-01' link && touch -d '1999-01-01' a/b a
            python3 - <<'P'
import os
os.setxattr("a/f", "user.x", b"1"); os.setxattr("a", "user.d", b"\0\n"); os.setxattr("a/f", "trusted.t", b"t")
os.setxattr("a/suid", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
P"#,
            dir.path(),
        );
        let open = |name: &str| OwnedFd::from(File::open(dir.path().join(name)).unwrap());
        let lost = directory(&open("from"), &open("to")).unwrap();
        assert_eq!(lost, Lost::default());
        let told = |name: &str| {
            sh(
                &format!(
                    r#"cd {name}; find . -printf '%P %y %m %U %G %n %s %T@ %l %S\n' | sort; sha256sum a/f a/suid sparse
                    python3 -c '
import os
for d, n, f in sorted(os.walk(".")):
    for x in sorted(n + f):
        p = os.path.join(d, x)
        for k in sorted(os.listxattr(p, follow_symlinks=False)):
            if not k.startswith("trusted"): print(p, k, os.getxattr(p, k, follow_symlinks=False))'"#
                ),
                dir.path(),
            )
        };
        let (wanted, got) = (told("from"), told("to"));
        assert!(
            wanted.contains("security.capability") && wanted.contains("user.d"),
            "{wanted}"
        );
        assert_eq!(got, wanted);
        assert!(
            sh("getfattr -m- to/a/f 2>/dev/null || true", dir.path())
                .find("trusted")
                .is_none()
        );
    }
}
