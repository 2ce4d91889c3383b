//! What decoders read from: the chunks of a download, in order, or a part of them that was set aside.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::mpsc::Receiver;

use crate::stream::buffer::Slab;
use crate::stream::cancel::Cancel;
use crate::stream::digest::Item;

/// The compressed bytes, as they come through a channel.
pub(in crate::stream) struct Chunks {
    /// What is at hand; only the last of them may be empty.
    parts: Parts,
    /// Where more comes from, until it ended.
    input: Option<Receiver<Item>>,
    cancel: Cancel,
    /// How many bytes were consumed.
    position: u64,
}

/// Bytes of a download that stay in the buffers into which they were received.
#[derive(Default)]
pub(super) struct Parts(VecDeque<Part>);

struct Part {
    slab: Slab,
    range: Range<usize>,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        self.slab.get(self.range.clone()).unwrap_or_default()
    }
}

impl Chunks {
    pub(in crate::stream) fn new(input: Receiver<Item>, cancel: Cancel) -> Chunks {
        Chunks {
            parts: Parts::default(),
            input: Some(input),
            cancel,
            position: 0,
        }
    }

    /// Only `parts`, and then the end.
    pub(super) fn of_parts(parts: Parts, cancel: Cancel) -> Chunks {
        Chunks {
            parts,
            input: None,
            cancel,
            position: 0,
        }
    }

    /// The bytes at hand, at least one; empty only at the end of the download. Fails when the download was
    /// cut off: whoever cut it off has said why.
    pub(super) fn window(&mut self) -> io::Result<&[u8]> {
        if self.cancel.is_cancelled() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        while self.rest().is_empty() {
            // The buffer returns to its pool before this waits for the next one.
            self.parts.0.pop_front();
            if !self.parts.0.is_empty() {
                continue;
            }
            let Some(input) = &self.input else {
                break;
            };
            match input.recv() {
                Ok(Item::Data(slab)) => self.parts.push(slab, None),
                Ok(Item::End) => self.input = None,
                Err(_) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(self.rest())
    }

    /// Drops the first `count` bytes of the window.
    pub(super) fn consume(&mut self, count: usize) {
        if let Some(part) = self.parts.0.front_mut() {
            let count = count.min(part.range.len());
            part.range.start += count;
            self.position = self.position.saturating_add(count as u64);
        }
    }

    /// Moves at most `count` bytes of the window to the end of `parts`, and says how many; 0 at the end.
    pub(super) fn set_aside(&mut self, count: usize, parts: &mut Parts) -> io::Result<usize> {
        let count = self.window()?.len().min(count);
        if let Some(part) = self.parts.0.front() {
            let start = part.range.start;
            parts.push(part.slab.clone(), Some(start..start.saturating_add(count)));
        }
        self.consume(count);
        Ok(count)
    }

    /// Puts what was set aside in front again.
    pub(super) fn give_back(&mut self, mut parts: Parts) {
        self.position = self.position.saturating_sub(parts.len());
        parts.0.append(&mut self.parts.0);
        self.parts = parts;
    }

    /// How many bytes were consumed.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// One byte; an error at the end.
    pub(super) fn byte(&mut self) -> io::Result<u8> {
        let byte = *self.window()?.first().ok_or_else(super::cut_short)?;
        self.consume(1);
        Ok(byte)
    }

    /// `N` bytes; an error where the download ends before them.
    pub(super) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Fills all of `out`; an error where the download ends before that.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> io::Result<()> {
        let filled = self.read(out)?;
        if filled < out.len() {
            return Err(super::cut_short());
        }
        Ok(())
    }

    /// Drops `count` bytes; an error where the download ends before them.
    pub(super) fn skip(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let here = self.window()?.len();
            if here == 0 {
                return Err(super::cut_short());
            }
            let step = usize::try_from(count).unwrap_or(usize::MAX).min(here);
            self.consume(step);
            count -= step as u64;
        }
        Ok(())
    }

    fn rest(&self) -> &[u8] {
        self.parts.0.front().map(Part::bytes).unwrap_or_default()
    }
}

impl Parts {
    /// How many bytes these are.
    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|part| part.range.len() as u64).sum()
    }

    /// Appends `other`.
    pub(super) fn append(&mut self, other: Parts) {
        for part in other.0 {
            self.push(part.slab, Some(part.range));
        }
    }

    /// Appends `range` of `slab`, or all of it.
    fn push(&mut self, slab: Slab, range: Option<Range<usize>>) {
        let range = range.unwrap_or(0..slab.len());
        match self.0.back_mut() {
            // Headers are set aside byte by byte.
            Some(last) if last.slab.is(&slab) && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => self.0.push_back(Part { slab, range }),
        }
    }
}

/// Copies as many bytes as there are and fit, and says how many.
pub(super) fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let count = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..count), to.get_mut(..count)) {
        to.copy_from_slice(from);
    }
    count
}

impl Read for Chunks {
    /// Fills all of `out` unless the download ends first: some readers take a short read for the end.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(space) = out.get_mut(filled..).filter(|space| !space.is_empty()) {
            let count = copy(self.window()?, space);
            if count == 0 {
                break;
            }
            self.consume(count);
            filled += count;
        }
        Ok(filled)
    }
}

#[cfg(test)]
impl Chunks {
    /// Chunks for tests: `pieces` one after the other, then the end, or a cut.
    pub(super) fn of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, ends: bool) -> Chunks {
        let (tx, rx) = std::sync::mpsc::channel();
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            let mut buffer = crate::stream::buffer::Pool::new(piece.len(), 1)
                .take()
                .unwrap();
            buffer.space().copy_from_slice(piece);
            tx.send(Item::Data(buffer.share(piece.len()))).unwrap();
        }
        if ends {
            tx.send(Item::End).unwrap();
        }
        Chunks::new(rx, Cancel::default())
    }
}
