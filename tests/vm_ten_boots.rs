//! One machine over its whole life: ten sessions from memory, an upgrade of the image, an installation onto the disk
//! that holds what was kept, and another claim. What is right is said from inside the booted system each time, and
//! the file system is looked at after each poweroff.
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

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use machine::{Direct, fact, lab};
use serde_json::{Value, json};

/// Counts on the three paths, and says how the system finds itself. The file is written through: it is a mount.
const COUNT: &str = r#"#!/bin/sh
fact() { echo "IRONROOT-FACT $*"; }
count() { n=$(cat "$1" 2>/dev/null); n=$((${n:-0} + 1)); echo $n >"$1"; echo $n; }
fact "dir $(count /var/lib/app/n) $(stat -c '%a %u %g' /var/lib/app) $(ls /var/lib/app | tr '\n' ' ')"
fact "overlay $(count /opt/app/n) $(ls /opt/app | tr '\n' ' ')"
fact "file $(count /etc/app.count)"
fact "version $(cat /opt/app/version) $(cat /opt/app/changed)"
echo mine >/opt/app/changed
rm -f /opt/app/removed
fact "id $(cat /etc/machine-id)"
fact "key $(cat /etc/ssh/ssh_host_key)"
fact "public $(cat /etc/ssh/ssh_host_key.pub)"
fact "first $([ -e /run/is-first ] && echo yes || echo no)"
fact "condition $([ -e /run/systemd/first-boot ] && echo yes || echo no)"
fact "failed [$(systemctl --failed --no-legend --plain)]"
echo IRONROOT-COUNTED
systemctl --no-block poweroff
"#;

const DROP_IN: &str = "[Service]\nExecStart=\nExecStart=/usr/local/sbin/count\n";

/// As sshd's packages do it: keys are made at the first boot, and where there are none. These are written into the
/// files, which are mounts and cannot be replaced.
const FIRST: &str = r"[Unit]
ConditionFirstBoot=yes
Before=multi-user.target

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'touch /run/is-first; k=/etc/ssh/ssh_host_key; [ -s $k ] || { head -c 24 /dev/urandom | base64 >$k; sha256sum <$k >$k.pub; }'
";

/// Where the kept partition begins, behind the installed image, and how long the disk is.
const AT: u64 = 576 << 20;
const DISK: u64 = 800 << 20;

struct Story {
    folder: tempfile::TempDir,
    disk: PathBuf,
}

impl Story {
    fn new() -> Story {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk.raw");
        std::fs::File::create(&disk).unwrap().set_len(DISK).unwrap();
        run(
            "sgdisk",
            &[
                &format!("-n3:{}:0", AT / 512),
                "-c3:state",
                "-t3:8300",
                disk.to_str().unwrap(),
            ],
        );
        Story { folder, disk }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Boots `image` with these `parts` of a config, until `markers` and the end of the machine.
    fn boot(&self, image: &Path, parts: Value, markers: &[&str]) -> String {
        let mut config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "metadata": { "claim": "a/1" },
            "image": { "url": "/dev/vda" },
        });
        if let Value::Object(parts) = parts {
            config.as_object_mut().unwrap().extend(parts);
        }
        let initrd = machine::with_config(self.folder.path(), &config);
        let disk = format!("--disk={},bus=virtio,serial=state", self.disk.display());
        let mut all = vec![
            disk,
            "--memory=1024".to_owned(),
            "--net=none".to_owned(),
            "--timeout=560".to_owned(),
            "--wait-end".to_owned(),
        ];
        all.extend(markers.iter().map(|marker| format!("--until={marker}")));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let words = "ip=off ironroot.on-failure=poweroff ironroot.config=/config.json";
        let console = Direct::of(&lab("kernel/vmlinuz"), &initrd, image, words)
            .run(&all)
            .good();
        self.is_clean();
        console
    }

    fn memory(&self, image: &Path, more: &Value) -> String {
        let parts = json!({ "memory": {}, "preserve": paths(more) });
        self.boot(image, parts, &["IRONROOT-COUNTED"])
    }

    /// What is kept was unmounted in order, and nothing is wrong with it.
    #[track_caller]
    fn is_clean(&self) {
        let place = format!("{}?offset={AT}", self.disk.display());
        let text = run("dumpe2fs", &["-h", &place]);
        assert!(
            text.contains("Filesystem state:         clean") && !text.contains("needs_recovery"),
            "{text}"
        );
        run("e2fsck", &["-fn", &place]);
    }
}

/// The kept paths, each with `more`.
fn paths(more: &Value) -> Value {
    let entry = |target: &str, subdir: &str, keys: Value| {
        let mut entry = json!({
            "target": target,
            "source": { "partlabel": "state" },
            "subdir": subdir,
            "format": "IfBlank",
            "claimBound": true,
        });
        for keys in [&keys, more] {
            for (key, value) in keys.as_object().unwrap() {
                entry[key] = value.clone();
            }
        }
        entry
    };
    let file = |mode: &str| json!({ "kind": "file", "mode": mode });
    json!([
        entry(
            "/var/lib/app",
            "app",
            json!({ "mode": "0750", "owner": "7:8" })
        ),
        entry("/opt/app", "opt", json!({ "method": "overlay" })),
        entry("/etc/app.count", "etc/app.count", file("0644")),
        entry("/etc/machine-id", "etc/machine-id", file("0444")),
        entry("/etc/ssh/ssh_host_key", "etc/key", file("0600")),
        entry("/etc/ssh/ssh_host_key.pub", "etc/key.pub", file("0644")),
    ])
}

fn run(program: &str, args: &[&str]) -> String {
    let out = std::process::Command::new(program)
        .args(args)
        .output()
        .unwrap();
    let (text, error) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{program} {args:?}: {text}{error}");
    text.into_owned()
}

fn write(root: &Path, path: &str, text: &str, mode: u32) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Version one as a squashfs, version two as a tar archive.
fn images(story: &Story) -> (PathBuf, PathBuf) {
    let root = story.path("root");
    let (text, from) = (root.to_str().unwrap(), lab("debian.squashfs"));
    run(
        "unsquashfs",
        &["-q", "-n", "-d", text, from.to_str().unwrap()],
    );
    let units = "etc/systemd/system";
    write(&root, "usr/local/sbin/count", COUNT, 0o755);
    write(
        &root,
        &format!("{units}/ironroot-demo.service.d/count.conf"),
        DROP_IN,
        0o644,
    );
    write(&root, &format!("{units}/first.service"), FIRST, 0o644);
    let wants = root.join(units).join("multi-user.target.wants");
    symlink("../first.service", wants.join("first.service")).unwrap();
    // It would ask questions on the console at a first boot.
    let firstboot = root.join(units).join("systemd-firstboot.service");
    symlink("/dev/null", firstboot).unwrap();
    // A first boot is asked for.
    write(&root, "etc/machine-id", "uninitialized\n", 0o444);
    write(&root, "opt/app/version", "one\n", 0o644);
    write(&root, "opt/app/changed", "image\n", 0o644);
    write(&root, "opt/app/removed", "image\n", 0o644);
    let one = story.path("one.squashfs");
    run(
        "mksquashfs",
        &[
            text,
            one.to_str().unwrap(),
            "-quiet",
            "-no-progress",
            "-comp",
            "zstd",
            "-Xcompression-level",
            "1",
        ],
    );
    write(&root, "opt/app/version", "two\n", 0o644);
    write(&root, "opt/app/changed", "image two\n", 0o644);
    write(&root, "opt/app/new", "two\n", 0o644);
    let two = story.path("two.tar");
    run("tar", &["-C", text, "-cf", two.to_str().unwrap(), "."]);
    std::fs::remove_dir_all(&root).unwrap();
    (one, two)
}

/// An installation that keeps the partition; of another image, which brings its own version of everything.
fn installation() -> Value {
    let sums = std::fs::read_to_string(lab("debian.raw.sha256")).unwrap();
    let digest = sums.split_whitespace().next().unwrap();
    let unit = "/etc/systemd/system/ironroot-demo.service.d/count.conf";
    json!({
        "image": { "url": "/dev/vda", "digest": format!("sha256:{digest}") },
        "disk": {
            "select": { "serial": "state" },
            // The table is another's: what is kept was made by hand.
            "overwrite": "Always",
            "keep": ["state"],
            "files": [
                { "path": unit, "contents": DROP_IN },
                { "path": "/usr/local/sbin/count", "contents": COUNT, "mode": "0755" },
                { "path": "/opt/app/version", "contents": "disk\n" },
                { "path": "/opt/app/changed", "contents": "disk\n" },
                { "path": "/opt/app/removed", "contents": "disk\n" },
                { "path": "/etc/ssh/ssh_host_key", "contents": "key of the image\n" },
            ],
        },
        "preserve": paths(&json!({})),
        "then": "Kexec",
    })
}

#[test]
fn matrix_ten_sessions_an_upgrade_an_installation_and_another_claim() {
    let story = Story::new();
    let (one, two) = images(&story);
    let none = json!({});
    let first = story.memory(&one, &none);
    assert!(first.contains("ERASE: make ext4"), "{first}");
    assert_eq!(fact(&first, "first"), "yes", "{first}");
    assert_eq!(fact(&first, "condition"), "yes");
    assert_eq!(fact(&first, "version"), "one image");
    let (id, key) = (
        fact(&first, "id").to_owned(),
        fact(&first, "key").to_owned(),
    );
    let public = fact(&first, "public").to_owned();
    assert_eq!((id.len(), key.len()), (32, 32), "{id} {key}");
    let same = |console: &str, n: u32| {
        assert_eq!(fact(console, "dir"), format!("{n} 750 7 8 n"));
        assert!(fact(console, "overlay").starts_with(&format!("{n} changed n ")));
        assert_eq!(fact(console, "file"), n.to_string());
        assert_eq!(fact(console, "id"), id);
        assert_eq!(fact(console, "key"), key);
        assert_eq!(fact(console, "public"), public);
        assert_eq!(fact(console, "failed"), "[]");
    };
    same(&first, 1);
    for n in 2..=10 {
        let console = story.memory(&one, &none);
        same(&console, n);
        assert!(!console.contains("ERASE"), "{console}");
        assert_eq!(fact(&console, "first"), "no", "boot {n}");
        assert_eq!(fact(&console, "condition"), "no", "boot {n}");
        assert_eq!(fact(&console, "version"), "one mine");
        assert_eq!(fact(&console, "overlay"), format!("{n} changed n version"));
    }

    // Another image, of another kind: it brings what is new, and what the machine changed or removed stays so.
    let upgraded = story.memory(&two, &none);
    same(&upgraded, 11);
    assert_eq!(fact(&upgraded, "version"), "two mine");
    assert_eq!(fact(&upgraded, "overlay"), "11 changed n new version");
    assert_eq!(fact(&upgraded, "first"), "no");

    // Onto the disk: the same data, mounted by the installed system itself.
    let image = story.path("image.raw");
    std::fs::copy(lab("debian.raw"), &image).unwrap();
    for (n, marker) in [
        (12, "ironroot: installed: "),
        (13, "already: boot it, write nothing"),
    ] {
        let installed = story.boot(&image, installation(), &[marker, "IRONROOT-COUNTED"]);
        same(&installed, n);
        assert_eq!(fact(&installed, "version"), "disk mine");
        assert_eq!(
            fact(&installed, "overlay"),
            format!("{n} changed n version")
        );
        assert_eq!(fact(&installed, "condition"), "no");
    }

    // And back in memory, over what the installed system wrote.
    let back = story.memory(&one, &none);
    same(&back, 14);
    assert_eq!(fact(&back, "version"), "one mine");

    // Another claim gets nothing of it.
    let other = |more: &Value, marker: &str| {
        let parts =
            json!({ "metadata": { "claim": "b/2" }, "memory": {}, "preserve": paths(more) });
        story.boot(&one, parts, &[marker])
    };
    let refused = other(&none, "FAILED .code 16.");
    assert!(refused.contains("belongs to claim a/1"), "{refused}");
    assert!(!refused.contains("IRONROOT-COUNTED"), "{refused}");
    let afresh = other(&json!({ "otherClaim": "Erase" }), "IRONROOT-COUNTED");
    assert_eq!(fact(&afresh, "dir"), "1 750 7 8 n");
    assert_eq!(fact(&afresh, "overlay"), "1 changed n removed version");
    assert_eq!(fact(&afresh, "file"), "1");
    assert_eq!(fact(&afresh, "version"), "one image");
    assert_eq!(fact(&afresh, "first"), "yes");
    assert_ne!(fact(&afresh, "id"), id);
    assert_ne!(fact(&afresh, "key"), key);
    // Who had it before does not get the new one's.
    let parts = json!({ "memory": {}, "preserve": paths(&none) });
    let late = story.boot(&one, parts, &["FAILED .code 16."]);
    assert!(late.contains("belongs to claim b/2"), "{late}");
}
