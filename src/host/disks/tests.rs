//! Each kind of attachment as a fixture.

use super::*;
use crate::host::fixture::Fixture;

fn only(fixture: &Fixture) -> Disk {
    let disks = list(fixture.root()).unwrap();
    assert_eq!(disks.len(), 1);
    disks.into_iter().next().unwrap()
}

#[test]
fn an_nvme_disk() {
    let f = Fixture::new();
    let dir = f.disk(
        "nvme0n1",
        "pci0000:00/0000:00:1d.0/nvme/nvme0",
        "259:0",
        2048,
    );
    f.attributes(
        "sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0",
        &[
            ("model", "SAMSUNG MZVL2512      "),
            ("serial", "S64KNX0T  "),
            ("transport", "pcie"),
        ],
    );
    f.attributes(&dir, &[("wwid", "eui.002538a121b0a3f1"), ("diskseq", "7")]);
    f.partition(&dir, 2, "259:2", 64, 128);
    f.link("dev/disk/by-id/nvme-eui.0025", "dev/nvme0n1");
    f.link("dev/disk/by-partlabel/other", "dev/nvme0n1p2");
    let disk = only(&f);
    assert_eq!(disk.name, "nvme0n1");
    assert_eq!(disk.path, Path::new("/dev/nvme0n1"));
    assert_eq!(
        disk.dev,
        DevNum {
            major: 259,
            minor: 0
        }
    );
    assert_eq!(disk.size, Bytes(1 << 20));
    assert_eq!(disk.sector, Some(SectorSize::S512));
    assert_eq!(disk.model.as_deref(), Some("SAMSUNG MZVL2512"));
    assert_eq!(disk.serial.as_deref(), Some("S64KNX0T"));
    assert_eq!(disk.wwn.as_deref(), Some("eui.002538a121b0a3f1"));
    assert_eq!(disk.transport, Some(Transport::Nvme));
    assert_eq!(
        (disk.kind, disk.diskseq, disk.hctl),
        (DiskKind::Disk, Some(7), None)
    );
    assert_eq!(disk.links, [Path::new("/dev/disk/by-id/nvme-eui.0025")]);
    let [partition] = disk.partitions.as_slice() else {
        panic!()
    };
    assert_eq!(
        (partition.name.as_str(), partition.number),
        ("nvme0n1p2", 2)
    );
    assert_eq!(
        (partition.start, partition.size),
        (Bytes(64 * 512), Bytes(128 * 512))
    );
}

#[test]
fn a_scsi_disk_and_its_serial_number_page() {
    let f = Fixture::new();
    let device = "pci0000:00/0000:00:1f.2/ata3/host2/target2:0:0/2:0:0:0";
    let dir = f.disk("sda", device, "8:0", 2_097_152);
    f.attributes(
        &format!("sys/devices/{device}"),
        &[
            ("vendor", "ATA     "),
            ("model", "ST4000NM0035-1V4"),
            ("type", "0"),
        ],
    );
    f.attributes(
        &format!("sys/devices/{device}"),
        &[("wwid", "naa.5000c500a1b2c3d4")],
    );
    f.file(
        &format!("sys/devices/{device}/vpd_pg80"),
        b"\x00\x80\x00\x14            ZC12ABCD\0garbage",
    );
    f.attributes(
        &dir,
        &[
            ("queue/rotational", "1"),
            ("queue/logical_block_size", "4096"),
            ("ro", "1"),
        ],
    );
    let disk = only(&f);
    assert_eq!(disk.serial.as_deref(), Some("ZC12ABCD"));
    assert_eq!(disk.vendor.as_deref(), Some("ATA"));
    assert_eq!(disk.wwn.as_deref(), Some("naa.5000c500a1b2c3d4"));
    assert_eq!(disk.transport, Some(Transport::Sata));
    assert_eq!(disk.hctl.as_deref(), Some("2:0:0:0"));
    assert!(disk.rotational && disk.read_only && !disk.removable);
    // The size stays in units of 512 bytes although the sectors have 4096.
    assert_eq!(
        (disk.size, disk.sector),
        (Bytes(1 << 30), Some(SectorSize::S4096))
    );
}

#[test]
fn transports_by_the_place_in_the_device_tree() {
    for (device, want) in [
        (
            "pci0000:00/0000:00:05.0/virtio2/host1/target1:0:0/1:0:0:0",
            Transport::Virtio,
        ),
        (
            "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/host6/target6:0:0/6:0:0:0",
            Transport::Usb,
        ),
        (
            "pci0000:00/0000:03:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0",
            Transport::Sas,
        ),
        (
            "pci0000:00/0000:03:00.0/host0/rport-0:0-2/target0:0:0/0:0:0:0",
            Transport::Fc,
        ),
        (
            "platform/host3/session1/target3:0:0/3:0:0:0",
            Transport::Iscsi,
        ),
        (
            "pci0000:00/0000:03:00.0/host0/target0:2:0/0:2:0:0",
            Transport::Scsi,
        ),
    ] {
        let f = Fixture::new();
        f.disk("sda", device, "8:0", 2048);
        assert_eq!(only(&f).transport, Some(want), "{device}");
    }
}

#[test]
fn a_virtio_disk() {
    let f = Fixture::new();
    let dir = f.disk("vda", "pci0000:00/0000:00:04.0/virtio1", "254:0", 2048);
    f.attributes(&dir, &[("serial", "lab-disk-1")]);
    f.attributes(
        "sys/devices/pci0000:00/0000:00:04.0/virtio1",
        &[("vendor", "0x1af4")],
    );
    let disk = only(&f);
    assert_eq!(disk.serial.as_deref(), Some("lab-disk-1"));
    assert_eq!(
        (disk.vendor, disk.transport, disk.wwn),
        (None, Some(Transport::Virtio), None)
    );
}

#[test]
fn a_usb_stick_has_the_serial_number_of_the_usb_device() {
    let f = Fixture::new();
    let usb = "pci0000:00/0000:00:14.0/usb1/1-2";
    let device = format!("{usb}/1-2:1.0/host6/target6:0:0/6:0:0:0");
    let dir = f.disk("sdb", &device, "8:16", 2048);
    f.attributes(
        &format!("sys/devices/{usb}"),
        &[("idVendor", "0781"), ("serial", "4C5300012")],
    );
    f.file(
        &format!("sys/devices/{device}/vpd_pg80"),
        b"\x00\x80\x00\x080000BRDG",
    );
    f.attributes(&dir, &[("removable", "1")]);
    let disk = only(&f);
    assert_eq!(disk.serial.as_deref(), Some("4C5300012"));
    assert!(disk.removable);
    assert_eq!(disk.kind, DiskKind::Disk);
}

#[test]
fn an_mmc_card_and_its_firmware_areas() {
    let f = Fixture::new();
    let card = "platform/mmc_host/mmc0/mmc0:0001";
    f.disk("mmcblk0", card, "179:0", 2048);
    f.disk("mmcblk0boot0", card, "179:8", 2048);
    f.attributes(
        &format!("sys/devices/{card}"),
        &[("name", "DG4016"), ("cid", "45"), ("serial", "0x9c")],
    );
    let disks = list(f.root()).unwrap();
    assert_eq!(disks[0].model.as_deref(), Some("DG4016"));
    assert_eq!(disks[0].serial.as_deref(), Some("0x9c"));
    assert_eq!(disks[0].transport, Some(Transport::Mmc));
    assert_eq!(
        (disks[0].kind, disks[1].kind),
        (DiskKind::Disk, DiskKind::Other)
    );
}

#[test]
fn an_optical_drive_a_multipath_map_and_a_loop_device_are_no_plain_disks() {
    let f = Fixture::new();
    f.disk(
        "sr0",
        "pci0000:00/ata1/host0/target0:0:0/0:0:0:0",
        "11:0",
        0,
    );
    let dm = f.disk("dm-0", "", "253:0", 4096);
    f.attributes(
        &dm,
        &[
            ("dm/name", "mpatha"),
            ("dm/uuid", "mpath-3600a098038303053"),
        ],
    );
    let looped = f.disk("loop3", "", "7:3", 2048);
    f.attributes(&looped, &[("loop/backing_file", "/var/my images/a.raw")]);
    f.disk("md127", "", "9:127", 2048);
    f.disk("ram0", "", "1:0", 2048);
    f.disk("zram0", "", "252:0", 2048);
    f.disk("fd0", "platform/floppy.0", "2:0", 8);
    f.disk("nbd0", "", "43:0", 0);
    let disks = list(f.root()).unwrap();
    let kinds: Vec<(&str, DiskKind)> = disks.iter().map(|d| (d.name.as_str(), d.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("dm-0", DiskKind::DeviceMapper),
            ("fd0", DiskKind::Floppy),
            ("loop3", DiskKind::Loop),
            ("md127", DiskKind::Md),
            ("nbd0", DiskKind::Other),
            ("ram0", DiskKind::Ram),
            ("sr0", DiskKind::Optical),
            ("zram0", DiskKind::Zram),
        ]
    );
    assert_eq!(disks[0].wwn.as_deref(), Some("naa.600a098038303053"));
    assert_eq!(disks[0].links, [Path::new("/dev/mapper/mpatha")]);
    assert_eq!(
        disks[2].backing_file.as_deref(),
        Some(Path::new("/var/my images/a.raw"))
    );
    assert_eq!(disks[6].size, Bytes::ZERO);
}

#[test]
fn hidden_paths_and_missing_attributes() {
    let f = Fixture::new();
    let hidden = f.disk("nvme0c0n1", "pci0000:00/nvme/nvme0", "0:0", 2048);
    f.attributes(&hidden, &[("hidden", "1")]);
    std::fs::create_dir_all(f.root().join("sys/block/sdq")).unwrap();
    let disk = only(&f);
    assert_eq!(
        (disk.name.as_str(), disk.size, disk.sector),
        ("sdq", Bytes::ZERO, None)
    );

    let none = list(Path::new("/nonexistent")).unwrap_err();
    assert!(
        none.to_string().contains("/nonexistent/sys/block"),
        "{none}"
    );
}

#[test]
fn a_serial_number_page_that_lies_about_its_length() {
    for page in [
        &b""[..],
        b"\x00",
        b"\x00\x80\xff\xff",
        b"\x00\x83\x00\x02AB",
        b"\x00\x80\x00\x02\0 ",
    ] {
        assert_eq!(unit_serial(page), None, "{page:?}");
    }
    assert_eq!(unit_serial(b"\x00\x80\xff\xffAB").as_deref(), Some("AB"));
}

#[test]
fn logical_volumes_have_the_names_that_lvm_gives_them() {
    let f = Fixture::new();
    for (n, (name, uuid)) in [
        ("vg0-data", "LVM-abc"),
        ("my--group-a--b--", "LVM-abc"),
        // What is inside LVM, and what is none of it.
        ("vg0-data-real", "LVM-abc-real"),
        ("vg0-data", "CRYPT-LUKS2-abc"),
        ("plain", "LVM-abc"),
    ]
    .into_iter()
    .enumerate()
    {
        let dm = f.disk(&format!("dm-{n}"), "", &format!("253:{n}"), 4096);
        f.attributes(&dm, &[("dm/name", name), ("dm/uuid", uuid)]);
    }
    let disks = list(f.root()).unwrap();
    let found: Vec<Option<&Path>> = disks
        .iter()
        .map(|d| d.links.iter().find(|l| !l.starts_with("/dev/mapper")))
        .map(|link| link.map(std::path::PathBuf::as_path))
        .collect();
    let volume = |path| Some(Path::new(path));
    let wanted = [
        volume("/dev/vg0/data"),
        volume("/dev/my-group/a-b-"),
        None,
        None,
        None,
    ];
    assert_eq!(found, wanted);
}
