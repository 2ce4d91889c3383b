//! Block devices that are looked at. A read-only mount alone may write: ext4 and f2fs clean up what was deleted while it was
//! open, all of them replay their journals. None of them does on a device that the kernel does not write.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::volumes::Volume;
use crate::error::{Class, Context as _, Result};
use crate::sys::block;

/// A device that takes no writes while this lives. Mounts of it have to be gone before.
#[derive(Debug)]
pub struct Quiet {
    file: File,
    path: PathBuf,
}

impl Quiet {
    /// `None` where nothing writes to it anyway.
    fn new(path: &Path) -> Result<Option<Quiet>> {
        let failed = || format!("protecting {} from writes during a look", path.display());
        let file = File::open(path).context(Class::Media, failed)?;
        if block::is_read_only(&file).context(Class::Media, failed)? {
            return Ok(None);
        }
        block::set_read_only(&file, true).context(Class::Media, failed)?;
        Ok(Some(Quiet {
            file,
            path: path.to_owned(),
        }))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Err(error) = block::set_read_only(&self.file, false) {
            log::warn!(
                "{} stays protected from writes: {error}",
                self.path.display()
            );
        }
    }
}

/// All of `volumes`.
///
/// # Errors
/// Class media where the kernel does not protect one.
pub fn all(volumes: &[Volume]) -> Result<Vec<Quiet>> {
    let mut quiet = Vec::new();
    for volume in volumes {
        quiet.extend(Quiet::new(&volume.path)?);
    }
    Ok(quiet)
}
