//! What a power cut leaves of the file system that a blank source gets, on loop devices: at any write of mkfs, the next
//! boot begins again, and nothing else is ever taken for such a thing. Needs root.
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

use std::os::unix::fs::FileExt as _;

use ironroot::host::signatures::unfinished::{mark, places};
use ironroot::units::Bytes;
use loop_device::LoopDevice;
use preserving::{Bench, COUNT, entry, ext4, inside};
use recorded_disk::RecordedDisk;
use serde_json::{Value, json};
use session::tool;

const MIB: usize = 1 << 20;

fn at(device: &LoopDevice, filesystem: &str) -> Value {
    json!([entry(
        "/srv",
        device,
        json!({ "format": "IfBlank", "filesystem": filesystem, "subdir": "d" })
    )])
}

fn look() -> String {
    format!(r#"{COUNT}; echo "n=$(count "$root/srv/n")""#)
}

/// Both places of the mark.
fn marked(mut bytes: Vec<u8>, partuuid: &str) -> Vec<u8> {
    let size = Bytes(bytes.len() as u64);
    for place in places(size) {
        let place = usize::try_from(place.0).unwrap();
        bytes[place..place + 4096].copy_from_slice(&mark(size, partuuid));
    }
    bytes
}

/// The bytes of a file system of `mib` MiB.
fn made(program: &str, args: &[&str], mib: usize) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("made");
    let made = std::fs::File::create(&file).unwrap();
    made.set_len((mib * MIB) as u64).unwrap();
    let args: Vec<&str> = args
        .iter()
        .copied()
        .chain([file.to_str().unwrap()])
        .collect();
    tool(program, &args);
    std::fs::read(&file).unwrap()
}

fn has_a_mark(bytes: &[u8]) -> bool {
    let mut all = places(Bytes(bytes.len() as u64)).into_iter();
    all.any(|place| bytes[usize::try_from(place.0).unwrap()..].starts_with(b"ironroot-mkfs-02"))
}

/// The first use of a blank source, cut between and inside all of its flushes: the next boot has a file system.
#[test]
fn the_first_use_can_be_cut_at_any_flush() {
    let bench = Bench::new("");
    let disk = RecordedDisk::new(16, "true", &[]);
    let entries = json!([{ "target": "/srv", "source": { "disk": { "path": disk.arg() } }, "format": "IfBlank",
        "subdir": "d" }]);
    assert_eq!(bench.good(entries, &look()).fact("n"), "1");
    let recording = disk.finish();
    let (mut states, mut begun_again) = (Vec::new(), 0);
    for epoch in 0..=recording.epochs() {
        for part in 0..3 {
            let state = recording.cut(epoch, part);
            // What follows is a matter of the file system itself.
            let is_over = begun_again > 0 && !has_a_mark(&state);
            if states.contains(&state) || (is_over && states.len() > begun_again + 2) {
                continue;
            }
            let device = LoopDevice::holding(&state);
            let seen = bench.good(at(&device, "ext4"), &look());
            assert!(
                seen.fact("n") == "1" || seen.fact("n") == "2",
                "{epoch} {part}"
            );
            assert!(!has_a_mark(&device.bytes()), "{epoch} {part}");
            begun_again += usize::from(has_a_mark(&state));
            states.push(state);
        }
    }
    assert!(begun_again > 2, "{begun_again} of {}", states.len());
}

/// The file systems of which a part looks like the whole.
#[test]
fn an_xfs_in_progress_and_a_half_of_anything_are_made_again() {
    let bench = Bench::new("");
    // Linux, fs/xfs/libxfs/xfs_format.h: `sb_inprogress`; such a one is never mounted.
    let mut xfs = made("mkfs.xfs", &["-q", "-f"], 320);
    xfs[126] = 1;
    let device = LoopDevice::holding(&marked(xfs, ""));
    assert_eq!(bench.good(at(&device, "xfs"), &look()).fact("n"), "1");
    assert_eq!(bench.good(at(&device, "xfs"), &look()).fact("n"), "2");

    // The superblock goes last: without it the rest is there.
    let mut half = made("mke2fs", &["-q", "-F", "-t", "ext4"], 16);
    half[1024..2048].fill(0);
    // The sign of another kind of RAID may have been there by chance; a FAT's first sector is written first.
    let fat = made("mkfs.vfat", &[], 16);
    for state in [half.clone(), fat] {
        let device = LoopDevice::holding(&marked(state, ""));
        assert_eq!(bench.good(at(&device, "ext4"), &look()).fact("n"), "1");
        assert!(!has_a_mark(&device.bytes()));
    }

    // Complete, and whoever made it: what is there stays, and the mark goes.
    let script = "mkdir $m/d; echo 7 >$m/d/n";
    let device = LoopDevice::holding(&made("mkfs.xfs", &["-q", "-f"], 320));
    inside(&device, script);
    let device = LoopDevice::holding(&marked(device.bytes(), ""));
    assert_eq!(bench.good(at(&device, "xfs"), &look()).fact("n"), "8");
    assert!(!has_a_mark(&device.bytes()));
    // Neither is a FAT erased that has a file, or had one.
    for kind in ["12", "16", "32"] {
        let mib = if kind == "32" { 40 } else { 16 };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fat");
        let bytes = made("mkfs.vfat", &["-F", kind, "-n", "LABEL"], mib);
        std::fs::write(&file, &bytes).unwrap();
        let file = file.to_str().unwrap();
        for (program, args) in [
            (
                "mcopy",
                ["-i", file, "/etc/hostname", "::a-long-name"].as_slice(),
            ),
            ("mdel", &["-i", file, "::a-long-name"]),
        ] {
            tool(program, args);
            let state = marked(std::fs::read(file).unwrap(), "");
            let device = LoopDevice::holding(&state);
            let seen = bench.play(at(&device, "ext4"), "");
            assert_eq!(seen.ended.code, Some(16), "{kind}: {}", seen.ended.stderr);
            assert!(device.bytes() == state, "{kind}");
        }
    }

    // Complete, and the mark had not gone: what is there stays.
    let device = ext4(16, &[]);
    inside(&device, "mkdir $m/d; echo 7 >$m/d/n");
    let bytes = marked(device.bytes(), "");
    let device = LoopDevice::holding(&bytes);
    assert_eq!(bench.good(at(&device, "ext4"), &look()).fact("n"), "8");
    assert!(!has_a_mark(&device.bytes()));

    // Not ours, not asked for, or something else beside it: not a byte is written.
    let size = |bytes: &[u8]| Bytes(bytes.len() as u64 + 4096);
    let mut of_another_size = half.clone();
    for place in places(Bytes(half.len() as u64)) {
        let place = usize::try_from(place.0).unwrap();
        of_another_size[place..place + 4096].copy_from_slice(&mark(size(&half), ""));
    }
    let luks = marked(
        {
            let mut bytes = half.clone();
            bytes[..8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
            bytes
        },
        "",
    );
    for (what, state) in [
        ("no mark", half.clone()),
        ("of another size", of_another_size),
        (
            "of a partition",
            marked(half.clone(), "0fc63daf-1111-2222-3333-444444444444"),
        ),
        ("something else beside it", luks),
    ] {
        let device = LoopDevice::holding(&state);
        let seen = bench.play(at(&device, "ext4"), "");
        assert_eq!(seen.ended.code, Some(16), "{what}: {}", seen.ended.stderr);
        assert!(device.bytes() == state, "{what}");
    }
    let device = LoopDevice::holding(&marked(half, ""));
    let unasked = json!([entry("/srv", &device, json!({ "subdir": "d" }))]);
    bench
        .play(unasked, "")
        .failed_with(16, &["unfinished file system"]);
}

/// What could not be looked at is not called damaged, and what fsck gives up on is not called repaired.
#[test]
fn a_check_that_failed_is_no_damage_and_giving_up_is_no_repair() {
    let bench = Bench::new("");
    // A feature that no e2fsck knows (offset 96 of the superblock: `s_feature_incompat`).
    let device = ext4(16, &["-O", "^metadata_csum"]);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(device.path())
        .unwrap();
    let mut feature = [0; 4];
    file.read_exact_at(&mut feature, 1024 + 96).unwrap();
    feature[3] |= 0x40;
    file.write_all_at(&feature, 1024 + 96).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let seen = bench.play(json!([entry("/srv", &device, json!({}))]), "");
    let ended = seen.ended.failed_with(16, &["could not be checked"]);
    assert!(!ended.stderr.contains("is damaged"), "{}", ended.stderr);

    // Both FATs of noise.
    let mut bytes = made("mkfs.vfat", &["-F", "16"], 16);
    let word = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (start, length) = (word(14) * 512, 2 * word(22) * 512);
    for (i, byte) in bytes[start..start + length].iter_mut().enumerate() {
        *byte = u8::try_from((i * 7 + 3) % 256).unwrap();
    }
    let device = LoopDevice::holding(&bytes);
    bench
        .play(json!([entry("/srv", &device, json!({}))]), "")
        .failed_with(16, &["the vfat on", "is damaged"]);
}

/// A log that cannot be replayed keeps nobody from reading what is there.
#[test]
fn a_write_protected_ext4_with_a_log_is_read() {
    let bench = Bench::new("");
    let device = ext4(16, &[]);
    inside(&device, "mkdir $m/d; echo kept >$m/d/f");
    tool(
        "debugfs",
        &["-w", "-R", "feature needs_recovery", device.arg()],
    );
    let device = LoopDevice::attached(&device.bytes(), &["--read-only"]);
    let entries = json!([entry(
        "/srv",
        &device,
        json!({ "subdir": "d", "options": ["ro"] })
    )]);
    let seen = bench.good(entries, r#"echo "f=$(cat "$root/srv/f")""#);
    assert_eq!(seen.fact("f"), "kept");
}
