//! What keeps preserved paths from being provided is found while the old system is still there: not one byte of the
//! disk has changed when it is refused.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::{Value, json};
use support::disk_image::{MIB, sha256};
use support::loop_device::{LoopDevice, tool};
use support::program::Config;
use support::systems::{Part, image, read, write};

const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";

/// The partition `state` begins behind the image, whose last MiB is that of its backup table.
const AT: usize = 26;

fn system(directory: &Path, version: &str) -> Vec<u8> {
    let root = directory.join(version);
    write(&root, "etc/os-release", "ID=x\n");
    write(&root, "etc/machine-id", "");
    write(&root, "etc/ssh_host_key", &format!("key of {version}\n"));
    write(&root, "var/lib/kubelet/config", &format!("of {version}\n"));
    image(&[Part {
        number: 1,
        at: 1,
        size: 24,
        kind: ROOT,
        uuid: "11111111-2222-4333-8444-555555555555",
        label: "root",
        tree: &root,
    }])
}

/// The name of the partition on `disk`: no other of this machine may have it, and other tests have disks as well.
fn label(disk: &LoopDevice) -> String {
    format!("state-{}-{}", disk.name(), std::process::id())
}

/// Paths on `source`, a directory, a file, a value and an overlay.
fn paths(source: &Value) -> Value {
    json!([
        { "target": "/var/lib/kubelet", "source": source, "subdir": "kubelet", "seed": "FromImageOnce",
          "claimBound": true },
        { "target": "/etc/ssh_host_key", "source": source, "subdir": "key", "kind": "file", "seed": "FromImageOnce" },
        { "target": "/etc/machine-id", "source": source, "subdir": "machine-id", "kind": "file" },
        { "target": "/srv", "source": source, "subdir": "srv", "method": "overlay" },
        { "target": "/opt", "source": source, "subdir": "opt" },
    ])
}

fn config(image: &[u8], disk: &LoopDevice, claim: &str, preserve: Value) -> Config {
    let path = disk.directory().join("image");
    std::fs::write(&path, image).unwrap();
    Config::new(path.to_str().unwrap(), &sha256(image), disk)
        .with("/metadata", json!({ "claim": claim }))
        .with("/disk/overwrite", json!("Always"))
        .with("/disk/keep", json!([label(disk)]))
        .with("/preserve", preserve)
        .with("/wait", json!("0s"))
}

/// The same, for the partition of `disk` that `filesystem` is made on and that is kept from then on.
fn on_itself(image: &[u8], disk: &LoopDevice, claim: &str, filesystem: &str) -> Config {
    let source = json!({ "partlabel": label(disk) });
    config(image, disk, claim, paths(&source)).with(
        "/disk/partitions",
        json!([{ "label": label(disk), "size": "Rest", "filesystem": filesystem }]),
    )
}

fn put(disk: &LoopDevice, bytes: &[u8]) {
    tool("blockdev", &["--flushbufs", disk.arg()]);
    let file = std::fs::File::options()
        .write(true)
        .open(disk.backing())
        .unwrap();
    file.write_all_at(bytes, 0).unwrap();
    tool("blockdev", &["--flushbufs", disk.arg()]);
}

/// Changes the ext4 at `at` MiB of the disk.
fn debugfs(disk: &LoopDevice, at: usize, requests: &[&str]) {
    let device = format!("{}?offset={}", disk.backing().display(), at * MIB);
    for request in requests {
        tool("debugfs", &["-w", "-R", request, &device]);
    }
}

/// Runs `script` in the file system at `at` MiB of the disk, mounted, and answers what a power cut right after that
/// leaves of the disk.
fn cut_after(disk: &LoopDevice, at: usize, script: &str) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let options = format!("loop,offset={}", at * MIB);
    let place = place.path().to_str().unwrap();
    tool("mount", &["-o", &options, disk.arg(), place]);
    tool("sh", &["-ec", &format!("cd {place}; {script}")]);
    let left = std::fs::read(disk.path()).unwrap();
    tool("umount", &[place]);
    left
}

/// Is refused with `parts`, and changes nothing.
#[track_caller]
fn refused(config: &Config, disks: &[&LoopDevice], parts: &[&str]) {
    let before: Vec<Vec<u8>> = disks.iter().map(|d| d.bytes()).collect();
    config.install(&[]).failed_with(16, parts);
    for (disk, before) in disks.iter().zip(before) {
        let changed = |(a, b): (u8, &u8)| a != *b;
        let after = disk.bytes().into_iter().zip(&before).position(changed);
        assert_eq!(after, None, "{} has changed: {parts:?}", disk.name());
    }
}

#[test]
fn what_is_kept_is_judged_before_the_first_write() {
    let directory = tempfile::tempdir().unwrap();
    let one = system(directory.path(), "one");
    let disk = LoopDevice::patterned(48);
    on_itself(&one, &disk, "a", "ext4").install(&[]).succeeded();
    debugfs(&disk, AT, &["write /etc/hostname opt/x"]);
    let good = disk.bytes();
    let two = system(directory.path(), "two");
    let again = |claim: &str| on_itself(&two, &disk, claim, "ext4");

    refused(
        &again("b"),
        &[&disk],
        &[
            "/var/lib/kubelet cannot be preserved",
            "belongs to claim a",
            "stays as it is",
        ],
    );
    let changed = |at: usize, key: &str, value: Value| {
        let mut preserve = paths(&json!({ "partlabel": label(&disk) }));
        preserve[at][key] = value;
        preserve
    };
    let other_method = again("a").with("/preserve", changed(4, "method", json!("overlay")));
    refused(
        &other_method,
        &[&disk],
        &["/opt cannot", "opt of loop", "would not show"],
    );
    for (requests, parts) in [
        (
            &["rm kubelet/config", "rmdir kubelet"][..],
            ["/var/lib/kubelet cannot", "is not there any more"],
        ),
        (
            &["rm key", "symlink key nowhere"],
            ["/etc/ssh_host_key cannot", "a symbolic link"],
        ),
        (
            &["rm key", "mkdir key"],
            ["/etc/ssh_host_key cannot", "is a directory, not a file"],
        ),
        (
            &["rm machine-id", "write /etc/hostname machine-id"],
            ["/etc/machine-id cannot", "is no machine id"],
        ),
        (
            &["rmdir srv/upper", "write /etc/hostname srv/upper"],
            ["/srv cannot", "srv/upper"],
        ),
        (
            &[
                "set_super_value state 3",
                "set_inode_field <2> links_count 77",
            ],
            ["has errors", "e2fsck ended with code 4"],
        ),
        (
            &["set_super_value first_ino 1000000"],
            ["cannot be preserved", "stays as it is"],
        ),
    ] {
        put(&disk, &good);
        debugfs(&disk, AT, requests);
        refused(&again("a"), &[&disk], &parts);
    }
    // What is optional stops nothing, and an error that is none either.
    put(&disk, &good);
    debugfs(
        &disk,
        AT,
        &["rm key", "mkdir key", "set_super_value state 3"],
    );
    let optional = again("a").with("/preserve", changed(1, "required", json!(false)));
    let ended = optional.install(&[]).succeeded();
    assert!(
        ended.stderr.contains("/etc/ssh_host_key is not preserved"),
        "{}",
        ended.stderr
    );
    assert!(read(&disk, AT, "/kubelet/config").0.contains("of one\n"));
}

#[test]
fn what_stands_in_a_journal_alone_counts() {
    let directory = tempfile::tempdir().unwrap();
    let one = system(directory.path(), "one");
    let disk = LoopDevice::patterned(48);
    on_itself(&one, &disk, "a", "ext4").install(&[]).succeeded();
    let now_of_b = "cd .ironroot/records; f=$(grep -l '\"a\"' *.json)
        sed 's/\"a\"/\"b\"/' $f >new; mv new $f; sync $f";
    let cut = cut_after(&disk, AT, now_of_b);
    let two = system(directory.path(), "two");
    put(&disk, &cut);
    on_itself(&two, &disk, "a", "ext4")
        .install(&[])
        .failed_with(16, &["belongs to claim b", "stays as it is"]);
    // The system that was there is, and only the kept partition has got what was in its own journal.
    let after = disk.bytes();
    assert!(after[..AT * MIB] == cut[..AT * MIB]);
    put(&disk, &cut);
    on_itself(&two, &disk, "b", "ext4").install(&[]).succeeded();
}

#[test]
fn another_disk_is_looked_at_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let one = system(directory.path(), "one");
    for (filesystem, mib) in [("ext4", 32), ("xfs", 320), ("btrfs", 128)] {
        let disk = LoopDevice::patterned(32);
        let other = LoopDevice::blank(mib);
        tool(&format!("mkfs.{filesystem}"), &["-q", other.arg()]);
        let source = json!({ "disk": { "path": other.arg() } });
        let all = [json!({
            "target": "/var/lib/kubelet", "source": source, "subdir": "kubelet", "claimBound": true
        })];
        let at = |claim: &str| config(&one, &disk, claim, json!(all)).with("/disk/keep", json!([]));
        at("a").install(&[]).succeeded();
        refused(&at("b"), &[&disk, &other], &["belongs to claim a"]);
        at("a").install(&[]).succeeded();
    }
}
