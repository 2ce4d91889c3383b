//! Files that the boot config puts into the installed system.

use super::replace::{Like, replace};
use crate::config::request::SystemFile;
use crate::error::Result;
use crate::sys::beneath::Root;

/// Writes one.
///
/// # Errors
/// As [`replace`].
pub fn write(root: &Root, file: &SystemFile) -> Result<()> {
    replace(
        root,
        &file.path,
        file.contents.as_bytes(),
        Like::New(file.mode),
    )
}
