//! Labels: text of fixed length in a superblock, written by anybody.

use std::fmt::Write as _;
use std::io;

use super::media::Media;

/// Where a label stands, and how it is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Label {
    /// The format has none, or none that can be had with one read.
    None,
    /// At an offset, so many bytes, padded with zeros or blanks.
    Text(u64, usize),
    /// At an offset, so many bytes of UTF-16LE.
    Utf16(u64, usize),
}

impl Label {
    pub(super) fn read(self, media: &Media<'_>) -> io::Result<Option<String>> {
        Ok(match self {
            Label::None => None,
            Label::Text(at, length) => media.bytes(at, length)?.and_then(|b| text(&b)),
            Label::Utf16(at, length) => media.bytes(at, length)?.and_then(|b| utf16(&b)),
        })
    }
}

/// 16 bytes as 36 characters; `None` where all are zero, which is how a format says that it has none.
pub(super) fn uuid(bytes: &[u8]) -> Option<String> {
    if bytes.len() != 16 || bytes.iter().all(|b| *b == 0) {
        return None;
    }
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&i) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

/// Text up to the first zero byte, without blanks at its ends; `None` where that leaves nothing.
pub(super) fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    let trimmed = text.trim();
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

/// UTF-16LE up to the first zero.
pub(super) fn utf16(bytes: &[u8]) -> Option<String> {
    let units: Vec<u16> = bytes
        .chunks_exact(2)
        .map(|pair| pair.iter().rev().fold(0u16, |n, b| n << 8 | u16::from(*b)))
        .take_while(|unit| *unit != 0)
        .collect();
    let text = String::from_utf16_lossy(&units);
    let trimmed = text.trim();
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}
