//! An image that is a block device: found by its label where no udev makes links, and never the target.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::libc::{major, minor};

use crate::error::{Class, Failure, Result};
use crate::host::named::unescaped;
use crate::host::{Disk, Partition};
use crate::plan::step::Target;
use crate::stream::Location;

/// Devices are stacked a few deep (a file system on LVM on md); more is a loop.
const DEPTH: usize = 16;

/// The device that udev's link `path` would name: below `/dev/disk/by-label` (file system labels),
/// `by-partlabel`, `by-partuuid`, and the names of disks that are known (`by-id`, `by-path`, and `-partN` behind
/// them). `None` for another path or where no device has it; two that have it
/// refuse, because the image must not depend on which of them came first.
pub fn by_name(path: &Path, disks: &[Disk]) -> Result<Option<PathBuf>> {
    let text = unescaped(&path.to_string_lossy());
    let Some((kind, wanted)) = text
        .strip_prefix("/dev/disk/")
        .and_then(|rest| rest.split_once('/'))
    else {
        return Ok(None);
    };
    let mut found: Vec<String> = Vec::new();
    for disk in disks {
        match kind {
            "by-label" => found.extend(
                disk.contents
                    .iter()
                    .filter(|c| !matches!(c.what.as_str(), "gpt" | "dos"))
                    .filter(|c| c.label.as_deref() == Some(wanted))
                    .map(|c| c.device.clone()),
            ),
            "by-partlabel" | "by-partuuid" => {
                let entries = disk.table.partitions().iter().filter(|p| {
                    if kind == "by-partuuid" {
                        p.partuuid.eq_ignore_ascii_case(wanted)
                    } else {
                        p.name.as_deref() == Some(wanted)
                    }
                });
                let numbers: Vec<u32> = entries.map(|p| p.number).collect();
                let named = disk
                    .partitions
                    .iter()
                    .filter(|p| numbers.contains(&p.number));
                found.extend(named.map(|p| p.name.clone()));
            }
            "by-id" | "by-path" => {
                let serial = disk.serial.as_deref().filter(|_| kind == "by-id");
                let of_virtio =
                    serial.map(|s| PathBuf::from(format!("/dev/disk/by-id/virtio-{s}")));
                for link in disk.links.iter().chain(&of_virtio) {
                    let link = unescaped(&link.to_string_lossy());
                    let part = |p: &&Partition| *text == format!("{link}-part{}", p.number);
                    found.extend((*text == link).then(|| disk.name.clone()));
                    found.extend(disk.partitions.iter().find(part).map(|p| p.name.clone()));
                }
            }
            _ => return Ok(None),
        }
    }
    found.sort();
    found.dedup();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(Path::new("/dev").join(one))),
        several => Err(Failure::new(
            Class::Refused,
            format!(
                "image {}: {} have it",
                path.display(),
                several.join(" and ")
            ),
        )
        .hint(
            "name the device by its serial number below /dev/disk/by-id, or give one another label",
        )),
    }
}

/// Refuses an image that is on the target, as a device or as the file behind it: reading it would return
/// what was just written.
pub(super) fn must_not_be_target(root: &Path, images: &[Location], target: &Target) -> Result<()> {
    for image in images {
        let Location::File(path) = image else {
            continue;
        };
        // What is not there is reported by who opens it.
        let Ok(meta) = std::fs::metadata(path) else {
            continue;
        };
        if is_same(root, &meta, target) {
            let text = format!("image {image} is on the target {}", target.path.display());
            return Err(Failure::new(Class::Refused, text)
                .hint("choose another disk, or bring the image from elsewhere"));
        }
    }
    Ok(())
}

fn is_same(root: &Path, image: &Metadata, target: &Target) -> bool {
    let Ok(disk) = std::fs::metadata(&target.path) else {
        return false;
    };
    let is_device = |meta: &Metadata| meta.file_type().is_block_device();
    let file = |meta: &Metadata| (meta.dev(), meta.ino());
    match (is_device(image), is_device(&disk)) {
        (true, true) => {
            below(root, image.rdev()).contains(&disk.rdev())
                || below(root, disk.rdev()).contains(&image.rdev())
        }
        (false, false) => file(image) == file(&disk),
        (true, false) => backing(root, image.rdev()).is_some_and(|b| file(&b) == file(&disk)),
        (false, true) => backing(root, disk.rdev()).is_some_and(|b| file(&b) == file(image)),
    }
}

/// A device, the disk it is a partition of, and all that these are made of.
fn below(root: &Path, device: u64) -> Vec<u64> {
    let mut all = vec![device];
    let mut next = 0;
    while let Some(device) = all.get(next).copied() {
        next += 1;
        if all.len() > DEPTH * DEPTH {
            break;
        }
        let place = sysfs(root, device);
        let mut places = Vec::new();
        if place.join("partition").exists() {
            places.extend(
                place
                    .canonicalize()
                    .ok()
                    .and_then(|p| Some(p.parent()?.to_owned())),
            );
        }
        let slaves = std::fs::read_dir(place.join("slaves"))
            .into_iter()
            .flatten();
        places.extend(slaves.filter_map(|slave| Some(slave.ok()?.path())));
        for place in places {
            let number = std::fs::read_to_string(place.join("dev")).ok();
            if let Some(device) = number.as_deref().and_then(device_number)
                && !all.contains(&device)
            {
                all.push(device);
            }
        }
    }
    all
}

/// The regular files that are written where `target` is: itself, or what is behind its loop device.
pub(super) fn files_behind(root: &Path, target: &Target) -> Vec<Metadata> {
    let Ok(disk) = std::fs::metadata(&target.path) else {
        return Vec::new();
    };
    let file = if disk.file_type().is_block_device() {
        backing(root, disk.rdev())
    } else {
        Some(disk)
    };
    file.into_iter().collect()
}

/// The file behind a loop device.
fn backing(root: &Path, device: u64) -> Option<Metadata> {
    let path = std::fs::read_to_string(sysfs(root, device).join("loop/backing_file")).ok()?;
    std::fs::metadata(path.trim_end_matches('\n')).ok()
}

fn sysfs(root: &Path, device: u64) -> PathBuf {
    root.join("sys/dev/block")
        .join(format!("{}:{}", major(device), minor(device)))
}

fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(nix::libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Content;

    fn disk(name: &str, label: &str) -> Disk {
        Disk {
            name: name.to_owned(),
            contents: vec![Content {
                device: format!("{name}1"),
                what: "vfat".to_owned(),
                label: Some(label.to_owned()),
                uuid: None,
            }],
            ..Disk::default()
        }
    }

    #[test]
    fn a_label_names_one_device_or_none() {
        let disks = [
            disk("sda", "IMAGE"),
            disk("sdb", "TWO WORDS"),
            disk("sdc", "ü"),
        ];
        let found = |path: &str| by_name(Path::new(path), &disks).unwrap();
        assert_eq!(found("/dev/disk/by-label/IMAGE"), Some("/dev/sda1".into()));
        assert_eq!(
            found("/dev/disk/by-label/TWO\\x20WORDS"),
            Some("/dev/sdb1".into())
        );
        assert_eq!(found("/dev/disk/by-label/ü"), Some("/dev/sdc1".into()));
        for other in [
            "/dev/disk/by-label/NONE",
            "/dev/disk/by-id/IMAGE",
            "/dev/sda1",
            "/IMAGE",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn a_virtio_disk_is_known_by_its_serial_number() {
        let disks = [
            Disk {
                name: "vda".to_owned(),
                serial: Some("machineboot".to_owned()),
                partitions: vec![Partition {
                    name: "vda2".to_owned(),
                    number: 2,
                    ..Partition::default()
                }],
                ..Disk::default()
            },
            Disk::default(),
        ];
        for (path, device) in [
            ("virtio-machineboot", Some("/dev/vda")),
            ("virtio-machineboot-part2", Some("/dev/vda2")),
            ("virtio-machineboot-part1", None),
            ("virtio-other", None),
            ("wwn-machineboot", None),
        ] {
            let path = Path::new("/dev/disk/by-id").join(path);
            let device = device.map(PathBuf::from);
            assert_eq!(by_name(&path, &disks).unwrap(), device, "{path:?}");
        }
    }

    #[test]
    fn the_names_that_udev_would_make_name_disks_and_their_partitions() {
        let disks = [Disk {
            name: "nvme0n1".to_owned(),
            links: vec!["/dev/disk/by-path/pci-0000:01:00.0-nvme-1".into()],
            partitions: vec![Partition {
                name: "nvme0n1p2".to_owned(),
                number: 2,
                ..Partition::default()
            }],
            ..Disk::default()
        }];
        for (path, device) in [
            ("pci-0000:01:00.0-nvme-1", Some("/dev/nvme0n1")),
            ("pci-0000:01:00.0-nvme-1-part2", Some("/dev/nvme0n1p2")),
            ("pci-0000:01:00.0-nvme-1-part1", None),
            ("pci-0000:02:00.0-nvme-1", None),
        ] {
            let path = Path::new("/dev/disk/by-path").join(path);
            assert_eq!(by_name(&path, &disks).unwrap(), device.map(PathBuf::from));
        }
    }

    #[test]
    fn two_devices_of_one_label_refuse() {
        let disks = [disk("sda", "IMAGE"), disk("sdb", "IMAGE")];
        let failure = by_name(Path::new("/dev/disk/by-label/IMAGE"), &disks).unwrap_err();
        assert_eq!(failure.class(), Class::Refused);
        assert!(failure.to_string().contains("sda1 and sdb1"), "{failure}");
    }

    #[test]
    fn a_stack_of_devices_is_followed_to_its_disks() {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path().join("sys");
        let device = |path: &str, number: &str| {
            let place = sys.join("devices").join(path);
            std::fs::create_dir_all(place.join("slaves")).unwrap();
            std::fs::write(place.join("dev"), format!("{number}\n")).unwrap();
            std::fs::create_dir_all(sys.join("dev/block")).unwrap();
            std::os::unix::fs::symlink(&place, sys.join("dev/block").join(number)).unwrap();
            place
        };
        device("sda", "8:0");
        let part = device("sda/sda1", "8:1");
        std::fs::write(part.join("partition"), "1\n").unwrap();
        let dm = device("dm-0", "254:0");
        std::os::unix::fs::symlink(&part, dm.join("slaves/sda1")).unwrap();
        // A loop in the stack must end too.
        std::os::unix::fs::symlink(&dm, part.join("slaves/dm-0")).unwrap();
        let number = nix::libc::makedev;
        let all = below(root.path(), number(254, 0));
        assert_eq!(all, [number(254, 0), number(8, 1), number(8, 0)]);
    }
}
