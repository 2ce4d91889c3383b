//! The end of this kernel: reboot(2), and the emergency key behind it.

use std::sync::mpsc;
use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot as reboot_2, set_cad_enabled};

/// What the machine does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// Starts again from its firmware.
    Restart,
    /// Goes off.
    PowerOff,
    /// Starts the kernel that [`super::kexec::load`] loaded.
    Kexec,
}

/// Writing back may wait for a disk that never answers; then the machine goes down without it.
const WRITE_BACK: Duration = Duration::from_secs(60);

/// Writes back what is in memory and takes the machine down. Returns only when the kernel refuses, with why.
///
/// # Errors
/// reboot(2)'s own, usually a missing `CAP_SYS_BOOT`.
pub fn go(off: Off) -> std::io::Error {
    write_back();
    let mode = match off {
        Off::Restart => RebootMode::RB_AUTOBOOT,
        Off::PowerOff => RebootMode::RB_POWER_OFF,
        Off::Kexec => RebootMode::RB_KEXEC,
    };
    let error = match reboot_2(mode) {
        Err(errno) => std::io::Error::from(errno),
        Ok(never) => match never {},
    };
    // Documentation/admin-guide/sysrq.rst: `b` restarts at once, `o` powers off; root may always write here.
    let key: &[u8] = match off {
        Off::Restart => b"b",
        Off::PowerOff => b"o",
        // The caller restarts instead.
        Off::Kexec => return error,
    };
    let _ = std::fs::write("/proc/sysrq-trigger", key);
    error
}

/// Writes back what is in memory and unmounts file systems on block devices, for at most [`WRITE_BACK`].
fn write_back() {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || {
        nix::unistd::sync();
        let entries = super::mount::mounted().unwrap_or_default();
        // Major 0 are the file systems without a device: proc, tmpfs and their like.
        for entry in entries.iter().rev().filter(|e| e.dev.0 != 0) {
            let _ = super::mount::detach(&entry.target);
        }
        nix::unistd::sync();
        let _ = done.send(());
    });
    if thread.is_ok() {
        let _ = wait.recv_timeout(WRITE_BACK);
    }
}

/// Ctrl-Alt-Del arrives at PID 1 as SIGINT instead of restarting the machine at once (reboot(2),
/// `LINUX_REBOOT_CMD_CAD_OFF`).
pub fn ctrl_alt_del_as_signal() -> std::io::Result<()> {
    set_cad_enabled(false).map_err(Into::into)
}
