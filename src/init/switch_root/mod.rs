//! From the initrd to the system whose root file system is mounted: all that can fail is checked first
//! ([`preflight`], with the initrd intact), then there is no way back ([`leap::go`]).
//!
//! [`find_init`], [`check_directories`] and [`check_modules`] stand by themselves for a helper in somebody
//! else's initrd, which leaves the switch to that.

pub mod command;
pub mod delete;
mod elf;
pub mod inherit;
mod leap;
mod leave;
mod program;
mod root;

use std::path::{Path, PathBuf};

pub use inherit::Inheritance;
pub use program::{Init, USUAL, find_init};
pub use root::{check_directories, check_modules};

use crate::config::cmdline::Cmdline;
use crate::error::{Class, Context as _, Failure, Result};
use crate::report::Reporter;
use crate::sys::mount;

/// A system that can be started.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Where its root is mounted; no symbolic link in it.
    root: PathBuf,
    /// Paths inside the root: the init, then those that stand in for it.
    init: Vec<PathBuf>,
    /// With what it is started.
    inheritance: Inheritance,
    /// What the operator should know before it starts.
    pub warnings: Vec<String>,
}

impl Ready {
    /// The init that is started, a path inside the root.
    pub fn init(&self) -> &Path {
        self.init.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// Checks everything that can fail. `root` is where the new system is mounted, `init` a path inside it, which
/// the kernel command line's `init=` stands in for. Makes missing API directories in the new root; changes
/// nothing else.
///
/// # Errors
/// Class handover, with what is wrong with the new root.
pub fn preflight(root: &Path, init: Option<&str>, inheritance: Inheritance) -> Result<Ready> {
    let root = std::fs::canonicalize(root).context(Class::Handover, || {
        format!("looking at the new root {}", root.display())
    })?;
    let mounted = mount::mounted().context(Class::Handover, || "reading the table of mounts")?;
    let mut warnings = root::check_mount(&root, &mounted)?;
    let found = find_init(&root, init)?;
    warnings.extend(found.warnings);
    check_directories(&root)?;
    if let Ok(names) = nix::sys::utsname::uname() {
        warnings.extend(check_modules(&root, &names.release().to_string_lossy()));
    }
    Ok(Ready {
        root,
        init: found.paths,
        inheritance,
        warnings,
    })
}

/// Whether this process may replace the root of the machine: it is PID 1, and what it would leave behind is an
/// initrd, which is then deleted.
pub fn check_ourselves() -> Result<()> {
    let refuse = |what: &str| {
        Failure::new(Class::Handover, format!("switching the root: {what}"))
            .hint("only PID 1 of an initrd can do this")
    };
    if !super::is_pid_1() {
        return Err(refuse("this process is not PID 1"));
    }
    let root = std::fs::File::open("/").context(Class::Handover, || "opening /")?;
    if !delete::is_in_memory(&root) {
        return Err(refuse("/ is not on a file system in memory"));
    }
    Ok(())
}

/// Starts the system at `root` in the place of this process, PID 1 of an initrd; returns only why that did not
/// work. The initrd is intact then, unless the message says otherwise.
pub fn switch(root: &Path, init: Option<&str>, cmdline: &Cmdline, reporter: &Reporter) -> Failure {
    let inheritance = Inheritance::new(std::env::args_os().skip(1), std::env::vars_os(), cmdline);
    let init = init.or_else(|| cmdline.get("init"));
    switch_with(root, init, inheritance, reporter)
}

/// [`switch`] with an init and an inheritance of the caller's.
pub fn switch_with(
    root: &Path,
    init: Option<&str>,
    inheritance: Inheritance,
    reporter: &Reporter,
) -> Failure {
    let checked = check_ourselves().and_then(|()| preflight(root, init, inheritance));
    let ready = match checked {
        Ok(ready) => ready,
        Err(failure) => return failure,
    };
    for warning in &ready.warnings {
        reporter.warn(warning.clone());
    }
    reporter.info(format!(
        "starting {} of the system in {}",
        ready.init().display(),
        ready.root.display()
    ));
    leave::end_children(reporter);
    leap::go(&ready, reporter)
}
