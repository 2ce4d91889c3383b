//! A partition that is kept over three reinstallations by PID 1, each of which grows the root up to it, while it holds
//! a whole system of somebody else; then the disk by its firmware.
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

use std::fs::File;
use std::path::Path;
use std::process::Command;

use machine::{Boot, Direct, lab, project};
use serde_json::{Value, json};

fn tool(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

fn config() -> String {
    let sums = std::fs::read_to_string(lab("tiny.raw.sha256")).unwrap();
    let digest = sums.split_whitespace().next().unwrap();
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "bootPolicy": "NetworkBootAlways",
        "image": { "url": "/dev/vdb", "digest": format!("sha256:{digest}") },
        "disk": {
            "select": { "serial": "direct-disk" },
            "keep": ["data"],
            "grow": "tiny-root",
            // The type of a root: only that it is kept tells it from the image's.
            "partitions": [{
                "label": "data", "size": "64MiB", "filesystem": "ext4",
                "type": "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
            }],
        },
        "then": "Kexec",
    });
    config.to_string().replace('"', "%22").replace(' ', "%20")
}

/// The partitions by label, as sfdisk has them.
fn partition(disk: &Path, label: &str) -> Value {
    let text = tool("sfdisk", &["--json", disk.to_str().unwrap()]);
    let table: Value = serde_json::from_str(&text).unwrap();
    let all = table["partitiontable"]["partitions"].as_array().unwrap();
    let mut found = all.iter().filter(|p| p["name"] == label).cloned();
    let partition = found.next().unwrap_or_else(|| panic!("no {label}: {text}"));
    assert_eq!(found.next(), None, "{text}");
    partition
}

/// Does `work` with the file system of a partition mounted.
fn mounted(disk: &Path, partition: &Value, work: impl FnOnce(&Path)) {
    let place = tempfile::tempdir().unwrap();
    let sector = |key: &str| partition[key].as_u64().unwrap() * 512;
    let options = format!(
        "loop,offset={},sizelimit={}",
        sector("start"),
        sector("size")
    );
    let (from, to) = (disk.to_str().unwrap(), place.path().to_str().unwrap());
    tool("mount", &["-o", &options, from, to]);
    work(place.path());
    tool("umount", &[to]);
}

#[test]
fn matrix_a_kept_partition_outlives_three_reinstallations_under_pid_1() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.raw");
    File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    // The small system takes the first disk with its name, and writes to it.
    let source = format!("--disk={},bus=virtio,readonly", lab("tiny.raw").display());
    let words = format!(
        "ip=off ironroot.on-failure=poweroff ironroot.config=data:,{}",
        config()
    );
    let mut first = None;
    for round in 0..4 {
        println!("round {round}");
        let console = Direct::new(&disk, &words)
            .run(&[
                &source,
                "--net=none",
                "--until=ironroot: installed: ",
                "--until=loaded .*BOOTX64.EFI",
                "--until=IRONROOT-TINY-BOOTED root=/dev/vda.*payload=ok",
                "--wait-end",
            ])
            .good();
        let kept = round > 0;
        let said = "is kept as it is, not made again";
        assert_eq!(console.contains(said), kept, "{console}");
        let text = tool("sgdisk", &["-v", disk.to_str().unwrap()]);
        assert!(text.contains("No problems found"), "{text}");
        let data = partition(&disk, "data");
        assert_eq!(&data, first.get_or_insert_with(|| data.clone()));
        let root = partition(&disk, "tiny-root");
        let place = |p: &Value, key: &str| p[key].as_u64().unwrap();
        assert_eq!(
            place(&root, "start") + place(&root, "size"),
            place(&data, "start"),
            "the root has grown up to it"
        );
        mounted(&disk, &root, |at| {
            let size = tool("findmnt", &["-nbo", "SIZE", at.to_str().unwrap()]);
            assert!(size.trim().parse::<u64>().unwrap() > 120 << 20, "{size}");
        });
        mounted(&disk, &data, |at| {
            let rounds = std::fs::read_to_string(at.join("rounds")).unwrap_or_default();
            assert_eq!(rounds, "x".repeat(round));
            std::fs::write(at.join("rounds"), "x".repeat(round + 1)).unwrap();
            // A system that would be found, and whose kernel would not start.
            for (path, text) in [
                ("etc/os-release", "ID=other\n"),
                ("usr/lib/os-release", "ID=other\n"),
                ("sbin/init", "#!/bin/sh\n"),
                ("boot/loader/entries/a.conf", "linux /no-kernel\n"),
                ("no-kernel", "none"),
            ] {
                std::fs::create_dir_all(at.join(path).parent().unwrap()).unwrap();
                std::fs::write(at.join(path), text).unwrap();
            }
        });
    }
    // By its own firmware.
    let log = folder.path().join("firmware.log");
    let mut command = Command::new(project().join("qemu/run"));
    command
        .arg(format!("--disk={}", disk.display()))
        .arg(format!("--serial-log={}", log.display()))
        .args(["--firmware=uefi", "--net=none", "--memory=512", "--quiet"])
        .arg("--until=IRONROOT-TINY-BOOTED.*firmware=uefi payload=ok");
    Boot::of(command, &log).good();
}
