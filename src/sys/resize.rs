//! Growing a mounted file system to the size of its device: xfs (Linux: fs/xfs/libxfs/xfs_fs.h) and btrfs
//! (include/uapi/linux/btrfs.h).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use nix::libc;

mod raw {
    use super::libc;

    /// struct xfs_growfs_data
    #[repr(C)]
    #[derive(Debug)]
    pub struct XfsGrowfsData {
        pub newblocks: u64,
        pub imaxpct: u32,
        pub padding: u32,
    }

    /// struct btrfs_ioctl_vol_args
    #[repr(C)]
    #[derive(Debug)]
    pub struct BtrfsVolArgs {
        pub fd: i64,
        pub name: [libc::c_char; 4088],
    }

    // The kernel copies exactly these sizes, which are part of the numbers of the ioctls.
    const _: () = assert!(size_of::<XfsGrowfsData>() == 16 && size_of::<BtrfsVolArgs>() == 4096);

    nix::ioctl_write_ptr!(xfs_ioc_fsgrowfsdata, b'X', 110, XfsGrowfsData);
    nix::ioctl_write_ptr!(btrfs_ioc_resize, 0x94, 3, BtrfsVolArgs);
}

/// Grows the xfs in which the open directory `root` is to `blocks` of its own blocks. `inode_percent` is what its
/// superblock has, and stays.
pub fn xfs(root: &File, blocks: u64, inode_percent: u32) -> io::Result<()> {
    let data = raw::XfsGrowfsData {
        newblocks: blocks,
        imaxpct: inode_percent,
        padding: 0,
    };
    // SAFETY: the descriptor is open for the whole call; the kernel reads one struct, which has its layout.
    unsafe { raw::xfs_ioc_fsgrowfsdata(root.as_raw_fd(), &raw const data) }?;
    Ok(())
}

/// Grows the btrfs in which the open directory `root` is to the size of its (first) device.
pub fn btrfs(root: &File) -> io::Result<()> {
    let mut arguments = raw::BtrfsVolArgs {
        fd: 0,
        name: [0; 4088],
    };
    for (to, from) in arguments.name.iter_mut().zip(b"max") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: the descriptor is open for the whole call; the kernel reads one struct, which has its layout and
    // whose name ends in a zero.
    unsafe { raw::btrfs_ioc_resize(root.as_raw_fd(), &raw const arguments) }?;
    Ok(())
}
