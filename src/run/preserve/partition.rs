//! Partitions that are made for preserved content: both ends of each are zeroed first, so that nothing old is found
//! in them, then the table is written in an order ([`Edit::groups`]) in which a cut leaves what was there before, or
//! all of it, or what the next boot goes on with.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::luks;
use crate::error::{Class, Context as _, Failure, Result, describe};
use crate::host::signatures::{self, Blank};
use crate::host::tables::{self, Table};
use crate::plan::layout::create::{Edit, edit};
use crate::plan::preserve::create::{NewPartition, NewPartitions};
use crate::plan::step::Span;
use crate::report::Reporter;
use crate::run::make_filesystem;
use crate::run::partitions::{Node, Place, known};
use crate::run::target_disk::TargetDisk;
use crate::units::MIB;

/// Partitions that were made, and their disk, which stays locked: a udevd that reads the table again would take them
/// away for a moment.
#[derive(Debug)]
pub struct MadePartitions {
    _disk: Option<TargetDisk>,
    /// PARTUUID and node of each.
    pub nodes: Vec<(String, Node)>,
}

/// Makes them, and lets the kernel know.
///
/// # Errors
/// Nothing has been written where the disk is in use, is not what the plan was made for, or a program is missing.
pub fn make(new: &NewPartitions, reporter: &Reporter) -> Result<MadePartitions> {
    let planned = new;
    let new = &without_what_cannot_be_used(new, reporter)?;
    if new.add.is_empty() {
        return Ok(MadePartitions {
            _disk: None,
            nodes: Vec::new(),
        });
    }
    let mut disk = TargetDisk::open(&new.target)?;
    is_as_planned(disk.file(), planned)?;
    let mut head = vec![0; usize::try_from(MIB).unwrap_or_default()];
    disk.file()
        .read_exact_at(&mut head, 0)
        .context(Class::Media, || {
            format!("reading the first MiB of {}", new.target.path.display())
        })?;
    let edit = edit(&head, new)?;
    if new.begun {
        is_blank(disk.file(), new, &edit)?;
    }
    for partition in &new.add {
        nobody_has(&partition.label)?;
    }
    write(&disk, &edit).map_err(|failure| {
        failure.hint(
            "check the disk's health; what was there is in the other copy of its table (`sgdisk --verify`)",
        )
    })?;
    is_whole(disk.file(), new)?;
    // A claim on the whole disk makes mkfs and mounts of its partitions fail busy.
    disk.release_claim();
    let dev = new.target.dev.unwrap_or_default();
    let places: Vec<Place> = new.add.iter().map(place).collect();
    let nodes = known(disk.file(), dev, &places)?;
    for partition in &new.add {
        reporter.info(format!(
            "made partition {} {:?} ({}) on {}",
            partition.number,
            partition.label,
            partition.size.short(),
            new.target.path.display()
        ));
    }
    let uuids = new.add.iter().map(|p| p.partuuid.clone());
    Ok(MadePartitions {
        nodes: uuids.zip(nodes).collect(),
        _disk: Some(disk),
    })
}

/// Leaves out what would be encrypted and cannot be: without its file system it would be in the way of every later
/// boot.
fn without_what_cannot_be_used(new: &NewPartitions, reporter: &Reporter) -> Result<NewPartitions> {
    let mut used = new.clone();
    used.add.clear();
    for partition in &new.add {
        let usable = make_filesystem::can_be_made(partition.filesystem).and_then(|()| {
            partition.key_file.as_ref().map_or(Ok(()), |key_file| {
                luks::can_be_opened(key_file, Path::new("/"))
            })
        });
        match usable {
            Ok(()) => used.add.push(partition.clone()),
            Err(failure) if partition.required => return Err(failure),
            Err(failure) => reporter.warn(format!(
                "partition {:?} is not made on {}: {}",
                partition.label,
                new.target,
                describe(&failure)
            )),
        }
    }
    Ok(used)
}

/// A disk that came while the image was fetched may have the partition: a second one would hide what is on it.
fn nobody_has(label: &str) -> Result<()> {
    let what = || format!("looking for partitions with the name {label:?}");
    let entries = std::fs::read_dir("/sys/class/block").context(Class::Preserve, what)?;
    let wanted = format!("PARTNAME={label}");
    for entry in entries.flatten() {
        let said = std::fs::read_to_string(entry.path().join("uevent")).unwrap_or_default();
        if said.lines().any(|line| line == wanted) {
            return Err(Failure::new(
                Class::Preserve,
                format!(
                    "{} has the name {label:?} already",
                    entry.file_name().display()
                ),
            )
            .hint("it came late: try again, and it is found"));
        }
    }
    Ok(())
}

fn place(partition: &NewPartition) -> Place {
    Place {
        number: partition.number,
        start: partition.start,
        size: partition.size,
    }
}

fn write(disk: &TargetDisk, edit: &Edit) -> Result<()> {
    for span in &edit.clear {
        disk.zero(*span)?;
    }
    disk.flush()?;
    for group in &edit.groups {
        for (at, bytes) in group {
            disk.write(*at, bytes)?;
        }
        disk.flush()?;
    }
    Ok(())
}

fn table_of(file: &File, new: &NewPartitions) -> Table {
    tables::read(&mut &*file, new.target.size, new.target.sector)
}

fn is_as_planned(file: &File, new: &NewPartitions) -> Result<()> {
    let changed = |how: &str| {
        Failure::new(
            Class::Preserve,
            format!("{} is not what was chosen any more: {how}", new.target),
        )
        .hint("try again; something else on this machine changes its disks")
    };
    match table_of(file, new) {
        Table::None if new.new_table => {
            let contents = signatures::probe_one(file, &new.target.name, new.target.size);
            if contents.blank.is_empty() {
                return Err(changed("it is not blank"));
            }
            Ok(())
        }
        Table::Gpt(gpt) if new.new_table && new.begun && !gpt.protective => {
            let ours = |entry| new.add.iter().any(|p| p.is(entry));
            if gpt.partitions.iter().all(ours) {
                Ok(())
            } else {
                Err(changed("its table is another one"))
            }
        }
        Table::Gpt(gpt) if !new.new_table => {
            if gpt.disk_guid != new.disk_guid || gpt.partitions != new.there {
                return Err(changed("its table is another one"));
            }
            Ok(())
        }
        Table::None | Table::Gpt(_) | Table::Mbr(_) | Table::Damaged { .. } => {
            Err(changed("its table is another one"))
        }
    }
}

/// What was begun before has zeroed the places of the partitions, or some of their sectors where the disk is erased
/// flash, which the rest of it tells; whatever else is there is somebody's.
fn is_blank(file: &File, new: &NewPartitions, edit: &Edit) -> Result<()> {
    let mut rest = Blank::UNSEEN;
    for span in &edit.rest {
        pieces(file, new, *span, |piece| {
            rest = rest.and(piece);
            rest.is_so()
        })?;
    }
    let is_ours = |sector: &[u8]| {
        let sector = Blank::UNSEEN.and(sector);
        sector.is_so() && (rest.is_erased_flash() || !sector.is_erased_flash())
    };
    for span in &edit.clear {
        pieces(file, new, *span, |piece| piece.chunks(512).all(is_ours))?;
    }
    Ok(())
}

/// Reads `span`, and refuses it where a piece is not as it `may_be`.
fn pieces(
    file: &File,
    new: &NewPartitions,
    span: Span,
    mut may_be: impl FnMut(&[u8]) -> bool,
) -> Result<()> {
    const PIECE: u64 = 64 << 10;
    let mut at = span.start.0;
    let end = at.saturating_add(span.length.0);
    while at < end {
        let length = end.saturating_sub(at).min(PIECE);
        let mut piece = vec![0; usize::try_from(length).unwrap_or_default()];
        file.read_exact_at(&mut piece, at)
            .context(Class::Media, || {
                format!("reading {} at byte {at}", new.target.path.display())
            })?;
        if !may_be(&piece) {
            return Err(Failure::new(
                Class::Preserve,
                format!(
                    "{} looks as if making a partition was cut off there, and has data where the partition would be",
                    new.target
                ),
            )
            .hint("look at the disk on a running system; where all on it may be lost, clear it with `blkdiscard`, or `blkdiscard -z` where it cannot discard; nothing was written"));
        }
        at = at.saturating_add(length);
    }
    Ok(())
}

fn is_whole(file: &File, new: &NewPartitions) -> Result<()> {
    let table = table_of(file, new);
    match table.why_not_whole(new.target.sector) {
        None => Ok(()),
        Some(why) => Err(Failure::new(
            Class::Media,
            format!(
                "the table that was written to {} is not whole: {why}",
                new.target
            ),
        )
        .hint("check the disk's health")),
    }
}
