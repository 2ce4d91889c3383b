//! Where an entry's content has holes.

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::super::extended::Extended;
use super::super::sparse::{self, Lines, Map};
use super::{Archive, BLOCK, signed};
use crate::error::Result;

impl Archive<'_> {
    /// The map of a sparse file in one of the three pax formats.
    pub(super) fn posix_map(&mut self, extended: &Extended, path: &[u8]) -> Result<Option<Map>> {
        let sparse = &extended.sparse;
        if !sparse.is_used() {
            return Ok(None);
        }
        let wrong = |what: &str| Self::wrong(path, &format!("sparse file: {what}"));
        let size = sparse
            .size
            .ok_or_else(|| wrong("it does not say its size"))?;
        let segments = match (sparse.major.unwrap_or(0), sparse.minor.unwrap_or(0)) {
            (0, _) => sparse.map.clone(),
            (1, 0) => {
                let mut lines = Lines::default();
                loop {
                    if self.left < BLOCK as u64 {
                        return Err(wrong("its map is cut off"));
                    }
                    let block = self.block()?.ok_or_else(|| self.cut_off("within a map"))?;
                    self.left = self.left.saturating_sub(BLOCK as u64);
                    if lines.block(&block).map_err(wrong)? {
                        break lines.segments();
                    }
                }
            }
            (major, minor) => {
                return Err(wrong(&format!("its format {major}.{minor} is unknown")));
            }
        };
        Map::new(segments, size, self.left).map(Some).map_err(wrong)
    }

    /// The map of a sparse file in GNU tar's own format: in the header and in blocks after it, which the
    /// size of the content does not count.
    pub(super) fn gnu_map(&mut self, header: &Header, path: &[u8]) -> Result<Map> {
        let wrong = |what: &str| Self::wrong(path, &format!("sparse file: {what}"));
        let gnu = header
            .as_gnu()
            .ok_or_else(|| wrong("its header is not of GNU tar"))?;
        let size = self.unsigned("real size", &gnu.realsize)?;
        let mut segments = Vec::new();
        let mut add = |pieces: &[GnuSparseHeader]| -> Result<()> {
            for piece in pieces
                .iter()
                .take_while(|piece| piece.offset.first() != Some(&0))
            {
                let read = |field: &[u8]| signed(field).and_then(|n| u64::try_from(n).ok());
                let segment = read(&piece.offset).zip(read(&piece.numbytes));
                let segment =
                    segment.ok_or_else(|| wrong("its map has something else than numbers"))?;
                sparse::push(&mut segments, segment).map_err(wrong)?;
            }
            Ok(())
        };
        add(&gnu.sparse)?;
        let mut goes_on = gnu.is_extended();
        while goes_on {
            let block = self.block()?.ok_or_else(|| self.cut_off("within a map"))?;
            let mut more = GnuExtSparseHeader::new();
            more.as_mut_bytes().copy_from_slice(&block);
            add(&more.sparse)?;
            goes_on = more.is_extended();
        }
        Map::new(segments, size, self.left).map_err(wrong)
    }
}
