//! Removes what another claim, or an attempt that was cut off, left on a source.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

use super::place;
use super::record::WALK;
use super::source::Source;
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::tree::{remove_children, unlink};

const DIRECTORY: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Removes whatever is at `path`; nothing there is no error.
pub fn any(source: &Source, path: &Path) -> Result<()> {
    match place::look(source, path)? {
        place::Found::Nothing => Ok(()),
        place::Found::File(_) => file(source, path),
        place::Found::Directory(_) => directory(source, path),
    }
}

/// Removes the file at `path`.
pub fn file(source: &Source, path: &Path) -> Result<()> {
    let (parent, name) = source.root.parent(path, WALK)?;
    unlink(&parent, name, UnlinkatFlags::NoRemoveDir)
        .context(Class::Preserve, || format!("removing {}", path.display()))
}

/// Removes the directory at `path` with all that is in it.
pub fn directory(source: &Source, path: &Path) -> Result<()> {
    remove_children(&source.root.directory(path, WALK)?, path)?;
    let (parent, name) = source.root.parent(path, WALK)?;
    unlink(&parent, name, UnlinkatFlags::RemoveDir)
        .context(Class::Preserve, || format!("removing {}", path.display()))
}

/// Removes everything in `top` but what is named in `spare`; `what` names it in messages.
pub fn children(top: &OwnedFd, spare: &[&str], what: &Path) -> Result<()> {
    let failed = |errno: Errno| {
        Failure::new(
            Class::Preserve,
            format!("removing what is in {}", what.display()),
        )
        .caused_by(errno)
    };
    for name in names(top).map_err(failed)? {
        if spare.iter().any(|s| name == *s) {
            continue;
        }
        match openat(top, name.as_os_str(), DIRECTORY, Mode::empty()) {
            Ok(below) => {
                remove_children(&below, &what.join(&name))?;
                unlink(top, &name, UnlinkatFlags::RemoveDir).map_err(failed)?;
            }
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                unlink(top, &name, UnlinkatFlags::NoRemoveDir).map_err(failed)?;
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(())
}

/// The names in a directory, which is read to its end before anything in it changes.
pub fn names(directory: &OwnedFd) -> nix::Result<Vec<OsString>> {
    let mut entries = Dir::from_fd(openat(directory, ".", DIRECTORY, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in entries.iter() {
        let name = std::ffi::OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
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
        fs::create_dir_all(path.join("a/kept")).unwrap();
        fs::create_dir_all(path.join("kept/x")).unwrap();
        fs::write(path.join("f"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path(), path.join("link")).unwrap();
        let top = OwnedFd::from(fs::File::open(path).unwrap());
        children(&top, &["kept"], path).unwrap();
        let left: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["kept"]);
        assert!(outside.path().join("stays").exists() && path.join("kept/x").exists());
    }
}
