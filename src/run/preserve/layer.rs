//! The directories of an overlay on a source: its upper layer, and what the kernel needs beside it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;

use super::place;
use super::record::WALK;
use super::source::Source;
use crate::error::{Class, Context as _, Failure, Result};
use crate::sys::xattr::{self, Of};

/// On a directory whose `upper` and `work` are the layers of an overlay: names alone say nothing, their owner may have
/// directories of these names. Only root can set it.
pub const MARK: &str = "trusted.ironroot.layers";

/// Two directories of one mount.
#[derive(Debug)]
pub struct Layer {
    /// What is written.
    pub upper: OwnedFd,
    /// The kernel's.
    pub work: OwnedFd,
}

/// `upper` and `work` in the directory `path` of `source`; where `upper` is missing it is made with `attributes`.
pub fn directories(source: &Source, path: &Path, attributes: &place::Attributes) -> Result<Layer> {
    let name = path.join("upper");
    let fresh = matches!(place::look(source, &name)?, place::Found::Nothing);
    let upper = place::directory(source, &name, attributes)?;
    let work = place::directory(source, &path.join("work"), &(0o700, 0, 0).into())?;
    if fresh {
        // What the layer is for is on the medium before anything is in it.
        nix::unistd::syncfs(&upper)
            .context(Class::Preserve, || format!("flushing {}", source.name))?;
    }
    mark(source, path)?;
    Ok(Layer { upper, work })
}

/// Whether the directory that `fd` is open on holds the layers of an overlay.
pub fn is_marked(fd: &OwnedFd) -> Result<bool> {
    let value = xattr::get(Of::Open(fd.as_fd()), MARK.as_bytes());
    Ok(value
        .context(Class::Preserve, || format!("reading {MARK} of a directory"))?
        .is_some())
}

/// After the layers: a cut before leaves two empty directories and no record that anything was shown.
fn mark(source: &Source, path: &Path) -> Result<()> {
    let place = source.root.directory(path, WALK)?;
    if is_marked(&place)? {
        return Ok(());
    }
    match xattr::set(Of::Open(place.as_fd()), MARK.as_bytes(), b"1") {
        // A file system without attributes is no layer either, which the mount says better.
        Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
        Err(errno) => Err(Failure::new(
            Class::Preserve,
            format!(
                "marking {} of {} as an overlay's",
                path.display(),
                source.name
            ),
        )
        .caused_by(errno)),
    }
}
