//! Power cuts while a preserved path is filled from the image. Every write and every flush that reaches the source is
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
