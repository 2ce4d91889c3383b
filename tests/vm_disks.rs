//! Which disk: disks that differ in nothing but their serial number, on each bus, and names that change between two
//! boots; one disk on two paths, and what is a part of another disk.
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
#[path = "support/installing.rs"]
mod support;

use std::fs;

use script_machine::{Initrd, blank, part, run};
use serde_json::{Value, json};
use support::disk_image::{self, MIB, sha256};

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "nvme",
    "dm-mod",
    "dm-multipath",
    "dm-round-robin",
    "md-mod",
    "raid1",
];

/// Waits until all disks are there.
const WAIT: &str = r"
for n in 1 2 3 4 5 6 7 8 9 10; do test -b /dev/vdd && test -b /dev/sdb && test -b /dev/nvme1n1 && break; sleep 1; done
";

const FIRST: &str = r#"
for bus in virtio nvme scsi; do
    echo "== several on $bus"
    /ironroot install --config /$bus.json 2>&1
    echo "exit $?"
    echo "== one on $bus"
    /ironroot install --config /$bus-2.json 2>&1
    echo "exit $?"
    echo "== again on $bus"
    /ironroot plan --config /$bus.json 2>&1
    echo "exit $?"
done
# The disk with the installation appears when another one has been there for a while.
device=$(busybox basename $(busybox readlink /sys/block/vdb/device))
echo $device >/sys/bus/virtio/drivers/virtio_blk/unbind
(sleep 7; echo $device >/sys/bus/virtio/drivers/virtio_blk/bind) &
echo "== late"
/ironroot initrd --wait 60s --config /virtio.json 2>&1
echo "exit $?"
# A second disk with the serial number appears when the first one has been seen.
device=$(busybox basename $(busybox readlink /sys/block/vdd/device))
echo $device >/sys/bus/virtio/drivers/virtio_blk/unbind
(sleep 3; echo $device >/sys/bus/virtio/drivers/virtio_blk/bind) &
echo "== twins"
/ironroot initrd --wait 60s --config /twin.json 2>&1
echo "exit $?"
for config in second first; do
    echo "== reinstalled, $config"
    /ironroot install --config /virtio-$config.json 2>&1
    echo "exit $?"
done
"#;

const SECOND: &str = r#"
for bus in virtio nvme scsi; do
    echo "== again on $bus"
    /ironroot plan --config /$bus.json 2>&1
    echo "exit $?"
done
"#;

/// Bus, what both disks of it have, and the names of the first and the second.
const BUSES: [(&str, &str, &str, [&str; 2]); 3] = [
    ("virtio", "size", "=65MiB", ["vda", "vdb"]),
    ("nvme", "transport", "nvme", ["nvme0n1", "nvme1n1"]),
    ("scsi", "model", "QEMU HARD*", ["sda", "sdb"]),
];

#[test]
fn equal_disks_are_told_apart_by_serial_and_found_again_when_names_change() {
    let folder = tempfile::tempdir().unwrap();
    let initrd = Initrd::new(folder.path(), MODULES, &[]);
    let image = disk_image::gpt(8);
    initrd.file("image.raw", &image);
    let mut disks = Vec::new();
    for (bus, key, value, _) in BUSES {
        let config = |select: Value| {
            let config = json!({
                "apiVersion": "ironroot.dev/v1alpha1",
                "kind": "BootConfig",
                "metadata": { "claim": bus },
                "image": { "url": "/image.raw", "digest": sha256(&image) },
                "disk": { "select": select },
            });
            serde_json::to_vec(&config).unwrap()
        };
        initrd.file(&format!("{bus}.json"), &config(json!({ key: value })));
        let second = json!({ "serial": format!("{bus}-2") });
        initrd.file(&format!("{bus}-2.json"), &config(second));
        for n in [1, 2] {
            let size = if bus == "virtio" { 65 } else { 64 };
            let path = blank(folder.path(), &format!("{bus}-{n}"), size);
            let path = path.display();
            disks.push(format!("--disk={path},bus={bus},serial={bus}-{n}"));
        }
    }
    // Cheap makers give all their disks one serial number.
    for n in [1, 2] {
        let path = blank(folder.path(), &format!("twin-{n}"), 64);
        disks.push(format!("--disk={},serial=twin", path.display()));
    }
    let pick = |disk: Value, generation: u32, claim: &str| {
        let config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "metadata": { "claim": claim, "generation": generation },
            "image": { "url": "/image.raw", "digest": sha256(&image) },
            "disk": disk,
        });
        serde_json::to_vec(&config).unwrap()
    };
    let twin = json!({ "select": { "serial": "twin" }, "pick": "First" });
    initrd.file("twin.json", &pick(twin, 1, "twin"));
    // What `pick` says is a blank disk beside the one with the system.
    let again = json!({ "select": { "size": "=65MiB" }, "pick": "First", "overwrite": "IfOurs" });
    initrd.file("virtio-second.json", &pick(again.clone(), 2, "virtio"));
    initrd.file("virtio-first.json", &pick(again, 1, "virtio"));
    let console = initrd.boot(&format!("{WAIT}{FIRST}"), &disks);
    for (bus, _, _, names) in BUSES {
        let text = part(&console, &format!("several on {bus}"));
        for wanted in [names[0], names[1], "serial=", "exit 13", "2 disks match"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        for n in [1, 2] {
            assert!(text.contains(&format!("serial={bus}-{n}")), "{text}");
        }
        let text = part(&console, &format!("one on {bus}"));
        assert!(text.contains("exit 0"), "{text}");
        let text = part(&console, &format!("again on {bus}"));
        assert!(is_found(text, bus, names[1]), "{text}");
        // The other one was not touched, and the right one has all of it.
        let bytes = |n: u32| fs::read(folder.path().join(format!("{bus}-{n}"))).unwrap();
        assert!(bytes(1).iter().all(|b| *b == 0), "{bus}");
        assert!(bytes(2)[MIB..7 * MIB] == image[MIB..7 * MIB], "{bus}");
    }
    let text = part(&console, "late");
    for wanted in ["every disk that the selector allows", "write nothing"] {
        assert!(text.contains(wanted), "{text}");
    }
    let text = part(&console, "twins");
    for wanted in ["2 disks match serial=twin", "exit 13"] {
        assert!(text.contains(wanted), "{text}");
    }
    for round in ["second", "first"] {
        let text = part(&console, &format!("reinstalled, {round}"));
        for wanted in [
            "vdb holds an installation of this claim",
            "on /dev/vdb",
            "exit 0",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
    let untouched = ["virtio-1", "twin-1", "twin-2"];
    for name in untouched {
        let bytes = fs::read(folder.path().join(name)).unwrap();
        assert!(bytes.iter().all(|b| *b == 0), "{name}");
    }
    // The other way round.
    for pair in disks.chunks_mut(2) {
        pair.swap(0, 1);
    }
    let console = initrd.boot(&format!("{WAIT}{SECOND}"), &disks);
    for (bus, _, _, names) in BUSES {
        let text = part(&console, &format!("again on {bus}"));
        assert!(is_found(text, bus, names[0]), "{text}");
    }
}

/// Whether the installation was found on the second disk, under this name. SCSI disks are probed side by side, and get
/// their names in any order.
fn is_found(text: &str, bus: &str, name: &str) -> bool {
    let found = if bus == "scsi" {
        "this installation is on /dev/sd".to_owned()
    } else {
        format!("this installation is on /dev/{name} ")
    };
    let serial = format!("serial {bus}-2,");
    text.contains(&found) && text.contains(&serial) && text.contains("write nothing")
}

const LARGE_SECTORS: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -b /dev/vda && break; sleep 1; done
echo "sectors: $(cat /sys/block/vda/queue/logical_block_size)"
show() {
    for part in vda1 vda2; do
        e2fsck -fn /dev/$part >/log 2>&1 || fail "e2fsck $part"
        echo "$part from $(cat /sys/block/vda/$part/start) for $(cat /sys/block/vda/$part/size)"
        mount -t ext4 /dev/$part /mnt
        echo "$part holds $(busybox df -k /mnt | busybox tail -n 1 | awk '{print $2 * 1024}') $(cat /mnt/marker)"
        test -n "$1" && echo "$1" >/mnt/marker
        umount /mnt
    done
    sync
}
mkdir -p /mnt
for round in 1 2 3; do
    echo "== round $round"
    /ironroot install --config /$round.json 2>&1
    echo "exit $?"
    show "of round $round"
done
"#;

/// The kernel reads the table of a disk with blocks of 4096 bytes itself; on this machine it does not.
#[test]
fn a_disk_with_large_sectors_grows_gets_partitions_and_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let programs = ["mke2fs", "e2fsck", "resize2fs"];
    let initrd = Initrd::new(
        folder.path(),
        &["virtio_pci", "virtio_blk", "ext4"],
        &programs,
    );
    let mut image = disk_image::gpt_4096(16);
    let root = blank(folder.path(), "root", 11);
    run(
        "mke2fs",
        &["-q", "-t", "ext4", "-b", "4096", root.to_str().unwrap()],
    );
    image[4 * MIB..15 * MIB].copy_from_slice(&fs::read(&root).unwrap());
    initrd.file("image.raw", &image);
    for round in 1..=3 {
        let config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "metadata": { "generation": round },
            "image": { "url": "/image.raw", "digest": sha256(&image) },
            "disk": {
                "select": { "serial": "large" }, "overwrite": "IfOurs", "keep": ["data"], "grow": "1",
                "partitions": [{ "label": "data", "size": "24MiB", "filesystem": "ext4" }],
            },
        });
        let config = serde_json::to_vec(&config).unwrap();
        initrd.file(&format!("{round}.json"), &config);
    }
    let disk = blank(folder.path(), "large", 128);
    let option = format!("--disk={},serial=large,sector=4096", disk.display());
    let console = initrd.boot(LARGE_SECTORS, &[option]);
    assert!(console.contains("sectors: 4096"), "{console}");
    // The backup table takes the last MiB; the root has grown up to what was added.
    let (data, root) = ((127 - 24) * 2048, (103 - 4) * 2048);
    for round in 1..=3 {
        let text = part(&console, &format!("round {round}"));
        let has = |wanted: &str| assert!(text.contains(wanted), "{wanted}: {text}");
        has("exit 0");
        has(&format!("vda1 from {} for {root}", 4 * 2048));
        has(&format!("vda2 from {data} for {}", 24 * 2048));
        let size = text.split("vda1 holds ").nth(1).unwrap();
        let size: usize = size.split(' ').next().unwrap().parse().unwrap();
        assert!(size > 80 * MIB, "the file system has grown: {text}");
        if round > 1 {
            let kept = format!("of round {}", round - 1);
            let line = text.lines().find(|l| l.starts_with("vda2 holds")).unwrap();
            assert!(line.ends_with(&kept), "{text}");
            has("is kept as it is");
        }
    }
}

const PATHS: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -b /dev/vdb && test -b /dev/sdb && break; sleep 1; done
install() {
    /ironroot install --insecure --image /image.raw --disk "$@" 2>&1
    echo "exit $?"
}
echo "== two paths"
install serial=lun
echo "== one path by its address"
echo "its name: $(ls /sys/class/scsi_device/0:0:1:0/device/block)."
/ironroot plan --config /hctl.json 2>&1
echo "exit $?"
SIZE=$(cat /sys/block/sda/size)
try dmsetup create mpatha --uuid mpath-35000000000000001 --table "0 $SIZE multipath 0 0 1 1 round-robin 0 2 1 8:0 1000 8:16 1000"
echo "== below a map"
install serial=lun --overwrite Always
echo "== the map by its path"
install /dev/mapper/mpatha
echo "== listed"
/ironroot disks
try mdadm --create /dev/md127 --run --metadata=ddf --level=container --raid-devices=2 /dev/vda /dev/vdb
echo "== below a RAID of the firmware"
install serial=member-1 --overwrite Always
"#;

#[test]
fn a_path_and_a_member_of_a_firmwares_raid_offer_what_they_are_a_part_of() {
    let folder = tempfile::tempdir().unwrap();
    let initrd = Initrd::new(folder.path(), MODULES, &["dmsetup", "mdadm"]);
    let image = disk_image::gpt(8);
    initrd.file("image.raw", &image);
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": { "url": "/image.raw", "digest": sha256(&image) },
        "disk": { "select": { "serial": "lun", "hctl": "0:0:1:0" } },
    });
    initrd.file("hctl.json", &serde_json::to_vec(&config).unwrap());
    let lun = blank(folder.path(), "lun", 64);
    let path = format!(
        "--disk={},bus=scsi,serial=lun,wwn=0x5000000000000001",
        lun.display()
    );
    let mut disks = vec![path.clone(), path];
    for n in [1, 2] {
        let member = blank(folder.path(), &format!("member-{n}"), 64);
        disks.push(format!(
            "--disk={},bus=virtio,serial=member-{n}",
            member.display()
        ));
    }
    let console = initrd.boot(PATHS, &disks);
    let has = |name: &str, wanted: &[&str]| {
        let text = part(&console, name);
        for wanted in wanted {
            assert!(text.contains(wanted), "{name}: {wanted:?}\n{text}");
        }
    };
    has(
        "two paths",
        &[
            "exit 13",
            "2 disks match serial=lun",
            "wwn=naa.5000000000000001  (another path to sda)",
            "put these paths together by multipath",
        ],
    );
    // The kernel looks at both at once, and gives the names as they come.
    let named = part(&console, "one path by its address");
    let named = named.split("its name: ").nth(1).unwrap();
    let named = format!(" on /dev/{} ", named.split('.').next().unwrap());
    has(
        "one path by its address",
        &["exit 0", "install sha256:", &named],
    );
    has(
        "below a map",
        &[
            "exit 13",
            "multipath device mpatha",
            "a part of another device: select that one by its path, /dev/mapper/mpatha",
        ],
    );
    has("the map by its path", &["exit 0", "installed: "]);
    has("listed", &["select    path=/dev/mapper/mpatha"]);
    has(
        "below a RAID of the firmware",
        &["exit 13", "a part of another device", "/dev/md127"],
    );
    let text = run("sgdisk", &["--verify", lun.to_str().unwrap()]);
    assert!(text.contains("No problems found"), "{text}");
    let bytes = fs::read(&lun).unwrap();
    assert!(bytes[MIB..7 * MIB] == image[MIB..7 * MIB]);
}
