//! A program of a root that is not this program's, run in it (chroot(2)): its libraries and its files are those of
//! that root, and what is mounted for it is gone when it ends.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::detached::Detached;
use super::tool::{self, Output};
use crate::error::Result;

/// Runs `program`, a path in `root`, with nothing but `env` in its environment, in a mount namespace of its own: a
/// program that makes mounts leaves none. Each of `mounts` is at its path in the root meanwhile; the mount of the root
/// itself can be used afterwards through its descriptor only.
///
/// # Errors
/// Class media when it could not be started or did not end within `timeout`.
pub fn run(
    root: &Detached,
    mounts: &[(&Detached, &'static CStr)],
    program: &str,
    args: &[&str],
    env: &[(&str, String)],
    timeout: Duration,
) -> Result<(Output, ExitStatus)> {
    let root = root.as_fd().as_raw_fd();
    let mounts: Vec<(RawFd, &'static CStr)> = mounts
        .iter()
        .map(|(mount, at)| (mount.as_fd().as_raw_fd(), *at))
        .collect();
    let mut command = Command::new(program);
    command.args(args).env_clear();
    for (key, value) in env {
        command.env(key, value);
    }
    // SAFETY: between fork and exec `enter` makes system calls only and allocates nothing; the descriptors are those
    // of mounts that live until the program has been started, and the strings are static.
    unsafe {
        command.pre_exec(move || enter(root, &mounts));
    }
    tool::bounded(command, timeout, program)
}

/// Goes into the root, in the child only.
fn enter(root: RawFd, mounts: &[(RawFd, &'static CStr)]) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&CStr>;
    mount(
        none,
        c"/",
        none,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        none,
    )?;
    // A mount without a place takes no mounts on it. Which place it has does not matter: nobody looks there.
    move_mount(root, c"/")?;
    // SAFETY: the descriptor is open, and the string ends with a zero and lives for ever.
    unsafe {
        Errno::result(libc::fchdir(root))?;
        Errno::result(libc::chroot(c".".as_ptr()))?;
    }
    for (mount, at) in mounts {
        move_mount(*mount, at)?;
    }
    Ok(())
}

fn move_mount(mount: RawFd, at: &'static CStr) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the strings end with a zero and live for ever.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount,
            c"".as_ptr(),
            libc::AT_FDCWD,
            at.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    Ok(Errno::result(result).map(drop)?)
}
