//! What UEFI firmware would boot, in its order, and what it booted this time.

use std::path::Path;

use super::load_option::{self, EntryKind};
use super::{BootEntries, BootEntry, DiskTries};
use crate::sys::efivar::{self, GLOBAL};

/// The namespace of ironroot's own variables.
pub const VENDOR: &str = "fb29877e-e25b-4497-8ab6-85504c45f96a";
/// How often ironroot told this machine to boot from its disk: since when, in seconds since 1970, 64 bits,
/// little-endian; then a byte with the number.
pub const DISK_TRIED: &str = "IronrootDiskTried";

/// The namespace of the boot loader interface (systemd: "The Boot Loader Interface").
const LOADER: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// The boot entries below `root`; `None` where they cannot be read.
pub fn read(root: &Path) -> Option<BootEntries> {
    let names = efivar::names(root, GLOBAL).ok()?;
    let order = bytes(root, "BootOrder", GLOBAL).unwrap_or_default();
    let entries = order
        .chunks_exact(2)
        .filter_map(|pair| pair.first_chunk::<2>())
        .map(|pair| u16::from_le_bytes(*pair))
        .filter(|number| names.contains(&name(*number)))
        .filter_map(|number| {
            let option = load_option::decode(&bytes(root, &name(number), GLOBAL)?)?;
            Some(BootEntry {
                number,
                network: option.kind() == EntryKind::Network,
                active: option.boots(),
                description: option.description,
            })
        })
        .collect();
    let tried = bytes(root, DISK_TRIED, VENDOR);
    Some(BootEntries {
        order: entries,
        disk_tried: tried.and_then(|bytes| tries(&bytes)),
    })
}

/// The content of [`DISK_TRIED`].
pub fn tries(bytes: &[u8]) -> Option<DiskTries> {
    let (since, rest) = bytes.split_first_chunk::<8>()?;
    Some(DiskTries {
        since: u64::from_le_bytes(*since),
        // Earlier versions wrote the time alone.
        count: rest.first().copied().unwrap_or(1),
    })
}

/// The other way round.
pub fn tries_as_bytes(tries: DiskTries) -> Vec<u8> {
    let mut bytes = tries.since.to_le_bytes().to_vec();
    bytes.push(tries.count);
    bytes
}

/// Whether the firmware starts only what is signed (UEFI specification 2.10, section 3.3, `SecureBoot`).
pub fn secure_boot(root: &Path) -> bool {
    bytes(root, "SecureBoot", GLOBAL).as_deref() == Some(&[1])
}

/// PARTUUID of the partition that this kernel was started from: the boot loader says so, else the boot entry
/// that the firmware took. `None` after a network boot.
pub fn booted_from(root: &Path) -> Option<String> {
    let said = bytes(root, "LoaderDevicePartUUID", LOADER)
        .map(|b| load_option::text(&b))
        .filter(|text| !text.is_empty());
    said.or_else(|| {
        let current = bytes(root, "BootCurrent", GLOBAL)?;
        let number = u16::from_le_bytes(*current.first_chunk::<2>()?);
        let option = load_option::decode(&bytes(root, &name(number), GLOBAL)?)?;
        (option.kind() == EntryKind::Disk).then(|| option.partuuid())?
    })
    .map(|partuuid| partuuid.to_lowercase())
}

/// The name of the variable of entry `number`.
pub fn name(number: u16) -> String {
    format!("Boot{number:04X}")
}

/// The number in `Boot####`: four upper-case hexadecimal digits, which keeps `BootNext` and `BootOrder` out.
pub fn entry_number(name: &str) -> Option<u16> {
    let digits = name.strip_prefix("Boot").filter(|d| d.len() == 4)?;
    let upper = digits
        .chars()
        .all(|c| c.is_ascii_digit() || ('A'..='F').contains(&c));
    upper
        .then(|| u16::from_str_radix(digits, 16).ok())
        .flatten()
}

fn bytes(root: &Path, name: &str, guid: &str) -> Option<Vec<u8>> {
    Some(efivar::read(root, name, guid).ok()??.data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::load_option::{EspLocation, encode};
    use crate::sys::efivar::{BOOT_ATTRIBUTES, Variable};

    const ESP: &str = "00000000-0000-0000-0000-0000000000AA";

    fn firmware() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/firmware/efi/efivars")).unwrap();
        dir
    }

    fn set(root: &Path, name: &str, guid: &str, data: Vec<u8>) {
        let attributes = BOOT_ATTRIBUTES;
        efivar::write(root, name, guid, &Variable { attributes, data }).unwrap();
    }

    fn disk(attributes: u32, description: &str) -> Vec<u8> {
        let esp = EspLocation {
            partition_number: 1,
            start_lba: 2048,
            size_lba: 4096,
            partuuid: ESP.to_owned(),
        };
        let mut option = encode(&esp, description, "\\X.EFI").unwrap();
        option[..4].copy_from_slice(&attributes.to_le_bytes());
        option
    }

    /// A network interface by its MAC address.
    fn network() -> Vec<u8> {
        let mut option = vec![1, 0, 0, 0, 41, 0, b'P', 0, 0, 0, 3, 11, 37, 0];
        option.extend([0; 33]);
        option.extend([0x7f, 0xff, 4, 0]);
        option
    }

    #[test]
    fn entries_come_in_the_firmware_s_order_without_what_is_gone() {
        let dir = firmware();
        let root = dir.path();
        set(root, "Boot0000", GLOBAL, disk(0x109, "Setup"));
        set(root, "Boot0001", GLOBAL, network());
        set(root, "Boot0002", GLOBAL, disk(1, "debian"));
        set(root, "Boot0003", GLOBAL, disk(0, "off"));
        let order = [0u16, 9, 1, 3, 2];
        let order = order.iter().flat_map(|n| n.to_le_bytes()).collect();
        set(root, "BootOrder", GLOBAL, order);
        set(root, DISK_TRIED, VENDOR, 77u64.to_le_bytes().to_vec());
        let boot = read(root).unwrap();
        let short: Vec<(u16, bool, bool)> = boot
            .order
            .iter()
            .map(|e| (e.number, e.network, e.active))
            .collect();
        assert_eq!(
            short,
            [
                (0, false, false),
                (1, true, true),
                (3, false, false),
                (2, false, true)
            ]
        );
        assert_eq!(boot.order[3].description, "debian");
        assert_eq!(
            boot.disk_tried,
            Some(DiskTries {
                since: 77,
                count: 1
            })
        );
        let three = DiskTries {
            since: 78,
            count: 3,
        };
        assert_eq!(tries(&tries_as_bytes(three)), Some(three));
        assert_eq!(tries(&[1, 2, 3]), None);
    }

    #[test]
    fn the_partition_that_was_booted() {
        let dir = firmware();
        let root = dir.path();
        assert_eq!(booted_from(root), None);
        set(root, "Boot0001", GLOBAL, network());
        set(root, "Boot0002", GLOBAL, disk(1, "debian"));
        set(root, "BootCurrent", GLOBAL, vec![1, 0]);
        assert_eq!(booted_from(root), None, "from the network");
        set(root, "BootCurrent", GLOBAL, vec![2, 0]);
        assert_eq!(booted_from(root), Some(ESP.to_lowercase()));
        let said: Vec<u8> = "11-AB\0"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        set(root, "LoaderDevicePartUUID", LOADER, said);
        assert_eq!(booted_from(root).as_deref(), Some("11-ab"));
    }

    #[test]
    fn names_of_entries() {
        assert_eq!(entry_number("Boot00A1"), Some(0xa1));
        assert_eq!(name(0xa1), "Boot00A1");
        for name in [
            "BootNext",
            "BootOrder",
            "Boot00a1",
            "Boot001",
            "Boot00001",
            "Boot+001",
        ] {
            assert_eq!(entry_number(name), None, "{name}");
        }
    }
}
