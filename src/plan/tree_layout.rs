//! The fresh partition table of a disk whose root is unpacked from a tree: an EFI system partition, and the root on
//! the rest. Pure arithmetic; every byte of the table comes out of here (UEFI specification 2.10, section 5.3).

use flate2::Crc;
use serde::Serialize;

use super::layout::Layout;
use super::refusal::Refusal;
use super::step::Target;
use crate::host::tables::{self, Table};
use crate::image::fat;
use crate::units::{Bytes, MIB, SectorSize};

/// Number of the EFI system partition.
pub const ESP: u32 = 1;

/// Number of the root partition.
pub const ROOT: u32 = 2;

/// Room for some kernels with their initrds.
const ESP_SIZE: u64 = 512 * MIB;

/// Less is no root for any system.
const ROOT_LEAST: u64 = 128 * MIB;

/// Partitions begin and end at multiples of this.
const ALIGNMENT: u64 = MIB;

/// Entries of the table; every tool expects so many.
const ENTRIES: u32 = 128;
const ENTRY_SIZE: u32 = 128;
const ENTRY: usize = 128;
const ARRAY: usize = 128 * ENTRY;
const HEADER_SIZE: u32 = 92;

/// Type GUIDs (UEFI specification 2.10, table 5-7; UAPI.2 Discoverable Partitions Specification).
const ESP_TYPE: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
const LINUX_DATA: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";

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
    /// UUID of the root's file system.
    pub filesystem: String,
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
    /// Disk GUID.
    pub disk_guid: String,
    /// The partitions, by number.
    pub partitions: Vec<NewPartition>,
}

impl NewTable {
    /// The partition with this number.
    pub fn partition(&self, number: u32) -> Option<&NewPartition> {
        self.partitions.iter().find(|p| p.number == number)
    }
}

/// Where the partitions of a tree's disk are. Refuses a disk that is too small for any system.
pub fn partitions(
    target: &Target,
    arch: &str,
    root_type: Option<&'static str>,
    guids: &Guids,
) -> Result<NewTable, Refusal> {
    // A small disk gives an eighth of itself, but no less than a FAT32 has.
    let esp_least = fat::least(target.sector).0;
    let least = MIB
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
    let down = |n: u64| n / ALIGNMENT * ALIGNMENT;
    let esp = down(target.size.0 / 8).clamp(esp_least.min(ESP_SIZE), ESP_SIZE);
    let root_start = ALIGNMENT.saturating_add(esp);
    // The backup table takes the last sectors: 16 KiB of entries and the header.
    let behind = ARRAY as u64 + target.sector.get();
    let end = down(target.size.0.saturating_sub(behind));
    let root = end.checked_sub(root_start).ok_or_else(too_small)?;
    Ok(NewTable {
        disk_guid: guids.disk.clone(),
        partitions: vec![
            NewPartition {
                number: ESP,
                label: "ESP",
                kind: ESP_TYPE,
                partuuid: guids.esp.clone(),
                start: Bytes(ALIGNMENT),
                size: Bytes(esp),
            },
            NewPartition {
                number: ROOT,
                label: "root",
                kind: root_type.unwrap_or(LINUX_DATA),
                partuuid: guids.root.clone(),
                start: Bytes(root_start),
                size: Bytes(root),
            },
        ],
    })
}

/// Every byte of `table` as it will stand on `target`.
pub fn layout(table: &NewTable, target: &Target) -> Result<Layout, Refusal> {
    let wrong = || Refusal::NotADiskImage {
        why: "the table that was made for it makes no sense".to_owned(),
    };
    let sector = target.sector;
    let places = Places::of(target).ok_or_else(wrong)?;
    let mut array = vec![0u8; ARRAY];
    for partition in &table.partitions {
        let entry = entry(partition, sector).ok_or_else(wrong)?;
        let at = usize::try_from(partition.number)
            .ok()
            .and_then(|n| n.checked_sub(1)?.checked_mul(ENTRY));
        let place = at
            .and_then(|at| array.get_mut(at..at.checked_add(ENTRY)?))
            .ok_or_else(wrong)?;
        place.copy_from_slice(&entry);
    }
    let guid = guid(&table.disk_guid).ok_or_else(wrong)?;
    let primary = header(&guid, &array, (1, places.last, 2), &places);
    let backup = header(
        &guid,
        &array,
        (places.last, 1, places.backup_array),
        &places,
    );

    let mut head = vec![0u8; usize::try_from(MIB).map_err(|_| wrong())?];
    let one = usize::try_from(sector.get()).map_err(|_| wrong())?;
    put(&mut head, 0, &protective(places.last)).ok_or_else(wrong)?;
    put(&mut head, one, &primary).ok_or_else(wrong)?;
    put(&mut head, 2 * one, &array).ok_or_else(wrong)?;

    let array_length = usize::try_from(places.array_sectors)
        .ok()
        .and_then(|n| n.checked_mul(one))
        .ok_or_else(wrong)?;
    let mut tail = array;
    tail.resize(array_length, 0);
    tail.extend_from_slice(&backup);
    tail.resize(array_length.saturating_add(one), 0);
    let at = places
        .backup_array
        .checked_mul(sector.get())
        .ok_or_else(wrong)?;

    // Read back by what reads every table: what goes on with it sees what everybody will see.
    let read = tables::read(&mut std::io::Cursor::new(&head), target.size, sector);
    let seen = read.partitions().len();
    if !matches!(read, Table::Gpt(_)) || seen != table.partitions.len() {
        return Err(wrong());
    }
    Ok(Layout {
        head,
        tail: Some((Bytes(at), tail)),
        image: read.clone(),
        table: read,
        ..Layout::default()
    })
}

/// Blocks of the table, as every header names them.
struct Places {
    last: u64,
    array_sectors: u64,
    backup_array: u64,
    first_usable: u64,
    last_usable: u64,
}

impl Places {
    fn of(target: &Target) -> Option<Places> {
        let sector = target.sector.get();
        let array_sectors = (ARRAY as u64).div_ceil(sector);
        let last = (target.size.0 / sector).checked_sub(1)?;
        let backup_array = last.checked_sub(array_sectors)?;
        Some(Places {
            last,
            array_sectors,
            backup_array,
            first_usable: array_sectors.checked_add(2)?,
            last_usable: backup_array.checked_sub(1)?,
        })
    }
}

fn entry(partition: &NewPartition, sector: SectorSize) -> Option<[u8; ENTRY]> {
    let mut entry = [0u8; ENTRY];
    let first = partition.start.0 / sector.get();
    let count = partition.size.0 / sector.get();
    put(&mut entry, 0, &guid(partition.kind)?)?;
    put(&mut entry, 16, &guid(&partition.partuuid)?)?;
    put(&mut entry, 32, &first.to_le_bytes())?;
    let last = first.checked_add(count)?.checked_sub(1)?;
    put(&mut entry, 40, &last.to_le_bytes())?;
    for (i, unit) in partition.label.encode_utf16().enumerate().take(36) {
        put(&mut entry, 56 + 2 * i, &unit.to_le_bytes())?;
    }
    Some(entry)
}

/// A header (table 5-5) for block `at`, its twin and its entries elsewhere.
fn header(guid: &[u8; 16], array: &[u8], at: (u64, u64, u64), places: &Places) -> Vec<u8> {
    let (my, alternate, entries) = at;
    let mut crc = Crc::new();
    crc.update(array);
    let mut bytes = Vec::with_capacity(HEADER_SIZE as usize);
    bytes.extend_from_slice(b"EFI PART");
    bytes.extend_from_slice(&0x0001_0000u32.to_le_bytes());
    bytes.extend_from_slice(&HEADER_SIZE.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    for number in [my, alternate, places.first_usable, places.last_usable] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(guid);
    bytes.extend_from_slice(&entries.to_le_bytes());
    for number in [ENTRIES, ENTRY_SIZE, crc.sum()] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let mut crc = Crc::new();
    crc.update(&bytes);
    // It is computed with zeros in its own place.
    if let Some(place) = bytes.get_mut(16..20) {
        place.copy_from_slice(&crc.sum().to_le_bytes());
    }
    bytes
}

/// A protective MBR (table 5-4) without boot code.
pub(super) fn protective(last: u64) -> [u8; 512] {
    let mut mbr = [0u8; 512];
    let sectors = u32::try_from(last).unwrap_or(u32::MAX).to_le_bytes();
    let entry = [
        &[0, 0x00, 0x02, 0x00, 0xee, 0xff, 0xff, 0xff][..],
        &1u32.to_le_bytes(),
        &sectors,
    ]
    .concat();
    let _ = put(&mut mbr, 446, &entry);
    let _ = put(&mut mbr, 510, &[0x55, 0xaa]);
    mbr
}

/// The 16 bytes of a GUID: the first three fields are little-endian (UEFI specification 2.10, appendix A).
fn guid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0u8; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    for field in [0..4, 4..6, 6..8] {
        bytes.get_mut(field)?.reverse();
    }
    Some(bytes)
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) -> Option<()> {
    bytes
        .get_mut(at..at.checked_add(what.len())?)?
        .copy_from_slice(what);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tables::CopyState;
    use crate::image::record;
    use proptest::prelude::*;

    fn guids() -> Guids {
        let guid = |c: &str| format!("{c}0000000-1111-4222-8333-444444444444");
        Guids {
            disk: guid("a"),
            esp: guid("b"),
            root: guid("c"),
            filesystem: guid("d"),
        }
    }

    fn target(size: u64, sector: SectorSize) -> Target {
        Target {
            path: "/dev/x".into(),
            name: "x".to_owned(),
            dev: None,
            size: Bytes(size),
            sector,
            identity: record::DiskIdentity::default(),
        }
    }

    /// A disk on which only what the layout writes is not zero, as far as a table goes.
    fn disk(layout: &Layout, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        bytes[..layout.head.len()].copy_from_slice(&layout.head);
        let (at, tail) = layout.tail.as_ref().unwrap();
        let at = usize::try_from(at.0).unwrap();
        assert_eq!(at + tail.len(), bytes.len(), "the backup ends the disk");
        bytes[at..].copy_from_slice(tail);
        bytes
    }

    #[test]
    fn both_copies_are_valid_on_disks_of_either_sector_size() {
        for (size, sector) in [
            (256 * MIB, SectorSize::S512),
            (512 * MIB, SectorSize::S4096),
            (300 * MIB + 512, SectorSize::S512),
        ] {
            let target = target(size, sector);
            let table = partitions(&target, "x86_64", None, &guids()).unwrap();
            let layout = layout(&table, &target).unwrap();
            let bytes = disk(&layout, size);
            let read = tables::read(&mut std::io::Cursor::new(&bytes), Bytes(size), sector);
            assert_eq!(read.why_not_whole(sector), None);
            let Table::Gpt(gpt) = &read else {
                panic!("{read:?}")
            };
            assert!(gpt.backup_at_end && gpt.flaws.is_empty(), "{gpt:?}");
            assert_eq!(gpt.primary, CopyState::Valid);
            assert_eq!(gpt.disk_guid, guids().disk);
            assert_eq!(gpt.partitions, layout.table.partitions());
            let [esp, root] = &gpt.partitions[..] else {
                panic!("{gpt:?}")
            };
            assert!(esp.kind.is_esp() && esp.name.as_deref() == Some("ESP"));
            assert_eq!(esp.partuuid, guids().esp);
            assert_eq!(root.partuuid, guids().root);
            assert_eq!(root.name.as_deref(), Some("root"));
            // No boot code, and room for the record.
            assert!(layout.head[..446].iter().all(|b| *b == 0));
            let area = usize::try_from(record::OFFSET).unwrap();
            assert!(layout.head[area..].iter().all(|b| *b == 0));
        }
    }

    proptest! {
        #[test]
        fn partitions_are_aligned_apart_and_within_the_usable_space(
            size in 1u64..(1 << 45), big in any::<bool>(),
        ) {
            let sector = if big { SectorSize::S4096 } else { SectorSize::S512 };
            let target = target(size / 4096 * 4096, sector);
            match partitions(&target, "x86_64", None, &guids()) {
                Err(refusal) => {
                    prop_assert!(target.size.0 < if big { 400 } else { 200 } * MIB, "{}", refusal);
                }
                Ok(table) => {
                    let layout = layout(&table, &target).unwrap();
                    let tail = layout.tail.as_ref().unwrap().0.0;
                    let mut at = MIB;
                    for p in &table.partitions {
                        prop_assert!(p.start.0 >= at && p.start.0 % MIB == 0 && p.size.0 % MIB == 0);
                        at = p.start.0 + p.size.0;
                    }
                    prop_assert!(at <= tail);
                    // No more is left over than alignment takes.
                    prop_assert!(tail - at < MIB);
                    let esp = table.partition(ESP).unwrap().size.0;
                    prop_assert!((fat::least(sector).0..=512 * MIB).contains(&esp));
                    prop_assert!(esp == 512 * MIB || target.size.0 < 4096 * MIB);
                }
            }
        }

        #[test]
        fn any_text_is_a_guid_or_not_without_a_panic(text in "\\PC{0,40}") {
            let _ = guid(&text);
        }
    }

    #[test]
    fn a_guid_is_written_with_its_first_fields_reversed() {
        let bytes = guid(ESP_TYPE).unwrap();
        assert_eq!(bytes[..8], [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11]);
        assert_eq!(guid("c12a7328"), None);
    }
}
