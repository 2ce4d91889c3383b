//! Partitions that are made for preserved content: both ends of each are zeroed first, so that nothing old is found
//! in them, then the backup table, then the primary, each flushed. A disk that was blank gets its protective MBR at
//! the very end. A cut at any point leaves what was there before, or all of it, or what the next boot goes on with.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::error::{Class, Context as _, Failure, Result};
use crate::host::signatures;
use crate::host::tables::{self, Table};
use crate::plan::layout::create::{Edit, edit};
use crate::plan::preserve::create::{NewPartition, NewPartitions};
use crate::plan::step::Span;
use crate::report::Reporter;
use crate::run::make_filesystem;
use crate::run::partitions::{Node, Place, known};
use crate::run::target_disk::TargetDisk;
use crate::units::{Bytes, MIB};

/// Partitions that were made, and their disk, which stays locked: a udevd that reads the table again would take them
/// away for a moment.
#[derive(Debug)]
pub struct MadePartitions {
    _disk: TargetDisk,
    /// PARTUUID and node of each.
    pub nodes: Vec<(String, Node)>,
}

/// Makes them, and lets the kernel know.
///
/// # Errors
/// Nothing has been written where the disk is in use, is not what the plan was made for, or a program is missing.
pub fn make(new: &NewPartitions, reporter: &Reporter) -> Result<MadePartitions> {
    for partition in &new.add {
        make_filesystem::can_be_made(partition.filesystem)?;
    }
    let mut disk = TargetDisk::open(&new.target)?;
    is_as_planned(disk.file(), new)?;
    let mut head = vec![0; usize::try_from(MIB).unwrap_or_default()];
    disk.file()
        .read_exact_at(&mut head, 0)
        .context(Class::Media, || {
            format!("reading the first MiB of {}", new.target.path.display())
        })?;
    let edit = edit(&head, new)?;
    if new.begun {
        is_blank(disk.file(), new, &edit.clear)?;
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
        _disk: disk,
    })
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
    let (at, bytes) = &edit.backup;
    disk.write(*at, bytes)?;
    disk.flush()?;
    for (at, bytes) in &edit.primary {
        disk.write(*at, bytes)?;
    }
    disk.flush()?;
    if let Some(lba0) = &edit.lba0 {
        disk.write(Bytes::ZERO, lba0)?;
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
        Table::Gpt(gpt) if new.new_table && new.begun && !gpt.protective => Ok(()),
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

/// What was begun before has zeroed this already; whatever else is there is somebody's.
fn is_blank(file: &File, new: &NewPartitions, spans: &[Span]) -> Result<()> {
    const PIECE: u64 = 64 << 10;
    for span in spans {
        let mut at = span.start.0;
        let end = at.saturating_add(span.length.0);
        while at < end {
            let length = end.saturating_sub(at).min(PIECE);
            let mut piece = vec![0; usize::try_from(length).unwrap_or_default()];
            file.read_exact_at(&mut piece, at)
                .context(Class::Media, || {
                    format!("reading {} at byte {at}", new.target.path.display())
                })?;
            if piece.iter().any(|b| *b != 0) {
                return Err(Failure::new(
                    Class::Preserve,
                    format!(
                        "{} looks as if making a partition was cut off there, and has data where the partition would be",
                        new.target
                    ),
                )
                .hint("look at the disk on a running system; nothing was written"));
            }
            at = at.saturating_add(length);
        }
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
