//! Disks as sysfs describes them: names, sizes, identity, attachment, partitions. Opens no device.
//!
//! Sources: kernel Documentation/ABI/stable/sysfs-block, Documentation/ABI/testing/sysfs-block, SCSI SPC-4
//! section 7.8.14 for the serial number page.

use std::path::{Component, Path, PathBuf};

use super::{DevNum, Disk, DiskKind, MdArray, Partition, Transport, links, order, sysfs};
use crate::error::{Class, Context as _, Result};
use crate::units::{Bytes, SectorSize};

/// sysfs counts in units of 512 bytes whatever the sector size.
const SYSFS_UNIT: u64 = 512;
/// More than any machine; a bound on what a strange sysfs can make us do.
const DISKS_LIMIT: usize = 4096;

/// Every whole block device below `root`, in natural order, without holders, contents and record.
/// Devices without a size (an unused loop device, an empty card reader) have size 0.
pub fn list(root: &Path) -> Result<Vec<Disk>> {
    let dir = root.join("sys/block");
    // The directory itself must be there; without sysfs "no disks" would be a lie.
    std::fs::read_dir(&dir).context(Class::Refused, || {
        format!("listing the disks in {}", dir.display())
    })?;
    let links = links::are_made(root).then(|| made_links(root));
    let mut disks: Vec<Disk> = sysfs::names(&dir)
        .into_iter()
        .take(DISKS_LIMIT)
        // The single paths of a natively multipathed NVMe namespace: no node, not to be used.
        .filter(|name| !sysfs::flag(dir.join(name).join("hidden")))
        .map(|name| disk(root, &dir.join(&name), &name, links.as_deref()))
        .collect();
    if links.is_none() {
        keep_only_names_of_one(&mut disks);
    }
    order::sort(&mut disks, |d| &d.name);
    Ok(disks)
}

/// A name that fits two disks means neither.
fn keep_only_names_of_one(disks: &mut [Disk]) {
    let all: Vec<PathBuf> = disks.iter().flat_map(|d| d.links.clone()).collect();
    let of_one = |link: &PathBuf| all.iter().filter(|l| *l == link).count() == 1;
    for disk in disks {
        disk.links.retain(of_one);
    }
}

fn disk(root: &Path, dir: &Path, sysfs_name: &str, made: Option<&[(String, PathBuf)]>) -> Disk {
    // The device directory's place in the tree says how the disk is attached.
    let real = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let name = sysfs_name.replace('!', "/");
    let kind = kind(&name, dir);
    let transport = transport(&name, &real);
    let mut links: Vec<PathBuf> = match made {
        Some(made) => made
            .iter()
            .filter(|(target, _)| *target == name)
            .map(|(_, link)| link.clone())
            .collect(),
        None => links::of(root, &name, dir, &real),
    };
    if let Some(mapped) = sysfs::text(dir.join("dm/name")) {
        links.extend(logical_volume(dir, &mapped));
        links.push(Path::new("/dev/mapper").join(mapped));
    }
    Disk {
        path: Path::new("/dev").join(&name),
        links,
        dev: dev(dir).unwrap_or_default(),
        diskseq: sysfs::number(dir.join("diskseq")),
        kind,
        size: sectors(dir.join("size")),
        sector: sysfs::number(dir.join("queue/logical_block_size")).and_then(SectorSize::new),
        model: model(dir),
        vendor: sysfs::text(dir.join("device/vendor")).filter(|v| !v.starts_with("0x")),
        serial: serial(dir, &real, transport),
        wwn: wwn(dir),
        transport,
        hctl: hctl(dir),
        rotational: sysfs::flag(dir.join("queue/rotational")),
        removable: sysfs::flag(dir.join("removable")),
        read_only: sysfs::flag(dir.join("ro")),
        backing_file: sysfs::text(dir.join("loop/backing_file")).map(PathBuf::from),
        map_uuid: sysfs::text(dir.join("dm/uuid")),
        md: md_array(dir),
        partitions: partitions(dir),
        name,
        ..Disk::default()
    }
}

fn kind(name: &str, dir: &Path) -> DiskKind {
    const SCSI_CDROM: u32 = 5;
    const DISKS: [&str; 11] = [
        "sd", "nvme", "vd", "xvd", "hd", "dasd", "pmem", "ubd", "cciss/", "ida/", "mmcblk",
    ];
    // Not "mmcblk0boot0" and "mmcblk0rpmb": areas of the card for firmware and keys.
    let mmc_area = name.starts_with("mmcblk") && (name.contains("boot") || name.ends_with("rpmb"));
    let device_type = sysfs::number::<u32>(dir.join("device/type"));
    if name.starts_with("sr") || device_type == Some(SCSI_CDROM) {
        DiskKind::Optical
    } else if name.starts_with("loop") {
        DiskKind::Loop
    } else if name.starts_with("zram") {
        DiskKind::Zram
    } else if name.starts_with("ram") {
        DiskKind::Ram
    } else if name.starts_with("fd") {
        DiskKind::Floppy
    } else if name.starts_with("dm-") {
        DiskKind::DeviceMapper
    } else if name.starts_with("md") {
        DiskKind::Md
    } else if !mmc_area && DISKS.iter().any(|d| name.starts_with(d)) {
        DiskKind::Disk
    } else {
        DiskKind::Other
    }
}

/// The nearest transport wins that people would name: a SATA disk in a USB enclosure is a USB disk.
fn transport(name: &str, real: &Path) -> Option<Transport> {
    let has = |wanted: &dyn Fn(&str) -> bool| {
        real.components().any(|c| match c {
            Component::Normal(part) => part.to_str().is_some_and(wanted),
            _ => false,
        })
    };
    // `ata1`, `usb2`, `session3`, `virtio0`.
    let numbered = |prefix: &'static str| {
        move |part: &str| {
            part.strip_prefix(prefix)
                .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
        }
    };
    if name.starts_with("nvme") {
        Some(Transport::Nvme)
    } else if name.starts_with("mmcblk") || has(&|p| p == "mmc_host") {
        Some(Transport::Mmc)
    } else if has(&numbered("usb")) {
        Some(Transport::Usb)
    } else if has(&numbered("session")) {
        Some(Transport::Iscsi)
    } else if has(&|p| p.starts_with("rport-")) {
        Some(Transport::Fc)
    } else if has(&|p| p.starts_with("end_device-")) {
        Some(Transport::Sas)
    } else if has(&numbered("ata")) {
        Some(Transport::Sata)
    } else if has(&numbered("virtio")) {
        Some(Transport::Virtio)
    } else if has(&numbered("host")) {
        Some(Transport::Scsi)
    } else {
        None
    }
}

fn model(dir: &Path) -> Option<String> {
    // An MMC card calls its model its name.
    sysfs::text(dir.join("device/model")).or_else(|| {
        let mmc = dir.join("device/cid").exists();
        mmc.then(|| sysfs::text(dir.join("device/name"))).flatten()
    })
}

fn serial(dir: &Path, real: &Path, transport: Option<Transport>) -> Option<String> {
    // A USB stick's SCSI serial number is often the bridge's; the USB device's own is on its label.
    let usb = (transport == Some(Transport::Usb))
        .then(|| usb_serial(real))
        .flatten();
    usb.or_else(|| sysfs::text(dir.join("serial")))
        .or_else(|| unit_serial(&sysfs::bytes(dir.join("device/vpd_pg80"))?))
        .or_else(|| sysfs::text(dir.join("device/serial")))
}

/// The serial number in a SCSI vital product data page 0x80: four bytes of header, the last two its length.
fn unit_serial(page: &[u8]) -> Option<String> {
    let (&[_, code, high, low], rest) = page.split_first_chunk::<4>()?;
    if code != 0x80 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
    let text = String::from_utf8_lossy(rest.get(..length)?);
    let trimmed = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

/// The serial number of the USB device that the disk hangs on: the nearest ancestor with a vendor id.
fn usb_serial(real: &Path) -> Option<String> {
    let device = real
        .ancestors()
        .take(12)
        .find(|dir| dir.join("idVendor").exists())?;
    sysfs::text(device.join("serial"))
}

fn wwn(dir: &Path) -> Option<String> {
    if let Some(wwid) =
        sysfs::text(dir.join("wwid")).or_else(|| sysfs::text(dir.join("device/wwid")))
    {
        return Some(wwid);
    }
    // A multipath map is named after its paths' identifier, with the type as a digit: 3 is NAA.
    let uuid = sysfs::text(dir.join("dm/uuid"))?;
    uuid.strip_prefix("mpath-3").map(|id| format!("naa.{id}"))
}

fn md_array(dir: &Path) -> Option<MdArray> {
    let md = dir.join("md");
    md.exists().then(|| MdArray {
        level: sysfs::text(md.join("level")).unwrap_or_default(),
        // While it is reshaped, the number before stands behind it.
        members: sysfs::text(md.join("raid_disks"))
            .and_then(|text| text.split_whitespace().next()?.parse().ok())
            .unwrap_or_default(),
        missing: sysfs::number(md.join("degraded")).unwrap_or_default(),
        metadata: sysfs::text(md.join("metadata_version")).unwrap_or_default(),
    })
}

/// The SCSI address is the name of the directory that `device` points to.
fn hctl(dir: &Path) -> Option<String> {
    let device = std::fs::canonicalize(dir.join("device")).ok()?;
    let name = device.file_name()?.to_str()?;
    let parts: Vec<&str> = name.split(':').collect();
    let numbers = parts
        .iter()
        .all(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_digit()));
    (parts.len() == 4 && numbers).then(|| name.to_owned())
}

fn partitions(dir: &Path) -> Vec<Partition> {
    sysfs::names(dir)
        .into_iter()
        .filter_map(|name| {
            let dir = dir.join(&name);
            let number = sysfs::number(dir.join("partition"))?;
            Some(Partition {
                name: name.replace('!', "/"),
                number,
                dev: dev(&dir).unwrap_or_default(),
                start: sectors(dir.join("start")),
                size: sectors(dir.join("size")),
                ..Partition::default()
            })
        })
        .collect()
}

fn dev(dir: &Path) -> Option<DevNum> {
    let text = sysfs::text(dir.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(DevNum {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

fn sectors(path: PathBuf) -> Bytes {
    let count: u64 = sysfs::number(path).unwrap_or(0);
    Bytes(count.checked_mul(SYSFS_UNIT).unwrap_or(0))
}

/// The name /dev/GROUP/VOLUME of a logical volume (lvm(8), "NAME ESCAPING"): a hyphen of a name is doubled in that of
/// its map, and a single one stands between the two; a third part is of something inside LVM.
fn logical_volume(dir: &Path, map: &str) -> Option<PathBuf> {
    if !sysfs::text(dir.join("dm/uuid"))?.starts_with("LVM-") {
        return None;
    }
    let map = map.replace("--", "\0");
    let (group, volume) = map.split_once('-')?;
    let whole = !group.is_empty() && !volume.is_empty() && !volume.contains('-');
    let name = |part: &str| part.replace('\0', "-");
    whole.then(|| Path::new("/dev").join(name(group)).join(name(volume)))
}

/// The links below /dev/disk that udev made: what each points to, and itself.
fn made_links(root: &Path) -> Vec<(String, PathBuf)> {
    let by = root.join("dev/disk");
    let mut links = Vec::new();
    for kind in sysfs::names(&by) {
        for name in sysfs::names(by.join(&kind)) {
            let target = std::fs::read_link(by.join(&kind).join(&name))
                .ok()
                .and_then(|t| t.file_name()?.to_str().map(str::to_owned));
            if let Some(target) = target {
                links.push((target, Path::new("/dev/disk").join(&kind).join(&name)));
            }
        }
    }
    links
}

#[cfg(test)]
mod tests;
