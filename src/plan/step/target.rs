//! The disk of a plan, and ranges of bytes on it.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::error::printable;
use crate::host::DevNum;
use crate::image::record::DiskIdentity;
use crate::units::{Bytes, SectorSize};

/// The one device (or file) that will be written.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Device node.
    pub path: PathBuf,
    /// Kernel name; the path for a regular file.
    pub name: String,
    /// Device number; the opened device must have it. `None` for a regular file.
    pub dev: Option<DevNum>,
    /// Size.
    pub size: Bytes,
    /// Logical sector size.
    pub sector: SectorSize,
    /// Serial and WWN, for the log and the record.
    pub identity: DiskIdentity,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.path.display(), self.size.short())?;
        if let Some(serial) = &self.identity.serial {
            write!(f, ", serial {}", printable(serial))?;
        }
        if let Some(wwn) = &self.identity.wwn {
            write!(f, ", wwn {}", printable(wwn))?;
        }
        if let Some(dev) = self.dev {
            write!(f, ", {dev}")?;
        }
        f.write_str(")")
    }
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Span {
    /// First byte.
    pub start: Bytes,
    /// Number of bytes.
    pub length: Bytes,
}

/// The number of bytes of all `spans`.
pub fn total(spans: &[Span]) -> Bytes {
    let sum = |sum: u64, span: &Span| sum.saturating_add(span.length.0);
    Bytes(spans.iter().fold(0, sum))
}
