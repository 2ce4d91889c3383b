//! The content of one file, with its holes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::sys::stat::FileStat;
use nix::unistd::{Whence, ftruncate, lseek};

use super::super::census::bump;
use super::super::refusal::failed_to_copy;
use super::{BUFFER, Copying, errno, unsigned};
use crate::error::Result;

/// Holes are looked for in pages: what a tmpfs gives and what a file system stores.
const GRAIN: usize = 4096;

impl Copying<'_> {
    /// The content with its holes.
    pub(super) fn content(
        &mut self,
        source: &File,
        stat: &FileStat,
        target: &File,
        path: &[u8],
    ) -> Result<()> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let wrong = |doing: &str, errno| failed_to_copy(doing, path, errno, size, self.to);
        // squashfs and erofs have holes and do not tell where.
        let has_holes = u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512)
            < size;
        let mut sum = self.sum();
        let mut at = 0i64;
        let mut length = stat.st_size;
        'all: while at < stat.st_size {
            at = match lseek(source, at, Whence::SeekData) {
                // A hole up to the end.
                Err(Errno::ENXIO) => break,
                // This file system does not tell: all of it is data.
                Err(Errno::EINVAL) => at,
                found => found.map_err(|errno| wrong("reading", errno))?,
            };
            let end = match lseek(source, at, Whence::SeekHole) {
                Err(Errno::EINVAL | Errno::ENXIO) => stat.st_size,
                found => found
                    .map_err(|errno| wrong("reading", errno))?
                    .min(stat.st_size),
            };
            if end <= at {
                break;
            }
            let (mut offset, stop) = (unsigned(at), unsigned(end));
            while offset < stop {
                let want = usize::try_from(stop.saturating_sub(offset)).unwrap_or(BUFFER);
                let room = self.buffer.len().min(want);
                let buffer = self.buffer.get_mut(..room).unwrap_or_default();
                let got = match source.read_at(buffer, offset) {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                    // Somebody made it shorter meanwhile: in use, it may.
                    Ok(0) if self.running.is_some() => {
                        length = i64::try_from(offset).unwrap_or(length);
                        break 'all;
                    }
                    Ok(0) => return Err(wrong("reading", Errno::EIO)),
                    got => got.map_err(|e| wrong("reading", errno(&e)))?,
                };
                let data = buffer.get(..got).unwrap_or_default();
                if let Some(sum) = &mut sum {
                    sum.put(offset, data);
                }
                let written = if has_holes {
                    write_around_zeros(target, data, offset)
                } else {
                    target
                        .write_all_at(data, offset)
                        .map(|()| data.len() as u64)
                };
                let written = written.map_err(|e| wrong("writing", errno(&e)))?;
                offset = offset.saturating_add(got as u64);
                bump(&mut self.census.bytes, written);
                self.progress.fetch_add(written, Ordering::Relaxed);
            }
            at = end;
        }
        ftruncate(target, length).map_err(|errno| wrong("setting the size of", errno))?;
        self.remember(target, path, sum.map(|sum| sum.finish(unsigned(length))))
    }
}

/// Leaves runs of zeros out; how much was written.
fn write_around_zeros(target: &File, data: &[u8], offset: u64) -> std::io::Result<u64> {
    static ZEROS: [u8; GRAIN] = [0; GRAIN];
    let is_zero = |piece: &[u8]| ZEROS.get(..piece.len()) == Some(piece);
    let (mut at, mut written) = (0usize, 0u64);
    while let Some(rest) = data.get(at..).filter(|rest| !rest.is_empty()) {
        let zeros: usize = rest
            .chunks(GRAIN)
            .take_while(|piece| is_zero(piece))
            .map(<[u8]>::len)
            .sum();
        let from = at.saturating_add(zeros);
        let run: usize = data
            .get(from..)
            .unwrap_or_default()
            .chunks(GRAIN)
            .take_while(|piece| !is_zero(piece))
            .map(<[u8]>::len)
            .sum();
        at = from.saturating_add(run);
        let run = data.get(from..at).unwrap_or_default();
        target.write_all_at(run, offset.saturating_add(from as u64))?;
        bump(&mut written, run.len() as u64);
    }
    Ok(written)
}
