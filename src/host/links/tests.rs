//! What udev 252 of Debian 12 named these devices in QEMU (`tests/vm_disk_names.rs` compares them anew), and forms
//! that are left to it.

use std::path::Path;

use super::*;
use crate::host::disks::list;
use crate::host::fixture::Fixture;

const PCI: &str = "pci0000:00/0000:00:05.0";

fn names(fixture: &Fixture, disk: &str) -> Vec<String> {
    let disks = list(fixture.root()).unwrap();
    let disk = disks.iter().find(|d| d.name == disk).unwrap();
    let short = |link: &PathBuf| {
        let text = link.to_string_lossy();
        text.strip_prefix("/dev/disk/").unwrap_or(&text).to_owned()
    };
    disk.links.iter().map(short).collect()
}

#[test]
fn an_nvme_namespace() {
    let f = Fixture::new();
    let controller = format!("{PCI}/nvme/nvme0");
    let dir = f.disk("nvme0n1", &controller, "259:0", 2048);
    f.attributes(
        &format!("sys/devices/{controller}"),
        &[("model", "QEMU NVMe Ctrl      "), ("serial", "nvme-1  ")],
    );
    f.attributes(&dir, &[("wwid", "eui.0025385b21400f2c"), ("nsid", "1")]);
    assert_eq!(
        names(&f, "nvme0n1"),
        [
            "by-id/nvme-eui.0025385b21400f2c",
            "by-id/nvme-QEMU_NVMe_Ctrl_nvme-1_1",
            "by-id/nvme-QEMU_NVMe_Ctrl_nvme-1",
            "by-path/pci-0000:00:05.0-nvme-1",
        ]
    );
    // A second namespace: what both would be called is neither's name.
    let second = f.disk("nvme0n2", &controller, "259:1", 2048);
    f.attributes(&second, &[("nsid", "2")]);
    assert!(!names(&f, "nvme0n1").contains(&"by-id/nvme-QEMU_NVMe_Ctrl_nvme-1".to_owned()));
    assert!(names(&f, "nvme0n2").contains(&"by-id/nvme-QEMU_NVMe_Ctrl_nvme-1_2".to_owned()));
}

#[test]
fn virtio_disks_behind_a_bridge_and_on_the_platform_bus() {
    let f = Fixture::new();
    let behind = "pci0000:00/0000:00:02.0/0000:01:00.0/virtio1";
    let dir = f.disk("vda", behind, "254:0", 2048);
    f.attributes(&dir, &[("serial", "lab-disk-1")]);
    f.disk(
        "vdb",
        "platform/a003e00.virtio_mmio/virtio2",
        "254:16",
        2048,
    );
    assert_eq!(
        names(&f, "vda"),
        [
            "by-id/virtio-lab-disk-1",
            "by-path/virtio-pci-0000:01:00.0",
            "by-path/pci-0000:01:00.0"
        ]
    );
    assert_eq!(names(&f, "vdb"), ["by-path/platform-a003e00.virtio_mmio"]);
}

#[test]
fn scsi_disks_have_the_number_of_their_host_on_its_controller() {
    let f = Fixture::new();
    let device = |name: &str, parent: &str, host: u32, dev: &str| {
        let device = format!("{PCI}/{parent}host{host}/target{host}:0:1/{host}:0:1:2");
        f.disk(name, &device, dev, 2048);
        f.attributes(
            &format!("sys/devices/{device}"),
            &[("vendor", "QEMU"), ("wwid", "naa.5000c500a1b2c3d4")],
        );
    };
    device("sda", "virtio3/", 6, "8:0");
    assert_eq!(
        names(&f, "sda"),
        [
            "by-id/wwn-0x5000c500a1b2c3d4",
            "by-id/scsi-35000c500a1b2c3d4",
            "by-path/pci-0000:00:05.0-scsi-0:0:1:2"
        ]
    );
    // A controller with two hosts, and a second path to the disk: its names by id are neither's.
    device("sdb", "", 2, "8:16");
    device("sdc", "", 3, "8:32");
    assert_eq!(names(&f, "sdb"), [] as [&str; 0]);
    assert_eq!(names(&f, "sdc"), ["by-path/pci-0000:00:05.0-scsi-1:0:1:2"]);
}

#[test]
fn a_sata_disk_has_model_and_serial_number_in_full() {
    let f = Fixture::new();
    let device = format!("{PCI}/ata3/host2/target2:0:0/2:0:0:0");
    f.disk("sda", &device, "8:0", 2048);
    f.attributes(
        &format!("sys/devices/{device}"),
        &[("vendor", "ATA     "), ("model", "QEMU HARDDISK")],
    );
    f.file(
        &format!("sys/devices/{PCI}/ata3/ata_port/ata3/port_no"),
        "1\n",
    );
    let mut page = vec![0u8; 572];
    let mut put = |word: usize, text: &str, length: usize| {
        let at = 60 + word * 2;
        for (i, byte) in format!("{text:<length$}").bytes().enumerate() {
            page[at + (i ^ 1)] = byte;
        }
    };
    put(10, "QM00001", 20);
    put(27, "QEMU  HARDDISK", 40);
    f.file(&format!("sys/devices/{device}/vpd_pg89"), &page);
    assert_eq!(
        names(&f, "sda"),
        [
            "by-id/ata-QEMU_HARDDISK_QM00001",
            "by-path/pci-0000:00:05.0-ata-1.0",
            "by-path/pci-0000:00:05.0-ata-1"
        ]
    );
    assert_eq!(ata_name(&page[..153]), None);
    assert_eq!(ata_name(&[0; 572]), None);
}

#[test]
fn what_has_rules_of_its_own_gets_no_place() {
    for device in [
        "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/host6/target6:0:0/6:0:0:0",
        "pci0000:00/0000:03:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0",
        "pci0000:00/0000:03:00.0/host0/rport-0:0-2/target0:0:0/0:0:0:0",
        "platform/host3/session1/target3:0:0/3:0:0:0",
        "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e1:00.0/nvme/nvme0",
        "virtual/nvme-subsystem/nvme-subsys0",
    ] {
        let f = Fixture::new();
        let name = if device.contains("nvme") {
            "nvme0n1"
        } else {
            "sda"
        };
        f.disk(name, device, "8:0", 2048);
        assert!(names(&f, name).is_empty(), "{device}");
    }
}

#[test]
fn where_udev_runs_only_its_links_count() {
    let f = Fixture::new();
    f.disk("vda", &format!("{PCI}/virtio1"), "254:0", 2048);
    assert!(!names(&f, "vda").is_empty());
    std::fs::create_dir_all(f.root().join("run/udev")).unwrap();
    assert!(names(&f, "vda").is_empty());
}

#[test]
fn which_names_are_left_to_udev() {
    for (path, only_udevs) in [
        ("/dev/sda", false),
        ("/dev/mapper/mpatha", false),
        ("/dev/disk/by-id/wwn-0x5000c500a1b2c3d4", false),
        ("/dev/disk/by-id/nvme-eui.0025385b21400f2c", false),
        ("/dev/disk/by-id/ata-QEMU_HARDDISK_QM00001", false),
        ("/dev/disk/by-id/scsi-35000c500a1b2c3d4", false),
        ("/dev/disk/by-id/scsi-SQEMU_QEMU_HARDDISK_x", true),
        ("/dev/disk/by-id/usb-Stick_4C5300012-0:0", true),
        ("/dev/disk/by-id/dm-name-vg0-root", true),
        ("/dev/disk/by-id/md-uuid-11", true),
        ("/dev/disk/by-path/pci-0000:00:1f.2-ata-1", false),
        ("/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0", false),
        ("/dev/disk/by-path/pci-0000:01:00.0-nvme-1", false),
        ("/dev/disk/by-path/virtio-pci-0000:01:00.0", false),
        ("/dev/disk/by-path/pci-0000:01:00.0-scsi-0:0:1:2", false),
        (
            "/dev/disk/by-path/platform-3f00.pcie-pci-0000:01:00.0-nvme-1",
            false,
        ),
        ("/dev/disk/by-path/platform-a003e00.virtio_mmio", false),
        ("/dev/disk/by-path/pci-0000:03:00.0-sas-phy0-lun-0", true),
        (
            "/dev/disk/by-path/pci-0000:00:14.0-usb-0:2:1.0-scsi-0:0:0:0",
            true,
        ),
        (
            "/dev/disk/by-path/pci-0000:00:0e.0-pci-10000:e1:00.0-nvme-1",
            true,
        ),
        ("/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-iqn.x-lun-1", true),
        ("/dev/disk/by-label/root", true),
        ("/dev/disk/by-uuid/AB-12", true),
    ] {
        assert_eq!(is_only_udevs(path), only_udevs, "{path}");
    }
    assert!(!are_made(Path::new("/nonexistent")));
}
