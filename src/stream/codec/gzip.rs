//! gzip (RFC 1952). The framing is read here and only the deflate data inside is left to the library: so
//! members of any number (pigz, bgzf, `cat a.gz b.gz`) share one inflater, zero padding as on tapes is
//! told from garbage, and a later parallel decoder finds the members.

use std::io;

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::{Chunks, Decoder, cut_short, damaged};

const FHCRC: u8 = 1 << 1;
const FEXTRA: u8 = 1 << 2;
const FNAME: u8 = 1 << 3;
const FCOMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0b1110_0000;
/// Longer names and comments are not names and comments.
const MAX_TEXT: usize = 64 << 10;

pub(super) struct Gzip {
    source: Chunks,
    inflater: Decompress,
    content: Crc,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first member.
    Start,
    /// In a member's deflate data.
    Inside,
    /// After a member: another one, padding, or the end.
    Between,
    End,
}

impl Gzip {
    pub(super) fn new(source: Chunks) -> Gzip {
        Gzip {
            source,
            inflater: Decompress::new(false),
            content: Crc::new(),
            state: State::Start,
        }
    }

    /// A member's header (section 2.3).
    fn header(&mut self) -> io::Result<()> {
        let mut header = Header {
            source: &mut self.source,
            crc: Crc::new(),
        };
        let [id1, id2, method, flags, ..] = header.array::<10>()?;
        if [id1, id2] != [0x1f, 0x8b] {
            return Err(damaged("bytes that are not gzip follow its end"));
        }
        if method != 8 || flags & RESERVED != 0 {
            return Err(damaged("a gzip member of an unknown kind"));
        }
        if flags & FEXTRA != 0 {
            for _ in 0..u16::from_le_bytes(header.array()?) {
                header.byte()?;
            }
        }
        if flags & FNAME != 0 {
            header.text()?;
        }
        if flags & FCOMMENT != 0 {
            header.text()?;
        }
        if flags & FHCRC != 0 {
            let [a, b, ..] = header.crc.sum().to_le_bytes();
            if header.array::<2>()? != [a, b] {
                return Err(damaged("a gzip header has a wrong checksum"));
            }
        }
        self.inflater.reset(false);
        self.content.reset();
        self.state = State::Inside;
        Ok(())
    }

    /// Decodes into `out`; 0 at the end of the member.
    fn inflate(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let window = self.source.window()?;
            let at_end = window.is_empty();
            let (was_in, was_out) = (self.inflater.total_in(), self.inflater.total_out());
            let status = self
                .inflater
                .decompress(window, out, FlushDecompress::None)
                .map_err(|_| damaged("deflate data are wrong"))?;
            // Both counts are at most the lengths of the two slices.
            let used = usize::try_from(self.inflater.total_in() - was_in).unwrap_or(usize::MAX);
            let made = usize::try_from(self.inflater.total_out() - was_out).unwrap_or(usize::MAX);
            self.source.consume(used);
            self.content.update(out.get(..made).unwrap_or_default());
            if status == Status::StreamEnd {
                self.trailer()?;
                self.state = State::Between;
                return Ok(made);
            }
            if made > 0 {
                return Ok(made);
            }
            if at_end {
                return Err(cut_short());
            }
            if used == 0 {
                return Err(damaged("deflate data lead nowhere"));
            }
        }
    }

    /// CRC and length of a member's content.
    fn trailer(&mut self) -> io::Result<()> {
        let mut word = || -> io::Result<u32> {
            let mut bytes = [0; 4];
            for byte in &mut bytes {
                *byte = self.source.byte()?;
            }
            Ok(u32::from_le_bytes(bytes))
        };
        if word()? != self.content.sum() {
            return Err(damaged("the content has a wrong checksum (CRC-32)"));
        }
        // Both are modulo 2^32.
        if word()? != self.content.amount() {
            return Err(damaged("the content has a wrong length"));
        }
        Ok(())
    }

    /// What follows a member.
    fn between(&mut self) -> io::Result<()> {
        match self.source.window()?.first() {
            None => self.state = State::End,
            Some(0) => {
                loop {
                    let window = self.source.window()?;
                    let count = window.len();
                    if count == 0 {
                        break;
                    }
                    if window.iter().any(|byte| *byte != 0) {
                        return Err(damaged("bytes follow the zero padding after its end"));
                    }
                    self.source.consume(count);
                }
                self.state = State::End;
            }
            Some(_) => self.header()?,
        }
        Ok(())
    }
}

impl Decoder for Gzip {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                State::Start => self.header()?,
                State::Between => self.between()?,
                State::End => return Ok(0),
                State::Inside => {
                    let made = self.inflate(out)?;
                    // An empty member, as at the end of bgzf, is not the end.
                    if made > 0 {
                        return Ok(made);
                    }
                }
            }
        }
    }
}

/// The bytes of a header, with their checksum.
struct Header<'a> {
    source: &'a mut Chunks,
    crc: Crc,
}

impl Header<'_> {
    fn byte(&mut self) -> io::Result<u8> {
        let byte = self.source.byte()?;
        self.crc.update(&[byte]);
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    fn text(&mut self) -> io::Result<()> {
        for _ in 0..MAX_TEXT {
            if self.byte()? == 0 {
                return Ok(());
            }
        }
        Err(damaged("a gzip header has an endless name"))
    }
}
