//! A place on a source: what is there, whether it is empty, and how it is made.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown};

use super::record::WALK;
use super::remove;
use super::source::Source;
use crate::config::request::preserve::HIDDEN;
use crate::error::{Class, Context as _, Failure, Result};
use crate::plan::preserve::Binding;
use crate::sys::beneath::{self, Root, Walk};

/// What is of the file system itself, in its root.
pub const OWN: [&str; 2] = [HIDDEN, "lost+found"];

/// What is at a place.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A directory, open for reading.
    Directory(OwnedFd),
    /// A regular file.
    File(FileStat),
}

/// What is at `path` of `source`. A link, wherever on the way, is refused: whoever used the source before may
/// have made it.
pub fn look(source: &Source, path: &Path) -> Result<Found> {
    let handle = match source.root.handle(path, WALK) {
        Ok(handle) => handle,
        Err(error) if error.errno == Errno::ENOENT => return Ok(Found::Nothing),
        Err(error) => {
            let link = matches!(error.errno, Errno::ELOOP | Errno::EXDEV);
            let failure = error.of_class(Class::Preserve);
            return Err(if link {
                failure.hint("a symbolic link or a mount is on the way; remove it from the source")
            } else {
                failure
            });
        }
    };
    let stat =
        fstat(&handle).context(Class::Preserve, || format!("looking at {}", path.display()))?;
    match beneath::kind(&stat) {
        SFlag::S_IFDIR => Ok(Found::Directory(source.root.directory(path, WALK)?)),
        SFlag::S_IFREG => Ok(Found::File(stat)),
        _ => Err(Failure::new(
            Class::Preserve,
            format!(
                "{} on {} is neither a directory nor a file",
                path.display(),
                source.name
            ),
        )
        .hint("remove it from the source")),
    }
}

/// Whether nothing is in the directory; in the root of a file system, nothing but what is its own.
pub fn is_empty(directory: &OwnedFd, is_root: bool) -> Result<bool> {
    let names = remove::names(directory)
        .context(Class::Preserve, || "listing a directory of the source")?;
    Ok(names
        .iter()
        .all(|name| is_root && OWN.iter().any(|own| name == own)))
}

/// Whether anything is at `path`.
pub fn has_content(source: &Source, path: &Path) -> Result<bool> {
    Ok(match look(source, path)? {
        Found::Nothing => false,
        Found::File(stat) => stat.st_size > 0,
        Found::Directory(directory) => !is_empty(&directory, path.as_os_str().is_empty())?,
    })
}

/// Mode and owner of what is made: the config's, else those of the image's `target`, else root's own.
pub fn attributes(binding: &Binding, image: &Root) -> (u32, u32, u32) {
    let model = image.stat(&binding.target, Walk::InRoot).ok();
    let default = match binding.attach {
        crate::plan::preserve::Attach::File => 0o644,
        _ => 0o755,
    };
    let mode = binding
        .mode
        .unwrap_or(model.map_or(default, |stat| stat.st_mode & 0o7777));
    let (user, group) = binding
        .owner
        .unwrap_or(model.map_or((0, 0), |stat| (stat.st_uid, stat.st_gid)));
    (mode, user, group)
}

/// Gives what `fd` is open on mode and owner.
pub fn give(fd: &OwnedFd, (mode, user, group): (u32, u32, u32), what: &Path) -> Result<()> {
    // The mode last: chown(2) clears set-user-ID bits.
    fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))
        .and_then(|()| fchmod(fd, Mode::from_bits_truncate(mode)))
        .context(Class::Preserve, || {
            format!(
                "setting mode {mode:o} and owner {user}:{group} of {}",
                what.display()
            )
        })
}

/// The directory at `path`; where it is missing it is made, with `attributes`.
pub fn directory(source: &Source, path: &Path, attributes: (u32, u32, u32)) -> Result<OwnedFd> {
    match look(source, path)? {
        Found::Directory(fd) => Ok(fd),
        Found::File(_) => Err(Failure::new(
            Class::Preserve,
            format!(
                "{} on {} is a file, not a directory",
                path.display(),
                source.name
            ),
        )
        .hint("remove it from the source, or set `kind` to file")),
        Found::Nothing => {
            let fd = source
                .root
                .make_directories(path, 0o755, WALK)
                .map_err(|e| e.of_class(Class::Preserve))?;
            give(&fd, attributes, path)?;
            Ok(fd)
        }
    }
}

/// The file at `path`, as a place to mount; where it is missing it is made, empty, with `attributes`.
pub fn file(source: &Source, path: &Path, attributes: (u32, u32, u32)) -> Result<OwnedFd> {
    match look(source, path)? {
        Found::File(_) => {}
        Found::Directory(_) => {
            return Err(Failure::new(
                Class::Preserve,
                format!(
                    "{} on {} is a directory, not a file",
                    path.display(),
                    source.name
                ),
            )
            .hint("remove it from the source, or set `kind` to dir"));
        }
        Found::Nothing => {
            if let Some(parent) = path.parent() {
                source.root.make_directories(parent, 0o755, WALK)?;
            }
            let fd = OwnedFd::from(source.root.create_file(path, 0o600, WALK)?);
            give(&fd, attributes, path)?;
        }
    }
    Ok(source.root.handle(path, WALK)?)
}

/// What a descriptor leads to, as a path of this process: of what is mounted there, not through links.
pub fn path_of(fd: &impl AsFd) -> Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
        .context(Class::Preserve, || "asking for the path of a descriptor")
}
