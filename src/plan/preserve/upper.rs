//! What is written in a session, kept on a disk: the upper layer of the overlay that is the root.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::{SourceDevice, Trouble, candidates, source};
use crate::config::request::Preserved;
use crate::host::Facts;
use crate::plan::refusal::Refusal;

/// An overlay's upper layer has extended attributes and device nodes (kernel:
/// Documentation/filesystems/overlayfs.rst, "Upper and Lower").
const NO_UPPER: [&str; 1] = ["vfat"];

/// The upper layer of the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Upper {
    /// The device with the file system.
    pub source: SourceDevice,
    /// The directory in it that has `upper` and `work`; empty for its root.
    pub subdir: PathBuf,
}

impl fmt::Display for Upper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.subdir.as_os_str().is_empty() {
            write!(f, "{} of ", self.subdir.display())?;
        }
        write!(f, "{}, {}", self.source, self.source.filesystem)
    }
}

/// The one device that `entry` means, as the place of what is written. `others` cannot be on it as well.
pub fn upper(entry: &Preserved, others: &[Preserved], facts: &Facts) -> Result<Upper, Refusal> {
    let devices = candidates::all(facts);
    let decide = || {
        let device = candidates::find(entry, &devices, facts)?;
        if device.disk.read_only {
            return Err(Trouble::ReadOnly(device.name.to_owned()));
        }
        let clash = others.iter().find(|other| {
            candidates::find(other, &devices, facts).is_ok_and(|d| d.dev == device.dev)
        });
        if let Some(other) = clash {
            return Err(Trouble::Conflict(format!(
                "{} is preserved there too: the two need a file system each",
                other.target.display()
            )));
        }
        // No source of `preserve` has this number.
        let source = source(device, &[(0, entry)], others.len())?;
        if NO_UPPER.contains(&source.filesystem.as_str()) {
            return Err(Trouble::OtherFileSystem(format!(
                "{} holds {}, which cannot be the upper layer of an overlay: ext4, xfs, btrfs and f2fs can",
                device.name, source.filesystem
            )));
        }
        Ok(source)
    };
    match decide() {
        Ok(source) => Ok(Upper {
            source,
            subdir: entry.subdir.clone(),
        }),
        Err(trouble) => Err(Refusal::Upper {
            source: entry.source.to_string(),
            trouble,
        }),
    }
}
