//! Preserved paths in virtual machines: ironroot as PID 1 over several boots with the same disk, a real systemd that
//! finds the mounts and unmounts them, and what is on the disk afterwards.
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

use std::path::{Path, PathBuf};

use machine::{Direct, lab};
use serde_json::{Value, json};

/// A machine with an image on its first disk and a second one, blank at first, for what outlives the session.
struct Bench {
    folder: tempfile::TempDir,
    image: PathBuf,
    state: PathBuf,
}

impl Bench {
    fn new(artifact: &str) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image.raw");
        std::fs::copy(lab(artifact), &image).unwrap();
        let file = std::fs::OpenOptions::new()
            .append(true)
            .open(&image)
            .unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.next_multiple_of(1 << 20)).unwrap();
        let state = folder.path().join("state.raw");
        std::fs::File::create(&state)
            .unwrap()
            .set_len(300 << 20)
            .unwrap();
        Bench {
            folder,
            image,
            state,
        }
    }

    /// Boots for `claim`, until `marker` and then to the end of the machine; what the console said.
    fn boot(&self, claim: &str, preserve: &Value, words: &str, more: &[&str]) -> String {
        let parts = json!({ "metadata": { "claim": claim }, "preserve": preserve });
        self.boot_with(parts, words, more)
    }

    /// The same with other `parts` of a config.
    fn boot_with(&self, parts: Value, words: &str, more: &[&str]) -> String {
        let mut config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "image": { "url": "/dev/vda" },
            "memory": {},
        });
        if let Value::Object(parts) = parts {
            config.as_object_mut().unwrap().extend(parts);
        }
        let config = config.to_string().replace('"', "%22");
        let words =
            format!("ip=off ironroot.on-failure=poweroff {words} ironroot.config=data:,{config}");
        let disk = format!("--disk={},bus=virtio,serial=state", self.state.display());
        let mut all = vec![disk.as_str(), "--wait-end"];
        all.extend(more);
        Direct::new(&self.image, &words).run(&all).good()
    }

    fn debugfs(&self, command: &str) -> String {
        run("debugfs", &["-R", command, self.state.to_str().unwrap()])
    }

    /// The file system on the state disk is one that was unmounted in order.
    #[track_caller]
    fn is_clean(&self) {
        let text = run("dumpe2fs", &["-h", self.state.to_str().unwrap()]);
        assert!(
            text.contains("Filesystem state:         clean") && !text.contains("needs_recovery"),
            "{text}"
        );
    }

    fn scratch(&self) -> &Path {
        self.folder.path()
    }
}

fn run(program: &str, args: &[&str]) -> String {
    let out = std::process::Command::new(program)
        .args(args)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn entry(target: &str, subdir: &str, more: Value) -> Value {
    let mut entry = json!({
        "target": target,
        "source": { "disk": { "serial": "state" } },
        "subdir": subdir,
        "format": "IfBlank",
    });
    if let Value::Object(more) = more {
        entry.as_object_mut().unwrap().extend(more);
    }
    entry
}

const UP: &str = "--until=IRONROOT-TINY-BOOTED.*payload=ok";

#[test]
fn a_blank_disk_is_formatted_once_and_belongs_to_its_claim() {
    let bench = Bench::new("tiny.squashfs");
    let entries = json!([
        entry(
            "/srv/kept",
            "kept",
            json!({ "claimBound": true, "options": ["noatime"] })
        ),
        entry("/opt", "opt", json!({ "method": "overlay" })),
        entry("/etc/machine-id", "id", json!({ "kind": "file" })),
    ]);
    let console = bench.boot("a/1", &entries, "", &[UP]);
    assert!(console.contains("ERASE: make ext4"), "{console}");
    let id = bench.debugfs("cat /id");
    assert_eq!(id.trim().len(), 32, "{id}");
    // The tiny system powers off without unmounting anything: the journal is replayed.
    let console = bench.boot("a/1", &entries, "", &[UP]);
    assert!(!console.contains("ERASE"), "{console}");
    assert_eq!(bench.debugfs("cat /id"), id);
    let console = bench.boot("b/2", &entries, "", &["--until=FAILED .code 16."]);
    assert!(console.contains("kept belongs to claim a/1"), "{console}");
    assert_eq!(bench.debugfs("cat /id"), id);
}

/// Asks QEMU for something, as soon as its control socket is there.
fn ask(socket: &Path, what: &Value) {
    use std::io::{BufRead as _, BufReader, Write as _};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    answers.next().unwrap().unwrap();
    for command in [&json!({ "execute": "qmp_capabilities" }), what] {
        writeln!(stream, "{command}").unwrap();
        let answer = answers
            .find(|a| !a.as_ref().unwrap().contains("\"event\""))
            .unwrap()
            .unwrap();
        assert!(answer.contains("\"return\""), "{answer}");
    }
}

/// The disk is plugged in after ironroot has said that it waits for it.
#[test]
fn a_disk_that_comes_while_it_is_waited_for_is_found() {
    let bench = Bench::new("tiny.squashfs");
    let state = bench.state.to_str().unwrap();
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-L", "LATE", state]);
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "metadata": { "claim": "a/1" },
        "image": { "url": "/dev/vda" },
        "memory": {},
        "wait": "90s",
        "preserve": [{ "target": "/srv/kept", "source": { "label": "LATE" }, "subdir": "kept" }],
    });
    let config = config.to_string().replace('"', "%22");
    let words = format!("ip=off ironroot.on-failure=poweroff ironroot.config=data:,{config}");
    let socket = bench.scratch().join("qmp");
    let log = bench.image.with_extension("log");
    let console = std::thread::scope(|scope| {
        let machine = scope.spawn(|| {
            Direct::new(&bench.image, &words)
                .run(&[
                    &format!("--qmp={}", socket.display()),
                    "--qemu=-device",
                    "--qemu=pcie-root-port,id=late-port,chassis=9",
                    "--qemu=-blockdev",
                    &format!("--qemu=driver=file,node-name=late,filename={state}"),
                    UP,
                    "--wait-end",
                ])
                .good()
        });
        let waits = || {
            let text = std::fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(&text).contains("waiting for source label=LATE")
        };
        for _ in 0..1200 {
            if waits() || machine.is_finished() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        assert!(waits(), "it never waited");
        let disk = json!({ "driver": "virtio-blk-pci", "drive": "late", "serial": "late", "bus": "late-port", "id": "late" });
        ask(
            &socket,
            &json!({ "execute": "device_add", "arguments": disk }),
        );
        machine.join().unwrap()
    });
    assert!(console.contains("preserve /srv/kept"), "{console}");
    assert!(bench.debugfs("stat /kept").contains("Type: directory"));
}

/// Two boots of a real system. The journal is kept in a directory that has the machine's id for its name, and the
/// system writes to it until it is unmounted.
#[test]
fn debian_finds_what_is_preserved_and_unmounts_it() {
    let bench = Bench::new("debian.squashfs");
    let entries = json!([
        entry("/var/log", "log", json!({ "seed": "FromImageOnce" })),
        entry("/var/log/journal", "journal", json!({ "mode": "2755" })),
        entry("/etc/ssh", "ssh", json!({ "method": "overlay" })),
        entry("/etc/machine-id", "id", json!({ "kind": "file" })),
    ]);
    let more = [
        "--memory=1024",
        "--timeout=560",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=",
    ];
    for _ in 0..2 {
        let console = bench.boot("a/1", &entries, "demo.poweroff", &more);
        // No unit failed: neither the one that saves the machine id nor a mount.
        assert!(console.contains("failed=[]"), "{console}");
        bench.is_clean();
    }
    let journal = bench.scratch().join("journal");
    bench.debugfs(&format!("rdump /journal {}", bench.scratch().display()));
    let names: Vec<String> = std::fs::read_dir(&journal)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, [bench.debugfs("cat /id").trim()]);
    let boots = run(
        "journalctl",
        &[
            "--directory",
            journal.to_str().unwrap(),
            "--list-boots",
            "--no-pager",
        ],
    );
    let boots = boots.lines().filter(|l| !l.contains("BOOT ID")).count();
    assert_eq!(boots, 2, "both boots are in the journal");
}

/// Two boots of a real system whose root itself is kept: what it wrote is there again, its machine id above all, and
/// the file system needs no repair.
#[test]
fn debian_runs_with_a_root_whose_writes_stay_on_a_disk() {
    let bench = Bench::new("debian.squashfs");
    let state = bench.state.to_str().unwrap();
    run("mke2fs", &["-q", "-t", "ext4", "-L", "ROOT", state]);
    let parts =
        json!({ "memory": { "upper": { "source": { "label": "ROOT" }, "subdir": "debian" } } });
    let more = [
        "--memory=1024",
        "--timeout=560",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=",
    ];
    let mut ids = Vec::new();
    for _ in 0..2 {
        let console = bench.boot_with(parts.clone(), "demo.poweroff", &more);
        assert!(console.contains("failed=[]"), "{console}");
        assert!(!console.contains("had errors"), "{console}");
        // The journal may have to be replayed, as a root is never unmounted; nothing may be wrong beside it.
        run("e2fsck", &["-p", state]);
        let id = bench.debugfs("cat /debian/upper/etc/machine-id");
        assert_eq!(id.trim().len(), 32, "{id}");
        ids.push(id);
    }
    assert_eq!(ids[0], ids[1]);
}
