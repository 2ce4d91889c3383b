//! The mounts of a session, and how they are undone.

use std::fs::DirBuilder;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Class, Context as _, Result, chain};
use crate::run::preserve::luks::Mapping;
use crate::sys::detached::Detached;
use crate::sys::mount;

/// What was mounted, in order; dropping it undoes all of it, the newest first.
#[derive(Debug, Default)]
pub struct Mounts {
    places: Vec<PathBuf>,
    /// Opened devices that are mounted here: each closes when its last user is gone.
    mappings: Vec<Mapping>,
}

impl Mounts {
    /// Mounts `what` at `place`, which is made where it is missing.
    pub fn attach(&mut self, what: Detached, place: &Path) -> Result<()> {
        directory(place)?;
        what.attach_at(place)?;
        self.places.push(place.to_owned());
        Ok(())
    }

    /// A device that stays open as long as what is mounted from it.
    pub fn keep_mapping(&mut self, mapping: Mapping) {
        self.mappings.push(mapping);
    }

    /// Mounts `what` at the directory that `target` is, and that messages call `name`. Nothing needs to be undone:
    /// it goes with the root that it is mounted in.
    pub fn attach_to(&mut self, what: Detached, target: BorrowedFd<'_>, name: &Path) -> Result<()> {
        what.attach(target, &name.display().to_string())
    }

    /// Unmounts all of it, the newest first: what was written is on the medium then.
    ///
    /// # Errors
    /// Class media where one stays in use.
    pub fn unmount(mut self) -> Result<()> {
        while let Some(place) = self.places.pop() {
            mount::detach_soon(&place).inspect_err(|_| {
                let _ = mount::detach_lazily(&place);
            })?;
        }
        Ok(())
    }

    /// Leaves all of it mounted.
    pub fn keep(mut self) {
        self.places.clear();
        for mapping in self.mappings.drain(..) {
            log::debug!("{} stays open", mapping.into_name());
        }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        while let Some(place) = self.places.pop() {
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
