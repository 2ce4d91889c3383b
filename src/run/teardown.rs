//! Taking down what stands on the target: LVM, dm-crypt, md, bcache and loop devices, each by the kernel's own
//! means, without an outside program.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::target_disk::{LockedDisk, TargetDisk};
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::host::DevNum;
use crate::plan::teardown::{Layer, Standing};
use crate::sys::{block, dm, loopdev, md};

/// udevd looks at a device that changed for a moment, and bcache writes what it holds first.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Where sysfs is: the kernel that is asked is always the one that runs.
const SYS: &str = "/sys";

/// Refuses where one of `devices` is in use, before the first of them goes: by an open descriptor (a virtual machine
/// on a volume is in no list of mounts), or by a mount that only another namespace sees.
pub fn must_be_unused(devices: &[Standing]) -> Result<()> {
    for standing in devices {
        let above = devices
            .iter()
            .filter(|d| d.below.contains(&standing.device))
            .count();
        let mut outcome = Ok(());
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            outcome = unused(standing, above);
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
    }
    Ok(())
}

fn unused(standing: &Standing, above: usize) -> Result<()> {
    match &standing.layer {
        Layer::Mapped { uuid } => {
            let users = dm::open_count(uuid, standing.dev)?;
            if usize::try_from(users).is_ok_and(|users| users <= above) {
                return Ok(());
            }
            Err(in_use(standing))
        }
        // What stands on it holds it; nobody else can.
        Layer::Md | Layer::Loop | Layer::Bcache if above == 0 => open(standing).map(drop),
        Layer::Md | Layer::Loop | Layer::Bcache | Layer::CacheSet { .. } => Ok(()),
    }
}

fn in_use(standing: &Standing) -> Failure {
    Failure::new(
        Class::Refused,
        format!(
            "{} ({}) cannot be taken down: somebody uses it",
            printable(&standing.what),
            printable(&standing.device)
        ),
    )
    .hint("find out who has it open (fuser, lsof), end that, then try again; nothing was written to the disk")
}

/// Takes down one device, and waits until nothing of it is left on what it stood on.
///
/// # Errors
/// Class refused where somebody uses it, or it is another device now: nothing of the disk has changed by then.
pub fn take_down(standing: &Standing) -> Result<()> {
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        // What was asked for takes effect later than the call returns, or not at all while udevd looks at it.
        if is_gone(Path::new(SYS), standing) {
            return Ok(());
        }
        match ask(standing) {
            Ok(()) => {}
            Err(failure) => last = Some(failure),
        }
        if is_gone(Path::new(SYS), standing) {
            return Ok(());
        }
    }
    let failure = in_use(standing);
    Err(match last {
        Some(cause) => failure.caused_by(cause),
        None => failure,
    })
}

/// Claims the disk, on which nothing stands any more.
pub fn claim(disk: LockedDisk) -> Result<TargetDisk> {
    if let Some(dev) = disk.target().dev {
        let dir = Path::new(SYS).join("dev/block").join(dev.to_string());
        let left = holders(&dir);
        if !left.is_empty() {
            return Err(Failure::new(
                Class::Refused,
                format!(
                    "{} is still held by {}",
                    disk.target().path.display(),
                    left.join(", ")
                ),
            )
            .hint("see `ironroot disks`; nothing was written to the disk"));
        }
    }
    disk.claim()
}

fn ask(standing: &Standing) -> Result<()> {
    let failed = |doing: &str| format!("{doing} {}", printable(&standing.device));
    match &standing.layer {
        Layer::Mapped { uuid } => dm::remove(uuid, standing.dev),
        Layer::Md => {
            let file = open(standing)?;
            md::stop(&file).context(Class::Refused, || failed("stopping"))
        }
        Layer::Loop => {
            let file = open(standing)?;
            loopdev::detach(&file).context(Class::Refused, || failed("detaching"))
        }
        Layer::Bcache => {
            let dir = Path::new(SYS)
                .join("block")
                .join(sysfs_name(&standing.device));
            stop(&dir.join("bcache/stop"))
        }
        Layer::CacheSet { uuid } => stop(&cache_set(Path::new(SYS), uuid).join("stop")),
    }
}

/// Opens the device exclusively: a mounted one refuses.
fn open(standing: &Standing) -> Result<File> {
    let path = Path::new("/dev").join(&standing.device);
    let what = || format!("opening {}", path.display());
    let file = block::open_for_writing(&path, true).context(Class::Refused, what)?;
    let found = block::device_number(&file).context(Class::Refused, what)?;
    if found == standing.dev {
        return match standing.layer {
            Layer::Loop => still_over(standing, file),
            _ => Ok(file),
        };
    }
    Err(Failure::new(
        Class::Refused,
        format!(
            "{}: it is {found} now, planned was {}",
            what(),
            standing.dev
        ),
    )
    .hint("run again: devices changed their numbers meanwhile"))
}

/// The loop device, where it is the planned one: its number is given to the next who asks for a free one as soon
/// as it is detached.
fn still_over(standing: &Standing, file: File) -> Result<File> {
    let found = match loopdev::stands_on(&file) {
        Ok(Some(dev)) if below(Path::new(SYS), standing).contains(&dev) => return Ok(file),
        Ok(Some(dev)) => format!("stands on {dev} now"),
        Ok(None) => "stands on a file now".to_owned(),
        Err(error) => format!("cannot say what it stands on: {error}"),
    };
    let text = format!(
        "loop device {} {found}, planned was {}",
        printable(&standing.device),
        standing.below.join(", ")
    );
    Err(Failure::new(Class::Refused, text)
        .hint("run again: another program detached it and took its number meanwhile"))
}

/// The device numbers of what `standing` stands on.
fn below(sys: &Path, standing: &Standing) -> Vec<DevNum> {
    standing
        .below
        .iter()
        .filter_map(|name| {
            let file = sys.join("class/block").join(sysfs_name(name)).join("dev");
            let text = std::fs::read_to_string(file).ok()?;
            let (major, minor) = text.trim().split_once(':')?;
            Some(DevNum {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        })
        .collect()
}

fn stop(attribute: &Path) -> Result<()> {
    std::fs::write(attribute, "1").context(Class::Refused, || {
        format!("writing {}", attribute.display())
    })
}

fn cache_set(sys: &Path, uuid: &str) -> PathBuf {
    sys.join("fs/bcache").join(uuid)
}

/// sysfs writes the slash of a name as an exclamation mark.
fn sysfs_name(device: &str) -> String {
    device.replace('/', "!")
}

/// Whether nothing of the device is left: neither it, nor its hold on what it stood on.
fn is_gone(sys: &Path, standing: &Standing) -> bool {
    match &standing.layer {
        Layer::CacheSet { uuid } => !cache_set(sys, uuid).exists(),
        Layer::Loop => {
            let dir = sys.join("block").join(sysfs_name(&standing.device));
            let Ok(file) = std::fs::read_to_string(dir.join("loop/backing_file")) else {
                return true;
            };
            // Its number may have been given to somebody else since.
            std::fs::metadata(file.trim_end_matches('\n')).is_ok_and(|on| {
                !DevNum::of_rdev(on.rdev()).is_some_and(|dev| below(sys, standing).contains(&dev))
            })
        }
        Layer::Mapped { .. } | Layer::Md | Layer::Bcache => {
            let held = |below: &String| {
                sys.join("class/block")
                    .join(sysfs_name(below))
                    .join("holders")
                    .join(sysfs_name(&standing.device))
                    .symlink_metadata()
                    .is_ok()
            };
            !standing.below.iter().any(held)
        }
    }
}

/// What sysfs lists as holders of the disk in `dir` and of its partitions.
fn holders(dir: &Path) -> Vec<String> {
    let names = |dir: &Path| -> Vec<String> {
        std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()
    };
    let mut found = names(&dir.join("holders"));
    for name in names(dir) {
        let part = dir.join(name);
        if part.join("partition").exists() {
            found.extend(names(&part.join("holders")));
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(layer: Layer) -> Standing {
        Standing {
            device: "md0".to_owned(),
            dev: DevNum::default(),
            layer,
            what: "md array md0".to_owned(),
            below: vec!["sda1".to_owned(), "sdb1".to_owned()],
        }
    }

    #[test]
    fn a_loop_device_whose_number_belongs_to_another_now_stays() {
        use crate::sys::loopdev::{LoopDevice, Range};
        let attached = || {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            LoopDevice::attach_writable(file.as_file(), file.path(), Range::WHOLE).unwrap()
        };
        let name = |device: &LoopDevice| {
            let name = device.path().file_name().unwrap();
            name.to_str().unwrap().to_owned()
        };
        let (disk, other) = (attached(), attached());
        let over = LoopDevice::attach_writable(disk.file(), disk.path(), Range::WHOLE).unwrap();
        let planned = |device: &LoopDevice, on: &LoopDevice| Standing {
            device: name(device),
            dev: block::device_number(device.file()).unwrap(),
            layer: Layer::Loop,
            what: "loop device".to_owned(),
            below: vec![name(on)],
        };
        let refused = |standing: &Standing, part: &str| {
            let failure = open(standing).unwrap_err();
            assert_eq!(failure.class(), Class::Refused);
            assert!(failure.to_string().contains(part), "{failure}");
            // Nothing of what was planned is left, whoever has the number.
            assert!(is_gone(Path::new(SYS), standing));
        };
        open(&planned(&over, &disk)).unwrap();
        assert!(!is_gone(Path::new(SYS), &planned(&over, &disk)));
        let on = block::device_number(disk.file()).unwrap();
        refused(&planned(&over, &other), &format!("stands on {on} now"));
        let of_a_file = Standing {
            below: vec![name(&over)],
            ..planned(&other, &disk)
        };
        let failure = open(&of_a_file).unwrap_err().to_string();
        assert!(failure.contains("stands on a file now"), "{failure}");
    }

    #[test]
    fn a_device_is_gone_when_none_of_its_members_names_it() {
        let sys = tempfile::tempdir().unwrap();
        let holder = |part: &str| {
            let dir = sys.path().join("class/block").join(part).join("holders");
            std::fs::create_dir_all(&dir).unwrap();
            dir.join("md0")
        };
        let (a, b) = (holder("sda1"), holder("sdb1"));
        for link in [&a, &b] {
            // A link whose end is gone already.
            std::os::unix::fs::symlink("nowhere", link).unwrap();
        }
        assert!(!is_gone(sys.path(), &standing(Layer::Md)));
        std::fs::remove_file(a).unwrap();
        assert!(!is_gone(sys.path(), &standing(Layer::Md)));
        std::fs::remove_file(b).unwrap();
        assert!(is_gone(sys.path(), &standing(Layer::Md)));

        let uuid = "11-22".to_owned();
        let set = sys.path().join("fs/bcache/11-22");
        std::fs::create_dir_all(&set).unwrap();
        let layer = Layer::CacheSet { uuid };
        assert!(!is_gone(sys.path(), &standing(layer.clone())));
        std::fs::remove_dir(set).unwrap();
        assert!(is_gone(sys.path(), &standing(layer)));
    }

    #[test]
    fn holders_of_partitions_are_holders_of_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("sda1");
        for place in [dir.path().join("holders"), part.join("holders/dm-0")] {
            std::fs::create_dir_all(place).unwrap();
        }
        assert!(holders(dir.path()).is_empty(), "no partition");
        std::fs::write(part.join("partition"), "1").unwrap();
        assert_eq!(holders(dir.path()), ["dm-0"]);
    }
}
