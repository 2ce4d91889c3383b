//! The only unsafe code and the only raw system calls. Everything here is a small safe wrapper that names
//! the man page or kernel header it follows.
#![allow(unsafe_code)]

pub mod beneath;
pub mod block;
pub mod clock;
pub mod efivar;
pub mod kmsg;
pub mod mount;
pub mod packet;
pub mod power;
pub mod rtnetlink;
pub mod tool;
pub mod uevent;
pub mod xattr;
