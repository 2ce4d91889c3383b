//! Flags that keep a file from being changed or removed, whoever asks (chattr(1), `i` and `a`; Linux:
//! include/uapi/linux/fs.h).

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc::c_long;

/// `FS_IMMUTABLE_FL`: nothing changes.
pub const IMMUTABLE: c_long = 0x10;
/// `FS_APPEND_FL`: something may be added, and nothing goes.
pub const APPEND: c_long = 0x20;

mod ioctls {
    use nix::libc::c_long;

    // _IOR('f', 1, long) and _IOW('f', 2, long). The number says long; the kernel reads and writes an int.
    nix::ioctl_read!(get_flags, b'f', 1, c_long);
    nix::ioctl_write_ptr!(set_flags, b'f', 2, c_long);
}

/// The flags of what `fd` is open on; none where the file system has no such thing.
pub fn get(fd: BorrowedFd<'_>) -> nix::Result<c_long> {
    let mut flags: c_long = 0;
    // SAFETY: the descriptor is open, and the kernel writes an int into the long that `flags` is.
    match unsafe { ioctls::get_flags(fd.as_raw_fd(), &raw mut flags) } {
        Ok(_) => Ok(flags),
        Err(Errno::ENOTTY | Errno::EOPNOTSUPP) => Ok(0),
        Err(errno) => Err(errno),
    }
}

/// Sets the flags to these.
pub fn set(fd: BorrowedFd<'_>, flags: c_long) -> nix::Result<()> {
    // SAFETY: the descriptor is open, and the kernel reads an int out of the long that `flags` is.
    unsafe { ioctls::set_flags(fd.as_raw_fd(), &raw const flags) }.map(drop)
}

/// Takes those of `flags` away that are set; whether any was.
pub fn clear(fd: BorrowedFd<'_>, flags: c_long) -> nix::Result<bool> {
    let old = get(fd)?;
    if old & flags == 0 {
        return Ok(false);
    }
    set(fd, old & !flags)?;
    Ok(true)
}
