//! Images that are block devices: a disk, a partition by its name, and never the target itself. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::io::Write as _;

use support::disk_image::{mbr, sha256};
use support::loop_device::{LoopDevice, tool};
use support::program::install;

const ALWAYS: &[&str] = &["--overwrite", "Always"];

/// A disk with a GPT whose first partition has `name` and holds `content`.
fn stick(name: &str, content: &[u8]) -> LoopDevice {
    let disk = LoopDevice::blank(16);
    let size = format!("1:0:+{}K", content.len() >> 10);
    tool(
        "sgdisk",
        &["-n", &size, "-c", &format!("1:{name}"), disk.arg()],
    );
    tool("partx", &["--add", disk.arg()]);
    let mut partition = std::fs::File::options()
        .write(true)
        .open(format!("{}p1", disk.arg()))
        .unwrap();
    partition.write_all(content).unwrap();
    partition.sync_all().unwrap();
    disk
}

#[test]
fn a_whole_device_is_an_image_of_its_own_length() {
    let content = mbr(4, 3);
    let source = LoopDevice::holding(&content);
    let target = LoopDevice::blank(16);
    install(source.arg(), &sha256(&content), &target, ALWAYS).succeeded();
    assert!(target.bytes()[1 << 20..content.len()] == content[1 << 20..]);
    assert!(source.bytes() == content);
}

#[test]
fn a_partition_is_found_by_its_name_and_two_of_that_name_refuse() {
    let content = mbr(4, 3);
    let name = format!("ironroot-source-{}", std::process::id());
    let path = format!("/dev/disk/by-partlabel/{name}");
    let source = stick(&name, &content);
    let target = LoopDevice::blank(16);
    install(&path, &sha256(&content), &target, ALWAYS).succeeded();
    assert!(target.bytes()[1 << 20..content.len()] == content[1 << 20..]);
    drop(target);

    if !std::path::Path::new(&path).exists() {
        // Where udev makes the link, it has chosen one of them already.
        let other = stick(&name, &content);
        let target = LoopDevice::blank(16);
        let before = target.bytes();
        let ended = install(&path, "", &target, ALWAYS);
        ended.failed_with(13, &[&name, "have it"]);
        assert!(before == target.bytes());
        drop(other);
    }
    drop(source);
}

#[test]
fn an_image_on_the_target_is_refused_before_anything_is_written() {
    let content = mbr(4, 3);
    let disk = stick("image", &content);
    let before = disk.bytes();
    let partition = format!("{}p1", disk.arg());
    let backing = disk.directory().join("disk");
    for image in [&partition, disk.arg(), backing.to_str().unwrap()] {
        let ended = install(image, "", &disk, ALWAYS);
        ended.failed_with(13, &["is on the target", image, disk.arg()]);
        assert!(before == disk.bytes(), "{image}");
    }
}

#[test]
fn a_device_that_does_not_come_is_waited_for_and_named() {
    let target = LoopDevice::blank(16);
    let before = target.bytes();
    let path = "/dev/disk/by-label/ironroot-nothing-has-this";
    let started = std::time::Instant::now();
    let ended = install(path, "", &target, &["--wait", "1s"]);
    ended.failed_with(11, &[path]);
    assert!(started.elapsed() >= std::time::Duration::from_secs(1));
    assert!(before == target.bytes());
}
