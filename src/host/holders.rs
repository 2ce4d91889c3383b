//! What uses a disk now: mounts, swap, and devices that were built on it, however many layers up.
//!
//! The answer is for people and for the plan. The kernel's own answer, opening with `O_EXCL`, is still
//! asked before the first write: a ZFS pool, for one, is in no list that can be read here.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::{DevNum, Disk, Holder, sysfs};
use crate::error::printable;

/// One device (a whole disk or a partition) and what is directly on it.
#[derive(Debug, Default)]
struct Node {
    /// Mount points.
    mounts: Vec<String>,
    swap: bool,
    /// Kernel names of the devices on top, and what each is.
    above: Vec<(String, String)>,
}

/// What the name of a bcache cache set begins with, among [`Holder`]s; its UUID follows.
pub const CACHE_SET: &str = "bcache/";

/// More layers than anybody builds.
const LAYERS_LIMIT: usize = 32;
/// What is shown of a tree: what stands on several devices is shown below each of them.
const LINES_LIMIT: usize = 200;

/// The holders of `disk` as a tree, one line each, indented by two blanks for each layer.
pub fn tree(disk: &str, holders: &[Holder]) -> Vec<String> {
    let mut lines = Vec::new();
    let above = |name: &str| {
        holders
            .iter()
            .any(|h| matches!(h, Holder::Device { holder, .. } if holder == name))
    };
    // The disk itself needs no line; its partitions are in the order in which they were found.
    let mut roots: Vec<&str> = Vec::new();
    for device in holders.iter().map(Holder::device) {
        if !roots.contains(&device) && (device == disk || !above(device)) {
            roots.push(device);
        }
    }
    for root in roots {
        let depth = usize::from(root != disk);
        if root != disk {
            lines.push(root.to_owned());
        }
        branch(holders, root, depth, &mut vec![root], &mut lines);
    }
    lines
}

fn branch<'a>(
    holders: &'a [Holder],
    device: &str,
    depth: usize,
    path: &mut Vec<&'a str>,
    lines: &mut Vec<String>,
) {
    let indent = "  ".repeat(depth);
    for holder in holders.iter().filter(|h| h.device() == device) {
        if lines.len() >= LINES_LIMIT {
            return;
        }
        match holder {
            Holder::Mount { target, .. } => {
                lines.push(format!("{indent}mounted on {}", printable(target)));
            }
            Holder::Swap { .. } => lines.push(format!("{indent}active swap")),
            Holder::Device { holder, what, .. } => {
                lines.push(format!(
                    "{indent}{} ({})",
                    printable(what),
                    printable(holder)
                ));
                // A circle is shown once, and no stack is deeper than people can read.
                if !path.contains(&holder.as_str()) && path.len() < LAYERS_LIMIT {
                    path.push(holder);
                    branch(holders, holder, depth.saturating_add(1), path, lines);
                    path.pop();
                }
            }
        }
    }
}

/// Fills in [`Disk::holders`] of all `disks`.
pub fn attach(root: &Path, disks: &mut [Disk]) {
    let graph = graph(root, disks);
    // A device that stands on others may have partitions of its own.
    let parts: BTreeMap<String, Vec<String>> = disks
        .iter()
        .map(|d| {
            let parts = d.partitions.iter().map(|p| p.name.clone());
            (d.name.clone(), parts.collect())
        })
        .collect();
    for disk in disks {
        disk.holders = reach(&graph, &parts, &disk.name);
    }
}

/// Every holder of `disk` and its partitions, and of what stands on them. Each device is visited once, so a loop
/// ends.
fn reach(
    graph: &BTreeMap<String, Node>,
    parts: &BTreeMap<String, Vec<String>>,
    disk: &str,
) -> Vec<Holder> {
    let with_parts = |device: &str| {
        let own = parts.get(device).into_iter().flatten().cloned();
        std::iter::once(device.to_owned()).chain(own)
    };
    let mut devices: Vec<String> = with_parts(disk).collect();
    let mut holders = Vec::new();
    let mut next = 0;
    while let Some(device) = devices.get(next).cloned() {
        next += 1;
        let Some(node) = graph.get(&device) else {
            continue;
        };
        holders.extend(node.mounts.iter().map(|target| Holder::Mount {
            device: device.clone(),
            target: target.clone(),
        }));
        if node.swap {
            holders.push(Holder::Swap {
                device: device.clone(),
            });
        }
        for (holder, what) in &node.above {
            holders.push(Holder::Device {
                device: device.clone(),
                holder: holder.clone(),
                what: what.clone(),
            });
            if !devices.contains(holder) {
                devices.extend(with_parts(holder));
            }
        }
    }
    holders
}

fn graph(root: &Path, disks: &[Disk]) -> BTreeMap<String, Node> {
    let mut graph: BTreeMap<String, Node> = BTreeMap::new();
    let mut numbers: BTreeMap<DevNum, String> = BTreeMap::new();
    for disk in disks {
        graph.entry(disk.name.clone()).or_default();
        numbers.insert(disk.dev, disk.name.clone());
        for partition in &disk.partitions {
            graph.entry(partition.name.clone()).or_default();
            numbers.insert(partition.dev, partition.name.clone());
        }
    }
    devices_above(root, disks, &mut graph);
    mounts(root, disks, &numbers, &mut graph);
    swaps(root, disks, &mut graph);
    graph
}

fn devices_above(root: &Path, disks: &[Disk], graph: &mut BTreeMap<String, Node>) {
    let block = root.join("sys/block");
    for disk in disks {
        let dir = block.join(disk.name.replace('/', "!"));
        let parts = disk
            .partitions
            .iter()
            .map(|p| (&p.name, dir.join(p.name.replace('/', "!"))));
        for (name, dir) in std::iter::once((&disk.name, dir.clone())).chain(parts) {
            let above: Vec<(String, String)> = sysfs::names(dir.join("holders"))
                .into_iter()
                .map(|holder| {
                    let what = what(&block.join(&holder), &holder);
                    // sysfs writes the slash of a name as an exclamation mark.
                    (holder.replace('!', "/"), what)
                })
                .collect();
            cache_set(&dir, name, &above, graph);
            if let Some(node) = graph.get_mut(name) {
                node.above.extend(above);
            }
        }
    }
    // A loop device over a disk takes no claim on it that sysfs would show.
    for disk in disks {
        let below = disk
            .backing_file
            .as_ref()
            .and_then(|file| device_name(root, file, disks));
        if let Some(node) = below
            .filter(|b| *b != disk.name)
            .and_then(|b| graph.get_mut(&b))
        {
            node.above
                .push((disk.name.clone(), format!("loop device {}", disk.name)));
        }
    }
}

/// A device that is registered as a cache is held by its set, which is no block device; what it caches stands on
/// the set (kernel: Documentation/admin-guide/bcache.rst).
fn cache_set(
    dir: &Path,
    device: &str,
    above: &[(String, String)],
    graph: &mut BTreeMap<String, Node>,
) {
    let set = std::fs::read_link(dir.join("bcache/set")).ok();
    let Some(uuid) = set
        .as_deref()
        .and_then(Path::file_name)
        .and_then(|n| n.to_str())
    else {
        return;
    };
    let name = format!("{CACHE_SET}{uuid}");
    let node = graph.entry(name.clone()).or_default();
    for cached in above {
        if !node.above.contains(cached) {
            node.above.push(cached.clone());
        }
    }
    if let Some(node) = graph.get_mut(device) {
        node.above.push((name, "cache of bcache".to_owned()));
    }
}

/// What a holder is, in words. Device mapper's users mark their maps by the prefix of the UUID.
fn what(dir: &Path, name: &str) -> String {
    const PREFIXES: [(&str, &str); 5] = [
        ("LVM-", "LVM volume"),
        ("CRYPT-", "encrypted volume"),
        ("mpath-", "multipath device"),
        ("DMRAID-", "BIOS RAID array"),
        ("part", "partition of the mapped device"),
    ];
    if let Some(mapped) = sysfs::text(dir.join("dm/name")) {
        let uuid = sysfs::text(dir.join("dm/uuid")).unwrap_or_default();
        let kind = PREFIXES
            .iter()
            .find(|(prefix, _)| uuid.starts_with(prefix))
            .map_or("device-mapper device", |(_, kind)| kind);
        return format!("{kind} {mapped}");
    }
    if dir.join("md").exists() || name.starts_with("md") {
        return format!("md array {name}");
    }
    if name.starts_with("bcache") {
        return format!("bcache device {name}");
    }
    format!("block device {name}")
}

fn mounts(
    root: &Path,
    disks: &[Disk],
    numbers: &BTreeMap<DevNum, String>,
    graph: &mut BTreeMap<String, Node>,
) {
    let btrfs = btrfs_members(root);
    for line in sysfs::read_long(root.join("proc/self/mountinfo")).lines() {
        let Some(mount) = Mount::parse(line) else {
            continue;
        };
        // A btrfs has a device number of its own, and names one of its devices as the source.
        let device = numbers
            .get(&mount.dev)
            .cloned()
            .or_else(|| device_name(root, Path::new(&mount.source), disks))
            .filter(|device| graph.contains_key(device));
        let Some(device) = device else { continue };
        let siblings = btrfs.iter().find(|members| members.contains(&device));
        for name in siblings.unwrap_or(&vec![device]) {
            if let Some(node) = graph.get_mut(name)
                && !node.mounts.contains(&mount.target)
            {
                node.mounts.push(mount.target.clone());
            }
        }
    }
    // Mounted, but not where we can see it.
    let elsewhere = ["ext4", "xfs", "f2fs"]
        .iter()
        .flat_map(|kind| sysfs::names(root.join("sys/fs").join(kind)))
        .chain(btrfs.into_iter().flatten());
    for name in elsewhere {
        if let Some(node) = graph.get_mut(&name)
            && node.mounts.is_empty()
        {
            node.mounts.push("(another mount namespace)".to_owned());
        }
    }
}

/// The devices of each mounted btrfs.
fn btrfs_members(root: &Path) -> Vec<Vec<String>> {
    let dir = root.join("sys/fs/btrfs");
    sysfs::names(&dir)
        .into_iter()
        .map(|uuid| sysfs::names(dir.join(uuid).join("devices")))
        .filter(|members| !members.is_empty())
        .collect()
}

/// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    dev: DevNum,
    /// Mount point.
    pub target: String,
    /// Options of this mount.
    pub options: String,
    /// File system type.
    pub kind: String,
    source: String,
}

impl Mount {
    pub(super) fn parse(line: &str) -> Option<Mount> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (major, minor) = left.next()?.split_once(':')?;
        let _root = left.next()?;
        let target = unescape(left.next()?);
        let options = left.next()?.to_owned();
        let mut right = right.split(' ');
        Some(Mount {
            dev: DevNum {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            },
            target,
            options,
            kind: right.next()?.to_owned(),
            source: unescape(right.next()?),
        })
    }
}

fn swaps(root: &Path, disks: &[Disk], graph: &mut BTreeMap<String, Node>) {
    for line in sysfs::read_long(root.join("proc/swaps")).lines().skip(1) {
        let mut fields = line.split_whitespace();
        let (Some(path), Some(kind)) = (fields.next(), fields.next()) else {
            continue;
        };
        // A swap file is covered by the mount that it is on.
        if kind != "partition" {
            continue;
        }
        let path = unescape(path);
        let node = device_name(root, Path::new(&path), disks).and_then(|name| graph.get_mut(&name));
        if let Some(node) = node {
            node.swap = true;
        }
    }
}

/// The kernel name of a device node: through links such as /dev/mapper/vg-root, by its number where it is a node
/// of its own (LVM and cryptsetup make such where no udev runs), and by the name of a map.
fn device_name(root: &Path, path: &Path, disks: &[Disk]) -> Option<String> {
    let below = path.strip_prefix("/dev").ok()?;
    let dev = root.join("dev");
    let node = std::fs::canonicalize(dev.join(below)).ok();
    let real = node
        .as_deref()
        .and_then(|node| node.strip_prefix(std::fs::canonicalize(&dev).ok()?).ok())
        .unwrap_or(below);
    let number = node
        .as_deref()
        .and_then(|node| std::fs::metadata(node).ok())
        .filter(|meta| meta.file_type().is_block_device())
        .and_then(|meta| DevNum::of_rdev(meta.rdev()));
    let devices = || {
        let parts = |d: &'_ Disk| d.partitions.clone().into_iter().map(|p| (p.name, p.dev));
        disks
            .iter()
            .flat_map(move |d| std::iter::once((d.name.clone(), d.dev)).chain(parts(d)))
    };
    let by_number = number.and_then(|n| devices().find(|(_, dev)| *dev == n));
    let by_link = || disks.iter().find(|d| d.links.iter().any(|l| l == path));
    by_number
        .map(|(name, _)| name)
        .or_else(|| by_link().map(|d| d.name.clone()))
        .or_else(|| real.to_str().map(str::to_owned))
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        let code = digits.and_then(|d| u8::from_str_radix(d, 8).ok());
        if let Some(code) = code.filter(|_| first == b'\\') {
            bytes.push(code);
            rest = after.get(3..).unwrap_or_default();
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
