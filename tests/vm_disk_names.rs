//! The names of disks below /dev/disk that ironroot finds without udev, against those that udev makes of the same
//! machine.
//!
//! Needs root, the kernel of `scripts/lab` (`scripts/test` makes it), and udev on the test's own machine.
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

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ironroot::host::links;
use script_machine::{Initrd, blank, part};
use serde_json::{Value, json};
use support::disk_image::{self, sha256};

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "vmw_pvscsi",
    "ata_piix",
    "sd_mod",
    "nvme",
];

const SCRIPT: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -b /dev/vda && test -b /dev/sdc && test -b /dev/nvme1n2 && break; sleep 1; done
sleep 2
echo "== without"
/ironroot disks --json 2>/dev/null
echo "== by a name"
/ironroot initrd --wait 20s --config /name.json 2>&1
echo "exit $?"
echo "== by a name that only udev makes"
/ironroot initrd --wait 60s --config /only.json 2>&1
echo "exit $? after $(cut -d. -f1 /proc/uptime)"
cut -d. -f1 /proc/uptime
systemd-udevd --daemon
udevadm trigger --action=add --subsystem-match=block
udevadm settle
echo "== links"
for link in /dev/disk/by-id/* /dev/disk/by-path/*; do echo "$link $(busybox readlink -f $link)"; done
echo "== end"
"#;

/// The link and the disk that it names.
type Names = BTreeMap<String, String>;

fn computed(text: &str) -> Names {
    let disks: Vec<Value> =
        serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}"));
    let mut names = Names::new();
    for disk in disks {
        for link in disk["links"].as_array().unwrap() {
            let link = link.as_str().unwrap().to_owned();
            if link.starts_with("/dev/disk") {
                names.insert(link, disk["path"].as_str().unwrap().to_owned());
            }
        }
    }
    names
}

#[test]
fn the_names_are_those_that_udev_makes() {
    let folder = tempfile::tempdir().unwrap();
    let initrd = Initrd::new(folder.path(), MODULES, &["udevadm"]);
    let root = initrd.root();
    // One program under two names.
    fs::copy(root.join("sbin/udevadm"), root.join("sbin/systemd-udevd")).unwrap();
    for to in ["lib/udev", "usr/lib/udev"] {
        fs::create_dir_all(root.join(to).join("rules.d")).unwrap();
        for name in ["ata_id", "scsi_id", "rules.d/60-persistent-storage.rules"] {
            fs::copy(
                Path::new("/usr/lib/udev").join(name),
                root.join(to).join(name),
            )
            .unwrap();
        }
    }
    let image = disk_image::gpt(8);
    initrd.file("image.raw", &image);
    for (name, path) in [
        ("name", "/dev/disk/by-id/ata-QEMU_HARDDISK_sata-1"),
        ("only", "/dev/disk/by-id/scsi-SQEMU_QEMU_HARDDISK_pv-1"),
    ] {
        let config = json!({
            "apiVersion": "ironroot.dev/v1alpha1",
            "kind": "BootConfig",
            "image": { "url": "/image.raw", "digest": sha256(&image) },
            "disk": { "select": { "path": path } },
            "then": "Park",
        });
        let config = serde_json::to_vec(&config).unwrap();
        initrd.file(&format!("{name}.json"), &config);
    }
    let file = |name: &str| blank(folder.path(), name, 64).display().to_string();
    let mut machine = vec![
        format!("--disk={},bus=virtio,serial=virtio-1", file("virtio")),
        format!("--disk={},bus=virtio", file("plain")),
        format!("--disk={},bus=nvme,serial=nvme-1", file("nvme")),
        format!(
            "--disk={},bus=scsi,serial=scsi-1,wwn=0x5000c500a1b2c3d4",
            file("scsi")
        ),
    ];
    let mut more = |arguments: &[String]| {
        machine.extend(
            arguments
                .iter()
                .map(|argument| format!("--qemu={argument}")),
        );
    };
    for name in ["sata", "pv", "ns1", "ns2"] {
        let drive = format!("if=none,format=raw,id={name},file={}", file(name));
        more(&["-drive".to_owned(), drive]);
    }
    for device in [
        "piix3-ide,id=piix",
        "ide-hd,bus=piix.0,drive=sata,serial=sata-1,wwn=0x5000c500a1b2c3d5",
        "pvscsi,id=pv0",
        "scsi-hd,bus=pv0.0,scsi-id=3,drive=pv,serial=pv-1",
        "nvme,id=two,serial=nvme-2",
        "nvme-ns,bus=two,drive=ns1,nsid=1",
        "nvme-ns,bus=two,drive=ns2,nsid=2",
    ] {
        more(&["-device".to_owned(), device.to_owned()]);
    }
    let console = initrd.boot(SCRIPT, &machine);
    let mine = computed(part(&console, "without"));
    let udevs: Names = part(&console, "links")
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(link, disk)| (link.to_owned(), disk.to_owned()))
        .collect();
    for (link, disk) in &mine {
        assert_eq!(udevs.get(link), Some(disk), "{link}: {udevs:#?}");
    }
    let optical = |disk: &str| disk.starts_with("/dev/sr") || disk.starts_with("/dev/fd");
    let missing: Vec<_> = udevs
        .iter()
        .filter(|(link, disk)| !mine.contains_key(*link) && !optical(disk))
        .filter(|(link, _)| !links::is_only_udevs(link) && !link.contains("-part"))
        .collect();
    // Both namespaces would have this name.
    assert!(
        missing
            .iter()
            .all(|(link, _)| link.ends_with("/nvme-QEMU_NVMe_Ctrl_nvme-2")),
        "{missing:?}"
    );
    for part in [
        "ata-QEMU_HARDDISK_sata-1",
        "virtio-virtio-1",
        "nvme-QEMU_NVMe_Ctrl_nvme-2_2",
        "-scsi-0:0:3:0",
        "-nvme-1",
        "-ata-1.0",
    ] {
        assert!(
            mine.keys().any(|link| link.contains(part)),
            "{part}: {mine:#?}"
        );
    }
    let text = part(&console, "by a name");
    assert!(
        text.contains("exit 0") && text.contains("/dev/sd"),
        "{text}"
    );
    let text = part(&console, "by a name that only udev makes");
    for wanted in [
        "exit 13",
        "is a name that only udev makes",
        "by `serial`, `wwn` or `hctl`",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(!text.contains("waiting"), "{text}");
}
