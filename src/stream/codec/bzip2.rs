//! bzip2: any number of streams, as pbzip2 and `cat a.bz2 b.bz2` make. The format has no specification but
//! its program; a stream's blocks hold at most 900 kB, so memory needs no cap.

use std::io;

use bzip2::{Decompress, Status};

use super::{Chunks, Decoder, cut_short, damaged};

pub(super) struct Bzip2 {
    source: Chunks,
    /// The stream that is being decoded.
    stream: Option<Decompress>,
    begun: bool,
}

impl Bzip2 {
    pub(super) fn new(source: Chunks) -> Bzip2 {
        Bzip2 {
            source,
            stream: None,
            begun: false,
        }
    }
}

impl Decoder for Bzip2 {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let window = self.source.window()?;
            let at_end = window.is_empty();
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None if at_end && self.begun => return Ok(0),
                None if at_end => return Err(cut_short()),
                None => self.stream.insert(Decompress::new(false)),
            };
            let (was_in, was_out) = (stream.total_in(), stream.total_out());
            let status = stream
                .decompress(window, out)
                .map_err(|error| understood(error, self.begun))?;
            // Both counts are at most the lengths of the two slices.
            let used = usize::try_from(stream.total_in() - was_in).unwrap_or(usize::MAX);
            let made = usize::try_from(stream.total_out() - was_out).unwrap_or(usize::MAX);
            self.source.consume(used);
            match status {
                Status::StreamEnd => {
                    self.stream = None;
                    self.begun = true;
                }
                Status::MemNeeded => return Err(io::ErrorKind::OutOfMemory.into()),
                Status::Ok | Status::FlushOk | Status::RunOk | Status::FinishOk => {
                    if made == 0 && at_end {
                        return Err(cut_short());
                    }
                    if made == 0 && used == 0 {
                        return Err(damaged("a block leads nowhere"));
                    }
                }
            }
            if made > 0 {
                return Ok(made);
            }
        }
    }
}

fn understood(error: bzip2::Error, begun: bool) -> io::Error {
    match error {
        bzip2::Error::DataMagic if begun => damaged("bytes that are not bzip2 follow its end"),
        bzip2::Error::DataMagic => damaged("the stream's header is wrong"),
        bzip2::Error::Data => damaged("a block or its checksum is wrong"),
        bzip2::Error::Param | bzip2::Error::Sequence => {
            io::Error::other("the bzip2 library was used wrongly")
        }
    }
}
