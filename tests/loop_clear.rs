//! What is left of a disk's old content after an installation over it: every signature that other people's tools
//! know, at every place where it can stand, gives way to one answer. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::path::Path;

use ironroot::image::record::{self, State};
use serde_json::json;
use support::disk_image::{MIB, RECORD, gpt};
use support::loop_device::{LoopDevice, PATTERN, tool, try_tool};
use support::program::{Config, ironroot, stored};
use support::verdict::assert_complete_gpt;

const ALWAYS: &[&str] = &["--overwrite", "Always"];
const DISK: usize = 96 * MIB;
/// The old partition: behind the image, which is 8 MiB long, and before the new backup GPT.
const OLD: std::ops::Range<usize> = 20 * MIB..84 * MIB;

/// Makes one old content in a device of the given length.
struct Old {
    name: &'static str,
    /// What blkid or wipefs calls it.
    seen_as: &'static str,
    make: fn(&mut Vec<u8>),
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// Has `program` write into a file of this content.
fn by(bytes: &mut Vec<u8>, program: &str, args: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    std::fs::write(&path, &bytes).unwrap();
    let mut all: Vec<&str> = args.to_vec();
    all.push(path.to_str().unwrap());
    tool(program, &all);
    *bytes = std::fs::read(&path).unwrap();
}

/// An md superblock of version 1 (kernel: include/uapi/linux/raid/md_p.h) at byte `at`.
fn md_1(bytes: &mut [u8], at: usize) {
    let mut block = vec![0u8; 256];
    put(&mut block, 0, &0xa92b_4efc_u32.to_le_bytes());
    put(&mut block, 4, &1u32.to_le_bytes());
    put(&mut block, 16, &[7; 16]);
    put(&mut block, 32, b"rack:0");
    // Where the superblock is, in sectors.
    put(&mut block, 144, &(at as u64 / 512).to_le_bytes());
    // Its checksum: the sum of its words but this one.
    let sum = block.chunks(4).fold(0u64, |sum, word| {
        sum + u64::from(u32::from_le_bytes(word.try_into().unwrap()))
    });
    let sum = u32::try_from((sum & 0xffff_ffff) + (sum >> 32)).unwrap();
    put(&mut block, 216, &sum.to_le_bytes());
    put(bytes, at, &block);
}

fn md_0(bytes: &mut [u8]) {
    let at = (bytes.len() & !0xffff) - 0x1_0000;
    let mut block = vec![0u8; 4096];
    put(&mut block, 0, &0xa92b_4efc_u32.to_le_bytes());
    put(&mut block, 4, &0u32.to_le_bytes());
    put(&mut block, 8, &90u32.to_le_bytes());
    put(&mut block, 20, &[9; 4]);
    put(bytes, at, &block);
}

/// Uberblocks in the two labels of a ZFS pool at the device's end, or in the two at its beginning.
fn zfs(bytes: &mut [u8], at_end: bool) {
    const LABEL: usize = 256 << 10;
    let end = bytes.len() & !(LABEL - 1);
    let labels = if at_end {
        [end - 2 * LABEL, end - LABEL]
    } else {
        [0, LABEL]
    };
    for label in labels {
        for slot in 0..16 {
            put(
                bytes,
                label + (128 << 10) + slot * 1024,
                &0x00ba_b10c_u64.to_le_bytes(),
            );
        }
    }
}

fn luks(bytes: &mut Vec<u8>, metadata: &str) {
    let mut args = vec!["luksFormat", "--batch-mode", "--key-file=/etc/hostname"];
    args.extend(["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"]);
    match metadata {
        "1" => args.push("--type=luks1"),
        size => args.extend(["--type=luks2", "--luks2-metadata-size", size]),
    }
    by(bytes, "cryptsetup", &args);
}

const OLDS: &[Old] = &[
    Old {
        name: "ext4",
        seen_as: "ext4",
        make: |b| by(b, "mkfs.ext4", &["-q"]),
    },
    Old {
        name: "xfs",
        seen_as: "xfs",
        // Smaller than what it supports.
        make: |b| by(b, "mkfs.xfs", &["-q", "-f", "--unsupported"]),
    },
    Old {
        name: "vfat",
        seen_as: "vfat",
        make: |b| by(b, "mkfs.vfat", &[]),
    },
    Old {
        name: "swap",
        seen_as: "swap",
        make: |b| by(b, "mkswap", &["-q"]),
    },
    Old {
        name: "LUKS1",
        seen_as: "crypto_LUKS",
        make: |b| luks(b, "1"),
    },
    Old {
        name: "LUKS2",
        seen_as: "crypto_LUKS",
        make: |b| luks(b, "16k"),
    },
    Old {
        name: "the second header of LUKS2, 4 MiB behind the first, alone",
        seen_as: "crypto_LUKS",
        make: |b| {
            luks(b, "4m");
            b[..4 * MIB].fill(0);
        },
    },
    Old {
        name: "LVM",
        seen_as: "LVM2_member",
        make: |b| {
            put(b, 512, b"LABELONE");
            put(b, 512 + 8, &1u64.to_le_bytes());
            put(b, 512 + 20, &32u32.to_le_bytes());
            put(b, 512 + 24, b"LVM2 001");
            put(b, 512 + 32, b"abcdefghijklmnopqrstuvwxyz012345");
            // CRC of what follows it (lvm2: lib/misc/crc.c), with its own start value.
            let crc = lvm_crc(&b[512 + 20..1024]);
            put(b, 512 + 16, &crc.to_le_bytes());
        },
    },
    Old {
        name: "md 0.90",
        seen_as: "linux_raid_member",
        make: |b| md_0(b),
    },
    Old {
        name: "md 1.0",
        seen_as: "linux_raid_member",
        make: |b| {
            let at = (((b.len() >> 9) - 16) & !7) << 9;
            md_1(b, at);
        },
    },
    Old {
        name: "md 1.1",
        seen_as: "linux_raid_member",
        make: |b| md_1(b, 0),
    },
    Old {
        name: "md 1.2",
        seen_as: "linux_raid_member",
        make: |b| md_1(b, 4096),
    },
    Old {
        name: "ZFS at the end",
        seen_as: "zfs_member",
        make: |b| zfs(b, true),
    },
    Old {
        name: "ZFS at the beginning",
        seen_as: "zfs_member",
        make: |b| zfs(b, false),
    },
    Old {
        name: "bcache",
        seen_as: "bcache",
        make: |b| by(b, "make-bcache", &["-B"]),
    },
    Old {
        name: "btrfs",
        seen_as: "btrfs",
        make: |b| by(b, "mkfs.btrfs", &["-q", "--mixed"]),
    },
    Old {
        name: "DRBD",
        seen_as: "drbd",
        make: |b| {
            let at = b.len() - 4096;
            // drbd 8.4: the activity log's magic and the version (libblkid: superblocks/drbd.c).
            put(
                b,
                at + 60,
                &[0x83, 0x74, 0x02, 0x6b, 0, 0, 0x10, 0, 0, 0, 0, 0x40],
            );
            put(b, at + 32, &[1; 8]);
        },
    },
    Old {
        name: "Intel RAID",
        seen_as: "isw_raid_member",
        make: |b| {
            let at = b.len() - 1024;
            put(b, at, b"Intel Raid ISM Cfg Sig. 1.1.00\0\0");
        },
    },
    Old {
        name: "Promise RAID",
        seen_as: "promise_fasttrack_raid_member",
        make: |b| {
            let at = b.len() - 3087 * 512;
            put(b, at, b"Promise Technology, Inc.");
        },
    },
    Old {
        name: "VMFS",
        seen_as: "VMFS_volume_member",
        make: |b| put(b, 0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0]),
    },
];

/// The checksum of LVM: CRC-32 without inversion, begun with a number of its own.
fn lvm_crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xf597_a6cf, |mut crc: u32, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
        crc
    })
}

/// What blkid and wipefs say of a part of the disk.
fn seen(disk: &LoopDevice, at: usize, length: usize) -> String {
    let (offset, size) = (at.to_string(), length.to_string());
    let (_, low) = try_tool(
        "blkid",
        &["--probe", "--offset", &offset, "--size", &size, disk.arg()],
    );
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("part");
    std::fs::write(&part, &disk.bytes()[at..at + length]).unwrap();
    let found = tool("wipefs", &["--no-act", part.to_str().unwrap()]);
    format!("{low}{found}")
}

/// A disk with an old partition over [`OLD`], by a GPT of its own.
fn with_old_partition(content: &[u8]) -> LoopDevice {
    let mut bytes = vec![0; DISK];
    bytes[OLD].copy_from_slice(content);
    let disk = LoopDevice::holding(&bytes);
    let script = format!("1:{}:{}", OLD.start / 512, OLD.end / 512 - 1);
    tool(
        "sgdisk",
        &["--set-alignment=1", "--new", &script, disk.arg()],
    );
    disk
}

/// One answer for the whole disk.
#[track_caller]
fn assert_one_answer(disk: &LoopDevice, name: &str) {
    let (good, text) = try_tool("blkid", &["--probe", "--output", "export", disk.arg()]);
    assert!(good, "{name}: blkid finds no one answer: {text}");
    assert!(
        text.contains("PTTYPE=gpt") && !text.contains("\nTYPE="),
        "{name}: {text}"
    );
    let text = tool(
        "wipefs",
        &["--no-act", "--noheadings", "--output", "TYPE", disk.arg()],
    );
    let mut types: Vec<&str> = text.split_whitespace().collect();
    types.dedup();
    assert_eq!(types, ["gpt", "PMBR"], "{name}");
}

#[test]
fn old_content_of_the_whole_disk_gives_way_to_one_answer() {
    let image = gpt(8);
    let (_directory, path) = stored(&image);
    for old in OLDS {
        let mut bytes = vec![0; DISK];
        (old.make)(&mut bytes);
        let disk = LoopDevice::holding(&bytes);
        let before = seen(&disk, 0, DISK);
        assert!(before.contains(old.seen_as), "{}: {before}", old.name);
        install_over(&disk, &path, &[]);
        assert_one_answer(&disk, old.name);
    }
}

#[test]
fn old_content_of_a_partition_is_gone_as_well() {
    let image = gpt(8);
    let (_directory, path) = stored(&image);
    for old in OLDS {
        let mut bytes = vec![0; OLD.len()];
        (old.make)(&mut bytes);
        let disk = with_old_partition(&bytes);
        let before = seen(&disk, OLD.start, OLD.len());
        assert!(before.contains(old.seen_as), "{}: {before}", old.name);
        install_over(&disk, &path, &[]);
        assert_one_answer(&disk, old.name);
        // Where a new partition may begin one day.
        assert_eq!(seen(&disk, OLD.start, OLD.len()), "", "{}", old.name);
    }
}

fn install_over(disk: &LoopDevice, image: &str, more: &[&str]) {
    let mut args = ALWAYS.to_vec();
    args.extend(more);
    support::program::install(image, "", disk, &args).succeeded();
}

fn config(image: &str, disk: &LoopDevice, wipe: &str) -> Config {
    Config::new(image, "", disk)
        .with("/image", json!({ "url": image }))
        .with("/disk/overwrite", json!("Always"))
        .with("/disk/wipe", json!(wipe))
}

fn run(config: &Config) -> support::program::Ended {
    ironroot(&[
        "--json",
        "install",
        "--config",
        config.file().to_str().unwrap(),
    ])
    .succeeded()
}

#[test]
fn wiping_leaves_nothing_behind_the_image() {
    let image = gpt(8);
    let (_directory, path) = stored(&image);
    for (wipe, left) in [("Zero", 0), ("Discard", 0), ("Signatures", PATTERN)] {
        let disk = LoopDevice::patterned(40);
        let ended = run(&config(&path, &disk, wipe));
        // A loop device gives discarded blocks back to its file, which reads as zeros there.
        assert_complete_gpt(&disk, &image, 512, left);
        let record = record::decode(&disk.bytes()[RECORD]).unwrap().unwrap();
        assert_eq!(record.state, State::Sealed);
        let told: Vec<_> = ended
            .events()
            .into_iter()
            .filter(|e| e["event"] == "progress" && e["step"] == "wipeDisk")
            .collect();
        assert_eq!(told.is_empty(), wipe == "Signatures");
        if let Some(last) = told.last() {
            // All of the disk but the mark.
            assert_eq!(last["written"], json!(40 * MIB - 4096));
            assert_eq!(last["total"], last["written"]);
        }
    }
}

#[test]
fn a_regular_file_is_wiped_too() {
    let image = gpt(8);
    let (_directory, path) = stored(&image);
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    for wipe in ["Zero", "Discard"] {
        std::fs::write(&disk, vec![PATTERN; 40 * MIB]).unwrap();
        let config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "image": { "url": path },
            "disk": { "select": { "path": disk }, "overwrite": "Always", "wipe": wipe },
        });
        let file = folder.path().join("config.json");
        std::fs::write(&file, config.to_string()).unwrap();
        ironroot(&[
            "install",
            "--allow-file",
            "--config",
            file.to_str().unwrap(),
        ])
        .succeeded();
        let now = std::fs::read(&disk).unwrap();
        let rest = &now[8 * MIB..38 * MIB];
        assert!(rest.iter().all(|b| *b == 0), "{wipe}");
    }
}

#[test]
fn a_run_cut_off_behind_the_wipe_cannot_boot_and_goes_on_later() {
    let image = gpt(8);
    let (_directory, path) = stored(&image);
    let disk = LoopDevice::patterned(40);
    let cut = config(&path, &disk, "Zero");
    let file = cut.file();
    let args = ["install", "--config", file.to_str().unwrap()];
    // Lock, image, mark, wipe.
    let ended = ironroot(&[&args[..], &["--stop-after", "4"]].concat());
    assert_eq!(ended.code, Some(70), "{}", ended.stderr);
    support::verdict::assert_not_bootable(&disk);
    let record = record::decode(&disk.bytes()[RECORD]).unwrap().unwrap();
    assert_eq!(record.state, State::Mark);
    // It is this installation's own disk: no permission is needed any more.
    let again = Config::new(&path, "", &disk).with("/image", json!({ "url": path }));
    run(&again);
    assert_complete_gpt(&disk, &image, 512, 0);
}

#[test]
fn an_unused_loop_device_over_the_disk_goes_and_a_mounted_one_stays() {
    let image = gpt(8);
    let (_directory, path) = stored(&image);
    let disk = LoopDevice::blank(40);
    tool("mkfs.ext4", &["-q", disk.arg()]);
    let over = tool("losetup", &["--find", "--show", disk.arg()]);
    let over = over.trim();
    let place = disk.directory().join("mounted");
    std::fs::create_dir(&place).unwrap();
    tool("mount", &[over, place.to_str().unwrap()]);
    let mounted = support::program::install(&path, "", &disk, ALWAYS);
    tool("umount", &[place.to_str().unwrap()]);
    let name = Path::new(over).file_name().unwrap().to_str().unwrap();
    mounted.failed_with(13, &["in use", name, place.to_str().unwrap(), "unmount"]);

    let refused = support::program::install(&path, "", &disk, &[]);
    refused.failed_with(13, &["in use", name, "set `overwrite` to Always"]);
    let ended = support::program::install(&path, "", &disk, ALWAYS);
    // Another test may have taken the number since.
    let left = Path::new("/sys/block").join(name).join("loop/backing_file");
    if std::fs::read_to_string(left).is_ok_and(|on| on.trim() == disk.arg()) {
        tool("losetup", &["--detach", over]);
        panic!("{over} is still there: {}", ended.stderr);
    }
    ended.succeeded();
    assert_one_answer(&disk, "loop");
}
