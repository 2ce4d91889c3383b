//! qcow2 disk images, read only (QEMU's docs/interop/qcow2.rst; sections are those of that text): pure
//! parsing over anything that gives bytes at an offset. An image with internal snapshots is read as its
//! active state. Whatever needs another file, a key or a repair is refused by name.

mod header;
mod mapping;
mod reader;
#[cfg(test)]
mod sample;

pub use header::{Compression, Header, MAGIC};
pub use reader::Reader;

use crate::error::Failure;

/// The most memory that a [`Reader`] takes, in bytes: one L2 table and one cluster of content of at most 2 MiB
/// each, the compressed form of a cluster, and zstd's window.
pub const MEMORY: usize = (2 << 20) + (2 << 20) + (4 << 20) + (1 << reader::ZSTD_WINDOW_LOG);

/// Bytes of an image file, wherever they are.
pub trait ReadAt {
    /// The length of the file in bytes.
    fn length(&self) -> u64;

    /// Fills all of `out` with the bytes from `offset` on; they lie within the file.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), Failure>;
}

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It is whole and needs what is not there.
    #[error("{0}")]
    Unsupported(String),
    /// Its own statements contradict each other, or lead out of the file.
    #[error("{0}")]
    Damaged(String),
    /// Its bytes did not come.
    #[error("reading it failed")]
    Source(#[source] Failure),
}

/// Big-endian integers, as everywhere in the format (section "General").
fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    bytes.try_into().ok().map(u64::from_be_bytes)
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_be_bytes)
}
