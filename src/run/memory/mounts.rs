//! The mounts of a session, and how they are undone.

use std::fs::DirBuilder;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Class, Context as _, Result, chain};
use crate::sys::detached::Detached;
use crate::sys::mount;

/// What was mounted, in order; dropping it undoes all of it, the newest first.
#[derive(Debug, Default)]
pub struct Mounts(Vec<PathBuf>);

impl Mounts {
    /// Mounts `what` at `place`, which is made where it is missing.
    pub fn attach(&mut self, what: Detached, place: &Path) -> Result<()> {
        directory(place)?;
        what.attach_at(place)?;
        self.0.push(place.to_owned());
        Ok(())
    }

    /// Mounts `what` at the directory that `target` is, and that messages call `name`. Nothing needs to be undone:
    /// it goes with the root that it is mounted in.
    pub fn attach_to(&mut self, what: Detached, target: BorrowedFd<'_>, name: &Path) -> Result<()> {
        what.attach(target, &name.display().to_string())
    }

    /// Leaves all of it mounted.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        while let Some(place) = self.0.pop() {
            // Nobody but this program works below; where somebody does, it vanishes with its last user.
            if let Err(failure) = mount::detach_lazily(&place) {
                log::warn!("{}", chain(&failure));
            }
        }
    }
}

/// Makes `place` where it is missing, for root alone.
fn directory(place: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(place)
        .context(Class::Media, || {
            format!("making the directory {}", place.display())
        })
}
