//! Writes a FAT32 file system with its files in one go (Microsoft, "FAT: General Overview of On-Disk Format", 1.03):
//! an EFI system partition is made and filled without the kernel's vfat and without programs.
//!
//! Own code, because the crate `fatfs` writes long names for `.` and `..`, which fsck.fat takes for damage. What is
//! written once needs little: each file is one run of clusters, and the boot sector comes last, so that there is no
//! file system before all of it is there.

mod name;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use crate::units::{Bytes, MIB, SectorSize};
use name::{exact_short_name, long_name, padded, short_name};

/// Sectors before the tables; the boot sector has copies in there.
const RESERVED: u64 = 32;
const FS_INFO: u64 = 1;
const BACKUP: u64 = 6;

/// Fewer clusters are FAT16 by definition.
const CLUSTERS_LEAST: u64 = 65_525;
/// More have no number.
const CLUSTERS_MOST: u64 = 0x0fff_fff5;

/// The end of a chain.
const END: u32 = 0x0fff_ffff;

/// 1980-01-01: the first day that FAT has.
const DATE: [u8; 2] = [0x21, 0x00];

const ENTRY: usize = 32;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
const VOLUME_LABEL: u8 = 0x08;
const LONG_NAME: u8 = 0x0f;

/// UTF-16 units in one entry of a long name.
const LONG_UNITS: usize = 13;
/// The longest name.
const NAME_MAX: usize = 255;

/// What is copied at once; a multiple of every cluster size.
const PIECE: usize = 1 << 20;

/// A volume smaller than this cannot be FAT32.
pub fn least(sector: SectorSize) -> Bytes {
    // With one sector a cluster, and what the tables take.
    let sectors = CLUSTERS_LEAST + 2048;
    Bytes((sectors * sector.get()).next_multiple_of(MIB).max(64 * MIB))
}

/// Where a volume is, and its names.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its size.
    pub size: Bytes,
    /// Where it begins on its disk.
    pub start: Bytes,
    /// Logical sector size of the disk.
    pub sector: SectorSize,
    /// Label: upper case, at most 11 characters.
    pub label: &'static str,
    /// The volume's number, which is what `UUID=` means of a FAT.
    pub number: u32,
}

/// A file system that is being written to a file or a device.
#[derive(Debug)]
pub struct FatWriter<'f> {
    out: &'f File,
    volume: Volume,
    /// Bytes of a cluster.
    cluster: u64,
    /// How many there are.
    clusters: u64,
    /// Sectors of one table.
    table_sectors: u64,
    /// The table so far: its length is the next free cluster.
    table: Vec<u32>,
    /// Entries of every directory, by path; the root is the empty one.
    directories: BTreeMap<String, Vec<Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    short: [u8; 11],
    kind: u8,
    first: u32,
    size: u32,
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl<'f> FatWriter<'f> {
    /// Begins a file system on `out`. Whatever file system was there is gone.
    pub fn new(out: &'f File, volume: Volume) -> io::Result<FatWriter<'f>> {
        let sector = volume.sector.get();
        // 4 KiB for what is large, less where there would be too few of them.
        let wanted = 1u64 << (volume.size.0 >> 17).max(1).ilog2();
        let cluster = wanted.clamp(512, 4096).max(sector);
        let sectors = volume.size.0 / sector;
        // Room for what the tables themselves take as well: a few entries are never used.
        let table_sectors = (volume.size.0 / cluster)
            .saturating_add(2)
            .saturating_mul(4)
            .div_ceil(sector);
        let clusters = sectors
            .checked_sub(RESERVED)
            .and_then(|n| n.checked_sub(table_sectors.checked_mul(2)?))
            .map(|data| data / (cluster / sector))
            .ok_or_else(|| wrong("too small for a FAT"))?;
        if !(CLUSTERS_LEAST..CLUSTERS_MOST).contains(&clusters) || u32::try_from(sectors).is_err() {
            return Err(wrong("the size is none of a FAT32"));
        }
        // No boot sector, no file system.
        out.write_all_at(&vec![0; usize_of(RESERVED * sector)?], 0)?;
        let mut writer = FatWriter {
            out,
            volume,
            cluster,
            clusters,
            table_sectors,
            table: vec![0x0fff_fff8, END],
            directories: BTreeMap::new(),
        };
        writer.directories.insert(String::new(), Vec::new());
        Ok(writer)
    }

    /// Adds a file; `path` has slashes, and missing directories are made. Answers how many bytes it has.
    pub fn add(&mut self, path: &str, content: &mut dyn Read) -> io::Result<u64> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.directory(parent)?;
        let first = self.next_cluster()?;
        let mut buffer = vec![0; PIECE];
        let mut length = 0u64;
        loop {
            let count = fill(content, &mut buffer)?;
            if count == 0 {
                break;
            }
            let taken = (count as u64).next_multiple_of(self.cluster);
            let start = self.take(taken / self.cluster)?;
            let piece = buffer.get_mut(..usize_of(taken)?).unwrap_or_default();
            if let Some(rest) = piece.get_mut(count..) {
                rest.fill(0);
            }
            self.out.write_all_at(piece, self.offset(start))?;
            length = length.saturating_add(count as u64);
            if count < PIECE {
                break;
            }
        }
        self.end_chain();
        let size =
            u32::try_from(length).map_err(|_| wrong("a file on a FAT has less than 4 GiB"))?;
        let first = if length == 0 { 0 } else { first };
        self.enter(parent, name, ARCHIVE, first, size)?;
        Ok(length)
    }

    /// Writes directories, tables and, last, the boot sector.
    pub fn finish(mut self) -> io::Result<()> {
        // Every directory has its place before any is written: each names its parent.
        let paths: Vec<String> = self.directories.keys().cloned().collect();
        let mut places = BTreeMap::new();
        for path in &paths {
            let count = self.encoded(path, &places, 0)?.len() as u64;
            let first = self.take(count.div_ceil(self.cluster).max(1))?;
            self.end_chain();
            places.insert(path.clone(), first);
        }
        for path in &paths {
            let own = places.get(path).copied().unwrap_or_default();
            let mut bytes = self.encoded(path, &places, own)?;
            let length = (bytes.len() as u64)
                .next_multiple_of(self.cluster)
                .max(self.cluster);
            bytes.resize(usize_of(length)?, 0);
            self.out.write_all_at(&bytes, self.offset(own))?;
        }
        let root = places.get("").copied().unwrap_or_default();
        let sector = self.volume.sector.get();
        let mut table: Vec<u8> = self.table.iter().flat_map(|n| n.to_le_bytes()).collect();
        table.resize(usize_of(self.table_sectors * sector)?, 0);
        for copy in 0..2 {
            let at = (RESERVED + copy * self.table_sectors) * sector;
            self.out.write_all_at(&table, at)?;
        }
        let info = self.info()?;
        let boot = self.boot_sector(root)?;
        self.out.write_all_at(&info, FS_INFO * sector)?;
        self.out.write_all_at(&info, (BACKUP + FS_INFO) * sector)?;
        self.out.write_all_at(&boot, BACKUP * sector)?;
        self.out.sync_all()?;
        self.out.write_all_at(&boot, 0)?;
        self.out.sync_all()
    }

    fn next_cluster(&self) -> io::Result<u32> {
        u32::try_from(self.table.len()).map_err(|_| full())
    }

    /// Takes `count` clusters, each pointing to the next.
    fn take(&mut self, count: u64) -> io::Result<u32> {
        let first = self.next_cluster()?;
        if (self.table.len() as u64).saturating_add(count) > self.clusters.saturating_add(2) {
            return Err(full());
        }
        for _ in 0..count {
            let next = self.next_cluster()?.saturating_add(1);
            self.table.push(next);
        }
        Ok(first)
    }

    fn end_chain(&mut self) {
        // The first two entries are no clusters.
        if let Some(last) = self.table.get_mut(2..).and_then(<[u32]>::last_mut) {
            *last = END;
        }
    }

    fn offset(&self, cluster: u32) -> u64 {
        let data = (RESERVED + 2 * self.table_sectors) * self.volume.sector.get();
        let behind = u64::from(cluster)
            .saturating_sub(2)
            .saturating_mul(self.cluster);
        data.saturating_add(behind)
    }

    /// Makes the directory at `path`, and those above it.
    fn directory(&mut self, path: &str) -> io::Result<()> {
        let mut here = String::new();
        for name in path.split('/').filter(|n| !n.is_empty()) {
            let below = if here.is_empty() {
                name.to_owned()
            } else {
                format!("{here}/{name}")
            };
            if !self.directories.contains_key(&below) {
                self.enter(&here, name, DIRECTORY, 0, 0)?;
                self.directories.insert(below.clone(), Vec::new());
            }
            here = below;
        }
        Ok(())
    }

    fn enter(
        &mut self,
        parent: &str,
        name: &str,
        kind: u8,
        first: u32,
        size: u32,
    ) -> io::Result<()> {
        let bad = |c: char| c.is_control() || r#""*/:<>?\|"#.contains(c);
        if name.is_empty()
            || name == "."
            || name == ".."
            || name.encode_utf16().count() > NAME_MAX
            || name.chars().any(bad)
        {
            return Err(wrong("a name that FAT has not"));
        }
        let entries = self
            .directories
            .get_mut(parent)
            .ok_or_else(|| wrong("a directory that was not made"))?;
        // FAT takes names that differ in case only for the same.
        if entries
            .iter()
            .any(|e| e.name.to_lowercase() == name.to_lowercase())
        {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let taken: Vec<[u8; 11]> = entries.iter().map(|e| e.short).collect();
        entries.push(Entry {
            name: name.to_owned(),
            short: short_name(name, &taken)
                .ok_or_else(|| wrong("too many names that begin alike"))?,
            kind,
            first,
            size,
        });
        Ok(())
    }

    /// The bytes of a directory; `places` has the clusters of all of them, `own` this one's.
    fn encoded(&self, path: &str, places: &BTreeMap<String, u32>, own: u32) -> io::Result<Vec<u8>> {
        let place = |path: &str| places.get(path).copied().unwrap_or_default();
        let mut out = Vec::new();
        if path.is_empty() {
            out.extend(record(&padded(self.volume.label), VOLUME_LABEL, 0, 0));
        } else {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            // The root has the number 0 here, wherever it is.
            let above = if parent.is_empty() { 0 } else { place(parent) };
            out.extend(record(&padded("."), DIRECTORY, own, 0));
            out.extend(record(&padded(".."), DIRECTORY, above, 0));
        }
        let entries = self
            .directories
            .get(path)
            .map(Vec::as_slice)
            .unwrap_or_default();
        for entry in entries {
            let first = if entry.kind == DIRECTORY {
                let below = if path.is_empty() {
                    entry.name.clone()
                } else {
                    format!("{path}/{}", entry.name)
                };
                place(&below)
            } else {
                entry.first
            };
            if exact_short_name(&entry.name).is_none() {
                out.extend(long_name(&entry.name, &entry.short)?);
            }
            out.extend(record(&entry.short, entry.kind, first, entry.size));
        }
        Ok(out)
    }

    fn info(&self) -> io::Result<Vec<u8>> {
        let mut sector = vec![0; usize_of(self.volume.sector.get())?];
        let used = (self.table.len() as u64).saturating_sub(2);
        let free = u32::try_from(self.clusters.saturating_sub(used)).map_err(|_| full())?;
        put(&mut sector, 0, b"RRaA");
        put(&mut sector, 484, b"rrAa");
        put(&mut sector, 488, &free.to_le_bytes());
        put(&mut sector, 492, &self.next_cluster()?.to_le_bytes());
        put(&mut sector, 510, &[0x55, 0xaa]);
        Ok(sector)
    }

    fn boot_sector(&self, root: u32) -> io::Result<Vec<u8>> {
        let sector = self.volume.sector.get();
        let number = |n: u64| u32::try_from(n).map_err(|_| wrong("the size is none of a FAT32"));
        let bytes_per_sector = u16::try_from(sector).map_err(|_| wrong("a sector of that size"))?;
        let per_cluster =
            u8::try_from(self.cluster / sector).map_err(|_| wrong("a cluster of that size"))?;
        let hidden = u32::try_from(self.volume.start.0 / sector).unwrap_or(0);
        let mut boot = vec![0; usize_of(sector)?];
        // A jump, though nothing is there: some take a sector without one for no FAT.
        put(&mut boot, 0, &[0xeb, 0x58, 0x90]);
        put(&mut boot, 3, b"ironroot");
        put(&mut boot, 11, &bytes_per_sector.to_le_bytes());
        put(&mut boot, 13, &[per_cluster]);
        put(&mut boot, 14, &[RESERVED.to_le_bytes()[0], 0]);
        put(&mut boot, 16, &[2]);
        put(&mut boot, 21, &[0xf8]);
        // Sectors and heads of nothing that exists.
        put(&mut boot, 24, &[63, 0, 255, 0]);
        put(&mut boot, 28, &hidden.to_le_bytes());
        put(
            &mut boot,
            32,
            &number(self.volume.size.0 / sector)?.to_le_bytes(),
        );
        put(&mut boot, 36, &number(self.table_sectors)?.to_le_bytes());
        put(&mut boot, 44, &root.to_le_bytes());
        put(
            &mut boot,
            48,
            &[FS_INFO.to_le_bytes()[0], 0, BACKUP.to_le_bytes()[0], 0],
        );
        put(&mut boot, 64, &[0x80, 0, 0x29]);
        put(&mut boot, 67, &self.volume.number.to_le_bytes());
        put(&mut boot, 71, &padded(self.volume.label));
        put(&mut boot, 82, b"FAT32   ");
        put(&mut boot, 510, &[0x55, 0xaa]);
        Ok(boot)
    }
}

/// Reads until `buffer` is full or the content ends.
fn fill(content: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0usize;
    while let Some(space) = buffer.get_mut(filled..).filter(|s| !s.is_empty()) {
        match content.read(space) {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn usize_of(n: u64) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| full())
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    if let Some(place) = at
        .checked_add(what.len())
        .and_then(|end| bytes.get_mut(at..end))
    {
        place.copy_from_slice(what);
    }
}

fn record(short: &[u8; 11], kind: u8, first: u32, size: u32) -> [u8; ENTRY] {
    let mut record = [0u8; ENTRY];
    let [low_0, low_1, high_0, high_1] = first.to_le_bytes();
    put(&mut record, 0, short);
    put(&mut record, 11, &[kind]);
    put(&mut record, 16, &DATE);
    put(&mut record, 18, &DATE);
    put(&mut record, 20, &[high_0, high_1]);
    put(&mut record, 24, &DATE);
    put(&mut record, 26, &[low_0, low_1]);
    put(&mut record, 28, &size.to_le_bytes());
    record
}

#[cfg(test)]
mod tests;
