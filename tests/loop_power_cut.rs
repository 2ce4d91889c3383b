//! Power cuts while a preserved path is filled from the image, and while what another claim left there is erased. Every write and every flush that reaches the source is
//! recorded; a disk after a power cut is what had been flushed, and any part of what was written after that. Needs
//! root and FUSE.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
#[path = "support/loop_device.rs"]
mod loop_device;
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

use loop_device::LoopDevice;
use recorded_disk::{RecordedDisk, Recording};
use serde_json::{Value, json};
use session::{Lab, Seen, tool};

/// Everything in the place, in one number; what belongs to the file system and to ironroot left out.
const LOOK: &str = r#"
    place=$root/srv; [ -d "$place" ] || place=$root/single
    all() { if [ -d "$1" ]; then (cd "$1"; find . \( -name lost+found -o -name .ironroot \) -prune -o -printf '%p %y %m %s %l\n' -type f -exec sha256sum {} \; | sort); else stat -c '%a %s' "$1"; sha256sum <"$1"; fi; }
    echo "sum=$(all "$place" | sha256sum)"
    echo "files=$(find "$place" -name .ironroot -prune -o -type f -print | wc -l)""#;

fn play(lab: &Lab, image: &str, target: &str, more: &Value, device: &str) -> Seen {
    let mut entry = json!({
        "target": target,
        "source": { "disk": { "path": device } },
        "seed": "FromImageOnce",
    });
    for (key, value) in more.as_object().unwrap() {
        entry[key] = value.clone();
    }
    let mut config = session::config(image);
    config["wait"] = json!("0s");
    config["preserve"] = json!([entry]);
    let seen = lab.play(&config, &format!("[ $code = 0 ] || exit $code\n{LOOK}"));
    // The last mount of a namespace goes a moment after its last process.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    seen
}

/// Five cuts, evenly over the recording, each in the middle of what is between two flushes.
fn cuts(recording: &Recording) -> Vec<usize> {
    let epochs = recording.epochs();
    assert!(epochs >= 5, "{epochs} flushes are too few to cut between");
    (0..5).map(|n| n * (epochs - 1) / 4).collect()
}

#[test]
fn after_a_power_cut_nothing_half_filled_is_shown() {
    let lab = Lab::new();
    for (target, more) in [
        ("/srv", json!({ "subdir": "a/place" })),
        ("/srv", json!({})),
        ("/single", json!({ "subdir": "single", "kind": "file" })),
    ] {
        let root = lab.system("root");
        let script = if target == "/srv" {
            "mkdir -p srv/sub/deep; for i in $(seq 80); do echo $i >srv/sub/$i; done; ln -s sub srv/link; chmod 0710 srv/sub
            head -c 1500000 /dev/urandom >srv/sub/deep/big; ln srv/sub/deep/big srv/same"
        } else {
            "head -c 700000 /dev/urandom >single; chmod 0640 single"
        };
        tool("sh", &["-ec", &format!("cd {}; {script}", root.display())]);
        let image = lab.squashfs(&root, "image.squashfs");
        let image = image.to_str().unwrap();

        let disk = RecordedDisk::new(24, "mke2fs", &["-q", "-F", "-t", "ext4"]);
        let whole = play(&lab, image, target, &more, disk.arg());
        let files = if target == "/srv" { "82" } else { "1" };
        assert_eq!(whole.fact("files"), files);
        let recording = disk.finish();
        let filled = format!("{target}: filled from the image, ");
        let mut begun = 0;
        for (n, epoch) in cuts(&recording).into_iter().enumerate() {
            // Half of what was written since the last flush; none of it, or all but the last.
            for part in [1, n % 2 * 2] {
                let device = LoopDevice::holding(&recording.cut(epoch, part));
                let after = play(&lab, image, target, &more, device.arg());
                let what = format!("{target} {more}: after flush {epoch}, part {part}");
                assert_eq!(after.fact("files"), files, "{what}");
                assert_eq!(after.fact("sum"), whole.fact("sum"), "{what}");
                begun += usize::from(after.ended.stderr.contains(&filled));
            }
        }
        // The first cuts come before it is filled, and the last one after.
        assert!((1..10).contains(&begun), "{begun}");
    }
}

/// How many cuts of an erasing there are, evenly over its flushes.
const STEPS: usize = 8;

/// Erasing for another claim, cut between and inside all of its flushes: a third claim, which may erase nothing, is
/// refused or finds an empty place, and so does whoever had it; once the first file is gone, none is ever seen again.
#[test]
fn matrix_after_a_power_cut_nothing_half_erased_is_shown() {
    let lab = Lab::new();
    let root = lab.system("root");
    tool("mkdir", &[root.join("srv").to_str().unwrap()]);
    let image = lab.squashfs(&root, "image.squashfs");
    for subdir in ["a/place", ""] {
        let session = |claim: &str, device: &str, other: &str, look: &str| {
            let source = json!({ "disk": { "path": device } });
            let mut entry = json!({ "target": "/srv", "source": source, "claimBound": true, "otherClaim": other });
            if !subdir.is_empty() {
                entry["subdir"] = json!(subdir);
            }
            let mut config = session::config(image.to_str().unwrap());
            config["metadata"] = json!({ "claim": claim });
            config["wait"] = json!("0s");
            config["preserve"] = json!([entry]);
            let look = format!("[ $code = 0 ] || exit $code\n{look}");
            let seen = lab.play(&config, &look);
            std::thread::sleep(std::time::Duration::from_millis(200));
            seen
        };
        let owned = LoopDevice::blank(24);
        tool("mke2fs", &["-q", "-F", "-t", "ext4", owned.arg()]);
        // Files with blocks of their own: some of what is removed is flushed before the rest.
        let owns = r#"cd "$root/srv"; for d in $(seq 30); do mkdir d$d; for f in 1 2 3; do head -c 30000 /dev/urandom >d$d/$f; done; done"#;
        let seen = session("a", owned.arg(), "Refuse", owns);
        assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        let bytes = owned.bytes();
        let disk = RecordedDisk::holding(&bytes);
        let count =
            r#"echo "files=$(find "$root/srv" -name .ironroot -prune -o -type f -print | wc -l)""#;
        let seen = session("b", disk.arg(), "Erase", count);
        assert_eq!(seen.fact("files"), "0", "{}", seen.ended.stderr);
        let recording = disk.finish();
        let (mut whole, mut cut, mut over) = (0, 0, 0);
        let epochs = recording.epochs();
        for n in 0..=STEPS {
            let epoch = n * epochs / STEPS;
            let state = recording.cut(epoch, n % 3);
            let what = format!(
                "{subdir:?}: after flush {epoch} of {epochs}, part {}",
                n % 3
            );
            println!("{what}");
            // Who had it: all of it, or a place of which nobody else has taken hold, with nothing in it.
            let device = LoopDevice::holding(&state);
            let old = session("a", device.arg(), "Refuse", count);
            if old.ended.code == Some(0) {
                let files = old.fact("files");
                assert!(["0", "90"].contains(&files), "{what}: {files}");
                whole += usize::from(files == "90");
                cut += usize::from(files == "0");
            } else {
                old.failed_with(16, &["belongs to claim b"]);
                over += 1;
            }
            // Who never had it.
            let device = LoopDevice::holding(&state);
            let third = session("c", device.arg(), "Refuse", count);
            if third.ended.code == Some(0) {
                assert_eq!(third.fact("files"), "0", "{what}");
            } else {
                third.failed_with(16, &["belongs to claim "]);
            }
            // And the one for whom it is erased, at last.
            if third.ended.code == Some(16) {
                let new = session("b", device.arg(), "Erase", count);
                assert_eq!(new.ended.code, Some(0), "{what}: {}", new.ended.stderr);
                assert_eq!(new.fact("files"), "0", "{what}");
            }
        }
        assert!(whole > 0 && cut > 0 && over > 0, "{whole} {cut} {over}");
    }
}
