//! Zstandard (RFC 8878).

use std::io;

use zstd::stream::raw::{DParameter, Decoder as Raw, InBuffer, Operation as _, OutBuffer};

use super::frames::Gathering;
use super::parallel::Framed;
use super::{Chunks, Decoder, WINDOW_CAP, cut_short, damaged};
use crate::error::{Class, Failure, Result};
use crate::units::Bytes;

pub(super) struct Zstd {
    source: Chunks,
    decoder: Raw<'static>,
    /// Everything so far was whole frames.
    at_boundary: bool,
}

impl Zstd {
    pub(super) fn new(source: Chunks) -> io::Result<Zstd> {
        let mut decoder = Raw::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_CAP.ilog2()))?;
        Ok(Zstd {
            source,
            decoder,
            at_boundary: true,
        })
    }
}

impl Decoder for Zstd {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let window = self.source.window()?;
            if window.is_empty() && self.at_boundary {
                return Ok(0);
            }
            let mut input = InBuffer::around(window);
            let mut output = OutBuffer::around(&mut *out);
            let hint = self
                .decoder
                .run(&mut input, &mut output)
                .map_err(understood)?;
            let (used, made) = (input.pos(), output.pos());
            let stuck = used == 0 && made == 0;
            let at_end = window.is_empty();
            self.source.consume(used);
            // 0: a frame ended and all of its content was given out.
            self.at_boundary = hint == 0;
            if made > 0 {
                return Ok(made);
            }
            if at_end && !self.at_boundary {
                return Err(cut_short());
            }
            if stuck && !at_end {
                return Err(damaged("a frame leads nowhere"));
            }
        }
    }
}

impl Framed for Zstd {
    fn replace_source(&mut self, source: Chunks) -> Chunks {
        std::mem::replace(&mut self.source, source)
    }

    fn at_boundary(&self) -> bool {
        self.at_boundary
    }
}

/// The library gives its errors as texts only. This one has a remedy of its own.
fn understood(error: io::Error) -> io::Error {
    if error.to_string().contains("too much memory") {
        io::Error::new(io::ErrorKind::OutOfMemory, error)
    } else {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// A frame's magic (section 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The last three bytes of the magics of skippable frames; the first is 0x50 to 0x5f (section 3.1.2).
const SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

/// What a frame's header says of window and content (section 3.1.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// In bytes.
    pub(super) window: u64,
    /// Its length in bytes.
    pub(super) content: Option<u64>,
}

impl FrameHeader {
    /// How many bytes follow the descriptor: window, dictionary and content size.
    fn rest(descriptor: u8) -> usize {
        let single_segment = descriptor & 0b0010_0000 != 0;
        let dictionary = match descriptor & 3 {
            3 => 4,
            length => usize::from(length),
        };
        usize::from(!single_segment) + dictionary + Self::content_size(descriptor)
    }

    fn content_size(descriptor: u8) -> usize {
        match (descriptor >> 6, descriptor & 0b0010_0000 != 0) {
            (0, false) => 0,
            (0, true) => 1,
            (1, _) => 2,
            (2, _) => 4,
            (_, _) => 8,
        }
    }

    /// Reads what follows `descriptor`; `None` where `rest` is too short.
    fn parse(descriptor: u8, rest: &[u8]) -> Option<FrameHeader> {
        let single_segment = descriptor & 0b0010_0000 != 0;
        let rest = rest.get(..Self::rest(descriptor))?;
        let window = if single_segment {
            None
        } else {
            let byte = rest.first()?;
            let base = 1u64 << (10 + (byte >> 3));
            Some(base + base / 8 * u64::from(byte & 7))
        };
        let size = Self::content_size(descriptor);
        let (_, size_bytes) = rest.split_at_checked(rest.len().checked_sub(size)?)?;
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(size_bytes) {
            *to = *from;
        }
        let add = if size == 2 { 256 } else { 0 };
        let content = (size > 0).then(|| u64::from_le_bytes(bytes).saturating_add(add));
        // A single segment is its own window.
        let window = window.or(content)?;
        Some(FrameHeader { window, content })
    }
}

/// The header of the first frame that is not skippable; `None` where the bytes do not suffice or are no
/// frame: the decoder will tell.
pub(super) fn first_frame(head: &[u8]) -> Option<FrameHeader> {
    let (descriptor, rest) = after_skippable(head).strip_prefix(&MAGIC)?.split_first()?;
    FrameHeader::parse(*descriptor, rest)
}

/// What follows the skippable frames at the beginning of `head`; all of what is left where one is not
/// there to its end.
pub(super) fn after_skippable(mut head: &[u8]) -> &[u8] {
    while let [0x50..=0x5f, a, b, c, d, e, f, g, rest @ ..] = head
        && [*a, *b, *c] == SKIPPABLE
        && let Some(rest) = usize::try_from(u32::from_le_bytes([*d, *e, *f, *g]))
            .ok()
            .and_then(|length| rest.get(length..))
    {
        head = rest;
    }
    head
}

/// Passes over a frame with a window of at most `window` bytes, by the headers of its blocks (section
/// 3.1.1.2). Returns how long its content may be, in bytes.
pub(super) fn walk(frame: &mut Gathering<'_>, window: u64) -> io::Result<u64> {
    match frame.array::<4>()? {
        MAGIC => {}
        [0x50..=0x5f, a, b, c] if [a, b, c] == SKIPPABLE => {
            let length = u32::from_le_bytes(frame.array()?);
            frame.skip(length.into())?;
            return Ok(0);
        }
        _ => return Err(damaged("no frame")),
    }
    let descriptor = frame.byte()?;
    let mut rest = [0; 13];
    for byte in rest.iter_mut().take(FrameHeader::rest(descriptor)) {
        *byte = frame.byte()?;
    }
    let header = FrameHeader::parse(descriptor, &rest);
    if header.is_none_or(|header| header.window > window) {
        return Err(damaged("a frame for another decoder"));
    }
    let mut decoded = 0u64;
    loop {
        let [a, b, c] = frame.array()?;
        let block = u32::from_le_bytes([a, b, c, 0]);
        // Raw and compressed blocks are as long as they say; of a repeated byte there is one.
        let length = match (block >> 1) & 3 {
            0 | 2 => block >> 3,
            1 => 1,
            _ => return Err(damaged("a block of an unknown kind")),
        };
        frame.skip(length.into())?;
        // Section 3.1.1.2.3: the most that a block holds.
        decoded = decoded.saturating_add(128 << 10);
        if block & 1 != 0 {
            break;
        }
    }
    if descriptor & 0b100 != 0 {
        frame.skip(4)?;
    }
    Ok(decoded)
}

/// How long the content is at least, by the first frame's header, behind any skippable ones. Refuses a window that would not fit into
/// memory, before anything is decoded.
pub(super) fn declared(what: &str, head: &[u8]) -> Result<u64> {
    let Some(header) = first_frame(head) else {
        return Ok(0);
    };
    if header.window > WINDOW_CAP {
        return Err(too_large(what, Some(header.window)));
    }
    Ok(header.content.unwrap_or(0))
}

/// The refusal of a window or dictionary above the cap.
fn too_large(what: &str, window: Option<u64>) -> Failure {
    let asked = window.map_or_else(|| "more".to_owned(), |w| Bytes(w).to_string());
    Failure::new(
        Class::Integrity,
        format!(
            "{what} asks for a zstd window of {asked}; at most {} are allowed",
            Bytes(WINDOW_CAP)
        ),
    )
    .hint("compress it again with a window of at most 128 MiB (zstd --long=27 or less)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zstd::stream::raw::CParameter;

    fn compress(content: &[u8], pledged: bool, window_log: u32) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder
            .set_parameter(CParameter::WindowLog(window_log))
            .unwrap();
        if pledged {
            encoder
                .set_pledged_src_size(Some(content.len() as u64))
                .unwrap();
        }
        std::io::copy(&mut &*content, &mut encoder).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_frame_header_tells_window_and_content() {
        let content = vec![1; 3 << 20];
        let with = first_frame(&compress(&content, true, 20)).unwrap();
        assert_eq!(
            with,
            FrameHeader {
                window: 1 << 20,
                content: Some(3 << 20)
            }
        );
        let without = first_frame(&compress(&content, false, 21)).unwrap();
        assert_eq!(
            without,
            FrameHeader {
                window: 1 << 21,
                content: None
            }
        );
    }

    #[test]
    fn a_window_above_the_cap_is_refused_with_both_numbers() {
        // Window descriptor 0x90: 2^(10 + 18) bytes.
        let failure = declared("x", &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x90, 0, 0]).unwrap_err();
        assert_eq!(failure.class(), Class::Integrity);
        assert!(failure.to_string().contains("268435456"), "{failure}");
        assert!(failure.to_string().contains("134217728"), "{failure}");
        // 0x88: exactly the cap.
        assert_eq!(
            declared("x", &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x88, 0, 0]).unwrap(),
            0
        );
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_not_without_a_panic(rest in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut head = vec![0x28, 0xb5, 0x2f, 0xfd];
            head.extend(rest);
            let _ = first_frame(&head);
        }
    }
}
