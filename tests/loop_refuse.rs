//! Targets that ironroot refuses, on loop devices: the exit code, what the message names, and that nothing
//! was written. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use nix::libc;
use support::disk_image::{MIB, gpt, mbr};
use support::loop_device::{LoopDevice, PATTERN, tool};
use support::program::{install, ironroot, stored};
use support::verdict::{Untouched, assert_pattern};

const ALWAYS: &[&str] = &["--overwrite", "Always"];

#[test]
fn a_mounted_disk_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::blank(16);
    tool("mkfs.ext4", &["-q", disk.arg()]);
    let place = disk.directory().join("with a blank");
    std::fs::create_dir(&place).unwrap();
    tool("mount", &[disk.arg(), place.to_str().unwrap()]);
    let before = disk.bytes();
    let ended = install(&path, "", &disk, ALWAYS);
    let after = disk.bytes();
    tool("umount", &[place.to_str().unwrap()]);
    ended.failed_with(13, &["in use", "mounted", place.to_str().unwrap()]);
    assert!(before == after);
}

#[test]
fn a_disk_whose_partition_is_mounted_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::holding(&gpt(16));
    tool("partx", &["--add", disk.arg()]);
    let partition = format!("{}p1", disk.arg());
    tool("mkfs.ext4", &["-q", &partition]);
    let place = disk.directory().join("m");
    std::fs::create_dir(&place).unwrap();
    tool("mount", &[&partition, place.to_str().unwrap()]);
    let ended = install(&path, "", &disk, ALWAYS);
    tool("umount", &[place.to_str().unwrap()]);
    ended.failed_with(
        13,
        &[
            "in use",
            &format!("{}p1", disk.name()),
            place.to_str().unwrap(),
        ],
    );
    let text = tool("sgdisk", &["--verify", disk.arg()]);
    assert!(text.contains("No problems found"), "{text}");
}

#[test]
fn a_disk_used_as_swap_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::blank(16);
    tool("mkswap", &[disk.arg()]);
    tool("swapon", &[disk.arg()]);
    let before = disk.bytes();
    let ended = install(&path, "", &disk, ALWAYS);
    let after = disk.bytes();
    tool("swapoff", &[disk.arg()]);
    ended.failed_with(13, &["in use", "swap"]);
    // Its pages are the kernel's to write at any moment; the header is nobody's.
    assert!(before[..4096] == after[..4096]);
}

#[test]
fn a_disk_below_another_device_is_refused_without_permission() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::patterned(16);
    let upper = tool("losetup", &["--find", "--show", disk.arg()]);
    let upper = upper.trim();
    let ended = install(&path, "", &disk, &["--overwrite", "IfOurs"]);
    tool("losetup", &["--detach", upper]);
    ended.failed_with(13, &["in use", upper.trim_start_matches("/dev/")]);
    assert_pattern(&disk);
}

#[test]
fn a_disk_that_appears_late_is_waited_for_and_no_longer_than_asked() {
    let (directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::blank(16);
    let link = directory.path().join("by-path");
    let begin = Instant::now();
    let run = |wait: &str| {
        let link = link.to_str().unwrap();
        let flags = [
            "--json", "install", "--wait", wait, "--image", &path, "--disk", link,
        ];
        ironroot(&flags)
    };
    let ended = run("1s").failed_with(13, &["waiting for disk", "does not exist"]);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert!(begin.elapsed() < Duration::from_secs(8));
    assert_eq!(
        ended
            .events()
            .iter()
            .filter(|e| e["event"] == "waiting")
            .count(),
        1
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            std::os::unix::fs::symlink(disk.path(), &link).unwrap();
        });
        run("20s").succeeded();
    });
    assert_eq!(disk.partitions(), [1]);
}

#[test]
fn a_partition_is_no_target() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::holding(&gpt(16));
    tool("partx", &["--add", disk.arg()]);
    let before = Untouched::of(&disk);
    ironroot(&[
        "install",
        "--image",
        &path,
        "--overwrite",
        "Always",
        "--disk",
        &format!("{}p1", disk.arg()),
    ])
    .failed_with(
        13,
        &[&format!("partition 1 of {}", disk.name()), disk.arg()],
    );
    before.check();
}

#[test]
fn what_is_no_disk_is_refused_and_nothing_is_created() {
    let (directory, path) = stored(&mbr(4, 3));
    let target = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(target("file"), vec![PATTERN; 8 * MIB]).unwrap();
    std::os::unix::fs::symlink(target("nowhere"), target("link")).unwrap();
    for (disk, part) in [
        (target("missing"), "does not exist"),
        (target("link"), "does not exist"),
        (target("file"), "is a regular file"),
        (target("."), "is a directory"),
        ("/dev/null".to_owned(), "not a disk"),
    ] {
        let flags = [
            "install",
            "--image",
            &path,
            "--overwrite",
            "Always",
            "--disk",
            &disk,
        ];
        ironroot(&flags).failed_with(13, &[&disk, part]);
        if !disk.ends_with("file") {
            let mut flags = flags.to_vec();
            flags.push("--allow-file");
            ironroot(&flags).failed_with(13, &[&disk, part]);
        }
    }
    let mut names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["file", "image", "link"]);
    let file = std::fs::read(target("file")).unwrap();
    assert!(file == vec![PATTERN; 8 * MIB]);
}

#[test]
fn a_read_only_disk_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::attached(&vec![0; 16 * MIB], &["--read-only"]);
    install(&path, "", &disk, ALWAYS).failed_with(13, &[disk.name(), "read-only"]);
}

#[test]
fn a_disk_that_another_program_has_locked_or_claimed_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::patterned(16);
    let open = |flags| {
        std::fs::File::options()
            .read(true)
            .custom_flags(flags)
            .open(disk.path())
            .unwrap()
    };
    let claimed = open(libc::O_EXCL);
    install(&path, "", &disk, ALWAYS).failed_with(13, &[disk.arg(), "in use"]);
    drop(claimed);
    let locked = open(0);
    let locked = nix::fcntl::Flock::lock(locked, nix::fcntl::FlockArg::LockShared).unwrap();
    install(&path, "", &disk, ALWAYS).failed_with(13, &[disk.arg(), "locked by another program"]);
    drop(locked);
    assert_pattern(&disk);
}

#[test]
fn no_match_shows_every_disk_and_why_it_does_not_serve() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::patterned(16);
    let flags = [
        "install",
        "--image",
        &path,
        "--overwrite",
        "Always",
        "--disk",
    ];
    let run = |selector: &str| ironroot(&[&flags[..], &[selector]].concat());
    // A loop device is taken only when its very path is given, not by what it happens to match.
    run("size=16MiB").failed_with(
        13,
        &[
            "no disk matches size=",
            disk.name(),
            "only when named by path",
        ],
    );
    run("size=16MiB,serial=none-has-this").failed_with(13, &["none-has-this", "does not match"]);
    run("path=/dev/disk/by-id/nothing-*").failed_with(13, &["no disk matches", disk.name()]);
    // The path is right and the rest is not.
    run(&format!("path={},size=>=1TiB", disk.arg()))
        .failed_with(13, &[disk.name(), "the path matches, the rest does not"]);
    assert_pattern(&disk);
}

#[test]
fn a_disk_that_holds_data_is_refused_unless_overwrite_says_so() {
    let image = mbr(4, 3);
    let (_directory, path) = stored(&image);
    for (script, found) in [
        (&["mkfs.ext4", "-q", "-L", "precious"][..], "precious"),
        (&["mkfs.vfat", "-n", "STICK"], "vfat"),
        (&["mkswap"], "swap"),
        (&["sgdisk", "--new=1:2048:4096"], "gpt"),
    ] {
        let disk = LoopDevice::blank(16);
        let args = [&script[1..], &[disk.arg()]].concat();
        tool(script[0], &args);
        let before = Untouched::of(&disk);
        for more in [&[][..], &["--overwrite", "IfOurs"]] {
            install(&path, "", &disk, more).failed_with(13, &["not blank", found, "Always"]);
        }
        ironroot(&["plan", "--image", &path, "--disk", disk.arg()])
            .failed_with(13, &["not blank", found]);
        before.check();
    }
    // A lone backup GPT at the end is data as well.
    let mut content = vec![0; 16 * MIB];
    let at = content.len() - 33 * 512;
    content[at..].copy_from_slice(&gpt(16)[at..]);
    let disk = LoopDevice::holding(&content);
    let before = Untouched::of(&disk);
    install(&path, "", &disk, &[]).failed_with(13, &["not blank"]);
    before.check();
}

#[test]
fn a_file_below_a_loop_device_is_in_use() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::blank(16);
    let before = disk.bytes();
    let backing = disk.backing().to_str().unwrap().to_owned();
    let flags = [
        "install",
        "--image",
        &path,
        "--insecure",
        "--overwrite",
        "Always",
    ];
    let ended = ironroot(&[&flags[..], &["--allow-file", "--disk", &backing]].concat());
    ended.failed_with(13, &["in use", disk.name()]);
    assert!(disk.bytes() == before);
}
