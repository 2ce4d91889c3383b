//! Preserved paths whose sources or targets are not as they should be: damaged, full, read-only, missing, taken,
//! ambiguous, another claim's. What is required stops the boot with code 16 and says why; what is optional is warned
//! of, and the image's content is seen. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
#[path = "support/loop_device.rs"]
mod loop_device;
#[path = "support/preserving.rs"]
mod preserving;
#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;
#[allow(dead_code)]
#[path = "support/session.rs"]
mod session;

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

use loop_device::LoopDevice;
use preserving::{Bench, entry, ext4, inside};
use serde_json::{Value, json};
use session::tool;

const IMAGE: &str = "mkdir -p srv/d; echo image >srv/f; echo image >single; mkdir -p etc/app; echo image >etc/app/f";

/// Required, it stops the boot with `parts`; optional, it is warned of and the image's content is seen.
#[track_caller]
fn stops_or_shows_the_image(bench: &Bench, entry: &Value, parts: &[&str]) {
    let mut optional = entry.clone();
    optional["required"] = json!(false);
    let target = entry["target"].as_str().unwrap();
    bench.play(json!([entry]), "").failed_with(16, parts);
    let look = format!(
        r#"p="$root{target}"; echo "f=$(if [ -d "$p" ]; then cat "$p/f"; else cat "$p"; fi)"; echo "mounted=$(grep -c " $p " /proc/self/mountinfo)""#
    );
    let seen = bench.good(json!([optional]), &look);
    assert_eq!(seen.fact("f"), "image", "{}", seen.ended.stderr);
    assert_eq!(seen.fact("mounted"), "0");
    let stderr = &seen.ended.stderr;
    assert!(stderr.contains("shows the image's content"), "{stderr}");
}

/// Turns bits over in bytes of the device.
fn flip(device: &LoopDevice, at: u64, count: usize) {
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(device.path())
        .unwrap();
    let mut bytes = vec![0; count];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    for byte in &mut bytes {
        *byte ^= 0x5a;
    }
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
    loop_device::tool("blockdev", &["--flushbufs", device.arg()]);
}

/// A number that dumpe2fs prints behind `key`.
fn number(device: &LoopDevice, key: &str) -> u64 {
    let text = loop_device::tool("dumpe2fs", &[device.arg()]);
    let found = text.split(key).nth(1).expect(key).trim_start();
    let digits: String = found.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect(key)
}

/// With data in it that must not be lost.
fn filled(options: &[&str]) -> LoopDevice {
    let device = ext4(24, options);
    inside(&device, "mkdir $m/d; echo kept >$m/d/f");
    device
}

#[test]
fn bits_that_flipped_in_a_file_system_are_found() {
    let bench = Bench::new(IMAGE);
    let at = |device: &LoopDevice| entry("/srv", device, json!({ "subdir": "d" }));
    // The magic number of the superblock (offset 56 of it; Linux, fs/ext4/ext4.h): no file system any more, and no
    // blank device.
    let device = filled(&[]);
    flip(&device, 1024 + 56, 2);
    let before = device.bytes();
    let mut formatted = at(&device);
    formatted["format"] = json!("IfBlank");
    for entry in [at(&device), formatted] {
        stops_or_shows_the_image(&bench, &entry, &[device.name(), "unknown data"]);
    }
    assert!(device.bytes() == before, "not a byte was written");
    // Its count of inodes, and with that its checksum: e2fsck does not go on.
    let device = filled(&[]);
    flip(&device, 1024, 4);
    stops_or_shows_the_image(
        &bench,
        &at(&device),
        &[device.name(), "could not be checked"],
    );
    // The inode table.
    let device = filled(&[]);
    let block = number(&device, "Block size:");
    let table = number(&device, "Inode table at ");
    flip(&device, table * block, 8192);
    loop_device::tool("debugfs", &["-w", "-R", "ssv state 2", device.arg()]);
    stops_or_shows_the_image(
        &bench,
        &at(&device),
        &["is damaged", "next: look at it with `e2fsck`"],
    );
    // The journal: its own superblock, of a file system that has to be replayed.
    let device = filled(&[]);
    loop_device::tool(
        "debugfs",
        &["-w", "-R", "feature +needs_recovery", device.arg()],
    );
    let map = loop_device::tool("debugfs", &["-R", "bmap <8> 0", device.arg()]);
    let journal: u64 = map.lines().find_map(|l| l.trim().parse().ok()).unwrap();
    flip(&device, journal * block, 64);
    let seen = bench.play(json!([at(&device)]), r#"echo "f=$(cat "$root/srv/f")""#);
    // e2fsck may make a new journal by itself: then nothing is lost, and it is said.
    if seen.ended.code == Some(0) {
        assert_eq!(seen.fact("f"), "kept");
        assert!(
            seen.ended
                .stderr
                .contains("had errors, which were corrected")
        );
    } else {
        stops_or_shows_the_image(&bench, &at(&device), &["is damaged"]);
    }
}

#[test]
fn a_source_that_cannot_take_what_is_wanted_leaves_the_image_to_be_seen() {
    let bench = Bench::new(&format!("{IMAGE}; head -c 3000000 /dev/urandom >srv/big"));
    let full = filled(&[]);
    inside(
        &full,
        "cp $m/d/f $m/fill; dd if=/dev/zero of=$m/fill bs=64k status=none 2>/dev/null || true; dd if=/dev/zero of=$m/fill2 bs=1k status=none 2>/dev/null || true",
    );
    let seeded = json!({ "subdir": "new", "seed": "FromImageOnce" });
    stops_or_shows_the_image(
        &bench,
        &entry("/srv", &full, seeded),
        &["/srv cannot be preserved", "o space left"],
    );
    let left = inside(
        &full,
        "ls -d $m/new $m/.ironroot/records/*.json 2>/dev/null || true; cat $m/d/f",
    );
    assert_eq!(left, "kept\n");
    let protected = LoopDevice::attached(&full.bytes(), &["--read-only"]);
    let writes = entry("/srv", &protected, json!({ "subdir": "d" }));
    stops_or_shows_the_image(&bench, &writes, &["is read-only"]);
    let blank = LoopDevice::attached(&vec![0; 16 << 20], &["--read-only"]);
    let formats = entry("/srv", &blank, json!({ "format": "IfBlank" }));
    stops_or_shows_the_image(&bench, &formats, &["is read-only"]);
}

#[test]
fn a_missing_source_is_waited_for_and_then_refused() {
    let bench = Bench::new(IMAGE);
    for (required, code) in [(true, 16), (false, 0)] {
        let mut config = bench.config(json!([
            { "target": "/srv", "source": { "partlabel": "nobody-has-this" }, "required": required }
        ]));
        config["wait"] = json!("3s");
        let begun = std::time::Instant::now();
        let seen = bench.play_config(&config, r#"echo "f=$(cat "$root/srv/f")""#);
        assert!(begun.elapsed().as_secs() >= 3, "it was not waited for");
        let stderr = &seen.ended.stderr;
        assert_eq!(seen.ended.code, Some(code), "{stderr}");
        for part in ["waiting for ", "no device has that name"] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        if !required {
            assert_eq!(seen.fact("f"), "image");
        }
    }
}

#[test]
fn two_partitions_of_one_name_are_refused_and_one_place_has_one_name() {
    let bench = Bench::new(IMAGE);
    let name = format!("two{}", std::process::id());
    let device = LoopDevice::blank(40);
    let label = |n: u32| format!("-c{n}:{name}");
    tool(
        "sgdisk",
        &[
            "-n1:2048:+12M",
            "-n2:0:+12M",
            &label(1),
            &label(2),
            device.arg(),
        ],
    );
    for (number, start) in [("1", "2048"), ("2", "26624")] {
        let _ = loop_device::try_tool("addpart", &[device.arg(), number, start, "24576"]);
    }
    assert_eq!(device.partitions(), [1, 2]);
    let before = device.bytes();
    let by_name = json!({ "target": "/srv", "source": { "partlabel": name }, "format": "IfBlank" });
    stops_or_shows_the_image(
        &bench,
        &by_name,
        &["2 devices have that name", device.name()],
    );
    assert!(device.bytes() == before, "neither was formatted");

    // The same place by two names of the device, or one place in another.
    let one = ext4(24, &["-L", &name]);
    inside(&one, "mkdir -p $m/a/b");
    for (first, second) in [("a", "a"), ("a", "a/b"), ("a/b", "a")] {
        let entries = json!([
            entry("/srv", &one, json!({ "subdir": first })),
            { "target": "/opt", "source": { "label": name }, "subdir": second },
        ]);
        bench
            .play(entries, "")
            .failed_with(16, &["at the same place, or one is inside the other"]);
        // By one name it is a mistake of the config.
        let entries = json!([
            entry("/srv", &one, json!({ "subdir": first })),
            entry("/opt", &one, json!({ "subdir": second })),
        ]);
        bench
            .play(entries, "")
            .failed_with(10, &["preserve[1].subdir", "the same place"]);
    }
}

/// Whatever a device holds: IfBlank writes not a byte to it.
#[test]
fn every_kind_of_content_keeps_a_device_from_being_formatted() {
    let bench = Bench::new(IMAGE);
    let play = |device: &LoopDevice| {
        let entry = entry(
            "/srv",
            device,
            json!({ "format": "IfBlank", "filesystem": "ext4", "subdir": "x" }),
        );
        bench.play(json!([entry]), "")
    };
    // How it is made, how large, and what is found.
    for (script, mib, part) in [
        ("mkfs.xfs -q -f", 320, "xfs"),
        ("mkfs.vfat", 16, "vfat"),
        ("mkfs.exfat", 16, "exfat"),
        ("mkfs.ntfs -q -F", 16, "ntfs"),
        ("mkfs.f2fs -q -f", 64, "f2fs"),
        (
            "cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file /etc/os-release",
            32,
            "luks",
        ),
        (
            "cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --key-file /etc/os-release",
            16,
            "luks",
        ),
        ("make-bcache -B", 16, "bcache"),
        ("mke2fs -q -F -t ext4 -O journal_dev", 16, "jbd"),
        (
            "sgdisk -Z >/dev/null 2>&1; echo 'label: dos' | sfdisk -q",
            16,
            "dos on",
        ),
        ("f() { mkfs.erofs --quiet $1 /etc/apt; }; f", 16, "erofs"),
        (
            "f() { mksquashfs /etc/apt $1.sq -quiet -no-progress && dd if=$1.sq of=$1 conv=notrunc status=none && rm $1.sq; }; f",
            16,
            "squashfs",
        ),
        // What is left of a GPT whose first sectors were zeroed.
        (
            "f() { sgdisk -n1:0:0 $1 && dd if=/dev/zero of=$1 bs=1M count=1 conv=notrunc; }; f",
            16,
            "gpt",
        ),
        // A superblock of md, version 1.2: at 4 KiB (Linux, include/uapi/linux/raid/md_p.h); and of version 1.0, 8 KiB
        // before the end.
        (
            "f() { printf '\\374N+\\251\\001\\0\\0\\0' | dd of=$1 bs=4096 seek=1 conv=notrunc; }; f",
            16,
            "linux_raid_member on",
        ),
        (
            "f() { printf '\\374N+\\251\\001\\0\\0\\0' | dd of=$1 bs=4096 seek=4094 conv=notrunc; }; f",
            16,
            "linux_raid_member on",
        ),
        // The label of LVM in the second sector.
        (
            "f() { printf 'LABELONE\\001\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\040\\0\\0\\0LVM2 001' | dd of=$1 bs=512 seek=1 conv=notrunc; }; f",
            16,
            "lvm2_member on",
        ),
        // A DDF anchor in the last sector (SNIA Common RAID DDF, 5.1), and four uberblocks of a ZFS label (OpenZFS,
        // include/sys/uberblock_impl.h), where the table of signatures sees one.
        (
            "f() { printf '\\336\\021\\336\\021' | dd of=$1 bs=512 seek=$((16 * 2048 - 1)) conv=notrunc; }; f",
            16,
            "ddf_raid_member on",
        ),
        (
            "f() { for i in 0 1 2 3 4 5; do printf '\\014\\261\\272\\000\\000\\000\\000\\000' | dd of=$1 bs=1024 seek=$((128 + i)) conv=notrunc; done; }; f",
            16,
            "zfs_member on",
        ),
        // Sectors of ones among zeros are no erased flash.
        (
            "f() { head -c 512 /dev/zero | tr '\\0' '\\377' | dd of=$1 bs=512 seek=100 conv=notrunc; }; f",
            16,
            "unknown data",
        ),
        // No signature at all: a byte in the first MiB, and one in the last.
        (
            "f() { printf x | dd of=$1 bs=1 seek=1048575 conv=notrunc; }; f",
            16,
            "unknown data",
        ),
        (
            "f() { printf x | dd of=$1 bs=1 seek=$((15 << 20)) conv=notrunc; }; f",
            16,
            "unknown data",
        ),
    ] {
        let device = LoopDevice::blank(mib);
        // On a copy: a tool that knows loop devices leaves things behind in the kernel.
        let file = device.directory().join("made");
        std::fs::write(&file, vec![0u8; mib << 20]).unwrap();
        let line = format!("{{ {script} {}; }} >/dev/null 2>&1", file.display());
        let (good, text) = loop_device::try_tool("sh", &["-c", &line]);
        assert!(good, "{script}: {text}");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.resize(mib << 20, 0);
        assert!(bytes.iter().any(|byte| *byte != 0), "{script} made nothing");
        std::fs::write(device.path(), &bytes).unwrap();
        let before = device.written();
        let seen = play(&device);
        let stderr = &seen.ended.stderr;
        assert_eq!(seen.ended.code, Some(16), "{script}: {stderr}");
        assert!(stderr.contains(device.name()), "{script}: {stderr}");
        let found = stderr.to_lowercase();
        assert!(found.contains(part), "{script}: {part}: {stderr}");
        assert!(device.bytes() == bytes, "{script}");
        assert_eq!(device.written(), before, "{script}");
    }
}

#[test]
fn a_target_that_leads_out_or_is_of_another_kind_is_refused() {
    let bench = Bench::new(&format!(
        "{IMAGE}; mkdir tmp; ln -s ../../../../../../tmp out; ln -s /proc/self/root magic; ln -s /proc/self/cwd/tmp magic2; ln -s loop1 loop2; ln -s loop2 loop1"
    ));
    let device = filled(&[]);
    let marker = format!("keep-{}", std::process::id());
    for target in ["/srv/../etc/x", "srv", "/srv/./x", "/srv//x/.."] {
        let seen = bench.play(
            json!([entry(target, &device, json!({ "subdir": "x" }))]),
            "",
        );
        seen.failed_with(10, &["preserve[0].target"]);
    }
    for (target, part) in [
        ("/out/x", ""),
        ("/magic", "/magic"),
        ("/magic/tmp", "/magic"),
        ("/magic2", "/magic2"),
        ("/loop1/x", "/loop1"),
        ("/etc/os-release/x", "/etc/os-release"),
        ("/etc/os-release", "is no directory"),
    ] {
        let entries = json!([entry(target, &device, json!({ "subdir": "x" }))]);
        let seen = bench.play(entries, &format!("touch $root{target}/{marker}"));
        if part.is_empty() {
            // Inside the root, it is a directory of the image like any other.
            assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        } else {
            seen.failed_with(16, &[part]);
        }
        for at in ["/tmp", "/"] {
            assert!(!std::path::Path::new(at).join(&marker).exists(), "{target}");
        }
    }
    let file = |target: &str, subdir: &str| {
        entry(target, &device, json!({ "kind": "file", "subdir": subdir }))
    };
    for (entry, part) in [
        (file("/srv", "new"), "is no file"),
        (file("/single", "d"), "d on"),
        (
            entry("/srv", &device, json!({ "subdir": "d/f" })),
            "is a file, not a directory",
        ),
        (file("/srv/f/below", "new2"), "/srv/f/below"),
    ] {
        bench.play(json!([entry]), "").failed_with(16, &[part]);
    }
    let left = inside(&device, "cat $m/d/f; ls $m");
    assert!(left.starts_with("kept\n"), "{left}");
    assert!(!left.contains("new"), "{left}");
}

#[test]
fn another_claim_gets_no_overlay_and_no_file_either() {
    let bench = Bench::new(IMAGE);
    for (target, more, path) in [
        ("/etc/app", json!({ "method": "overlay" }), "/etc/app/f"),
        ("/single", json!({ "kind": "file" }), "/single"),
    ] {
        let device = filled(&[]);
        let play = |claim: &str, keys: &Value| {
            let mut all = json!({ "subdir": "t", "claimBound": true });
            for keys in [&more, keys] {
                for (key, value) in keys.as_object().unwrap() {
                    all[key] = value.clone();
                }
            }
            let mut config = bench.config(json!([entry(target, &device, all)]));
            config["metadata"]["claim"] = json!(claim);
            bench.play_config(
                &config,
                &format!(
                    r#"echo "before=$(cat "$root{path}")"; echo "of {claim}" >"$root{path}"; sync"#
                ),
            )
        };
        let fresh = if target == "/single" { "" } else { "image" };
        let none = json!({});
        assert_eq!(play("a", &none).fact("before"), fresh);
        assert_eq!(play("a", &none).fact("before"), "of a");
        play("b", &none).failed_with(16, &["belongs to claim a", "for b"]);
        play("b", &json!({ "claimBound": false })).failed_with(16, &["belongs to claim a"]);
        assert_eq!(play("a", &none).fact("before"), "of a");
        assert_eq!(
            play("b", &json!({ "otherClaim": "Erase" })).fact("before"),
            fresh
        );
        assert_eq!(play("b", &none).fact("before"), "of b");
        play("a", &none).failed_with(16, &["belongs to claim b"]);
        // Not a block of it: the file system gave its blocks back, and names nothing any more.
        let left = inside(&device, "grep -rl 'of a' $m || true");
        assert_eq!(left, "");
    }
}

#[test]
fn a_record_that_says_nothing_or_is_of_a_later_version_refuses() {
    let bench = Bench::new(IMAGE);
    let device = ext4(24, &[]);
    let bound = |more: Value| {
        let mut all = json!({ "subdir": "t", "claimBound": true });
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        entry("/srv", &device, all)
    };
    bench.good(json!([bound(json!({}))]), r#"echo mine >"$root/srv/f""#);
    let record = inside(&device, "cat $m/.ironroot/records/*.json");
    for (text, part) in [
        ("", "is damaged"),
        ("{\"format\": 1", "is damaged"),
        (
            r#"{"format":2,"path":"t","owner":{"claim":"x"}}"#,
            "is of format 2, and this version knows 1",
        ),
        (
            r#"{"format":1,"path":"t","claim":null,"stage":"melting","seeded":false}"#,
            "is damaged",
        ),
    ] {
        let write =
            format!("for f in $m/.ironroot/records/*.json; do printf '%s' '{text}' >$f; done");
        inside(&device, &write);
        stops_or_shows_the_image(&bench, &bound(json!({})), &[part, ".ironroot/records/"]);
        // Not even erasing is allowed: it may be another claim's place around this one.
        let erase = bound(json!({ "otherClaim": "Erase" }));
        stops_or_shows_the_image(&bench, &erase, &[part]);
        assert_eq!(inside(&device, "cat $m/t/f"), "mine\n");
    }
    // A large one is none, whatever it says.
    inside(
        &device,
        "for f in $m/.ironroot/records/*.json; do head -c 200000 /dev/zero >$f; done",
    );
    stops_or_shows_the_image(&bench, &bound(json!({})), &[".ironroot/records/"]);
    inside(
        &device,
        &format!("for f in $m/.ironroot/records/*.json; do printf '%s' '{record}' >$f; done"),
    );
    let seen = bench.good(
        json!([bound(json!({}))]),
        r#"echo "f=$(cat "$root/srv/f")""#,
    );
    assert_eq!(seen.fact("f"), "mine");
}
