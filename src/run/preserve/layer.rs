//! The directories of an overlay on a source: its upper layer, and what the kernel needs beside it.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::place;
use super::source::Source;
use crate::error::{Class, Context as _, Result};

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
    Ok(Layer { upper, work })
}
