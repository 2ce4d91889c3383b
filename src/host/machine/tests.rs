//! Machines as fixtures.

use super::*;
use crate::host::fixture::Fixture;

#[test]
fn a_server_with_uefi() {
    let f = Fixture::new();
    f.attributes(
        "sys/class/dmi/id",
        &[
            ("product_uuid", "4C4C4544-0042-3510-8052-B8C04F4D4E32"),
            ("product_serial", "B5BRMN2"),
        ],
    );
    f.file(
        "sys/firmware/efi/efivars/BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        b"\x07",
    );
    f.file(
        "proc/meminfo",
        "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n",
    );
    f.attributes(
        "proc/sys/kernel",
        &[("hostname", "node7"), ("arch", "x86_64")],
    );
    for (name, mac, device) in [
        ("eth10", "52:54:00:00:00:10", true),
        ("eth2", "52:54:00:00:00:AB", true),
        ("br0", "52:54:00:00:00:02", false),
        ("lo", "00:00:00:00:00:00", false),
        ("dummy", "00:00:00:00:00:00", true),
    ] {
        f.attributes(&format!("sys/class/net/{name}"), &[("address", mac)]);
        if device {
            f.attributes(&format!("sys/class/net/{name}/device"), &[("uevent", "")]);
        }
    }
    let machine = probe(f.root(), None);
    assert_eq!(
        machine.uuid.as_deref(),
        Some("4c4c4544-0042-3510-8052-b8c04f4d4e32")
    );
    assert_eq!(machine.serial.as_deref(), Some("B5BRMN2"));
    assert_eq!(machine.firmware, Firmware::Uefi);
    assert_eq!(machine.macs, ["52:54:00:00:00:ab", "52:54:00:00:00:10"]);
    assert_eq!(
        (machine.memory_total, machine.memory_available),
        (Bytes(16 << 20), Bytes(8 << 20))
    );
    assert_eq!(machine.hostname.as_deref(), Some("node7"));
    assert_eq!(machine.arch, "x86_64");

    for bootif in ["01-52-54-00-00-00-10", "52:54:00:00:00:10"] {
        assert_eq!(
            probe(f.root(), Some(bootif)).macs[0],
            "52:54:00:00:00:10",
            "{bootif}"
        );
    }
    for bootif in ["", "01-52", "01-zz-54-00-00-00-10", "ff-ff-ff-ff-ff-ff"] {
        assert_eq!(probe(f.root(), Some(bootif)).macs, machine.macs, "{bootif}");
    }
    f.file("proc/cmdline", "quiet BOOTIF=01-52-54-00-00-00-10\n");
    assert_eq!(bootif(f.root()).as_deref(), Some("01-52-54-00-00-00-10"));
}

#[test]
fn firmware_without_usable_variables() {
    let f = Fixture::new();
    assert_eq!(probe(f.root(), None).firmware, Firmware::Bios);
    std::fs::create_dir_all(f.root().join("sys/firmware/efi/efivars")).unwrap();
    assert_eq!(
        probe(f.root(), None).firmware,
        Firmware::UefiWithoutVariables
    );
    f.file("sys/firmware/efi/efivars/x", "");
    f.file(
        "proc/self/mountinfo",
        "1 2 0:30 / /sys/firmware/efi/efivars ro,nosuid - efivarfs efivarfs rw\n",
    );
    assert_eq!(
        probe(f.root(), None).firmware,
        Firmware::UefiWithoutVariables
    );
}

#[test]
fn what_thousands_of_boards_share_is_no_identity() {
    let f = Fixture::new();
    for uuid in [
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
        "Not Settable",
    ] {
        f.attributes(
            "sys/class/dmi/id",
            &[("product_uuid", uuid), ("product_serial", "Default string")],
        );
        let machine = probe(f.root(), None);
        assert_eq!((machine.uuid, machine.serial), (None, None), "{uuid}");
    }
}

#[test]
fn a_board_with_a_device_tree() {
    let f = Fixture::new();
    f.file(
        "sys/firmware/devicetree/base/serial-number",
        b"10000000abcdef01\0",
    );
    assert_eq!(
        probe(f.root(), None).serial.as_deref(),
        Some("10000000abcdef01")
    );
}
