//! What is there: disks, their tables, contents and holders; firmware, machine identity, memory.
//! Reads only. Every probing function takes `root: &Path`, so that a fixture directory is a machine.

pub mod boot_entries;
pub mod contents;
pub mod disks;
#[cfg(test)]
mod fixture;
pub mod holders;
pub mod links;
pub mod listing;
pub mod load_option;
pub mod machine;
pub mod named;
mod order;
pub mod seed;
pub mod signatures;
mod sysfs;
pub mod tables;
pub mod wwn;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::units::{Bytes, SectorSize};

/// Probes the machine below `root`: `/`, or a fixture. Reads only.
///
/// Takes as long as the slowest disk, a minute at most. While one waits for a disk to appear,
/// [`disks::list`] is enough and opens nothing.
pub fn probe(root: &Path) -> Result<Facts> {
    probe_with(root, contents::read_all)
}

/// As [`probe`], and [`Partition::blank`] is filled in.
pub fn probe_with_blanks(root: &Path) -> Result<Facts> {
    probe_with(root, contents::read_all_with_blanks)
}

fn probe_with(root: &Path, read: fn(&Path, &mut [Disk])) -> Result<Facts> {
    let mut disks = disks::list(root)?;
    holders::attach(root, &mut disks);
    read(root, &mut disks);
    Ok(Facts {
        disks,
        ..without_disks(root)
    })
}

/// Probes all but the disks, of which nothing is opened.
pub fn without_disks(root: &Path) -> Facts {
    Facts {
        disks: Vec::new(),
        machine: machine::probe(root, machine::bootif(root).as_deref()),
        named: None,
        no_udev: !links::are_made(root),
        place: Place::default(),
        waited: false,
        init: None,
        seed: seed::Seed::default(),
        now: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
    }
}

/// Everything the planner may know. Deserializable, so that a test case is a JSON file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Facts {
    /// Every block device that is a whole disk of some kind.
    pub disks: Vec<Disk>,
    /// The machine itself.
    pub machine: Machine,
    /// What the path is that the config names, where it names one.
    pub named: Option<Named>,
    /// Nobody makes the links below /dev/disk: ironroot finds names of some forms itself (see [`links`]).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_udev: bool,
    /// Where this program runs.
    pub place: Place,
    /// What is missing has been waited for: it does not come any more.
    pub waited: bool,
    /// `init=` of the kernel command line.
    pub init: Option<String>,
    /// What new GUIDs are made of: the planner has no randomness of its own.
    pub seed: seed::Seed,
    /// Seconds since 1970, for the record: the planner has no clock of its own.
    pub now: u64,
}

/// Where this program runs, which decides how a session from memory can begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum Place {
    /// Below our own PID 1, which switches the root.
    #[default]
    Init,
    /// Below the PID 1 of another initrd, which switches to the root at `sysroot`.
    Initrd {
        /// Such as `/sysroot`.
        sysroot: PathBuf,
    },
    /// On a running Linux.
    Running,
}

/// A path that the config names, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Named {
    /// As it was written.
    pub path: PathBuf,
    /// What is there.
    pub what: NamedKind,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum NamedKind {
    /// Nothing is there.
    Missing,
    /// A block device that is no partition that sysfs lists.
    WholeDisk {
        /// Its device number.
        dev: DevNum,
    },
    /// A partition.
    Partition {
        /// Kernel name of its disk.
        disk: String,
        /// Its number.
        number: u32,
    },
    /// A regular file.
    RegularFile {
        /// Its size.
        size: Bytes,
    },
    /// Anything else, in words.
    Other {
        /// Such as `a directory`.
        what: String,
    },
}

/// Identity and means of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Machine {
    /// SMBIOS system UUID in lower case (/sys/class/dmi/id/product_uuid), or the device tree's.
    pub uuid: Option<String>,
    /// SMBIOS serial number of the system.
    pub serial: Option<String>,
    /// Architecture as `uname -m` names it.
    pub arch: String,
    /// How the firmware booted this kernel.
    pub firmware: Firmware,
    /// Whether the firmware starts only what is signed.
    pub secure_boot: bool,
    /// MAC addresses of the physical network interfaces, the boot interface first where it is known.
    pub macs: Vec<String>,
    /// Host name that the kernel has, where it is not `(none)` or `localhost`.
    pub hostname: Option<String>,
    /// `MemTotal` of /proc/meminfo.
    pub memory_total: Bytes,
    /// `MemAvailable` of /proc/meminfo.
    pub memory_available: Bytes,
    /// How many NUMA nodes are online.
    pub numa_nodes: u32,
    /// PARTUUID of the partition that the firmware started this kernel from, where it came from one.
    pub booted_from: Option<String>,
    /// The boot entries of UEFI firmware; `None` where there are none to be had.
    pub boot: Option<BootEntries>,
}

/// The boot entries of UEFI firmware, and what was tried with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BootEntries {
    /// In the order in which the firmware tries them.
    pub order: Vec<BootEntry>,
    /// How often ironroot told this machine to boot from its disk.
    pub disk_tried: Option<DiskTries>,
}

/// How often in a row a machine was told to boot from its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DiskTries {
    /// When the row began, in seconds since 1970.
    pub since: u64,
    /// How often since then.
    pub count: u8,
}

/// A boot entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BootEntry {
    /// The number in `Boot####`.
    pub number: u16,
    /// What the firmware's menu shows.
    pub description: String,
    /// It boots from the network.
    pub network: bool,
    /// The firmware may start it by itself.
    pub active: bool,
}

/// How the firmware booted this kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Firmware {
    /// No EFI runtime: BIOS, or a platform without one.
    #[default]
    Bios,
    /// UEFI whose variables cannot be read or written (no efivarfs, or no runtime services).
    UefiWithoutVariables,
    /// UEFI with efivarfs.
    Uefi,
}

/// A device number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct DevNum {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DevNum {
    /// From `st_rdev` of stat(2). A number is 12 bits of major and 20 of minor (linux/kdev_t.h); what does
    /// not fit is no device.
    pub fn of_rdev(rdev: u64) -> Option<DevNum> {
        Some(DevNum {
            major: nix::sys::stat::major(rdev).try_into().ok()?,
            minor: nix::sys::stat::minor(rdev).try_into().ok()?,
        })
    }
}

impl std::fmt::Display for DevNum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// What kind of whole block device this is; only [`DiskKind::Disk`] is ever chosen without being named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DiskKind {
    /// A physical or paravirtual disk.
    #[default]
    Disk,
    /// /dev/loopN.
    Loop,
    /// /dev/ramN.
    Ram,
    /// /dev/zramN.
    Zram,
    /// A floppy drive.
    Floppy,
    /// A CD, DVD or BD drive.
    Optical,
    /// Device mapper.
    DeviceMapper,
    /// Linux software RAID.
    Md,
    /// Anything else (nbd, drbd, mtdblock, …).
    Other,
}

/// How the disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// NVM Express.
    Nvme,
    /// virtio-blk or virtio-scsi.
    Virtio,
    /// SATA or PATA.
    Sata,
    /// Serial attached SCSI.
    Sas,
    /// SCSI of another or unknown kind.
    Scsi,
    /// Fibre channel.
    Fc,
    /// iSCSI.
    Iscsi,
    /// USB.
    Usb,
    /// MMC, eMMC, SD.
    Mmc,
}

/// A whole block device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Disk {
    /// Kernel name, such as `nvme0n1`.
    pub name: String,
    /// Device node, such as `/dev/nvme0n1`.
    pub path: PathBuf,
    /// Other names of the same node: /dev/disk/by-*, made by udev or, without it, found by [`links`].
    pub links: Vec<PathBuf>,
    /// Device number.
    pub dev: DevNum,
    /// `diskseq` of sysfs (Linux 5.15): differs when another disk takes the same number.
    pub diskseq: Option<u64>,
    /// Kind.
    pub kind: DiskKind,
    /// Size in bytes.
    pub size: Bytes,
    /// Logical sector size. The physical one decides nothing here (a 512e disk is a 512-byte disk).
    pub sector: Option<SectorSize>,
    /// Model, trimmed.
    pub model: Option<String>,
    /// Vendor, trimmed.
    pub vendor: Option<String>,
    /// Serial number, trimmed.
    pub serial: Option<String>,
    /// World wide name, as sysfs prints it: `naa.…`, `eui.…`, `nvme.…`, `t10.…`.
    pub wwn: Option<String>,
    /// How it is attached.
    pub transport: Option<Transport>,
    /// SCSI host:channel:target:lun.
    pub hctl: Option<String>,
    /// Spins.
    pub rotational: bool,
    /// The medium can be taken out.
    pub removable: bool,
    /// The kernel refuses writes.
    pub read_only: bool,
    /// For a loop device: the file behind it.
    pub backing_file: Option<PathBuf>,
    /// For device mapper: the UUID of the map, whose beginning says whose it is (`mpath-`, `part3-mpath-`).
    pub map_uuid: Option<String>,
    /// For an md array: what it is made of.
    pub md: Option<MdArray>,
    /// Partitions that the kernel knows.
    pub partitions: Vec<Partition>,
    /// What uses this disk or one of its partitions now: empty means nothing does.
    pub holders: Vec<Holder>,
    /// Signatures found on the disk itself and in its partitions; empty means blank.
    pub contents: Vec<Content>,
    /// The partition table as it stands on the disk, whatever the kernel knows of it.
    pub table: tables::Table,
    /// What the record area says (see [`crate::image::record`]).
    pub record: RecordFound,
    /// The disk could not be read; its contents are unknown, and so it is not blank.
    pub unreadable: Option<String>,
}

impl Disk {
    /// Whether the table on the disk has the partition with this PARTUUID.
    pub fn has_partition(&self, partuuid: &str) -> bool {
        let mut partitions = self.table.partitions().iter();
        partitions.any(|p| p.partuuid.eq_ignore_ascii_case(partuuid))
    }
}

/// An md array (kernel: Documentation/admin-guide/md.rst).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MdArray {
    /// `raid1`, `linear`, `container`, …; empty while it is not complete enough to run.
    pub level: String,
    /// How many members it should have.
    pub members: u32,
    /// How many of them are missing.
    pub missing: u32,
    /// Format of the members' superblocks: `1.2`, or `external:imsm` where the firmware owns the array.
    pub metadata: String,
}

/// A partition as the kernel sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Partition {
    /// Kernel name, such as `nvme0n1p2`.
    pub name: String,
    /// Partition number.
    pub number: u32,
    /// Device number.
    pub dev: DevNum,
    /// Byte offset on the disk.
    pub start: Bytes,
    /// Size in bytes.
    pub size: Bytes,
    /// Nothing was found in it, and its first and last MiB are empty; false where nobody looked.
    pub blank: bool,
}

/// Something that uses a disk or a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", deny_unknown_fields)]
pub enum Holder {
    /// A mounted file system.
    Mount {
        /// The disk or partition.
        device: String,
        /// Where.
        target: String,
    },
    /// Active swap.
    Swap {
        /// The disk or partition.
        device: String,
    },
    /// A device built on top: device mapper (LVM, LUKS, multipath), md, bcache, loop.
    Device {
        /// The disk or partition.
        device: String,
        /// Kernel name of what is on top.
        holder: String,
        /// What it is, in words: `LVM volume vg0-root`, `md array md0`.
        what: String,
    },
}

impl Holder {
    /// Kernel name of what is used.
    pub fn device(&self) -> &str {
        match self {
            Holder::Mount { device, .. }
            | Holder::Swap { device }
            | Holder::Device { device, .. } => device,
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Mount { device, target } => write!(f, "{device} is mounted on {target}"),
            Holder::Swap { device } => write!(f, "{device} is active swap"),
            Holder::Device {
                device,
                holder,
                what,
            } => write!(f, "{device} is part of {what} ({holder})"),
        }
    }
}

/// A signature on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Content {
    /// Kernel name of the disk or partition that carries it.
    pub device: String,
    /// What it is: `gpt`, `dos`, `ext4`, `LVM2_member`, …
    pub what: String,
    /// Label or name, where it has one.
    pub label: Option<String>,
    /// UUID as libblkid writes it (`ABCD-1234` for FAT), where it has one that is known.
    pub uuid: Option<String>,
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.what, self.device)?;
        match &self.label {
            Some(label) => write!(f, " ({})", crate::error::printable(label)),
            None => Ok(()),
        }
    }
}

/// What the record area of a disk says, already judged against the disk that carries it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    tag = "state",
    content = "record",
    deny_unknown_fields
)]
pub enum RecordFound {
    /// Nothing of ours.
    #[default]
    None,
    /// An install began here and did not finish.
    Mark(RecordIdentity),
    /// A whole installation: table intact, and disk GUID, serial and wwn are those of this disk.
    Installed(RecordIdentity),
    /// A record that does not count here, and why (a cloned disk, a damaged table).
    Foreign {
        /// Why.
        why: String,
        /// The installation whose table is damaged, where the disk is its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<Box<RecordIdentity>>,
    },
}

/// Which installation a mark or record names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RecordIdentity {
    /// The identity: a hash over claim, generation and image (see [`crate::plan::identity`]).
    pub identity: String,
    /// `metadata.claim`.
    pub claim: String,
    /// What was installed: the digest, else the URL.
    pub image: String,
    /// Version of ironroot that wrote it.
    pub version: String,
    /// When, in seconds since 1970.
    pub time: u64,
    /// Numbers of the partitions that it keeps. A mark names them because the table on the disk may be any of
    /// three: the old one, the one of kept partitions, the new one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<u32>,
    /// What the `disk` section said that shapes the system; `None` where that was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sections: Option<Sections>,
}

/// Keys of the `disk` section, each with a short digest of what it said. A key that was not given is not there.
pub type Sections = std::collections::BTreeMap<String, String>;
