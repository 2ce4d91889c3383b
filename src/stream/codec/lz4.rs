//! lz4 frames (LZ4 Frame Format 1.6.4): any number of them, skippable ones as well. Frames are read here
//! and only the blocks inside are left to the library, so that a frame without its end mark is never taken
//! for a whole one. The legacy frame, whose end is the end of the file, is refused.

use std::hash::Hasher as _;
use std::io;

use lz4_flex::block::{decompress_into, decompress_into_with_dict};
use twox_hash::XxHash32;

use super::source::copy;
use super::{Chunks, Decoder, cut_short, damaged};

const FRAME: u32 = 0x184d_2204;
const LEGACY: u32 = 0x184c_2102;
/// The sixteen magics of skippable frames, which Zstandard has as well.
const SKIPPABLE: u32 = 0x184d_2a50;
/// How far back a block refers at most.
const HISTORY: usize = 64 << 10;

/// Bits of the frame descriptor's first byte.
mod flag {
    pub const DICTIONARY: u8 = 1;
    pub const RESERVED: u8 = 1 << 1;
    pub const CONTENT_CHECKSUM: u8 = 1 << 2;
    pub const CONTENT_SIZE: u8 = 1 << 3;
    pub const BLOCK_CHECKSUMS: u8 = 1 << 4;
    pub const INDEPENDENT: u8 = 1 << 5;
    pub const VERSION: u8 = 0b1100_0000;
    pub const VERSION_1: u8 = 0b0100_0000;
}

pub(super) struct Lz4 {
    source: Chunks,
    frame: Option<Frame>,
    begun: bool,
    /// A compressed block.
    packed: Vec<u8>,
    /// Up to [`HISTORY`] bytes of the blocks before, then the block.
    content: Vec<u8>,
    /// How many bytes of history `content` begins with.
    history: usize,
    /// What of `content` is still to be given out.
    start: usize,
    end: usize,
}

/// What a frame's descriptor says.
struct Frame {
    block_size: usize,
    independent: bool,
    block_checksums: bool,
    checksum: Option<XxHash32>,
    /// How many bytes are still to come.
    remaining: Option<u64>,
}

impl Lz4 {
    pub(super) fn new(source: Chunks) -> Lz4 {
        Lz4 {
            source,
            frame: None,
            begun: false,
            packed: Vec::new(),
            content: Vec::new(),
            history: 0,
            start: 0,
            end: 0,
        }
    }

    /// The next frame's descriptor; `None` at the end of the source.
    fn descriptor(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if self.source.window()?.is_empty() {
                return if self.begun {
                    Ok(None)
                } else {
                    Err(cut_short())
                };
            }
            let magic = u32::from_le_bytes(self.source.array()?);
            match magic {
                FRAME => {
                    self.begun = true;
                    return self.frame_descriptor().map(Some);
                }
                LEGACY => {
                    return Err(damaged(
                        "a frame in the legacy format, which has no end mark; lz4 without -l makes others",
                    ));
                }
                _ if magic & !0xf == SKIPPABLE => {
                    let length = u32::from_le_bytes(self.source.array()?);
                    self.source.skip(length.into())?;
                    self.begun = true;
                }
                _ => return Err(damaged("bytes that are not lz4 follow its end")),
            }
        }
    }

    fn frame_descriptor(&mut self) -> io::Result<Frame> {
        let mut hasher = XxHash32::with_seed(0);
        let [flags, sizes] = self.source.array()?;
        hasher.write(&[flags, sizes]);
        if flags & flag::VERSION != flag::VERSION_1 || flags & flag::RESERVED != 0 {
            return Err(damaged("a frame of an unknown version"));
        }
        let remaining = if flags & flag::CONTENT_SIZE == 0 {
            None
        } else {
            let bytes = self.source.array()?;
            hasher.write(&bytes);
            Some(u64::from_le_bytes(bytes))
        };
        if flags & flag::DICTIONARY != 0 {
            return Err(damaged("a frame that needs a dictionary"));
        }
        let block_size = match sizes {
            0x40 => 64 << 10,
            0x50 => 256 << 10,
            0x60 => 1 << 20,
            0x70 => 4 << 20,
            _ => return Err(damaged("a frame with an unknown block size")),
        };
        let [_, sum, ..] = hasher.finish_32().to_le_bytes();
        if self.source.byte()? != sum {
            return Err(damaged("a frame's header has a wrong checksum"));
        }
        self.history = 0;
        self.content.resize(HISTORY + block_size, 0);
        self.packed.resize(block_size, 0);
        Ok(Frame {
            block_size,
            independent: flags & flag::INDEPENDENT != 0,
            block_checksums: flags & flag::BLOCK_CHECKSUMS != 0,
            checksum: (flags & flag::CONTENT_CHECKSUM != 0).then(|| XxHash32::with_seed(0)),
            remaining,
        })
    }

    /// Decodes the next block of `frame`; `false` at the frame's end, when everything about it was right.
    fn block(&mut self, frame: &mut Frame) -> io::Result<bool> {
        let word = u32::from_le_bytes(self.source.array()?);
        if word == 0 {
            if frame.remaining.is_some_and(|left| left > 0) {
                return Err(damaged("a frame has less content than its header says"));
            }
            if let Some(hasher) = &frame.checksum
                && u32::from_le_bytes(self.source.array()?) != hasher.finish_32()
            {
                return Err(damaged("the content has a wrong checksum (XXH32)"));
            }
            return Ok(false);
        }
        let stored = word >> 31 != 0;
        let length = usize::try_from(word & 0x7fff_ffff).unwrap_or(usize::MAX);
        if length > frame.block_size {
            return Err(damaged("a block is longer than its frame allows"));
        }
        // The history is what the block before left at the end of the content.
        if frame.independent {
            self.history = 0;
        } else {
            let keep = self.end.min(HISTORY);
            // A range is not copied onto itself: musl does that byte by byte.
            if keep < self.end {
                self.content.copy_within(self.end - keep..self.end, 0);
            }
            self.history = keep;
        }
        let (history, space) = self.content.split_at_mut(self.history);
        let space = space.get_mut(..frame.block_size).unwrap_or_default();
        let packed = self.packed.get_mut(..length).unwrap_or_default();
        self.source.fill(packed)?;
        if frame.block_checksums {
            let sum = u32::from_le_bytes(self.source.array()?);
            if sum != XxHash32::oneshot(0, packed) {
                return Err(damaged("a block has a wrong checksum (XXH32)"));
            }
        }
        let made = if stored {
            copy(packed, space)
        } else if history.is_empty() {
            decompress_into(packed, space).map_err(wrong_block)?
        } else {
            decompress_into_with_dict(packed, space, history).map_err(wrong_block)?
        };
        self.start = self.history;
        self.end = self.history.saturating_add(made);
        let content = self.content.get(self.start..self.end).unwrap_or_default();
        if let Some(hasher) = &mut frame.checksum {
            hasher.write(content);
        }
        if let Some(left) = &mut frame.remaining {
            *left = left
                .checked_sub(content.len() as u64)
                .ok_or_else(|| damaged("a frame has more content than its header says"))?;
        }
        Ok(true)
    }
}

fn wrong_block(_: lz4_flex::block::DecompressError) -> io::Error {
    damaged("a block is wrong")
}

impl Decoder for Lz4 {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let rest = self.content.get(self.start..self.end).unwrap_or_default();
            if !rest.is_empty() {
                let count = copy(rest, out);
                self.start += count;
                return Ok(count);
            }
            let mut frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.descriptor()? {
                    Some(frame) => {
                        // Nothing of an earlier frame is this one's history.
                        (self.start, self.end) = (0, 0);
                        frame
                    }
                    None => return Ok(0),
                },
            };
            if self.block(&mut frame)? {
                self.frame = Some(frame);
            }
        }
    }
}
