//! `ironroot.shell=on-failure` in a virtual machine: PID 1 starts a shell that somebody can work with.
//!
//! Needs the artifacts of `scripts/lab` and a static busybox (`scripts/test` sees to both).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/machine.rs"]
mod machine;

use std::path::{Path, PathBuf};
use std::process::Command;

use machine::{Direct, Typed, initramfs, lab};

/// The initramfs with a busybox and `/bin/sh` behind it, where the kernel looks for another archive.
fn with_a_shell(folder: &Path) -> PathBuf {
    let to = folder.join("shell.cpio");
    let script = r#"cp "$1" "$2"; truncate -s %4 "$2"; mkdir -p tree/bin; cp "$(command -v busybox)" tree/bin/busybox
        ln -s busybox tree/bin/sh; cd tree; find bin | cpio -o -H newc --quiet -R 0:0 >>"$2""#;
    let out = Command::new("sh")
        .current_dir(folder)
        .args(["-euc", script, "sh"])
        .arg(initramfs())
        .arg(&to)
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    to
}

#[test]
fn matrix_a_shell_after_a_failure_has_a_terminal_and_is_ended_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.raw");
    std::fs::write(&disk, vec![0x5a; 1 << 20]).unwrap();
    // Without the shell the machine would be off after ten seconds.
    let words = "ironroot.shell=on-failure ironroot.on-failure=poweroff ip=off \
        ironroot.config=file:///nowhere.json ironroot.timeout=1s";
    let machine = Direct::of(
        &lab("kernel/vmlinuz"),
        &with_a_shell(folder.path()),
        &disk,
        words,
    );
    let typed = [
        Typed {
            after: "/bin/sh on the console",
            text: "B=/bin/busybox; $B echo BEGIN-$((40 + 2))\n",
        },
        // What Ctrl-C ends: it comes from the terminal to the group in its foreground.
        Typed {
            after: "BEGIN-42",
            text: "$B sh -c 'echo ASLEEP-$((40 + 2)); exec /bin/busybox sleep 600'\n",
        },
        Typed {
            after: "ASLEEP-42",
            text: "\x03",
        },
        Typed {
            after: "^C",
            text: "$B echo ENDED-$?; $B sleep 15; $B echo SESSION-$($B cut -d' ' -f6 /proc/$$/stat)-$$.; $B cat /proc/1/comm; exit\n",
        },
    ];
    let more = [
        "--until=BEGIN-42",
        "--until=ENDED-130",
        "--until=SESSION-\\d+-\\d+\\.",
    ];
    let console = machine.typing(&more, &typed).good();
    assert!(!console.contains("job control turned off"), "{console}");
    assert!(!console.contains("powering off"), "{console}");
    let session = console.split("SESSION-").last().unwrap();
    let session = session.split('.').next().unwrap();
    let (leader, shell) = session.split_once('-').unwrap();
    assert_eq!(leader, shell, "{console}");
    assert!(
        std::fs::read(&disk).unwrap().iter().all(|b| *b == 0x5a),
        "the disk was written to"
    );
}
