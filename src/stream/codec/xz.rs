//! xz (.xz file format 1.2.1).

use std::io::{self, Read as _};

use lzma_rust2::XzReader;

use super::{Chunks, Decoder, WINDOW_CAP};

/// The cap in KiB. The library counts its range decoder and tables into the limit; 1 MiB is ample for them.
const LIMIT_KIB: u32 = (128 << 10) + 1024;
const _: () = assert!(((LIMIT_KIB as u64 - 1024) << 10) == WINDOW_CAP);

pub(super) struct Xz {
    reader: XzReader<Chunks>,
    ended: bool,
}

impl Xz {
    pub(super) fn new(source: Chunks) -> Xz {
        Xz {
            // Several streams, with padding in multiples of four bytes (section 2.2).
            reader: XzReader::new_mem_limit(source, true, LIMIT_KIB),
            ended: false,
        }
    }
}

impl Decoder for Xz {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.ended || out.is_empty() {
            return Ok(0);
        }
        let made = self.reader.read(out)?;
        if made == 0 {
            self.ended = true;
            // The reader goes on to the end of its source; this does not take its word for it.
            if !self.reader.inner_mut().window()?.is_empty() {
                return Err(super::damaged("bytes follow its end"));
            }
        }
        Ok(made)
    }
}
