//! Power cuts while a session makes two partitions for what it preserves. Every write and every flush that reaches the
//! disk is recorded; a disk after a power cut is what had been flushed, and any part of what was written after that.
//! The next session goes on, or says what to do and writes nothing. Needs root and FUSE.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
#[path = "support/loop_device.rs"]
mod loop_device;
#[path = "support/preserving.rs"]
mod preserving;
#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;
#[allow(dead_code)]
#[path = "support/recorded_disk.rs"]
mod recorded_disk;
#[allow(dead_code)]
#[path = "support/session.rs"]
mod session;
#[path = "support/write_log.rs"]
mod write_log;

use std::io::Cursor;

use ironroot::host::tables::{self, Table};
use ironroot::units::{Bytes, SectorSize};
use loop_device::LoopDevice;
use preserving::{Bench, COUNT};
use recorded_disk::{RecordedDisk, Recording};
use serde_json::{Value, json};
use session::Seen;

const MIB: usize = 1 << 20;

fn entries(disk: &str, names: &[String]) -> Value {
    let entry = |(n, name): (usize, &String)| {
        json!({
            "target": format!("/srv/{n}"),
            "source": { "partlabel": name, "disk": { "path": disk } },
            "format": "IfBlank",
            "create": format!("{}MiB", 12 + n),
        })
    };
    names.iter().enumerate().map(entry).collect()
}

fn play(bench: &Bench, disk: &str, names: &[String]) -> Seen {
    let look = format!(r#"{COUNT}; echo "n=$(count "$root/srv/0/n")$(count "$root/srv/1/n")""#);
    bench.play(entries(disk, names), &look)
}

fn table(disk: &[u8]) -> Table {
    let size = Bytes(disk.len() as u64);
    tables::read(&mut Cursor::new(disk), size, SectorSize::S512)
}

/// A whole table of which all of `names` are listed.
fn is_complete(disk: &[u8], names: &[String]) -> bool {
    let table = table(disk);
    let has = |name: &String| {
        let mut all = table.partitions().iter();
        all.any(|p| p.name.as_ref() == Some(name))
    };
    table.why_not_whole(SectorSize::S512).is_none() && names.iter().all(has)
}

/// What a kernel that reads GPTs would know of the disk. This machine's may read none.
fn tell_kernel(device: &LoopDevice, bytes: &[u8]) {
    let table = table(bytes);
    if table.why_not_whole(SectorSize::S512).is_some() {
        return;
    }
    for partition in table.partitions() {
        let [number, start, size] = [
            u64::from(partition.number),
            partition.start.0 / 512,
            partition.size.0 / 512,
        ]
        .map(|n| n.to_string());
        let _ = loop_device::try_tool("addpart", &[device.arg(), &number, &start, &size]);
    }
}

/// The number of epochs in which the table changes.
fn table_epochs(recording: &Recording, names: &[String]) -> usize {
    (0..recording.epochs())
        .find(|epoch| is_complete(&recording.cut(*epoch, 0), names))
        .expect("a complete table")
}

/// Plays after each cut; how often the next session went on, and how often it was refused.
fn sweep(bench: &Bench, recording: &Recording, names: &[String], kept: &[u8]) -> (usize, usize) {
    let (mut on, mut refused) = (0, 0);
    let epochs = table_epochs(recording, names);
    assert!(epochs >= 3, "{epochs}");
    let mut last = Vec::new();
    for (epoch, part) in (0..=epochs).flat_map(|epoch| [0, 1, 2].map(|part| (epoch, part))) {
        let cut = recording.cut(epoch, part);
        if cut == last {
            continue;
        }
        // A file system that is half made is another matter.
        if epoch == epochs && part > 0 {
            break;
        }
        let device = LoopDevice::holding(&cut);
        tell_kernel(&device, &cut);
        let seen = play(bench, device.arg(), names);
        let what = format!("after flush {epoch}, part {part}: {}", seen.ended.stderr);
        let after = device.bytes();
        assert!(after[MIB..][..kept.len()] == *kept, "{what}");
        if seen.ended.code == Some(0) {
            assert_eq!(seen.fact("n"), "11", "{what}");
            assert!(is_complete(&after, names), "{what}");
            let verified = loop_device::tool("sgdisk", &["--verify", device.arg()]);
            assert!(verified.contains("No problems found"), "{what}: {verified}");
            on += 1;
        } else {
            seen.failed_with(16, &["GPT is damaged", "sgdisk --verify"]);
            assert!(after == cut, "{what}");
            refused += 1;
        }
        last = cut;
    }
    (on, refused)
}

#[test]
fn two_partitions_and_a_power_cut_at_any_point() {
    let bench = Bench::new("mkdir -p srv/0 srv/1");
    let names = ["a", "b"].map(|n| format!("cut-{n}-{}", std::process::id()));

    // On a blank disk every cut goes on.
    let disk = RecordedDisk::new(40, "true", &[]);
    let seen = play(&bench, disk.arg(), &names);
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    let (on, refused) = sweep(&bench, &disk.finish(), &names, &[]);
    assert!(on >= 8 && refused == 0, "{on} {refused}");

    // In a table that is there, what one write of a copy leaves half is damage that a person looks at.
    let disk = RecordedDisk::new(48, "sgdisk", &["-n1:2048:+4M", "-c1:first"]);
    let seen = play(&bench, disk.arg(), &names);
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    let recording = disk.finish();
    let kept = recording.cut(0, 0)[MIB..5 * MIB].to_vec();
    let (on, refused) = sweep(&bench, &recording, &names, &kept);
    println!("{on} went on, {refused} were refused");
    assert!(on >= 4, "{on} {refused}");
}
