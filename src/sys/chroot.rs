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
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::detached::Detached;
use super::tool::{self, Output};
use crate::error::{Class, Failure, Result};

/// Runs `program`, a path in `root`, with nothing but `env` in its environment, in a mount namespace of its own: a
/// program that makes mounts leaves none. Each of `mounts` is at its path in the root meanwhile, and a fresh /proc; the
/// mount of the root itself can be used afterwards through its descriptor only.
///
/// It is the first process of a PID namespace of its own: whatever it started, daemons of a session of their own too,
/// the kernel kills when it ends, and nothing of that is left when this returns (Linux: `zap_pid_ns_processes`).
///
/// # Errors
/// Class media when it could not be started or did not end within `timeout`, or there are no PID namespaces.
pub fn run(
    root: &Detached,
    mounts: &[(&Detached, &'static CStr)],
    program: &str,
    args: &[&str],
    env: &[(&str, String)],
    timeout: Duration,
) -> Result<(Output, ExitStatus)> {
    can_run()?;
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
        command.pre_exec(move || {
            enter(root, &mounts)?;
            apart()
        });
    }
    tool::bounded(command, timeout, program)
}

/// Fails where nothing can be run in a root because the kernel makes no PID namespaces: to be asked before anything
/// is erased.
///
/// # Errors
/// Class media, with the kernel's reason.
pub fn can_run() -> Result<()> {
    let tried = fork_apart().and_then(|pid| match pid {
        0 => leave(0),
        // It does nothing but end; a signal of our own may come meanwhile.
        pid => loop {
            match waitpid(Pid::from_raw(pid), None) {
                Err(Errno::EINTR) => {}
                ended => break ended.map(drop),
            }
        },
    });
    tried.map_err(|errno| {
        let hint = match errno {
            Errno::ENOSPC => "raise /proc/sys/user/max_pid_namespaces (a count, at most 32 below each other)",
            Errno::EPERM => "it needs CAP_SYS_ADMIN, and no seccomp filter that forbids it",
            _ => "use a kernel with CONFIG_PID_NS",
        };
        Failure::new(
            Class::Media,
            "the kernel makes no PID namespace, without which no program of a tree is run: what it leaves running would hold the disk",
        )
        .caused_by(std::io::Error::from(errno))
        .hint(format!(
            "{hint}; or install a unified kernel image or systemd-boot (`disk.bootloader`), which run nothing"
        ))
    })
}

/// A process that is the first of a PID namespace, as fork(2) makes one: 0 in the new one.
fn fork_apart() -> nix::Result<libc::pid_t> {
    let flags = libc::CLONE_NEWPID | libc::SIGCHLD;
    let nothing: libc::c_ulong = 0;
    // SAFETY: without CLONE_VM and without a stack this is fork(2). The library's own would run handlers that may
    // wait for locks of threads that this process does not have; the new one makes system calls only, up to exec or
    // its end.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, nothing, nothing, nothing, nothing) };
    // A process id is an int whatever the type of the call's result.
    Errno::result(pid).map(|pid| libc::pid_t::try_from(pid).unwrap_or(libc::pid_t::MAX))
}

/// Ends a process that [`fork_apart`] made.
fn leave(status: libc::c_int) -> ! {
    // SAFETY: nothing of the other process is undone on the way out.
    unsafe { libc::_exit(status) }
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

/// Goes into a PID namespace, in the child only. What goes on there is a process of its own: this one waits for it,
/// and ends as it does.
fn apart() -> io::Result<()> {
    match fork_apart()? {
        0 => {}
        pid => watch(pid),
    }
    // The one that waits may be killed alone.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The one that was there counts processes as they are outside.
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let proc = Some(c"proc");
    mount(proc, c"/proc", proc, quiet, None::<&CStr>)?;
    Ok(())
}

/// Waits for `pid` and ends as it did.
fn watch(pid: libc::pid_t) -> ! {
    let mut status: libc::c_int = 0;
    // SAFETY: system calls only, on this process's own state, and a pointer to a variable of this function. All
    // descriptors are closed, because among them is the one whose end tells that the program has been started.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        // Killed from outside, with its group, where it takes too long.
        while libc::syscall(libc::SYS_wait4, pid, &raw mut status, 0, 0) < 0
            && Errno::last() == Errno::EINTR
        {}
        if libc::WIFSIGNALED(status) {
            libc::kill(libc::getpid(), libc::WTERMSIG(status));
        }
        libc::_exit(if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            i32::from(u8::MAX)
        })
    }
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
