//! `ironroot initrd`: the helper of another initrd's PID 1, which did the bring-up and switches the root itself.
//! It never parks, powers off or reboots because of a failure: that is the initrd's own business.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::flags::Common;
use super::{conclude, ended, sinks, start};
use crate::config::cmdline::Cmdline;
use crate::config::words;
use crate::error::{Class, Context as _, Failure, Result};
use crate::init::network::name_servers;
use crate::init::{self, console, mounts};
use crate::plan::Handoff;
use crate::report::Reporter;
use crate::run::flow::{self, Entrance, Role};
use crate::sys::power::{self, Off};

/// A machine that waits says so now and then.
const REMINDER: Duration = Duration::from_secs(600);

/// Whether this boot is this program's business, as an exit code for scripts: 0 yes, 1 no. Says nothing.
pub fn is_wanted() -> ExitCode {
    let cmdline = init::cmdline();
    ExitCode::from(u8::from(
        !words::are_for_us(&cmdline) || cmdline.has("ironroot.skip"),
    ))
}

/// The whole command.
pub fn main(json: bool, sysroot: &Path, common: &Common) -> ExitCode {
    let cmdline = init::cmdline();
    if common.config.is_none() && !words::are_for_us(&cmdline) {
        // An installed system whose own initrd carries this program boots undelayed.
        println!("ironroot: nothing on the kernel command line asks for it");
        return ExitCode::SUCCESS;
    }
    // Whoever names a config means this run, not the machine's next boots.
    if common.config.is_none() && cmdline.has("ironroot.skip") {
        println!("ironroot: ironroot.skip is on the kernel command line");
        return ExitCode::SUCCESS;
    }
    let reporter = reporter(json, &cmdline);
    start(&reporter, "initrd");
    if words::shell_on_failure(&cmdline) {
        reporter.info("ironroot.shell=on-failure is for ironroot as PID 1; this initrd has its own emergency handling");
    }
    let sysroot = match place(sysroot) {
        Ok(sysroot) => sysroot,
        Err(failure) => return conclude(Err(failure), &reporter, |_| String::new()),
    };
    ended::with_reason(&sysroot, &reporter);
    // The initrd's own network programs got the addresses; not all of them write down where names are asked for.
    let mut name_servers = |_| {
        if is_initrd() {
            name_servers::adopt(Path::new("/"), &cmdline, &reporter);
        }
        Ok(())
    };
    let mut entrance = Entrance {
        role: Role::Initrd,
        cmdline: &cmdline,
        config: common.config.as_deref(),
        amend: None,
        allow_file: false,
        retry_for: common.retry_for,
        wait: common.wait,
        network: Some(&mut name_servers),
        root: Path::new("/"),
        sysroot: &sysroot,
        stop_after: common.stop_after,
    };
    let outcome = flow::carry_out(&mut entrance, &reporter);
    let outcome = outcome.and_then(|handoff| carry_out(handoff, &reporter));
    conclude(outcome, &reporter, |handoff| match handoff {
        Handoff::Sysroot { root } | Handoff::SwitchRoot { root, .. } => {
            format!("done: the new root is ready at {}", root.display())
        }
        Handoff::Reboot | Handoff::PowerOff | Handoff::Kexec => {
            "done; this is no initrd, so the machine stays up".to_owned()
        }
        Handoff::Park { reason } => format!("done: {reason}"),
    })
}

/// The sysroot as the kernel names it in its table of mounts. It need not be there yet.
fn place(sysroot: &Path) -> Result<PathBuf> {
    let what = || format!("the sysroot {}", sysroot.display());
    let place = match sysroot.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => std::path::absolute(sysroot),
        other => other,
    };
    let place = place.context(Class::Usage, what)?;
    if place == Path::new("/") {
        return Err(Failure::new(
            Class::Usage,
            format!("{}: it is the root that is in use", what()),
        )
        .hint("name a directory of its own, as /sysroot"));
    }
    Ok(place)
}

/// People's lines on stderr, which the initrd brings to the last console and its journal, and on the other consoles; events where the new system finds
/// them.
fn reporter(json: bool, cmdline: &Cmdline) -> Reporter {
    // Where it cannot be made, the events cannot be either.
    let _ = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(mounts::RUN);
    let initrd = is_initrd();
    let stderr = if initrd {
        console::bounded_stderr()
    } else {
        Box::new(std::io::stderr())
    };
    let mut sinks = sinks(json, stderr);
    if initrd {
        sinks.extend(console::beside_the_last(cmdline));
    }
    sinks.extend(console::events());
    Reporter::new(sinks)
}

/// Written by dracut, mkosi and mkinitcpio (systemd's INITRD_INTERFACE), and by ironroot's hook for initramfs-tools.
fn is_initrd() -> bool {
    Path::new("/etc/initrd-release").exists()
}

/// What `then` says, where this is an initrd: on a running Linux nothing restarts.
fn carry_out(handoff: Handoff, reporter: &Reporter) -> Result<Handoff> {
    if !is_initrd() {
        return Ok(handoff);
    }
    let off = match &handoff {
        Handoff::Reboot => Off::Restart,
        Handoff::PowerOff => Off::PowerOff,
        Handoff::Kexec => Off::Kexec,
        Handoff::Park { reason } => loop {
            reporter.info(format!("parked: {reason}"));
            std::thread::sleep(REMINDER);
        },
        Handoff::Sysroot { .. } | Handoff::SwitchRoot { .. } => return Ok(handoff),
    };
    reporter.info(match off {
        Off::Restart => "done: the machine restarts now",
        Off::PowerOff => "done: the machine goes off now",
        Off::Kexec => "done: the installed system's own kernel starts now",
    });
    let mut error = power::go(off);
    if off == Off::Kexec {
        reporter.warn(format!(
            "that did not work ({error}): the machine restarts instead"
        ));
        error = power::go(Off::Restart);
    }
    Err(Failure::new(Class::Handover, "taking the machine down").caused_by(error))
}
