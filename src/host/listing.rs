//! The text of `ironroot disks`: what a selector can use, and what speaks against a disk.

use std::fmt::Write as _;

use super::{Disk, DiskKind, RecordFound, RecordIdentity, holders};
use crate::error::printable;
use crate::plan::target;

/// One paragraph per disk, for people. `booted_from` is the PARTUUID that the firmware started this kernel from. Devices of the kernel's own that are not in use (loop, ram) are left
/// out. What stands on a disk may have been written by anybody, and is made harmless for a terminal.
pub fn table(disks: &[Disk], booted_from: Option<&str>) -> String {
    let shown: Vec<&Disk> = disks.iter().filter(|d| is_shown(d)).collect();
    if shown.is_empty() {
        return "no disks\n".to_owned();
    }
    let mut text = String::new();
    for disk in shown {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", headline(disk));
        for (name, value) in lines(disk, disks, booted_from) {
            let _ = writeln!(text, "  {name:<9} {value}");
        }
    }
    text
}

fn is_shown(disk: &Disk) -> bool {
    disk.size.0 > 0 || matches!(disk.kind, DiskKind::Disk | DiskKind::Optical)
}

fn headline(disk: &Disk) -> String {
    let size = if disk.size.0 > 0 {
        disk.size.short()
    } else {
        "no medium".to_owned()
    };
    let mut parts = vec![printable(&disk.path.display().to_string()), size];
    match disk.transport {
        Some(transport) => parts.push(format!("{transport:?}").to_lowercase()),
        None => parts.push(kind(disk.kind).to_owned()),
    }
    let named = [&disk.vendor, &disk.model];
    parts.extend(named.into_iter().flatten().map(|text| printable(text)));
    parts.join("  ")
}

fn kind(kind: DiskKind) -> &'static str {
    match kind {
        DiskKind::Disk => "disk",
        DiskKind::Loop => "loop device",
        DiskKind::Ram | DiskKind::Zram => "in memory",
        DiskKind::Floppy => "floppy",
        DiskKind::Optical => "optical",
        DiskKind::DeviceMapper => "device mapper",
        DiskKind::Md => "md array",
        DiskKind::Other => "other",
    }
}

fn lines(disk: &Disk, all: &[Disk], booted_from: Option<&str>) -> Vec<(&'static str, String)> {
    let mut lines = vec![("select", selector(disk, all, booted_from))];
    let mut add = |name, value: Option<String>| lines.extend(value.map(|v| (name, v)));
    add("serial", disk.serial.as_deref().map(printable));
    add("wwn", disk.wwn.as_deref().map(printable));
    add("hctl", disk.hctl.clone());
    add(
        "file",
        disk.backing_file
            .as_ref()
            .map(|f| printable(&f.display().to_string())),
    );
    for link in &disk.links {
        add("link", Some(printable(&link.display().to_string())));
    }
    add("traits", Some(traits(disk, booted_from)));
    for (i, line) in holders::tree(&disk.name, &disk.holders)
        .into_iter()
        .enumerate()
    {
        add(if i == 0 { "in use" } else { "" }, Some(line));
    }
    add("contents", Some(contents(disk)));
    add("record", record(&disk.record));
    lines
}

/// The shortest selector that names this disk and no other, and goes on naming it after the next boot.
/// `path=` with a kernel name is the last resort: such a name may go to another disk.
/// A disk that no other selector chooses is named by path at once.
pub fn selector(disk: &Disk, all: &[Disk], booted_from: Option<&str>) -> String {
    let by_path = target::only_by_path(disk, booted_from).is_some();
    let unique = |value: &Option<String>, of: fn(&Disk) -> &Option<String>| {
        let value = value.as_ref()?;
        // A comma would end the value on the command line.
        let plain = !by_path && !value.contains(',') && printable(value) == *value;
        let only = all.iter().filter(|d| of(d).as_ref() == Some(value)).count() == 1;
        (plain && only).then(|| value.clone())
    };
    if let Some(serial) = unique(&disk.serial, |d| &d.serial) {
        return format!("serial={serial}");
    }
    if let Some(wwn) = unique(&disk.wwn, |d| &d.wwn) {
        return format!("wwn={wwn}");
    }
    let stable = disk
        .links
        .iter()
        .find(|l| l.starts_with("/dev/disk/by-path"));
    let path = stable.or_else(|| disk.links.first()).unwrap_or(&disk.path);
    format!("path={}", printable(&path.display().to_string()))
}

fn traits(disk: &Disk, booted_from: Option<&str>) -> String {
    let mut traits = vec![];
    if let Some(sector) = disk.sector {
        traits.push(format!("{sector}-byte sectors"));
    }
    let spins = if disk.rotational {
        "rotational"
    } else {
        "not rotational"
    };
    traits.push(spins.to_owned());
    if disk.removable {
        traits.push("removable".to_owned());
    }
    if disk.read_only {
        traits.push("read-only".to_owned());
    }
    if booted_from.is_some_and(|partuuid| disk.has_partition(partuuid)) {
        traits.push("this machine was booted from it".to_owned());
    }
    traits.join(", ")
}

fn contents(disk: &Disk) -> String {
    let mut parts: Vec<String> = disk.contents.iter().map(ToString::to_string).collect();
    if let Some(why) = &disk.unreadable {
        parts.push(format!("unreadable: {}", printable(why)));
    }
    if parts.is_empty() {
        return if disk.size.0 > 0 {
            "blank".to_owned()
        } else {
            "none".to_owned()
        };
    }
    parts.join("; ")
}

fn record(record: &RecordFound) -> Option<String> {
    let of = |id: &RecordIdentity| {
        format!(
            "{} for claim {}",
            printable(&id.image),
            printable(&id.claim)
        )
    };
    match record {
        RecordFound::None => None,
        RecordFound::Mark(id) => Some(format!("unfinished installation of {}", of(id))),
        RecordFound::Installed(id) => Some(format!("installation of {}", of(id))),
        RecordFound::Foreign { why, .. } => Some(printable(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Content, Holder, Transport};
    use crate::units::{Bytes, SectorSize};

    fn disk(name: &str) -> Disk {
        Disk {
            name: name.to_owned(),
            path: format!("/dev/{name}").into(),
            size: Bytes(480 << 30),
            sector: Some(SectorSize::S512),
            ..Disk::default()
        }
    }

    #[test]
    fn a_paragraph_has_everything_a_selector_can_use() {
        let disk = Disk {
            transport: Some(Transport::Nvme),
            model: Some("FAST 9000".to_owned()),
            serial: Some("S1".to_owned()),
            wwn: Some("eui.00".to_owned()),
            removable: true,
            holders: vec![Holder::Mount {
                device: "nvme0n1p1".to_owned(),
                target: "/data".to_owned(),
            }],
            contents: vec![Content {
                device: "nvme0n1p1".to_owned(),
                what: "ext4".to_owned(),
                label: Some("root\x1b[31m".to_owned()),
                uuid: None,
            }],
            record: RecordFound::Installed(RecordIdentity {
                claim: "a/b".to_owned(),
                image: "sha256:00".to_owned(),
                ..RecordIdentity::default()
            }),
            ..disk("nvme0n1")
        };
        assert_eq!(
            table(&[disk], None),
            "/dev/nvme0n1  480.0 GiB  nvme  FAST 9000\n  \
               select    path=/dev/nvme0n1\n  \
               serial    S1\n  \
               wwn       eui.00\n  \
               traits    512-byte sectors, not rotational, removable\n  \
               in use    nvme0n1p1\n  \
               \x20           mounted on /data\n  \
               contents  ext4 on nvme0n1p1 (root\\u{1b}[31m)\n  \
               record    installation of sha256:00 for claim a/b\n"
        );
    }

    #[test]
    fn the_selector_names_one_disk_only() {
        let with = |name: &str, serial: Option<&str>, wwn: Option<&str>| Disk {
            serial: serial.map(str::to_owned),
            wwn: wwn.map(str::to_owned),
            ..disk(name)
        };
        let mut all = vec![
            with("sda", Some("A"), Some("naa.1")),
            with("sdb", Some("same"), Some("naa.2")),
            with("sdc", Some("same"), Some("naa.3")),
            with("sdd", Some("with,comma"), None),
            with("sde", None, None),
        ];
        all[4].links.push("/dev/disk/by-id/x".into());
        all[4].links.push("/dev/disk/by-path/pci-0".into());
        let selectors: Vec<String> = all.iter().map(|d| selector(d, &all, None)).collect();
        assert_eq!(
            selectors,
            [
                "serial=A",
                "wwn=naa.2",
                "wwn=naa.3",
                "path=/dev/sdd",
                "path=/dev/disk/by-path/pci-0"
            ]
        );
    }

    /// What is printed is chosen when it is used.
    #[test]
    fn the_selector_selects_the_disk() {
        use crate::config::request::Request;
        use crate::config::{parse, source};
        use crate::host::Facts;
        use crate::host::tables::{Mbr, PartitionKind, Table, TablePartition};
        let of = |name: &str, serial: &str| Disk {
            serial: Some(serial.to_owned()),
            ..disk(name)
        };
        let booted_from = "11111111-01";
        let disks = vec![
            Disk {
                removable: true,
                ..of("sda", "A")
            },
            Disk {
                kind: DiskKind::Md,
                ..of("md0", "B")
            },
            Disk {
                transport: Some(Transport::Usb),
                ..of("sdc", "C")
            },
            Disk {
                table: Table::Mbr(Mbr {
                    signature: "11111111".to_owned(),
                    partitions: vec![TablePartition {
                        number: 1,
                        start: Bytes(1 << 20),
                        size: Bytes(1 << 20),
                        kind: PartitionKind::Byte(0x83),
                        partuuid: booted_from.to_owned(),
                        name: None,
                        attributes: 0,
                    }],
                }),
                ..of("sdd", "D")
            },
            of("sde", "E"),
        ];
        let mut facts = Facts {
            disks: disks.clone(),
            ..Facts::default()
        };
        facts.machine.booted_from = Some(booted_from.to_owned());
        for wanted in &disks {
            let text = selector(wanted, &disks, Some(booted_from));
            let (key, value) = text.split_once('=').unwrap();
            let config = format!(
                r#"{{ "apiVersion": "ironroot.dev/v1alpha1", "kind": "BootConfig",
                    "image": {{ "url": "https://x.example/i.raw" }},
                    "disk": {{ "overwrite": "Always", "select": {{ "{key}": "{value}" }} }} }}"#
            );
            let parsed = parse::parse(config.as_bytes()).unwrap();
            let request: Request = source::interpret(&parsed, "test", config.as_bytes()).unwrap();
            let nobody = target::Owner {
                identity: "",
                claim: "",
            };
            let chosen = target::choose(request.disk().unwrap(), &facts, nobody);
            assert_eq!(chosen.map(|d| &d.name), Ok(&wanted.name), "{text}");
        }
    }

    #[test]
    fn unused_devices_of_the_kernel_are_left_out_and_empty_drives_are_not() {
        let unused = Disk {
            size: Bytes::ZERO,
            kind: DiskKind::Loop,
            ..disk("loop0")
        };
        assert_eq!(table(std::slice::from_ref(&unused), None), "no disks\n");
        let drive = Disk {
            size: Bytes::ZERO,
            kind: DiskKind::Optical,
            ..disk("sr0")
        };
        assert!(table(&[unused, drive], None).starts_with("/dev/sr0  no medium  optical\n"));
    }
}
