//! Zstandard (RFC 8878).

use std::io;

use zstd::stream::raw::{DParameter, Decoder as Raw, InBuffer, Operation as _, OutBuffer};

use super::{Chunks, Decoder, WINDOW_CAP, cut_short};
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
                return Err(super::damaged("a frame leads nowhere"));
            }
        }
    }
}

/// The library gives its errors as texts only. This one has a remedy of its own.
fn understood(error: io::Error) -> io::Error {
    if error.to_string().contains("too much memory") {
        io::Error::new(io::ErrorKind::OutOfMemory, error)
    } else {
        error
    }
}

/// What the first frame's header says of window and content (section 3.1.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameHeader {
    window: u64,
    content: Option<u64>,
}

impl FrameHeader {
    /// `None` where the bytes do not suffice or are no (or a skippable) frame: the decoder will tell.
    fn parse(head: &[u8]) -> Option<FrameHeader> {
        let rest = head.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
        let (descriptor, rest) = rest.split_first()?;
        let single_segment = descriptor & 0b0010_0000 != 0;
        let (window, rest) = if single_segment {
            (None, rest)
        } else {
            let (byte, rest) = rest.split_first()?;
            let base = 1u64 << (10 + (byte >> 3));
            (Some(base + base / 8 * u64::from(byte & 7)), rest)
        };
        let dictionary = [0, 1, 2, 4].get(usize::from(descriptor & 3))?;
        let rest = rest.get(*dictionary..)?;
        let (size, add) = match (descriptor >> 6, single_segment) {
            (0, false) => (0, 0),
            (0, true) => (1, 0),
            (1, _) => (2, 256),
            (2, _) => (4, 0),
            (_, _) => (8, 0),
        };
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(rest.get(..size)?) {
            *to = *from;
        }
        let content = (size > 0).then(|| u64::from_le_bytes(bytes).saturating_add(add));
        // A single segment is its own window.
        let window = window.or(content)?;
        Some(FrameHeader { window, content })
    }
}

/// How long the content is at least, by the first frame's header. Refuses a window that would not fit into
/// memory, before anything is decoded.
pub(super) fn declared(what: &str, head: &[u8]) -> Result<u64> {
    let Some(header) = FrameHeader::parse(head) else {
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
        let with = FrameHeader::parse(&compress(&content, true, 20)).unwrap();
        assert_eq!(
            with,
            FrameHeader {
                window: 1 << 20,
                content: Some(3 << 20)
            }
        );
        let without = FrameHeader::parse(&compress(&content, false, 21)).unwrap();
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
            let _ = FrameHeader::parse(&head);
        }
    }
}
