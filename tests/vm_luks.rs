//! Encrypted sources and partitions that a session makes, in virtual machines, whose kernel has a device mapper and
//! reads GPTs: made at the first boot, found at the second, closed to another key.
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
#[path = "support/script_machine.rs"]
mod script_machine;
#[path = "support/small_system.rs"]
mod small_system;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use machine::{Direct, initramfs, lab};
use serde_json::{Value, json};

/// Stands in the key file, and must stand nowhere else.
const SECRET: &str = "correct-horse-battery-staple";

/// A machine with an image on its first disk and a blank second one; two initrds, each with a key of its own.
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
            .set_len(192 << 20)
            .unwrap();
        Bench {
            folder,
            image,
            state,
        }
    }

    /// The initramfs with a file more, as an operator would append it.
    fn initrd(&self, key: &str) -> PathBuf {
        let tree = self.folder.path().join(format!("tree-{}", key.len()));
        std::fs::create_dir_all(tree.join("etc/ironroot/keys")).unwrap();
        std::fs::write(tree.join("etc/ironroot/keys/state"), key).unwrap();
        let archive = Command::new("sh")
            .args(["-c", "find . -mindepth 1 | cpio --quiet -o -H newc -R 0:0"])
            .current_dir(&tree)
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(archive.status.success());
        let initrd = self.folder.path().join(format!("initrd-{}", key.len()));
        std::fs::copy(initramfs(), &initrd).unwrap();
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&initrd)
            .unwrap();
        let length = file.metadata().unwrap().len();
        let padding = usize::try_from(length.next_multiple_of(512) - length).unwrap();
        file.write_all(&vec![0; padding]).unwrap();
        file.write_all(&archive.stdout).unwrap();
        initrd
    }

    fn boot(&self, initrd: &Path, preserve: &Value, words: &str, more: &[&str]) -> String {
        let config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "metadata": { "claim": "a/1" },
            "image": { "url": "/dev/vda" },
            "memory": {},
            "preserve": preserve,
        });
        let config = config.to_string().replace('"', "%22");
        let words =
            format!("ip=off ironroot.on-failure=poweroff {words} ironroot.config=data:,{config}");
        let disk = format!("--disk={},bus=virtio,serial=state", self.state.display());
        let mut all = vec![disk.as_str(), "--wait-end", "--memory=768"];
        all.extend(more);
        let direct = Direct::of(&lab("kernel/vmlinuz"), initrd, &self.image, &words);
        let console = direct.run(&all).good();
        assert!(!console.contains(SECRET), "the key is on the console");
        console
    }
}

const UP: &str = "--until=IRONROOT-TINY-BOOTED.*payload=ok";

fn entry(target: &str, more: Value) -> Value {
    let mut entry = json!({
        "target": target,
        "source": { "partlabel": "state", "disk": { "serial": "state" } },
        "subdir": target.trim_start_matches('/'),
        "format": "IfBlank",
        "create": "160MiB",
        "luks": { "keyFile": "/etc/ironroot/keys/state" },
    });
    if let Value::Object(more) = more {
        entry.as_object_mut().unwrap().extend(more);
    }
    entry
}

#[test]
fn an_encrypted_partition_is_made_once_and_opens_to_its_key() {
    let bench = Bench::new("tiny.squashfs");
    let entries = json!([
        entry("/srv/kept", json!({ "claimBound": true })),
        entry("/etc/machine-id", json!({ "kind": "file", "subdir": "id" })),
    ]);
    let initrd = bench.initrd(SECRET);
    let console = bench.boot(&initrd, &entries, "", &[UP]);
    for said in [
        "make partition 1 \"state\" (160.0 MiB) on /dev/vdb",
        "ERASE: make ext4 inside LUKS2",
    ] {
        assert!(console.contains(said), "{said}: {console}");
    }
    let verified = Command::new("sgdisk")
        .arg("-v")
        .arg(&bench.state)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(text.contains("No problems found"), "{text}");
    let bytes = std::fs::read(&bench.state).unwrap();
    let has = |what: &[u8]| bytes.windows(what.len()).any(|w| w == what);
    assert!(bytes[1 << 20..].starts_with(b"LUKS\xba\xbe"));
    assert!(!has(SECRET.as_bytes()) && !has(b"ironroot-unfinished"));
    // The name of what is preserved is in the file system, which nobody sees without the key.
    assert!(!has(b"lost+found") && !has(b".ironroot"));

    // Found again: a config that could not make anything any more. What is there belongs to the claim still.
    let found = json!([
        entry(
            "/srv/kept",
            json!({ "claimBound": true, "create": null, "source": { "partlabel": "state" }, "format": "Never" })
        ),
        entry(
            "/etc/machine-id",
            json!({ "kind": "file", "subdir": "id", "create": null, "source": { "partlabel": "state" }, "format": "Never" })
        ),
    ]);
    let console = bench.boot(&initrd, &found, "", &[UP]);
    assert!(
        console.contains("crypto_LUKS, with the key file") && !console.contains("ERASE"),
        "{console}"
    );

    let wrong = bench.initrd("another key");
    let console = bench.boot(&wrong, &entries, "", &["--until=FAILED .code 16."]);
    assert!(
        console.contains(
            "the key file /etc/ironroot/keys/state does not open the encrypted /dev/vdb1"
        ),
        "{console}"
    );
}

/// What is on the state disk by another machine: its file system was unmounted in order.
const LOOK: &str = r#"
disk=; for d in /sys/block/vd*; do disk=/dev/${d##*/}; done
try cryptsetup open --readonly --key-file /key ${disk}1 look
dumpe2fs -h /dev/mapper/look 2>&1
try mount -o ro /dev/mapper/look /mnt
echo "journal: $(ls /mnt/log/journal | tr '\n' ' ')"
"#;

/// A real system writes to an encrypted partition until its end; systemd unmounts it, and closes the mapping.
#[test]
fn matrix_debian_closes_what_is_encrypted() {
    let bench = Bench::new("debian.squashfs");
    let entries = json!([
        entry(
            "/var/log",
            json!({ "subdir": "log", "seed": "FromImageOnce" })
        ),
        entry("/etc/machine-id", json!({ "kind": "file", "subdir": "id" })),
    ]);
    let initrd = bench.initrd(SECRET);
    let more = [
        "--memory=1280",
        "--timeout=560",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=",
        "--until=All DM devices detached",
    ];
    let folder = tempfile::tempdir().unwrap();
    let modules = [
        "virtio_pci",
        "virtio_blk",
        "dm-mod",
        "dm-crypt",
        "algif_skcipher",
        "ecb",
        "xts",
        "ext4",
    ];
    for _ in 0..2 {
        let console = bench.boot(&initrd, &entries, "loglevel=7 demo.poweroff", &more);
        assert!(console.contains("failed=[]"), "{console}");
        let looker =
            script_machine::Initrd::new(folder.path(), &modules, &["cryptsetup", "dumpe2fs"]);
        looker.file("key", SECRET.as_bytes());
        std::fs::create_dir_all(looker.root().join("mnt")).unwrap();
        let disk = format!(
            "--disk={},bus=virtio,serial=state,readonly",
            bench.state.display()
        );
        let text = looker.boot(LOOK, &[disk]);
        assert!(
            text.contains("Filesystem state:         clean") && !text.contains("needs_recovery"),
            "{text}"
        );
        assert!(text.contains("journal: "), "{text}");
        std::fs::remove_dir_all(looker.root()).unwrap();
    }
}
