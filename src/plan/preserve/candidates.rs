//! Devices that may be sources, and which of them a name means.

use std::path::PathBuf;

use super::Trouble;
use crate::config::request::{Preserved, Source};
use crate::host::tables::TablePartition;
use crate::host::{Content, DevNum, Disk, DiskKind, Facts, Holder, Partition, links};
use crate::plan::target;
use crate::units::Bytes;

/// Signatures of devices that are a part of something else: what else they seem to hold belongs to that.
const MEMBERS: [&str; 9] = [
    "linux_raid_member",
    "ddf_raid_member",
    "isw_raid_member",
    "LVM2_member",
    "zfs_member",
    "bcache",
    "crypto_LUKS",
    "VMFS_volume_member",
    "jbd",
];

/// Signatures whose label names no file system.
const NO_FILE_SYSTEM: [&str; 4] = ["gpt", "dos", "swap", "swsuspend"];

/// A whole disk or a partition.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// The disk.
    pub disk: &'a Disk,
    /// The partition; `None` for the whole disk.
    pub partition: Option<&'a Partition>,
    /// Kernel name.
    pub name: &'a str,
    /// Device node.
    pub path: PathBuf,
    /// Device number.
    pub dev: DevNum,
    /// Size.
    pub size: Bytes,
    /// Its entry in the table.
    entry: Option<&'a TablePartition>,
}

impl<'a> Candidate<'a> {
    /// What is on it.
    pub fn contents(&self) -> Vec<&'a Content> {
        let all = self.disk.contents.iter();
        all.filter(|c| c.device == self.name).collect()
    }

    /// PARTUUID, where it is a partition of a table.
    pub fn partuuid(&self) -> Option<String> {
        self.entry.map(|e| e.partuuid.clone())
    }

    /// Whether it is the partition `label`.
    pub fn is_called(&self, label: &str) -> bool {
        self.entry.is_some_and(|e| e.name.as_deref() == Some(label))
    }

    /// Nothing at all is on it.
    pub fn is_blank(&self) -> bool {
        match self.partition {
            Some(partition) => partition.blank,
            None => self.disk.contents.is_empty() && self.disk.unreadable.is_none(),
        }
    }

    /// Whether it has a file system that `is` the one, or, where it is `encrypted`, a LUKS header.
    fn has(&self, encrypted: bool, is: impl Fn(&Content) -> bool) -> bool {
        let contents = self.contents();
        if encrypted && contents.iter().any(|c| c.what == "crypto_LUKS" && is(c)) {
            return true;
        }
        let member = contents.iter().any(|c| MEMBERS.contains(&c.what.as_str()));
        !member
            && contents
                .iter()
                .any(|c| !NO_FILE_SYSTEM.contains(&c.what.as_str()) && is(c))
    }
}

/// Every device that may be a source. What is a part of something else (a path of a multipath device, a disk of
/// an array, a partitioned map) is passed over: the other is in the list by itself.
pub fn all(facts: &Facts) -> Vec<Candidate<'_>> {
    let mut all = with_parts(facts);
    all.retain(|device| whole_of(device).is_none());
    all
}

/// As [`all`], with what is passed over there.
fn with_parts(facts: &Facts) -> Vec<Candidate<'_>> {
    let mut all = Vec::new();
    for disk in &facts.disks {
        if disk.size == Bytes::ZERO || disk.kind == DiskKind::Floppy {
            continue;
        }
        all.push(Candidate {
            disk,
            partition: None,
            name: &disk.name,
            path: disk.path.clone(),
            dev: disk.dev,
            size: disk.size,
            entry: mapped_entry(disk, facts),
        });
        for partition in &disk.partitions {
            // Where the boot sector of a FAT has a table for show, it is the disk once more.
            if partition.start == Bytes::ZERO {
                continue;
            }
            // A table that the kernel has not read yet says nothing of the kernel's partitions.
            let entry = disk.table.partitions().iter().find(|entry| {
                entry.number == partition.number
                    && entry.start == partition.start
                    && entry.size == partition.size
            });
            all.push(Candidate {
                disk,
                partition: Some(partition),
                name: &partition.name,
                path: PathBuf::from("/dev").join(&partition.name),
                dev: partition.dev,
                size: partition.size,
                entry,
            });
        }
    }
    all
}

/// What `device` is a part of, or its disk as a whole: there may be several layers and users.
fn whole_of(device: &Candidate<'_>) -> Option<String> {
    let holders = device.disk.holders.iter();
    let mut all = holders.filter(|holder| matches!(holder, Holder::Device { .. }));
    let held = all.find(|h| h.device() == device.disk.name || h.device() == device.name);
    held.map(ToString::to_string)
        .or_else(|| member_below(device))
}

/// The disk of a partition is a part of something that nobody has set up yet: the partition is an image of one that
/// is in there, and writing to it would make the parts differ.
fn member_below(device: &Candidate<'_>) -> Option<String> {
    device.partition?;
    let (whole, parts): (Vec<&Content>, Vec<&Content>) = device
        .disk
        .contents
        .iter()
        .filter(|c| MEMBERS.contains(&c.what.as_str()))
        .partition(|c| c.device == device.disk.name);
    // What stands at the end of the last partition may be found from the end of the disk as well.
    let is_a_partitions = |c: &Content| {
        parts
            .iter()
            .any(|p| p.what == c.what && p.uuid == c.uuid && p.label == c.label)
    };
    whole
        .into_iter()
        .find(|c| !is_a_partitions(c))
        .map(ToString::to_string)
}

/// The entry in the table of the map that `disk` is a partition of: device mapper has no partitions, kpartx makes
/// a map for each, whose UUID is `partN-` and that of the whole.
fn mapped_entry<'a>(disk: &Disk, facts: &'a Facts) -> Option<&'a TablePartition> {
    let (number, whole) = disk
        .map_uuid
        .as_deref()?
        .strip_prefix("part")?
        .split_once('-')?;
    let number: u32 = number.parse().ok()?;
    let parent = facts
        .disks
        .iter()
        .find(|d| d.map_uuid.as_deref() == Some(whole))?;
    let entries = parent.table.partitions().iter();
    entries
        .filter(|entry| entry.size == disk.size)
        .find(|entry| entry.number == number)
}

/// Every device that has the name.
pub fn named<'a, 'f>(
    entry: &'a Preserved,
    devices: &'a [Candidate<'f>],
) -> impl Iterator<Item = &'a Candidate<'f>> {
    devices.iter().filter(|d| is(entry, d))
}

/// The one device that `entry` lives on.
pub fn find<'a, 'f>(
    entry: &Preserved,
    devices: &'a [Candidate<'f>],
    facts: &Facts,
) -> Result<&'a Candidate<'f>, Trouble> {
    let found: Vec<&Candidate<'_>> = devices.iter().filter(|d| is(entry, d)).collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] => Err(missing(entry, facts)),
        several => Err(Trouble::Several(
            several.iter().map(|d| d.name.to_owned()).collect(),
        )),
    }
}

/// Why nothing was found: a part of something else has the name, or nothing that can be read.
fn missing(entry: &Preserved, facts: &Facts) -> Trouble {
    let all = with_parts(facts);
    let part = all.iter().filter(|d| is(entry, d)).find_map(whole_of);
    if let Some(whole) = part {
        return Trouble::PartOf(whole);
    }
    if let Source::Disk { select, .. } = &entry.source
        && let Some(path) = target::named_path(select)
        && facts.no_udev
        && links::is_only_udevs(path)
    {
        return Trouble::Conflict(format!(
            "{path} is a name that only udev makes, and no udev runs here; name the disk by `serial`, `wwn` or `hctl`"
        ));
    }
    Trouble::Missing {
        unreadable: facts
            .disks
            .iter()
            .filter(|d| d.unreadable.is_some() && d.kind != DiskKind::Floppy)
            .map(|d| d.name.clone())
            .collect(),
    }
}

fn is(entry: &Preserved, device: &Candidate<'_>) -> bool {
    let encrypted = entry.key_file.is_some();
    match &entry.source {
        Source::Partlabel(name) => device.is_called(name),
        Source::Partuuid(uuid) => device
            .entry
            .is_some_and(|e| e.partuuid.eq_ignore_ascii_case(uuid)),
        Source::Label(label) => {
            device.has(encrypted, |c| c.label.as_deref() == Some(label.as_str()))
        }
        Source::Uuid(uuid) => device.has(encrypted, |c| {
            c.uuid
                .as_deref()
                .is_some_and(|u| u.eq_ignore_ascii_case(uuid))
        }),
        Source::Disk { select, partition } => {
            let disk = device.disk;
            // As for a target: what is no fixed disk has to be named by its node.
            let serves = match target::named_path(select) {
                Some(_) => true,
                None => disk.kind == DiskKind::Disk && !disk.removable,
            };
            let number = device.partition.map(|p| p.number);
            if number == *partition {
                return serves && target::matches(select, disk);
            }
            // The node of a partition is named without its number.
            let by_node = crate::config::wire::Select {
                path: None,
                ..(**select).clone()
            };
            let node = target::named_path(select).map(std::path::Path::new);
            partition.is_none()
                && node == Some(device.path.as_path())
                && target::matches(&by_node, disk)
        }
    }
}
