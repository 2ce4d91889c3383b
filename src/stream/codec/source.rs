//! What decoders read from: the chunks of a download, in order.

use std::io::{self, Read};
use std::sync::mpsc::Receiver;

use crate::stream::buffer::Slab;
use crate::stream::digest::Item;

/// The compressed bytes, as they come through a channel.
pub(in crate::stream) struct Chunks {
    input: Receiver<Item>,
    current: Option<Slab>,
    position: usize,
    ended: bool,
}

impl Chunks {
    pub(in crate::stream) fn new(input: Receiver<Item>) -> Chunks {
        Chunks {
            input,
            current: None,
            position: 0,
            ended: false,
        }
    }

    /// The bytes at hand, at least one; empty only at the end of the download. Fails when the download was
    /// cut off: whoever cut it off has said why.
    pub(super) fn window(&mut self) -> io::Result<&[u8]> {
        while !self.ended && self.rest().is_empty() {
            self.position = 0;
            self.current = None;
            match self.input.recv() {
                Ok(Item::Data(slab)) => self.current = Some(slab),
                Ok(Item::End) => self.ended = true,
                Err(_) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(self.rest())
    }

    /// Drops the first `count` bytes of the window.
    pub(super) fn consume(&mut self, count: usize) {
        self.position = self.position.saturating_add(count);
    }

    /// One byte; an error at the end.
    pub(super) fn byte(&mut self) -> io::Result<u8> {
        let byte = *self.window()?.first().ok_or_else(super::cut_short)?;
        self.consume(1);
        Ok(byte)
    }

    fn rest(&self) -> &[u8] {
        self.current
            .as_deref()
            .and_then(|slab| slab.get(self.position..))
            .unwrap_or_default()
    }
}

impl Read for Chunks {
    /// Fills all of `out` unless the download ends first: some readers take a short read for the end.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(space) = out.get_mut(filled..).filter(|space| !space.is_empty()) {
            let window = self.window()?;
            let count = window.len().min(space.len());
            if count == 0 {
                break;
            }
            for (to, from) in space.iter_mut().zip(window) {
                *to = *from;
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
        Chunks::new(rx)
    }
}
