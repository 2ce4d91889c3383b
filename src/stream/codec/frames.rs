//! Finding, without decoding them, the frames or members of a download that can be decoded each by itself.

use std::io::{self, ErrorKind};

use super::source::{Chunks, Parts};
use super::{cut_short, damaged, gzip, zstd};
use crate::stream::buffer::{AHEAD, CHUNK, CHUNKS};
use crate::stream::codec::Codec;

/// A frame that declares more than that is no piece of many.
const SINGLE: u64 = 64 << 20;

/// What a decoder does with whole frames or members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// gzip members that say how long they are.
    Gzip,
    /// Zstandard frames with windows of at most `window` bytes.
    Zstd {
        /// In bytes.
        window: u64,
    },
}

/// How finely the work is divided, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    /// A run of small frames is long enough at that many bytes, compressed,
    pub(super) enough: u64,
    /// or, as far as is known, decoded.
    pub(super) enough_decoded: u64,
    /// The longest run that is gathered.
    pub(super) longest: u64,
    /// How much a helper decodes at a time.
    pub(super) piece: usize,
}

impl Grain {
    const USUAL: Grain = Grain {
        enough: 256 << 10,
        enough_decoded: 1 << 20,
        // The chunks on their way to and from it must fit as well.
        longest: (CHUNK * (CHUNKS - 4)) as u64,
        // It stays in a cache until it is copied.
        piece: 256 << 10,
    };
}

/// How a download is decoded on several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stream) struct Plan {
    pub(super) framing: Framing,
    /// How many threads decode for the one that gives out the content.
    pub(super) helpers: u32,
    /// How many bytes may be decoded ahead of their turn.
    pub(super) ahead: usize,
    pub(super) grain: Grain,
}

impl Plan {
    /// A plan for a download that begins with `head`; `None` where one thread decodes it.
    pub(super) fn of(codec: Codec, head: &[u8], threads: u32) -> Option<Plan> {
        let (framing, each) = match codec {
            Codec::Gzip => {
                gzip::declared_length(head)?;
                // An inflater, its window and its tables.
                (Framing::Gzip, 128 << 10)
            }
            Codec::Zstd => {
                let header = zstd::first_frame(head)?;
                if header.content.is_some_and(|content| content > SINGLE) {
                    return None;
                }
                let window = header.window;
                // Beside the window: a block, its literals, and the tables.
                let each = usize::try_from(window).ok()?.checked_add(512 << 10)?;
                (Framing::Zstd { window }, each)
            }
            Codec::Raw | Codec::Xz | Codec::Bzip2 | Codec::Lz4 | Codec::Qcow2 => return None,
        };
        // Half of the memory is for what they decode: helpers without room for it would only wait.
        let affordable = u32::try_from((AHEAD / 2).checked_div(each)?).ok()?;
        // The thread that they help has its hands full with copying, so that one helper is no gain.
        let helpers = threads.min(affordable);
        if helpers < 2 {
            return None;
        }
        Some(Plan {
            framing,
            helpers,
            ahead: AHEAD - each * helpers as usize,
            grain: Grain::USUAL,
        })
    }
}

impl Plan {
    /// Gathers the next whole frames; `None` where what comes next must be decoded to know where it ends,
    /// is too long to be gathered, is damaged, or is nothing. Fails only when the download was cut off.
    pub(super) fn gather(&self, source: &mut Chunks) -> io::Result<Option<Parts>> {
        let mut run = Parts::default();
        let (mut length, mut decoded) = (0, 0);
        let grain = self.grain;
        while length < grain.enough && decoded < grain.enough_decoded {
            let mut frame = Gathering {
                source,
                parts: Parts::default(),
                length: 0,
                room: grain.longest - length,
            };
            let estimate = match self.framing {
                Framing::Gzip => gzip::walk(&mut frame),
                Framing::Zstd { window } => zstd::walk(&mut frame, window),
            };
            let Gathering {
                parts, length: len, ..
            } = frame;
            match estimate {
                Ok(estimate) => {
                    length += len;
                    decoded = estimate.saturating_add(decoded);
                    run.append(parts);
                }
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(error),
                // Whatever it is: the decoder judges, not this.
                Err(_) => {
                    source.give_back(parts);
                    break;
                }
            }
        }
        Ok((length > 0).then_some(run))
    }
}

/// Sets a frame aside while its headers are read.
pub(super) struct Gathering<'a> {
    source: &'a mut Chunks,
    parts: Parts,
    length: u64,
    room: u64,
}

impl Gathering<'_> {
    /// How many bytes the frame has so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// One byte; an error at the end or where there is no more room.
    pub(super) fn byte(&mut self) -> io::Result<u8> {
        let byte = *self.source.window()?.first().ok_or_else(cut_short)?;
        self.skip(1)?;
        Ok(byte)
    }

    /// `N` bytes; an error as for `byte`.
    pub(super) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// Passes over `count` bytes of the frame; an error as for `byte`.
    pub(super) fn skip(&mut self, mut count: u64) -> io::Result<()> {
        if self.length.saturating_add(count) > self.room {
            return Err(damaged("a frame too long to be gathered"));
        }
        while count > 0 {
            let step = usize::try_from(count).unwrap_or(usize::MAX);
            let moved = self.source.set_aside(step, &mut self.parts)? as u64;
            if moved == 0 {
                return Err(cut_short());
            }
            self.length += moved;
            count -= moved;
        }
        Ok(())
    }
}

impl gzip::Bytes for Gathering<'_> {
    fn byte(&mut self) -> io::Result<u8> {
        Gathering::byte(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame's header with the window 2^`log`, behind a skippable frame as pzstd writes it.
    fn pzstd(log: u8) -> Vec<u8> {
        let mut head = b"\x50\x2a\x4d\x18\x04\0\0\0abcd\x28\xb5\x2f\xfd\x04".to_vec();
        head.push((log - 10) << 3);
        head
    }

    #[test]
    fn several_threads_decode_only_what_consists_of_pieces() {
        let bgzf = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0\x1b\0";
        let bare = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01\x02\x03\x04";
        // One segment of 1 GiB, and one of 4 MiB.
        let single = b"\x28\xb5\x2f\xfd\xa4\0\0\0\x40\0";
        let small = b"\x28\xb5\x2f\xfd\xa4\0\0\x40\0\0";
        for (codec, head, threads, planned) in [
            (Codec::Gzip, &bgzf[..], 8, true),
            (Codec::Gzip, &bgzf[..], 1, false),
            (Codec::Gzip, &bgzf[..15], 8, false),
            (Codec::Gzip, &bare[..], 8, false),
            (Codec::Zstd, &pzstd(21), 8, true),
            (Codec::Zstd, &pzstd(27), 8, false),
            (Codec::Zstd, single, 8, false),
            (Codec::Zstd, small, 8, false),
            (Codec::Zstd, &single[..6], 8, false),
            (Codec::Xz, &bgzf[..], 8, false),
        ] {
            let plan = Plan::of(codec, head, threads);
            assert_eq!(plan.is_some(), planned, "{codec} {head:?}");
        }
    }

    #[test]
    fn helpers_and_what_they_decode_share_one_bound() {
        for threads in [2, 3, 64, u32::MAX] {
            for log in 10..=22 {
                let Some(plan) = Plan::of(Codec::Zstd, &pzstd(log), threads) else {
                    assert!(log > 21);
                    continue;
                };
                let windows = plan.helpers as usize * (1 << log);
                assert!(windows + plan.ahead <= AHEAD && plan.ahead >= AHEAD / 2);
                assert!((2..=threads).contains(&plan.helpers));
            }
        }
    }
}
