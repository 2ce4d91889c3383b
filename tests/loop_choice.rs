//! The choice of a disk holds until it is written: what changes between the plan and the lock refuses, on loop
//! devices. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use support::disk_image::{gpt, sha256};
use support::fault_server::{FaultServer, ok, status};
use support::loop_device::{tool, try_tool};
use support::program::{Ended, ironroot, stored};

const IGNITION: &[u8] = br#"{"ignition":{"version":"3.4.0"}}"#;

/// A loop device with a number that nobody gets who asks for a free one, while it is detached for a moment.
struct Numbered(PathBuf);

impl Numbered {
    fn attached(backing: &Path, number: u32) -> Numbered {
        let number = 300 + std::process::id() % 500 * 4 + number;
        let device = Numbered(format!("/dev/loop{number}").into());
        device.attach(backing);
        device
    }

    fn attach(&self, backing: &Path) {
        // Whoever looks at the device for a moment delays its end.
        let attached = (0..50).any(|_| {
            let (good, _) = try_tool("losetup", &[self.arg(), backing.to_str().unwrap()]);
            if !good {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            good
        });
        assert!(attached, "{}", self.arg());
    }

    fn detach(&self) {
        tool("losetup", &["--detach", self.arg()]);
    }

    fn arg(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        let _ = try_tool("losetup", &["--detach", self.arg()]);
        let number = self.arg().trim_start_matches("/dev/loop").to_owned();
        let _ = try_tool("losetup", &["--remove", &number]);
    }
}

fn blank(path: &Path) {
    std::fs::File::create(path)
        .unwrap()
        .set_len(32 << 20)
        .unwrap();
}

/// Installs on `disk`; `meanwhile` happens between the plan and the lock, while a server is not ready yet.
fn install(disk: &str, meanwhile: impl Fn() + Send + Sync + 'static) -> Ended {
    let image = gpt(8);
    let (directory, path) = stored(&image);
    let asked = AtomicBool::new(false);
    let server = FaultServer::start(move |_| {
        if asked.swap(true, Ordering::SeqCst) {
            return ok(IGNITION);
        }
        meanwhile();
        status("503 Service Unavailable", &[])
    });
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": { "url": path, "digest": sha256(&image) },
        "disk": { "select": { "path": disk } },
        "ignition": { "url": server.url("/config.ign") },
    });
    let file = directory.path().join("config.json");
    std::fs::write(&file, config.to_string()).unwrap();
    ironroot(&[
        "install",
        "--retry-for",
        "30s",
        "--config",
        file.to_str().unwrap(),
    ])
}

#[test]
fn another_disk_that_gets_the_name_meanwhile_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (chosen, other) = (directory.path().join("a"), directory.path().join("b"));
    blank(&chosen);
    blank(&other);
    tool("mkfs.ext4", &["-q", other.to_str().unwrap()]);
    let before = std::fs::read(&other).unwrap();
    let disk = std::sync::Arc::new(Numbered::attached(&chosen, 0));
    let swapped = std::sync::Arc::clone(&disk);
    let backing = other.clone();
    let ended = install(disk.arg(), move || {
        swapped.detach();
        swapped.attach(&backing);
    });
    disk.detach();
    ended.failed_with(
        13,
        &[
            "is not as it was when the plan was made",
            "diskseq",
            "nothing was written",
        ],
    );
    assert!(before == std::fs::read(&other).unwrap());
}

#[test]
fn a_file_system_that_is_made_meanwhile_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let chosen = directory.path().join("a");
    blank(&chosen);
    let disk = Numbered::attached(&chosen, 1);
    let written = disk.arg().to_owned();
    let ended = install(disk.arg(), move || {
        tool("mkfs.ext4", &["-q", &written]);
    });
    ended.failed_with(13, &["it has ext4 on loop", "nothing was written"]);
    tool("fsck.ext4", &["-f", "-n", disk.arg()]);
}

#[test]
fn a_second_installation_that_was_planned_before_the_first_ended_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let chosen = directory.path().join("a");
    blank(&chosen);
    let disk = Numbered::attached(&chosen, 2);
    let first = disk.arg().to_owned();
    let ended = install(disk.arg(), move || {
        let (_directory, image) = stored(&gpt(8));
        ironroot(&["install", "--image", &image, "--disk", &first]).succeeded();
    });
    ended.failed_with(13, &["record of an installation has changed"]);
    let text = tool("sgdisk", &["--verify", disk.arg()]);
    assert!(text.contains("No problems found"), "{text}");
}
