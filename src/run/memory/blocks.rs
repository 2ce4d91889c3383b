//! An image's blocks as a reader, with progress.

use std::io::{self, BufRead, Read};

use crate::error::Failure;
use crate::report::Reporter;
use crate::run::progress::Progress;
use crate::stream::{Block, ImageStream};

/// Reads what a stream decodes. A failure of the stream is inside the reader's error.
pub struct BlockReader<'a> {
    stream: &'a mut ImageStream,
    progress: Progress<'a>,
    block: Option<Block>,
    used: usize,
    read: u64,
    ended: bool,
}

impl std::fmt::Debug for BlockReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockReader(at {})", self.read)
    }
}

impl<'a> BlockReader<'a> {
    /// Begins with `first`, which was taken from `stream` already.
    pub fn new(stream: &'a mut ImageStream, first: Block, reporter: &'a Reporter) -> Self {
        BlockReader::in_step("loadRoot", stream, first, reporter)
    }

    /// The same, in another step.
    pub fn in_step(
        step: &'static str,
        stream: &'a mut ImageStream,
        first: Block,
        reporter: &'a Reporter,
    ) -> Self {
        BlockReader {
            stream,
            progress: Progress::new(step, reporter),
            block: Some(first),
            used: 0,
            read: 0,
            ended: false,
        }
    }

    /// The next block, after all that was read before.
    pub fn next_block(&mut self) -> Result<Option<Block>, Failure> {
        let next = match self.block.take() {
            Some(block) => Some(block),
            None => self.stream.next_block()?,
        };
        self.used = 0;
        self.count(next.as_ref());
        Ok(next)
    }

    /// What of the block was not used yet.
    fn rest(&self) -> &[u8] {
        let block = self.block.as_deref().unwrap_or_default();
        block.get(self.used..).unwrap_or_default()
    }

    /// Counts a block that was taken; after the last one, the end is told.
    fn count(&mut self, block: Option<&Block>) {
        match block {
            Some(block) => {
                self.read = self.read.saturating_add(block.len() as u64);
                self.progress.tell(self.stream, self.read);
            }
            None => self.progress.tell_end(self.stream, self.read),
        }
    }
}

impl Read for BlockReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let ready = self.fill_buf()?;
        let count = ready.len().min(out.len());
        if let (Some(to), Some(from)) = (out.get_mut(..count), ready.get(..count)) {
            to.copy_from_slice(from);
        }
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for BlockReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while !self.ended && self.rest().is_empty() {
            if let Some(done) = self.block.take() {
                self.count(Some(&done));
            }
            self.used = 0;
            self.block = self.stream.next_block().map_err(io::Error::other)?;
            if self.block.is_none() {
                self.ended = true;
                self.count(None);
            }
        }
        Ok(self.rest())
    }

    fn consume(&mut self, count: usize) {
        self.used = self.used.saturating_add(count);
    }
}
