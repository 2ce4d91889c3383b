//! The fresh partition table of a disk whose root is unpacked from a tree: an EFI system partition, and the root on
//! the rest. Pure arithmetic (UEFI specification 2.10, section 5.3). What is kept and what is added goes into it as
//! it goes into the table of a disk image ([`super::layout`]): to that, this table is an image's.

pub(super) mod gpt;
pub mod mbr;

use serde::Serialize;

use super::keep;
use super::layout::entry::Entry;
use super::layout::space::{align_down, align_up};
use super::layout::{self, Layout, Length, Shape};
use super::refusal::Refusal;
use super::step::Target;
use crate::config::quantity::{Amount, SizeText};
use crate::config::request::Addition;
use crate::config::wire::{RecordPolicy, TableKind};
use crate::host::seed::Seed;
use crate::host::tables::TablePartition;
use crate::image::fat;
use crate::units::{Bytes, MIB};

/// Number of the EFI system partition.
pub const ESP: u32 = 1;

/// Number of the root partition.
pub const ROOT: u32 = 2;

/// Number of the root partition in a table of this kind.
pub const fn root(kind: TableKind) -> u32 {
    match kind {
        TableKind::Gpt => ROOT,
        TableKind::Mbr => mbr::ROOT,
    }
}

/// Number of the BIOS boot partition, out of the way of those that are added.
pub const BIOS_BOOT: u32 = 14;

/// Label of the root partition. In `disk.partitions` it stands for the root's size.
pub const ROOT_LABEL: &str = "root";

/// Room for the core of GRUB, which takes less than a tenth of it.
const BIOS_BOOT_SIZE: u64 = MIB;

/// Room for some kernels with their initrds.
const ESP_SIZE: u64 = 512 * MIB;

/// Less is no root for any system.
const ROOT_LEAST: u64 = 128 * MIB;

/// Type GUIDs (UEFI specification 2.10, table 5-7; UAPI.2 Discoverable Partitions Specification).
const ESP_TYPE: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
const LINUX_DATA: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";

/// Type GUID of a BIOS boot partition (GRUB manual, "BIOS installation").
const BIOS_BOOT_TYPE: &str = "21686148-6449-6e6f-744e-656564454649";

/// GUIDs that nobody else has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Guids {
    /// Of the disk.
    pub disk: String,
    /// PARTUUID of the EFI system partition.
    pub esp: String,
    /// PARTUUID of the root.
    pub root: String,
    /// PARTUUID of the BIOS boot partition.
    pub bios: String,
    /// UUID of the root's file system.
    pub filesystem: String,
}

impl Guids {
    /// Those that `seed` gives.
    pub fn of(seed: &Seed) -> Guids {
        let guid = |purpose: &str| seed.guid(&format!("tree {purpose}")).to_string();
        Guids {
            disk: guid("disk"),
            esp: guid("esp"),
            root: guid("root"),
            bios: guid("bios boot"),
            filesystem: guid("file system"),
        }
    }
}

/// What the disk of a tree shall have, besides an EFI system partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Type GUID of the root; `None` for plain Linux data.
    pub root_type: Option<&'static str>,
    /// How large the root is; `None`: what the others leave.
    pub root_size: Option<SizeText>,
    /// Whether there is a BIOS boot partition.
    pub bios_boot: bool,
    /// Partitions that are added behind it.
    pub add: &'a [Addition],
    /// Partitions of the disk that stay.
    pub kept: &'a [TablePartition],
}

impl Wanted<'_> {
    /// Whether a partition has no size of its own.
    fn takes_the_rest(&self) -> bool {
        let is_sized = |size: &SizeText| matches!(size, SizeText::Amount(Amount::Bytes(_)));
        !self.root_size.as_ref().is_some_and(is_sized)
            || !self.add.iter().all(|addition| is_sized(&addition.size))
    }
}

/// A partition of the fresh table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPartition {
    /// Number.
    pub number: u32,
    /// Partition name.
    pub label: &'static str,
    /// Type GUID.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// PARTUUID.
    pub partuuid: String,
    /// Byte offset.
    pub start: Bytes,
    /// Size.
    pub size: Bytes,
}

/// The fresh table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTable {
    /// Of which kind it is.
    #[serde(skip_serializing_if = "is_gpt")]
    pub kind: TableKind,
    /// Disk GUID of a GPT.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub disk_guid: String,
    /// Disk signature of an MBR, eight hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The partitions, by number.
    pub partitions: Vec<NewPartition>,
}

/// For what is said only where it is no GPT.
#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
pub(super) fn is_gpt(kind: &TableKind) -> bool {
    *kind == TableKind::Gpt
}

impl NewTable {
    /// The root's partition.
    pub fn root(&self) -> Option<&NewPartition> {
        self.partition(root(self.kind))
    }

    /// The partition with this number.
    pub fn partition(&self, number: u32) -> Option<&NewPartition> {
        self.partitions.iter().find(|p| p.number == number)
    }
}

/// Where the partitions of a tree's disk are. Refuses a disk that is too small for any system.
pub fn partitions(
    target: &Target,
    arch: &str,
    wanted: &Wanted<'_>,
    guids: &Guids,
) -> Result<NewTable, Refusal> {
    let esp_start = if wanted.bios_boot {
        MIB.saturating_add(BIOS_BOOT_SIZE)
    } else {
        MIB
    };
    // A small disk gives an eighth of itself, but no less than a FAT32 has.
    let esp_least = fat::least(target.sector).0;
    let least = esp_start
        .saturating_add(esp_least)
        .saturating_add(ROOT_LEAST)
        .saturating_add(2 * MIB);
    let too_small = || Refusal::TooSmall {
        disk: target.name.clone(),
        what: format!("an EFI system partition and a root for {arch}"),
        need: Bytes(least),
        have: target.size,
    };
    if target.size.0 < least {
        return Err(too_small());
    }
    let esp = align_down(target.size.0 / 8).clamp(esp_least.min(ESP_SIZE), ESP_SIZE);
    let root_start = esp_start.saturating_add(esp);
    // The backup table takes the last sectors, as much for what is kept as for everything.
    let limit = keep::interim_places(target.size, target.sector)
        .map_or(0, |(_, tail)| align_down(tail.start.0));
    let root = root_length(target, root_start, (limit, wanted))?;
    let mut partitions = vec![
        NewPartition {
            number: ESP,
            label: "ESP",
            kind: ESP_TYPE,
            partuuid: guids.esp.clone(),
            start: Bytes(esp_start),
            size: Bytes(esp),
        },
        NewPartition {
            number: ROOT,
            label: ROOT_LABEL,
            kind: wanted.root_type.unwrap_or(LINUX_DATA),
            partuuid: guids.root.clone(),
            start: Bytes(root_start),
            size: Bytes(root),
        },
    ];
    if wanted.bios_boot {
        partitions.push(NewPartition {
            number: BIOS_BOOT,
            label: "BIOS boot",
            kind: BIOS_BOOT_TYPE,
            partuuid: guids.bios.clone(),
            start: Bytes(MIB),
            size: Bytes(BIOS_BOOT_SIZE),
        });
    }
    Ok(NewTable {
        kind: TableKind::Gpt,
        disk_guid: guids.disk.clone(),
        signature: None,
        partitions,
    })
}

/// How long the root is that begins at `start`, where partitions end before `limit`.
fn root_length(
    target: &Target,
    start: u64,
    (limit, wanted): (u64, &Wanted<'_>),
) -> Result<u64, Refusal> {
    // What is kept in front of the root is refused where both sides can be named.
    let behind = wanted.kept.iter().filter(|p| p.start.0 >= start);
    let next = behind.min_by_key(|p| p.start);
    let end = next.map_or(limit, |p| p.start.0);
    let room = align_down(end.min(limit)).saturating_sub(start);
    let length = match wanted.root_size {
        Some(SizeText::Amount(Amount::Bytes(bytes))) => align_up(bytes.0),
        Some(SizeText::Amount(Amount::Percent(percent))) => {
            align_down(room / 100 * u64::from(percent) + room % 100 * u64::from(percent) / 100)
        }
        Some(SizeText::Rest) | None => {
            let mut others = 0u64;
            for addition in wanted.add {
                let SizeText::Amount(Amount::Bytes(bytes)) = addition.size else {
                    return Err(Refusal::Partitions {
                        what: format!(
                            "partition {:?} is to have a part of the free space, all of which is the root's",
                            addition.label
                        ),
                        next: "give the root a size too: a partition with the label `root`",
                    });
                };
                others = others.saturating_add(align_up(bytes.0).max(MIB));
            }
            room.saturating_sub(others)
        }
    };
    if length > room || length < ROOT_LEAST {
        let short = length.max(ROOT_LEAST).saturating_sub(room.min(length));
        return Err(match next {
            None => Refusal::TooSmall {
                disk: target.name.clone(),
                what: "the root and the partitions beside it".to_owned(),
                need: Bytes(target.size.0.saturating_add(short)),
                have: target.size,
            },
            Some(next) => Refusal::Partitions {
                what: format!(
                    "the root has no room on {}: it needs {}, and between byte {start} and {}, which is to be kept, there are {}",
                    target.name,
                    Bytes(length.max(ROOT_LEAST)),
                    keep::describe(next),
                    Bytes(room)
                ),
                next: "keep less, or give the root (a partition with the label `root`) a smaller size",
            },
        });
    }
    Ok(length)
}

/// Every byte of `table` as it will stand on `target`, with what `shape` keeps and adds. `kept` are the entries of
/// what is kept, as they stand on the disk.
pub fn layout(
    table: &NewTable,
    target: &Target,
    shape: &Shape,
    kept: &[Entry],
) -> Result<Layout, Refusal> {
    let wrong = || Refusal::NotADiskImage {
        why: "the table that was made for it makes no sense".to_owned(),
    };
    let head = head(table, target).ok_or_else(wrong)?;
    let end = |p: &NewPartition| p.start.0.saturating_add(p.size.0);
    let length = table.partitions.iter().map(end).max().unwrap_or_default();
    let length = Length {
        exact: Some(Bytes(length)),
        at_least: Bytes::ZERO,
    };
    // Read by what reads every table: what goes on with it sees what everybody will see.
    let layout = layout::adopt(&head, length, target, RecordPolicy::Required, shape, kept)?;
    let seen = layout.image.partitions().len();
    if seen != table.partitions.len() {
        return Err(wrong());
    }
    Ok(layout)
}

/// The first MiB of an image with this table, which is as long as the disk.
fn head(table: &NewTable, target: &Target) -> Option<Vec<u8>> {
    match table.kind {
        TableKind::Gpt => gpt::head(table, target),
        TableKind::Mbr => {
            let mut head = vec![0u8; usize::try_from(MIB).ok()?];
            put(&mut head, 0, &mbr::lba0(table, target)?)?;
            Some(head)
        }
    }
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) -> Option<()> {
    bytes
        .get_mut(at..at.checked_add(what.len())?)?
        .copy_from_slice(what);
    Some(())
}

#[cfg(test)]
mod tests;
