//! A disk, or a part of one, as bounded bytes at an offset.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// More than any signature needs in one read.
const READ_LIMIT: usize = 1 << 20;

/// A readable range of an open disk.
#[derive(Clone, Copy, Debug)]
pub struct Media<'a> {
    file: &'a File,
    start: u64,
    size: u64,
}

impl<'a> Media<'a> {
    /// The whole of `file`, which is `size` bytes long.
    pub fn new(file: &'a File, size: u64) -> Media<'a> {
        Media {
            file,
            start: 0,
            size,
        }
    }

    /// The part of `size` bytes at `start`, cut at the end of this one; `None` where nothing is left.
    pub fn part(&self, start: u64, size: u64) -> Option<Media<'a>> {
        let room = self.size.checked_sub(start)?;
        let size = size.min(room);
        (size > 0).then_some(Media {
            file: self.file,
            start: self.start.checked_add(start)?,
            size,
        })
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// `length` bytes at `offset`; `None` where the range is not inside. At most 1 MiB at once.
    pub fn bytes(&self, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        let end = u64::try_from(length)
            .ok()
            .and_then(|l| offset.checked_add(l));
        let Some(position) = self.start.checked_add(offset) else {
            return Ok(None);
        };
        if length > READ_LIMIT || end.is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, position)?;
        Ok(Some(bytes))
    }

    /// Whether `magic` stands at `offset`.
    pub fn has(&self, offset: u64, magic: &[u8]) -> io::Result<bool> {
        Ok(self.bytes(offset, magic.len())?.is_some_and(|b| b == magic))
    }
}

/// Little-endian numbers and texts out of a block that was read; zero or empty where the block ends.
#[derive(Clone, Debug)]
pub(super) struct Fields(pub Vec<u8>);

impl Fields {
    pub(super) fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(super) fn u32_be(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn slice(&self, at: usize, length: usize) -> &[u8] {
        at.checked_add(length)
            .and_then(|end| self.0.get(at..end))
            .unwrap_or_default()
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.slice(at, N).try_into().unwrap_or([0; N])
    }
}
