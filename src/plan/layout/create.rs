//! Partitions added to a table that stands on a disk, or to a new one on a blank disk: every byte that is written.
//! Entries that are there stay byte for byte, and so do both places of the table.

use super::entry::{Entries, Entry};
use super::gpt::{array_range, read_back};
use super::header::Header;
use super::sane;
use crate::host::signatures::copies;
use crate::plan::preserve::create::{ENTRIES, NewPartitions};
use crate::plan::refusal::Refusal;
use crate::plan::step::Span;
use crate::plan::tree_layout::gpt::protective;
use crate::units::{Bytes, MIB, SectorSize};

/// What an older file system may have left in free space must not be found in a new partition: signatures stand in
/// its first 4 MiB (the second header of LUKS2) and its last MiB.
const CLEAR_HEAD: u64 = 8 * MIB;
const CLEAR_TAIL: u64 = MIB;
/// Zeroed where it may have kept a copy of its superblock.
const PAGE: u64 = 4096;

/// Whether the MBR before a GPT lists more than the one entry that protects it (UEFI specification 2.10, section 5.2.3).
fn is_hybrid(head: &[u8]) -> bool {
    let kinds = (0..4).filter_map(|entry| head.get(446 + 16 * entry + 4));
    kinds.into_iter().any(|kind| !matches!(kind, 0 | 0xee))
}

/// Bytes and where they go.
pub type Write = (Bytes, Vec<u8>);

/// All that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Zeroed and flushed first: both ends of each new partition, and where an older file system kept copies.
    pub clear: Vec<Span>,
    /// What is written then, in this order. After each of these groups comes a flush: of a group, any part may be on
    /// the disk when the power goes.
    ///
    /// A blank disk gets the backup of an empty table first, which is one block over zeros and so is there or not, and
    /// LBA 0 last: in between the disk says that this was begun, whatever of the rest has been written. In a table
    /// that is there the backup changes first; one of both copies is always whole.
    pub groups: Vec<Vec<Write>>,
    /// On a blank disk: the rest of its first and its last MiB, which nothing is written to.
    pub rest: Vec<Span>,
}

/// First and last block that partitions of a new table may use; `None` where the disk has no room for one.
pub fn fresh_usable(size: Bytes, sector: SectorSize) -> Option<(u64, u64)> {
    let array = (u64::from(ENTRIES).checked_mul(128)?).div_ceil(sector.get());
    let first = array.checked_add(2)?;
    let last = (size.0 / sector.get())
        .checked_sub(1)?
        .checked_sub(array)?
        .checked_sub(1)?;
    (first < last).then_some((first, last))
}

/// The edit of a disk that begins with `head`.
///
/// # Errors
/// Where the table is not what `new` was planned for, or would not be whole.
pub fn edit(head: &[u8], new: &NewPartitions) -> Result<Edit, Refusal> {
    let sector = new.target.sector.get();
    let length = sane(usize::try_from(sector).ok())?;
    let last_lba = sane((new.target.size.0 / sector).checked_sub(1))?;
    if !new.new_table && is_hybrid(head) {
        return Err(Refusal::NotADiskImage {
            why: "its protective MBR lists partitions of its own (a hybrid MBR): which space is free is not certain"
                .to_owned(),
        });
    }
    let (header, range, empty, alternate, last_usable) = if new.new_table {
        let (first, last) = sane(fresh_usable(new.target.size, new.target.sector))?;
        let guid = sane(uuid::Uuid::try_parse(&new.disk_guid).ok())?;
        let entries = sane(usize::try_from(ENTRIES).ok())?;
        let array = Entries::empty(entries);
        let range = 2 * length..sane((2 * length).checked_add(array.bytes().len()))?;
        (
            Header::fresh(guid, sector, first),
            range,
            array,
            last_lba,
            last,
        )
    } else {
        let header = sane(Header::read(head, sector))?;
        let range = array_range(&header, sector)?;
        let array = Entries::read(sane(head.get(range.clone()))?);
        let alternate = sane(header.alternate())?;
        let last = sane(header.last_usable())?;
        (header, range, array, alternate, last)
    };
    let mut array = empty.clone();
    let mut clear = Vec::new();
    for partition in &new.add {
        let free = sane(array.get(partition.number))?;
        sane((!free.is_used()).then_some(()))?;
        let kind = sane(uuid::Uuid::try_parse(partition.kind).ok())?;
        let guid = sane(uuid::Uuid::try_parse(&partition.partuuid).ok())?;
        let end = sane(partition.start.0.checked_add(partition.size.0))?;
        let last = sane((end / sector).checked_sub(1))?;
        let first = partition.start.0 / sector;
        let entry = Entry::new(kind, guid, first, last, &partition.label);
        sane(array.set(partition.number, &entry).then_some(()))?;
        let head = partition.size.0.min(CLEAR_HEAD);
        let tail = end.saturating_sub(CLEAR_TAIL).max(partition.start.0);
        clear.push(Span {
            start: partition.start,
            length: Bytes(head),
        });
        clear.push(Span {
            start: Bytes(tail),
            length: Bytes(end.saturating_sub(tail)),
        });
        for at in copies::places(partition.size) {
            let at = partition.start.0.saturating_add(at / PAGE * PAGE);
            let length = end.saturating_sub(at).min(PAGE);
            clear.push(Span {
                start: Bytes(at),
                length: Bytes(length),
            });
        }
    }
    let bare = header
        .clone()
        .on_disk(&empty, sector, alternate, last_usable)?;
    let copies = header.on_disk(&array, sector, alternate, last_usable)?;
    // The backup's entries must not stand where a partition may be.
    sane((copies.backup_at.0 / sector > last_usable).then_some(()))?;
    let mut after = head.to_vec();
    let mut lba0 = protective(last_lba).to_vec();
    lba0.resize(length, 0);
    if new.new_table {
        sane(after.get_mut(..length))?.copy_from_slice(&lba0);
    }
    sane(after.get_mut(length..2 * length))?.copy_from_slice(&copies.primary);
    sane(after.get_mut(range.clone()))?.copy_from_slice(array.bytes());
    let table = read_back(&after, &copies, &new.target)?;
    let seen = table.partitions();
    let whole = new.there.iter().all(|p| seen.contains(p))
        && new.add.iter().all(|p| seen.iter().any(|s| p.is(s)))
        && seen.len() == new.there.len().saturating_add(new.add.len());
    sane(whole.then_some(()))?;
    let place = |at: usize| u64::try_from(at).ok().map(Bytes);
    let primary = vec![
        (sane(place(range.start))?, array.bytes().to_vec()),
        (Bytes(sector), copies.primary),
    ];
    let backup = (copies.backup_at, copies.backup);
    if !new.new_table {
        return Ok(Edit {
            clear,
            groups: vec![vec![backup], primary],
            rest: Vec::new(),
        });
    }
    let header_at = sane(bare.backup.len().checked_sub(length))?;
    let (entries, header) = sane(bare.backup.split_at_checked(header_at))?;
    let anchor = sane(copies.backup_at.0.checked_add(sane(place(header_at))?.0))?;
    let span = |start: u64, end: u64| Span {
        start: Bytes(start),
        length: Bytes(end.saturating_sub(start)),
    };
    let rest = vec![
        span(sane(place(range.end))?.0, MIB),
        span(new.target.size.0.saturating_sub(MIB), copies.backup_at.0),
    ];
    Ok(Edit {
        clear,
        groups: vec![
            vec![(copies.backup_at, entries.to_vec())],
            vec![(Bytes(anchor), header.to_vec())],
            primary,
            vec![backup],
            vec![(Bytes::ZERO, lba0)],
        ],
        rest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::request::preserve::NewFileSystem;
    use crate::host::tables::{self, CopyState, Table, TablePartition};
    use crate::plan::preserve::create::NewPartition;
    use crate::plan::step::Target;

    const SIZE: u64 = 64 * MIB;

    fn new(sector: SectorSize, number: u32, at: u64) -> NewPartitions {
        NewPartitions {
            target: Target {
                path: "/dev/x".into(),
                name: "x".to_owned(),
                dev: None,
                size: Bytes(SIZE),
                sector,
                identity: crate::image::record::DiskIdentity::default(),
            },
            disk_guid: "aaaaaaaa-1111-4222-8333-444444444444".to_owned(),
            new_table: true,
            begun: false,
            there: Vec::new(),
            add: vec![NewPartition {
                number,
                label: format!("p{number}"),
                kind: "0fc63daf-8483-4772-8e79-3d69d8477de4",
                partuuid: format!("bbbbbbbb-1111-4222-8333-{number:012}"),
                start: Bytes(at * MIB),
                size: Bytes(16 * MIB),
                filesystem: NewFileSystem::Ext4,
                key_file: None,
                required: true,
            }],
            required: true,
        }
    }

    fn write(disk: &mut [u8], at: Bytes, bytes: &[u8]) {
        let at = usize::try_from(at.0).unwrap();
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What is cleared, and the first `n` groups.
    fn apply(disk: &mut [u8], edit: &Edit, n: usize) {
        for span in &edit.clear {
            let zeros = vec![0; usize::try_from(span.length.0).unwrap()];
            write(disk, span.start, &zeros);
        }
        for (at, bytes) in edit.groups.iter().take(n).flatten() {
            write(disk, *at, bytes);
        }
    }

    fn read(disk: &[u8], sector: SectorSize) -> Table {
        tables::read(&mut std::io::Cursor::new(disk), Bytes(SIZE), sector)
    }

    fn head(disk: &[u8]) -> &[u8] {
        &disk[..usize::try_from(MIB).unwrap()]
    }

    #[test]
    fn a_partition_is_added_and_every_cut_is_known_or_harmless() {
        for sector in [SectorSize::S512, SectorSize::S4096] {
            let mut disk = vec![0u8; usize::try_from(SIZE).unwrap()];
            // An older system left something in the free space.
            write(&mut disk, Bytes(40 * MIB), b"XFSB");
            let first = new(sector, 1, 1);
            let edit_1 = edit(head(&disk), &first).unwrap();
            assert_eq!(edit_1.groups.len(), 5);
            for n in 0..5 {
                let mut cut = disk.clone();
                apply(&mut cut, &edit_1, n);
                match read(&cut, sector) {
                    Table::None => assert!(n < 2),
                    Table::Gpt(gpt) => {
                        assert!(n >= 2 && !gpt.protective, "{n}: {gpt:?}");
                        assert_eq!(gpt.partitions.len(), usize::from(n > 2));
                    }
                    other => panic!("{n}: {other:?}"),
                }
                // It goes on from there, and comes to the same.
                let again = NewPartitions {
                    begun: n >= 2,
                    ..first.clone()
                };
                assert_eq!(edit(head(&cut), &again).unwrap().groups, edit_1.groups);
            }
            apply(&mut disk, &edit_1, 5);
            let table = read(&disk, sector);
            assert_eq!(table.why_not_whole(sector), None);
            let there: Vec<TablePartition> = table.partitions().to_vec();

            let second = NewPartitions {
                new_table: false,
                there: there.clone(),
                ..new(sector, 2, 40)
            };
            let edit_2 = edit(head(&disk), &second).unwrap();
            assert_eq!(edit_2.groups.len(), 2);
            assert!(edit_2.groups.iter().flatten().all(|(at, _)| at.0 > 0));
            let mut cut = disk.clone();
            apply(&mut cut, &edit_2, 1);
            let Table::Gpt(gpt) = read(&cut, sector) else {
                panic!("no gpt");
            };
            assert_eq!(
                (gpt.primary, gpt.backup),
                (CopyState::Valid, CopyState::Valid)
            );
            assert_eq!(gpt.partitions, there);
            let names: Vec<_> = gpt.backup_lists.unwrap().iter().map(|p| p.number).collect();
            assert_eq!(names, [1, 2]);
            assert_eq!(edit(head(&cut), &second).unwrap(), edit_2);
            apply(&mut disk, &edit_2, 2);
            let table = read(&disk, sector);
            assert_eq!(table.why_not_whole(sector), None);
            assert_eq!(table.partitions()[0], there[0]);
            assert_eq!(table.partitions()[1].name.as_deref(), Some("p2"));
            let Table::Gpt(gpt) = &table else { panic!() };
            assert_eq!((gpt.backup_lists.as_ref(), gpt.flaws.len()), (None, 0));
            assert!(!disk.windows(4).any(|w| w == b"XFSB"));
        }
    }

    #[test]
    fn what_is_taken_or_lies_outside_is_refused() {
        let sector = SectorSize::S512;
        let mut disk = vec![0u8; usize::try_from(SIZE).unwrap()];
        let first = edit(head(&disk), &new(sector, 1, 1)).unwrap();
        apply(&mut disk, &first, 5);
        let there = read(&disk, sector).partitions().to_vec();
        let with = |number, at| NewPartitions {
            new_table: false,
            there: there.clone(),
            ..new(sector, number, at)
        };
        // A number that is taken, and a table that has changed.
        assert!(edit(head(&disk), &with(1, 40)).is_err());
        let mut other = with(2, 40);
        other.there.clear();
        assert!(edit(head(&disk), &other).is_err());
        assert!(edit(head(&disk), &with(2, 40)).is_ok());
        assert!(edit(&[0; 4096], &with(2, 40)).is_err());
        assert_eq!(fresh_usable(Bytes(4096), sector), None);
        assert_eq!(
            fresh_usable(Bytes(SIZE), sector),
            Some((34, SIZE / 512 - 34))
        );
    }
}
