//! Tables made by sgdisk and sfdisk, and then damaged.

use std::io::Cursor;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;

const SIZE: u64 = 64 << 20;

/// A file of `size` bytes after `script` ran on it (`$F`).
fn made(size: u64, script: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let out = Command::new("sh")
        .args(["-euc", script])
        .env("F", &path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(out.status.success(), "{script}: {out:?}");
    std::fs::read(&path).unwrap()
}

fn gpt_disk() -> Vec<u8> {
    made(
        SIZE,
        "sgdisk -U 11111111-2222-3333-4444-555555555555 -n 1:2048:+8M -t 1:8300 -c 1:root \
         -u 1:AAAAAAAA-0000-0000-0000-00000000000B -n 14:0:+1M -t 14:ef02 -n 15:0:+10M -t 15:ef00 \
         -A 1:set:2 $F",
    )
}

fn read_all(bytes: &[u8], sector: SectorSize) -> Table {
    let size = Bytes(bytes.len() as u64);
    read(&mut Cursor::new(bytes), size, sector)
}

fn gpt(table: Table) -> Gpt {
    match table {
        Table::Gpt(gpt) => gpt,
        other => panic!("no GPT: {other:?}"),
    }
}

#[test]
fn a_gpt_keeps_its_numbers_names_and_identities() {
    let table = read_all(&gpt_disk(), SectorSize::S512);
    assert_eq!(table.why_not_whole(SectorSize::S512), None);
    let gpt = gpt(table);
    assert_eq!(gpt.disk_guid, "11111111-2222-3333-4444-555555555555");
    assert!(gpt.protective && gpt.copies_agree && gpt.backup_at_end);
    assert_eq!(gpt.flaws, Vec::<String>::new());
    let numbers: Vec<u32> = gpt.partitions.iter().map(|p| p.number).collect();
    assert_eq!(numbers, [1, 14, 15]);
    let [root, bios, esp] = gpt.partitions.as_slice() else {
        panic!()
    };
    assert_eq!((root.start, root.size), (Bytes(1 << 20), Bytes(8 << 20)));
    assert_eq!(root.name.as_deref(), Some("root"));
    assert_eq!(root.partuuid, "aaaaaaaa-0000-0000-0000-00000000000b");
    assert_eq!(root.attributes, 4);
    assert!(bios.kind.is_bios_boot() && esp.kind.is_esp() && !root.kind.is_esp());
}

#[test]
fn each_kind_of_damage_is_named() {
    let good = gpt_disk();
    let end = good.len();

    let mut no_primary = good.clone();
    no_primary[512..1024].fill(0);
    let table = read_all(&no_primary, SectorSize::S512);
    assert_eq!(
        table.why_not_whole(SectorSize::S512).unwrap(),
        "the primary GPT is missing"
    );
    assert_eq!(
        gpt(table).partitions.len(),
        3,
        "the backup says which partitions there were"
    );

    let mut bad_entries = good.clone();
    bad_entries[1024 + 56] ^= 1;
    let table = read_all(&bad_entries, SectorSize::S512);
    assert!(matches!(gpt(table).primary, CopyState::Invalid { why } if why.contains("CRC")));

    let mut no_backup = good.clone();
    no_backup[end - 512..].fill(0);
    let table = read_all(&no_backup, SectorSize::S512);
    assert_eq!(
        table.why_not_whole(SectorSize::S512).unwrap(),
        "the backup GPT is missing"
    );

    let mut uncommitted = good.clone();
    uncommitted[..512].fill(0);
    let table = read_all(&uncommitted, SectorSize::S512);
    assert_eq!(
        table.why_not_whole(SectorSize::S512).unwrap(),
        "sector 0 is no protective MBR"
    );

    let mut only_protective = good.clone();
    only_protective[512..1024].fill(0);
    only_protective[end - 512..].fill(0);
    assert!(matches!(
        read_all(&only_protective, SectorSize::S512),
        Table::Damaged { .. }
    ));

    let mut both_bad = good.clone();
    both_bad[512 + 20] ^= 1;
    both_bad[end - 512 + 20] ^= 1;
    assert!(matches!(
        read_all(&both_bad, SectorSize::S512),
        Table::Damaged { .. }
    ));

    // A disk that has grown: both copies are valid, the backup is not at the end.
    let mut grown = good.clone();
    grown.resize(end + (8 << 20), 0);
    let table = read_all(&grown, SectorSize::S512);
    assert_eq!(table.why_not_whole(SectorSize::S512), None);
    assert!(!gpt(table).backup_at_end);

    // A disk that has shrunk, or the head of an image.
    let table = read(
        &mut Cursor::new(&good[..1 << 20]),
        Bytes(SIZE),
        SectorSize::S512,
    );
    assert_eq!(gpt(table).backup, CopyState::Missing);
}

#[test]
fn where_the_primary_ends_is_known_wherever_its_entries_stand() {
    let end = |script: &str| gpt(read_all(&made(SIZE, script), SectorSize::S512)).primary_end;
    assert_eq!(end("sgdisk -n 1:0:+4M $F"), Bytes(34 * 512));
    assert_eq!(end("sgdisk -n 1:4096:+4M -j 2016 $F"), Bytes(2048 * 512));
    let mut damaged = gpt_disk();
    damaged[2 * 512] ^= 1;
    let table = gpt(read_all(&damaged, SectorSize::S512));
    assert_eq!(table.primary_end, Bytes::ZERO);
}

#[test]
fn copies_that_differ_are_not_whole() {
    let first = gpt_disk();
    let other = made(
        SIZE,
        "sgdisk -U 99999999-2222-3333-4444-555555555555 -n 1:0:+4M $F",
    );
    let mut mixed = first.clone();
    let end = mixed.len();
    mixed[end - 33 * 512..].copy_from_slice(&other[end - 33 * 512..]);
    let table = read_all(&mixed, SectorSize::S512);
    assert_eq!(
        table.why_not_whole(SectorSize::S512).unwrap(),
        "the two copies of the GPT differ"
    );
}

#[test]
fn a_table_for_the_other_sector_size_is_found_and_not_whole() {
    let table = read_all(&gpt_disk(), SectorSize::S4096);
    let why = table.why_not_whole(SectorSize::S4096).unwrap();
    assert_eq!(
        why,
        "the table is written for sectors of 512 bytes, the disk has 4096"
    );
}

#[test]
fn an_mbr_with_logical_partitions() {
    let disk = made(
        SIZE,
        "printf 'label: dos\nlabel-id: 0xdeadbeef\n1: size=8M,type=L,bootable\n2: size=20M,type=E\n5: size=2M\n6: size=4M\n' | sfdisk -q $F",
    );
    let Table::Mbr(mbr) = read_all(&disk, SectorSize::S512) else {
        panic!("no MBR")
    };
    assert_eq!(mbr.signature, "deadbeef");
    let list: Vec<(u32, u64, u64)> = mbr
        .partitions
        .iter()
        .map(|p| (p.number, p.start.0 >> 20, p.size.0 >> 20))
        .collect();
    assert_eq!(list, [(1, 1, 8), (2, 9, 20), (5, 10, 2), (6, 13, 4)]);
    assert_eq!(mbr.partitions[2].partuuid, "deadbeef-05");
    assert_eq!(mbr.partitions[0].attributes, 4);
    assert!(mbr.partitions[1].kind.is_extended());
}

#[test]
fn a_chain_of_extended_records_that_bites_its_tail_ends() {
    let mut disk = made(
        SIZE,
        "printf 'label: dos\n1: size=20M,type=E\n5: size=2M\n6: size=4M\n' | sfdisk -q $F",
    );
    // The second record's "next" points to itself.
    let ebr1 = 1 << 20;
    let next = u32::from_le_bytes(disk[ebr1 + 470..ebr1 + 474].try_into().unwrap());
    let ebr2 = ebr1 + next as usize * 512;
    let (from, to) = (disk[ebr1 + 462..ebr1 + 478].to_vec(), ebr2 + 462);
    disk[to..to + 16].copy_from_slice(&from);
    let Table::Mbr(mbr) = read_all(&disk, SectorSize::S512) else {
        panic!("no MBR")
    };
    assert_eq!(mbr.partitions.len(), 1 + 124, "the walk stops at its limit");
}

#[test]
fn an_mbr_with_partitions_wins_over_a_gpt_that_nothing_protects() {
    let mut disk = gpt_disk();
    let mbr = made(SIZE, "printf 'label: dos\n,8M,L\n' | sfdisk -q $F");
    disk[..512].copy_from_slice(&mbr[..512]);
    assert!(matches!(read_all(&disk, SectorSize::S512), Table::Mbr(_)));
}

#[test]
fn boot_sectors_of_file_systems_are_no_tables() {
    for script in [
        "mkfs.vfat $F",
        // As on a whole disk: a table of one partition, the file system itself.
        "mkfs.vfat --mbr=y $F",
        "mkfs.vfat -F 32 -S 4096 $F",
        "mkfs.ntfs -qFf $F",
        "mkfs.exfat $F",
    ] {
        let disk = made(SIZE, script);
        assert_eq!(read_all(&disk, SectorSize::S512), Table::None, "{script}");
    }
    assert_eq!(read_all(&[0; 4096], SectorSize::S512), Table::None);
    assert!(matches!(
        read_all(&[0; 100], SectorSize::S512),
        Table::Damaged { .. }
    ));
    let empty = made(SIZE, "printf 'label: dos\n' | sfdisk -q $F");
    assert!(matches!(read_all(&empty, SectorSize::S512), Table::Mbr(_)));
}

#[test]
fn an_absurd_header_with_a_right_checksum_is_refused() {
    let mut disk = gpt_disk();
    let end = disk.len();
    disk[end - 512..].fill(0);
    for (offset, value) in [(80, u32::MAX), (84, 256), (72, u32::MAX), (80, 0)] {
        let mut header = disk[512..604].to_vec();
        header[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        header[16..20].fill(0);
        let crc = crc32(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        let mut bent = disk.clone();
        bent[512..604].copy_from_slice(&header);
        let table = read_all(&bent, SectorSize::S512);
        assert!(
            matches!(&table, Table::Damaged { .. }),
            "{offset} {value}: {table:?}"
        );
    }
}

/// CRC-32 as UEFI has it, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 * (c & 1))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_damage_makes_the_reader_panic(
        flips in proptest::collection::vec((0usize..17408, any::<u8>()), 1..40),
    ) {
        thread_local!(static DISK: Vec<u8> = gpt_disk());
        let mut disk = DISK.with(Clone::clone);
        for (at, byte) in flips {
            disk[at] = byte;
        }
        let _ = read_all(&disk, SectorSize::S512);
        let _ = read_all(&disk, SectorSize::S4096);
    }

    #[test]
    fn random_sectors_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let mut disk = bytes;
        if disk.len() > 512 {
            disk[510] = 0x55;
            disk[511] = 0xaa;
        }
        let _ = read_all(&disk, SectorSize::S512);
    }
}
