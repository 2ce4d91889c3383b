//! Sources that the kernel of the test's own machine does not have, in one virtual machine each: FAT, logical volumes,
//! partitions of an array, multipath devices, a firmware's RAID; features of overlays that the kernel has on by default;
//! and the medium that the image comes from, which is never taken.
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

use script_machine::{Initrd, blank, part, run};
use serde_json::{Value, json};

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "dm-mod",
    "dm-multipath",
    "dm-round-robin",
    "md-mod",
    "raid1",
    "loop",
    "squashfs",
    "overlay",
    "ext4",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nls_utf8",
    "nls_iso8859-1",
];

/// `play NAME WHAT` starts a session with the config WHAT.json, counts in the place, and shows what stands there.
const PLAY: &str = r#"
play() {
    echo "== $1"
    busybox unshare -m sh -c '
        /ironroot initrd --sysroot /sysroot --config /$1.json 2>&1; code=$?
        echo "exit $code"
        [ $code = 0 ] || exit
        n=$(cat /sysroot/srv/n 2>/dev/null || echo 0); n=$((n + 1)); echo $n >/sysroot/srv/n
        echo "f=$(cat /sysroot/srv/f 2>/dev/null) n=$n kind=$(stat -fc %T /sysroot/srv)"
        busybox grep " /sysroot/srv " /proc/self/mountinfo
        sync' sh "$2"
}
disk() {
    for d in /sys/block/vd*; do
        [ "$(cat $d/serial 2>/dev/null)" != "$1" ] || echo /dev/${d##*/}
    done
}
await() { for n in 1 2 3 4 5 6 7 8 9 10; do test -b "$1" && return; sleep 1; done; }
fill() { mkdir -p /m; try mount "$1" /m; echo "$2" >/m/f; try umount /m; }
mkdir -p /sysroot
"#;

/// What the console said of one session.
struct Seen<'a>(&'a str);

impl Seen<'_> {
    #[track_caller]
    fn has(&self, name: &str, wanted: &[&str]) {
        let part = part(self.0, name);
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

fn initrd(folder: &Path, programs: &[&str]) -> Initrd {
    let initrd = Initrd::new(folder, MODULES, programs);
    let root = folder.join("image");
    small_system::busybox(&root);
    fs::create_dir_all(root.join("srv")).unwrap();
    fs::write(root.join("srv/f"), "image\n").unwrap();
    std::os::unix::fs::symlink("/bin/busybox", root.join("sbin/init")).unwrap();
    fs::write(root.join("etc/os-release"), "ID=test\n").unwrap();
    let to = initrd.root().join("image.squashfs");
    let all = [
        root.to_str().unwrap(),
        to.to_str().unwrap(),
        "-quiet",
        "-no-progress",
    ];
    run("mksquashfs", &all);
    fs::create_dir_all(initrd.root().join("etc/lvm")).unwrap();
    let settings = "activation { udev_sync = 0 udev_rules = 0 verify_udev_operations = 1 }\n\
                    devices { obtain_device_list_from_udev = 0 external_device_info_source = \"none\" }\n\
                    backup { backup = 0 archive = 0 }\n";
    initrd.file("etc/lvm/lvm.conf", settings.as_bytes());
    initrd
}

fn config(initrd: &Initrd, name: &str, source: &Value, more: &Value) {
    config_of(
        initrd,
        name,
        "a/1",
        &json!({ "url": "/image.squashfs", "insecure": true }),
        source,
        more,
    );
}

fn config_of(
    initrd: &Initrd,
    name: &str,
    claim: &str,
    image: &Value,
    source: &Value,
    more: &Value,
) {
    let mut entry = json!({ "target": "/srv", "source": source });
    entry
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "metadata": { "claim": claim },
        "image": image,
        "memory": {},
        "wait": "0s",
        "preserve": [entry],
    });
    initrd.file(&format!("{name}.json"), config.to_string().as_bytes());
}

fn on(serial: &str) -> Value {
    json!({ "disk": { "serial": serial } })
}

fn at(path: &str) -> Value {
    json!({ "disk": { "path": path } })
}

fn drive(path: &Path, serial: &str) -> String {
    format!("--disk={},bus=virtio,serial={serial}", path.display())
}

/// A file system with `f` in it.
fn ext4(folder: &Path, name: &str, label: &str, mib: u64) -> PathBuf {
    let content = folder.join(format!("{name}-content"));
    fs::create_dir(&content).unwrap();
    fs::write(content.join("f"), name).unwrap();
    let disk = blank(folder, name, mib);
    let (text, from) = (disk.to_str().unwrap(), content.to_str().unwrap());
    run(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-L", label, "-d", from, text],
    );
    disk
}

const DEVICES: &str = r#"
await /dev/sdb
# FAT
play fat-1 fat; play fat-2 fat
play fat-made-1 fat-blank; play fat-made-2 fat-blank
play fat-filled-1 fat-filled; play fat-filled-2 fat-filled
play fat-bound fat-bound; play fat-other fat-other; play fat-case fat-case
play fat-overlay fat-overlay

# Logical volumes
v=$(disk pv)
try lvm pvcreate $v
try lvm vgcreate vg0 $v
try lvm lvcreate -y -Wn -Zn -n data -L 16M vg0
try lvm lvcreate -y -Wn -Zn -n blank -L 16M vg0
try /sbin/mke2fs -q -F -t ext4 -L LV /dev/mapper/vg0-data
ls -l /dev/vg0 /dev/mapper
fill /dev/mapper/vg0-data volume
play lv-label lv-label
play lv-path lv-path
play lv-made-1 lv-blank; play lv-made-2 lv-blank
play lv-pv pv
try lvm vgchange -an vg0
play lv-off lv-label
play lv-off-pv pv

# A partition of an array whose superblock is at the end, so that each disk shows the partition as well
try mdadm --create /dev/md0 --run --assume-clean --homehost=any --metadata=1.0 --level=1 --raid-devices=2 $(disk m1) $(disk m2)
try /sbin/sgdisk -n1:2048:0 -c1:inner /dev/md0
busybox blockdev --rereadpt /dev/md0; await /dev/md0p1
try /sbin/mke2fs -q -F -t ext4 /dev/md0p1
fill /dev/md0p1 array
play md-partition md-partition
play md-member md-member
try mdadm --stop /dev/md0
for m in m1 m2; do busybox blockdev --rereadpt $(disk $m); done
await $(disk m1)1
play md-off md-partition

# Two paths of one unit, without a map and with one
play paths paths
play path-by-node path-by-node
size=$(cat /sys/block/sda/size)
try dmsetup create mpatha --uuid mpath-35000000000000001 --table "0 $size multipath 0 0 1 1 round-robin 0 2 1 8:0 1000 8:16 1000"
play map paths
play map-by-path map-by-path
play path-below path-by-node
try dmsetup remove mpatha

# A firmware's RAID
try mdadm --create /dev/md127 --run --metadata=ddf --level=container --raid-devices=2 $(disk d1) $(disk d2)
play ddf-container ddf
mdadm --stop /dev/md127 >/dev/null 2>&1
play ddf ddf

# What other kernels have on by default
for p in index metacopy redirect_dir xino_auto; do echo Y >/sys/module/overlay/parameters/$p || echo "no parameter $p"; done
play overlay overlay
"#;

#[test]
fn matrix_devices_that_are_made_of_others_and_file_systems_without_owners() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let programs = [
        "mdadm",
        "lvm",
        "dmsetup",
        "mke2fs",
        "e2fsck",
        "mkfs.vfat",
        "fsck.vfat",
        "sgdisk",
    ];
    let initrd = initrd(folder, &programs);
    let none = json!({});
    let format = json!({ "format": "IfBlank" });
    let fat = blank(folder, "fat", 24);
    let text = fat.to_str().unwrap();
    run("mkfs.vfat", &["-n", "STATE", text]);
    fs::write(folder.join("f"), "fat\n").unwrap();
    run(
        "mcopy",
        &["-i", text, folder.join("f").to_str().unwrap(), "::f"],
    );
    config(&initrd, "fat", &json!({ "label": "STATE" }), &none);
    let made = json!({ "format": "IfBlank", "filesystem": "vfat" });
    config(&initrd, "fat-blank", &on("fat-blank"), &made);
    let filled = json!({ "subdir": "new", "seed": "FromImageOnce" });
    config(&initrd, "fat-filled", &json!({ "label": "STATE" }), &filled);
    let bound = json!({ "subdir": "bound", "claimBound": true });
    config(&initrd, "fat-bound", &json!({ "label": "STATE" }), &bound);
    let image = json!({ "url": "/image.squashfs", "insecure": true });
    config_of(
        &initrd,
        "fat-other",
        "b/2",
        &image,
        &json!({ "label": "STATE" }),
        &bound,
    );
    config_of(
        &initrd,
        "fat-case",
        "b/2",
        &image,
        &json!({ "label": "STATE" }),
        &json!({ "subdir": "BOUND/deep" }),
    );
    let overlay = json!({ "subdir": "over", "method": "overlay" });
    config(
        &initrd,
        "fat-overlay",
        &json!({ "label": "STATE" }),
        &overlay,
    );
    config(&initrd, "lv-label", &json!({ "label": "LV" }), &none);
    config(&initrd, "lv-path", &at("/dev/vg0/data"), &none);
    config(&initrd, "lv-blank", &at("/dev/mapper/vg0-blank"), &format);
    config(&initrd, "pv", &on("pv"), &format);
    config(
        &initrd,
        "md-partition",
        &json!({ "partlabel": "inner" }),
        &format,
    );
    config(&initrd, "md-member", &on("m1"), &format);
    config(&initrd, "paths", &json!({ "label": "UNIT" }), &none);
    config(&initrd, "path-by-node", &at("/dev/sda"), &none);
    config(&initrd, "map-by-path", &at("/dev/mapper/mpatha"), &none);
    config(&initrd, "ddf", &on("d1"), &format);
    config(
        &initrd,
        "overlay",
        &on("over"),
        &json!({ "subdir": "o", "method": "overlay" }),
    );

    let unit = ext4(folder, "unit", "UNIT", 24);
    let path = format!(
        "--disk={},bus=scsi,serial=unit,wwn=0x5000000000000001",
        unit.display()
    );
    let mut disks = vec![path.clone(), path, "--timeout=900".to_owned()];
    for (name, mib) in [
        ("pv", 64),
        ("m1", 48),
        ("m2", 48),
        ("d1", 64),
        ("d2", 64),
        ("fat-blank", 24),
    ] {
        disks.push(drive(&blank(folder, name, mib), name));
    }
    disks.push(drive(&fat, "fat"));
    disks.push(drive(&ext4(folder, "over", "OVER", 24), "over"));
    let console = initrd.boot(&format!("{PLAY}{DEVICES}"), &disks);
    let seen = Seen(&console);
    for (name, f, n) in [
        ("fat-1", "fat", 1),
        ("fat-2", "fat", 2),
        ("fat-made-1", "", 1),
        ("fat-made-2", "", 2),
        ("fat-filled-1", "image", 1),
        ("fat-filled-2", "image", 2),
        ("fat-bound", "", 1),
        ("lv-label", "volume", 1),
        ("lv-path", "volume", 2),
        ("lv-made-1", "", 1),
        ("lv-made-2", "", 2),
        ("md-partition", "array", 1),
        // Who names one path by its node gets it.
        ("path-by-node", "unit", 1),
        ("map", "unit", 2),
        ("map-by-path", "unit", 3),
        ("overlay", "image", 1),
    ] {
        seen.has(name, &["exit 0\n", &format!("f={f} n={n} ")]);
    }
    for name in ["fat-1", "fat-made-2", "fat-filled-2"] {
        seen.has(name, &["kind=msdos", "- vfat /dev/vd"]);
    }
    seen.has("fat-made-1", &["ERASE: make vfat"]);
    assert!(!part(&console, "fat-made-2").contains("ERASE"));
    assert!(
        !part(&console, "fat-2").contains("had errors"),
        "it was unmounted"
    );
    seen.refused("fat-other", &["belongs to claim a/1"]);
    seen.refused(
        "fat-case",
        &["is the same place as bound", "name it as before, bound"],
    );
    seen.refused("fat-overlay", &["an overlay needs a source with ext4"]);

    seen.has("lv-made-1", &["ERASE: make ext4"]);
    assert!(!part(&console, "lv-made-2").contains("ERASE"));
    seen.refused("lv-pv", &["is part of", "vg0-data"]);
    seen.refused("lv-off", &["no device has that name"]);
    seen.refused("lv-off-pv", &["LVM2_member"]);

    seen.has("md-partition", &["- ext4 /dev/md0p1"]);
    seen.refused("md-member", &["is part of", "md0"]);
    seen.refused("md-off", &["linux_raid_member"]);

    seen.refused("paths", &["2 devices have that name", "sda", "sdb"]);
    seen.has("map", &["- ext4 /dev/dm-"]);
    seen.refused("path-below", &["is part of", "mpatha"]);
    seen.refused("ddf-container", &["d1"]);
    seen.refused("ddf", &["ddf_raid_member"]);

    let options = part(&console, "overlay");
    assert!(!options.contains("no parameter"), "{options}");
    for option in ["index=off", "metacopy=off", "xino=off"] {
        assert!(options.contains(option), "{option}: {options}");
    }
    // Without the default there is nothing to tell for it but how those that are there are read.
    assert!(
        !options.contains("redirect_dir=on") && options.contains("redirect_dir="),
        "{options}"
    );
}

const MEDIUM: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -n "$(ls /dev/sda 2>/dev/null)" && test -b /dev/vdb2 && break; sleep 1; done
stick=$(ls /dev/sd? | busybox head -n1)
echo "stick is $stick"
sums() { busybox sha256sum <$stick; busybox sha256sum <$(disk medium); }
before=$(sums)
play by-size by-size
play create-1 create; play create-2 create
play whole-medium whole-medium
play stick-label stick-label
play beside beside
[ "$before" = "$(sums)" ] && echo "not a byte was written"
play own-partition own-partition; play own-partition-2 own-partition
"#;

/// The machine has one fixed disk for what is kept; a blank stick, a stick that calls itself as the wanted one, and the
/// disk that the image comes from are none.
#[test]
fn matrix_the_medium_that_a_session_comes_from_is_no_source() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let initrd = initrd(folder, &["mke2fs", "e2fsck"]);
    let squashfs = fs::read(initrd.root().join("image.squashfs")).unwrap();
    // The image as a whole disk, and as the first partition of one.
    let medium = blank(folder, "medium", 16);
    let mut bytes = squashfs.clone();
    bytes.resize(16 << 20, 0);
    fs::write(&medium, &bytes).unwrap();
    let parted = blank(folder, "parted", 64);
    run(
        "sgdisk",
        &[
            "-n1:2048:+12M",
            "-n2:0:0",
            "-c1:image",
            "-c2:own",
            parted.to_str().unwrap(),
        ],
    );
    let mut bytes = fs::read(&parted).unwrap();
    bytes[1 << 20..(1 << 20) + squashfs.len()].copy_from_slice(&squashfs);
    fs::write(&parted, &bytes).unwrap();
    let stick = blank(folder, "stick", 200);

    let create = json!({ "format": "IfBlank", "create": "64MiB" });
    let format = json!({ "format": "IfBlank" });
    let of = |name: &str, url: &str, source: &Value, more: &Value| {
        let image = json!({ "url": url, "insecure": true });
        config_of(&initrd, name, "a/1", &image, source, more);
    };
    // Only the stick is that large.
    of(
        "by-size",
        "/image.squashfs",
        &json!({ "disk": { "size": ">=190MiB" } }),
        &format,
    );
    of(
        "create",
        "/dev/vda",
        &json!({ "partlabel": "state", "disk": { "serial": "fixed" } }),
        &create,
    );
    of("whole-medium", "/dev/vda", &on("medium"), &format);
    of(
        "stick-label",
        "/image.squashfs",
        &json!({ "disk": { "serial": "stick" } }),
        &format,
    );
    of(
        "beside",
        "/dev/vdb1",
        &json!({ "partlabel": "image" }),
        &format,
    );
    of(
        "own-partition",
        "/dev/vdb1",
        &json!({ "partlabel": "own" }),
        &format,
    );
    // Removable, as a stick is.
    let stick_drive = format!(
        "--qemu=if=none,id=stick,format=raw,file={}",
        stick.display()
    );
    let options = [
        drive(&medium, "medium"),
        drive(&parted, "parted"),
        drive(&blank(folder, "fixed", 96), "fixed"),
        "--qemu=-device".to_owned(),
        "--qemu=virtio-scsi-pci,id=sticks".to_owned(),
        "--qemu=-drive".to_owned(),
        stick_drive,
        "--qemu=-device".to_owned(),
        "--qemu=scsi-hd,bus=sticks.0,drive=stick,removable=on,serial=stick".to_owned(),
    ];
    let console = initrd.boot(&format!("{PLAY}{MEDIUM}"), &options);
    let seen = Seen(&console);
    assert!(console.contains("stick is /dev/sda"), "{console}");
    seen.refused("by-size", &["no device has that name"]);
    for (name, n) in [("create-1", 1), ("create-2", 2)] {
        seen.has(name, &["exit 0\n", &format!("n={n} "), "- ext4 /dev/vdc1"]);
    }
    seen.refused("whole-medium", &["squashfs"]);
    seen.refused("stick-label", &["no device has that name"]);
    seen.refused("beside", &["squashfs"]);
    assert!(console.contains("not a byte was written"), "{console}");
    for (name, n) in [("own-partition", 1), ("own-partition-2", 2)] {
        seen.has(name, &["exit 0\n", &format!("n={n} "), "- ext4 /dev/vdb2"]);
    }
    assert!(
        fs::read(&stick).unwrap().iter().all(|b| *b == 0),
        "the stick was written to"
    );
}
