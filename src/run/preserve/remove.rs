//! Removes trees of a source, however deep somebody made them: without recursion, with a bounded number of open
//! directories, and never through a link or into another file system.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::record::WALK;
use super::source::Source;
use crate::error::{Class, Context as _, Failure, Result};

/// Open directories at a time. What lies deeper is moved up first.
const DEPTH: usize = 48;

struct Level {
    entries: Vec<OsString>,
    fd: OwnedFd,
    name: OsString,
}

/// Removes the file at `path`.
pub fn file(source: &Source, path: &Path) -> Result<()> {
    let (parent, name) = source.root.parent(path, WALK)?;
    unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir)
        .context(Class::Preserve, || format!("removing {}", path.display()))
}

/// Removes the empty directory at `path`.
pub fn directory(source: &Source, path: &Path) -> Result<()> {
    let (parent, name) = source.root.parent(path, WALK)?;
    unlinkat(&parent, name, UnlinkatFlags::RemoveDir)
        .context(Class::Preserve, || format!("removing {}", path.display()))
}

/// Removes everything in `top` but what is named in `spare`; `what` names it in messages.
pub fn children(top: &impl AsFd, spare: &[&str], what: &Path) -> Result<()> {
    let failed = |errno: Errno| {
        Failure::new(
            Class::Preserve,
            format!("removing what is in {}", what.display()),
        )
        .caused_by(errno)
    };
    let mut moved = 0u64;
    // Each round that moves something up is followed by another; every moved directory is less deep then.
    loop {
        let before = moved;
        round(top, spare, &mut moved).map_err(failed)?;
        if moved == before {
            return Ok(());
        }
    }
}

fn round(top: &impl AsFd, spare: &[&str], moved: &mut u64) -> nix::Result<()> {
    let root = open(top, OsStr::new("."))?;
    let mut entries = names(&root)?;
    entries.retain(|name| !spare.iter().any(|s| name == s));
    let mut levels = vec![Level {
        entries,
        fd: root,
        name: OsString::new(),
    }];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.entries.pop() else {
            let Some(done) = levels.pop() else { break };
            if let Some(above) = levels.last() {
                match unlinkat(&above.fd, done.name.as_os_str(), UnlinkatFlags::RemoveDir) {
                    // Something was moved away from it and it goes all the same.
                    Ok(()) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
            continue;
        };
        match unlinkat(&level.fd, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => continue,
            // Linux says EISDIR, POSIX EPERM.
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(errno) => return Err(errno),
        }
        let below = match open(&level.fd, &name) {
            Ok(below) => below,
            // No directory after all: it could not be removed.
            Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(Errno::EPERM),
            Err(errno) => return Err(errno),
        };
        if levels.len() < DEPTH {
            levels.push(Level {
                entries: names(&below)?,
                fd: below,
                name,
            });
            continue;
        }
        let (Some(first), Some(level)) = (levels.first(), levels.last()) else {
            break;
        };
        *moved = moved.saturating_add(1);
        let place = format!(".ironroot-removing-{moved}");
        match renameat(&level.fd, name.as_os_str(), &first.fd, place.as_str()) {
            Ok(()) => {}
            // Left by a round that was cut off, and removed by the next one of this.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                if let Some(level) = levels.last_mut() {
                    level.entries.push(name);
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn open(parent: &impl AsFd, name: &OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// The names in a directory, which is read to its end before anything in it changes.
fn names(directory: &OwnedFd) -> nix::Result<Vec<OsString>> {
    let mut entries = Dir::from_fd(open(directory, OsStr::new("."))?)?;
    let mut names = Vec::new();
    for entry in entries.iter() {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn everything_goes_but_what_is_spared_and_what_links_lead_to() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("stays"), "x").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        fs::create_dir_all(path.join("a/b/c")).unwrap();
        fs::write(path.join("a/b/c/f"), "x").unwrap();
        fs::create_dir_all(path.join("kept/x")).unwrap();
        std::os::unix::fs::symlink(outside.path(), path.join("a/link")).unwrap();
        // Deeper than a path can be named at once.
        let mut here = fs::File::open(path).unwrap();
        for _ in 0..400 {
            nix::sys::stat::mkdirat(&here, "deep", Mode::S_IRWXU).unwrap();
            nix::sys::stat::mkdirat(&here, "side", Mode::S_IRWXU).unwrap();
            here = open(&here, OsStr::new("deep")).unwrap().into();
        }
        let top = fs::File::open(path).unwrap();
        children(&top, &["kept"], path).unwrap();
        let left: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["kept"]);
        assert!(outside.path().join("stays").exists() && path.join("kept/x").exists());
    }
}
