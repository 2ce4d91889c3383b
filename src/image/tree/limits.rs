//! How much an archive may ask for. What is past a limit is refused as hostile, not cut off.

use crate::sys::xattr;

/// The limits of one archive. The defaults are far above any operating system and far below what would
/// harm.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Entries, of whatever kind.
    pub entries: u64,
    /// Bytes of content, holes left out.
    pub bytes: u64,
    /// Components of a path.
    pub depth: usize,
    /// Bytes of one extended attribute.
    pub xattr: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            entries: 10_000_000,
            bytes: 1 << 44,
            depth: 256,
            xattr: xattr::SIZE_MAX,
        }
    }
}

/// Longest path: the kernel takes no longer one (`PATH_MAX`, which counts the final NUL).
pub(super) const PATH_MAX: usize = 4095;
/// Longest name (`NAME_MAX`).
pub(super) const NAME_MAX: usize = 255;
/// Longest GNU long name that is read at all; [`PATH_MAX`] refuses most of it.
pub(super) const LONG_NAME_MAX: u64 = 1 << 16;
/// Largest extended header: some attributes of 64 KiB each, or the map of a sparse file.
pub(super) const EXTENDED_MAX: u64 = 8 << 20;
/// Attributes of one entry.
pub(super) const XATTRS_MAX: usize = 256;
/// Pieces of one sparse file: 16 MiB of memory.
pub(super) const SEGMENTS_MAX: usize = 1 << 20;
/// Directories whose times wait for the end, and the bytes of their paths: 48 MiB of memory at most, 10 for a
/// large desktop.
pub(super) const LATER_MAX: usize = 1 << 20;
pub(super) const LATER_PATHS_MAX: usize = 32 << 20;
/// ACLs that wait for the image's own accounts.
pub(super) const WAITING_ACLS_MAX: usize = 4096;
