//! Power cuts: every write and flush of three installations is logged by QEMU, and replayed on this machine up to
//! every flush, with what was not flushed there, lost, or half there. Each time firmware finds nothing to boot, or
//! the old system, or all of the new one; and real firmware says the same of two of them.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/script_machine.rs"]
mod script_machine;
#[path = "support/small_system.rs"]
mod small_system;
#[path = "support/installing.rs"]
mod support;
#[path = "support/write_log.rs"]
mod write_log;

use std::fs;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use ironroot::host::tables::{self, Table};
use ironroot::host::{Disk, RecordFound};
use ironroot::image::record;
use ironroot::units::{Bytes, SectorSize};
use script_machine::{Initrd, blank, part, run};
use serde_json::{Value, json};
use support::disk_image::{self, MIB, RECORD, sha256};
use support::verdict::same;
use write_log::WriteLog;

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "vfat",
    "nls_cp437",
    "nls_ascii",
];

/// The kept partition, in MiB.
const KEPT: std::ops::Range<usize> = 120..144;

const SCRIPT: &str = r#"
for n in raw kept tree; do
    echo "== $n"
    /ironroot install --config /$n.json 2>&1
    echo "exit $?"
done
"#;

fn lab(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/lab")
        .join(name)
}

fn config(serial: &str, image: &Value, disk: &Value) -> Vec<u8> {
    let mut config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": image,
        "disk": disk,
    });
    config["disk"]["select"] = json!({ "serial": serial });
    serde_json::to_vec(&config).unwrap()
}

/// A disk with a system, and a partition beside it that is kept.
fn old_disk(folder: &Path) -> PathBuf {
    let path = folder.join("kept.raw");
    let mut bytes = disk_image::gpt(8);
    bytes.resize(160 * MIB, 0);
    for (i, byte) in bytes[KEPT.start * MIB..KEPT.end * MIB]
        .iter_mut()
        .enumerate()
    {
        *byte = u8::try_from((i / 5 + i / 4096 * 11) % 251).unwrap();
    }
    fs::write(&path, bytes).unwrap();
    let file = path.to_str().unwrap();
    let place = format!("--new=5:{}:{}", KEPT.start * 2048, KEPT.end * 2048 - 1);
    run("sgdisk", &["--move-second-header", file]);
    run("sgdisk", &[&place, "--change-name=5:data", file]);
    path
}

/// A system with what systemd-boot needs, as far as a table of contents goes.
fn tree(folder: &Path) -> Vec<u8> {
    let script = "mkdir -p tree && cd tree && mkdir -p boot etc usr/lib/systemd/boot/efi usr/lib/modules/6.1.0-1-test sbin
        head -c 5000001 /dev/urandom >boot/vmlinuz-6.1.0-1-test
        head -c 3000000 /dev/urandom >boot/initrd.img-6.1.0-1-test
        echo loader >usr/lib/systemd/boot/efi/systemd-bootx64.efi
        printf 'ID=debian\\n' >etc/os-release
        tar --numeric-owner -czf ../tree.tar.gz .";
    let out = Command::new("sh")
        .args(["-ec", script])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    fs::read(folder.join("tree.tar.gz")).unwrap()
}

/// One installation: the disk before and after, and what was done to it.
struct Run {
    before: Vec<u8>,
    end: Vec<u8>,
    log: WriteLog,
}

/// What a disk is after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Old,
    Nothing,
    Complete,
}

impl Run {
    /// What firmware finds on `disk`. LBA 0 is zero: no boot code, and no protective MBR, without which neither EDK2
    /// (PartitionDxe) nor the kernel looks for a GPT.
    #[track_caller]
    fn state(&self, disk: &[u8]) -> State {
        let lba0 = &disk[..512];
        if lba0.iter().all(|b| *b == 0) {
            return State::Nothing;
        }
        let (of, state) = if lba0 == &self.before[..512] {
            (&self.before, State::Old)
        } else {
            (&self.end, State::Complete)
        };
        same(&disk[..RECORD.start], &of[..RECORD.start], "head");
        same(&disk[RECORD.end..], &of[RECORD.end..], "disk");
        state
    }

    /// The number of flushes after which the disk is complete, which is not so with one less.
    fn complete_after(&self) -> usize {
        let is_complete =
            |n: usize| self.state(&self.log.after(&self.before, n)) == State::Complete;
        let all = self.log.flushes();
        assert!(is_complete(all));
        let last = (0..all).rev().find(|n| !is_complete(*n)).unwrap();
        assert_eq!(
            self.state(&self.log.after(&self.before, last)),
            State::Nothing
        );
        last + 1
    }

    /// What ironroot takes the disk for, at the next network boot of this machine.
    fn record(disk: &[u8], serial: &str) -> RecordFound {
        let size = Bytes(disk.len() as u64);
        let table = tables::read(&mut Cursor::new(disk), size, SectorSize::S512);
        let found = record::decode(&disk[RECORD]);
        let found = found.map(|r| r.map(|r| r.committed_by(&disk[..512])));
        let facts = Disk {
            serial: Some(serial.to_owned()),
            sector: Some(SectorSize::S512),
            ..Disk::default()
        };
        record::judge(found, &table, &facts)
    }

    /// Judges every cut, with `more` said about each; whether the states come in order, and how many there are.
    fn sweep(&self, serial: &str, mut more: impl FnMut(&[u8])) {
        let mut last = State::Old;
        let mut seen = Vec::new();
        let states = self.log.cuts(&self.before, |disk, flushes| {
            let state = self.state(disk);
            more(disk);
            match (state, Run::record(disk, serial)) {
                (State::Old | State::Nothing, RecordFound::None | RecordFound::Mark(_))
                | (State::Complete, RecordFound::Installed(_)) => {}
                (state, record) => panic!("after {flushes} flushes: {state:?}, {record:?}"),
            }
            last = last.max(state);
            seen.push(state);
        });
        println!("{serial}: {} flushes, {states} states", self.log.flushes());
        assert!(states >= 10 && self.log.flushes() >= 6);
        assert!(seen.contains(&State::Nothing) && seen.last() == Some(&State::Complete));
        // All is there once everything is flushed, and the log is the disk.
        same(
            &self.log.after(&self.before, usize::MAX),
            &self.end,
            "the replayed log",
        );
    }
}

/// Installs all three, and reads what was logged.
fn install(folder: &Path) -> [Run; 3] {
    let initrd = Initrd::new(folder, MODULES, &["mke2fs", "e2fsck"]);
    let sums = fs::read_to_string(lab("tiny.raw.sha256")).unwrap();
    let digest = sums.split_whitespace().next().unwrap();
    let tiny = json!({ "url": "/dev/vda", "digest": format!("sha256:{digest}") });
    let tar = tree(folder);
    initrd.file("tree.tar.gz", &tar);
    let archive = json!({ "url": "/tree.tar.gz", "digest": sha256(&tar), "kind": "Tree" });
    let keep = json!({ "overwrite": "Always", "keep": ["data"] });
    initrd.file("raw.json", &config("raw", &tiny, &json!({})));
    initrd.file("kept.json", &config("kept", &tiny, &keep));
    let loader = json!({ "bootloader": "SystemdBoot" });
    initrd.file("tree.json", &config("tree", &archive, &loader));
    let source = lab("tiny.raw");
    let mut options = vec![format!(
        "--disk={},serial=source,readonly",
        source.display()
    )];
    let disks = [
        ("raw", blank(folder, "raw.raw", 128)),
        ("kept", old_disk(folder)),
        ("tree", blank(folder, "tree.raw", 256)),
    ];
    let before = disks.each_ref().map(|(_, path)| fs::read(path).unwrap());
    for (serial, path) in &disks {
        let log = path.with_extension("log");
        options.push(format!(
            "--disk={},serial={serial},log={}",
            path.display(),
            log.display()
        ));
    }
    let console = initrd.boot(SCRIPT, &options);
    for (serial, _) in &disks {
        assert!(part(&console, serial).contains("exit 0"), "{console}");
    }
    let mut before = before.into_iter();
    disks.map(|(_, path)| Run {
        before: before.next().unwrap(),
        end: fs::read(&path).unwrap(),
        log: WriteLog::read(&path.with_extension("log")),
    })
}

/// Starts a disk by UEFI or BIOS firmware, until one of these is on the console.
fn firmware(folder: &Path, disk: &[u8], kind: &str, until: &str) -> String {
    let path = folder.join("cut.raw");
    fs::write(&path, disk).unwrap();
    let log = folder.join("firmware.log");
    let out = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu/run"))
        .arg(format!("--disk={}", path.display()))
        .arg(format!("--serial-log={}", log.display()))
        .arg(format!("--until={until}"))
        .arg(format!("--firmware={kind}"))
        .args(["--net=none", "--memory=512", "--timeout=120", "--quiet"])
        .output()
        .unwrap();
    let console = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    assert!(out.status.success(), "{out:?}\n{console}");
    console
}

/// What the firmware of either kind says of a disk with nothing to boot, and what the system says that it boots.
const FIRMWARE: [(&str, &str, &str); 2] = [
    (
        "uefi",
        "No bootable option|Shell>",
        "IRONROOT-TINY-BOOTED.*firmware=uefi payload=ok",
    ),
    (
        "bios",
        "No bootable device",
        "IRONROOT-TINY-BOOTED.*firmware=bios payload=ok",
    ),
];

#[test]
fn a_power_cut_at_any_flush_leaves_nothing_that_boots_or_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [raw, kept, tree] = install(folder);
    raw.sweep("raw", |_| {});
    tree.sweep("tree", |_| {});
    let content = &kept.before[KEPT.start * MIB..KEPT.end * MIB];
    let listed = |disk: &[u8]| {
        let size = Bytes(disk.len() as u64);
        let table = tables::read(&mut Cursor::new(disk), size, SectorSize::S512);
        let all = match table {
            Table::Gpt(gpt) => gpt.partitions,
            other => panic!("no table: {other:?}"),
        };
        all.into_iter().find(|p| p.number == 5)
    };
    let entry = listed(&kept.before);
    assert!(entry.is_some());
    kept.sweep("kept", |disk| {
        same(&disk[KEPT.start * MIB..KEPT.end * MIB], content, "kept");
        assert_eq!(listed(disk), entry);
    });

    // Real firmware, before LBA 0 is on the medium and with it.
    let complete = raw.complete_after();
    let cut = raw.log.after(&raw.before, complete - 1);
    let whole = raw.log.after(&raw.before, complete);
    for (kind, nothing, booted) in FIRMWARE {
        let console = firmware(folder, &cut, kind, nothing);
        assert!(!console.contains("IRONROOT"), "{console}");
        firmware(folder, &whole, kind, booted);
    }

    // The judge is no easy one: that a single flush, the one before LBA 0, was forgotten, would be noticed.
    for run in [raw, kept, tree] {
        let forgotten = run.complete_after() - 2;
        let Run { before, end, log } = run;
        let log = log.without_flush(forgotten);
        let run = Run { before, end, log };
        let judged = catch_unwind(AssertUnwindSafe(|| run.sweep("forgetful", |_| {})));
        assert!(judged.is_err());
    }
}

/// Ten cuts from the first flush to the last, under real firmware.
#[test]
fn matrix_firmware_and_ten_power_cuts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [raw, kept, _] = install(folder);
    for run in [raw, kept] {
        let flushes = run.log.flushes();
        for n in 0..=4 {
            // Most of the flushes are at both ends.
            for point in [n, flushes - n] {
                let cut = run.log.after(&run.before, point);
                let state = run.state(&cut);
                println!("{point} of {flushes}: {state:?}");
                for (kind, nothing, booted) in FIRMWARE {
                    match state {
                        State::Complete => {
                            firmware(folder, &cut, kind, booted);
                        }
                        // Its boot code is a pattern, which a BIOS would run.
                        State::Old if kind == "bios" => {}
                        // The old one has a table, and nothing else that firmware could start.
                        State::Nothing | State::Old => {
                            let console = firmware(folder, &cut, kind, nothing);
                            assert!(!console.contains("IRONROOT"), "{console}");
                        }
                    }
                }
            }
        }
    }
}
