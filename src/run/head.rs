//! The image's head, held back until there is proof: the only code that writes LBA 0.

use std::ops::Range;

use super::target_disk::TargetDisk;
use crate::error::{Class, Failure, Result, chain};
use crate::host::RecordIdentity;
use crate::image::boot::grub_core::BootCode;
use crate::image::record::{self, Record, State};
use crate::plan::keep::Copy;
use crate::plan::layout::Layout;
use crate::plan::step::Span;
use crate::stream::Verified;
use crate::units::{Bytes, MIB};

/// A sector to a BIOS, which is what starts code from there.
const SECTOR: usize = 512;

/// The head of an image, fitted to its disk and not written yet.
#[derive(Debug)]
pub struct HeadHold {
    layout: Layout,
}

/// A disk that boots: all of the image is on the medium, LBA 0 last.
#[derive(Debug)]
pub struct Finalized {
    /// The table that was written.
    pub layout: Layout,
}

impl HeadHold {
    /// Holds `layout`'s head.
    pub fn new(layout: Layout) -> HeadHold {
        HeadHold { layout }
    }

    /// The head as it will be written.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Sets the code in front of the table in LBA 0, which is written with it.
    pub fn set_boot_code(&mut self, code: &BootCode) -> Result<()> {
        let place = self.layout.head.get_mut(..code.bytes().len());
        let place = place.ok_or_else(|| Failure::new(Class::Bug, "the head has no LBA 0"))?;
        place.copy_from_slice(code.bytes());
        let loaded = code.core();
        let end = SECTOR.saturating_add(loaded.len());
        let place = self.layout.head.get_mut(SECTOR..end);
        let place = place.ok_or_else(|| Failure::new(Class::Bug, "the head has no room"))?;
        if !loaded.is_empty() {
            place.copy_from_slice(loaded);
        }
        Ok(())
    }

    /// The layout, once what is behind the body is done with: the image's own backup table is gone.
    pub fn forget_stale_backup(&mut self) {
        self.layout.stale_backup = None;
    }

    /// What of a block of the image at `at` may be written before the verdict, and where: neither the head
    /// nor what stands in the place of a backup table. An image of the disk's very size has its own backup
    /// there, and with that the disk would have a valid table too early.
    pub fn body_of(&self, at: Bytes, length: usize) -> (Bytes, Range<usize>) {
        let end = at.0.saturating_add(length as u64);
        let tail = self.layout.body_end().map_or(end, |tail| tail.0);
        let from = at.0.max(MIB).min(end);
        let to = end.min(tail).max(from);
        let place = |n: u64| usize::try_from(n.saturating_sub(at.0)).ok();
        let body = place(from).zip(place(to)).map(|(from, to)| from..to);
        (Bytes(from), body.unwrap_or_default())
    }

    /// Makes the disk bootable. A [`Verified`] is the price: without a good verdict there is none.
    ///
    /// Order: body on the medium; backup table, flush; primary table, then the record, flush; LBA 0, flush.
    /// A cut at any point leaves a disk without LBA 0, which does not boot, or a complete one. Then the record is
    /// sealed: who zeroes LBA 0 later has not made an unfinished installation of a system that was in use.
    pub fn release(
        self,
        proof: Verified,
        disk: &TargetDisk,
        record: Option<&RecordIdentity>,
    ) -> Result<Finalized> {
        // The proof is consumed: one verdict makes one disk bootable.
        drop(proof);
        disk.flush()?;
        let HeadHold { layout } = self;
        if let Some((at, bytes)) = &layout.tail {
            if let Some(stale) = layout.stale_backup {
                disk.zero(stale)?;
            }
            disk.write(*at, bytes)?;
            disk.flush()?;
        }
        let short = || Failure::new(Class::Bug, "the image's head is not 1 MiB long");
        let (head, area) = usize::try_from(record::OFFSET)
            .ok()
            .and_then(|at| layout.head.split_at_checked(at))
            .ok_or_else(short)?;
        let mut area = area.to_vec();
        let mut begun = None;
        // Without a record the image's own bytes stand there, and the mark goes.
        let mut sealed = None;
        if let Some(identity) = record {
            let mut record = Record {
                state: State::Record,
                identity: identity.clone(),
                disk: disk.target().identity.clone().with_table(&layout.table),
            };
            let bytes = record::encode(&record)?;
            if area.len() != bytes.len() {
                return Err(short());
            }
            area.copy_from_slice(&bytes);
            begun = record::begun(&Record {
                state: State::Mark,
                identity: identity.clone(),
                disk: disk.target().identity.clone(),
            })?;
            record.state = State::Sealed;
            sealed = Some(record::encode(&record)?);
        }
        let sector = usize::try_from(disk.target().sector.get()).map_err(|_| short())?;
        let (lba0, rest) = head.split_at_checked(sector).ok_or_else(short)?;
        disk.write(Bytes(disk.target().sector.get()), rest)?;
        write_area(disk, begun.as_deref(), &area)?;
        disk.write(Bytes::ZERO, lba0)?;
        disk.flush()?;
        // The disk is complete with or without it.
        if let Some(bytes) = sealed
            && let Err(failure) = seal(disk, &bytes)
        {
            log::warn!("{}", chain(&failure));
        }
        Ok(Finalized { layout })
    }
}

/// Writes the sealed record over the same one, from which it differs in one sector.
fn seal(disk: &TargetDisk, bytes: &[u8]) -> Result<()> {
    disk.write(Bytes(record::OFFSET), bytes)?;
    disk.flush()
}

/// Writes and flushes the mark: the first bytes of an installation that change on the disk. The record, which is
/// longer by what names the new table, must fit as well.
pub fn write_mark(disk: &TargetDisk, identity: &RecordIdentity, layout: &Layout) -> Result<()> {
    let here = &disk.target().identity;
    let of = |state, disk| Record {
        state,
        identity: identity.clone(),
        disk,
    };
    record::encode(&of(State::Record, here.clone().with_table(&layout.table)))?;
    let mark = of(State::Mark, here.clone());
    let area = record::encode(&mark)?;
    write_area(disk, record::begun(&mark)?.as_deref(), &area)
}

/// Writes the area of the record so that a cut at any moment leaves what was there, what is there now, or in between
/// a mark in its first sector (see [`record::begun`]).
fn write_area(disk: &TargetDisk, begun: Option<&[u8]>, area: &[u8]) -> Result<()> {
    let (first, rest) = area.split_at_checked(record::SECTOR).unwrap_or((area, &[]));
    if let Some(begun) = begun {
        disk.write(Bytes(record::OFFSET), begun)?;
        disk.flush()?;
        disk.write(
            Bytes(record::OFFSET.saturating_add(record::SECTOR as u64)),
            rest,
        )?;
        disk.flush()?;
        disk.write(Bytes(record::OFFSET), first)?;
    } else {
        disk.write(Bytes(record::OFFSET), area)?;
    }
    disk.flush()
}

/// Replaces the old table by the one that lists only what is kept. LBA 0 is zero from the first write on, so that
/// the old system does not boot any more and neither firmware nor kernel takes the table for a system's. Of the
/// two copies one is always intact; both list what is kept.
pub fn replace_table(disk: &TargetDisk, layout: &Layout, first: Copy) -> Result<()> {
    let Some(interim) = &layout.interim else {
        return Err(Failure::new(
            Class::Bug,
            "there is no table of kept partitions",
        ));
    };
    disk.zero(Span {
        start: Bytes::ZERO,
        length: Bytes(disk.target().sector.get()),
    })?;
    disk.flush()?;
    let copies = match first {
        Copy::Backup => [&interim.backup, &interim.primary],
        Copy::Primary => [&interim.primary, &interim.backup],
    };
    for (at, bytes) in copies {
        disk.write(*at, bytes)?;
        disk.flush()?;
    }
    Ok(())
}

/// Zeroes the old content ([`crate::plan::clear::spans`]): the first span holds LBA 0 and is on the medium before the
/// rest begins; the last holds the backup table, which goes when all that it leads to is gone from the medium.
pub fn clear(disk: &TargetDisk, spans: &[Span]) -> Result<()> {
    let last = spans.len().saturating_sub(1);
    for (number, span) in spans.iter().enumerate() {
        if number == last && number > 1 {
            disk.flush()?;
        }
        disk.zero(*span)?;
        if number == 0 {
            disk.flush()?;
        }
    }
    disk.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tables::{Mbr, Table};
    use crate::plan::step::Target;
    use crate::units::SectorSize;
    use proptest::prelude::*;

    #[test]
    fn a_mark_whose_record_would_not_fit_is_not_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2 * MIB).unwrap();
        let disk = TargetDisk::open(&Target {
            path: file.path().to_owned(),
            name: "file".to_owned(),
            dev: None,
            size: Bytes(2 * MIB),
            sector: SectorSize::S512,
            identity: record::DiskIdentity::default(),
        })
        .unwrap();
        let layout = Layout {
            table: Table::Mbr(Mbr {
                signature: "deadbeef".to_owned(),
                partitions: vec![],
            }),
            ..Layout::default()
        };
        let mut identity = RecordIdentity::default();
        let mark = |identity: &RecordIdentity| {
            record::encode(&Record {
                state: State::Mark,
                identity: identity.clone(),
                disk: disk.target().identity.clone(),
            })
        };
        while mark(&identity).is_ok() {
            identity.image.push('x');
        }
        identity.image.pop();
        let failure = write_mark(&disk, &identity, &layout).unwrap_err();
        assert_eq!(failure.class(), Class::Config);
        let written = || std::fs::read(file.path()).unwrap();
        assert!(written().iter().all(|b| *b == 0));

        identity.image.truncate(3000);
        write_mark(&disk, &identity, &layout).unwrap();
        let at = usize::try_from(record::OFFSET).unwrap();
        assert_eq!(written()[at..at + record::SIZE], mark(&identity).unwrap());
    }

    proptest! {
        #[test]
        fn head_and_place_of_the_backup_wait_and_everything_else_goes_on(
            at in 0..4 * MIB, length in 0..3 * MIB, tail in proptest::option::of(MIB..6 * MIB),
        ) {
            let head = HeadHold::new(Layout {
                tail: tail.map(|at| (Bytes(at), vec![])),
                ..Layout::default()
            });
            let (start, body) = head.body_of(Bytes(at), usize::try_from(length).unwrap());
            let from = at.max(MIB);
            let to = (at + length).min(tail.unwrap_or(u64::MAX));
            prop_assert_eq!(body.len() as u64, to.saturating_sub(from));
            prop_assert!(body.is_empty() || start.0 == from);
            // The part of the block that belongs there.
            prop_assert!(body.is_empty() || body.start as u64 == from - at);
        }
    }
}
