//! An image's blocks as a reader, with progress.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::report::{Event, Reporter};
use crate::stream::{Block, ImageStream};

/// Progress events, at most five a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Reads what a stream decodes.
pub struct BlockReader<'a> {
    stream: &'a mut ImageStream,
    reporter: &'a Reporter,
    block: Option<Block>,
    used: usize,
    read: u64,
    failure: Option<Failure>,
    told: Option<Instant>,
}

impl std::fmt::Debug for BlockReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockReader(at {})", self.read)
    }
}

impl<'a> BlockReader<'a> {
    /// Begins with `first`, which was taken from `stream` already.
    pub fn new(stream: &'a mut ImageStream, first: Block, reporter: &'a Reporter) -> Self {
        BlockReader {
            stream,
            reporter,
            block: Some(first),
            used: 0,
            read: 0,
            failure: None,
            told: None,
        }
    }

    /// The next block, after all that was read before.
    pub fn next_block(&mut self) -> Result<Option<Block>, Failure> {
        let next = match self.block.take() {
            Some(block) => Some(block),
            None => self.stream.next_block()?,
        };
        self.used = 0;
        self.read = self
            .read
            .saturating_add(next.as_ref().map_or(0, |b| b.len() as u64));
        self.tell(next.is_none());
        Ok(next)
    }

    /// Why the stream ended early, where it did: what a reader of this makes of it says less.
    pub fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    fn tell(&mut self, always: bool) {
        if !always && self.told.is_some_and(|t| t.elapsed() < PROGRESS_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let counters = self.stream.counters();
        self.reporter.emit(Event::Progress {
            step: "loadRoot",
            written: self.read,
            total: self.stream.content_length(),
            received: counters.received,
            expected: counters.expected,
        });
    }
}

impl Read for BlockReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(block) = &self.block {
                let rest = block.get(self.used..).unwrap_or_default();
                if !rest.is_empty() {
                    let count = rest.len().min(out.len());
                    if let (Some(to), Some(from)) = (out.get_mut(..count), rest.get(..count)) {
                        to.copy_from_slice(from);
                    }
                    self.used = self.used.saturating_add(count);
                    return Ok(count);
                }
                self.read = self.read.saturating_add(block.len() as u64);
                self.block = None;
                self.used = 0;
                self.tell(false);
            }
            match self.stream.next_block() {
                Ok(Some(block)) => self.block = Some(block),
                Ok(None) => {
                    self.tell(true);
                    return Ok(0);
                }
                Err(failure) => {
                    let text = failure.to_string();
                    self.failure.get_or_insert(failure);
                    return Err(io::Error::other(text));
                }
            }
        }
    }
}
