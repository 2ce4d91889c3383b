//! A device with preserved content: proven to be the one that was chosen, given a file system where it is blank,
//! checked, and mounted.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use nix::libc;

use super::{STATE, luks, patience};
use crate::config::request::preserve::NewFileSystem;
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::{Content, signatures};
use crate::init::modules;
use crate::plan::preserve::{SourceDevice, UNFINISHED};
use crate::report::Reporter;
use crate::run::memory::mounts::Mounts;
use crate::sys::beneath::Root;
use crate::sys::block;
use crate::sys::detached::{Context, Flags};
use crate::sys::tool::{self, Tool};

/// A udevd that probes the device holds its lock for moments.
const LOCK: Duration = Duration::from_secs(10);

/// The largest file systems with the slowest disks take minutes.
const MAKE: Duration = Duration::from_secs(30 * 60);

/// A check after a power cut replays a journal; a full one reads all metadata.
const CHECK: Duration = Duration::from_secs(4 * 60 * 60);

/// A mounted source.
#[derive(Debug)]
pub struct Source {
    /// Its number in the plan.
    pub number: usize,
    /// Kernel name, for messages.
    pub name: String,
    /// The root of its file system.
    pub root: Root,
    /// Nothing can be written.
    pub read_only: bool,
}

/// Opens `device` and mounts it at its place below [`STATE`].
pub fn open(device: &SourceDevice, made: &mut Mounts, reporter: &Reporter) -> Result<Source> {
    let file = node(device, 0)?;
    // Held until it is mounted: udevd and its like keep away (systemd: "Locking Block Device Access").
    let lock = block::lock(file, LOCK).map_err(|(_, error)| {
        Failure::new(Class::Preserve, format!("locking {device}")).caused_by(error)
    })?;
    is_the_chosen_one(device)?;
    let unlocked = match &device.luks {
        Some(luks) => Some(luks::open(device, luks, reporter)?),
        None => None,
    };
    let inner = unlocked.as_ref().map_or(device, |(_, inner)| inner);
    if let Some(kind) = inner.format {
        reporter.info(format!("making {} on {inner}", kind.name()));
        let what = format!("making {} on {inner}", kind.name());
        patience::telling(&what, || at_most(MAKE), reporter, || make(inner, kind))?;
    } else if !inner.read_only {
        check(inner, reporter)?;
    }
    // From now on somebody may store something there, so that it must not be begun again: also where this boot may not
    // format, and where cryptsetup has brought the label back by repairing one copy of the header from the other.
    if let Some(luks) = device.luks.as_ref().filter(|_| !device.read_only)
        && (device.format.is_some() || luks::is_unfinished(device)?)
    {
        luks::finish(device, luks, inner)?;
    }
    let place = Path::new(STATE).join(device.number.to_string());
    mount(inner, &place, made)?;
    if let Some((mapping, _)) = unlocked {
        made.keep_mapping(mapping);
    }
    drop(lock);
    let root = Root::open(&place)?;
    Ok(Source {
        number: device.number,
        name: device.name.clone(),
        root: Root::of(&root.as_fd(), format!("source {}", device.name))?,
        read_only: device.read_only,
    })
}

fn node(device: &SourceDevice, flags: libc::c_int) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(!device.read_only)
        .custom_flags(flags | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(&device.path)
        .context(Class::Preserve, || {
            format!("opening {}", device.path.display())
        })?;
    let found = block::device_number(&file).context(Class::Preserve, || {
        format!("asking {} for its number", device.path.display())
    })?;
    if found != device.dev {
        return Err(changed(device, &format!("it has the number {found} now")));
    }
    Ok(file)
}

fn changed(device: &SourceDevice, how: &str) -> Failure {
    Failure::new(
        Class::Preserve,
        format!("{device} is not what was chosen any more: {how}"),
    )
    .hint("try again; something else on this machine changes its disks")
}

/// Nobody uses it, and what is on it is still what the plan was made for. The claim is let go again at once:
/// neither mkfs nor fsck nor a mount works on a device that is held exclusively.
fn is_the_chosen_one(device: &SourceDevice) -> Result<()> {
    let file = node(device, libc::O_EXCL)?;
    let size =
        block::size(&file).context(Class::Preserve, || format!("asking {device} for its size"))?;
    if size != device.size {
        return Err(changed(device, &format!("it has {size} now")));
    }
    let contents = signatures::probe_one(&file, &device.name, size);
    if let Some(why) = contents.unreadable {
        return Err(Failure::new(Class::Preserve, why));
    }
    if device.format.is_some() {
        // A LUKS header whose file system was never made holds nothing.
        let unfinished = |c: &Content| c.label.as_deref() == Some(UNFINISHED);
        let begins_again = device.luks.is_some()
            && matches!(contents.found.as_slice(), [one] if one.what == "crypto_LUKS" && unfinished(one));
        if !contents.blank.is_empty() || begins_again {
            return Ok(());
        }
        let found: Vec<String> = contents.found.iter().map(ToString::to_string).collect();
        let found = if found.is_empty() {
            signatures::UNKNOWN.to_owned()
        } else {
            found.join(" and ")
        };
        return Err(changed(device, &format!("it is not blank: {found}")));
    }
    match contents.found.as_slice() {
        [one] if one.uuid == device.uuid => Ok(()),
        [] => Err(changed(device, "no file system is on it")),
        other => {
            let all: Vec<String> = other.iter().map(ToString::to_string).collect();
            Err(changed(device, &format!("{} now", all.join(" and "))))
        }
    }
}

fn at_most(limit: Duration) -> String {
    format!("at most {} min", limit.as_secs() / 60)
}

fn make(device: &SourceDevice, kind: NewFileSystem) -> Result<()> {
    let path = device.path.to_string_lossy();
    match kind {
        // Forced, because it would ask whether a whole disk is meant. What it would find, was looked for.
        NewFileSystem::Ext4 => tool::run(Tool::Mke2fs, &["-q", "-F", "-t", "ext4", &path], MAKE),
        NewFileSystem::Xfs => tool::run(Tool::MkfsXfs, &["-q", &path], MAKE),
        NewFileSystem::Vfat => tool::run(Tool::MkfsVfat, &["-I", &path], MAKE),
    }
    .map(drop)
}

/// Repairs what can be repaired without a decision. xfs, btrfs and f2fs replay their logs when they are mounted.
fn check(device: &SourceDevice, reporter: &Reporter) -> Result<()> {
    let path = device.path.to_string_lossy();
    // e2fsck(8): 1 errors corrected, 2 corrected and the system should be rebooted, which is for one that is
    // mounted. fsck.fat(8): 1 recoverable errors, which -a has corrected.
    let (tool, args, good): (Tool, &[&str], &[i32]) = match device.filesystem.as_str() {
        "ext4" => (Tool::E2fsck, &["-p", &path], &[0, 1, 2]),
        "vfat" => (Tool::FsckVfat, &["-a", &path], &[0, 1]),
        _ => return Ok(()),
    };
    let what = format!("{tool} of {device}");
    let output = patience::telling(
        &what,
        || at_most(CHECK),
        reporter,
        || tool::run_expecting(tool, args, CHECK, good),
    )
    .map_err(|failure| {
        Failure::new(
            Class::Preserve,
            format!(
                "the {} on {device} is damaged and cannot be repaired without a decision",
                device.filesystem
            ),
        )
        .caused_by(failure)
        .hint(format!(
            "look at it with `{tool}` on a running system, or restore it from a backup"
        ))
    })?;
    if output.code != Some(0) {
        reporter.warn(format!(
            "the {} on {device} had errors, which were corrected",
            device.filesystem
        ));
    }
    Ok(())
}

fn mount(device: &SourceDevice, place: &Path, made: &mut Mounts) -> Result<()> {
    let kind = device.filesystem.as_str();
    modules::want(kind);
    let mut context = Context::new(kind, device.to_string())?
        .set("source", device.path.as_os_str().as_bytes())?;
    if device.read_only {
        context = context.flag("ro")?;
    }
    if kind == "ext4" {
        // Damage that shows later must not grow.
        context = context.set("errors", b"remount-ro")?;
    }
    for option in &device.options {
        context = context.flag(option)?;
    }
    // What is kept between two systems has neither devices nor programs that make root of anybody.
    let mount = context.mount(Flags {
        read_only: device.read_only,
        nosuid: true,
        nodev: true,
        noexec: false,
    })?;
    made.attach(mount, place)
}
