//! The only unsafe code and the only raw system calls. Everything here is a small safe wrapper that names
//! the man page or kernel header it follows.
#![allow(unsafe_code)]

pub mod beneath;
pub mod block;
pub mod chroot;
pub mod clock;
pub mod control;
pub mod detached;
pub mod dm;
pub mod efivar;
pub mod exec;
pub mod inode_flags;
pub mod kexec;
pub mod kmsg;
pub mod loopdev;
pub mod md;
pub mod mount;
pub mod packet;
pub mod power;
pub mod recycle;
pub mod resize;
pub mod rtnetlink;
pub mod session;
pub mod swap;
pub mod tool;
pub mod uevent;
pub mod xattr;
