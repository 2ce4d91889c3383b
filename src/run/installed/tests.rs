//! A look into file systems that a power cut left, on real loop devices.

use std::os::unix::fs::FileExt as _;
use std::process::Command;

use super::*;
use crate::host::DevNum;
use crate::host::tables::{Mbr, PartitionKind, TablePartition};
use crate::run::partitions::Place;
use crate::sys::loopdev::{LoopDevice, Range};
use crate::units::{Bytes, MIB};

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {out:?}");
}

fn loop_device(file: &Path) -> LoopDevice {
    let backing = std::fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    LoopDevice::attach_writable(&backing, file, Range::WHOLE).unwrap()
}

/// A file system as it is while a system runs on it: synced files, one that was deleted while it was open, and what
/// stands in the journal alone. `make` has the program that makes it.
fn cut_off(folder: &Path, kind: &str, size: u64, make: &[&str]) -> PathBuf {
    let (live, image, place) = (folder.join("live"), folder.join(kind), folder.join("at"));
    let file = std::fs::File::create(&live).unwrap();
    file.set_len(size * MIB).unwrap();
    let args: Vec<&str> = make[1..]
        .iter()
        .copied()
        .chain([live.to_str().unwrap()])
        .collect();
    run(make[0], &args);
    std::fs::create_dir_all(&place).unwrap();
    let device = loop_device(&live);
    let mount = Guard::attach(device.path(), &place, kind, Flags::empty(), "").unwrap();
    std::fs::create_dir_all(place.join("etc")).unwrap();
    std::fs::write(place.join("etc/fstab"), "").unwrap();
    // So far it is at rest: a look sees what stands outside of the journal.
    mount.unmount().unwrap();
    let mount = Guard::attach(device.path(), &place, kind, Flags::empty(), "").unwrap();
    let deleted = std::fs::File::create(place.join("deleted")).unwrap();
    deleted.write_all_at(&vec![7; 300_000], 0).unwrap();
    nix::unistd::syncfs(&deleted).unwrap();
    std::fs::remove_file(place.join("deleted")).unwrap();
    nix::unistd::syncfs(&deleted).unwrap();
    let last = std::fs::File::create(place.join("last")).unwrap();
    last.write_all_at(b"in the journal", 0).unwrap();
    last.sync_all().unwrap();
    // The power goes here.
    std::fs::copy(&live, &image).unwrap();
    drop((deleted, last));
    mount.unmount().unwrap();
    image
}

/// A disk whose one partition is `device`.
fn table_of(size: u64) -> Table {
    Table::Mbr(Mbr {
        signature: "00000000".to_owned(),
        partitions: vec![TablePartition {
            number: 1,
            start: Bytes(MIB),
            size: Bytes(size * MIB),
            kind: PartitionKind::Byte(0x83),
            partuuid: "00000000-01".to_owned(),
            name: None,
            attributes: 0,
        }],
    })
}

fn look(image: &Path, size: u64, access: Access) {
    let device = loop_device(image);
    let node = Node {
        place: Place {
            number: 1,
            start: Bytes(MIB),
            size: Bytes(size * MIB),
        },
        path: device.path().to_owned(),
        dev: DevNum { major: 7, minor: 0 },
    };
    let reporter = Reporter::default();
    let system = Installed::mount(&[node], &table_of(size), "x86_64", access, &reporter).unwrap();
    assert!(
        system
            .root()
            .unwrap()
            .exists(Path::new("/etc/fstab"), Walk::InRoot)
            .unwrap()
    );
    system.unmount().unwrap();
    // It can be written again.
    let file = std::fs::File::options()
        .write(true)
        .open(device.path())
        .unwrap();
    assert!(!crate::sys::block::is_read_only(&file).unwrap());
    file.sync_all().unwrap();
}

#[test]
fn loop_a_look_writes_nothing_to_what_a_power_cut_left() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    crate::sys::mount::own_namespace().unwrap();
    let known = std::fs::read_to_string("/proc/filesystems").unwrap();
    for (kind, size, make) in [
        ("ext4", 32, &["mke2fs", "-q", "-F", "-t", "ext4"][..]),
        ("xfs", 320, &["mkfs.xfs", "-q", "-f"]),
        ("btrfs", 128, &["mkfs.btrfs", "-q", "-f"]),
    ] {
        if !known.contains(kind) {
            eprintln!("skipped: the kernel has no {kind}");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let image = cut_off(folder.path(), kind, size, make);
        let before = std::fs::read(&image).unwrap();
        look(&image, size, Access::Look);
        assert!(
            std::fs::read(&image).unwrap() == before,
            "{kind} was written to"
        );
        // Who changes it replays the journal: there was one.
        look(&image, size, Access::Change);
        assert!(
            std::fs::read(&image).unwrap() != before,
            "{kind} had nothing to replay"
        );
    }
}
