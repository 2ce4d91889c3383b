//! The array of partition entries of a GPT (UEFI specification 2.10, table 5-6), edited in place: the number of a
//! partition is its place in the array, so nothing is ever moved.

use flate2::Crc;
use uuid::Uuid;

use super::bytes::{get64, put};
use crate::host::tables::PartitionKind;

/// The only size of an entry in the field, and the only one that the reader of tables takes.
pub const ENTRY_SIZE: usize = 128;

const TYPE: usize = 0;
const GUID: usize = 16;
const FIRST: usize = 32;
const LAST: usize = 40;
const NAME: usize = 56;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry([u8; ENTRY_SIZE]);

impl Entry {
    /// A new one; first and last block belong to it both. A name is cut at 36 UTF-16 units.
    pub fn new(kind: Uuid, guid: Uuid, first: u64, last: u64, name: &str) -> Entry {
        let mut bytes = [0; ENTRY_SIZE];
        put(&mut bytes, TYPE, &kind.to_bytes_le());
        put(&mut bytes, GUID, &guid.to_bytes_le());
        put(&mut bytes, FIRST, &first.to_le_bytes());
        put(&mut bytes, LAST, &last.to_le_bytes());
        let units = name.encode_utf16().take((ENTRY_SIZE - NAME) / 2);
        for (i, unit) in units.enumerate() {
            put(&mut bytes, NAME + 2 * i, &unit.to_le_bytes());
        }
        Entry(bytes)
    }

    /// The first one in `bytes`.
    pub fn read(bytes: &[u8]) -> Option<Entry> {
        bytes.first_chunk().copied().map(Entry)
    }

    /// Whether it stands for a partition.
    pub fn is_used(&self) -> bool {
        self.0.iter().take(GUID).any(|b| *b != 0)
    }

    /// First block.
    pub fn first(&self) -> u64 {
        get64(&self.0, FIRST).unwrap_or_default()
    }

    /// Last block.
    pub fn last(&self) -> u64 {
        get64(&self.0, LAST).unwrap_or_default()
    }

    /// Sets the last block.
    pub fn set_last(&mut self, last: u64) {
        put(&mut self.0, LAST, &last.to_le_bytes());
    }

    /// Sets the PARTUUID.
    pub fn set_guid(&mut self, guid: Uuid) {
        put(&mut self.0, GUID, &guid.to_bytes_le());
    }
}

/// All entries of a table, used and free ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries(Vec<u8>);

impl Entries {
    /// The array that `bytes` are, whole entries of it.
    pub fn read(bytes: &[u8]) -> Entries {
        let whole = bytes.len() / ENTRY_SIZE * ENTRY_SIZE;
        Entries(bytes.get(..whole).unwrap_or_default().to_vec())
    }

    /// `count` free ones; at most 1024, which nothing in the field exceeds.
    pub fn empty(count: usize) -> Entries {
        Entries(vec![0; count.min(1024) * ENTRY_SIZE])
    }

    /// How many there is room for.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len() / ENTRY_SIZE).unwrap_or(u32::MAX)
    }

    fn place(number: u32) -> Option<usize> {
        usize::try_from(number.checked_sub(1)?)
            .ok()?
            .checked_mul(ENTRY_SIZE)
    }

    /// The entry of partition `number`, counted from one.
    pub fn get(&self, number: u32) -> Option<Entry> {
        self.0.get(Self::place(number)?..).and_then(Entry::read)
    }

    /// Sets it; `false` where there is no such place.
    #[must_use]
    pub fn set(&mut self, number: u32, entry: &Entry) -> bool {
        let end = |at: usize| at.checked_add(ENTRY_SIZE);
        let place = Self::place(number).and_then(|at| self.0.get_mut(at..end(at)?));
        place.map(|place| place.copy_from_slice(&entry.0)).is_some()
    }

    /// The lowest number that is free.
    pub fn lowest_free(&self) -> Option<u32> {
        (1..=self.count()).find(|n| self.get(*n).is_some_and(|entry| !entry.is_used()))
    }

    /// The bytes as they stand on a disk.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Their checksum, as the header has it.
    pub fn crc(&self) -> u32 {
        let mut crc = Crc::new();
        crc.update(&self.0);
        crc.sum()
    }
}

/// The type GUID of a partition of a GPT.
pub fn type_guid(kind: &PartitionKind) -> Option<Uuid> {
    match kind {
        PartitionKind::Guid(text) => Uuid::try_parse(text).ok(),
        PartitionKind::Byte(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_and_free_ones_are_found() {
        let guid = Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888);
        let entry = Entry::new(guid, guid, 2048, 4095, "data");
        let mut entries = Entries::empty(128);
        assert!(entries.set(1, &entry) && entries.set(128, &entry) && entries.set(3, &entry));
        assert!(!entries.set(0, &entry) && !entries.set(129, &entry));
        assert_eq!(entries.lowest_free(), Some(2));
        assert_eq!(entries.get(3), Some(entry));
        assert!(!entries.get(4).unwrap().is_used());
        assert_eq!(
            &entries.bytes()[127 * 128..127 * 128 + 4],
            [0x22, 0x22, 0x11, 0x11]
        );
    }
}
