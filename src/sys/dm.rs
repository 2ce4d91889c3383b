//! Device mapper: a read-only device with one target, and the removal of a device that somebody else made
//! (Linux: include/uapi/linux/dm-ioctl.h). The crate that binds it generates its types with libclang at build
//! time, which is more than five ioctls are worth.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::control;
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::host::DevNum;
use crate::units::Bytes;

const CONTROL: &str = "/dev/mapper/control";
const CONTROL_MINOR: u64 = 236;

/// All that a request may take: the header, a target and its parameters.
const BUFFER: usize = 4096;

/// Length of struct dm_ioctl up to its data, and of struct dm_target_spec.
const HEADER: usize = 312;
const TARGET: usize = 40;

/// Length of `name` in struct dm_ioctl, with its zero at the end.
const NAME: usize = 128;

/// Where `uuid` is, behind the name, and its length with its zero.
const UUID_AT: usize = 48 + NAME;
const UUID: usize = 129;

/// A request, aligned as struct dm_ioctl wants to be.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Request([u8; BUFFER]);

mod raw {
    use super::{HEADER, Request};
    use nix::libc;

    // The kernel takes the size from the type of its own struct, not from what it is given.
    const fn code(number: u8) -> libc::Ioctl {
        nix::request_code_readwrite!(0xfd, number, HEADER) as libc::Ioctl
    }
    nix::ioctl_readwrite_bad!(create, code(3), Request);
    nix::ioctl_readwrite_bad!(remove, code(4), Request);
    nix::ioctl_readwrite_bad!(suspend, code(6), Request);
    nix::ioctl_readwrite_bad!(status, code(7), Request);
    nix::ioctl_readwrite_bad!(load, code(9), Request);

    pub const READ_ONLY: u32 = 1 << 0;
    pub const DEFERRED_REMOVE: u32 = 1 << 17;
}

/// A device. Dropping it removes it as soon as its last user is gone: a mount keeps it.
#[derive(Debug)]
pub struct Mapped {
    control: File,
    name: String,
    path: PathBuf,
}

/// What a device does with all of its sectors.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// Its type, such as `verity`.
    pub kind: &'a str,
    /// Its parameters (Documentation/admin-guide/device-mapper).
    pub parameters: &'a str,
    /// Length of the device, a multiple of 512.
    pub length: Bytes,
}

impl Mapped {
    /// Makes the device `name`.
    pub fn read_only(name: &str, target: &Target<'_>) -> Result<Mapped> {
        let what = || format!("making the device {name} of type {}", target.kind);
        let control = control::open(Path::new(CONTROL), CONTROL_MINOR, "dm_mod")?;
        let mut request = Request::new(name, 0);
        // SAFETY: the buffer has the size that its header says and lives until the call returns.
        unsafe { raw::create(control.as_raw_fd(), &raw mut request) }
            .context(Class::Media, what)?;
        let number = request
            .device()
            .ok_or_else(|| Failure::new(Class::Bug, format!("{}: it has no number", what())))?;
        // From here on it is removed again where something fails.
        let device = Mapped {
            control,
            name: name.to_owned(),
            path: PathBuf::from(format!("/dev/dm-{}", number.minor)),
        };
        let mut request = Request::new(name, raw::READ_ONLY)
            .with_target(target)
            .ok_or_else(|| {
                Failure::new(
                    Class::Config,
                    format!("{}: its parameters are too long", what()),
                )
            })?;
        // SAFETY: as above.
        unsafe { raw::load(device.control.as_raw_fd(), &raw mut request) }
            .context(Class::Integrity, what)
            .map_err(|f| {
                f.hint("the kernel's log says what it does not take; it needs the module dm-verity")
            })?;
        let mut request = Request::new(name, 0);
        // SAFETY: as above. Without the flag that says "suspend", this resumes: the table becomes active.
        unsafe { raw::suspend(device.control.as_raw_fd(), &raw mut request) }
            .context(Class::Media, what)?;
        node(&device.path, number).context(Class::Media, what)?;
        Ok(device)
    }

    /// The device node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// How often the device with this UUID, which must have the number `dev`, is open: once by each device that stands
/// on it, by each mount and each program.
///
/// # Errors
/// Class refused where it is another device now, or none.
pub fn open_count(uuid: &str, dev: DevNum) -> Result<u32> {
    let control = control::open(Path::new(CONTROL), CONTROL_MINOR, "dm_mod")?;
    let what = || format!("looking at the mapped device {dev} ({})", printable(uuid));
    status(&control, uuid, dev, &what).map(|status| status.open_count())
}

fn status(control: &File, uuid: &str, dev: DevNum, what: &dyn Fn() -> String) -> Result<Request> {
    let mut status = Request::of_uuid(uuid)
        .ok_or_else(|| Failure::new(Class::Bug, format!("{}: no such UUID can be", what())))?;
    // SAFETY: the buffer has the size that its header says and lives until the call returns.
    unsafe { raw::status(control.as_raw_fd(), &raw mut status) }.context(Class::Refused, what)?;
    if status.device() == Some(dev) {
        return Ok(status);
    }
    let found = status.device().unwrap_or_default();
    Err(
        Failure::new(Class::Refused, format!("{}: it is {found} now", what()))
            .hint("run again: devices changed their numbers meanwhile"),
    )
}

/// Removes the device with this UUID, which must have the number `dev`. The kernel refuses (`EBUSY`) while it is
/// mounted, open or part of another device. The UUID says whose device it is; a name may have been given anew.
///
/// # Errors
/// Class refused where it is another device now, or in use.
pub fn remove(uuid: &str, dev: DevNum) -> Result<()> {
    let what = || format!("removing the mapped device {dev} ({})", printable(uuid));
    let control = control::open(Path::new(CONTROL), CONTROL_MINOR, "dm_mod")?;
    status(&control, uuid, dev, &what)?;
    let mut remove = Request::of_uuid(uuid)
        .ok_or_else(|| Failure::new(Class::Bug, format!("{}: no such UUID can be", what())))?;
    // SAFETY: the buffer has the size that its header says and lives until the call returns.
    unsafe { raw::remove(control.as_raw_fd(), &raw mut remove) }
        .context(Class::Refused, what)
        .map_err(|f| f.hint("see `ironroot disks` for what uses it"))?;
    Ok(())
}

/// Removes the device `name` as soon as nobody uses it any more; what fails is a line in the log.
pub fn remove_later(name: &str) {
    let control = match control::open(Path::new(CONTROL), CONTROL_MINOR, "dm_mod") {
        Ok(control) => control,
        Err(failure) => return log::warn!("removing the device {name}: {failure}"),
    };
    let mut request = Request::new(name, raw::DEFERRED_REMOVE);
    // SAFETY: the buffer has the size that its header says and lives until the call returns.
    if let Err(errno) = unsafe { raw::remove(control.as_raw_fd(), &raw mut request) } {
        log::warn!("removing the device {name}: {errno}");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let mut request = Request::new(&self.name, raw::DEFERRED_REMOVE);
        // SAFETY: the buffer has the size that its header says and lives until the call returns.
        if let Err(errno) = unsafe { raw::remove(self.control.as_raw_fd(), &raw mut request) } {
            log::warn!("removing the device {}: {errno}", self.name);
        }
    }
}

impl Request {
    fn new(name: &str, flags: u32) -> Request {
        let mut request = Request([0; BUFFER]);
        // The version of the interface that is spoken: 4.0.0 knows all of this.
        request.put(0, &4u32.to_ne_bytes());
        request.put(12, &u32::try_from(BUFFER).unwrap_or_default().to_ne_bytes());
        request.put(16, &u32::try_from(HEADER).unwrap_or_default().to_ne_bytes());
        request.put(28, &flags.to_ne_bytes());
        let name = name.as_bytes();
        request.put(48, name.get(..NAME - 1).unwrap_or(name));
        request
    }

    /// Names a device by its UUID alone: the kernel refuses two names in one request.
    fn of_uuid(uuid: &str) -> Option<Request> {
        if uuid.is_empty() || uuid.len() >= UUID || uuid.contains('\0') {
            return None;
        }
        let mut request = Request::new("", 0);
        request.put(UUID_AT, uuid.as_bytes());
        Some(request)
    }

    fn with_target(mut self, target: &Target<'_>) -> Option<Request> {
        let end = HEADER
            .checked_add(TARGET)?
            .checked_add(target.parameters.len())?
            .checked_add(1)?;
        if end > BUFFER || target.kind.len() > 15 || target.parameters.contains('\0') {
            return None;
        }
        self.put(20, &1u32.to_ne_bytes());
        self.put(HEADER + 8, &(target.length.0 / 512).to_ne_bytes());
        self.put(HEADER + 24, target.kind.as_bytes());
        self.put(HEADER + TARGET, target.parameters.as_bytes());
        Some(self)
    }

    /// `dev`, as the kernel's `huge_encode_dev` writes it.
    fn device(&self) -> Option<DevNum> {
        let bytes: [u8; 8] = self.0.get(40..48)?.try_into().ok()?;
        DevNum::of_rdev(u64::from_ne_bytes(bytes))
    }

    /// `open_count`, which the kernel fills in.
    fn open_count(&self) -> u32 {
        let bytes = self.0.get(24..28).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }
}

/// Makes the device's node where there is no devtmpfs to do it.
pub fn node(path: &Path, number: DevNum) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let device = makedev(u64::from(number.major), u64::from(number.minor));
    mknod(path, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, device)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_laid_out_as_the_kernel_reads_it() {
        let target = Target {
            kind: "verity",
            parameters: "1 /dev/loop0",
            length: Bytes(8192),
        };
        let request = Request::new("root", raw::READ_ONLY)
            .with_target(&target)
            .unwrap();
        let word = |at: usize| u32::from_ne_bytes(request.0[at..at + 4].try_into().unwrap());
        assert_eq!(
            (word(0), word(12), word(16), word(20), word(28)),
            (4, 4096, 312, 1, 1)
        );
        assert_eq!(&request.0[48..53], b"root\0");
        assert_eq!(request.0[320..328], 16u64.to_ne_bytes());
        assert_eq!(&request.0[336..343], b"verity\0");
        assert_eq!(&request.0[352..365], b"1 /dev/loop0\0");
        let request = Request::of_uuid("LVM-ab").unwrap();
        assert_eq!(request.0[48], 0, "no name");
        assert_eq!(&request.0[176..183], b"LVM-ab\0");
        for wrong in ["", "a\0b", &"x".repeat(UUID)] {
            assert!(Request::of_uuid(wrong).is_none(), "{wrong:?}");
        }
        let long = "x".repeat(BUFFER);
        let target = Target {
            parameters: &long,
            ..target
        };
        assert!(Request::new("root", 0).with_target(&target).is_none());
    }
}
