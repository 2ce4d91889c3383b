//! `ironroot initrd` ended by its PID 1 at any moment: nothing half-made is left. Needs root.
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
#[path = "support/session.rs"]
mod session;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use session::Lab;

/// So many moments of a run are tried.
const MOMENTS: u32 = 60;

/// A run that is ended after some time, if at all: its code, and what a script saw then.
fn ended_after(lab: &Lab, config: &Path, time: Option<Duration>) -> (i32, String, String) {
    let sysroot = lab.path("sysroot");
    std::fs::create_dir_all(&sysroot).unwrap();
    // The kernel's table of mounts knows no links.
    let way = lab.path("way");
    let _ = std::os::unix::fs::symlink(&sysroot, &way);
    let script = r#"set -u
        mount --make-rprivate / && mount -t tmpfs -o mode=0755 run /run
        mkdir -p /run/ironroot/before && mount -t tmpfs before /run/ironroot/before
        "$1" initrd --sysroot "$5" --config "$3" & ironroot=$!
        [ -z "$4" ] || { sleep "$4"; kill -TERM $ironroot; }
        wait $ironroot; code=$?
        echo "entries=$(ls -A "$2" | wc -l)"
        sed -n "s!^[0-9 :]* [^ ]* \($2[^ ]*\|/run/ironroot[^ ]*\) .*!\1!p" /proc/self/mountinfo
        exit $code"#;
    let out = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .args([&sysroot, config])
        .arg(time.map_or(String::new(), |t| format!("{:.4}", t.as_secs_f64())))
        .arg(&way)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        out.status.code().unwrap(),
        String::from_utf8(out.stdout).unwrap(),
        String::from_utf8(out.stderr).unwrap(),
    )
}

/// Loop devices on a file that only an ended run can have had.
fn loop_devices() -> usize {
    let found = Command::new("sh")
        .args(["-c", "cat /sys/block/loop*/loop/backing_file 2>/dev/null"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    text.lines().filter(|l| l.contains("root.img")).count()
}

#[test]
fn whenever_it_is_ended_no_mount_and_no_loop_device_is_left() {
    let lab = Lab::new();
    let image = lab.squashfs(&lab.system("root"), "a.squashfs");
    let config = lab.path("config.json");
    let value = session::config(image.to_str().unwrap());
    std::fs::write(&config, value.to_string()).unwrap();
    let start = Instant::now();
    let (code, _, said) = ended_after(&lab, &config, None);
    assert_eq!(code, 0, "{said}");
    let whole = start.elapsed();
    let mut codes = BTreeMap::<i32, usize>::new();
    for part in 0..MOMENTS {
        let moment = whole * part / MOMENTS;
        let (code, seen, said) = ended_after(&lab, &config, Some(moment));
        *codes.entry(code).or_default() += 1;
        match code {
            0 => continue,
            17 => assert!(said.contains("ended by SIGTERM while at work"), "{said}"),
            // Before it listens, and so before it has done anything.
            143 => {}
            other => panic!("code {other}: {said}"),
        }
        // What was there before is not this run's.
        let alone = "entries=0\n/run/ironroot/before\n";
        assert_eq!(seen, alone, "after {moment:?}: {said}");
    }
    println!("{codes:?}");
    assert!(codes.get(&17).is_some_and(|n| *n >= 3), "{codes:?}");
    // The kernel takes a loop device away when the last who had it is gone.
    let mut left = loop_devices();
    for _ in 0..50 {
        if left == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
        left = loop_devices();
    }
    assert_eq!(left, 0);
}

#[test]
fn the_root_that_is_in_use_is_no_sysroot() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/", &link).unwrap();
    for sysroot in [Path::new("/"), Path::new("//proc/.."), &link] {
        let out = Command::new("unshare")
            .args(["--mount", "sh", "-c"])
            .arg("mount -t tmpfs run /run && exec \"$@\"")
            .args(["sh", env!("CARGO_BIN_EXE_ironroot"), "initrd", "--sysroot"])
            .arg(sysroot)
            .args(["--config", "/no/config.json"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains("it is the root that is in use"), "{said}");
    }
}

/// Where nobody can tell the run's mounts from those that were there before, none is taken away.
#[test]
fn what_was_mounted_before_stays_where_the_table_of_mounts_cannot_be_read() {
    let lab = Lab::new();
    let sysroot = lab.path("sysroot");
    std::fs::create_dir_all(&sysroot).unwrap();
    // A server that never answers.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/config.json", server.local_addr().unwrap());
    let script = r#"set -u
        mount --make-rprivate / && mount -t tmpfs -o mode=0755 run /run
        mkdir -p /run/ironroot/before && mount -t tmpfs before /run/ironroot/before
        : >/run/ironroot/before/file
        mount -t tmpfs none /proc
        "$1" initrd --sysroot "$2" --config "$3" & ironroot=$!
        n=0
        while ! grep -qs "cannot be read" /run/ironroot/events.jsonl && [ $n -lt 300 ]; do sleep 0.1; n=$((n + 1)); done
        # Whoever cleans up can read it again.
        umount /proc
        kill -TERM $ironroot
        wait $ironroot; echo "code=$?"
        [ -e /run/ironroot/before/file ] && echo stays"#;
    let out = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .arg(&sysroot)
        .arg(&url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let seen = String::from_utf8(out.stdout).unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(seen, "code=17\nstays\n", "{said}");
    assert!(said.contains("mountinfo cannot be read"), "{said}");
    assert!(said.contains("ended by SIGTERM while at work"), "{said}");
}
