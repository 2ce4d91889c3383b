//! The look at kept file systems before an installation writes its first byte: what is found only afterwards (another
//! claim, damage, a place that is lost) leaves a machine whose old system is gone and whose data cannot be used.
//!
//! Each is seen through a loop device, so that the target stays claimed and the kernel's view of its partitions stays
//! as it is. It is read-only, unless a power cut left a journal: the newest records may be in that alone, and so it is
//! replayed, which changes nothing of what is kept.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use nix::libc;

use super::source::{self, Log, Source};
use super::{check, may_all_be_used};
use crate::config::request::Named;
use crate::error::{Class, Context as _, Failure, Result, describe};
use crate::host::tables::TablePartition;
use crate::plan::preserve::{Binding, SourceDevice};
use crate::report::Reporter;
use crate::run::target_disk::TargetDisk;
use crate::sys::beneath::Root;
use crate::sys::block;
use crate::sys::detached::Detached;
use crate::sys::loopdev::{LoopDevice, Range};

/// Looks whether `bindings` can be provided on `sources`, which are there already: on `disk`, of which `kept` stay, or
/// elsewhere.
///
/// # Errors
/// Class preserve for the first that cannot; no byte of the target has changed then.
pub fn look_ahead(
    (disk, kept): (&TargetDisk, &[TablePartition]),
    sources: &[SourceDevice],
    bindings: &[Binding],
    reporter: &Reporter,
) -> Result<()> {
    for device in sources {
        let paths: Vec<&Binding> = bindings
            .iter()
            .filter(|b| b.source == device.number)
            .collect();
        let refused = match Place::of(device, disk, kept) {
            Ok(place) => place.look(device, &paths, reporter).err(),
            Err(failure) => Some((device.wanted.clone(), failure)),
        };
        if let Some((what, failure)) = refused {
            let outer = Failure::new(
                Class::Preserve,
                format!(
                    "{what} cannot be preserved, and so {} stays as it is",
                    disk.target().path.display()
                ),
            );
            let hint = failure.next().to_owned();
            return Err(outer.caused_by(failure).hint(hint));
        }
        reporter.info(format!(
            "{} was looked at: what is preserved on it can be used",
            device.name
        ));
    }
    Ok(())
}

/// Where a source is, without the kernel's partitions.
#[derive(Debug)]
pub(super) struct Place<'a> {
    file: Backing<'a>,
    range: Range,
    name: PathBuf,
}

#[derive(Debug)]
enum Backing<'a> {
    Target(&'a TargetDisk),
    /// Held exclusively: nobody else mounts it meanwhile.
    Other(File),
}

impl Backing<'_> {
    fn file(&self) -> &File {
        match self {
            Backing::Target(disk) => disk.file(),
            Backing::Other(file) => file,
        }
    }
}

/// What could not be provided, and why.
type Refused = (String, Failure);

impl<'a> Place<'a> {
    /// Of a source on `disk`, which has these partitions, or elsewhere.
    pub(super) fn of(
        device: &SourceDevice,
        disk: &'a TargetDisk,
        partitions: &[TablePartition],
    ) -> Result<Place<'a>> {
        let what = || format!("looking at {}", device.name);
        let (file, range) = if let Some(named) = &device.on_target {
            let is = |p: &&TablePartition| match named {
                Named::Number(number) => p.number == *number,
                Named::Label(label) => p.name.as_ref() == Some(label),
            };
            let partition = partitions.iter().find(is).ok_or_else(|| {
                Failure::new(Class::Bug, format!("partition {named} is not there"))
                    .hint("report this as a bug of ironroot")
            })?;
            let range = Range {
                start: partition.start,
                length: Some(partition.size),
                sector: disk.target().sector,
            };
            (Backing::Target(disk), range)
        } else {
            let file = other(device)?;
            let range = Range {
                sector: block::sector_size(&file).context(Class::Preserve, what)?,
                ..Range::WHOLE
            };
            (Backing::Other(file), range)
        };
        // What was read of the whole disk before its partitions were last written.
        block::flush_and_forget(file.file()).context(Class::Preserve, what)?;
        Ok(Place {
            file,
            range,
            name: device.path.clone(),
        })
    }

    fn look(
        &self,
        device: &SourceDevice,
        paths: &[&Binding],
        reporter: &Reporter,
    ) -> Result<(), Refused> {
        let of_device = |failure| (device.wanted.clone(), failure);
        let file = self.file.file();
        let shown = match LoopDevice::attach(file, &self.name, self.range) {
            Ok(shown) => shown,
            Err(failure) => {
                reporter.warn(format!(
                    "{} is looked at only when the old system is gone: {}",
                    device.name,
                    describe(&failure)
                ));
                return Ok(());
            }
        };
        source::holds_what_was_found(device, shown.file()).map_err(of_device)?;
        if !device.read_only && says_errors(device, shown.file()).map_err(of_device)? {
            check::look(device, shown.path(), reporter).map_err(of_device)?;
        }
        // A file system whose log has to be replayed refuses a device that cannot be written.
        if let Ok(mount) = source::mounted(device, shown.path(), true, Log::Replayed) {
            return judge(device, &mount, paths);
        }
        let what = || format!("looking at {}", device.name);
        let write_protected = block::is_read_only(file)
            .context(Class::Preserve, what)
            .map_err(of_device)?;
        if write_protected {
            let mount = source::mounted(device, shown.path(), true, Log::LeftAlone);
            return judge(device, &mount.map_err(of_device)?, paths);
        }
        drop(shown);
        let shown = LoopDevice::attach_writable(file, &self.name, self.range).map_err(of_device)?;
        let judged = source::mounted(device, shown.path(), true, Log::Replayed)
            .map_err(of_device)
            .and_then(|mount| judge(device, &mount, paths));
        block::flush_and_forget(shown.file())
            .and_then(|()| block::flush_and_forget(file))
            .context(Class::Preserve, what)
            .map_err(of_device)?;
        if judged.is_ok()
            && !device.read_only
            && says_errors(device, shown.file()).map_err(of_device)?
        {
            check::look(device, shown.path(), reporter).map_err(of_device)?;
        }
        judged
    }
}

impl Place<'_> {
    /// Mounts what is there, to be written, for as long as `work` takes; then it is on the medium.
    pub(super) fn write(
        &self,
        device: &SourceDevice,
        work: impl FnOnce(&Source) -> Result<()>,
    ) -> Result<()> {
        let file = self.file.file();
        let shown = LoopDevice::attach_writable(file, &self.name, self.range)?;
        let done = source::mounted(device, shown.path(), false, Log::Replayed)
            .and_then(|mount| work(&source_in(device, &mount)?));
        block::flush_and_forget(shown.file())
            .and_then(|()| block::flush_and_forget(file))
            .context(Class::Preserve, || format!("flushing {}", device.name))?;
        done
    }
}

fn source_in(device: &SourceDevice, mount: &Detached) -> Result<Source> {
    let name = format!("source {}", device.name);
    Ok(Source {
        number: device.number,
        name: device.name.clone(),
        root: Root::of(mount, name)?,
        read_only: device.read_only,
    })
}

/// The device of a source elsewhere, proven to be the one that was chosen.
fn other(device: &SourceDevice) -> Result<File> {
    let what = || format!("opening {}", device.path.display());
    let open = |write: bool| {
        OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(libc::O_EXCL | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&device.path)
    };
    let write_protected = |e: &io::Error| {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(e.kind(), PermissionDenied | ReadOnlyFilesystem)
    };
    let file = match open(true) {
        Err(error) if write_protected(&error) => open(false),
        opened => opened,
    }
    .context(Class::Preserve, what)?;
    let found = block::device_number(&file).context(Class::Preserve, what)?;
    if found != device.dev {
        return Err(source::changed(
            device,
            &format!("it has the number {found} now"),
        ));
    }
    Ok(file)
}

/// Judges each of `paths` in `mount`, which has no place and goes with its last descriptor.
fn judge(device: &SourceDevice, mount: &Detached, paths: &[&Binding]) -> Result<(), Refused> {
    let of_device = |failure| (device.wanted.clone(), failure);
    let source = source_in(device, mount).map_err(of_device)?;
    may_all_be_used(paths, &[&source])
        .map_err(|(binding, failure)| (binding.target.display().to_string(), failure))
}

/// Where the superblock of ext4 is (Linux: Documentation/filesystems/ext4/super.rst).
const EXT4: u64 = 1024;

/// `s_state`: bit 1 is set where the kernel has met errors.
const STATE: u64 = 0x3a;
const ERRORS: u8 = 2;

/// Whether the file system on `file` says that it has errors.
fn says_errors(device: &SourceDevice, file: &File) -> Result<bool> {
    if device.filesystem != "ext4" {
        return Ok(false);
    }
    let mut state = [0];
    file.read_exact_at(&mut state, EXT4 + STATE)
        .context(Class::Preserve, || {
            format!("reading the superblock of {}", device.name)
        })?;
    Ok(state.iter().any(|state| state & ERRORS != 0))
}
