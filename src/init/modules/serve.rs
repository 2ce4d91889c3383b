//! Answering the kernel when it asks for a module itself: a file system that is mounted (`fs-ext4`), a code page
//! of vfat (`nls_ascii`), a cipher, a socket family (`net-pf-10`).
//!
//! The kernel starts the program that /proc/sys/kernel/modprobe names, as `PATH -q -- NAME`
//! (kernel/module/kmod.c, `call_modprobe`), below its own root, without a terminal. That program is a link to
//! ironroot, which knows itself by that name.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::settings::Settings;
use super::tree::Tree;
use super::{Loader, Outcome};
use crate::config::cmdline::Cmdline;
use crate::error::{Class, Context as _, Result};
use crate::sys::kmsg::Kmsg;

/// What the kernel starts.
pub const PROGRAM: &str = "/run/ironroot/modprobe";

const SETTING: &str = "/proc/sys/kernel/modprobe";

/// What stood in [`SETTING`] before, for [`stop_serving`], which another process may call.
const BEFORE: &str = "/run/ironroot/modprobe.before";

/// Lets the kernel ask this program for modules. A kernel without modules is fine.
pub fn start_serving() -> Result<()> {
    let Ok(before) = std::fs::read(SETTING) else {
        return Ok(());
    };
    let link = || format!("making {PROGRAM} a link to this program");
    let me = std::fs::read_link("/proc/self/exe").context(Class::Media, link)?;
    if !Path::new(BEFORE).exists() {
        std::fs::write(BEFORE, before).context(Class::Media, || format!("writing {BEFORE}"))?;
    }
    match std::os::unix::fs::symlink(&me, PROGRAM) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        result => result.context(Class::Media, link)?,
    }
    std::fs::write(SETTING, PROGRAM).context(Class::Media, || format!("writing {SETTING}"))
}

/// Gives the kernel back the program that it had before, which the new system has at that place. To be called
/// before the handover; without [`start_serving`] it does nothing.
pub fn stop_serving() {
    if let Ok(before) = std::fs::read(BEFORE) {
        let _ = std::fs::write(SETTING, before);
        let _ = std::fs::remove_file(BEFORE);
        let _ = std::fs::remove_file(PROGRAM);
    }
}

/// Whether the kernel started this process to load a module.
pub fn is_request(argv0: &OsStr) -> bool {
    argv0 == OsStr::new(PROGRAM)
}

/// The whole program when it was started by the kernel; `args` without the program's own name.
pub fn modprobe_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cmdline = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let settings = Settings::of(&Cmdline::parse(&cmdline));
    let Some(tree) = nix::sys::utsname::uname()
        .ok()
        .and_then(|u| Tree::load(Path::new("/"), &u.release().to_string_lossy()))
    else {
        return ExitCode::FAILURE;
    };
    let loader = Loader::new(tree, settings);
    let mut code = ExitCode::SUCCESS;
    for name in names(args) {
        let outcome = answer(&loader, &name);
        for line in &outcome.failed {
            if let Ok(mut kmsg) = Kmsg::open(Path::new("/dev/kmsg"), 4) {
                let _ = kmsg.write_all(format!("ironroot: {line}").as_bytes());
            }
        }
        if !outcome.known || !outcome.failed.is_empty() {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn answer(loader: &Loader, name: &str) -> Outcome {
    if !name.starts_with("symbol:") {
        return loader.request(name);
    }
    // symbol_request(): rare, and its index is the largest; so it is read only now.
    let path = loader.tree().directory().join("modules.symbols");
    let symbols = std::fs::read_to_string(path).unwrap_or_default();
    provider(&symbols, name).map_or_else(Outcome::default, |m| loader.request(m))
}

/// The module that modules.symbols names for `symbol:NAME`.
fn provider<'a>(symbols: &'a str, name: &str) -> Option<&'a str> {
    symbols.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("alias") && words.next() == Some(name))
            .then(|| words.next())
            .flatten()
    })
}

/// The module names among `-q -- NAME`.
fn names(args: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let mut options = true;
    args.into_iter()
        .filter_map(|arg| {
            let arg = arg.to_string_lossy().into_owned();
            if options && arg.starts_with('-') {
                options = arg != "--";
                return None;
            }
            Some(arg)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_way_of_asking() {
        let args = ["-q", "--", "fs-ext4"].map(OsString::from);
        assert_eq!(names(args), ["fs-ext4"]);
        assert_eq!(names(["--", "-odd"].map(OsString::from)), ["-odd"]);
        assert!(is_request(OsStr::new("/run/ironroot/modprobe")));
        assert!(!is_request(OsStr::new("/sbin/modprobe")));
    }

    #[test]
    fn symbols_name_their_module() {
        let symbols = "# Aliases for symbols, used by symbol_request().\n\
                       alias symbol:mlx4_db_free mlx4_core\nalias symbol:nvmf_register_transport nvme_fabrics\n";
        assert_eq!(
            provider(symbols, "symbol:nvmf_register_transport"),
            Some("nvme_fabrics")
        );
        assert_eq!(provider(symbols, "symbol:nothing"), None);
    }
}
