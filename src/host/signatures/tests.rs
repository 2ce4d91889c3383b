//! Bytes by hand for formats whose tools need a kernel or a package; tests/loop_host.rs compares the rest
//! with libblkid.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use proptest::prelude::*;

use super::*;
use crate::host::Partition;
use crate::image::record;
use crate::units::{Bytes, SectorSize};

const SIZE: u64 = 8 << 20;

struct Made {
    file: File,
    disk: Disk,
}

impl Made {
    fn new() -> Made {
        Made::of(SIZE)
    }

    fn of(size: u64) -> Made {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        let disk = Disk {
            name: "sda".to_owned(),
            size: Bytes(size),
            ..Disk::default()
        };
        Made { file, disk }
    }

    fn put(self, at: u64, bytes: &[u8]) -> Made {
        self.file.write_all_at(bytes, at).unwrap();
        self
    }

    fn probe(&self) -> Contents {
        let table = crate::host::tables::read(&mut &self.file, self.disk.size, SectorSize::S512);
        probe(&self.file, &self.disk, &table, false)
    }

    fn found(&self) -> Vec<String> {
        let contents = self.probe();
        assert_eq!(contents.unreadable, None);
        contents.found.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn blank_is_zeros_or_ones_and_nothing_else() {
    assert_eq!(Made::new().found(), [""; 0]);
    let erased = Made::new()
        .put(0, &vec![0xff; 1 << 20])
        .put(SIZE - (1 << 20), &vec![0xff; 1 << 20]);
    assert_eq!(erased.found(), [""; 0]);
    // What is erased in part is somebody's: a few sectors of ones, or one end of ones.
    for (at, length) in [
        (0, 1 << 20),
        (512, 512),
        (1 << 19, 4096),
        (SIZE - (1 << 20), 1 << 20),
        (SIZE - 512, 512),
    ] {
        let ones = Made::new().put(at, &vec![0xff; length]);
        assert_eq!(ones.found(), ["unknown data on sda"], "{at} {length}");
    }
    for at in [0, 700, (1 << 20) - 1, SIZE - (1 << 20), SIZE - 1] {
        assert_eq!(
            Made::new().put(at, b"x").found(),
            ["unknown data on sda"],
            "{at}"
        );
    }
    // In the middle nobody looks.
    assert_eq!(Made::new().put(4 << 20, b"x").found(), [""; 0]);
    assert_eq!(
        Made::of(3 * 512).put(1000, b"x").found(),
        ["unknown data on sda"]
    );
}

#[test]
fn the_record_area_has_a_verdict_of_its_own() {
    let made = Made::new().put(record::OFFSET, &[7; record::SIZE]);
    let table = Table::None;
    assert_eq!(probe(&made.file, &made.disk, &table, true).found, []);
    assert_eq!(probe(&made.file, &made.disk, &table, false).found.len(), 1);
    // What stands before it is not excused.
    let made = made.put(record::OFFSET - 1, b"x");
    assert_eq!(probe(&made.file, &made.disk, &table, true).found.len(), 1);
}

#[test]
fn md_superblocks_at_every_place() {
    let name = |at: u64, version: u32| {
        let mut block = [0u8; 64];
        block[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
        block[4..8].copy_from_slice(&version.to_le_bytes());
        block[32..41].copy_from_slice(b"host:data");
        Made::new().put(at, &block).found()
    };
    let with_name = ["linux_raid_member on sda (host:data)"];
    assert_eq!(name(0, 1), with_name);
    assert_eq!(name(4096, 1), with_name);
    assert_eq!(name(SIZE - 8192, 1), with_name);
    assert_eq!(name(SIZE - 65536, 0), ["linux_raid_member on sda"]);
    // A magic elsewhere, or of an unknown version, is data.
    assert_eq!(name(8192, 1), ["unknown data on sda"]);
    assert_eq!(name(4096, 9), ["unknown data on sda"]);
    // A disk whose size is no multiple of 64 KiB.
    let odd = SIZE + 12 * 512;
    let at = (((odd >> 9) - 16) & !7) << 9;
    let made = Made::of(odd)
        .put(at, &0xa92b_4efc_u32.to_le_bytes())
        .put(at + 4, &[1]);
    assert_eq!(made.found(), ["linux_raid_member on sda"]);
}

#[test]
fn zfs_labels_at_both_ends() {
    let label = SIZE - (256 << 10);
    let list = b"\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\0\0\x24\0\0\0\x20\0\0\0\x04name\0\0\0\x09\0\0\0\x01\0\0\0\x04tank";
    assert_eq!(
        Made::new().put(label + (16 << 10), list).found(),
        ["zfs_member on sda (tank)"]
    );
    assert_eq!(
        Made::new().put(16 << 10, list).found(),
        ["zfs_member on sda (tank)"]
    );
    // The list is gone, an uberblock is left, in either byte order.
    let slot = label + (128 << 10) + 5 * 4096;
    let uberblock = 0x00ba_b10c_u64;
    assert_eq!(
        Made::new().put(slot, &uberblock.to_le_bytes()).found(),
        ["zfs_member on sda"]
    );
    assert_eq!(
        Made::new().put(slot, &uberblock.to_be_bytes()).found(),
        ["zfs_member on sda"]
    );
}

#[test]
fn firmware_raid_at_the_end() {
    assert_eq!(
        Made::new().put(SIZE - 512, b"\xde\x11\xde\x11").found(),
        ["ddf_raid_member on sda"]
    );
    let imsm = b"Intel Raid ISM Cfg Sig. 1.3.00";
    assert_eq!(
        Made::new().put(SIZE - 1024, imsm).found(),
        ["isw_raid_member on sda"]
    );
}

#[test]
fn magics_by_hand() {
    for (at, magic, want) in [
        (0, &b"bluestore block device\n"[..], "ceph_bluestore"),
        (0x10_0000, b"\x0d\xd0\x01\xc0", "VMFS_volume_member"),
        (0x20_0000, b"\x5e\xf1\xab\x2f", "VMFS"),
        (32, b"NXSB", "apfs"),
        (3, b"-FVE-FS-", "BitLocker"),
        (0x1018, BCACHE, "bcache"),
        (
            1536,
            b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001",
            "LVM2_member",
        ),
        (16384, b"SKUL\xba\xbe\0\x02", "crypto_LUKS"),
        (4096 - 10, b"S1SUSPEND\0", "swsuspend"),
        (65536 - 10, b"SWAPSPACE2", "swap"),
        (1024, b"H+\0\x04", "hfsplus"),
        (0x8001, b"BEA01", "udf"),
        (4096, b"EFI PART", "gpt"),
        (SIZE - 4096, b"EFI PART", "gpt"),
    ] {
        assert_eq!(
            Made::new().put(at, magic).found(),
            [format!("{want} on sda")],
            "{at}"
        );
    }
}

#[test]
fn partitions_of_the_kernel_and_of_the_table_are_probed_once_each() {
    let mut made = Made::new();
    made.disk.partitions.push(Partition {
        name: "sda1".to_owned(),
        number: 1,
        start: Bytes(2 << 20),
        size: Bytes(1 << 20),
        ..Partition::default()
    });
    // An MBR by hand: partition 1 as above, partition 3 at 4 MiB, which the kernel does not know.
    let mut sector = [0u8; 512];
    for (slot, start) in [(0, 4096u32), (2, 8192)] {
        let entry = &mut sector[446 + slot * 16..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&2048u32.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let made = made
        .put(0, &sector)
        .put(2 << 20, b"XFSB")
        .put(4 << 20, b"hsqs");
    assert_eq!(
        made.found(),
        ["dos on sda", "xfs on sda1", "squashfs on sda3"]
    );
}

#[test]
fn names_of_partitions() {
    assert_eq!(partition_name("sda", 1), "sda1");
    assert_eq!(partition_name("nvme0n1", 12), "nvme0n1p12");
    assert_eq!(partition_name("mmcblk0", 2), "mmcblk0p2");
}

#[test]
fn a_disk_that_ends_too_early_is_unreadable_and_not_blank() {
    let mut made = Made::new();
    made.disk.size = Bytes(2 * SIZE);
    let contents = made.probe();
    assert!(contents.unreadable.unwrap().starts_with("reading sda: "));
}

#[test]
fn a_partition_past_the_end_is_cut() {
    let mut made = Made::new();
    for (start, size) in [(SIZE - 512, u64::MAX), (SIZE, 512), (u64::MAX, u64::MAX)] {
        made.disk.partitions.push(Partition {
            name: "sda1".to_owned(),
            start: Bytes(start),
            size: Bytes(size),
            ..Partition::default()
        });
    }
    assert_eq!(made.found(), [""; 0]);
}

#[test]
fn a_partition_is_blank_by_itself() {
    let mut made = Made::of(16 << 20).put(5 << 20, b"somebody's");
    for (name, start, size) in [("sda1", 1, 4), ("sda2", 5, 5), ("sda3", 10, 2)] {
        made.disk.partitions.push(Partition {
            name: name.to_owned(),
            start: Bytes(start << 20),
            size: Bytes(size << 20),
            ..Partition::default()
        });
    }
    let made = made.put(11 << 20, b"hsqs").put(10 << 20, b"XFSB");
    let mut contents = made.probe();
    assert_eq!(contents.blank, [""; 0]);
    contents.look_for_blanks(&made.file, &made.disk, &Table::None);
    assert_eq!(contents.blank, ["sda1"]);
    assert_eq!(contents.found.len(), 1);
    // The same, asked one by one, and a table counts too.
    let one = |made: &Made| probe_one(&made.file, "x", made.disk.size).blank;
    assert_eq!(one(&Made::new()), ["x"]);
    assert_eq!(one(&Made::new().put(SIZE - 1, b"x")), [""; 0]);
    let mut mbr = [0u8; 66];
    mbr[4] = 0x83;
    mbr[8] = 8;
    mbr[12] = 8;
    mbr[64..].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(one(&Made::new().put(446, &mbr)), [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_head_and_tail_are_probed_without_a_panic(
        head in proptest::collection::vec(any::<u8>(), 0..6000),
        tail in proptest::collection::vec(any::<u8>(), 1..6000),
        magic in 0..SIGNATURES.len(),
    ) {
        let size = 300 << 10;
        let mut made = Made::of(size).put(0, &head).put(size - tail.len() as u64, &tail);
        // Behind a magic, arbitrary fields follow.
        if let (_, Rule::Magic(at, bytes, _) | Rule::WithUuid(at, bytes, _, _)) = SIGNATURES[magic]
            && at + 64 < size
        {
            made = made.put(at, bytes);
        }
        let _ = made.probe();
    }
}
