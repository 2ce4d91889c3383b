//! Working on the partitions of a table that is in memory only: the kernel learns of them by BLKPG, the disk
//! itself stays without a table and cannot boot.
//!
//! A disk that is claimed (`O_EXCL`) makes mounting and mkfs of its partitions fail busy, so the claim is given
//! up meanwhile; the lock stays, so that udevd does not look for a table that is not there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::reread::{self, View};
use super::target_disk::TargetDisk;
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::DevNum;
use crate::host::tables::Table;
use crate::sys::block;
use crate::sys::loopdev::{LoopDevice, Range};
use crate::units::Bytes;

/// Somebody (udevd) may look at a new partition for a moment.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// A partition to be: a place on the disk and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Partition number.
    pub number: u32,
    /// Byte offset.
    pub start: Bytes,
    /// Size.
    pub size: Bytes,
}

/// A partition that the kernel knows now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it is.
    pub place: Place,
    /// Device node.
    pub path: PathBuf,
    /// Device number.
    pub dev: DevNum,
}

/// A locked disk whose partitions can be mounted and given file systems. [`Shared::claim`] ends that; when this
/// is dropped without it (after a failure), the kernel forgets the partitions as far as nothing uses them.
#[derive(Debug)]
pub struct Shared {
    disk: Option<TargetDisk>,
    /// A regular file is worked on as a loop device.
    attached: Option<LoopDevice>,
    /// Numbers of the partitions that the kernel was told of.
    told: Vec<u32>,
    nodes: Vec<Node>,
}

impl Shared {
    /// Makes the kernel know `places`, and no other partition of this disk.
    ///
    /// # Errors
    /// Class media where the kernel refuses, or an old partition is still in use.
    pub fn new(mut disk: TargetDisk, places: &[Place]) -> Result<Shared> {
        let shown = disk.target().path.clone();
        let failed = || format!("working on the partitions of {}", shown.display());
        // What was written to the whole disk must be on it before a partition's own cache reads it.
        block::flush_and_forget(disk.file()).context(Class::Media, failed)?;
        let attached = match disk.target().dev {
            Some(_) => None,
            None => Some(LoopDevice::attach_writable(
                disk.file(),
                &shown,
                Range::WHOLE,
            )?),
        };
        disk.release_claim();
        let mut shared = Shared {
            disk: Some(disk),
            attached,
            told: Vec::new(),
            nodes: Vec::new(),
        };
        let dev = block::device_number(shared.device()?).context(Class::Media, failed)?;
        forget_all(shared.device()?, dev)
            .map_err(|f| f.hint("see `ironroot disks` for what holds the disk"))?;
        for place in places {
            block::add_partition(shared.device()?, place.number, place.start, place.size).context(
                Class::Media,
                || {
                    format!(
                        "making the kernel see partition {} of {} (byte {}, {})",
                        place.number,
                        shown.display(),
                        place.start.0,
                        place.size
                    )
                },
            )?;
            shared.told.push(place.number);
        }
        shared.nodes = places
            .iter()
            .map(|place| node(dev, *place))
            .collect::<Result<_>>()?;
        Ok(shared)
    }

    /// The device whose partitions they are.
    fn device(&self) -> Result<&File> {
        match (&self.attached, &self.disk) {
            (Some(attached), _) => Ok(attached.file()),
            (None, Some(disk)) => Ok(disk.file()),
            (None, None) => Err(Failure::new(Class::Bug, "the disk was given back already")),
        }
    }

    /// The disk, for what lies outside the partitions.
    ///
    /// # Errors
    /// Class bug after [`Shared::claim`], which consumes this.
    pub fn disk(&self) -> Result<&TargetDisk> {
        self.disk
            .as_ref()
            .ok_or_else(|| Failure::new(Class::Bug, "the disk was given back already"))
    }

    /// All of the partitions.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The partition with this number.
    ///
    /// # Errors
    /// Class bug where it is none of those that were asked for.
    pub fn node(&self, number: u32) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.place.number == number)
            .ok_or_else(|| Failure::new(Class::Bug, format!("there is no partition {number}")))
    }

    /// Makes the kernel forget the partitions and claims the disk again. What was written to them is on the disk
    /// then. Everything must be unmounted and closed before.
    ///
    /// # Errors
    /// Class media where a partition is still in use.
    pub fn claim(mut self) -> Result<TargetDisk> {
        let device = self.device()?;
        let failed = || "giving up the partitions of the disk".to_owned();
        let dev = block::device_number(device).context(Class::Media, failed)?;
        forget_all(device, dev)?;
        block::flush_and_forget(device).context(Class::Media, failed)?;
        self.attached = None;
        let mut disk = self
            .disk
            .take()
            .ok_or_else(|| Failure::new(Class::Bug, "the disk was given back already"))?;
        let shown = disk.target().path.clone();
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            match disk.renew_claim() {
                Ok(()) => {
                    block::flush_and_forget(disk.file()).context(Class::Media, failed)?;
                    return Ok(disk);
                }
                Err(e) => last = Some(e),
            }
        }
        let failure = Failure::new(
            Class::Media,
            format!(
                "{} cannot be claimed again: something uses it",
                shown.display()
            ),
        )
        .hint("the disk does not boot; see `ironroot disks` for what holds it, then install again");
        Err(match last {
            Some(e) => failure.caused_by(e),
            None => failure,
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.disk.is_none() {
            return;
        }
        if let Ok(device) = self.device() {
            for number in &self.told {
                let _ = block::delete_partition(device, *number);
            }
        }
    }
}

/// Deletes every partition that the kernel has of this disk.
fn forget_all(device: &File, dev: DevNum) -> Result<()> {
    let mut left = View::new();
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        left = reread::view(dev)?;
        if left.is_empty() {
            return Ok(());
        }
        for number in left.keys() {
            if let Err(e) = block::delete_partition(device, *number) {
                last = Some(e);
            }
        }
    }
    let failure = Failure::new(
        Class::Media,
        format!(
            "the kernel does not forget partitions {:?} of device {dev}: they are in use",
            left.keys().collect::<Vec<_>>()
        ),
    );
    Err(match last {
        Some(e) => failure.caused_by(e),
        None => failure,
    })
}

/// The nodes of partitions that the kernel has to know already; where it does not, it is told. udevd reads the table
/// again when somebody who wrote to the disk closes it, and for a moment some are missing, or come while they are told.
///
/// # Errors
/// Class media where it refuses.
pub fn known(device: &File, dev: DevNum, places: &[Place]) -> Result<Vec<Node>> {
    let mut attempt = 0;
    loop {
        match known_now(device, dev, places) {
            Ok(nodes) => return Ok(nodes),
            Err(failure) if attempt >= ATTEMPTS => return Err(failure),
            Err(_) => {
                attempt = attempt.saturating_add(1);
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn known_now(device: &File, dev: DevNum, places: &[Place]) -> Result<Vec<Node>> {
    let have = reread::view(dev)?;
    for place in places {
        if have.get(&place.number) != Some(&(place.start, place.size)) {
            block::add_partition(device, place.number, place.start, place.size).context(
                Class::Media,
                || {
                    format!(
                        "making the kernel see partition {} of device {dev}",
                        place.number
                    )
                },
            )?;
        }
    }
    places.iter().map(|place| node(dev, *place)).collect()
}

/// What of a table can hold a file system.
pub fn places(table: &Table) -> Vec<Place> {
    table
        .partitions()
        .iter()
        .filter(|p| !p.kind.is_extended())
        .map(|p| Place {
            number: p.number,
            start: p.start,
            size: p.size,
        })
        .collect()
}

/// `nodes` but for those with these numbers.
pub fn without(nodes: &[Node], numbers: &[u32]) -> Vec<Node> {
    let rest = nodes.iter().filter(|n| !numbers.contains(&n.place.number));
    rest.cloned().collect()
}

/// Finds the node of a partition by its device number, and makes it where nobody did (no devtmpfs at /dev).
fn node(disk: DevNum, place: Place) -> Result<Node> {
    let what = || format!("looking for partition {} of device {disk}", place.number);
    let directory = Path::new("/sys/dev/block").join(disk.to_string());
    let entries = std::fs::read_dir(&directory).context(Class::Media, what)?;
    let read = |path: &Path, file: &str| std::fs::read_to_string(path.join(file)).ok();
    let found = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .find_map(|path| {
            let number: u32 = read(&path, "partition")?.trim().parse().ok()?;
            let name = path.file_name()?.to_str()?.replace('!', "/");
            let text = read(&path, "dev")?;
            let (major, minor) = text.trim().split_once(':')?;
            let dev = DevNum {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            };
            (number == place.number).then_some((Path::new("/dev").join(name), dev))
        });
    let Some((path, dev)) = found else {
        return Err(Failure::new(
            Class::Media,
            format!("{}: sysfs does not list it", what()),
        ));
    };
    if !path.exists() {
        nix::sys::stat::mknod(
            &path,
            nix::sys::stat::SFlag::S_IFBLK,
            nix::sys::stat::Mode::from_bits_truncate(0o600),
            nix::sys::stat::makedev(dev.major.into(), dev.minor.into()),
        )
        .context(Class::Media, || format!("making {}", path.display()))?;
    }
    let file = std::fs::metadata(&path).context(Class::Media, what)?;
    if DevNum::of_rdev(std::os::unix::fs::MetadataExt::rdev(&file)) != Some(dev) {
        return Err(Failure::new(
            Class::Media,
            format!("{} is not device {dev}", path.display()),
        )
        .hint("remove the wrong node; with devtmpfs at /dev there is none"));
    }
    Ok(Node { place, path, dev })
}
