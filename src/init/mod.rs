//! Being PID 1 in an initramfs in which there is no other program: mounts, console, drivers, network, clock.
//!
//! Two processes. PID 1 ([`main`]) makes the mounts and then only supervises; its child (`ironroot flow`) does the
//! rest, beginning with [`bring_up::run`] and, where it is wanted, [`network::bring_up`]. The kernel starts the
//! program a third way, to ask for a module ([`modules::serve`]).

pub mod bring_up;
pub mod clock;
pub mod console;
pub mod modules;
pub mod mounts;
pub mod network;
pub mod supervise;
pub mod switch_root;
pub mod verdict;

use crate::config::cmdline::Cmdline;
use crate::error::describe;
use crate::report::Event;
use crate::report::event::EVENT_VERSION;
use crate::sys::power;

/// Whether this process is PID 1.
pub fn is_pid_1() -> bool {
    nix::unistd::getpid().as_raw() == 1
}

/// The kernel command line; empty where /proc is missing.
pub fn cmdline() -> Cmdline {
    Cmdline::parse(&std::fs::read_to_string("/proc/cmdline").unwrap_or_default())
}

/// PID 1, from the kernel's exec to the end of the machine. Never returns and never panics.
pub fn main() -> ! {
    let failures = mounts::early();
    mounts::standard_streams();
    let cmdline = cmdline();
    let reporter = console::reporter(&cmdline);
    reporter.emit(Event::Start {
        format: EVENT_VERSION,
        version: env!("CARGO_PKG_VERSION"),
        role: "init".to_owned(),
    });
    for failure in failures {
        reporter.warn(describe(&failure));
    }
    clock::raise_to_build_time(&reporter);
    if let Err(error) = power::ctrl_alt_del_as_signal() {
        reporter.warn(format!(
            "Ctrl-Alt-Del restarts the machine at once: {error}"
        ));
    }
    // When memory runs out, anything but PID 1 may die.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    supervise::run(&cmdline, &reporter)
}
