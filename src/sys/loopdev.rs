//! Loop devices: a file, or a range of one, as a read-only block device (Linux: include/uapi/linux/loop.h,
//! drivers/block/loop.c).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use super::{block, control};
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::DevNum;
use crate::units::{Bytes, SectorSize};

mod raw {
    // Numbers of linux/loop.h, which are not made by _IO: nix's "bad" forms apply.
    nix::ioctl_write_int_bad!(loop_set_fd, 0x4C00);
    nix::ioctl_none_bad!(loop_clr_fd, 0x4C01);
    nix::ioctl_write_ptr_bad!(loop_set_status64, 0x4C04, LoopInfo64);
    nix::ioctl_read_bad!(loop_get_status64, 0x4C05, LoopInfo64);
    nix::ioctl_write_int_bad!(loop_set_block_size, 0x4C09);
    nix::ioctl_write_ptr_bad!(loop_configure, 0x4C0A, LoopConfig);
    nix::ioctl_none_bad!(loop_ctl_get_free, 0x4C82);

    pub const LO_FLAGS_READ_ONLY: u32 = 1;
    pub const LO_FLAGS_AUTOCLEAR: u32 = 4;

    /// struct loop_info64
    #[repr(C)]
    #[derive(Clone, Debug)]
    pub struct LoopInfo64 {
        pub device: u64,
        pub inode: u64,
        pub rdevice: u64,
        pub offset: u64,
        pub sizelimit: u64,
        pub number: u32,
        pub encrypt_type: u32,
        pub encrypt_key_size: u32,
        pub flags: u32,
        pub file_name: [u8; 64],
        pub crypt_name: [u8; 64],
        pub encrypt_key: [u8; 32],
        pub init: [u64; 2],
    }

    /// struct loop_config
    #[repr(C)]
    #[derive(Debug)]
    pub struct LoopConfig {
        pub fd: u32,
        pub block_size: u32,
        pub info: LoopInfo64,
        pub reserved: [u64; 8],
    }

    // The kernel copies exactly these sizes.
    const _: () = assert!(size_of::<LoopInfo64>() == 232 && size_of::<LoopConfig>() == 304);
}

const CONTROL: &str = "/dev/loop-control";
const CONTROL_MINOR: u64 = 237;

/// Another program may take the free device between the question and the answer.
const ATTEMPTS: u32 = 50;

/// Which bytes of the file become the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte; a multiple of the sector size.
    pub start: Bytes,
    /// Length, a multiple of the sector size; `None` for everything behind `start`, which has to be one too.
    pub length: Option<Bytes>,
    /// Logical sector size of the device.
    pub sector: SectorSize,
}

impl Range {
    /// The whole file, in sectors of 512 bytes.
    pub const WHOLE: Range = Range {
        start: Bytes::ZERO,
        length: None,
        sector: SectorSize::S512,
    };
}

/// Whether the device can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadOnly,
    ReadWrite,
}

/// An attached loop device. The kernel detaches it when its last user is gone: this value, a mount, a device on
/// top of it. So whoever mounts it may drop this value afterwards.
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `range` of `backing`, read-only, to a free loop device. `name` is what losetup(8) shows of it
    /// and stands in messages.
    ///
    /// # Errors
    /// Class media where the kernel refuses; class integrity where the range does not lie in the file, or its
    /// length is not a multiple of the sector size: the kernel would silently leave out the last bytes.
    pub fn attach(backing: &File, name: &Path, range: Range) -> Result<LoopDevice> {
        LoopDevice::with_access(backing, name, range, Access::ReadOnly)
    }

    /// Attaches `range` of `backing`, which is open for writing, so that it can be written.
    ///
    /// # Errors
    /// As [`LoopDevice::attach`].
    pub fn attach_writable(backing: &File, name: &Path, range: Range) -> Result<LoopDevice> {
        LoopDevice::with_access(backing, name, range, Access::ReadWrite)
    }

    fn with_access(
        backing: &File,
        name: &Path,
        range: Range,
        access: Access,
    ) -> Result<LoopDevice> {
        let what = || format!("attaching {} to a loop device", name.display());
        let length = fit(block::size(backing).context(Class::Media, what)?, range)
            .map_err(|why| Failure::new(Class::Integrity, format!("{}: {why}", what())))?;
        let control = open_control(Path::new(CONTROL))?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for _ in 0..ATTEMPTS {
            match try_once(&control, backing, name, range, length, access) {
                Ok(device) => return Ok(device),
                Err(error) if is_race(&error) => last = error,
                Err(error) => return Err(Failure::new(Class::Media, what()).caused_by(error)),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = format!("{}: no free one in {ATTEMPTS} attempts", what());
        Err(Failure::new(Class::Media, text).caused_by(last))
    }

    /// The device node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device, open as it was attached.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Detaches the loop device that `file` is the only open descriptor of (LOOP_CLR_FD). While others have it open
/// the kernel only notes the wish: look at sysfs afterwards.
pub fn detach(file: &File) -> io::Result<()> {
    // SAFETY: the ioctl takes no argument; the descriptor is open for the whole call.
    unsafe { raw::loop_clr_fd(file.as_raw_fd()) }?;
    Ok(())
}

/// The block device that the loop device `file` stands on; `None` where it stands on a file
/// (LOOP_GET_STATUS64). What this says holds as long as `file` is open: nobody can detach it meanwhile.
pub fn stands_on(file: &File) -> io::Result<Option<DevNum>> {
    let mut info = unused();
    // SAFETY: `info` has the layout of struct loop_info64 and lives until the call returns.
    unsafe { raw::loop_get_status64(file.as_raw_fd(), &raw mut info) }?;
    Ok(DevNum::of_rdev(info.rdevice).filter(|dev| *dev != DevNum::default()))
}

/// How many bytes the device will have, or why it cannot be.
fn fit(size: Bytes, range: Range) -> Result<Bytes, String> {
    let sector = range.sector.get();
    let rest = size.checked_sub(range.start).ok_or_else(|| {
        format!(
            "it has {size} and the range begins at byte {}",
            range.start.0
        )
    })?;
    let length = range.length.unwrap_or(rest);
    if length > rest || length == Bytes::ZERO {
        return Err(format!(
            "it has {size}, not {length} from byte {} on",
            range.start.0
        ));
    }
    for (name, value) in [("start", range.start), ("length", length)] {
        if value.0 % sector != 0 {
            return Err(format!(
                "the {name}, {} bytes, is not a multiple of the sector size {sector}",
                value.0
            ));
        }
    }
    Ok(length)
}

fn open_control(path: &Path) -> Result<File> {
    control::open(path, CONTROL_MINOR, "loop")
}

/// The device was taken (`EBUSY`), or is just coming or going.
fn is_race(error: &io::Error) -> bool {
    [libc::EBUSY, libc::ENXIO, libc::ENOENT]
        .into_iter()
        .any(|errno| error.raw_os_error() == Some(errno))
}

fn try_once(
    control: &File,
    backing: &File,
    name: &Path,
    range: Range,
    length: Bytes,
    access: Access,
) -> io::Result<LoopDevice> {
    // SAFETY: the ioctl takes no argument; the descriptor is open for the whole call.
    let number = unsafe { raw::loop_ctl_get_free(control.as_raw_fd()) }?;
    let path = PathBuf::from(format!("/dev/loop{number}"));
    // Opened for reading only, the kernel makes it read-only whatever the file is opened for.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(access == Access::ReadWrite)
        .custom_flags(libc::O_CLOEXEC)
        .open(&path)?;
    let info = wanted(name, range.start, length, access);
    match configure(&file, backing, range.sector, info.clone()) {
        // Before Linux 5.8 the ioctl is not known.
        Err(Errno::EINVAL | Errno::ENOTTY) => {
            configure_in_steps(&file, backing, range.sector, &info)?;
        }
        result => result?,
    }
    Ok(LoopDevice { file, path })
}

fn wanted(name: &Path, start: Bytes, length: Bytes, access: Access) -> raw::LoopInfo64 {
    let read_only = match access {
        Access::ReadOnly => raw::LO_FLAGS_READ_ONLY,
        Access::ReadWrite => 0,
    };
    raw::LoopInfo64 {
        offset: start.0,
        sizelimit: length.0,
        flags: read_only | raw::LO_FLAGS_AUTOCLEAR,
        file_name: label(name),
        ..unused()
    }
}

fn unused() -> raw::LoopInfo64 {
    raw::LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    }
}

fn configure(
    device: &File,
    backing: &File,
    sector: SectorSize,
    info: raw::LoopInfo64,
) -> nix::Result<()> {
    let config = raw::LoopConfig {
        fd: u32::try_from(backing.as_raw_fd()).map_err(|_| Errno::EBADF)?,
        block_size: u32::try_from(sector.get()).map_err(|_| Errno::EINVAL)?,
        info,
        reserved: [0; 8],
    };
    // SAFETY: `config` has the layout of struct loop_config and lives until the call returns.
    unsafe { raw::loop_configure(device.as_raw_fd(), &raw const config) }?;
    Ok(())
}

fn configure_in_steps(
    device: &File,
    backing: &File,
    sector: SectorSize,
    info: &raw::LoopInfo64,
) -> nix::Result<()> {
    let fd = device.as_raw_fd();
    // SAFETY: both descriptors are open for the whole call.
    unsafe { raw::loop_set_fd(fd, backing.as_raw_fd()) }?;
    let rest = || {
        // SAFETY: `info` has the layout of struct loop_info64 and lives until the call returns.
        unsafe { raw::loop_set_status64(fd, std::ptr::from_ref(info)) }?;
        if sector != SectorSize::S512 {
            let bytes = libc::c_int::try_from(sector.get()).map_err(|_| Errno::EINVAL)?;
            // SAFETY: the argument is a number; the descriptor is open for the whole call.
            unsafe { raw::loop_set_block_size(fd, bytes) }?;
        }
        Ok(())
    };
    rest().inspect_err(|_: &Errno| {
        // SAFETY: the ioctl takes no argument; the descriptor is open for the whole call.
        let _ = unsafe { raw::loop_clr_fd(fd) };
    })
}

/// At most 63 bytes and a zero: the kernel keeps no more.
fn label(name: &Path) -> [u8; 64] {
    let mut label = [0; 64];
    for (to, from) in label.iter_mut().take(63).zip(name.as_os_str().as_bytes()) {
        *to = *from;
    }
    label
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;
    use std::io::Read as _;

    /// A file in which every sector says which it is.
    fn numbered(sectors: u64, more: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let mut content: Vec<u8> = (0..sectors)
            .flat_map(|n| n.to_be_bytes().repeat(64))
            .collect();
        content.resize(content.len() + more, 0xee);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        (file, content)
    }

    fn read(device: &LoopDevice) -> Vec<u8> {
        let mut bytes = Vec::new();
        File::open(device.path())
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    }

    fn backing_of(device: &Path) -> Option<String> {
        let name = device.file_name().unwrap().to_str().unwrap();
        std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()
    }

    #[test]
    fn a_range_of_a_file_is_a_read_only_device_and_goes_with_its_last_user() {
        let (file, content) = numbered(64, 0);
        // Writable on purpose: the device must be read-only all the same.
        let backing = File::options()
            .read(true)
            .write(true)
            .open(file.path())
            .unwrap();
        let range = Range {
            start: Bytes(8 * 512),
            length: Some(Bytes(16 * 512)),
            sector: SectorSize::S512,
        };
        let device = LoopDevice::attach(&backing, file.path(), range).unwrap();
        assert_eq!(read(&device), content[8 * 512..24 * 512]);
        assert!(block::is_read_only(device.file()).unwrap());
        assert_eq!(block::sector_size(device.file()).unwrap(), SectorSize::S512);
        let refused = std::fs::write(device.path(), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "{refused}");
        let path = device.path().to_owned();
        let ours =
            |text: Option<String>| text.is_some_and(|t| t.trim() == file.path().to_str().unwrap());
        assert!(ours(backing_of(&path)));

        let user = File::open(&path).unwrap();
        drop(device);
        assert!(ours(backing_of(&path)), "held by its user");
        drop(user);
        // Detaching happens at the last close, in the background.
        for _ in 0..100 {
            if !ours(backing_of(&path)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{} is still attached", path.display());
    }

    #[test]
    fn both_ways_of_configuring_give_the_same_device() {
        let (file, content) = numbered(64, 0);
        let backing = File::open(file.path()).unwrap();
        let control = open_control(Path::new(CONTROL)).unwrap();
        let sector = SectorSize::new(4096).unwrap();
        let mut found = None;
        for _ in 0..ATTEMPTS {
            // SAFETY: the ioctl takes no argument; the descriptor is open for the whole call.
            let number = unsafe { raw::loop_ctl_get_free(control.as_raw_fd()) }.unwrap();
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::open(&path).unwrap();
            let info = wanted(file.path(), Bytes(4096), Bytes(8192), Access::ReadOnly);
            match configure_in_steps(&device, &backing, sector, &info) {
                Err(Errno::EBUSY) => {}
                result => {
                    result.unwrap();
                    found = Some(LoopDevice { file: device, path });
                    break;
                }
            }
        }
        let old = found.expect("a free loop device");
        assert_eq!(read(&old), content[4096..12288]);
        assert!(block::is_read_only(old.file()).unwrap());
        assert_eq!(block::sector_size(old.file()).unwrap(), sector);
    }

    #[test]
    fn many_at_once_each_get_their_own() {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(|| {
                    let (file, content) = numbered(8, 0);
                    let backing = File::open(file.path()).unwrap();
                    let device = LoopDevice::attach(&backing, file.path(), Range::WHOLE).unwrap();
                    assert_eq!(read(&device), content);
                    device
                })
            })
            .collect();
        let devices: Vec<LoopDevice> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let paths: std::collections::BTreeSet<_> = devices.iter().map(LoopDevice::path).collect();
        assert_eq!(paths.len(), 8);
    }

    #[test]
    fn bytes_that_the_kernel_would_leave_out_are_refused() {
        let (file, _) = numbered(8, 100);
        let backing = File::open(file.path()).unwrap();
        let failure = LoopDevice::attach(&backing, file.path(), Range::WHOLE).unwrap_err();
        assert_eq!(failure.class(), Class::Integrity);
        assert!(
            failure
                .to_string()
                .contains("4196 bytes, is not a multiple"),
            "{failure}"
        );
        let range = |start, length| Range {
            start: Bytes(start),
            length: Some(Bytes(length)),
            sector: SectorSize::S512,
        };
        let size = Bytes(4096);
        assert_eq!(fit(size, range(1024, 3072)), Ok(Bytes(3072)));
        for (start, length) in [(1024, 3584), (8192, 512), (100, 512), (512, 0), (512, 100)] {
            assert!(fit(size, range(start, length)).is_err(), "{start} {length}");
        }
        assert!(fit(size, range(512, u64::MAX)).is_err());
        assert!(fit(Bytes::ZERO, Range::WHOLE).is_err());
    }

    #[test]
    fn a_missing_driver_is_named() {
        // A node without a driver behind it, as /dev/loop-control is where the module is missing.
        let folder = tempfile::tempdir_in("/dev").unwrap();
        let node = folder.path().join("loop-control");
        mknod(&node, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(10, 254)).unwrap();
        let failure = open_control(&node).unwrap_err();
        assert!(failure.next().contains("`loop`"), "{}", failure.next());
        // Where there is no node, the fixed number leads to the driver all the same.
        open_control(&folder.path().join("another")).unwrap();
    }
}
