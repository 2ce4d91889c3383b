//! A tree of a real distribution becomes the disk of a UEFI or a BIOS machine over the network, and boots from it by
//! its own kernel. Needs root and the artifacts of `scripts/lab`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/machine.rs"]
mod machine;

use std::process::Command;

use machine::Scenario;
use sha2::{Digest as _, Sha256};

fn disk_hash(scenario: &Scenario) -> Vec<u8> {
    let mut file = std::fs::File::open(scenario.file("disk.raw")).unwrap();
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = std::io::Read::read(&mut file, &mut buffer).unwrap();
        if count == 0 {
            return hash.finalize().to_vec();
        }
        hash.update(&buffer[..count]);
    }
}

#[test]
fn a_squashfs_becomes_a_uefi_disk_that_reaches_multi_user() {
    let scenario = Scenario::new("tree-uefi", &["--disk-size", "2G"]);
    // One run over two boots: from the network, and from the disk, which BootNext asks for.
    let markers = [
        "--timeout=580",
        "--until=boots by systemd-boot: kernel 6",
        "--until=ironroot: installed: ",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED.*root=/dev/vda2.*failed=..",
    ];
    let console = scenario.boot(false, &markers).good();
    assert!(console.contains("next to boot"), "{console}");
    let output = Command::new("sgdisk")
        .arg("-v")
        .arg(scenario.file("disk.raw"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("No problems found"), "{text}");
    assert!(
        scenario.reports().contains(r#""status":"Success""#),
        "{}",
        scenario.reports()
    );

    // The firmware asks the network first again: the record is found and not a byte is written.
    let before = disk_hash(&scenario);
    let again = [
        "--until=already: boot it, write nothing",
        "--until=done: the machine restarts now",
    ];
    let console = scenario.boot(true, &again).good();
    assert!(!console.contains("ERASE"), "{console}");
    assert!(disk_hash(&scenario) == before, "the second boot wrote");
}

/// Table, file systems and boot loader all count in sectors of 4096 bytes, and the firmware reads what they left.
#[test]
fn matrix_a_squashfs_becomes_a_uefi_disk_of_large_sectors() {
    let options = [
        "--work",
        "tree-large-sectors",
        "--bus",
        "nvme,sector=4096",
        "--disk-size",
        "2G",
    ];
    let scenario = Scenario::new("tree-uefi", &options);
    let markers = [
        "--timeout=880",
        "--until=boots by systemd-boot: kernel 6",
        "--until=ironroot: installed: ",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED.*root=/dev/nvme0n1p2.*failed=..",
    ];
    let console = scenario.boot(false, &markers).good();
    assert!(console.contains("next to boot"), "{console}");
    // LBA 1, where the table begins.
    let disk = std::fs::File::open(scenario.file("disk.raw")).unwrap();
    let mut magic = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&disk, &mut magic, 4096).unwrap();
    assert_eq!(&magic, b"EFI PART");
}

#[test]
fn a_squashfs_becomes_a_bios_disk_that_reaches_multi_user_by_its_own_grub() {
    let scenario = Scenario::new("tree-bios", &["--disk-size", "2G"]);
    let markers = [
        "--timeout=400",
        "--until=boots by GRUB for i386-pc: kernel 6",
        "--until=ironroot: installed: ",
    ];
    scenario.boot(false, &markers).good();
    let output = Command::new("sgdisk")
        .arg("-v")
        .arg(scenario.file("disk.raw"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("No problems found"), "{text}");
    // From the disk, by SeaBIOS, the code in LBA 0, GRUB and the tree's own kernel and initrd.
    let markers = [
        "--timeout=400",
        "--boot=disk",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED.*root=/dev/vda2.*failed=..",
    ];
    let console = scenario.boot(true, &markers).good();
    assert!(!console.contains("ironroot: starting"), "{console}");
}
