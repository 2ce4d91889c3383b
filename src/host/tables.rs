//! Partition tables as they stand on a disk, read without the kernel: it may know no GPT, an older
//! table, or nothing yet.
//!
//! Reads only. The crates `gpt` and `mbrman` decode; what they would trust blindly (counts, sizes,
//! positions) is bounded here first, and they never see the disk itself.

mod gpt_copy;
mod mbr;

use std::io::{Read, Seek, SeekFrom};

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, SectorSize};

/// What kind of table a disk carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", content = "table")]
pub enum Table {
    /// No table.
    #[default]
    None,
    /// GUID partition table (UEFI specification, section 5.3).
    Gpt(Gpt),
    /// MBR, also called dos or msdos.
    Mbr(Mbr),
    /// Signs of a table of which no copy can be read.
    Damaged {
        /// What was found.
        why: String,
    },
}

/// A GUID partition table of which at least one copy is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gpt {
    /// The sector size for which the table was written. Where it is not the disk's, firmware and kernel
    /// do not see the table.
    pub sector: SectorSize,
    /// Disk GUID, lower case.
    pub disk_guid: String,
    /// Sector 0 is a protective (or hybrid) MBR; without one, firmware and kernel do not see the table.
    pub protective: bool,
    /// The copy at the head.
    pub primary: CopyState,
    /// Where that copy ends, its entries included; zero where it is not valid.
    #[serde(default)]
    pub primary_end: Bytes,
    /// The copy that the primary points to; where there is no primary, the one in the last sector.
    pub backup: CopyState,
    /// Both copies are valid and say the same.
    pub copies_agree: bool,
    /// What the backup lists, where both copies are valid and differ: the partitions here are the primary's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_lists: Option<Vec<TablePartition>>,
    /// The backup's header is in the last sector of the disk (it is not after a disk has grown).
    pub backup_at_end: bool,
    /// First and last block that partitions may use.
    pub usable: (u64, u64),
    /// Number of entries that the table has room for.
    pub entries: u32,
    /// The partitions, by number.
    pub partitions: Vec<TablePartition>,
    /// Entries that make no sense, for people.
    pub flaws: Vec<String>,
}

/// Whether one copy of a GPT is as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum CopyState {
    /// Header and entries fit their checksums.
    Valid,
    /// No header there.
    Missing,
    /// A header that must not be trusted.
    Invalid {
        /// What is wrong.
        why: String,
    },
}

/// An MBR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mbr {
    /// Disk signature, eight hexadecimal digits as the kernel and blkid print it.
    pub signature: String,
    /// Primary and logical partitions, by number. The extended partition itself is listed too.
    pub partitions: Vec<TablePartition>,
}

/// A partition as the table on the disk has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TablePartition {
    /// Number: the place in the array of entries plus one, so that gaps stay gaps.
    pub number: u32,
    /// Byte offset on the disk.
    pub start: Bytes,
    /// Size in bytes.
    pub size: Bytes,
    /// What the partition is for.
    pub kind: PartitionKind,
    /// PARTUUID, lower case; for an MBR `ssssssss-nn`, as the kernel makes it.
    pub partuuid: String,
    /// Partition name (PARTLABEL), where it has one.
    pub name: Option<String>,
    /// Attribute bits of a GPT entry; for an MBR, bit 2 says "active" (the legacy-bootable bit of GPT).
    pub attributes: u64,
}

/// What a partition is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PartitionKind {
    /// Type GUID, lower case.
    Guid(String),
    /// Type byte.
    Byte(u8),
}

impl PartitionKind {
    /// EFI system partition (UEFI specification, tables 5.7 and 5.3).
    pub fn is_esp(&self) -> bool {
        match self {
            PartitionKind::Guid(guid) => guid == "c12a7328-f81f-11d2-ba4b-00a0c93ec93b",
            PartitionKind::Byte(byte) => *byte == 0xef,
        }
    }

    /// BIOS boot partition of GRUB.
    pub fn is_bios_boot(&self) -> bool {
        matches!(self, PartitionKind::Guid(guid) if guid == "21686148-6449-6e6f-744e-656564454649")
    }

    /// The container of logical partitions of an MBR: no file system is in it.
    pub fn is_extended(&self) -> bool {
        matches!(self, PartitionKind::Byte(0x05 | 0x0f | 0x85 | 0xc5 | 0xd5))
    }
}

impl Table {
    /// The partitions of the table; empty without one.
    pub fn partitions(&self) -> &[TablePartition] {
        match self {
            Table::Gpt(gpt) => &gpt.partitions,
            Table::Mbr(mbr) => &mbr.partitions,
            Table::None | Table::Damaged { .. } => &[],
        }
    }

    /// Why a table is not one that firmware and kernel accept in full on a disk with sectors of `sector`
    /// bytes; `None` means it is whole. Oddities of single entries do not count: an image may have been
    /// made with them.
    pub fn why_not_whole(&self, sector: SectorSize) -> Option<String> {
        match self {
            Table::None => Some("there is no partition table".to_owned()),
            Table::Damaged { why } => Some(why.clone()),
            Table::Mbr(_) => None,
            Table::Gpt(gpt) => gpt.why_not_whole(sector),
        }
    }
}

impl Gpt {
    fn why_not_whole(&self, sector: SectorSize) -> Option<String> {
        let copy = |name: &str, state: &CopyState| match state {
            CopyState::Valid => None,
            CopyState::Missing => Some(format!("the {name} GPT is missing")),
            CopyState::Invalid { why } => Some(format!("the {name} GPT is damaged: {why}")),
        };
        if !self.protective {
            return Some("sector 0 is no protective MBR".to_owned());
        }
        if self.sector != sector {
            return Some(format!(
                "the table is written for sectors of {} bytes, the disk has {sector}",
                self.sector
            ));
        }
        copy("primary", &self.primary)
            .or_else(|| copy("backup", &self.backup))
            .or_else(|| (!self.copies_agree).then(|| "the two copies of the GPT differ".to_owned()))
    }
}

/// Reads the table of a disk of `size` bytes with logical sectors of `sector` bytes. `reader` may end
/// before the disk does (the head of an image): then the backup counts as missing.
///
/// Firmware's and the kernel's rule decides between two tables: a GPT without a protective MBR gives way
/// to an MBR that has partitions. A GPT for the other common sector size is found too, and says so.
pub fn read<R: Read + Seek + ?Sized>(reader: &mut R, size: Bytes, sector: SectorSize) -> Table {
    let lba0 = match bytes_at(reader, 0, 512) {
        Ok(bytes) => bytes,
        Err(why) => {
            return Table::Damaged {
                why: format!("reading sector 0: {why}"),
            };
        }
    };
    let boot = mbr::parse(&lba0);
    let protective = boot.as_ref().is_some_and(mbr::is_protective);

    let has_partitions = |h: &&_| mbr::has_partitions(h) && !mbr::is_only_for_show(h, &lba0);
    if let Some(header) = boot.as_ref().filter(|_| !protective).filter(has_partitions) {
        return Table::Mbr(mbr::read(reader, header, sector));
    }
    let mut damage = None;
    for candidate in sector_sizes(sector) {
        match gpt_copy::read(reader, size, candidate, protective) {
            Table::None => {}
            Table::Damaged { why } => {
                damage.get_or_insert(why);
            }
            found @ (Table::Gpt(_) | Table::Mbr(_)) => return found,
        }
    }
    if let Some(why) = damage {
        return Table::Damaged { why };
    }
    if protective {
        return Table::Damaged {
            why: "sector 0 is a protective MBR, but there is no GPT".to_owned(),
        };
    }
    match boot {
        // A file system's boot sector ends in 55 AA as well.
        Some(header) if !mbr::is_file_system(&lba0) => {
            Table::Mbr(mbr::read(reader, &header, sector))
        }
        Some(_) | None => Table::None,
    }
}

/// The array of entries of the copy of a GPT that [`read`] takes its partitions from, byte for byte.
pub fn gpt_entries<R: Read + Seek + ?Sized>(
    reader: &mut R,
    size: Bytes,
    sector: SectorSize,
) -> Option<Vec<u8>> {
    gpt_copy::entries(reader, size, sector)
}

fn sector_sizes(own: SectorSize) -> impl Iterator<Item = SectorSize> {
    std::iter::once(own)
        .chain(
            [SectorSize::S512, SectorSize::S4096]
                .into_iter()
                .filter(move |s| *s != own),
        )
        // The gpt crate knows these two; no disk with another size carries a GPT in practice.
        .filter(|s| [SectorSize::S512, SectorSize::S4096].contains(s))
}

/// Reads exactly `length` bytes at `offset`; the error is for people.
fn bytes_at<R: Read + Seek + ?Sized>(
    reader: &mut R,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    reader
        .seek(SeekFrom::Start(offset))
        .and_then(|_| reader.read_exact(&mut bytes))
        .map_err(|e| e.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
