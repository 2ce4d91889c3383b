//! Files with holes: where the bytes that an archive stores go (GNU tar manual, "Storing Sparse Files").

use super::limits::SEGMENTS_MAX;

/// A piece of content: offset in the file and length.
pub(super) type Segment = (u64, u64);

/// A map that makes sense: pieces in order, inside the file, and together as long as what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    segments: Vec<Segment>,
    size: u64,
}

impl Map {
    /// Checks a map of a file of `size` bytes of which `stored` are in the archive.
    pub(super) fn new(segments: Vec<Segment>, size: u64, stored: u64) -> Result<Map, &'static str> {
        let mut end = 0u64;
        let mut sum = 0u64;
        for (offset, length) in &segments {
            if *offset < end {
                return Err("its pieces overlap or are out of order");
            }
            end = offset
                .checked_add(*length)
                .ok_or("a piece ends past any file")?;
            sum = sum.saturating_add(*length);
        }
        if end > size {
            return Err("a piece lies past its end");
        }
        if sum != stored {
            return Err("its pieces are not as long as what is stored");
        }
        if i64::try_from(size).is_err() {
            return Err("it is longer than any file");
        }
        Ok(Map { segments, size })
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

/// Adds a piece, as far as memory is meant for them.
pub(super) fn push(segments: &mut Vec<Segment>, segment: Segment) -> Result<(), &'static str> {
    if segments.len() >= SEGMENTS_MAX {
        return Err("it has more pieces than are taken");
    }
    segments.push(segment);
    Ok(())
}

/// The map of format 1.0, which stands before the content: decimal numbers, one a line, first their count
/// in pairs.
#[derive(Debug, Default)]
pub(super) struct Lines {
    number: Option<u64>,
    pairs: Option<u64>,
    offset: Option<u64>,
    segments: Vec<Segment>,
}

impl Lines {
    /// Reads the next block; `true` when the map is complete and the rest of the block is padding.
    pub(super) fn block(&mut self, block: &[u8]) -> Result<bool, &'static str> {
        for byte in block {
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte.wrapping_sub(b'0'));
                    let number = self.number.unwrap_or(0).checked_mul(10);
                    let number = number.and_then(|n| n.checked_add(digit));
                    self.number = Some(number.ok_or("its map has a number that is too large")?);
                }
                b'\n' => {
                    let number = self.number.take().ok_or("its map has an empty line")?;
                    match (self.pairs, self.offset.take()) {
                        (None, _) => self.pairs = Some(number),
                        (Some(_), None) => self.offset = Some(number),
                        (Some(_), Some(offset)) => push(&mut self.segments, (offset, number))?,
                    }
                    if self.is_complete() {
                        return Ok(true);
                    }
                }
                _ => return Err("its map has something else than numbers"),
            }
        }
        Ok(false)
    }

    fn is_complete(&self) -> bool {
        self.offset.is_none()
            && self
                .pairs
                .is_some_and(|pairs| u64::try_from(self.segments.len()) == Ok(pairs))
    }

    pub(super) fn segments(self) -> Vec<Segment> {
        self.segments
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_map_must_fit_the_file_and_what_is_stored() {
        assert!(Map::new(vec![(0, 5), (5, 1), (10, 0)], 10, 6).is_ok());
        assert!(Map::new(vec![], 1 << 40, 0).is_ok());
        for (segments, size, stored) in [
            (vec![(0, 5), (4, 1)], 10, 6),
            (vec![(8, 5)], 10, 5),
            (vec![(0, 5)], 10, 6),
            (vec![(u64::MAX, 2)], u64::MAX, 2),
            (vec![], u64::MAX, 0),
        ] {
            assert!(
                Map::new(segments.clone(), size, stored).is_err(),
                "{segments:?}"
            );
        }
    }

    #[test]
    fn lines_may_be_cut_anywhere() {
        let text = b"2\n0\n512\n10240\n7\n";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            assert!(!lines.block(&text[..cut]).unwrap());
            let mut rest = text[cut..].to_vec();
            rest.extend_from_slice(&[0; 9]);
            assert!(lines.block(&rest).unwrap());
            assert_eq!(lines.segments(), [(0, 512), (10240, 7)]);
        }
        assert!(Lines::default().block(b"0\n").unwrap());
        for wrong in [&b"\n"[..], b"x", b"1\n\n", b"99999999999999999999\n"] {
            assert!(Lines::default().block(wrong).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(block: Vec<u8>) {
            let _ = Lines::default().block(&block);
        }
    }
}
