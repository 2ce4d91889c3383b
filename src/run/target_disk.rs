//! The one device that is written: opened, checked against the plan, locked.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::fcntl::Flock;

use super::zeros;
use crate::error::{Class, Context as _, Failure, Result};
use crate::plan::step::{Span, Target};
use crate::stream::ALIGNMENT;
use crate::sys::block;
use crate::units::Bytes;

/// udevd holds the lock for moments while it probes a disk that just appeared.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// What stood on the disk may take a moment to let it go.
const CLAIM_ATTEMPTS: usize = 50;
const CLAIM_PAUSE: Duration = Duration::from_millis(100);

/// Zeros are written in pieces of this size.
const ZEROS: usize = 1 << 20;

/// How much may be dirty in the page cache where direct writing is not possible: more would starve a small
/// machine that runs from memory.
const DIRTY_LIMIT: u64 = 64 << 20;

/// A disk that is ours alone until this is dropped: `O_EXCL` keeps the kernel's other users away, the lock
/// keeps udevd and whoever respects it away.
#[derive(Debug)]
pub struct TargetDisk {
    /// Opened with `O_EXCL`; `None` for a regular file, and while partitions are worked on.
    claim: Option<File>,
    file: Flock<File>,
    /// The same device past the page cache.
    direct: Option<File>,
    /// Cleared when the device turns out not to take direct writes.
    direct_works: AtomicBool,
    /// Cleared when the device turns out not to zero by itself.
    zeroing_works: AtomicBool,
    dirty: AtomicU64,
    target: Target,
    /// Ranges in which no byte is written, whatever comes.
    spared: Vec<Span>,
}

/// A disk that is locked, and on which something may still stand: it cannot be written.
#[derive(Debug)]
pub struct LockedDisk {
    file: Flock<File>,
    target: Target,
}

impl LockedDisk {
    /// Opens and locks what the plan chose; refuses if it is not that device any more.
    pub fn open(target: &Target) -> Result<LockedDisk> {
        let file =
            block::open_for_writing(&target.path, false).map_err(|e| refuse_open(target, e))?;
        let file = lock(check(file, target)?, target)?;
        Ok(LockedDisk {
            file,
            target: target.clone(),
        })
    }

    /// The disk that the plan chose.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Opens the disk exclusively as well.
    ///
    /// # Errors
    /// Class refused where something still holds it after a few seconds.
    pub fn claim(self) -> Result<TargetDisk> {
        let LockedDisk { file, target } = self;
        let mut last = None;
        for attempt in 0..CLAIM_ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(CLAIM_PAUSE);
            }
            match block::reopen(&*file, target.dev.is_some()) {
                Ok(claim) => {
                    let claim = target.dev.is_some().then_some(claim);
                    return Ok(TargetDisk::of(claim, file, &target));
                }
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => last = Some(e),
                Err(e) => return Err(refuse_open(&target, e)),
            }
        }
        let last = last.unwrap_or_else(|| io::ErrorKind::ResourceBusy.into());
        Err(refuse_open(&target, last))
    }
}

fn refuse(target: &Target, what: impl std::fmt::Display) -> Failure {
    let shown = target.path.display();
    Failure::new(Class::Refused, format!("target {shown} {what}"))
}

fn refuse_open(target: &Target, e: io::Error) -> Failure {
    let what = match e.kind() {
        io::ErrorKind::NotFound => "does not exist",
        io::ErrorKind::ResourceBusy => "is in use: the kernel refuses to open it exclusively",
        io::ErrorKind::ReadOnlyFilesystem => "is read-only",
        io::ErrorKind::PermissionDenied => "may not be written by this user",
        _ => "cannot be opened for writing",
    };
    refuse(target, what)
        .caused_by(e)
        .hint("see `ironroot disks` for what holds it")
}

/// Refuses what is not the device of the plan.
fn check(file: File, target: &Target) -> Result<File> {
    let changed = |what: &str, planned: String, found: String| {
        refuse(
            target,
            format!(
                "is not the disk that was chosen: its {what} is {found}, planned was {planned}"
            ),
        )
        .hint("run again: disks changed their names meanwhile")
    };
    let asked = |e: io::Error| refuse(target, "does not answer").caused_by(e);
    if block::is_block_device(&file).map_err(asked)? != target.dev.is_some() {
        return Err(refuse(target, "changed between a block device and a file"));
    }
    if let Some(planned) = target.dev {
        let found = block::device_number(&file).map_err(asked)?;
        if found != planned {
            return Err(changed(
                "device number",
                planned.to_string(),
                found.to_string(),
            ));
        }
    }
    let size = block::size(&file).map_err(asked)?;
    if size != target.size {
        return Err(changed("size", target.size.to_string(), size.to_string()));
    }
    let sector = block::sector_size(&file).map_err(asked)?;
    if sector != target.sector {
        return Err(changed(
            "sector size",
            target.sector.to_string(),
            sector.to_string(),
        ));
    }
    if block::is_read_only(&file).map_err(asked)? {
        return Err(refuse(target, "is read-only").hint("check the disk's write protection"));
    }
    Ok(file)
}

fn lock(file: File, target: &Target) -> Result<Flock<File>> {
    block::lock(file, LOCK_PATIENCE).map_err(|(_, e)| {
        refuse(target, "is locked by another program")
            .caused_by(e)
            .hint("wait for the other installer or partitioning tool to end")
    })
}

impl TargetDisk {
    /// Opens and locks what the plan chose; refuses if it is not that device any more.
    pub fn open(target: &Target) -> Result<TargetDisk> {
        let opened = block::open_for_writing(&target.path, target.dev.is_some())
            .map_err(|e| refuse_open(target, e))?;
        // The lock has a descriptor of its own: it stays while the claim is given up.
        let file = block::reopen(&opened, false)
            .map_err(|e| refuse(target, "does not answer").caused_by(e))?;
        let claim = target.dev.is_some().then_some(opened);
        let file = lock(check(file, target)?, target)?;
        Ok(TargetDisk::of(claim, file, target))
    }

    fn of(claim: Option<File>, file: Flock<File>, target: &Target) -> TargetDisk {
        // A file system without direct writes (tmpfs) is written through the page cache.
        let direct = block::reopen_direct(&file).ok();
        TargetDisk {
            claim,
            file,
            direct,
            direct_works: AtomicBool::new(true),
            zeroing_works: AtomicBool::new(target.dev.is_some()),
            dirty: AtomicU64::new(0),
            target: target.clone(),
            spared: Vec::new(),
        }
    }

    /// From now on every write into one of `spans` fails.
    pub fn spare(&mut self, spans: Vec<Span>) {
        self.spared = spans;
    }

    /// The disk that the plan chose.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The descriptor, for ioctls: the one that holds the claim, if there is one, for the kernel takes any other
    /// for a rival of it.
    pub fn file(&self) -> &File {
        self.claim.as_ref().unwrap_or(&self.file)
    }

    /// Gives up the claim, not the lock, so that partitions of this disk can be mounted and given file systems.
    pub(super) fn release_claim(&mut self) {
        self.claim = None;
    }

    /// Claims the disk again. Fails while a partition is mounted or otherwise in use.
    pub(super) fn renew_claim(&mut self) -> io::Result<()> {
        if self.target.dev.is_some() && self.claim.is_none() {
            self.claim = Some(block::reopen(&*self.file, true)?);
        }
        Ok(())
    }

    fn failed(&self, doing: &str, at: Bytes, error: io::Error) -> Failure {
        Failure::new(
            Class::Media,
            format!("{doing} {} at byte {}", self.target.path.display(), at.0),
        )
        .caused_by(error)
        .hint("the disk does not boot; check its cabling and health, then install again")
    }

    /// Fails where `span` has a byte of what is kept: for what is not written by this type itself.
    pub fn must_spare(&self, span: Span) -> Result<()> {
        let end = |s: Span| s.start.0.saturating_add(s.length.0);
        let over = |s: &&Span| span.start.0 < end(**s) && s.start.0 < end(span);
        match self.spared.iter().find(over) {
            None => Ok(()),
            Some(kept) => Err(Failure::new(
                Class::Bug,
                format!(
                    "wiping {} at byte {} would destroy the kept partition at byte {}",
                    span.length, span.start.0, kept.start.0
                ),
            )),
        }
    }

    /// Fails where the disk ends before `at` + `length`, or a kept partition is in between.
    pub fn must_hold(&self, at: Bytes, length: usize) -> Result<()> {
        let end = u64::try_from(length).ok().and_then(|l| at.0.checked_add(l));
        if let Some(end) = end.filter(|end| *end <= self.target.size.0) {
            let over = |s: &&Span| at.0 < s.start.0.saturating_add(s.length.0) && s.start.0 < end;
            return match self.spared.iter().find(over) {
                None => Ok(()),
                Some(kept) => Err(Failure::new(
                    Class::Media,
                    format!(
                        "the image is longer than its table says: {length} bytes at byte {} of {} would overwrite the kept partition at byte {}",
                        at.0,
                        self.target.path.display(),
                        kept.start.0
                    ),
                )
                .hint("the kept partition is untouched, and the disk does not boot now; use a smaller image")),
            };
        }
        Err(Failure::new(
            Class::Media,
            format!(
                "the image is larger than the disk: {length} bytes at byte {} do not fit on {} of {}",
                at.0,
                self.target.path.display(),
                self.target.size
            ),
        )
        .hint("use a larger disk or a smaller image; the disk does not boot now"))
    }

    /// Writes through the page cache; the caller flushes.
    pub fn write(&self, at: Bytes, data: &[u8]) -> Result<()> {
        self.must_hold(at, data.len())?;
        block::write_at(&self.file, data, at).map_err(|e| self.failed("writing", at, e))
    }

    /// Writes a piece of the image, past the page cache where the kernel can; runs of zeros are left to the
    /// device. `data` and `at` should be aligned to [`ALIGNMENT`]; a last piece that is not whole sectors is
    /// filled up with zeros. May be called from several threads for different places.
    pub fn write_bulk(&self, at: Bytes, data: &[u8]) -> Result<()> {
        let sector = self.target.sector.get();
        let step = usize::try_from(sector).context(Class::Bug, || "sector size")?;
        let whole = data.len() / step * step;
        let (aligned, rest) = data.split_at(whole);
        self.must_hold(at, data.len())?;
        let place = |offset: usize| Bytes(at.0.saturating_add(offset as u64));
        for run in zeros::runs(aligned) {
            let part = aligned.get(run.range.clone()).unwrap_or_default();
            if !(run.zero && self.zero_by_device(place(run.range.start), part.len())) {
                self.write_aligned(place(run.range.start), part)?;
            }
        }
        if !rest.is_empty() {
            let mut last = vec![0u8; step];
            for (to, from) in last.iter_mut().zip(rest) {
                *to = *from;
            }
            self.write(place(whole), &last)?;
        }
        Ok(())
    }

    /// Lets the device zero a range. False where it cannot: zeros are written then, and whatever is wrong
    /// shows there.
    fn zero_by_device(&self, at: Bytes, length: usize) -> bool {
        let done = self.zeroing_works.load(Ordering::Relaxed)
            && u64::try_from(length)
                .is_ok_and(|l| block::zero_out(&self.file, at, Bytes(l)).is_ok());
        if !done {
            self.zeroing_works.store(false, Ordering::Relaxed);
        }
        done
    }

    fn write_aligned(&self, at: Bytes, data: &[u8]) -> Result<()> {
        let fits =
            data.as_ptr().align_offset(ALIGNMENT) == 0 && self.direct_works.load(Ordering::Relaxed);
        if let Some(direct) = self.direct.as_ref().filter(|_| fits) {
            match block::write_at(direct, data, at) {
                Ok(()) => return Ok(()),
                // The device does not take direct writes after all; the same bytes go through the cache.
                Err(e) if e.raw_os_error() == Some(nix::libc::EINVAL) => {
                    self.direct_works.store(false, Ordering::Relaxed);
                }
                Err(e) => return Err(self.failed("writing", at, e)),
            }
        }
        self.write(at, data)?;
        let written = u64::try_from(data.len()).unwrap_or(u64::MAX);
        if self.dirty.fetch_add(written, Ordering::Relaxed) >= DIRTY_LIMIT {
            self.dirty.store(0, Ordering::Relaxed);
            self.flush()?;
        }
        Ok(())
    }

    /// Zeroes a range and leaves it to the caller to flush.
    pub fn zero(&self, span: Span) -> Result<()> {
        let zeros = vec![0u8; ZEROS];
        let mut at = span.start.0;
        let mut left = span.length.0;
        while left > 0 {
            let piece = left.min(ZEROS as u64);
            let length = usize::try_from(piece).unwrap_or(ZEROS);
            self.write(Bytes(at), zeros.get(..length).unwrap_or(&zeros))?;
            at = at.saturating_add(piece);
            left = left.saturating_sub(piece);
        }
        Ok(())
    }

    /// Waits until everything written is on the medium.
    pub fn flush(&self) -> Result<()> {
        block::flush(&self.file).map_err(|e| self.failed("flushing", Bytes::ZERO, e))
    }
}
