//! PID 1's whole life: start the flow as a child, reap whatever ends, and do what the end asks for.
//!
//! The kernel panics when PID 1 ends, so nothing here may: it holds no data of the run, parses nothing but
//! three words, and every wait has an end.
//!
//! Signals: while the flow runs, Ctrl-Alt-Del (which arrives as SIGINT), SIGTERM and SIGPWR are refused with a
//! line on the consoles; the flow decides when the machine goes down. Once parked, Ctrl-Alt-Del and SIGTERM
//! restart the machine and SIGPWR powers it off. Whoever cannot wait has the reset button, which leaves a disk
//! that does not boot or one that is complete.

use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::switch_root;
use super::verdict::{self, Action, End, HANDOFF, ON_FAILURE, Verdict};
use crate::config::cmdline::Cmdline;
use crate::config::words;
use crate::error::chain;
use crate::report::{Event, Reporter};
use crate::sys::power::{self, Off};
use crate::sys::session;

/// The hidden subcommand that runs the flow.
pub const FLOW: &str = "flow";

/// A parked machine says again why it is parked: whoever connects to a serial console sees it.
const REMINDER: Duration = Duration::from_secs(600);

/// A run that has ended is reaped within moments, unless a thread of it hangs in the kernel.
const STUCK_FOR: Duration = Duration::from_secs(10);

/// For `ironroot.shell=on-failure`, where the builder of the initramfs has put one in.
const SHELL: &str = "/bin/sh";

/// Time to read the reason, and a limit to how fast a failing machine goes round.
const BEFORE_FAILED_OFF: Duration = Duration::from_secs(10);

/// Runs the flow and acts on its end.
pub fn run(cmdline: &Cmdline, reporter: &Reporter) -> ! {
    let signals = Signals::block(reporter);
    for stale in [HANDOFF, ON_FAILURE] {
        let _ = std::fs::remove_file(stale);
    }
    let (mut verdict, on_failure) = watch(cmdline, &signals, reporter);
    if let Action::SwitchRoot { root, init } = &verdict.action {
        let failure = switch_root::switch(root, init.as_deref(), cmdline, reporter);
        verdict = Verdict {
            action: on_failure,
            failed: Some(failure.class()),
            reason: chain(&failure),
            told: false,
        };
    }
    announce(&verdict, reporter);
    if verdict.failed.is_some()
        && words::shell_on_failure(cmdline)
        && shell(Path::new(SHELL), Path::new("/dev/console"), reporter)
    {
        // Not under the hands of whoever uses it.
        park(&verdict.reason, &signals, reporter);
    }
    match verdict.action {
        Action::Park | Action::SwitchRoot { .. } => {}
        Action::Reboot => go(Off::Restart, &verdict, &signals, reporter),
        Action::PowerOff => go(Off::PowerOff, &verdict, &signals, reporter),
        Action::Kexec => {
            go(Off::Kexec, &verdict, &signals, reporter);
            go(Off::Restart, &verdict, &signals, reporter);
        }
    }
    park(&verdict.reason, &signals, reporter)
}

/// What follows from the run's end, and what a failure of that itself asks for.
fn watch(cmdline: &Cmdline, signals: &Signals, reporter: &Reporter) -> (Verdict, Action) {
    let kills = || {
        verdict::small_file(Path::new("/proc/vmstat")).map_or(0, |text| verdict::oom_kills(&text))
    };
    let kills_before = kills();
    let (began, mut told, mut stuck) = (Instant::now(), Instant::now(), Stuck::default());
    let end = match start() {
        Err(error) => End::Lost(format!("the run could not be started: {error}")),
        Ok(child) => loop {
            if let Some(end) = reap(child).or_else(|| stuck.look(child)) {
                break end;
            }
            if told.elapsed() >= REMINDER {
                told = Instant::now();
                reporter.info(format!(
                    "the run goes on, {} minutes by now",
                    began.elapsed().as_secs() / 60
                ));
            }
            if let Some(signal) = signals.next(Duration::from_secs(1))
                && signal != Signal::SIGCHLD
            {
                reporter.warn(format!(
                    "{}: not while the run goes on; it decides when the machine goes down",
                    name(signal)
                ));
            }
        },
    };
    let end = match end {
        End::Killed { signal, .. } => End::Killed {
            signal,
            out_of_memory: kills() > kills_before,
        },
        other => other,
    };
    let config = verdict::small_file(Path::new(ON_FAILURE));
    let on_failure = verdict::on_failure(cmdline.get("ironroot.on-failure"), config.as_deref())
        .unwrap_or(Action::Park);
    let handoff = verdict::small_file(Path::new(HANDOFF));
    let verdict = verdict::decide(&end, handoff.as_deref(), on_failure.clone());
    (verdict, on_failure)
}

/// A run that has ended and cannot be reaped: a thread of it hangs in the kernel, in a driver or a dead disk.
#[derive(Default)]
struct Stuck {
    since: Option<Instant>,
}

impl Stuck {
    /// How the run ended, once it has been a zombie for long enough.
    fn look(&mut self, child: Pid) -> Option<End> {
        let stat = verdict::small_file(Path::new(&format!("/proc/{child}/stat")))?;
        let Some(end) = verdict::zombie(&stat) else {
            self.since = None;
            return None;
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        (since.elapsed() >= STUCK_FOR).then_some(end)
    }
}

/// Starts the flow: this program again, by the file that the kernel holds open for us.
fn start() -> std::io::Result<Pid> {
    use std::os::unix::process::CommandExt as _;
    // The streams are inherited: they are the console and never block (mounts::standard_streams).
    let child = Command::new("/proc/self/exe")
        .arg0("ironroot")
        .arg(FLOW)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .spawn()?;
    // When memory runs out the run dies, not its supervisor; both do what they can for that.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "0");
    i32::try_from(child.id())
        .map(Pid::from_raw)
        .map_err(std::io::Error::other)
}

/// Reaps everything that has ended; how `child` ended, once it has.
fn reap(child: Pid) -> Option<End> {
    // Bounded, so that a fork bomb cannot keep us here; the rest follows in the next round.
    for _ in 0..1000 {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => return Some(End::Exited(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                return Some(End::Killed {
                    signal: name(signal).to_owned(),
                    out_of_memory: false,
                });
            }
            Ok(WaitStatus::StillAlive) => return None,
            Err(nix::Error::ECHILD) => {
                return Some(End::Lost("the run's process vanished".to_owned()));
            }
            Ok(_) | Err(_) => {}
        }
    }
    None
}

fn reap_strangers() {
    for _ in 0..1000 {
        if !matches!(
            waitpid(None, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
        ) {
            return;
        }
    }
}

fn announce(verdict: &Verdict, reporter: &Reporter) {
    let Some(class) = verdict.failed else {
        return;
    };
    if verdict.told {
        reporter.info(format!(
            "{}; on failure: {}",
            verdict.reason, verdict.action
        ));
        return;
    }
    reporter.emit(Event::Failed {
        class,
        exit_code: class.exit_code(),
        step: None,
        error: verdict.reason.clone(),
        next: format!(
            "the lines above and the kernel's log may say more; on failure: {}",
            verdict.action
        ),
    });
}

/// Takes the machine down; comes back only where that is not possible.
fn go(off: Off, verdict: &Verdict, signals: &Signals, reporter: &Reporter) {
    let word = match off {
        Off::Restart => "rebooting",
        Off::PowerOff => "powering off",
        Off::Kexec => "starting the kernel of the installed system",
    };
    if verdict.failed.is_some() {
        reporter.info(format!("{word} in {} s", BEFORE_FAILED_OFF.as_secs()));
        let end = Instant::now();
        while end.elapsed() < BEFORE_FAILED_OFF {
            signals.next(Duration::from_millis(500));
            reap_strangers();
        }
    }
    reporter.info(word);
    let error = power::go(off);
    reporter.warn(format!("{word} did not work: {error}"));
}

/// Starts `program` on `console`; whether it runs. PID 1 does not wait for it: it is reaped like everything else.
fn shell(program: &Path, console: &Path, reporter: &Reporter) -> bool {
    let word = "ironroot.shell=on-failure";
    if !program.exists() {
        reporter.warn(format!(
            "{word}: there is no {} in this initramfs",
            program.display()
        ));
        return false;
    }
    let open = || {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NOCTTY)
            .open(console)
    };
    let started = open().and_then(|input| {
        let (output, errors) = (open()?, open()?);
        let mut shell = Command::new(program);
        shell
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(input)
            .stdout(output)
            .stderr(errors);
        session::at_terminal(&mut shell);
        shell.spawn()
    });
    match started {
        Ok(_) => {
            reporter.info(format!(
                "{word}: {} on the console; Ctrl-Alt-Del restarts the machine",
                program.display()
            ));
            true
        }
        Err(error) => {
            reporter.warn(format!(
                "{word}: {} did not start: {error}",
                program.display()
            ));
            false
        }
    }
}

/// Stays for ever, with the reason on the consoles: the end of a PID 1 that has nothing else left.
pub fn park_for(reason: &str, reporter: &Reporter) -> ! {
    let signals = Signals::block(reporter);
    park(reason, &signals, reporter)
}

fn park(reason: &str, signals: &Signals, reporter: &Reporter) -> ! {
    loop {
        reporter.info(format!(
            "parked: {reason}. Ctrl-Alt-Del or a reset starts the machine again"
        ));
        let told = Instant::now();
        while told.elapsed() < REMINDER {
            let off = match signals.next(Duration::from_secs(60)) {
                Some(Signal::SIGINT | Signal::SIGTERM) => Off::Restart,
                Some(Signal::SIGPWR) => Off::PowerOff,
                _ => {
                    reap_strangers();
                    continue;
                }
            };
            reporter.info("asked to go down while parked");
            let error = power::go(off);
            reporter.warn(format!("going down did not work: {error}"));
        }
    }
}

fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::SIGINT => "Ctrl-Alt-Del",
        other => other.as_str(),
    }
}

/// The signals that PID 1 hears. They are blocked, so that they queue; all others the kernel drops, because a
/// PID 1 without handlers is immune to them. What is started inherits that they are blocked: the flow, whom nobody
/// has to end, and not the programs that the flow starts (`sys::tool`), nor a shell (`sys::session`).
struct Signals(Option<SignalFd>);

impl Signals {
    fn block(reporter: &Reporter) -> Signals {
        let mut set = SigSet::empty();
        for signal in [
            Signal::SIGCHLD,
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGPWR,
        ] {
            set.add(signal);
        }
        let opened = set.thread_block().and_then(|()| {
            SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        });
        match opened {
            Ok(fd) => Signals(Some(fd)),
            Err(error) => {
                // The child is then only looked after once a second.
                reporter.warn(format!("signals cannot be heard: {error}"));
                Signals(None)
            }
        }
    }

    /// The next signal, in at most `timeout`.
    fn next(&self, timeout: Duration) -> Option<Signal> {
        let Some(fd) = &self.0 else {
            std::thread::sleep(timeout);
            return None;
        };
        let mut waiting = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        let timeout_ms = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut waiting, timeout_ms) {
            Ok(n) if n > 0 => {}
            Ok(_) | Err(nix::Error::EINTR) => return None,
            Err(_) => {
                std::thread::sleep(timeout);
                return None;
            }
        }
        let info = fd.read_signal().ok().flatten()?;
        i32::try_from(info.ssi_signo)
            .ok()
            .and_then(|n| Signal::try_from(n).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By a process of its own: what this one has open for writing is inherited by whatever another test starts at that
    /// moment, and nobody executes a file that somebody could write to (ETXTBSY).
    fn write_program(path: &Path, text: &str) {
        use std::io::Write as _;
        let mut writer = Command::new("sh")
            .args(["-ec", "cat >\"$1\"; chmod 755 \"$1\"", "sh"])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = writer.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        assert!(writer.wait().unwrap().success());
    }

    #[test]
    fn a_shell_talks_to_the_console_and_one_that_is_not_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (console, program) = (folder.path().join("console"), folder.path().join("sh"));
        std::fs::write(&console, "typed\n").unwrap();
        let reporter = Reporter::default();
        assert!(!shell(&program, &console, &reporter));
        let script =
            "#!/bin/sh\nread line; echo \"$(grep SigBlk /proc/self/status) got $line\" >&2\n";
        write_program(&program, script);
        // As PID 1 has it, whose shell has to be ended by Ctrl-C all the same.
        SigSet::all().thread_block().unwrap();
        assert!(shell(&program, &console, &reporter));
        SigSet::all().thread_unblock().unwrap();
        let began = Instant::now();
        while !std::fs::read_to_string(&console)
            .unwrap()
            .contains("SigBlk:\t0000000000000000 got typed")
        {
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!shell(&program, &folder.path().join("nowhere"), &reporter));
    }
}
