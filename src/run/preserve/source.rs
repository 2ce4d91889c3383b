//! A device with preserved content: proven to be the one that was chosen, given a file system where it is blank,
//! checked, and mounted.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use nix::libc;

use super::{STATE, check, luks, patience};
use crate::config::request::preserve::NewFileSystem;
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::Content;
use crate::host::signatures::{self, unfinished};
use crate::init::modules;
use crate::plan::preserve::{self, SourceDevice, UNFINISHED};
use crate::report::Reporter;
use crate::run::make_filesystem;
use crate::run::memory::mounts::Mounts;
use crate::sys::beneath::Root;
use crate::sys::block;
use crate::sys::detached::{Context, Detached, Flags};
use crate::sys::tool::{self, Tool};

/// Who looks at the device holds its lock for moments.
const LOCK: Duration = Duration::from_secs(10);

/// The largest file systems with the slowest disks take minutes.
const MAKE: Duration = Duration::from_secs(30 * 60);

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
    // Before the first byte: a mark or a header of LUKS is nothing to leave behind for want of a program.
    can_be_opened(device)?;
    let file = node(device, 0)?;
    // Held until it is mounted: whoever locks this node as well keeps away. udevd locks whole disks, and only reads.
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
        let what = format!("making {} on {inner}", kind.name());
        reporter.info(what.clone());
        patience::telling(
            &what,
            || patience::at_most(MAKE),
            reporter,
            || make(inner, kind),
        )?;
    } else if !inner.read_only {
        check::check(inner, reporter)?;
    }
    if !inner.read_only {
        unmark(inner)?;
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

pub(super) fn changed(device: &SourceDevice, how: &str) -> Failure {
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
    holds_what_was_found(device, &file)
}

/// What is on `file`, which is `device` however it is reached, is what the plan was made for.
pub(super) fn holds_what_was_found(device: &SourceDevice, file: &File) -> Result<()> {
    let size =
        block::size(file).context(Class::Preserve, || format!("asking {device} for its size"))?;
    if size != device.size {
        return Err(changed(device, &format!("it has {size} now")));
    }
    let contents = signatures::probe_one(file, &device.name, size);
    if let Some(why) = contents.unreadable {
        return Err(Failure::new(Class::Preserve, why));
    }
    if device.format.is_some() {
        // A LUKS header whose file system was never made holds nothing.
        let unfinished = |c: &Content| c.label.as_deref() == Some(UNFINISHED);
        let begins_again = device.luks.is_some()
            && matches!(contents.found.as_slice(), [one] if one.what == "crypto_LUKS" && unfinished(one));
        let all: Vec<&Content> = contents.found.iter().collect();
        let was_being_made =
            device.luks.is_none() && preserve::begins_again(&all, device.partuuid.as_deref());
        if !contents.blank.is_empty() || begins_again || was_being_made {
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
    let is_mark = |c: &Content| c.what == unfinished::UNFINISHED_FILESYSTEM;
    let found: Vec<Content> = contents.found.into_iter().filter(|c| !is_mark(c)).collect();
    match found.as_slice() {
        [one] if one.uuid == device.uuid => Ok(()),
        [] => Err(changed(device, "no file system is on it")),
        other => {
            let all: Vec<String> = other.iter().map(ToString::to_string).collect();
            Err(changed(device, &format!("{} now", all.join(" and "))))
        }
    }
}

/// Makes the file system, with a mark beside it until it is complete and on the medium.
fn make(device: &SourceDevice, kind: NewFileSystem) -> Result<()> {
    let mark = unfinished::mark(device.size, device.partuuid.as_deref().unwrap_or_default());
    put(device, &mark)?;
    let path = device.path.to_string_lossy();
    // Nothing is discarded: that would take the mark.
    match kind {
        // Forced, because it would ask whether a whole disk is meant. What it would find, was looked for.
        NewFileSystem::Ext4 => tool::run(
            Tool::Mke2fs,
            &["-q", "-F", "-t", "ext4", "-E", "nodiscard", &path],
            MAKE,
        ),
        NewFileSystem::Xfs => tool::run(Tool::MkfsXfs, &["-q", "-f", "-K", &path], MAKE),
        NewFileSystem::Vfat => tool::run(Tool::MkfsVfat, &["-I", &path], MAKE),
    }
    .map(drop)
}

/// Writes to each place of the mark, between two flushes.
fn put(device: &SourceDevice, bytes: &[u8]) -> Result<()> {
    let what = || format!("marking {device} as being given a file system");
    let file = node(device, 0)?;
    block::flush(&file).context(Class::Preserve, what)?;
    for place in unfinished::places(device.size) {
        block::write_at(&file, bytes, place).context(Class::Preserve, what)?;
    }
    block::flush(&file).context(Class::Preserve, what)
}

/// Takes the mark away, where there is one, before anything is kept here. A place that mkfs has used for something else
/// is left alone.
fn unmark(device: &SourceDevice) -> Result<()> {
    let what = || format!("taking the mark from {device}");
    let mark = unfinished::mark(device.size, device.partuuid.as_deref().unwrap_or_default());
    let file = node(device, 0)?;
    let mut dirty = false;
    for place in unfinished::places(device.size) {
        let mut there = vec![0; mark.len()];
        file.read_exact_at(&mut there, place.0)
            .context(Class::Preserve, what)?;
        if there == mark {
            if !dirty {
                // What it stands for is on the medium before it goes.
                block::flush(&file).context(Class::Preserve, what)?;
            }
            dirty = true;
            block::write_at(&file, &vec![0; mark.len()], place).context(Class::Preserve, what)?;
        }
    }
    if dirty {
        block::flush(&file).context(Class::Preserve, what)?;
    }
    Ok(())
}

/// The programs that this source needs beside cryptsetup: what is inside an encrypted one is not known.
fn programs(device: &SourceDevice) -> Vec<Tool> {
    let check = match (device.format, device.filesystem.as_str()) {
        // It would be found out only at the next boot, when there is something to lose.
        (Some(NewFileSystem::Ext4), _) | (None, "ext4") => Some(Tool::E2fsck),
        (Some(NewFileSystem::Vfat), _) | (None, "vfat") => Some(Tool::FsckVfat),
        (Some(NewFileSystem::Xfs) | None, _) => None,
    };
    let make = device.format.map(make_filesystem::program);
    let check = check.filter(|_| !device.read_only);
    make.into_iter().chain(check).collect()
}

/// Fails where a program for `device` is missing: to be asked before an image is fetched.
pub fn can_be_opened(device: &SourceDevice) -> Result<()> {
    for tool in programs(device) {
        tool.require().map_err(|failure| {
            let hint = failure.next().to_owned();
            Failure::new(
                Class::Preserve,
                format!("source {} cannot be made ready", device.wanted),
            )
            .caused_by(failure)
            .hint(hint)
        })?;
    }
    Ok(())
}

fn mount(device: &SourceDevice, place: &Path, made: &mut Mounts) -> Result<()> {
    let quiet = || -> Result<bool> {
        // A log that cannot be replayed there keeps a file system from being mounted at all.
        block::is_read_only(&node(device, 0)?).context(Class::Preserve, || {
            format!("asking {device} whether it can be written")
        })
    };
    let log = if device.read_only && quiet()? {
        Log::LeftAlone
    } else {
        Log::Replayed
    };
    let mount = mounted(device, &device.path, device.read_only, log)?;
    made.attach(mount, place)?;
    // Modes above a path protect it only there, also where somebody else had made this directory.
    std::fs::set_permissions(STATE, std::fs::Permissions::from_mode(0o700))
        .context(Class::Preserve, || format!("keeping others out of {STATE}"))
}

/// What becomes of the log that a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    /// As the file system does by itself, also where it is mounted read-only.
    Replayed,
    /// Nothing is written, and what stands in the log alone is not seen.
    LeftAlone,
}

/// A mount of what is on `path`, which is `device` or shows the same.
pub(super) fn mounted(
    device: &SourceDevice,
    path: &Path,
    read_only: bool,
    log: Log,
) -> Result<Detached> {
    let kind = device.filesystem.as_str();
    modules::want(kind);
    let mut context =
        Context::new(kind, device.to_string())?.set("source", path.as_os_str().as_bytes())?;
    if read_only {
        context = context.flag("ro")?;
    }
    if log == Log::LeftAlone {
        context = match kind {
            "ext4" => context.flag("noload")?,
            "xfs" | "f2fs" => context.flag("norecovery")?,
            // Before Linux 5.9 it is called otherwise.
            "btrfs" => context.set("rescue", b"nologreplay")?,
            _ => context,
        };
    }
    if kind == "ext4" {
        // Damage that shows later must not grow.
        context = context.set("errors", b"remount-ro")?;
    }
    for option in &device.options {
        context = context.flag(option)?;
    }
    // What is kept between two systems has neither devices nor programs that make root of anybody.
    context.mount(Flags {
        read_only,
        nosuid: true,
        nodev: true,
        noexec: false,
    })
}
