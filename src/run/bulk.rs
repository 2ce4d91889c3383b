//! The image's body on its way to the disk: several writes in flight, each past the page cache, and what was
//! written read back where the config asks for it.

use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::target_disk::TargetDisk;
use crate::error::{Class, Context as _, Failure, Result};
use crate::stream::{Block, MAX_HELD};
use crate::sys::block;
use crate::units::Bytes;

/// Writes in flight. Two keep a disk busy while the next block is decoded; the pool of blocks bounds more.
const WRITERS: usize = 2;

// Each writer holds a block, one waits in the channel, and the feeder holds one.
const _: () = assert!(WRITERS + 2 <= MAX_HELD);

/// Clean pages that reading back may leave in the page cache.
const CACHE_LIMIT: u64 = 64 << 20;

/// A part of a block and where it goes.
#[derive(Debug)]
pub struct Piece {
    /// The block; its memory goes back to the pool when it has been written.
    pub block: Block,
    /// Which part of it.
    pub range: Range<usize>,
    /// Where on the disk.
    pub at: Bytes,
}

/// What was written somewhere, to be compared with what is read from there.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    at: Bytes,
    length: usize,
    sha256: [u8; 32],
}

/// Takes pieces for the writers.
#[derive(Debug)]
pub struct Sink<'a> {
    queue: SyncSender<Piece>,
    stopped: &'a AtomicBool,
}

impl Sink<'_> {
    /// Hands a piece over; waits while all writers are busy. `false` when a write has failed.
    pub fn put(&self, piece: Piece) -> bool {
        !self.stopped.load(Ordering::Relaxed) && self.queue.send(piece).is_ok()
    }
}

/// Runs the writers while `feed` hands them pieces, and waits until all of it has been written (not until it
/// is on the medium). With `remember`, the result has a sum of each piece. A failure to write wins over what
/// `feed` makes of it.
pub fn write(
    disk: &TargetDisk,
    remember: bool,
    feed: impl FnOnce(&Sink<'_>) -> Result<()>,
) -> Result<Vec<Sum>> {
    let (queue, receiver) = sync_channel::<Piece>(1);
    let receiver = Mutex::new(receiver);
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sink = Sink {
            queue,
            stopped: &stopped,
        };
        let mut writers = Vec::new();
        for n in 0..WRITERS {
            let writer = std::thread::Builder::new()
                .name(format!("write-{n}"))
                .spawn_scoped(scope, || drain(disk, &receiver, &stopped, remember))
                .context(Class::Space, || "starting a thread that writes to the disk")?;
            writers.push(writer);
        }
        let outcome = feed(&sink);
        // The writers end when nobody can hand them anything any more.
        drop(sink);
        let mut sums = Vec::new();
        let mut failed = None;
        for writer in writers {
            match writer.join() {
                Ok(Ok(mut some)) => sums.append(&mut some),
                Ok(Err(failure)) => failed = Some(failure),
                Err(_) => {
                    failed = Some(Failure::new(
                        Class::Bug,
                        "a thread that writes to the disk died",
                    ));
                }
            }
        }
        match failed {
            Some(failure) => Err(failure),
            None => outcome.map(|()| sums),
        }
    })
}

/// Waits for a piece; `None` when there will be none any more.
fn next_piece(receiver: &Mutex<Receiver<Piece>>) -> Option<Piece> {
    receiver
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .recv()
        .ok()
}

/// One writer, until the feeder has no more or a write fails.
fn drain(
    disk: &TargetDisk,
    receiver: &Mutex<Receiver<Piece>>,
    stopped: &AtomicBool,
    remember: bool,
) -> Result<Vec<Sum>> {
    let mut sums = Vec::new();
    while let Some(piece) = next_piece(receiver) {
        let data = piece.block.get(piece.range.clone()).unwrap_or_default();
        if let Err(failure) = disk.write_bulk(piece.at, data) {
            stopped.store(true, Ordering::Relaxed);
            // The feeder may be waiting for room; it stops at its next piece.
            while next_piece(receiver).is_some() {}
            return Err(failure);
        }
        if remember {
            sums.push(Sum {
                at: piece.at,
                length: data.len(),
                sha256: Sha256::digest(data).into(),
            });
        }
    }
    Ok(sums)
}

/// Reads back what was written, from the medium as far as the kernel can tell, and compares.
pub fn read_back(disk: &TargetDisk, mut sums: Vec<Sum>) -> Result<Bytes> {
    let path = disk.target().path.display().to_string();
    sums.sort_unstable_by_key(|sum| sum.at);
    disk.flush()?;
    let cores = std::thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(WRITERS);
    let share = sums.len().div_ceil(cores).max(1);
    let fresh =
        || block::drop_cache(disk.file()).context(Class::Media, || format!("reading back {path}"));
    let compare = |sums: &[Sum]| -> Result<u64> {
        let mut buffer = Vec::new();
        let mut cached = 0u64;
        let mut total = 0u64;
        for sum in sums {
            buffer.resize(sum.length, 0);
            disk.file()
                .read_exact_at(&mut buffer, sum.at.0)
                .context(Class::Media, || {
                    format!(
                        "reading back {} bytes of {path} at byte {}",
                        sum.length, sum.at.0
                    )
                })?;
            let found: [u8; 32] = Sha256::digest(&buffer).into();
            if found != sum.sha256 {
                let text = format!(
                    "{path} does not hold what was written: the {} bytes at byte {} differ",
                    sum.length, sum.at.0
                );
                return Err(Failure::new(Class::Media, text)
                    .hint("the disk loses data: replace it; it does not boot now"));
            }
            let length = u64::try_from(sum.length).unwrap_or(u64::MAX);
            total = total.saturating_add(length);
            cached = cached.saturating_add(length);
            if cached >= CACHE_LIMIT {
                cached = 0;
                fresh()?;
            }
        }
        Ok(total)
    };
    fresh()?;
    std::thread::scope(|scope| {
        let readers: Vec<_> = sums
            .chunks(share)
            .map(|part| std::thread::Builder::new().spawn_scoped(scope, move || compare(part)))
            .collect();
        let mut total = 0u64;
        for reader in readers {
            let reader = reader.context(Class::Space, || "starting a thread that reads back")?;
            let read = reader
                .join()
                .map_err(|_| Failure::new(Class::Bug, "a thread that reads back died"))??;
            total = total.saturating_add(read);
        }
        Ok(Bytes(total))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::record::DiskIdentity;
    use crate::plan::step::Target;
    use crate::units::SectorSize;

    fn disk(path: &std::path::Path) -> TargetDisk {
        std::fs::write(path, vec![0xa5u8; 1 << 20]).unwrap();
        TargetDisk::open(&Target {
            path: path.to_owned(),
            name: "disk".to_owned(),
            dev: None,
            size: Bytes(1 << 20),
            sector: SectorSize::S512,
            identity: DiskIdentity::default(),
        })
        .unwrap()
    }

    fn sum(at: u64, data: &[u8]) -> Sum {
        Sum {
            at: Bytes(at),
            length: data.len(),
            sha256: Sha256::digest(data).into(),
        }
    }

    #[test]
    fn what_was_written_reads_back_and_a_changed_byte_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let disk = disk(&path);
        let data: Vec<u8> = (0..300_000u32)
            .flat_map(u32::to_le_bytes)
            .take(500_001)
            .collect();
        disk.write_bulk(Bytes(4096), &data).unwrap();
        let (first, second) = data.split_at(262_144);
        let sums = vec![sum(4096 + 262_144, second), sum(4096, first)];
        assert_eq!(read_back(&disk, sums.clone()).unwrap(), Bytes(500_001));

        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4096 + 262_144 + 7] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let failure = read_back(&disk, sums).unwrap_err();
        assert_eq!(failure.class(), Class::Media);
        assert!(failure.to_string().contains("byte 266240"), "{failure}");
    }
}
