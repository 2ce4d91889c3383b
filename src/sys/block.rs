//! Block device ioctls (Linux: include/uapi/linux/fs.h, include/uapi/linux/blkpg.h) and the advisory lock
//! that keeps udevd away (systemd: "Locking Block Device Access").

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc;

use crate::units::{Bytes, SectorSize};

mod raw {
    use super::libc;
    // _IO(0x12, nr) of linux/fs.h: not typed by their size, so nix's "bad" forms apply.
    nix::ioctl_read_bad!(blksszget, nix::request_code_none!(0x12, 104), libc::c_int);
    nix::ioctl_write_ptr_bad!(blkroset, nix::request_code_none!(0x12, 93), libc::c_int);
    nix::ioctl_read_bad!(blkroget, nix::request_code_none!(0x12, 94), libc::c_int);
    nix::ioctl_read!(blkgetsize64, 0x12, 114, u64);
    nix::ioctl_none_bad!(blkflsbuf, nix::request_code_none!(0x12, 97));
    nix::ioctl_none_bad!(blkrrpart, nix::request_code_none!(0x12, 95));
    nix::ioctl_write_ptr_bad!(blkzeroout, nix::request_code_none!(0x12, 127), [u64; 2]);
    nix::ioctl_write_ptr_bad!(blkdiscard, nix::request_code_none!(0x12, 119), [u64; 2]);
    nix::ioctl_write_ptr_bad!(blkpg, nix::request_code_none!(0x12, 105), BlkpgIoctlArg);

    /// struct blkpg_ioctl_arg
    #[repr(C)]
    #[derive(Debug)]
    pub struct BlkpgIoctlArg {
        pub op: libc::c_int,
        pub flags: libc::c_int,
        pub datalen: libc::c_int,
        pub data: *mut libc::c_void,
    }

    /// struct blkpg_partition: start and length in bytes
    #[repr(C)]
    #[derive(Debug)]
    pub struct BlkpgPartition {
        pub start: libc::c_longlong,
        pub length: libc::c_longlong,
        pub pno: libc::c_int,
        pub devname: [libc::c_char; 64],
        pub volname: [libc::c_char; 64],
    }

    pub const BLKPG_ADD_PARTITION: libc::c_int = 1;
    pub const BLKPG_DEL_PARTITION: libc::c_int = 2;
}

/// Opens a block device or regular file for reading and writing, never creating it. `exclusive` makes the
/// kernel refuse with `EBUSY` where the disk or one of its partitions is in use (open(2), `O_EXCL` without
/// `O_CREAT`).
pub fn open_for_writing(path: &Path, exclusive: bool) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | if exclusive { libc::O_EXCL } else { 0 };
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

/// A second descriptor of the very device (or file) that `file` is, for reading and writing; `exclusive` as in
/// [`open_for_writing`].
pub fn reopen(file: &impl AsRawFd, exclusive: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open_for_writing(Path::new(&path), exclusive)
}

/// A second descriptor of the very device (or file) that `file` is, past the page cache.
pub fn reopen_direct(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_DIRECT)
        .open(path)
}

/// Whether `file` is a block device.
pub fn is_block_device(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.file_type().is_block_device())
}

/// Device number of the block device `file`.
pub fn device_number(file: &File) -> io::Result<crate::host::DevNum> {
    crate::host::DevNum::of_rdev(file.metadata()?.rdev())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Size in bytes of a block device (BLKGETSIZE64) or regular file.
pub fn size(file: &File) -> io::Result<Bytes> {
    if !is_block_device(file)? {
        return Ok(Bytes(file.metadata()?.len()));
    }
    let mut bytes = 0u64;
    // SAFETY: the descriptor is open for the whole call; the kernel writes one u64 to the pointer.
    unsafe { raw::blkgetsize64(file.as_raw_fd(), &raw mut bytes) }?;
    Ok(Bytes(bytes))
}

/// Logical sector size (BLKSSZGET); 512 for a regular file.
pub fn sector_size(file: &File) -> io::Result<SectorSize> {
    if !is_block_device(file)? {
        return Ok(SectorSize::S512);
    }
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the whole call; the kernel writes one int to the pointer.
    unsafe { raw::blksszget(file.as_raw_fd(), &raw mut bytes) }?;
    u32::try_from(bytes)
        .ok()
        .and_then(SectorSize::new)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether the kernel refuses writes to this block device (BLKROGET).
pub fn is_read_only(file: &File) -> io::Result<bool> {
    if !is_block_device(file)? {
        return Ok(file.metadata()?.permissions().readonly());
    }
    let mut flag: libc::c_int = 0;
    // SAFETY: the descriptor is open for the whole call; the kernel writes one int to the pointer.
    unsafe { raw::blkroget(file.as_raw_fd(), &raw mut flag) }?;
    Ok(flag != 0)
}

/// Makes the kernel refuse writes to this block device, or take them again (BLKROSET). The device itself is told
/// nothing.
pub fn set_read_only(file: &File, read_only: bool) -> io::Result<()> {
    let flag = libc::c_int::from(read_only);
    // SAFETY: the descriptor is open for the whole call; the kernel reads one int from the pointer.
    unsafe { raw::blkroset(file.as_raw_fd(), &raw const flag) }?;
    Ok(())
}

/// Asks the kernel to read the partition table again (BLKRRPART). A kernel without a parser for the table
/// answers with success and drops every partition: look at sysfs afterwards, not at this result.
pub fn reread_partitions(file: &File) -> io::Result<()> {
    // SAFETY: the ioctl takes no argument; the descriptor is open for the whole call.
    unsafe { raw::blkrrpart(file.as_raw_fd()) }?;
    Ok(())
}

/// Makes a range read as zeros, by the device's own means where it has them (BLKZEROOUT). Both numbers in
/// bytes, aligned to the logical sector size.
pub fn zero_out(file: &File, start: Bytes, length: Bytes) -> io::Result<()> {
    let range = [start.0, length.0];
    // SAFETY: the kernel reads two u64 from the pointer, which lives until the call returns.
    unsafe { raw::blkzeroout(file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// Tells the device that a range is not needed any more (BLKDISCARD). What it reads afterwards is the device's
/// choice: zeros, what was there, or what was there before. Both numbers in bytes, aligned to the logical sector
/// size. A file gets a hole.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] where the device does not take it.
pub fn discard(file: &File, start: Bytes, length: Bytes) -> io::Result<()> {
    if !is_block_device(file)? {
        return punch_hole(file, start, length);
    }
    let range = [start.0, length.0];
    // SAFETY: the kernel reads two u64 from the pointer, which lives until the call returns.
    unsafe { raw::blkdiscard(file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// Makes a range of a regular file a hole, which reads as zeros (fallocate(2), `FALLOC_FL_PUNCH_HOLE`).
pub fn punch_hole(file: &File, start: Bytes, length: Bytes) -> io::Result<()> {
    use nix::fcntl::FallocateFlags as Flags;
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    nix::fcntl::fallocate(
        file,
        Flags::FALLOC_FL_PUNCH_HOLE | Flags::FALLOC_FL_KEEP_SIZE,
        start.0.try_into().map_err(invalid)?,
        length.0.try_into().map_err(invalid)?,
    )?;
    Ok(())
}

/// Tells the kernel of one partition (BLKPG, BLKPG_ADD_PARTITION).
pub fn add_partition(file: &File, number: u32, start: Bytes, length: Bytes) -> io::Result<()> {
    blkpg(file, raw::BLKPG_ADD_PARTITION, number, start, length)
}

/// Makes the kernel forget one partition (BLKPG, BLKPG_DEL_PARTITION); `EBUSY` while it is in use.
pub fn delete_partition(file: &File, number: u32) -> io::Result<()> {
    blkpg(
        file,
        raw::BLKPG_DEL_PARTITION,
        number,
        Bytes::ZERO,
        Bytes::ZERO,
    )
}

fn blkpg(file: &File, op: libc::c_int, number: u32, start: Bytes, length: Bytes) -> io::Result<()> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut partition = raw::BlkpgPartition {
        start: start.0.try_into().map_err(invalid)?,
        length: length.0.try_into().map_err(invalid)?,
        pno: number.try_into().map_err(invalid)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let argument = raw::BlkpgIoctlArg {
        op,
        flags: 0,
        datalen: size_of::<raw::BlkpgPartition>()
            .try_into()
            .map_err(invalid)?,
        data: (&raw mut partition).cast(),
    };
    // SAFETY: `argument` and the partition it points to have the layout of linux/blkpg.h and live until the
    // call returns.
    unsafe { raw::blkpg(file.as_raw_fd(), &raw const argument) }?;
    Ok(())
}

/// Takes the exclusive advisory lock (flock(2)), trying for at most `patience`: udevd holds it shared for
/// moments while it probes.
pub fn lock(file: File, patience: Duration) -> Result<nix::fcntl::Flock<File>, (File, io::Error)> {
    let deadline = Instant::now() + patience;
    let mut file = file;
    loop {
        match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((back, errno)) => {
                if errno != nix::errno::Errno::EWOULDBLOCK || Instant::now() >= deadline {
                    return Err((back, errno.into()));
                }
                file = back;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Writes all of `data` at `offset` (pwrite(2), whole).
pub fn write_at(file: &File, data: &[u8], offset: Bytes) -> io::Result<()> {
    file.write_all_at(data, offset.0)
}

/// Flushes what was written to the medium (fsync(2); for a block device this includes its write cache).
pub fn flush(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Writes what is dirty in this device's page cache and forgets all of it (BLKFLSBUF). A partition has a cache of
/// its own: what was written by one of the two is seen by the other only after this. Nothing for a file.
pub fn flush_and_forget(file: &File) -> io::Result<()> {
    flush(file)?;
    if is_block_device(file)? {
        // SAFETY: the ioctl takes no argument; the descriptor is open for the whole call.
        unsafe { raw::blkflsbuf(file.as_raw_fd()) }?;
    }
    Ok(())
}

/// Drops the clean pages of this device from the page cache, so that a later read sees the medium
/// (posix_fadvise(2), POSIX_FADV_DONTNEED).
pub fn drop_cache(file: &File) -> io::Result<()> {
    nix::fcntl::posix_fadvise(
        file.as_fd(),
        0,
        0,
        nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED,
    )?;
    Ok(())
}
