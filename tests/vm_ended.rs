//! The helper ended while it has an encrypted source open, in a virtual machine, whose kernel has a device mapper:
//! what it opened is closed, and what others have there stays.
//!
//! Needs root, the kernel of `scripts/lab` and its tiny image (`scripts/test` makes them).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/script_machine.rs"]
mod script_machine;
#[path = "support/small_system.rs"]
mod small_system;

use std::fs;
use std::path::Path;

use script_machine::{Initrd, blank, part};
use serde_json::json;

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "crc32c_generic",
    "overlay",
    "loop",
    "squashfs",
    "dm-mod",
    "dm-crypt",
    "algif_skcipher",
    "xts",
    "essiv",
    "ecb",
    "ctr",
    "sha256_generic",
    "sha512_generic",
];

const PROGRAMS: &[&str] = &["cryptsetup", "mke2fs", "e2fsck", "dmsetup"];

/// Another's device of a name as ours begin, then ours.
const SCRIPT: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -b /dev/vda && test -b /dev/vdb && break; sleep 1; done
mkdir -p /etc/keys /sysroot
echo correct-horse-battery-staple >/etc/keys/state
dmsetup create ironroot-before --table '0 2048 error' >/log 2>&1 || fail dmsetup
/ironroot initrd --config /config.json >/log 2>&1 & ironroot=$!
ours() { grep -lx ironroot-state-0 /sys/block/dm-*/dm/name; }
while ! ours >/dev/null; do
    test -d /proc/$ironroot || fail "it has ended by itself"
    sleep 0.1
done
busybox kill -TERM $ironroot
wait $ironroot
code=$?
echo "== code"
echo $code
echo "== said"
cat /log
# The kernel closes it when the last user is gone: a program that was killed, a mount that was taken away.
for n in 1 2 3 4 5 6 7 8 9 10; do ours >/dev/null || break; sleep 1; done
echo "== mapped"
cat /sys/block/dm-*/dm/name
echo "== mounted"
echo "left:"
grep -E ' (/sysroot|/run/ironroot)' /proc/mounts
echo "== end"
"#;

#[test]
fn an_encrypted_source_is_closed_when_the_helper_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let initrd = Initrd::new(folder.path(), MODULES, PROGRAMS);
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": { "url": "/dev/vda" },
        "memory": {},
        "preserve": [{
            "target": "/srv",
            "source": { "partlabel": "state", "disk": { "serial": "state" } },
            "format": "IfBlank",
            "create": "160MiB",
            "luks": { "keyFile": "/etc/keys/state" },
        }],
    });
    initrd.file("config.json", &serde_json::to_vec(&config).unwrap());
    let image = folder.path().join("image.raw");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/lab/tiny.squashfs");
    fs::copy(tiny, &image).unwrap();
    let file = fs::File::options().append(true).open(&image).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.next_multiple_of(1 << 20)).unwrap();
    let state = blank(folder.path(), "state.raw", 192);
    let console = initrd.boot(
        SCRIPT,
        &[
            format!("--disk={},bus=virtio", image.display()),
            format!("--disk={},bus=virtio,serial=state", state.display()),
        ],
    );
    let said = part(&console, "said");
    assert_eq!(part(&console, "code").trim(), "17", "{said}");
    assert!(said.contains("ended by SIGTERM while at work"), "{said}");
    assert_eq!(part(&console, "mapped").trim(), "ironroot-before");
    assert_eq!(part(&console, "mounted").trim(), "left:");
}
