//! Sessions from memory in virtual machines: ironroot as PID 1, the switch of the root, and what the new system
//! finds. The disks are compared byte by byte.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/machine.rs"]
mod machine;

use std::path::{Path, PathBuf};

use machine::{Direct, Scenario, lab};

/// The facts that the image printed: `IRONROOT-FACT key rest`.
#[track_caller]
fn fact<'a>(console: &'a str, key: &str) -> &'a str {
    console
        .lines()
        .find_map(|line| {
            let rest = line.split_once("IRONROOT-FACT ")?.1;
            rest.strip_prefix(key)?.strip_prefix(' ')
        })
        .unwrap_or_else(|| panic!("no fact {key} in: {console}"))
        .trim()
}

/// The number behind `key:` in a fact.
#[track_caller]
fn number(fact: &str, key: &str) -> u64 {
    let mut words = fact.split_whitespace();
    words
        .find(|word| word.trim_end_matches(':') == key)
        .and_then(|_| words.next())
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no {key} in {fact:?}"))
}

/// A disk with an artifact of the lab at its beginning, and noise behind it.
fn disk_with(folder: &Path, artifact: &str) -> PathBuf {
    let disk = folder.join("disk.raw");
    std::fs::copy(lab(artifact), &disk).unwrap();
    let file = std::fs::OpenOptions::new()
        .append(true)
        .open(&disk)
        .unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.next_multiple_of(1 << 20)).unwrap();
    disk
}

fn config(url: &str, memory: &str) -> String {
    let text = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{{"url":"{url}"}},"memory":{memory}}}"#
    );
    format!("ironroot.config=data:,{}", text.replace('"', "%22"))
}

#[test]
fn busybox_from_a_disk_finds_everything_as_it_should_be() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk_with(folder.path(), "tiny.squashfs");
    let before = std::fs::read(&disk).unwrap();
    let memory = r#"{"zram":"25%","scratch":["/var/lib/scratch"],"size":"100MiB"}"#;
    let words = format!(
        "ip=off FOO=bar foo.bar=1 single {}",
        config("/dev/vda", memory)
    );
    let console = Direct::new(&disk, &words)
        .run(&["--until=IRONROOT-TINY-BOOTED.*payload=ok", "--wait-end"])
        .good();
    assert_eq!(fact(&console, "root"), "755 0 0 rw,relatime overlay");
    assert_eq!(fact(&console, "mount /run"), "rw,nosuid,nodev tmpfs");
    assert_eq!(fact(&console, "mount /dev"), "rw,nosuid,relatime devtmpfs");
    assert_eq!(
        fact(&console, "mount /proc"),
        "rw,nosuid,nodev,noexec,relatime proc"
    );
    assert!(fact(&console, "mount /var/lib/scratch").ends_with("tmpfs"));
    assert_eq!(fact(&console, "run"), "755 ironroot 700");
    // The shell that is init holds its script open; nothing of ours is left.
    let descriptors = fact(&console, "descriptors");
    assert!(descriptors.split_whitespace().count() <= 5, "{descriptors}");
    let signals = fact(&console, "signals");
    assert!(signals.contains("SigBlk: 0000000000000000"), "{signals}");
    // SIGPIPE, which the standard library ignores, is bit 12.
    assert!(!signals.contains("SigIgn: 0000000000001"), "{signals}");
    let environment = fact(&console, "environment");
    assert!(
        environment.contains("FOO=bar") && !environment.contains("ironroot"),
        "{environment}"
    );
    assert!(!environment.contains("foo.bar"), "{environment}");
    assert_eq!(fact(&console, "arguments"), "single");
    assert!(
        !fact(&console, "processes").contains("ironroot"),
        "{console}"
    );
    assert!(
        fact(&console, "swap").starts_with("/dev/zram0"),
        "{console}"
    );
    assert_eq!(fact(&console, "written"), "hello");
    // The image and a few pages: the initramfs and the download are gone.
    let held = number(fact(&console, "memory"), "Shmem");
    let image = std::fs::metadata(lab("tiny.squashfs")).unwrap().len() / 1024;
    assert!(
        (image..image + 2048).contains(&held),
        "{held} KiB for an image of {image}"
    );
    assert!(
        console.contains("the image has no /lib/modules/"),
        "{console}"
    );
    assert_eq!(
        std::fs::read(&disk).unwrap(),
        before,
        "the disk was written to"
    );
}

#[test]
fn a_gl_command_line_boots_an_erofs_of_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk_with(folder.path(), "tiny.erofs");
    let console = Direct::new(&disk, "gl.url=/dev/vda gl.ovl=/:tmpfs gl.live=1 ip=off")
        .run(&["--until=IRONROOT-TINY-BOOTED.*payload=ok", "--wait-end"])
        .good();
    assert_eq!(fact(&console, "root"), "755 0 0 rw,relatime overlay");
    assert!(fact(&console, "boot").contains("erofs"), "{console}");
}

/// `veritysetup format`: the tree behind the image, in the same file. Root hash and offset.
fn with_hash_tree(disk: &Path) -> (String, u64) {
    let offset = std::fs::metadata(disk).unwrap().len();
    let out = std::process::Command::new("veritysetup")
        .arg("format")
        .arg(format!("--hash-offset={offset}"))
        .args([format!("--data-blocks={}", offset / 4096)])
        .args([disk, disk])
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout).unwrap();
    let root = text.lines().find_map(|l| l.strip_prefix("Root hash:"));
    let file = std::fs::OpenOptions::new().append(true).open(disk).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.next_multiple_of(1 << 20)).unwrap();
    (root.unwrap().trim().to_owned(), offset)
}

#[test]
fn dm_verity_proves_every_block_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk_with(folder.path(), "tiny.squashfs");
    let (root, offset) = with_hash_tree(&disk);
    let boot = |root: &str, until: &str| {
        let verity = format!(r#"{{"verity":{{"rootHash":"{root}","hashOffset":"{offset}"}}}}"#);
        let words = format!(
            "ironroot.on-failure=poweroff ip=off {}",
            config("/dev/vda", &verity)
        );
        Direct::new(&disk, &words)
            .run(&[&format!("--until={until}"), "--wait-end"])
            .good()
    };
    boot(&root, "IRONROOT-TINY-BOOTED.*payload=ok");
    // One bit in the middle of the payload: the system starts, and what it cannot trust it cannot read.
    let mut image = std::fs::read(&disk).unwrap();
    image[7 << 20] ^= 1;
    std::fs::write(&disk, image).unwrap();
    let console = boot(&root, "IRONROOT-TINY-BOOTED.*payload=bad");
    assert!(console.contains("data block"), "{console}");
    // Another root hash: not even the superblock can be read.
    let console = boot(&"0".repeat(64), "FAILED .code 12.");
    assert!(
        console.contains("cannot be mounted as squashfs"),
        "{console}"
    );
}

fn debian_runs(scenario: &Scenario, method: &str) -> String {
    let markers = [
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=",
        "--wait-end",
    ];
    let console = scenario.boot(false, &markers).good();
    let root = fact(&console, "root");
    assert!(root.starts_with("755 0 0 rw,relatime "), "{root}");
    assert_eq!(fact(&console, "method"), method);
    assert_eq!(fact(&console, "programs"), "0");
    assert!(fact(&console, "run").starts_with("755 "), "{console}");
    assert!(
        fact(&console, "signals").contains("SigIgn: 0000000000001000"),
        "{console}"
    );
    assert!(console.contains("failed=[]"), "{console}");
    assert!(scenario.reports().contains(r#""status":"Success""#));
    // The machine switched itself off, and nobody wrote to its disk.
    assert!(
        std::fs::read(scenario.file("disk.raw"))
            .unwrap()
            .iter()
            .all(|b| *b == 0)
    );
    console
}

#[test]
fn debian_runs_from_a_squashfs_that_came_over_the_network() {
    let scenario = Scenario::new("memory-uefi", &["--disk-size", "64M"]);
    debian_runs(&scenario, "overlay");
}

#[test]
fn debian_runs_from_an_archive_that_is_unpacked_while_it_comes() {
    let options = [
        "--work",
        "memory-tar",
        "--image",
        "debian.tar.zst",
        "--disk-size",
        "64M",
    ];
    let scenario = Scenario::new("memory-uefi", &options);
    let console = debian_runs(&scenario, "extract");
    assert!(fact(&console, "root").ends_with("tmpfs"), "{console}");
}

#[test]
fn debian_runs_from_the_layers_of_a_container_image() {
    let scenario = Scenario::new("memory-oci", &["--disk-size", "64M"]);
    let console = debian_runs(&scenario, "extract");
    // The second layer replaced a file and took one away.
    assert!(fact(&console, "hostname").starts_with("oci"), "{console}");
    assert_eq!(fact(&console, "issue.net"), "absent");
}

#[test]
fn too_little_memory_is_refused_with_both_numbers_and_on_failure_acts() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk_with(folder.path(), "tiny.squashfs");
    let text = format!(
        "ironroot.on-failure=poweroff ip=off {}",
        config("/dev/vda", "{}").replace("%22}", "%22,%22contentSize%22:%222GiB%22}")
    );
    let console = Direct::new(&disk, &text)
        .run(&["--until=FAILED .code 15.", "--wait-end"])
        .good();
    assert!(console.contains("needs 2.1 GiB"), "{console}");
    assert!(console.contains("next:"), "{console}");
}

#[test]
fn an_unpacked_image_leaves_only_its_tree() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk_with(folder.path(), "tiny.squashfs");
    let words = format!("ip=off {}", config("/dev/vda", r#"{"method":"Extract"}"#));
    let console = Direct::new(&disk, &words)
        .run(&["--until=IRONROOT-TINY-BOOTED.*payload=ok", "--wait-end"])
        .good();
    assert_eq!(fact(&console, "root"), "755 0 0 rw,relatime tmpfs");
    assert!(fact(&console, "boot").contains(r#""extract""#), "{console}");
    // The payload and busybox; neither the image nor anything that read it.
    let held = number(fact(&console, "memory"), "Shmem");
    assert!((13 << 10..17 << 10).contains(&held), "{held} KiB");
}

/// A disk with 700 MB of text below a root, made by `script` in a directory that has it as `root`.
fn much_text(folder: &Path, script: &str) -> PathBuf {
    let all = format!(
        "cd {}; mkdir -p root/sbin; yes 'all work and no play' | head -c 700000000 >root/text; {script}
        rm -r root; truncate -s %1M disk.raw",
        folder.display()
    );
    let out = std::process::Command::new("sh")
        .args(["-ec", &all])
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    folder.join("disk.raw")
}

/// The machines have 512 MiB; the images are a few MiB as they come.
#[test]
fn what_is_too_large_once_it_is_decoded_ends_with_code_15_and_on_failure_acts() {
    let squashfs = "mksquashfs root disk.raw -quiet -no-progress -comp zstd";
    // Without a length that anything declares.
    let archive = "tar -C root -cf - . | zstd -q -c >disk.raw";
    for (make, memory, parts) in [
        // Known when the image is here, refused before it is unpacked.
        (
            squashfs,
            r#"{"method":"Extract"}"#,
            &["with its tree (667.", "needs", "there are"][..],
        ),
        // Known at the end of what there is.
        (archive, "{}", &["loadRoot", "inodes free"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let disk = much_text(folder.path(), make);
        let words = format!(
            "ironroot.on-failure=poweroff ip=off {}",
            config("/dev/vda", memory)
        );
        let console = Direct::new(&disk, &words)
            .run(&["--until=FAILED .code 15.", "--wait-end"])
            .good();
        for part in parts {
            assert!(console.contains(part), "{part:?} in: {console}");
        }
        // Nobody was killed for it.
        assert!(!console.contains("Out of memory"), "{console}");
    }
}
