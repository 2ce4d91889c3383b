//! gzip (RFC 1952). The framing is read here and only the deflate data inside is left to the library: so
//! members of any number (pigz, bgzf, `cat a.gz b.gz`) share one inflater, zero padding as on tapes is
//! told from garbage, and the parallel decoder finds the members that say how long they are.

use std::io;

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::frames::Gathering;
use super::parallel::Framed;
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
    /// Where the member began in its source, and how long it is by its own account.
    began: u64,
    declared: Option<u64>,
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
            began: 0,
            declared: None,
        }
    }

    fn header(&mut self) -> io::Result<()> {
        self.began = self.source.position();
        self.declared = header(&mut self.source)?;
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
        if u32::from_le_bytes(self.source.array()?) != self.content.sum() {
            return Err(damaged("the content has a wrong checksum (CRC-32)"));
        }
        // Both are modulo 2^32.
        if u32::from_le_bytes(self.source.array()?) != self.content.amount() {
            return Err(damaged("the content has a wrong length"));
        }
        // One thread would not need the declared length, but what several refuse it must refuse as well.
        let length = self.source.position() - self.began;
        if self.declared.is_some_and(|declared| declared != length) {
            return Err(damaged("a member is not as long as its header says"));
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

impl Framed for Gzip {
    fn replace_source(&mut self, source: Chunks) -> Chunks {
        // The end of one part is not that of the download.
        if self.state == State::End {
            self.state = State::Between;
        }
        std::mem::replace(&mut self.source, source)
    }

    fn at_boundary(&self) -> bool {
        self.state == State::Between
    }
}

/// Passes over a member that says how long it is. Returns how long its content may be, in bytes.
pub(super) fn walk(member: &mut Gathering<'_>) -> io::Result<u64> {
    let unknown = || damaged("a member of unknown length");
    let length = header(member)?.ok_or_else(unknown)?;
    let rest = length.checked_sub(member.length()).ok_or_else(unknown)?;
    member.skip(rest)?;
    // A usual ratio. It decides how much one thread takes at a time, nothing else.
    Ok(length.saturating_mul(4))
}

/// How long the first member is, where `head` has its whole header and that tells it.
pub(super) fn declared_length(mut head: &[u8]) -> Option<u64> {
    header(&mut head).ok().flatten()
}

/// Where a header is read from.
pub(super) trait Bytes {
    /// The next byte; an error at the end.
    fn byte(&mut self) -> io::Result<u8>;
}

impl Bytes for &[u8] {
    fn byte(&mut self) -> io::Result<u8> {
        let (byte, rest) = self.split_first().ok_or_else(cut_short)?;
        *self = rest;
        Ok(*byte)
    }
}

impl Bytes for Chunks {
    fn byte(&mut self) -> io::Result<u8> {
        Chunks::byte(self)
    }
}

/// Reads a member's header (section 2.3). Returns the length of the whole member, where a subfield of the
/// header tells it.
fn header(source: &mut impl Bytes) -> io::Result<Option<u64>> {
    let mut header = Header {
        source,
        crc: Crc::new(),
    };
    let [id1, id2, method, flags, ..] = header.array::<10>()?;
    if [id1, id2] != [0x1f, 0x8b] {
        return Err(damaged("bytes that are not gzip follow its end"));
    }
    if method != 8 || flags & RESERVED != 0 {
        return Err(damaged("a gzip member of an unknown kind"));
    }
    let mut declared = None;
    if flags & FEXTRA != 0 {
        let mut left = u16::from_le_bytes(header.array()?);
        while let Some(after) = left.checked_sub(4) {
            let [id1, id2, low, high] = header.array()?;
            let length = u16::from_le_bytes([low, high]);
            left = after.saturating_sub(length);
            match (&[id1, id2], length.min(after)) {
                // bgzf: the SAM specification, section 4.1.
                (b"BC", 2) => declared = Some(u64::from(u16::from_le_bytes(header.array()?)) + 1),
                // mgzip and pgzip.
                (b"IG", 4) => declared = Some(u64::from(u32::from_le_bytes(header.array()?))),
                (_, length) => header.skip(length)?,
            }
        }
        header.skip(left)?;
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
    Ok(declared)
}

/// The bytes of a header, with their checksum.
struct Header<'a, S> {
    source: &'a mut S,
    crc: Crc,
}

impl<S: Bytes> Header<'_, S> {
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

    fn skip(&mut self, count: u16) -> io::Result<()> {
        for _ in 0..count {
            self.byte()?;
        }
        Ok(())
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
