//! A program at a terminal of its own, as getty(8) starts one: with job control, and ended by Ctrl-C.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;
use nix::sys::signal::SigSet;

/// Lets `command` lead a session whose terminal is its standard input, and begin with no signal blocked: what a process
/// blocks is inherited by all that it starts (signal(7)). Where the input is no terminal there is none.
///
/// /dev/console never becomes a terminal by being opened, but it does by TIOCSCTTY (ioctl_tty(2)).
pub fn at_terminal(command: &mut Command) {
    // SAFETY: between fork and exec this makes three system calls and allocates nothing; the third takes a number.
    unsafe {
        command.pre_exec(|| {
            SigSet::empty().thread_set_mask()?;
            nix::unistd::setsid()?;
            // 1: also where an earlier session has it, for whom has the machine.
            libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 1);
            Ok(())
        });
    }
}
