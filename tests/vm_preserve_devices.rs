//! Sources that the kernel of the test's own machine does not have: an md array, the inside of an encrypted device,
//! partitions of a GPT; and encrypted sources over several sessions with one damaged header after another. One machine
//! plays all of it.
//!
//! Needs root and the kernel of `scripts/lab` (`scripts/test` makes it).
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
use std::path::{Path, PathBuf};

use script_machine::{Initrd, blank, run};
use serde_json::{Value, json};

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "dm-mod",
    "dm-crypt",
    "raid1",
    "algif_skcipher",
    "ecb",
    "xts",
    "loop",
    "squashfs",
    "overlay",
    "ext4",
];

/// `play NAME WHAT` starts a session with the config WHAT.json, and shows what stands at /srv in it.
const PLAY: &str = r#"
play() {
    echo "== $1"
    busybox unshare -m sh -c '
        /ironroot initrd --sysroot /sysroot --config /$1.json 2>&1; code=$?
        echo "exit $code"
        [ $code = 0 ] || exit
        n=$(cat /sysroot/srv/n 2>/dev/null || echo 0)
        echo "f=$(cat /sysroot/srv/f 2>/dev/null) n=$n"
        [ ! -e /sysroot/srv/count ] || echo $((n + 1)) >/sysroot/srv/n' sh "$2"
    for name in 0 1; do
        cryptsetup close ironroot-state-$name >/dev/null 2>&1; rm -f /dev/mapper/ironroot-state-$name
    done
}
disk() {
    for d in /sys/block/vd*; do
        [ "$(cat $d/serial 2>/dev/null)" != "$1" ] || echo /dev/${d##*/}
    done
}
fill() { mkdir -p /m; try mount "$1" /m; echo "$2" >/m/f; }
echo "a key" >/key
echo "another key" >/other-key
mkdir -p /sysroot
"#;

const SOURCES: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -n "$(disk w)" && break; sleep 1; done
try mdadm --create /dev/md0 --run --assume-clean --homehost=any --level=1 --raid-devices=2 $(disk m1) $(disk m2)
try /sbin/mke2fs -q -F -t ext4 -L MD /dev/md0
fill /dev/md0 array; try umount /m
try cryptsetup -q luksFormat --pbkdf pbkdf2 --pbkdf-force-iterations 1000 $(disk c) /key
try cryptsetup open --key-file /key $(disk c) byhand
try /sbin/mke2fs -q -F -t ext4 -L MAP /dev/mapper/byhand
fill /dev/mapper/byhand map; try umount /m
fill $(disk full) full
dd if=/dev/zero of=/m/fill bs=64k 2>/dev/null; dd if=/dev/zero of=/m/fill2 bs=1k 2>/dev/null
try umount /m
sync

for what in array array-by-path member map map-by-path create-on-map two full read-only corrupt; do
    play $what $what
    [ ! -e /$what-optional.json ] || play $what-optional $what-optional
done
play wrong-key wrong-key

"#;

const HEADERS: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -n "$(disk u)" && break; sleep 1; done
s=$(disk s)

play luks-made if-blank
try cryptsetup open --key-file /key $s look
fill /dev/mapper/look kept; touch /m/count; try umount /m
try cryptsetup close look
play luks-2 if-blank
play luks-3 never
play luks-4 if-blank
echo "== torn"
# Half of the first header's text, as a write leaves it that was cut off: the second header is whole.
head -c 4096 /dev/zero | tr '\0' x | dd of=$s bs=4096 seek=2 conv=notrunc 2>/dev/null
sync; echo 3 >/proc/sys/vm/drop_caches
play luks-5 if-blank
play luks-6 never
echo "== gone"
# All of the first header.
dd if=/dev/zero of=$s bs=4096 count=4 conv=notrunc 2>/dev/null
sync; echo 3 >/proc/sys/vm/drop_caches
play luks-7 if-blank
play luks-8 never
play luks-9 if-blank
echo "== both gone"
for seek in 2 6; do head -c 4096 /dev/zero | tr '\0' x | dd of=$s bs=4096 seek=$seek conv=notrunc 2>/dev/null; done
sync; echo 3 >/proc/sys/vm/drop_caches
before=$(busybox sha256sum <$s)
play luks-broken if-blank
[ "$before" = "$(busybox sha256sum <$s)" ] && echo "not a byte was written"

# The power went while the first header was told that the file system is there, before anything was stored: the
# second one still says unfinished. A session that may not format stores something, and one that may comes after it.
u=$(disk u)
try cryptsetup -q luksFormat --type luks2 --label ironroot-unfinished $u /key
try cryptsetup open --key-file /key $u made
try /sbin/mke2fs -q -F -t ext4 /dev/mapper/made
fill /dev/mapper/made kept; touch /m/count; try umount /m
try cryptsetup close made
head -c 4096 /dev/zero | tr '\0' x | dd of=$u bs=4096 seek=2 conv=notrunc 2>/dev/null
sync; echo 3 >/proc/sys/vm/drop_caches
play unfinished-1 never-u
play unfinished-2 if-blank-u
play unfinished-3 never-u
"#;

fn entry(source: &Value, more: &Value) -> Value {
    let mut entry = json!({ "target": "/srv", "source": source });
    for (key, value) in more.as_object().unwrap() {
        entry[key] = value.clone();
    }
    entry
}

fn config(initrd: &Initrd, name: &str, entry: &Value) {
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "metadata": { "claim": "a/1" },
        "image": { "url": "/image.squashfs", "insecure": true },
        "memory": {},
        "wait": "0s",
        "preserve": [entry],
    });
    initrd.file(&format!("{name}.json"), config.to_string().as_bytes());
}

fn image(folder: &Path, to: &Path) {
    let root = folder.join("image");
    small_system::busybox(&root);
    fs::create_dir_all(root.join("srv")).unwrap();
    fs::write(root.join("srv/f"), "image\n").unwrap();
    std::os::unix::fs::symlink("/bin/busybox", root.join("sbin/init")).unwrap();
    fs::write(root.join("etc/os-release"), "ID=test\n").unwrap();
    let all = [
        root.to_str().unwrap(),
        to.to_str().unwrap(),
        "-quiet",
        "-no-progress",
    ];
    run("mksquashfs", &all);
}

/// A file system with `f` in it.
fn ext4(folder: &Path, name: &str, mib: u64) -> PathBuf {
    let content = folder.join(format!("{name}-content"));
    fs::create_dir(&content).unwrap();
    fs::write(content.join("f"), name).unwrap();
    let disk = blank(folder, name, mib);
    let text = disk.to_str().unwrap();
    let from = content.to_str().unwrap();
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-d", from, text]);
    disk
}

fn on(serial: &str) -> Value {
    json!({ "disk": { "serial": serial } })
}

fn luks(key: &str, format: &str) -> Value {
    json!({ "format": format, "luks": { "keyFile": key } })
}

fn drive(path: &Path, serial: &str) -> String {
    format!("--disk={},bus=virtio,serial={serial}", path.display())
}

/// What the console said of one session.
struct Seen<'a>(&'a str);

impl Seen<'_> {
    #[track_caller]
    fn has(&self, name: &str, wanted: &[&str]) {
        let part = script_machine::part(self.0, name);
        for text in wanted {
            assert!(part.contains(text), "{name}: {text:?}\n{part}");
        }
    }

    #[track_caller]
    fn refused(&self, name: &str, wanted: &[&str]) {
        self.has(name, &["exit 16", "FAILED (code 16)"]);
        self.has(name, wanted);
    }
}

#[test]
fn sources_that_this_machine_does_not_have_and_such_as_cannot_serve() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let tools = ["mdadm", "cryptsetup", "mke2fs", "e2fsck"];
    let initrd = Initrd::new(folder, MODULES, &tools);
    image(folder, &initrd.root().join("image.squashfs"));

    let path = |path: &str| json!({ "disk": { "path": path } });
    let none = json!({});
    let optional = |more: &Value| {
        let mut more = more.clone();
        more["required"] = json!(false);
        more
    };
    let plain = |name: &str, source: &Value, more: &Value| {
        config(&initrd, name, &entry(source, more));
    };
    plain("array", &json!({ "label": "MD" }), &none);
    plain("array-by-path", &path("/dev/md0"), &none);
    plain("member", &on("m1"), &json!({ "format": "IfBlank" }));
    plain("map", &json!({ "label": "MAP" }), &none);
    plain("map-by-path", &path("/dev/mapper/byhand"), &none);
    let create = json!({ "format": "IfBlank", "create": "8MiB" });
    let on_map = json!({ "partlabel": "new", "disk": { "path": "/dev/mapper/byhand" } });
    plain("create-on-map", &on_map, &create);
    let format = json!({ "format": "IfBlank" });
    let filled = json!({ "subdir": "new", "seed": "FromImageOnce" });
    let sources = [
        ("two", json!({ "partlabel": "two" }), &format),
        ("full", on("full"), &filled),
        ("read-only", on("ro"), &none),
        ("corrupt", on("bad"), &format),
    ];
    for (name, source, more) in &sources {
        plain(name, source, more);
        plain(&format!("{name}-optional"), source, &optional(more));
    }
    plain(
        "wrong-key",
        &on("w"),
        &optional(&luks("/other-key", "Never")),
    );

    let two = blank(folder, "two", 32);
    let partitions = ["-n1:2048:+8M", "-n2:0:+8M", "-c1:two", "-c2:two"];
    run(
        "sgdisk",
        &[&partitions[..], &[two.to_str().unwrap()]].concat(),
    );
    let bad = ext4(folder, "bad", 24);
    let text = bad.to_str().unwrap();
    let dump = run("dumpe2fs", &[text]);
    let number = |key: &str| -> u64 {
        let rest = dump.split(key).nth(1).unwrap().trim_start();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    let at = usize::try_from(number("Inode table at ") * number("Block size:")).unwrap();
    run("debugfs", &["-w", "-R", "ssv state 2", text]);
    let mut bytes = fs::read(&bad).unwrap();
    for byte in &mut bytes[at..at + 8192] {
        *byte ^= 0x5a;
    }
    fs::write(&bad, &bytes).unwrap();
    let wrong = blank(folder, "w", 24);
    fs::write(folder.join("key"), "a key\n").unwrap();
    let key = folder.join("key");
    let weak = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let place = [wrong.to_str().unwrap(), key.to_str().unwrap()];
    run(
        "cryptsetup",
        &[&["-q", "luksFormat"], &weak[..], &place].concat(),
    );

    let mut options = Vec::new();
    for (serial, path) in [
        ("m1", blank(folder, "m1", 24)),
        ("m2", blank(folder, "m2", 24)),
        ("c", blank(folder, "c", 32)),
        ("two", two.clone()),
        ("full", ext4(folder, "full", 12)),
        ("bad", bad.clone()),
        ("w", wrong),
    ] {
        options.push(drive(&path, serial));
    }
    options.push(drive(&ext4(folder, "ro", 12), "ro") + ",readonly");
    let console = initrd.boot(&format!("{PLAY}{SOURCES}"), &options);
    let seen = Seen(&console);
    for (name, content) in [
        ("array", "array"),
        ("array-by-path", "array"),
        ("map", "map"),
        ("map-by-path", "map"),
    ] {
        seen.has(name, &["exit 0\n", &format!("f={content} n=0")]);
    }
    seen.refused("member", &["is part of", "md0"]);
    seen.refused("create-on-map", &["device mapper"]);
    let image = ["exit 0\n", "f=image n=0", "shows the image's content"];
    for (name, why) in [
        ("two", "2 devices have that name"),
        ("full", "o space left"),
        ("read-only", "is read-only"),
        ("corrupt", "is damaged"),
    ] {
        seen.refused(name, &[why]);
        seen.has(&format!("{name}-optional"), &image);
        seen.has(&format!("{name}-optional"), &[why]);
    }
    let both = fs::read(&two).unwrap();
    assert!(both[1 << 20..17 << 20].iter().all(|b| *b == 0), "formatted");
    seen.has("wrong-key", &image);
    seen.has("wrong-key", &["does not open"]);
}

#[test]
fn matrix_no_damaged_header_and_no_order_of_configs_loses_what_is_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let initrd = Initrd::new(folder, MODULES, &["cryptsetup", "mke2fs", "e2fsck"]);
    image(folder, &initrd.root().join("image.squashfs"));
    for (name, format) in [("if-blank", "IfBlank"), ("never", "Never")] {
        config(&initrd, name, &entry(&on("s"), &luks("/key", format)));
        let name = format!("{name}-u");
        config(&initrd, &name, &entry(&on("u"), &luks("/key", format)));
    }
    let options = ["s", "u"].map(|name| drive(&blank(folder, name, 48), name));
    let options = [&options[..], &["--timeout=900".to_owned()]].concat();
    let console = initrd.boot(&format!("{PLAY}{HEADERS}"), &options);
    let seen = Seen(&console);
    seen.has("luks-made", &["exit 0\n", "making a LUKS2 header"]);
    for (name, n) in [
        ("luks-2", 0),
        ("luks-3", 1),
        ("luks-4", 2),
        ("luks-5", 3),
        ("luks-6", 4),
        ("luks-7", 5),
        ("luks-8", 6),
        ("luks-9", 7),
        ("unfinished-1", 0),
        ("unfinished-2", 1),
        ("unfinished-3", 2),
    ] {
        seen.has(name, &["exit 0\n", &format!("f=kept n={n}")]);
        let part = script_machine::part(&console, name);
        assert!(!part.contains("making"), "{name}: {part}");
    }
    seen.refused("luks-broken", &["not a byte was written"]);
}
