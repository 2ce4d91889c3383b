//! The machine: identity, firmware, network interfaces, memory.

use std::path::Path;

use super::holders::Mount;
use super::{Firmware, Machine, boot_entries, order, sysfs};
use crate::config::cmdline::Cmdline;
use crate::units::Bytes;

/// What a board says that was never given an identity; a name that thousands share is none.
const PLACEHOLDERS: [&str; 14] = [
    "to be filled by o.e.m.",
    "default string",
    "system serial number",
    "not specified",
    "not applicable",
    "not available",
    "none",
    "n/a",
    "unknown",
    "oem",
    "0",
    "0123456789",
    "123456789",
    "empty",
];

/// Probes the machine below `root`. `bootif` is the value of the kernel argument `BOOTIF=`, where there is
/// one: the interface that firmware booted from is listed first.
pub fn probe(root: &Path, bootif: Option<&str>) -> Machine {
    let dmi = root.join("sys/class/dmi/id");
    let tree = root.join("sys/firmware/devicetree/base");
    let memory = sysfs::read_long(root.join("proc/meminfo"));
    Machine {
        uuid: sysfs::text(dmi.join("product_uuid"))
            // A hypervisor without SMBIOS may put it here.
            .or_else(|| sysfs::text(tree.join("vm,uuid")))
            .map(|uuid| uuid.to_lowercase())
            .filter(|uuid| is_identity(uuid)),
        serial: sysfs::text(dmi.join("product_serial"))
            .filter(|serial| is_name(serial))
            .or_else(|| sysfs::text(tree.join("serial-number")).filter(|serial| is_name(serial))),
        // The static binary runs on the architecture it was built for.
        arch: sysfs::text(root.join("proc/sys/kernel/arch"))
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        firmware: firmware(root),
        secure_boot: boot_entries::secure_boot(root),
        macs: macs(root, bootif),
        hostname: sysfs::text(root.join("proc/sys/kernel/hostname"))
            .filter(|name| !["(none)", "localhost"].contains(&name.as_str())),
        memory_total: meminfo(&memory, "MemTotal:"),
        memory_available: meminfo(&memory, "MemAvailable:"),
        numa_nodes: sysfs::text(root.join("sys/devices/system/node/online"))
            .map_or(1, |list| members(&list)),
        booted_from: boot_entries::booted_from(root),
        boot: boot_entries::read(root),
    }
}

/// The value of `BOOTIF=` on the kernel command line below `root`.
pub fn bootif(root: &Path) -> Option<String> {
    let cmdline = Cmdline::parse(&sysfs::read_long(root.join("proc/cmdline")));
    cmdline.get("BOOTIF").map(str::to_owned)
}

fn is_name(serial: &str) -> bool {
    !PLACEHOLDERS.contains(&serial.to_lowercase().as_str())
}

fn is_identity(uuid: &str) -> bool {
    // The second is the default of a firmware kit that many boards kept.
    let digits: String = uuid.chars().filter(|c| *c != '-').collect();
    digits.len() == 32
        && digits.chars().all(|c| c.is_ascii_hexdigit())
        && digits != "03000200040005000006000700080009"
        && ["0", "f"].iter().all(|filler| digits != filler.repeat(32))
}

fn firmware(root: &Path) -> Firmware {
    let efi = root.join("sys/firmware/efi");
    if !efi.exists() {
        return Firmware::Bios;
    }
    let read_only = sysfs::read_long(root.join("proc/self/mountinfo"))
        .lines()
        .filter_map(Mount::parse)
        .filter(|m| m.kind == "efivarfs" && m.target == "/sys/firmware/efi/efivars")
        .any(|m| m.options.split(',').any(|o| o == "ro"));
    // Every firmware has variables; an empty directory is a mount point without its mount.
    if read_only || sysfs::names(efi.join("efivars")).is_empty() {
        Firmware::UefiWithoutVariables
    } else {
        Firmware::Uefi
    }
}

fn macs(root: &Path, bootif: Option<&str>) -> Vec<String> {
    let net = root.join("sys/class/net");
    let mut interfaces = sysfs::names(&net);
    order::sort(&mut interfaces, String::as_str);
    let mut macs: Vec<String> = Vec::new();
    for name in interfaces {
        let dir = net.join(name);
        // Bridges, bonds and VLANs have no device, and no address of their own.
        if !dir.join("device").exists() {
            continue;
        }
        // The member of a bond carries the bond's address.
        let mac = sysfs::text(dir.join("bonding_slave/perm_hwaddr"))
            .or_else(|| sysfs::text(dir.join("address")))
            .map(|mac| mac.to_lowercase())
            .filter(|mac| mac.chars().any(|c| c.is_ascii_hexdigit() && c != '0'));
        if let Some(mac) = mac.filter(|mac| !macs.contains(mac)) {
            macs.push(mac);
        }
    }
    let boot = bootif.and_then(bootif_mac);
    macs.sort_by_key(|mac| Some(mac) != boot.as_ref());
    macs
}

/// PXELINUX writes `01-aa-bb-cc-dd-ee-ff`, the first group being the hardware type; iPXE scripts write the
/// address alone, with dashes or colons.
fn bootif_mac(value: &str) -> Option<String> {
    let groups: Vec<&str> = value.split(['-', ':']).collect();
    let address = match groups.len() {
        7 => groups.get(1..)?,
        6 => groups.as_slice(),
        _ => return None,
    };
    let hex = |g: &&str| g.len() == 2 && g.chars().all(|c| c.is_ascii_hexdigit());
    address
        .iter()
        .all(hex)
        .then(|| address.join(":").to_lowercase())
}

/// How many numbers are in a list such as `0-3,8` (kernel: lib/bitmap-str.c, `bitmap_parselist`).
fn members(text: &str) -> u32 {
    text.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .fold(0, u32::saturating_add)
}

/// A line of /proc/meminfo, which counts in KiB.
fn meminfo(text: &str, key: &str) -> Bytes {
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok());
    Bytes(kib.and_then(|k| k.checked_mul(1024)).unwrap_or(0))
}

#[cfg(test)]
mod tests;
