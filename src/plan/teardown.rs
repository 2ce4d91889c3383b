//! Which devices that were built on a disk are taken down before it is overwritten, and in which order. Pure.
//!
//! Only what nobody uses, and only what stands on this very disk: a mounted file system or active swap anywhere in
//! the stack refuses, and other disks keep their part of whatever they share with this one.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::refusal::Refusal;
use crate::error::printable;
use crate::host::holders::CACHE_SET;
use crate::host::{DevNum, Disk, DiskKind, Facts, Holder, MdArray};

/// How a device is taken down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(
    tag = "layer",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Layer {
    /// A map of device mapper, found by its UUID.
    Mapped {
        /// As in `dm/uuid` of sysfs.
        uuid: String,
    },
    /// An md array.
    Md,
    /// A bcache device; what it caches is free then.
    Bcache,
    /// A set of bcache's caches, which is no block device.
    CacheSet {
        /// Its name below /sys/fs/bcache.
        uuid: String,
    },
    /// A loop device.
    Loop,
}

/// A device that is taken down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// Kernel name.
    pub device: String,
    /// Device number; zero for a cache set.
    pub dev: DevNum,
    /// How.
    pub layer: Layer,
    /// What it is, for people.
    pub what: String,
    /// Kernel names of the devices that it stands on, which are free of it afterwards.
    pub below: Vec<String>,
}

/// What is taken down, the topmost first, and what is worth saying about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Teardown {
    /// In this order.
    pub devices: Vec<Standing>,
    /// What other disks lose.
    pub notes: Vec<String>,
}

/// Why a stack stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A file system is mounted, or swap is active.
    InUse,
    /// Nothing uses it, and `overwrite` does not allow to take it down.
    NotAllowed,
    /// The disk is a part of another one, which serves instead.
    PartOf {
        /// Node of that device.
        parent: String,
    },
    /// Nobody here knows how this device is taken down.
    Unknown {
        /// It.
        device: String,
    },
}

impl Why {
    /// What to do.
    pub fn next(&self) -> String {
        match self {
            Why::InUse => "unmount, swap off or stop what holds it, then try again".to_owned(),
            Why::NotAllowed => "if what is on it may be lost, set `overwrite` to Always: unused LVM, md, dm-crypt and bcache devices are taken down then; else select another disk".to_owned(),
            Why::PartOf { parent } => format!(
                "it is a part of another device: select that one by its path, {}",
                printable(parent)
            ),
            Why::Unknown { device } => format!(
                "stop {} by its own program, then try again; ironroot takes down LVM, md, dm-crypt, bcache and loop devices that stand on a disk only",
                printable(device)
            ),
        }
    }
}

/// What must be taken down to free `disk`, whose data may be lost.
pub fn plan(disk: &Disk, facts: &Facts) -> Result<Teardown, Refusal> {
    decide(disk, facts).map_err(|why| busy(disk, why))
}

/// Why `disk` cannot be used as it is.
pub fn busy(disk: &Disk, why: Why) -> Refusal {
    Refusal::Busy {
        disk: disk.name.clone(),
        holders: disk.holders.clone(),
        why,
    }
}

/// Why what stands on `disk` cannot be taken down, where that is so.
pub fn forbids(disk: &Disk, facts: &Facts) -> Option<Why> {
    decide(disk, facts).err()
}

/// The reason for which `disk` is refused while its data may not be lost.
pub fn obstacle(disk: &Disk, facts: &Facts) -> Why {
    decide(disk, facts).err().unwrap_or(Why::NotAllowed)
}

fn decide(disk: &Disk, facts: &Facts) -> Result<Teardown, Why> {
    let in_use = disk
        .holders
        .iter()
        .any(|h| matches!(h, Holder::Mount { .. } | Holder::Swap { .. }));
    // Who attached a regular file as a device did so on purpose, and the file is the target only by its name.
    if disk.dev == DevNum::default()
        && let Some((_, device, _)) = edges(disk).next()
    {
        return Err(Why::Unknown {
            device: device.to_owned(),
        });
    }
    let mut layers: BTreeMap<&str, (Layer, DevNum, &str)> = BTreeMap::new();
    for (_, holder, what) in edges(disk) {
        // A multipath map or a RAID of the firmware is the disk that was meant, whatever is mounted from it.
        layers.insert(holder, layer(holder, what, facts, in_use)?);
    }
    if in_use {
        return Err(Why::InUse);
    }
    let mut teardown = Teardown::default();
    for device in top_first(disk, facts)? {
        let Some((layer, dev, what)) = layers.remove(device) else {
            continue;
        };
        let below: BTreeSet<&str> = facts
            .disks
            .iter()
            .chain([disk])
            .flat_map(edges)
            .filter(|(_, holder, _)| *holder == device)
            .map(|(below, _, _)| below)
            .collect();
        // What stands on a partition of an array is in the way of the array.
        let owners = facts
            .disks
            .iter()
            .filter(|d| d.partitions.iter().any(|p| below.contains(p.name.as_str())))
            .map(|d| d.name.as_str())
            .filter(|name| edges(disk).any(|(_, holder, _)| holder == *name));
        let below: BTreeSet<&str> = below.iter().copied().chain(owners).collect();
        teardown.notes.extend(shared(device, what, disk, facts));
        teardown.devices.push(Standing {
            device: device.to_owned(),
            dev,
            layer,
            what: what.to_owned(),
            below: below.into_iter().map(str::to_owned).collect(),
        });
    }
    Ok(teardown)
}

/// What stands on what: device below, device above, and what that is.
fn edges(disk: &Disk) -> impl Iterator<Item = (&str, &str, &str)> {
    disk.holders.iter().filter_map(|h| match h {
        Holder::Device {
            device,
            holder,
            what,
        } => Some((device.as_str(), holder.as_str(), what.as_str())),
        Holder::Mount { .. } | Holder::Swap { .. } => None,
    })
}

/// Every device that stands on `disk`, none before one that stands on it.
fn top_first<'a>(disk: &'a Disk, facts: &Facts) -> Result<Vec<&'a str>, Why> {
    // What stands on a partition of an array stands on the array.
    let is_on = |below: &str, device: &str| {
        let parts = facts.disks.iter().find(|d| d.name == device);
        below == device || parts.is_some_and(|d| d.partitions.iter().any(|p| p.name == below))
    };
    let mut left: BTreeSet<&str> = edges(disk).map(|(_, holder, _)| holder).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let free: Vec<&str> = left
            .iter()
            .copied()
            .filter(|device| {
                !edges(disk).any(|(below, above, _)| is_on(below, device) && left.contains(above))
            })
            .collect();
        if free.is_empty() {
            // A circle, which no kernel builds.
            let device = left.first().copied().unwrap_or_default().to_owned();
            return Err(Why::Unknown { device });
        }
        for device in free {
            left.remove(device);
            order.push(device);
        }
    }
    Ok(order)
}

fn layer<'a>(
    device: &str,
    what: &'a str,
    facts: &Facts,
    in_use: bool,
) -> Result<(Layer, DevNum, &'a str), Why> {
    let unknown = || {
        // What is mounted from it is the better reason.
        if in_use {
            Why::InUse
        } else {
            Why::Unknown {
                device: device.to_owned(),
            }
        }
    };
    if let Some(uuid) = device.strip_prefix(CACHE_SET) {
        let layer = Layer::CacheSet {
            uuid: uuid.to_owned(),
        };
        return Ok((layer, DevNum::default(), what));
    }
    let above = facts
        .disks
        .iter()
        .find(|d| d.name == device)
        .ok_or_else(unknown)?;
    let layer = match above.kind {
        DiskKind::DeviceMapper => mapped(above).ok_or_else(unknown)??,
        DiskKind::Md if firmware_owns(above.md.as_ref()) => return Err(part_of(above)),
        DiskKind::Md => Layer::Md,
        DiskKind::Loop => Layer::Loop,
        DiskKind::Other if above.name.starts_with("bcache") => Layer::Bcache,
        DiskKind::Other
        | DiskKind::Disk
        | DiskKind::Ram
        | DiskKind::Zram
        | DiskKind::Floppy
        | DiskKind::Optical => return Err(unknown()),
    };
    Ok((layer, above.dev, what))
}

/// Device mapper's users mark their maps by the prefix of the UUID. `None`: nobody that is known here.
fn mapped(disk: &Disk) -> Option<Result<Layer, Why>> {
    let uuid = disk.map_uuid.as_deref()?;
    if ["mpath-", "DMRAID-"].iter().any(|p| uuid.starts_with(p)) {
        return Some(Err(part_of(disk)));
    }
    // The partitions of a map are maps too: `part2-mpath-…`.
    let partition = uuid
        .strip_prefix("part")
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(number, _)| {
            !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
        });
    let known = partition || ["LVM-", "CRYPT-"].iter().any(|p| uuid.starts_with(p));
    known.then(|| {
        Ok(Layer::Mapped {
            uuid: uuid.to_owned(),
        })
    })
}

/// Members of such an array carry the firmware's own metadata, which their loss degrades.
fn firmware_owns(md: Option<&MdArray>) -> bool {
    md.is_some_and(|md| md.metadata.starts_with("external:") || md.level == "container")
}

fn part_of(disk: &Disk) -> Why {
    let mapper = disk.links.iter().find(|l| l.starts_with("/dev/mapper"));
    Why::PartOf {
        parent: mapper.unwrap_or(&disk.path).display().to_string(),
    }
}

/// What other disks have to do with `device`, which is taken down.
fn shared(device: &str, what: &str, disk: &Disk, facts: &Facts) -> Option<String> {
    let others: Vec<&str> = facts
        .disks
        .iter()
        .filter(|d| d.name != disk.name && d.kind == DiskKind::Disk)
        .filter(|d| edges(d).any(|(_, holder, _)| holder == device))
        .map(|d| d.name.as_str())
        .collect();
    if others.is_empty() {
        return None;
    }
    let md = facts
        .disks
        .iter()
        .find(|d| d.name == device)
        .and_then(|d| d.md.as_ref());
    let lost = edges(disk)
        .filter(|(_, holder, _)| *holder == device)
        .count();
    let rest = match md {
        Some(md) if survives(md, lost) => "the array is complete enough to run without this disk",
        Some(_) | None => "what it held cannot be used without this disk",
    };
    Some(format!(
        "{} ({device}) stands on {} too: it is stopped, the other disks are not written; {rest}",
        printable(what),
        others.join(", "),
    ))
}

/// Whether an array still has all of its data when `lost` more of its members are gone.
fn survives(md: &MdArray, lost: usize) -> bool {
    let tolerated = match md.level.as_str() {
        "raid1" => md.members.saturating_sub(1),
        "raid4" | "raid5" | "raid10" => 1,
        "raid6" => 2,
        _ => 0,
    };
    u32::try_from(lost)
        .ok()
        .and_then(|lost| lost.checked_add(md.missing))
        .is_some_and(|gone| gone <= tolerated)
}

#[cfg(test)]
mod tests;
