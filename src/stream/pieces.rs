//! Reading a file in any order, each piece proven: a first pass over the whole file, which proves it, keeps a
//! hash of every piece; what is read later must have the same.

use std::collections::VecDeque;

use sha2::{Digest as _, Sha256};

use super::buffer::BLOCK;
use super::download::Download;
use crate::error::{Class, Failure, Result};
use crate::image::qcow2::ReadAt;
use crate::units::Bytes;

/// Bytes of a file that are proven together, and fetched together.
const PIECE: usize = 1 << 20;
/// How many pieces are kept: what is read is seldom in quite the order in which it is stored.
const HELD: usize = 6;
/// So many pieces are read over rather than asked for anew behind them: that takes a connection.
const GAP: u64 = 4 * PIECE as u64;
/// How many pieces a file may have: 256 GiB.
const MOST: usize = 1 << 18;

/// The most memory that [`Pieces`] takes, in bytes.
pub(super) const MEMORY: usize = (HELD + 1) * PIECE + MOST * size_of::<Sum>();

// Blocks of the first pass are hashed one by one.
const _: () = assert!(BLOCK.is_multiple_of(PIECE));

type Sum = [u8; 32];

/// The SHA-256 of each piece.
#[derive(Debug, Default)]
pub(super) struct Sums {
    sums: Vec<Sum>,
    length: u64,
}

impl Sums {
    /// Adds the next block of the file. All but the last are whole.
    pub(super) fn add(&mut self, what: &str, block: &[u8]) -> Result<()> {
        self.length = self.length.saturating_add(block.len() as u64);
        if self.sums.len().saturating_add(block.len().div_ceil(PIECE)) > MOST {
            return Err(too_long(what));
        }
        let sums = block
            .chunks(PIECE)
            .map(|piece| Sum::from(Sha256::digest(piece)));
        self.sums.extend(sums);
        Ok(())
    }

    /// Refuses what has too many pieces, before they have come.
    pub(super) fn check(what: &str, length: Option<u64>) -> Result<()> {
        match length {
            Some(length) if length > MOST as u64 * PIECE as u64 => Err(too_long(what)),
            Some(_) | None => Ok(()),
        }
    }
}

fn too_long(what: &str) -> Failure {
    let most = Bytes(MOST as u64 * PIECE as u64);
    let text = format!("{what} is longer than the {most} that a qcow2 image may have");
    Failure::new(Class::Config, text).hint("compress it: `qemu-img convert -c`")
}

/// A file whose pieces are fetched when they are needed.
#[derive(Debug)]
pub(super) struct Pieces {
    what: String,
    download: Download,
    sums: Sums,
    /// The pieces that were used last, the newest in front.
    held: VecDeque<(u64, Vec<u8>)>,
}

impl Pieces {
    /// `download` is one that reads in any order.
    pub(super) fn new(what: String, download: Download, sums: Sums) -> Pieces {
        Pieces {
            what,
            download,
            sums,
            held: VecDeque::new(),
        }
    }

    /// Piece `number`, proven.
    fn piece(&mut self, number: u64) -> Result<&[u8]> {
        if let Some(at) = self.held.iter().position(|(n, _)| *n == number) {
            if let Some(found) = self.held.remove(at) {
                self.held.push_front(found);
            }
        } else {
            // The oldest gives its memory away.
            let full = self.held.len() >= HELD;
            let old = full.then(|| self.held.pop_back()).flatten();
            let mut bytes = old.map(|(_, bytes)| bytes).unwrap_or_default();
            self.fetch(number, &mut bytes)?;
            self.held.push_front((number, bytes));
        }
        Ok(self.held.front().map(|(_, b)| &**b).unwrap_or_default())
    }

    fn fetch(&mut self, number: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let start = number.saturating_mul(PIECE as u64);
        let left = self.sums.length.saturating_sub(start);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let sum = self.sums.sums.get(index).copied();
        loop {
            bytes.resize(PIECE, 0);
            self.go_to(start, bytes)?;
            bytes.resize(length, 0);
            let count = self.download.fill(bytes)?;
            let found: Sum = Sha256::digest(bytes.get(..count).unwrap_or_default()).into();
            if count == length && Some(found) == sum {
                return Ok(());
            }
            let text = format!(
                "{} is not what it was: its bytes {start} to {} have changed since they were proven",
                self.what,
                start.saturating_add(length as u64)
            );
            // Fails when there is no other place; each is asked once only.
            self.download
                .disbelieve(Failure::new(Class::Integrity, text).hint(
                    "start again; publish an image under a new name instead of overwriting it",
                ))?;
        }
    }

    /// Makes `start` the next byte to come; `scratch` takes what is read over.
    fn go_to(&mut self, start: u64, scratch: &mut [u8]) -> Result<()> {
        let gap = start.checked_sub(self.download.position());
        let Some(mut gap) = gap.filter(|gap| *gap <= GAP && self.download.is_open()) else {
            self.download.seek(start);
            return Ok(());
        };
        while gap > 0 {
            let step = usize::try_from(gap)
                .unwrap_or(usize::MAX)
                .min(scratch.len());
            let count = self
                .download
                .fill(scratch.get_mut(..step).unwrap_or_default())?;
            if count == 0 {
                self.download.seek(start);
                return Ok(());
            }
            gap -= count as u64;
        }
        Ok(())
    }
}

impl ReadAt for Pieces {
    fn length(&self) -> u64 {
        self.sums.length
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let within = usize::try_from(at % PIECE as u64).unwrap_or(0);
            let piece = self.piece(at / PIECE as u64)?;
            let there = piece.get(within..).unwrap_or_default();
            let step = there.len().min(rest.len());
            let (part, after) = rest.split_at_mut(step);
            part.copy_from_slice(there.get(..step).unwrap_or_default());
            if step == 0 {
                let text = format!("byte {at} of {} was asked for", self.what);
                return Err(Failure::new(Class::Bug, text));
            }
            at = at.saturating_add(step as u64);
            rest = after;
        }
        Ok(())
    }
}
