//! The names of disks below /dev/disk/by-id and by-path where no udev makes them, as below our own PID 1: those whose
//! rules are simple. For the others a selector says something better, and [`is_only_udevs`] says which they are.
//!
//! Sources: systemd's rules.d/60-persistent-storage.rules, udev-builtin-path_id.c, ata_id.c and scsi_id.c.

use std::path::{Path, PathBuf};

use super::sysfs;

/// Below here udev makes its links.
const BY: &str = "/dev/disk";

/// Whether udev, or another program that makes links, runs below `root`.
pub fn are_made(root: &Path) -> bool {
    root.join("run/udev").exists() || root.join("dev/disk").exists()
}

/// The names of the disk whose directory in sysfs is `dir`, and the directory's own place `real`.
pub(super) fn of(root: &Path, name: &str, dir: &Path, real: &Path) -> Vec<PathBuf> {
    let ids = by_id(name, dir, real);
    let places = by_path(root, dir, real);
    let below = |folder: &str, names: Vec<String>| -> Vec<PathBuf> {
        let folder = Path::new(BY).join(folder);
        names.into_iter().map(|name| folder.join(name)).collect()
    };
    [below("by-id", ids), below("by-path", places)].concat()
}

/// Whether the name `path` is one that udev makes and [`of`] does not, so that without udev no disk will ever have it.
pub fn is_only_udevs(path: &str) -> bool {
    let Some((folder, name)) = path
        .strip_prefix("/dev/disk/")
        .and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    let known = match folder {
        "by-id" => IDS.iter().any(|prefix| name.starts_with(prefix)),
        "by-path" => is_place(name),
        _ => false,
    };
    !known
}

const IDS: [&str; 6] = ["nvme-", "virtio-", "wwn-0x", "scsi-3", "ata-", "mmc-"];

/// Whether a name has the form of those that [`by_path`] makes.
fn is_place(name: &str) -> bool {
    let name = name.strip_prefix("virtio-").unwrap_or(name);
    let bus = match name.split_once("pci-") {
        Some((before, rest)) if before.is_empty() || before.starts_with("platform-") => {
            let (address, bus) = rest.split_once('-').unwrap_or((rest, ""));
            if !is_address(address) {
                return false;
            }
            bus
        }
        Some(_) => return false,
        None => return name.starts_with("platform-") && !name.contains("-usb"),
    };
    bus.is_empty()
        || ["nvme-", "ata-", "scsi-"]
            .iter()
            .any(|b| bus.starts_with(b))
}

fn by_id(name: &str, dir: &Path, real: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let text = |attribute: &str| sysfs::text(dir.join(attribute));
    let plain = |attribute: &str| text(attribute).filter(|text| replaced(text) == *text);
    if name.starts_with("nvme") {
        names.extend(plain("wwid").map(|id| format!("nvme-{id}")));
        if let Some((model, serial)) = text("device/model").zip(text("device/serial")) {
            let name = format!("nvme-{}_{}", replaced(&model), replaced(&serial));
            names.extend(plain("nsid").map(|number| format!("{name}_{number}")));
            // Of several namespaces each has this one, and none of them keeps it.
            names.push(name);
        }
    } else if name.starts_with("vd") {
        names.extend(plain("serial").map(|serial| format!("virtio-{serial}")));
    } else if name.starts_with("mmcblk") {
        let of_card = plain("device/name").zip(plain("device/serial"));
        names.extend(of_card.map(|(name, serial)| format!("mmc-{name}_{serial}")));
    } else if name.starts_with("sd") && !is_on_usb(real) {
        let ata = text("device/vendor").as_deref() == Some("ATA");
        let wwid = text("device/wwid");
        if let Some(id) = wwid.as_deref().and_then(|wwid| wwid.strip_prefix("naa.")) {
            names.push(format!("wwn-0x{id}"));
            names.extend((!ata).then(|| format!("scsi-3{id}")));
        }
        if ata {
            let page = sysfs::bytes(dir.join("device/vpd_pg89"));
            names.extend(page.as_deref().and_then(ata_name));
        }
    }
    names
}

/// Model and serial number of an ATA disk in full, from its IDENTIFY data in the SCSI page for ATA information (SAT-4,
/// section 12.4.2): 512 bytes from byte 60 on, two letters in each word, the second one first.
fn ata_name(page: &[u8]) -> Option<String> {
    const IDENTIFY: usize = 60;
    let words = |from: usize, count: usize| {
        let bytes = page.get(IDENTIFY + from * 2..IDENTIFY + (from + count) * 2)?;
        let text: Vec<u8> = bytes
            .chunks_exact(2)
            .flat_map(|word| word.iter().rev())
            .copied()
            .collect();
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        let parts: Vec<&str> = text.split_whitespace().collect();
        Some(replaced(&parts.join("_")))
    };
    let (serial, model) = (words(10, 10)?, words(27, 20)?);
    match (model.is_empty(), serial.is_empty()) {
        (true, _) => None,
        (false, true) => Some(format!("ata-{model}")),
        (false, false) => Some(format!("ata-{model}_{serial}")),
    }
}

/// What udev leaves of a text in a name: anything but these becomes `_`.
fn replaced(text: &str) -> String {
    let stays = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii();
    text.chars()
        .map(|c| if stays(c) { c } else { '_' })
        .collect()
}

fn is_on_usb(real: &Path) -> bool {
    let mut parts = real.components();
    parts.any(|part| {
        let part = part.as_os_str().to_str();
        part.is_some_and(|part| is_numbered(part, "usb"))
    })
}

/// The place of a disk behind one PCI device, or of a virtio disk on the platform bus. What is behind an expander, a
/// fabric or a second PCI root is named by rules of its own.
fn by_path(root: &Path, dir: &Path, real: &Path) -> Vec<String> {
    let devices = root.join("sys/devices");
    let devices = devices.canonicalize().unwrap_or(devices);
    let Ok(place) = real.strip_prefix(devices) else {
        return Vec::new();
    };
    let parts: Option<Vec<&str>> = place.iter().map(|part| part.to_str()).collect();
    let parts = parts.unwrap_or_default();
    let Some((controller, count)) = controller(&parts) else {
        return Vec::new();
    };
    let rest = parts.get(count..).unwrap_or_default();
    let virtio = rest.first().is_some_and(|part| is_numbered(part, "virtio"));
    let above = real.ancestors().nth(rest.len()).unwrap_or(real);
    match (virtio, rest.get(usize::from(virtio)..).unwrap_or_default()) {
        (true, ["block", _]) if controller.starts_with("pci-") => {
            vec![format!("virtio-{controller}"), controller]
        }
        (true, ["block", _]) => vec![controller],
        (false, ["nvme", _, _]) => sysfs::text(dir.join("nsid"))
            .map(|number| format!("{controller}-nvme-{number}"))
            .into_iter()
            .collect(),
        (_, [host, _, address, "block", _]) if is_numbered(host, "host") => {
            let parent = if virtio {
                above.join(rest.first().unwrap_or(&""))
            } else {
                above.to_owned()
            };
            scsi(&parent, address)
                .map(|address| format!("{controller}-scsi-{address}"))
                .into_iter()
                .collect()
        }
        (false, [port, host, _, address, "block", _])
            if is_numbered(port, "ata") && is_numbered(host, "host") =>
        {
            let number = above.join(port).join("ata_port").join(port).join("port_no");
            let ata = sysfs::text(number).zip(hctl(address));
            ata.map(|(port, [_, channel, target, _])| {
                let compatible = format!("{controller}-ata-{port}");
                // Behind a port multiplier the channel tells the disks apart.
                let full = match channel {
                    0 => format!("{compatible}.{target}"),
                    behind => format!("{compatible}.{behind}.0"),
                };
                vec![full, compatible]
            })
            .unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// The name of the controller, and of how many parts of the path it takes.
fn controller(parts: &[&str]) -> Option<(String, usize)> {
    let (platform, rest) = match parts {
        ["platform", device, rest @ ..] => (format!("platform-{device}"), rest),
        other => (String::new(), other),
    };
    let before = parts.len() - rest.len();
    match rest {
        [bridge, rest @ ..] if is_root(bridge) => {
            let count = rest.iter().take_while(|part| is_address(part)).count();
            let address = rest.get(count.checked_sub(1)?)?;
            let name = if platform.is_empty() {
                format!("pci-{address}")
            } else {
                format!("{platform}-pci-{address}")
            };
            Some((name, before + 1 + count))
        }
        _ if !platform.is_empty() => Some((platform, before)),
        _ => None,
    }
}

/// A SCSI address with the number of its host among those of the same controller.
fn scsi(parent: &Path, address: &str) -> Option<String> {
    let [host, channel, target, lun] = hctl(address)?;
    let numbers = sysfs::names(parent)
        .into_iter()
        .filter_map(|name| name.strip_prefix("host")?.parse::<u64>().ok());
    let host = host.checked_sub(numbers.min()?)?;
    Some(format!("{host}:{channel}:{target}:{lun}"))
}

fn hctl(address: &str) -> Option<[u64; 4]> {
    let numbers: Option<Vec<u64>> = address.split(':').map(|n| n.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// `pci0000:00`.
fn is_root(part: &str) -> bool {
    part.strip_prefix("pci").is_some_and(|rest| {
        let hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
        rest.split_once(':')
            .is_some_and(|(domain, bus)| hex(domain) && hex(bus))
    })
}

/// `0000:00:1f.2`.
fn is_address(part: &str) -> bool {
    let form = |pattern: &str| {
        part.len() == pattern.len()
            && part.chars().zip(pattern.chars()).all(|(c, p)| match p {
                'x' => c.is_ascii_hexdigit(),
                other => c == other,
            })
    };
    form("xxxx:xx:xx.x") || form("xxxxx:xx:xx.x")
}

fn is_numbered(part: &str, prefix: &str) -> bool {
    part.strip_prefix(prefix)
        .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests;
