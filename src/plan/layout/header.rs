//! The header of a GPT (UEFI specification 2.10, table 5-5), and the two places in which a table stands on a disk.

use flate2::Crc;
use uuid::Uuid;

use super::bytes::{get32, get64, put};
use super::entry::{ENTRY_SIZE, Entries};
use super::sane;
use crate::plan::refusal::Refusal;
use crate::units::Bytes;

/// Byte offsets of the fields.
mod field {
    pub const REVISION: usize = 8;
    pub const HEADER_SIZE: usize = 12;
    pub const HEADER_CRC: usize = 16;
    pub const MY_LBA: usize = 24;
    pub const ALTERNATE_LBA: usize = 32;
    pub const FIRST_USABLE: usize = 40;
    pub const LAST_USABLE: usize = 48;
    pub const DISK_GUID: usize = 56;
    pub const ENTRIES_LBA: usize = 72;
    pub const ENTRY_COUNT: usize = 80;
    pub const ENTRY_SIZE: usize = 84;
    pub const ENTRIES_CRC: usize = 88;
}

/// Bytes of the header that are defined; the rest of its block is reserved.
const SIZE: u32 = 92;

/// A header: one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header(Vec<u8>);

/// A table in both of its places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The block of the primary header, which is block 1.
    pub primary: Vec<u8>,
    /// Where the backup begins.
    pub backup_at: Bytes,
    /// The backup: entries, then header, up to the disk's end.
    pub backup: Vec<u8>,
}

impl Header {
    /// The header in block 1 of `head`.
    pub fn read(head: &[u8], sector: u64) -> Option<Header> {
        let sector = usize::try_from(sector).ok()?;
        let block = head.get(sector..sector.checked_mul(2)?)?;
        Some(Header(block.to_vec()))
    }

    /// A header for a new table whose entries begin at block 2.
    pub fn fresh(guid: Uuid, sector: u64, first_usable: u64) -> Header {
        let length = usize::try_from(sector.min(65536)).unwrap_or(512);
        let mut block = vec![0; length];
        put(&mut block, 0, b"EFI PART");
        put(&mut block, field::REVISION, &0x0001_0000u32.to_le_bytes());
        put(&mut block, field::HEADER_SIZE, &SIZE.to_le_bytes());
        put(&mut block, field::ENTRIES_LBA, &2u64.to_le_bytes());
        put(&mut block, field::ENTRY_SIZE, &128u32.to_le_bytes());
        let mut header = Header(block);
        header.set_guid(guid);
        header.set_first_usable(first_usable);
        header
    }

    /// Where the entries begin.
    pub fn entries_lba(&self) -> Option<u64> {
        get64(&self.0, field::ENTRIES_LBA)
    }

    /// How many bytes the entries take, where that makes sense.
    pub fn entries_length(&self) -> Option<u64> {
        let count = u64::from(get32(&self.0, field::ENTRY_COUNT)?);
        let size = u64::from(get32(&self.0, field::ENTRY_SIZE)?);
        count
            .checked_mul(size)
            .filter(|l| size == ENTRY_SIZE as u64 && *l > 0)
    }

    /// Where the other copy says it is.
    pub fn alternate(&self) -> Option<u64> {
        get64(&self.0, field::ALTERNATE_LBA)
    }

    /// First block that partitions may use.
    pub fn first_usable(&self) -> Option<u64> {
        get64(&self.0, field::FIRST_USABLE)
    }

    /// Last block that partitions may use.
    pub fn last_usable(&self) -> Option<u64> {
        get64(&self.0, field::LAST_USABLE)
    }

    /// Sets the first block that partitions may use.
    pub fn set_first_usable(&mut self, lba: u64) {
        put(&mut self.0, field::FIRST_USABLE, &lba.to_le_bytes());
    }

    /// Sets the disk GUID.
    pub fn set_guid(&mut self, guid: Uuid) {
        put(&mut self.0, field::DISK_GUID, &guid.to_bytes_le());
    }

    /// Both copies of a table with this header and `entries` on a disk whose last block is `last_lba`.
    pub fn on_disk(
        mut self,
        entries: &Entries,
        sector: u64,
        last_lba: u64,
        last_usable: u64,
    ) -> Result<Copies, Refusal> {
        let array = sane(u64::try_from(entries.bytes().len()).ok())?;
        let sectors = array.div_ceil(sector);
        let backup_array = sane(last_lba.checked_sub(sectors))?;
        let set = |block: &mut Header, at: usize, value: u64| {
            put(&mut block.0, at, &value.to_le_bytes());
        };
        put(
            &mut self.0,
            field::ENTRY_COUNT,
            &entries.count().to_le_bytes(),
        );
        put(
            &mut self.0,
            field::ENTRIES_CRC,
            &entries.crc().to_le_bytes(),
        );
        set(&mut self, field::MY_LBA, 1);
        set(&mut self, field::ALTERNATE_LBA, last_lba);
        set(&mut self, field::LAST_USABLE, last_usable);
        let mut backup = self.clone();
        set(&mut backup, field::MY_LBA, last_lba);
        set(&mut backup, field::ALTERNATE_LBA, 1);
        set(&mut backup, field::ENTRIES_LBA, backup_array);
        let padded = sane(usize::try_from(sane(sectors.checked_mul(sector))?).ok())?;
        let mut tail = entries.bytes().to_vec();
        tail.resize(padded, 0);
        tail.extend_from_slice(&backup.sealed()?.0);
        Ok(Copies {
            primary: self.sealed()?.0,
            backup_at: Bytes(sane(backup_array.checked_mul(sector))?),
            backup: tail,
        })
    }

    /// With its own CRC32: over its declared size, with the CRC field zero.
    fn sealed(mut self) -> Result<Header, Refusal> {
        put(&mut self.0, field::HEADER_CRC, &[0; 4]);
        let size = get32(&self.0, field::HEADER_SIZE)
            .filter(|s| *s >= SIZE)
            .and_then(|s| usize::try_from(s).ok());
        let mut crc = Crc::new();
        crc.update(sane(size.and_then(|size| self.0.get(..size)))?);
        put(&mut self.0, field::HEADER_CRC, &crc.sum().to_le_bytes());
        Ok(self)
    }
}
