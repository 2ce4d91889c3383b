//! The partitions of a table that is in memory only, on real loop devices: what the kernel, mke2fs and mount make
//! of them, and that the lock never ends meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ironroot::host::DevNum;
use ironroot::plan::step::Target;
use ironroot::run::partitions::{Place, Shared};
use ironroot::run::target_disk::TargetDisk;
use ironroot::sys::mount::{Flags, Guard};
use ironroot::sys::{block, tool};
use ironroot::units::{Bytes, MIB, SectorSize};
use support::loop_device::LoopDevice;

const PLACES: [Place; 2] = [
    Place {
        number: 1,
        start: Bytes(MIB),
        size: Bytes(4 * MIB),
    },
    Place {
        number: 15,
        start: Bytes(8 * MIB),
        size: Bytes(24 * MIB),
    },
];
/// Of an ext4 superblock, from the beginning of the file system.
const MAGIC: (u64, [u8; 2]) = (1024 + 56, [0x53, 0xef]);

fn target(path: &Path) -> Target {
    let file = File::open(path).unwrap();
    let device = block::is_block_device(&file).unwrap();
    Target {
        path: path.to_owned(),
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        dev: device.then(|| block::device_number(&file).unwrap()),
        size: block::size(&file).unwrap(),
        sector: block::sector_size(&file).unwrap(),
        identity: ironroot::image::record::DiskIdentity::default(),
    }
}

fn lock_is_free(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockSharedNonblock).is_ok()
}

fn listed(dev: DevNum) -> Vec<u32> {
    let mut numbers: Vec<u32> = std::fs::read_dir(format!("/sys/dev/block/{dev}"))
        .unwrap()
        .filter_map(|e| {
            let text = std::fs::read_to_string(e.unwrap().path().join("partition")).ok()?;
            text.trim().parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Makes an ext4 on partition 15 and writes a file into it.
fn write_a_file(shared: &Shared, mount_point: &Path) {
    let node = shared.node(15).unwrap();
    let path = node.path.to_str().unwrap();
    let minute = std::time::Duration::from_secs(60);
    tool::run(tool::Tool::Mke2fs, &["-q", "-t", "ext4", path], minute).unwrap();
    let guard = Guard::attach(&node.path, mount_point, "ext4", Flags::empty(), "").unwrap();
    std::fs::write(mount_point.join("marker"), "here").unwrap();
    guard.unmount().unwrap();
}

#[test]
fn partitions_that_no_table_names_are_formatted_and_mounted_under_the_lock() {
    let disk = LoopDevice::patterned(64);
    let path = disk.path().to_owned();
    let target = target(&path);
    let dev = target.dev.unwrap();
    let held = TargetDisk::open(&target).unwrap();
    // A partition of an older table, which the kernel still has.
    block::add_partition(held.file(), 7, Bytes(2 * MIB), Bytes(30 * MIB)).unwrap();
    assert!(block::open_for_writing(&path, true).is_err(), "claimed");

    let shared = Shared::new(held, &PLACES).unwrap();
    assert_eq!(listed(dev), [1, 15]);
    assert!(!lock_is_free(&path));
    let mount_point = tempfile::tempdir().unwrap();
    write_a_file(&shared, mount_point.path());
    assert!(shared.node(7).is_err());

    let held = shared.claim().unwrap();
    assert_eq!(listed(dev), [] as [u32; 0]);
    assert!(
        block::open_for_writing(&path, true).is_err(),
        "claimed again"
    );
    assert!(!lock_is_free(&path));
    let mut magic = [0u8; 2];
    held.file()
        .read_exact_at(&mut magic, 8 * MIB + MAGIC.0)
        .unwrap();
    assert_eq!(
        magic, MAGIC.1,
        "what was written to the partition is read from the disk"
    );
    drop(held);
    assert!(lock_is_free(&path));
}

#[test]
fn a_partition_in_use_keeps_the_heldfrom_being_claimed_and_the_failure_says_so() {
    let disk = LoopDevice::blank(64);
    let target = target(disk.path());
    let dev = target.dev.unwrap();
    let shared = Shared::new(TargetDisk::open(&target).unwrap(), &PLACES).unwrap();
    let user = File::open(&shared.node(15).unwrap().path).unwrap();
    let failure = shared.claim().unwrap_err();
    let text = ironroot::error::chain(&failure);
    assert!(text.contains("in use") && text.contains("15"), "{text}");
    assert_eq!(listed(dev), [15], "what nobody uses is forgotten");
    drop(user);
    block::delete_partition(&File::open(disk.path()).unwrap(), 15).unwrap();
}

#[test]
fn a_failure_in_between_leaves_no_partition_behind() {
    let disk = LoopDevice::blank(64);
    let target = target(disk.path());
    let shared = Shared::new(TargetDisk::open(&target).unwrap(), &PLACES).unwrap();
    assert_eq!(listed(target.dev.unwrap()), [1, 15]);
    drop(shared);
    assert_eq!(listed(target.dev.unwrap()), [] as [u32; 0]);
    assert!(lock_is_free(disk.path()));
}

#[test]
fn a_regular_file_has_partitions_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    let target = target(&path);
    assert_eq!((target.dev, target.sector), (None, SectorSize::S512));
    let shared = Shared::new(TargetDisk::open(&target).unwrap(), &PLACES).unwrap();
    let mount_point = tempfile::tempdir().unwrap();
    write_a_file(&shared, mount_point.path());
    drop(shared.claim().unwrap());
    let mut magic = [0u8; 2];
    let file = File::open(&path).unwrap();
    file.read_exact_at(&mut magic, 8 * MIB + MAGIC.0).unwrap();
    assert_eq!(magic, MAGIC.1);
}

#[test]
fn a_partition_that_the_kernel_refuses_takes_the_others_with_it() {
    let disk = LoopDevice::blank(64);
    let target = target(disk.path());
    let beyond = Place {
        number: 3,
        start: Bytes(60 * MIB),
        size: Bytes(100 * MIB),
    };
    let held = TargetDisk::open(&target).unwrap();
    let failure = Shared::new(held, &[PLACES[0], beyond]).unwrap_err();
    assert!(failure.to_string().contains("partition 3"), "{failure}");
    assert_eq!(listed(target.dev.unwrap()), [] as [u32; 0]);
}
