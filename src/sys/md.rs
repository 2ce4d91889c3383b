//! Linux software RAID: stopping an array (Linux: include/uapi/linux/raid/md_u.h).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

mod raw {
    // _IO(MD_MAJOR, 0x32) of linux/raid/md_u.h; MD_MAJOR is 9 (linux/major.h).
    nix::ioctl_none!(stop_array, 9, 0x32);
}

/// Stops the array that `file` is the only open descriptor of: its members are free then, and as they were
/// (their superblocks say that the array was closed in order). The kernel refuses (`EBUSY`) while somebody else
/// has it open.
pub fn stop(file: &File) -> io::Result<()> {
    // SAFETY: the ioctl takes no argument; the descriptor is open for the whole call.
    unsafe { raw::stop_array(file.as_raw_fd()) }?;
    Ok(())
}
