//! What a booted system finds at its preserved paths, said from inside it: ironroot as PID 1, a small system of its own
//! image, and sources and targets of every kind that are not as they should be; a power cut at five points of the filling;
//! an installation that cannot keep a path, and what PID 1 does then.
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
#[allow(dead_code)]
#[path = "support/small_system.rs"]
mod small_system;
#[path = "support/write_log.rs"]
mod write_log;

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use machine::{Direct, fact, lab};
use serde_json::{Value, json};
use write_log::WriteLog;

/// The booted system: says what stands at the paths, and how they are mounted.
const INIT: &str = r#"#!/bin/sh
export PATH=/sbin:/bin
mount -t proc proc /proc
fact() { echo "IRONROOT-FACT $*" >/dev/console; }
count() { n=$(cat "$1" 2>/dev/null || echo 0); echo $((n + 1)) >"$1"; cat "$1"; }
mounted() { busybox grep -c " $1 " /proc/self/mountinfo; }
for p in full read-only corrupt missing two data; do fact "f $p $(cat /srv/$p/f) $(mounted /srv/$p)"; done
for p in /nest /nest/a /nest/a/b/c; do fact "nest $p $(count $p/n) $(mounted $p)"; done
fact "outside $(count /out/kept/n) $(ls /tmp/away/kept) $(mounted /tmp/away/kept)"
fact "sum $(cd /fill && busybox find . -type f -exec busybox sha256sum {} \; -exec stat -c '%n %a %u:%g' {} \; | sort | busybox sha256sum)"
fact "files $(busybox find /fill -type f | busybox wc -l)"
sync
echo IRONROOT-SMALL-BOOTED >/dev/console
poweroff -f
sleep 100
"#;

struct Bench {
    folder: tempfile::TempDir,
    image: PathBuf,
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        small_system::busybox(&root);
        std::fs::write(root.join("etc/os-release"), "ID=small\n").unwrap();
        small_system::script(&root.join("sbin/init"), INIT);
        for path in ["full", "read-only", "corrupt", "missing", "two", "data"] {
            let place = root.join("srv").join(path);
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("f"), "image\n").unwrap();
        }
        std::fs::write(root.join("srv/full/big"), vec![7; 4 << 20]).unwrap();
        for path in ["nest", "tmp/away", "fill/d"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        symlink("../../../../tmp/away", root.join("out")).unwrap();
        for n in 0..150 {
            std::fs::write(root.join(format!("fill/d/{n}")), n.to_string().repeat(700)).unwrap();
        }
        run(
            "chown",
            &["-R", "12:34", root.join("fill").to_str().unwrap()],
        );
        let image = folder.path().join("image.raw");
        let (from, to) = (root.to_str().unwrap(), image.to_str().unwrap());
        run(
            "mksquashfs",
            &[
                from,
                to,
                "-quiet",
                "-no-progress",
                "-comp",
                "zstd",
                "-Xcompression-level",
                "1",
            ],
        );
        let file = std::fs::OpenOptions::new()
            .append(true)
            .open(&image)
            .unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.next_multiple_of(1 << 20)).unwrap();
        Bench { folder, image }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn blank(&self, name: &str, mib: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path
    }

    /// An ext4 with `f` in the directory `kept`.
    fn ext4(&self, name: &str, mib: u64) -> PathBuf {
        let content = self.path(&format!("{name}-content"));
        std::fs::create_dir_all(content.join("kept")).unwrap();
        std::fs::write(content.join("kept/f"), format!("{name}\n")).unwrap();
        let disk = self.blank(name, mib);
        let (from, to) = (content.to_str().unwrap(), disk.to_str().unwrap());
        run("mke2fs", &["-q", "-F", "-t", "ext4", "-d", from, to]);
        disk
    }

    /// Boots the image with `parts` of a config, until `markers` and the end of the machine.
    fn boot(&self, parts: Value, disks: &[String], markers: &[&str]) -> String {
        let mut config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "metadata": { "claim": "a/1" },
            "image": { "url": "/dev/vda" },
            "wait": "3s",
        });
        if let Value::Object(parts) = parts {
            config.as_object_mut().unwrap().extend(parts);
        }
        let initrd = machine::with_config(self.folder.path(), &config);
        let words = "ip=off ironroot.config=/config.json";
        let mut all: Vec<&str> = disks.iter().map(String::as_str).collect();
        let until: Vec<String> = markers.iter().map(|m| format!("--until={m}")).collect();
        all.extend(until.iter().map(String::as_str));
        all.extend(["--net=none", "--wait-end"]);
        Direct::of(&lab("kernel/vmlinuz"), &initrd, &self.image, words)
            .run(&all)
            .good()
    }
}

fn disk(path: &Path, serial: &str) -> String {
    format!("--disk={},bus=virtio,serial={serial}", path.display())
}

fn on(serial: &str) -> Value {
    json!({ "disk": { "serial": serial } })
}

fn path(target: &str, source: &Value, more: &Value) -> Value {
    let mut entry = json!({ "target": target, "source": source });
    entry
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    entry
}

/// Every source that cannot serve, each for one path: the disks, the entries, and what is said of each.
fn troubles(bench: &Bench) -> (Vec<String>, Vec<(Value, &'static str)>) {
    let full = bench.ext4("full", 12);
    let device = full.to_str().unwrap();
    let filler = bench.path("filler");
    File::create(&filler).unwrap().set_len(0).unwrap();
    std::fs::write(&filler, vec![1; 9 << 20]).unwrap();
    // What does not fit any more is not written; what has been, stays.
    for (n, kib) in [8192, 1024, 128, 16, 4].into_iter().enumerate() {
        let part = bench.path(&format!("part-{n}"));
        std::fs::write(&part, vec![1; kib << 10]).unwrap();
        for copy in 0..8 {
            let request = format!("write {} fill-{n}-{copy}", part.display());
            let _ = Command::new("debugfs")
                .args(["-w", "-R", &request, device])
                .output()
                .unwrap();
        }
    }
    // debugfs leaves halves; the check puts that in order.
    let checked = Command::new("e2fsck")
        .args(["-fy", device])
        .output()
        .unwrap();
    assert!(checked.status.code().unwrap() < 4, "{checked:?}");
    let corrupt = bench.ext4("corrupt", 24);
    let text = run("dumpe2fs", &[corrupt.to_str().unwrap()]);
    let number = |key: &str| -> usize {
        let rest = text.split(key).nth(1).unwrap().trim_start();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    let at = number("Inode table at ") * number("Block size:");
    run(
        "debugfs",
        &["-w", "-R", "ssv state 2", corrupt.to_str().unwrap()],
    );
    let mut bytes = std::fs::read(&corrupt).unwrap();
    for byte in &mut bytes[at..at + 8192] {
        *byte ^= 0x5a;
    }
    std::fs::write(&corrupt, bytes).unwrap();
    let two = bench.blank("two", 32);
    run(
        "sgdisk",
        &[
            "-n1:2048:+8M",
            "-n2:0:+8M",
            "-c1:two",
            "-c2:two",
            two.to_str().unwrap(),
        ],
    );
    // User data without any signature, where a blank device would be formatted.
    let data = bench.blank("data", 24);
    let mut bytes = vec![0u8; 24 << 20];
    bytes[5000..5011].copy_from_slice(b"user's data");
    std::fs::write(&data, bytes).unwrap();
    let disks = vec![
        disk(&full, "full"),
        disk(&bench.ext4("read-only", 12), "read-only") + ",readonly",
        disk(&corrupt, "corrupt"),
        disk(&two, "two"),
        disk(&data, "data"),
    ];
    let kept = json!({ "subdir": "kept" });
    let blank = json!({ "format": "IfBlank" });
    let seeded = json!({ "subdir": "new", "seed": "FromImageOnce" });
    let entries = vec![
        (path("/srv/full", &on("full"), &seeded), "o space left"),
        (
            path("/srv/read-only", &on("read-only"), &kept),
            "is read-only",
        ),
        (path("/srv/corrupt", &on("corrupt"), &kept), "is damaged"),
        (
            path(
                "/srv/missing",
                &json!({ "label": "nobody-has-this" }),
                &kept,
            ),
            "no device has that name",
        ),
        (
            path("/srv/two", &json!({ "partlabel": "two" }), &blank),
            "2 devices have that name",
        ),
        (path("/srv/data", &on("data"), &blank), "unknown data"),
    ];
    (disks, entries)
}

const BOOTED: &str = "IRONROOT-SMALL-BOOTED";

/// Optional, each of them is warned of and the booted system has the image's content; required, PID 1 carries out
/// `onFailure`. Nested targets, and one behind a link that would lead out of the root, are right beside that.
#[test]
fn matrix_a_booted_system_has_what_its_sources_can_give() {
    let bench = Bench::new();
    let (mut disks, troubles) = troubles(&bench);
    let good = bench.blank("good", 32);
    disks.push(disk(&good, "good"));
    let optional = |entry: &Value| {
        let mut entry = entry.clone();
        entry["required"] = json!(false);
        entry
    };
    let at = |target: &str, subdir: &str| {
        path(
            target,
            &on("good"),
            &json!({ "subdir": subdir, "format": "IfBlank" }),
        )
    };
    // Children first, as somebody may write them.
    let mut entries = vec![
        at("/nest/a/b/c", "3"),
        at("/nest/a", "2"),
        at("/nest", "1"),
        at("/out/kept", "4"),
        path(
            "/fill",
            &on("good"),
            &json!({ "subdir": "fill", "format": "IfBlank", "seed": "FromImageOnce" }),
        ),
    ];
    entries.extend(troubles.iter().map(|(entry, _)| optional(entry)));
    for n in 1..=2 {
        let parts =
            json!({ "memory": {}, "preserve": entries, "onFailure": { "then": "PowerOff" } });
        let console = bench.boot(parts, &disks, &[BOOTED]);
        for (entry, why) in &troubles {
            let target = entry["target"].as_str().unwrap();
            let name = target.trim_start_matches("/srv/");
            assert_eq!(fact(&console, &format!("f {name}")), "image 0", "{console}");
            assert!(console.contains(why), "{why}: {console}");
        }
        for target in ["/nest", "/nest/a", "/nest/a/b/c"] {
            assert_eq!(fact(&console, &format!("nest {target}")), format!("{n} 1"));
        }
        assert_eq!(fact(&console, "outside"), format!("{n} n 1"));
        assert_eq!(fact(&console, "files"), "150");
    }
    let data = std::fs::read(bench.path("data")).unwrap();
    assert_eq!(&data[5000..5011], b"user's data");
    assert_eq!(data.iter().filter(|b| **b != 0).count(), 11);

    for (n, (entry, why)) in troubles.iter().enumerate() {
        // The kernel says what it was told to do.
        let (then, end) = [
            ("PowerOff", "reboot: Power down"),
            ("Reboot", "reboot: Restarting system"),
        ][n % 2];
        let parts = json!({ "memory": {}, "preserve": [entry], "onFailure": { "then": then, "retryFor": "5s" } });
        let console = bench.boot(parts, &disks, &["FAILED .code 16.", end]);
        assert!(console.contains(why), "{why}: {console}");
        assert!(!console.contains(BOOTED), "{console}");
        let other = if then == "Reboot" {
            "Power down"
        } else {
            "Restarting"
        };
        assert!(!console.contains(other), "{console}");
    }
}

/// The power goes at five points of the filling, from its first flush to its last, each with half of what was written
/// since the flush before; the next boot has all of it.
#[test]
fn matrix_filling_that_the_power_cut_short_is_whole_in_the_next_boot() {
    let bench = Bench::new();
    for whole in [false, true] {
        let mut entry =
            json!({ "target": "/fill", "source": on("state"), "seed": "FromImageOnce" });
        if !whole {
            entry["subdir"] = json!("a/b");
        }
        let parts =
            json!({ "memory": {}, "preserve": [entry], "onFailure": { "then": "PowerOff" } });
        let state = bench.blank("state", 24);
        run(
            "mke2fs",
            &["-q", "-F", "-t", "ext4", state.to_str().unwrap()],
        );
        let before = std::fs::read(&state).unwrap();
        let log = bench.path("writes");
        let logged = format!("{},log={}", disk(&state, "state"), log.display());
        let console = bench.boot(parts.clone(), &[logged], &[BOOTED]);
        let sum = fact(&console, "sum").to_owned();
        assert_eq!(fact(&console, "files"), "150");
        assert!(
            console.contains("/fill: filled from the image"),
            "{console}"
        );
        let log = WriteLog::read(&log);
        let flushes = log.flushes();
        assert!(flushes >= 5, "{flushes}");
        let (mut again, mut over) = (0, 0);
        for n in 0..5 {
            let epoch = n * (flushes - 1) / 4;
            std::fs::write(&state, log.cut(&before, epoch, 1)).unwrap();
            let console = bench.boot(parts.clone(), &[disk(&state, "state")], &[BOOTED]);
            let what = format!("after flush {epoch} of {flushes}, {whole}");
            assert_eq!(fact(&console, "files"), "150", "{what}");
            assert_eq!(fact(&console, "sum"), sum, "{what}");
            let filled = console.contains("/fill: filled from the image");
            (again, over) = (again + u32::from(filled), over + u32::from(!filled));
            run("e2fsck", &["-fp", state.to_str().unwrap()]);
        }
        assert!(again > 0 && over > 0, "{again} {over}");
    }
}

/// An installation whose required path cannot be kept leaves a disk that does not boot, and PID 1 does what
/// `onFailure` says; an optional one is warned of, and the system boots.
#[test]
fn matrix_an_installation_without_a_required_path_ends_as_the_config_says() {
    let mut bench = Bench::new();
    bench.image = bench.path("tiny.raw");
    std::fs::copy(lab("tiny.raw"), &bench.image).unwrap();
    let sums = std::fs::read_to_string(lab("tiny.raw.sha256")).unwrap();
    let digest = sums.split_whitespace().next().unwrap();
    let data = bench.ext4("data", 24);
    let disks = |bench: &Bench| {
        let target = bench.blank("target", 128);
        (vec![disk(&target, "target"), disk(&data, "data")], target)
    };
    let parts = |entry: &Value, then: &str| {
        json!({
            "image": { "url": "/dev/vda", "digest": format!("sha256:{digest}") },
            "disk": { "select": { "serial": "target" } },
            "preserve": [entry],
            "onFailure": { "then": then, "retryFor": "5s" },
            "then": "Kexec",
        })
    };
    let nowhere = path("/srv/kept", &json!({ "partlabel": "nowhere" }), &json!({}));
    // Content of which nobody knows the owner is another claim's.
    let bound = path(
        "/srv/kept",
        &on("data"),
        &json!({ "subdir": "kept", "claimBound": true }),
    );
    for (entry, why, then, end) in [
        (
            &nowhere,
            "no device has that name",
            "PowerOff",
            "reboot: Power down",
        ),
        (
            &bound,
            "belongs to no claim that is known",
            "Reboot",
            "reboot: Restarting system",
        ),
    ] {
        let (all, target) = disks(&bench);
        let console = bench.boot(parts(entry, then), &all, &["FAILED .code 16.", end]);
        assert!(console.contains(why), "{why}: {console}");
        assert!(!console.contains("ironroot: installed: "), "{console}");
        let bytes = std::fs::read(target).unwrap();
        assert!(bytes[510..512] != [0x55, 0xaa], "it would boot");
        if entry == &nowhere {
            assert!(bytes.iter().all(|b| *b == 0), "written to");
        }
    }
    for entry in [&nowhere, &bound] {
        let mut optional = entry.clone();
        optional["required"] = json!(false);
        let (all, _) = disks(&bench);
        let booted = "IRONROOT-TINY-BOOTED.*payload=ok";
        let console = bench.boot(
            parts(&optional, "PowerOff"),
            &all,
            &["ironroot: installed: ", booted],
        );
        assert!(console.contains("/srv/kept is not preserved"), "{console}");
    }
    let kept = run("debugfs", &["-R", "cat /kept/f", data.to_str().unwrap()]);
    assert!(kept.ends_with("data\n"), "{kept}");
}
