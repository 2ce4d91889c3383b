//! `ironroot switch-root`: the switch by itself, as the last line of somebody else's /init. Not shown in the
//! help: whoever lets ironroot be PID 1 does not need it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{Inheritance, preflight, switch_with};
use crate::error::{Result, chain, describe};
use crate::report::Reporter;

/// The subcommand's name.
pub const NAME: &str = "switch-root";

/// `switch-root [--dry-run] ROOT [INIT [ARGUMENT…]]`
#[derive(Args, Debug)]
pub struct Switch {
    /// Only check whether it would work; PID 1 or not
    #[arg(long)]
    dry_run: bool,
    /// Where the new system is mounted
    #[arg(value_name = "ROOT")]
    root: PathBuf,
    /// Its init, and with what that is started [default: init=, /sbin/init, /etc/init, /bin/init, /bin/sh]
    #[arg(
        value_name = "INIT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    init: Vec<OsString>,
}

/// Whether PID 1 was asked for this by a script that it was before. The kernel starts its init as `/init`, and
/// gives it words of the kernel command line, which are no commands.
pub fn is_request(own_name: &OsStr, first: Option<&OsStr>) -> bool {
    Path::new(own_name).file_name() != Some(OsStr::new("init")) && first == Some(OsStr::new(NAME))
}

impl Switch {
    /// As PID 1 this ends only in the new system, or parked.
    pub fn run(&self) -> Result<ExitCode> {
        let cmdline = crate::init::cmdline();
        let mut words = self.init.iter().cloned();
        let named = words.next().map(|w| w.to_string_lossy().into_owned());
        // An empty word, so that arguments can follow.
        let named = named.as_deref().filter(|name| !name.is_empty());
        let init = named.or_else(|| cmdline.get("init"));
        let inheritance = Inheritance::new(words, std::env::vars_os(), &cmdline);
        if self.dry_run {
            let ready = preflight(&self.root, init, inheritance)?;
            for warning in &ready.warnings {
                eprintln!("ironroot: warning: {warning}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        if !crate::init::is_pid_1() {
            return super::check_ourselves().map(|()| ExitCode::FAILURE);
        }
        let reporter = crate::init::console::reporter(&cmdline);
        let failure = switch_with(&self.root, init, inheritance, &reporter);
        reporter.warn(describe(&failure));
        crate::init::supervise::park_for(&chain(&failure), &reporter)
    }
}

/// What to do with a command line of this command that PID 1 does not understand: it must not end.
pub fn misused(error: &clap::Error) -> ! {
    let reporter: Reporter = crate::init::console::reporter(&crate::init::cmdline());
    crate::init::supervise::park_for(&error.to_string(), &reporter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_the_kernel_command_line_is_no_request() {
        let ask =
            |name: &str, first: Option<&str>| is_request(name.as_ref(), first.map(str::as_ref));
        assert!(ask("/ironroot", Some(NAME)));
        assert!(ask("ironroot", Some(NAME)));
        assert!(!ask("/init", Some(NAME)));
        assert!(!ask("/ironroot", Some("flow")));
        assert!(!ask("/ironroot", None));
    }
}
