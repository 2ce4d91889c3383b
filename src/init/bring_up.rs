//! The flow's first step as PID 1's child: drivers for the hardware, then what needs drivers. The network comes
//! after it ([`super::network`]), and only where it is wanted.

use std::path::Path;
use std::time::Duration;

use super::modules::Loader;
use super::modules::coldplug::Hotplug;
use super::modules::serve;
use super::modules::settings::Settings;
use super::modules::tree::Tree;
use super::mounts;
use crate::config::cmdline::Cmdline;
use crate::error::chain;
use crate::report::Reporter;

/// A large server's controllers take half a minute to start.
const DRIVERS: Duration = Duration::from_secs(90);

/// What runs beside the flow until the handover.
#[derive(Debug)]
pub struct Hardware {
    hotplug: Option<Hotplug>,
}

impl Hardware {
    /// Stops loading modules; the new system does that itself. Dropping without this leaves the kernel with
    /// a helper program that is gone after a switch of the root.
    pub fn hand_over(self) {
        if let Some(hotplug) = self.hotplug {
            hotplug.stop();
        }
        serve::stop_serving();
    }
}

/// Loads drivers and mounts what needs them. Nothing here is fatal: a kernel may have everything built in, and
/// whoever misses a disk or the network says so better than this could.
pub fn run(cmdline: &Cmdline, reporter: &Reporter) -> Hardware {
    // PID 1 is immune when memory runs out, and its children inherit that; the run must not be.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let hotplug = modules(cmdline, reporter);
    if let Err(failure) = mounts::efi_variables() {
        reporter.warn(crate::error::describe(&failure));
    }
    Hardware { hotplug }
}

fn modules(cmdline: &Cmdline, reporter: &Reporter) -> Option<Hotplug> {
    let version = match nix::sys::utsname::uname() {
        Ok(names) => names.release().to_string_lossy().into_owned(),
        Err(error) => {
            reporter.warn(format!("the kernel does not say its version: {error}"));
            return None;
        }
    };
    let Some(tree) = Tree::load(Path::new("/"), &version).filter(|t| !t.is_empty()) else {
        reporter.info(format!(
            "no modules for kernel {version} below /lib/modules: only what it has built in works"
        ));
        return None;
    };
    if let Err(failure) = serve::start_serving() {
        reporter.warn(chain(&failure));
    }
    let loader = Loader::new(tree, Settings::of(cmdline));
    Some(Hotplug::start(loader, Path::new("/sys"), DRIVERS, reporter))
}
