//! xz (.xz file format 1.2.1): any number of streams and blocks. The library decodes blocks that say how
//! long they are on several threads, as `xz -T0` makes them, and everything else on this one.

use std::io;

use liblzma::stream::{Action, Error, MtStreamBuilder, Status, Stream};

use super::means::Means;
use super::{Chunks, Decoder, WINDOW_CAP, cut_short, damaged};

/// The largest memory that one block's filters may take, in bytes: the dictionary, and what the library
/// needs beside it.
const FILTERS_CAP: u64 = WINDOW_CAP + (1 << 20);
/// How long the library may be busy without a result, in milliseconds, before this looks whether the result
/// is still wanted.
const PATIENCE: u32 = 100;
/// The length of a stream's header, in bytes (section 2.1.1).
const HEADER: usize = 12;
/// The checks (section 2.1.1.2) that the library verifies: none, CRC32, CRC64, SHA-256. It would pass over
/// any other.
const CHECKS: [u8; 4] = [0, 1, 4, 10];

pub(super) struct Xz {
    source: Chunks,
    means: Means,
    stream: Option<Stream>,
    begun: bool,
}

impl Xz {
    pub(super) fn new(source: Chunks, means: Means) -> Xz {
        Xz {
            source,
            means,
            stream: None,
            begun: false,
        }
    }

    /// The next stream, its header read; `None` at the end of the source.
    fn next(&mut self) -> io::Result<Option<Stream>> {
        if self.begun && !self.padding()? {
            return Ok(None);
        }
        let header: [u8; HEADER] = self.source.array()?;
        let mut stream = open(self.means).map_err(understood)?;
        // The library checks the header's own checksum first of all.
        let status = stream.process(&header, &mut [], Action::Run);
        match status.map_err(|error| match error {
            Error::Format if self.begun => damaged("bytes that are not xz follow its end"),
            error => understood(error),
        })? {
            Status::Ok | Status::MemNeeded | Status::GetCheck => {}
            Status::StreamEnd => return Err(damaged("a stream ends in its header")),
        }
        let [.., check, _, _, _, _] = header;
        if !CHECKS.contains(&check) {
            return Err(damaged("a check of an unknown kind"));
        }
        self.begun = true;
        Ok(Some(stream))
    }

    /// Passes over padding between streams: zeros, a multiple of four (section 2.2). `false` at the end of
    /// the source.
    fn padding(&mut self) -> io::Result<bool> {
        let mut count = 0u64;
        loop {
            let window = self.source.window()?;
            let zeros = window.iter().take_while(|byte| **byte == 0).count();
            let all = zeros == window.len();
            let more = !window.is_empty();
            count += zeros as u64;
            self.source.consume(zeros);
            if all && more {
                continue;
            }
            if !count.is_multiple_of(4) {
                return Err(damaged("padding that is not a multiple of four bytes"));
            }
            return Ok(more);
        }
    }
}

/// A decoder of one stream.
fn open(means: Means) -> Result<Stream, Error> {
    if means.threads < 2 {
        return Stream::new_stream_decoder(FILTERS_CAP, 0);
    }
    let mut stream = MtStreamBuilder::new()
        .threads(means.threads)
        .timeout_ms(PATIENCE)
        .memlimit_threading(means.memory)
        // It caps the former, too, so that it must begin above it.
        .memlimit_stop(means.memory.max(FILTERS_CAP))
        .decoder()?;
    stream.set_memlimit(FILTERS_CAP)?;
    Ok(stream)
}

impl Decoder for Xz {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => match self.next()? {
                    Some(stream) => stream,
                    None => return Ok(0),
                },
            };
            let window = self.source.window()?;
            // With "finish" the library waits for its threads instead of for more input.
            let at_end = window.is_empty();
            let action = if at_end { Action::Finish } else { Action::Run };
            let (was_in, was_out) = (stream.total_in(), stream.total_out());
            let status = stream.process(window, out, action).map_err(understood)?;
            // Both counts are at most the lengths of the two slices.
            let used = usize::try_from(stream.total_in() - was_in).unwrap_or(usize::MAX);
            let made = usize::try_from(stream.total_out() - was_out).unwrap_or(usize::MAX);
            self.source.consume(used);
            match status {
                Status::StreamEnd => {}
                Status::MemNeeded if made == 0 && at_end => return Err(cut_short()),
                Status::MemNeeded if made == 0 && used == 0 => {
                    return Err(damaged("a block leads nowhere"));
                }
                Status::Ok | Status::GetCheck | Status::MemNeeded => self.stream = Some(stream),
            }
            if made > 0 {
                return Ok(made);
            }
        }
    }
}

fn understood(error: Error) -> io::Error {
    match error {
        Error::MemLimit => io::ErrorKind::OutOfMemory.into(),
        Error::Data => damaged("a block, a checksum or the index is wrong"),
        Error::Format => damaged("the stream's header is wrong"),
        Error::Options => damaged("a filter or an option of an unknown kind"),
        Error::UnsupportedCheck | Error::NoCheck => damaged("a check of an unknown kind"),
        Error::Mem => io::Error::other("there is not enough memory for its blocks"),
        Error::Program => io::Error::other("the xz library was used wrongly"),
    }
}
