//! A place on a source: what is there, whether it is empty, and how it is made.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown};

use super::record::WALK;
use super::remove;
use super::source::Source;
use crate::config::request::preserve::HIDDEN;
use crate::error::{Class, Context as _, Failure, Result};
use crate::plan::preserve::{Attach, Binding};
use crate::run::memory::selinux;
use crate::sys::beneath::{self, Root, Walk};
use crate::sys::inode_flags;
use crate::sys::xattr::{self, Of};

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

/// What is made is like this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Mode, owner and group.
    pub owned: (u32, u32, u32),
    /// SELinux label, where the image has labels.
    pub label: Option<Vec<u8>>,
}

impl From<(u32, u32, u32)> for Attributes {
    fn from(owned: (u32, u32, u32)) -> Attributes {
        Attributes { owned, label: None }
    }
}

/// Mode and owner of what is made: the config's, else those of the image's `target`, else root's own; and the label of
/// the image's `target`, else of what is nearest above it.
pub fn attributes(binding: &Binding, image: &Root) -> Attributes {
    let model = image.stat(&binding.target, Walk::InRoot).ok();
    let default = match binding.attach {
        Attach::File | Attach::MachineId => 0o644,
        Attach::Directory | Attach::Overlay => 0o755,
    };
    let mode = binding
        .mode
        .unwrap_or(model.map_or(default, |stat| stat.st_mode & 0o7777));
    let (user, group) = binding
        .owner
        .unwrap_or(model.map_or((0, 0), |stat| (stat.st_uid, stat.st_gid)));
    Attributes {
        owned: (mode, user, group),
        label: label(image, &binding.target),
    }
}

fn label(image: &Root, target: &Path) -> Option<Vec<u8>> {
    let nearest = target.ancestors().find_map(|path| {
        let directory = image.directory(path, Walk::InRoot);
        directory
            .or_else(|_| image.file(path, Walk::InRoot).map(OwnedFd::from))
            .ok()
    });
    selinux::label_of(nearest?.as_fd())
}

/// Gives what `fd` is open on all of `attributes`.
pub fn dress(fd: &OwnedFd, attributes: &Attributes, what: &Path) -> Result<()> {
    give(fd, attributes.owned, what)?;
    if let Some(label) = &attributes.label {
        selinux::set_label(fd.as_fd(), label);
    }
    Ok(())
}

/// Takes away what its last owner gave the root of a file system, which cannot be made anew: attributes, ACLs among
/// them, owner and mode. Labels stay.
pub fn strip(fd: &OwnedFd, what: &Path) -> Result<()> {
    let failed = || format!("removing attributes of {}", what.display());
    // With one of these nothing of it changes.
    inode_flags::clear(fd.as_fd(), inode_flags::IMMUTABLE | inode_flags::APPEND)
        .context(Class::Preserve, failed)?;
    let names = xattr::list(Of::Open(fd.as_fd())).context(Class::Preserve, failed)?;
    for name in names.iter().filter(|n| !n.starts_with(b"security.")) {
        xattr::remove(Of::Open(fd.as_fd()), name).context(Class::Preserve, failed)?;
    }
    give(fd, (0o755, 0, 0), what)
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

/// A file where a directory has to be.
fn no_directory(source: &Source, path: &Path) -> Failure {
    let what = format!(
        "{} on {} is a file, not a directory",
        path.display(),
        source.name
    );
    Failure::new(Class::Preserve, what).hint("remove it from the source, or set `kind` to file")
}

/// A directory where a file has to be.
fn no_file(source: &Source, path: &Path) -> Failure {
    let what = format!(
        "{} on {} is a directory, not a file",
        path.display(),
        source.name
    );
    Failure::new(Class::Preserve, what).hint("remove it from the source, or set `kind` to dir")
}

/// Refuses what is at `path` where `attach` has no use for it.
pub fn must_fit(attach: Attach, found: &Found, source: &Source, path: &Path) -> Result<()> {
    match (attach, found) {
        (Attach::Directory | Attach::Overlay, Found::File(_)) => Err(no_directory(source, path)),
        (Attach::File | Attach::MachineId, Found::Directory(_)) => Err(no_file(source, path)),
        (Attach::Directory | Attach::Overlay, Found::Directory(_) | Found::Nothing)
        | (Attach::File | Attach::MachineId, Found::File(_) | Found::Nothing) => Ok(()),
    }
}

/// The directory at `path`; where it is missing it is made, with `attributes`.
pub fn directory(source: &Source, path: &Path, attributes: &Attributes) -> Result<OwnedFd> {
    match look(source, path)? {
        Found::Directory(fd) => Ok(fd),
        Found::File(_) => Err(no_directory(source, path)),
        Found::Nothing => {
            let fresh = fresh(source, path)?;
            let fd = source
                .root
                .make_directory(&fresh, 0o700, WALK)
                .map_err(|e| e.of_class(Class::Preserve))?;
            dress(&fd, attributes, path)?;
            put(source, &fresh, path)?;
            Ok(fd)
        }
    }
}

/// The file at `path`, as a place to mount; where it is missing it is made, empty, with `attributes`.
pub fn file(source: &Source, path: &Path, attributes: &Attributes) -> Result<OwnedFd> {
    match look(source, path)? {
        Found::File(_) => {}
        Found::Directory(_) => return Err(no_file(source, path)),
        Found::Nothing => {
            let fresh = fresh(source, path)?;
            let fd = OwnedFd::from(source.root.create_file(&fresh, 0o600, WALK)?);
            dress(&fd, attributes, path)?;
            put(source, &fresh, path)?;
        }
    }
    Ok(source.root.handle(path, WALK)?)
}

/// Where a place is made before it has its name, so that a power cut leaves none with another owner and mode; nothing is
/// there.
fn fresh(source: &Source, path: &Path) -> Result<PathBuf> {
    if source.read_only {
        return Err(Failure::new(
            Class::Preserve,
            format!(
                "{} is not on {}, which is read-only",
                path.display(),
                source.name
            ),
        )
        .hint("leave the option ro away for the first session, which makes it"));
    }
    source
        .root
        .make_directories(Path::new(HIDDEN), 0o700, WALK)
        .map_err(|e| e.of_class(Class::Preserve))?;
    let fresh = Path::new(HIDDEN).join("new");
    remove::any(source, &fresh)?;
    Ok(fresh)
}

/// Gives what was made at `fresh` its name.
fn put(source: &Source, fresh: &Path, path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        source.root.make_directories(parent, 0o755, WALK)?;
    }
    let (from, from_name) = source.root.parent(fresh, WALK)?;
    let (to, to_name) = source.root.parent(path, WALK)?;
    renameat(&from, from_name, &to, to_name).context(Class::Preserve, || {
        format!("making {} on {}", path.display(), source.name)
    })
}

/// What a descriptor leads to, as a path of this process: of what is mounted there, not through links.
pub fn path_of(fd: &impl AsFd) -> Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
        .context(Class::Preserve, || "asking for the path of a descriptor")
}
