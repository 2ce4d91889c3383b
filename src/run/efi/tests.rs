//! Firmware as a directory of variables.

use super::*;

const LOADER: &str = "\\EFI\\BOOT\\BOOTX64.EFI";

struct Firmware(tempfile::TempDir);

impl Firmware {
    fn new() -> Firmware {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/firmware/efi/efivars")).unwrap();
        Firmware(dir)
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn set(&self, name: &str, data: Vec<u8>) {
        write(self.root(), name, data).unwrap();
    }

    fn order(&self, numbers: &[u16]) {
        self.set(
            "BootOrder",
            numbers.iter().flat_map(|n| n.to_le_bytes()).collect(),
        );
    }

    /// Number and description of every entry.
    fn listed(&self) -> Vec<(u16, String)> {
        let entries = entries(self.root()).unwrap();
        entries
            .into_iter()
            .map(|e| (e.number, e.option.unwrap().description))
            .collect()
    }

    /// A typical server: PXE on two families, a foreign system, the setup.
    fn typical() -> Firmware {
        let firmware = Firmware::new();
        firmware.set("Boot0000", network("UEFI PXEv4"));
        firmware.set(
            "Boot0001",
            load_option::encode(&esp("11"), "debian", "\\EFI\\debian\\shimx64.efi").unwrap(),
        );
        firmware.set("Boot0003", network("UEFI PXEv6"));
        firmware.set("Boot0004", other("Setup"));
        firmware.order(&[4, 0, 1, 3]);
        firmware.set("BootCurrent", vec![0, 0]);
        firmware.set("Boot00zz", vec![0]);
        firmware
    }
}

fn esp(last: &str) -> EspLocation {
    EspLocation {
        partition_number: 1,
        start_lba: 2048,
        size_lba: 4096,
        partuuid: format!("00000000-0000-0000-0000-0000000000{last}"),
    }
}

fn raw(description: &str, node: &[u8]) -> Vec<u8> {
    let mut option = vec![1, 0, 0, 0];
    option.extend(u16::try_from(node.len() + 4).unwrap().to_le_bytes());
    option.extend(
        description
            .encode_utf16()
            .chain([0])
            .flat_map(u16::to_le_bytes),
    );
    option.extend(node);
    option.extend([0x7f, 0xff, 4, 0]);
    option
}

fn network(description: &str) -> Vec<u8> {
    let mut mac = vec![3, 11, 37, 0];
    mac.extend([0; 33]);
    raw(description, &mac)
}

fn other(description: &str) -> Vec<u8> {
    raw(description, &[4, 6, 4, 0])
}

fn ensure(firmware: &Firmware, order: BootOrder) -> u16 {
    ensured(firmware, order).number
}

fn ensured(firmware: &Firmware, order: BootOrder) -> Ensured {
    ensure_entry(
        firmware.root(),
        &esp("aa"),
        "ironroot: node7",
        LOADER,
        order,
    )
    .unwrap()
}

#[test]
fn a_new_entry_takes_the_lowest_free_number_and_the_place_of_the_policy() {
    for (order, want) in [
        (BootOrder::Unchanged, [4, 0, 1, 3, 2]),
        (BootOrder::DiskFirst, [2, 4, 0, 1, 3]),
        (BootOrder::NetworkFirst, [0, 3, 2, 4, 1]),
    ] {
        let firmware = Firmware::typical();
        assert_eq!(ensure(&firmware, order), 2);
        assert_eq!(boot_order(firmware.root()).unwrap(), want, "{order:?}");
        // A second time changes nothing.
        assert_eq!(ensure(&firmware, order), 2);
        assert_eq!(boot_order(firmware.root()).unwrap(), want, "{order:?}");
        assert_eq!(firmware.listed().len(), 5);
    }
}

#[test]
fn duplicates_of_ours_go_and_foreign_entries_stay() {
    let firmware = Firmware::typical();
    let entry = |last: &str, description: &str| {
        load_option::encode(&esp(last), description, LOADER).unwrap()
    };
    firmware.set("Boot0005", entry("aa", "ironroot: older name"));
    firmware.set("Boot0006", entry("aa", "ironroot: node7"));
    firmware.set("Boot0007", entry("AA", "ironroot: node7"));
    // Ours on another disk, somebody else's on this partition, and something that makes no sense.
    firmware.set("Boot0008", entry("bb", "ironroot: node7"));
    firmware.set("Boot0009", entry("aa", "debian"));
    firmware.set("Boot000A", vec![1, 2, 3]);
    firmware.order(&[5, 0, 6, 7, 8, 9, 10]);
    let Ensured { number, changes } = ensured(&firmware, BootOrder::Unchanged);
    assert_eq!(number, 6, "the one that is right is kept");
    // One of these may be somebody's own.
    assert_eq!(
        changes,
        [
            r#"Boot0005 "ironroot: older name" was removed: it names the same partition"#,
            r#"Boot0007 "ironroot: node7" was removed: it names the same partition"#,
        ]
    );
    let value = |number| read(firmware.root(), &name(number)).unwrap().unwrap().data;
    assert_eq!(value(9), entry("aa", "debian"), "a foreign entry");
    assert_eq!(value(10), [1, 2, 3], "one that makes no sense");
    // Once more, and there is nothing to say.
    assert_eq!(ensured(&firmware, BootOrder::Unchanged).changes, [""; 0]);
    let numbers: Vec<u16> = entries(firmware.root())
        .unwrap()
        .iter()
        .map(|e| e.number)
        .collect();
    assert_eq!(numbers, [0, 1, 3, 4, 6, 8, 9, 10]);
    assert_eq!(boot_order(firmware.root()).unwrap(), [0, 6, 8, 9, 10]);
}

#[test]
fn an_entry_of_ours_that_changed_is_rewritten_in_place() {
    let firmware = Firmware::typical();
    ensure(&firmware, BootOrder::DiskFirst);
    let moved = EspLocation {
        start_lba: 9999,
        ..esp("aa")
    };
    let Ensured { number, changes } = ensure_entry(
        firmware.root(),
        &moved,
        "ironroot: new",
        LOADER,
        BootOrder::Unchanged,
    )
    .unwrap();
    assert_eq!(
        changes,
        [r#"Boot0002 "ironroot: node7" was taken over: it is ours now"#]
    );
    assert_eq!(number, 2);
    assert_eq!(firmware.listed()[2], (2, "ironroot: new".to_owned()));
    assert_eq!(boot_order(firmware.root()).unwrap(), [2, 4, 0, 1, 3]);
}

#[test]
fn a_right_entry_is_not_written_again() {
    let firmware = Firmware::typical();
    ensure(&firmware, BootOrder::Unchanged);
    let dir = firmware.root().join("sys/firmware/efi/efivars");
    let stamp = |name: &str| {
        std::fs::metadata(dir.join(format!("{name}-{GLOBAL}")))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = (stamp("Boot0002"), stamp("BootOrder"));
    std::thread::sleep(std::time::Duration::from_millis(20));
    ensure(&firmware, BootOrder::Unchanged);
    assert_eq!((stamp("Boot0002"), stamp("BootOrder")), before);
}

#[test]
fn entries_of_replaced_partitions_are_removed() {
    let firmware = Firmware::typical();
    let number = ensure(&firmware, BootOrder::DiskFirst);
    let gone = remove_ours(firmware.root(), &[esp("aa").partuuid, esp("11").partuuid]).unwrap();
    assert_eq!(number, 2);
    assert_eq!(
        gone,
        [r#"Boot0002 "ironroot: node7" was removed: it named a partition that is gone"#],
        "debian's entry is not ours"
    );
    assert_eq!(boot_order(firmware.root()).unwrap(), [4, 0, 1, 3]);
}

#[test]
fn boot_next_needs_an_entry() {
    let firmware = Firmware::typical();
    set_boot_next(firmware.root(), 1).unwrap();
    assert_eq!(
        read(firmware.root(), "BootNext").unwrap().unwrap().data,
        [1, 0]
    );
    let error = set_boot_next(firmware.root(), 0x1234).unwrap_err();
    assert_eq!(error.to_string(), "the firmware has no boot entry Boot1234");
}

#[test]
fn a_machine_without_variables_is_a_failure_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let error = ensure_entry(
        dir.path(),
        &esp("aa"),
        "ironroot",
        LOADER,
        BootOrder::Unchanged,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "listing the UEFI variables of the firmware"
    );
    let firmware = Firmware::typical();
    let wrong = EspLocation {
        partuuid: "?".to_owned(),
        ..esp("aa")
    };
    assert!(
        ensure_entry(
            firmware.root(),
            &wrong,
            "ironroot",
            LOADER,
            BootOrder::Unchanged
        )
        .is_err()
    );
    assert_eq!(firmware.listed().len(), 4, "nothing was written");
}

#[test]
fn loaders_by_architecture() {
    assert_eq!(default_loader("x86_64"), Some(LOADER));
    assert_eq!(default_loader("s390x"), None);
}
