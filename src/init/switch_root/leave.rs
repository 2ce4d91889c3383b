//! Letting go of the initrd: no process runs in it any more, and nothing stays mounted below it where nobody
//! could reach it again.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::root::API;
use crate::report::Reporter;
use crate::sys::mount::{self, Entry};

/// A helper that is asked to end has this long to do so.
const ASKED: Duration = Duration::from_secs(5);

/// What SIGKILL does not end in this time hangs in the kernel.
const KILLED: Duration = Duration::from_secs(5);

/// Ends every other process and reaps it. Only for PID 1: it is the parent of all that is left.
pub fn end_children(reporter: &Reporter) {
    if !crate::init::is_pid_1() {
        return;
    }
    for (signal, patience) in [(Signal::SIGTERM, ASKED), (Signal::SIGKILL, KILLED)] {
        // -1: every process but this one (kill(2)).
        let everybody = Pid::from_raw(-1);
        let _ = kill(everybody, signal);
        // A stopped process does not hear SIGTERM.
        let _ = kill(everybody, Signal::SIGCONT);
        if reap_all(patience) {
            return;
        }
    }
    reporter.warn("a process of the initrd does not end: it hangs in the kernel, and stays");
}

/// Whether no child is left.
fn reap_all(patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(nix::Error::ECHILD) => return true,
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(10)),
            Ok(_) | Err(_) => {}
        }
        if began.elapsed() >= patience {
            return false;
        }
    }
}

/// Unmounts what is neither a part of the new system nor moves there: it would stay mounted, invisible, and
/// keep its disk busy for ever.
pub fn unmount_others(new_root: &Path, mounted: &[Entry], reporter: &Reporter) {
    for entry in others(new_root, mounted) {
        if mount::detach(&entry.target).is_ok() {
            continue;
        }
        let target = entry.target.display();
        match mount::detach_lazily(&entry.target) {
            Ok(()) => reporter.warn(format!(
                "{target} ({}) is in use: it goes when its last user does",
                entry.kind
            )),
            Err(failure) => reporter.warn(crate::error::chain(&failure)),
        }
    }
}

/// The mounts to let go of, those on top first.
fn others<'a>(new_root: &Path, mounted: &'a [Entry]) -> Vec<&'a Entry> {
    let stays = |target: &Path| {
        // What the new root is mounted on is in here too.
        new_root.starts_with(target)
            || target.starts_with(new_root)
            || API
                .iter()
                .any(|name| target.starts_with(Path::new("/").join(name)))
    };
    mounted
        .iter()
        .rev()
        .filter(|entry| !stays(&entry.target))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_new_system_has_no_use_for_is_unmounted_from_the_top_down() {
        let table = "\
1 1 0:2 / / rw - rootfs rootfs rw\n\
2 1 0:3 / /proc rw - proc proc rw\n\
3 1 0:4 / /dev rw - devtmpfs devtmpfs rw\n\
4 3 0:5 / /dev/pts rw - devpts devpts rw\n\
5 1 0:6 / /run rw - tmpfs tmpfs rw\n\
6 5 0:7 / /run/ironroot/lower ro - squashfs /dev/loop0 ro\n\
7 1 8:1 / /config rw - vfat /dev/sda1 rw\n\
8 7 0:8 / /config/deep rw - tmpfs tmpfs rw\n\
9 1 0:9 / /.new rw - overlay ironroot rw\n\
10 9 8:2 / /.new/var rw - ext4 /dev/sda2 rw\n\
11 1 0:10 / /.newer rw - tmpfs tmpfs rw\n\
12 1 0:11 / /running rw - tmpfs tmpfs rw\n";
        let mounted = mount::parse_mountinfo(table);
        let found: Vec<_> = others(Path::new("/.new"), &mounted)
            .iter()
            .map(|e| e.target.display().to_string())
            .collect();
        assert_eq!(found, ["/running", "/.newer", "/config/deep", "/config"]);
    }
}
