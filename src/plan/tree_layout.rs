//! The fresh partition table of a disk whose root is unpacked from a tree: an EFI system partition, and the root on
//! the rest. Pure arithmetic (UEFI specification 2.10, section 5.3). What is kept and what is added goes into it as
//! it goes into the table of a disk image ([`super::layout`]): to that, this table is an image's.

pub mod mbr;

use flate2::Crc;
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
use crate::units::{Bytes, MIB, SectorSize};

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

/// Entries of the table; every tool expects so many.
const ENTRIES: u32 = 128;
const ENTRY_SIZE: u32 = 128;
const ENTRY: usize = 128;
const ARRAY: usize = 128 * ENTRY;
const HEADER_SIZE: u32 = 92;

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
    let sector = target.sector;
    if table.kind == TableKind::Mbr {
        let mut head = vec![0u8; usize::try_from(MIB).ok()?];
        put(&mut head, 0, &mbr::lba0(table, target)?)?;
        return Some(head);
    }
    let places = Places::of(target)?;
    let mut array = vec![0u8; ARRAY];
    for partition in &table.partitions {
        let entry = entry(partition, sector)?;
        let at = usize::try_from(partition.number.checked_sub(1)?).ok()?;
        put(&mut array, at.checked_mul(ENTRY)?, &entry)?;
    }
    let guid = guid(&table.disk_guid)?;
    let primary = header(&guid, &array, (1, places.last, 2), &places);
    let mut head = vec![0u8; usize::try_from(MIB).ok()?];
    let one = usize::try_from(sector.get()).ok()?;
    put(&mut head, 0, &protective(places.last))?;
    put(&mut head, one, &primary)?;
    put(&mut head, 2 * one, &array)?;
    Some(head)
}

/// Blocks of the table, as every header names them.
struct Places {
    last: u64,
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
    use crate::config::request::preserve::NewFileSystem;
    use crate::host::tables::{self, CopyState, Table};
    use crate::image::record;
    use crate::plan::layout::kept::entry_of;
    use proptest::prelude::*;

    fn guids() -> Guids {
        let guid = |c: &str| format!("{c}0000000-1111-4222-8333-444444444444");
        Guids {
            disk: guid("a"),
            esp: guid("b"),
            root: guid("c"),
            bios: guid("e"),
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

    fn plain(target: &Target) -> Result<NewTable, Refusal> {
        partitions(target, "x86_64", &Wanted::default(), &guids())
    }

    fn data(size: &str) -> Addition {
        Addition {
            label: "data".to_owned(),
            size: size.parse().unwrap(),
            kind: LINUX_DATA.to_owned(),
            filesystem: Some(NewFileSystem::Ext4),
        }
    }

    /// The partitions of the table that a disk of 8 GiB gets: number, name, start and length in MiB.
    fn seen(wanted: &Wanted<'_>) -> Result<Vec<(u32, String, u64, u64)>, Refusal> {
        let target = target(8 << 30, SectorSize::S512);
        let table = partitions(&target, "x86_64", wanted, &guids())?;
        let shape = Shape {
            kept: wanted.kept.to_vec(),
            add: wanted.add.to_vec(),
            seed: Seed::random().unwrap(),
            interim_guid: guids().disk,
            ..Shape::default()
        };
        let kept = wanted.kept.iter().map(|p| entry_of(p, 512).unwrap());
        let kept: Vec<Entry> = kept.collect();
        let layout = layout(&table, &target, &shape, &kept)?;
        Ok(layout
            .table
            .partitions()
            .iter()
            .map(|p| {
                let name = p.name.clone().unwrap_or_default();
                (p.number, name, p.start.0 / MIB, p.size.0 / MIB)
            })
            .collect())
    }

    fn row(number: u32, name: &str, start: u64, size: u64) -> (u32, String, u64, u64) {
        (number, name.to_owned(), start, size)
    }

    #[test]
    fn a_data_partition_stands_behind_the_root_and_stays_there_over_a_reinstall() {
        let size: SizeText = "2GiB".parse().unwrap();
        let first = seen(&Wanted {
            root_size: Some(size),
            add: &[data("Rest")],
            ..Wanted::default()
        });
        let rows = [
            row(1, "ESP", 1, 512),
            row(2, "root", 513, 2048),
            row(3, "data", 2561, 8192 - 2561 - 1),
        ];
        assert_eq!(first.unwrap(), rows);
        // The rest is the root's where nobody else wants it.
        let sized = [data("1GiB")];
        let wanted = Wanted {
            add: &sized,
            ..Wanted::default()
        };
        let rows = [
            row(1, "ESP", 1, 512),
            row(2, "root", 513, 8192 - 513 - 1 - 1024),
            row(3, "data", 8192 - 1 - 1024, 1024),
        ];
        assert_eq!(seen(&wanted).unwrap(), rows);

        let there = TablePartition {
            number: 3,
            kind: tables::PartitionKind::Guid(LINUX_DATA.to_owned()),
            name: Some("data".to_owned()),
            partuuid: guids().filesystem,
            start: Bytes(2561 * MIB),
            size: Bytes(1000 * MIB),
            attributes: 0,
        };
        let kept = std::slice::from_ref(&there);
        let again = Wanted {
            root_size: Some(size),
            kept,
            ..Wanted::default()
        };
        assert_eq!(
            seen(&again).unwrap(),
            [
                row(1, "ESP", 1, 512),
                row(2, "root", 513, 2048),
                row(3, "data", 2561, 1000),
            ]
        );
        // Without a size the root ends where it begins.
        let again = Wanted {
            root_size: None,
            ..again
        };
        assert_eq!(seen(&again).unwrap()[1], row(2, "root", 513, 2048));
        let larger = Wanted {
            root_size: Some("2049MiB".parse().unwrap()),
            ..again
        };
        let refusal = seen(&larger).unwrap_err();
        assert!(matches!(refusal, Refusal::Partitions { .. }), "{refusal}");
        // With another boot loader the root stands one MiB further on: no byte of what is kept is touched.
        let bios = Wanted {
            root_size: Some(size),
            bios_boot: true,
            ..again
        };
        assert!(matches!(seen(&bios), Err(Refusal::Partitions { .. })));
        // What lies where the EFI system partition goes is named.
        let early = TablePartition {
            start: Bytes(MIB),
            ..there
        };
        let wanted = Wanted {
            kept: std::slice::from_ref(&early),
            ..Wanted::default()
        };
        let refusal = seen(&wanted).unwrap_err();
        assert!(refusal.to_string().contains("lies over it"), "{refusal}");
    }

    #[test]
    fn a_bios_boot_partition_stands_in_front_and_has_a_number_of_its_own() {
        let wanted = Wanted {
            bios_boot: true,
            ..Wanted::default()
        };
        assert_eq!(
            seen(&wanted).unwrap(),
            [
                row(1, "ESP", 2, 512),
                row(2, "root", 514, 8192 - 514 - 1),
                row(14, "BIOS boot", 1, 1),
            ]
        );
    }

    #[test]
    fn what_does_not_fit_beside_the_root_is_too_much() {
        let wanted = Wanted {
            add: &[data("7680MiB")],
            ..Wanted::default()
        };
        let refusal = seen(&wanted).unwrap_err();
        assert!(matches!(refusal, Refusal::TooSmall { .. }), "{refusal}");
        let wanted = Wanted {
            root_size: Some(SizeText::Rest),
            add: &[data("10%")],
            ..Wanted::default()
        };
        let refusal = seen(&wanted).unwrap_err();
        assert!(matches!(refusal, Refusal::Partitions { .. }), "{refusal}");
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
            let table = plain(&target).unwrap();
            let layout = layout(&table, &target, &Shape::default(), &[]).unwrap();
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
            match plain(&target) {
                Err(refusal) => {
                    prop_assert!(target.size.0 < if big { 400 } else { 200 } * MIB, "{}", refusal);
                }
                Ok(table) => {
                    let layout = layout(&table, &target, &Shape::default(), &[]).unwrap();
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
