//! The helper's PID 1 ends it (a time-out of its unit, a shutdown, a hand at the emergency shell): a reason on the
//! console, a code, and nothing half-made is left.
//!
//! The work goes on in other threads while a signal is heard, and could mount once more what was just taken away. So
//! the program starts itself anew in its own process: with execve(2) every other thread is gone, every file is closed,
//! and whoever waits for the process still does.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use crate::error::{Class, Failure};
use crate::init::mounts;
use crate::report::{Event, Reporter};
use crate::sys::mount;

/// The hidden subcommand that takes away what a run has made.
const CLEAN_UP: &str = "clean-up";

/// A program that was killed is gone within moments, unless it hangs in the kernel.
const ROUNDS: u32 = 20;
const ROUND: Duration = Duration::from_millis(50);

/// Hears SIGTERM and SIGINT from now on. To be called before any other thread starts: they inherit that the signals
/// are blocked.
pub(super) fn with_reason(sysroot: &Path, reporter: &Reporter) {
    if let Err(error) = signals().thread_block() {
        reporter.warn(format!("signals cannot be heard: {error}"));
        return;
    }
    let (sysroot, reporter) = (sysroot.to_owned(), reporter.clone());
    let thread = std::thread::Builder::new().spawn(move || {
        let Ok(signal) = signals().wait() else { return };
        let failure = Failure::new(Class::Handover, format!("ended by {signal} while at work"))
            .hint("the initrd's PID 1 ended it: see its log for why (a time-out of the unit, a shutdown)");
        reporter.emit(Event::failed(&failure));
        // Comes back only where it does not work, as where the program's own file cannot be read any more.
        let error = Command::new("/proc/self/exe")
            .arg0("ironroot")
            .args([OsStr::new(CLEAN_UP), sysroot.as_os_str()])
            .stdin(Stdio::null())
            .exec();
        reporter.warn(format!("what was at work may leave something behind: {error}"));
        clean_up(&sysroot);
        std::process::exit(i32::from(code()));
    });
    if thread.is_err() {
        // Nobody would hear them.
        let _ = signals().thread_unblock();
    }
}

fn signals() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set
}

const fn code() -> u8 {
    Class::Handover.exit_code()
}

/// The whole hidden command.
pub(super) fn main(sysroot: &Path) -> ExitCode {
    // Whoever sends the signal again gets the same end.
    let _ = signals().thread_block();
    clean_up(sysroot);
    ExitCode::from(code())
}

/// Ends the programs that the run has started, and takes its mounts away; with the last of each its loop device goes.
fn clean_up(sysroot: &Path) {
    for _ in 0..ROUNDS {
        let children = children();
        if children.is_empty() {
            break;
        }
        for child in children {
            // Each leads a group of its own (`sys::tool`).
            let _ = killpg(child, Signal::SIGKILL);
            let _ = nix::sys::signal::kill(child, Signal::SIGKILL);
            let _ = nix::sys::wait::waitpid(child, Some(nix::sys::wait::WaitPidFlag::WNOHANG));
        }
        std::thread::sleep(ROUND);
    }
    let mounted = mount::mounted().unwrap_or_default();
    for entry in mounted.iter().rev() {
        if entry.target.starts_with(sysroot) || entry.target.starts_with(mounts::RUN) {
            let _ = mount::detach_lazily(&entry.target);
        }
    }
}

/// What this process has started and not reaped yet (Documentation/filesystems/proc.rst, `children`); nothing where the
/// kernel does not tell.
fn children() -> Vec<Pid> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|pid| Some(Pid::from_raw(pid.parse().ok()?)))
        .collect()
}
