//! The bytes of the fresh GPT (UEFI specification 2.10, section 5.3).

use flate2::Crc;

use super::{NewPartition, NewTable, put};
use crate::plan::step::Target;
use crate::units::{MIB, SectorSize};

/// Entries of the table; every tool expects so many.
const ENTRIES: u32 = 128;
const ENTRY_SIZE: u32 = 128;
const ENTRY: usize = 128;
const ARRAY: usize = 128 * ENTRY;
const HEADER_SIZE: u32 = 92;

/// The first MiB of an image with this table, which is as long as the disk.
pub(super) fn head(table: &NewTable, target: &Target) -> Option<Vec<u8>> {
    let sector = target.sector;
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
pub(in crate::plan) fn protective(last: u64) -> [u8; 512] {
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
pub(super) fn guid(text: &str) -> Option<[u8; 16]> {
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
