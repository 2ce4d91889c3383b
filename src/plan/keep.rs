//! Which partitions of a disk outlive a reinstallation. Whether they and an image fit together, the second plan
//! says ([`super::layout::adopt`]); before that no byte is written.

use serde::Serialize;

use super::refusal::Refusal;
use super::step::Span;
use super::target::glob;
use crate::config::request::Named;
use crate::host::seed::guid_of;
use crate::host::tables::{CopyState, Gpt, Table, TablePartition};
use crate::host::{Disk, RecordFound, RecordIdentity};
use crate::image::record;
use crate::units::{Bytes, MIB, SectorSize};

/// Room for 128 entries of 128 bytes: what the table that lists only the kept partitions has.
pub const ENTRIES: usize = 128;
const ARRAY: u64 = 128 * 128;

/// A copy of a GPT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Copy {
    /// At the disk's end.
    #[default]
    Backup,
    /// At its head.
    Primary,
}

/// What is kept, and how the table gets there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The partitions, by number.
    pub kept: Vec<TablePartition>,
    /// The copy that is replaced first: the other one is intact meanwhile.
    pub first: Copy,
    /// What the operator should know.
    pub notes: Vec<String>,
}

/// A kept partition, for people.
pub fn describe(partition: &TablePartition) -> String {
    let name = partition.name.as_deref().unwrap_or("without a label");
    format!(
        "partition {} {name:?} (PARTUUID {}, byte {}, {})",
        partition.number, partition.partuuid, partition.start.0, partition.size
    )
}

/// Disk GUID of the table that lists only what `identity`'s installation keeps, while that is under way: so that
/// it is known again after it was cut off.
pub fn interim_guid(identity: &str) -> String {
    guid_of("ironroot-interim-table", &[identity]).to_string()
}

/// Whether the installation that left `mark` kept a partition that is not in `kept`. The mark says so, whichever
/// table is there by now; the interim table speaks for itself.
pub fn forgets_one(table: &Table, mark: &RecordIdentity, kept: &[TablePartition]) -> bool {
    let is_kept = |number: &u32| kept.iter().any(|p| p.number == *number);
    let interim = matches!(table, Table::Gpt(gpt) if gpt.disk_guid == interim_guid(&mark.identity));
    !mark.kept.iter().all(is_kept)
        || (interim && table.partitions().iter().any(|p| !kept.contains(p)))
}

/// Where the two copies of the interim table stand, from the header at the head and up to the disk's end.
pub fn interim_places(size: Bytes, sector: SectorSize) -> Option<(Span, Span)> {
    let sector = sector.get();
    let length = ARRAY.div_ceil(sector).checked_add(1)?.checked_mul(sector)?;
    let end = size.0 / sector * sector;
    let place = |start| Span {
        start: Bytes(start),
        length: Bytes(length),
    };
    Some((place(sector), place(end.checked_sub(length)?)))
}

/// Decides what of `disk` is kept. Nothing that matches is fine; a table that cannot be trusted is not.
pub fn decide(patterns: &[Named], disk: &Disk) -> Result<Decision, Refusal> {
    if patterns.is_empty() {
        return Ok(Decision::default());
    }
    let refuse = |what: String, next: &'static str| Refusal::Keep {
        disk: disk.name.clone(),
        what,
        next,
    };
    if let Some(why) = &disk.unreadable {
        return Err(refuse(
            format!("it could not be read ({why})"),
            "check the disk; without `disk.keep` what is on it may be lost",
        ));
    }
    let gpt = match &disk.table {
        Table::Gpt(gpt) => gpt,
        Table::None if has_kept(&disk.record) => {
            return Err(refuse(
                "an installation that kept partitions was cut off on it, and no copy of its table is left"
                    .to_owned(),
                REPAIR,
            ));
        }
        // After a cut-off the kernel may still have partitions that no table named yet.
        Table::None
            if disk.partitions.is_empty() || matches!(disk.record, RecordFound::Mark(_)) =>
        {
            return Ok(Decision {
                notes: vec![nothing(patterns, disk)],
                ..Decision::default()
            });
        }
        Table::None => {
            return Err(refuse(
                "the kernel has partitions on it, and it has no partition table".to_owned(),
                REPAIR,
            ));
        }
        Table::Mbr(_) => {
            return Err(refuse(
                "it has an MBR, and only partitions of a GPT can be kept".to_owned(),
                "convert the table (sgdisk --mbrtogpt), or leave `disk.keep` out and lose what is there",
            ));
        }
        Table::Damaged { why } => {
            return Err(refuse(
                format!("its partition table is damaged: {why}"),
                REPAIR,
            ));
        }
    };
    let doubtful = doubt(gpt, disk).map_err(|why| refuse(why, REPAIR))?;
    let kept: Vec<TablePartition> = gpt
        .partitions
        .iter()
        .filter(|p| patterns.iter().any(|pattern| matches(pattern, p)))
        .cloned()
        .collect();
    for partition in &kept {
        if let Some((why, next)) = unfit(partition, &kept, disk) {
            return Err(refuse(
                format!("{} cannot be kept: {why}", describe(partition)),
                next,
            ));
        }
    }
    if !kept.is_empty() && gpt.primary_end.0 > record::OFFSET {
        return Err(refuse(
            format!(
                "the entries of its GPT reach to byte {}, and the mark of an installation fills the 4 KiB from byte {} on: with the mark the copy at the head would be lost before there is another",
                gpt.primary_end.0,
                record::OFFSET
            ),
            "move the entries to their usual place first (sgdisk --move-main-table=2)",
        ));
    }
    let mut notes: Vec<String> = doubtful.into_iter().collect();
    if kept.is_empty() {
        notes.push(nothing(patterns, disk));
    }
    let first = match gpt.primary {
        CopyState::Valid => Copy::Backup,
        CopyState::Missing | CopyState::Invalid { .. } => Copy::Primary,
    };
    Ok(Decision { kept, first, notes })
}

/// Says so where partitions are kept that another claim's system left: what is on them is handed over.
pub fn warning_of_another_claim(
    kept: &[TablePartition],
    disk: &Disk,
    claim: &str,
) -> Option<String> {
    let (RecordFound::Mark(left) | RecordFound::Installed(left)) = &disk.record else {
        return None;
    };
    if kept.is_empty() || left.claim.is_empty() || left.claim == claim {
        return None;
    }
    let names: Vec<String> = kept.iter().map(describe).collect();
    let whose = if claim.is_empty() {
        "nobody in particular".to_owned()
    } else {
        format!("{claim:?}")
    };
    Some(format!(
        "{} was {:?}'s, and this installation is for {whose}, who gets what is on it: leave `disk.keep` out where that must not be",
        names.join(", "),
        left.claim
    ))
}

/// Whether the mark names partitions that were kept: some copy of a table lists them as long as nothing is lost.
fn has_kept(record: &RecordFound) -> bool {
    matches!(record, RecordFound::Mark(mark) if !mark.kept.is_empty())
}

const REPAIR: &str =
    "repair the table first (sgdisk, gdisk), or leave `disk.keep` out and lose what is there";

fn nothing(patterns: &[Named], disk: &Disk) -> String {
    let all: Vec<String> = patterns.iter().map(ToString::to_string).collect();
    format!(
        "nothing is kept: no partition of {} matches {}",
        disk.name,
        all.join(", ")
    )
}

fn matches(pattern: &Named, partition: &TablePartition) -> bool {
    match pattern {
        Named::Number(number) => partition.number == *number,
        Named::Label(label) => partition.name.as_deref().is_some_and(|n| glob(label, n)),
    }
}

/// Why the table must not be trusted; else what is odd about it.
fn doubt(gpt: &Gpt, disk: &Disk) -> Result<Option<String>, String> {
    let sector = disk.sector.unwrap_or(SectorSize::S512);
    if gpt.sector != sector {
        return Err(format!(
            "its GPT is written for sectors of {} bytes, the disk has {sector}",
            gpt.sector
        ));
    }
    // An installation that was cut off: LBA 0 is zero, and the copies are replaced one at a time.
    if matches!(disk.record, RecordFound::Mark(_)) && !gpt.protective {
        return Ok(None);
    }
    if !gpt.protective {
        return Err(
            "it has a GPT without a protective MBR, which neither firmware nor kernel sees"
                .to_owned(),
        );
    }
    let Some(why) = Table::Gpt(gpt.clone()).why_not_whole(sector) else {
        return Ok(None);
    };
    let place = |number, start, size| (number, start, size);
    let mut table: Vec<_> = gpt
        .partitions
        .iter()
        .map(|p| place(p.number, p.start, p.size))
        .collect();
    let mut kernel: Vec<_> = disk
        .partitions
        .iter()
        .map(|p| place(p.number, p.start, p.size))
        .collect();
    table.sort_unstable();
    kernel.sort_unstable();
    if table == kernel {
        Ok(Some(format!(
            "{why}; the kernel's partitions are those of the intact copy, which is taken"
        )))
    } else {
        Err(format!(
            "{why}, and the kernel's own partitions do not confirm the other copy"
        ))
    }
}

/// Why one partition cannot be kept, and what to do.
fn unfit(
    partition: &TablePartition,
    kept: &[TablePartition],
    disk: &Disk,
) -> Option<(String, &'static str)> {
    let leave = "leave it out of `disk.keep`, or change the partition first";
    let end = partition.start.checked_add(partition.size);
    let overlaps = |other: &&TablePartition| {
        let other_end = other.start.0.saturating_add(other.size.0);
        other.number != partition.number
            && other.start.0 < end.map_or(u64::MAX, |e| e.0)
            && partition.start.0 < other_end
    };
    if partition.kind.is_esp() || partition.kind.is_bios_boot() {
        return Some((
            "an EFI system or BIOS boot partition is what the disk boots from, and the image brings its own".to_owned(),
            "leave it out of `disk.keep`",
        ));
    }
    if partition.number > 128 {
        return Some(("numbers above 128 are not kept".to_owned(), leave));
    }
    if partition.start.0 < MIB {
        return Some((
            "it begins before byte 1 MiB, where the table and the record of the installation stand"
                .to_owned(),
            leave,
        ));
    }
    if end.is_none_or(|end| end > disk.size) {
        return Some(("it ends behind the end of the disk".to_owned(), leave));
    }
    kept.iter().find(overlaps).map(|other| {
        (
            format!("it overlaps {}", describe(other)),
            "leave one of them out of `disk.keep`",
        )
    })
}
