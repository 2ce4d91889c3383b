//! An image unpacked into a tmpfs.

use std::path::Path;

use super::blocks::BlockReader;
use super::mounts::Mounts;
use crate::error::{Class, Failure, Result};
use crate::plan::memory_root::{Room, RootLayout};
use crate::report::Reporter;
use crate::sys::detached::Detached;

/// A tree in memory.
#[derive(Debug)]
pub struct Unpacked {
    /// The tmpfs, which has no place yet: nobody can open what is not proven.
    tmpfs: Detached,
}

/// Unpacks what `reader` gives. Nothing of it has been proven yet.
pub fn unpack(
    _reader: &mut BlockReader<'_>,
    _layout: &RootLayout,
    _room: &Room,
    _reporter: &Reporter,
) -> Result<Unpacked> {
    Err(Failure::new(
        Class::Config,
        "a tar archive is not supported in this version",
    ))
}

/// Gives the tree its place.
pub fn place(unpacked: Unpacked, place: &Path, _room: &Room, made: &mut Mounts) -> Result<()> {
    made.attach(unpacked.tmpfs, place)
}
