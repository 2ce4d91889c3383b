//! The helper's PID 1 ends it (a time-out of its unit, a shutdown, a hand at the emergency shell): a reason on the
//! console, a code, and nothing half-made is left.
//!
//! The work goes on in other threads while a signal is heard, and could mount once more what was just taken away. So
//! the program starts itself anew in its own process: with execve(2) every other thread is gone, every file is closed,
//! and whoever waits for the process still does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use crate::error::{Class, Failure};
use crate::init::mounts;
use crate::report::{Event, Reporter};
use crate::sys::dm;
use crate::sys::mount::{self, Entry};

/// The hidden subcommand that takes away what a run has made.
const CLEAN_UP: &str = "clean-up";

/// A program that was killed is gone within moments, unless it hangs in the kernel.
const ROUNDS: u32 = 20;
const ROUND: Duration = Duration::from_millis(50);

/// How long the last words wait for whoever is writing to the console at that moment: one that takes no more bytes
/// must not keep the program.
const CONSOLE: Duration = Duration::from_secs(2);

/// How the names of this program's mapped devices begin.
const MAPPINGS: &str = "ironroot-";

/// What a run could have made, and what of that was there before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(super) struct Before {
    /// Where the root was to be
    sysroot: PathBuf,
    /// A mount that was there before, by its id
    #[arg(long = "mount", value_name = "ID")]
    mounts: Vec<u64>,
    /// What was mounted before is not known, so that no mount is taken away
    #[arg(long)]
    mounts_unknown: bool,
    /// A mapped device that was there before, by its name
    #[arg(long = "mapping", value_name = "NAME")]
    mappings: Vec<String>,
}

impl Before {
    /// Looks at what is there. `sysroot` is as the kernel names it: absolute and without links.
    fn look(sysroot: &Path, reporter: &Reporter) -> Before {
        let mut before = Before {
            sysroot: sysroot.to_owned(),
            ..Before::default()
        };
        match mount::mounted() {
            Ok(mounts) => {
                before.mounts = before.new_mounts(&mounts).map(|m| m.id).collect();
            }
            Err(error) => {
                reporter.warn(format!(
                    "/proc/thread-self/mountinfo cannot be read: {error}; if this run is ended, its mounts stay, as nobody \
                     can tell them from those that were there before: mount proc at /proc"
                ));
                before.mounts_unknown = true;
            }
        }
        before.mappings = mappings(Path::new("/"));
        before
    }

    /// The same as arguments of [`CLEAN_UP`].
    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec![CLEAN_UP.into()];
        if self.mounts_unknown {
            all.push("--mounts-unknown".into());
        }
        for id in &self.mounts {
            all.extend(["--mount".into(), id.to_string().into()]);
        }
        for name in &self.mappings {
            // A name may begin with a dash elsewhere, not here: they begin with ours.
            all.extend(["--mapping".into(), name.into()]);
        }
        all.extend(["--".into(), self.sysroot.clone().into()]);
        all
    }

    /// What the run has mounted, the newest first.
    fn new_mounts<'a>(&'a self, now: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
        let old: BTreeSet<u64> = self.mounts.iter().copied().collect();
        now.iter().rev().filter(move |entry| {
            let ours =
                entry.target.starts_with(&self.sysroot) || entry.target.starts_with(mounts::RUN);
            ours && !old.contains(&entry.id) && !self.mounts_unknown
        })
    }

    /// Ends the programs that the run has started, and takes its mounts and mapped devices away; with the last who
    /// has it open each loop device goes.
    fn clean_up(&self) {
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
        for entry in self.new_mounts(&mount::mounted().unwrap_or_default()) {
            let _ = mount::detach_lazily(&entry.target);
        }
        for name in mappings(Path::new("/")) {
            if !self.mappings.contains(&name) {
                dm::remove_later(&name);
            }
        }
    }
}

/// The names of this program's mapped devices (Documentation/ABI/testing/sysfs-block-dm).
fn mappings(root: &Path) -> Vec<String> {
    let Ok(devices) = std::fs::read_dir(root.join("sys/block")) else {
        return vec![];
    };
    let mut names: Vec<String> = devices
        .filter_map(|device| std::fs::read_to_string(device.ok()?.path().join("dm/name")).ok())
        .map(|name| name.trim_end().to_owned())
        .filter(|name| name.starts_with(MAPPINGS))
        .collect();
    names.sort();
    names
}

/// Hears SIGTERM and SIGINT from now on. To be called before any other thread starts: they inherit that the signals
/// are blocked. `sysroot` is absolute and without links.
pub(super) fn with_reason(sysroot: &Path, reporter: &Reporter) {
    if let Err(error) = signals().thread_block() {
        reporter.warn(format!("signals cannot be heard: {error}"));
        return;
    }
    let (before, reporter) = (Before::look(sysroot, reporter), reporter.clone());
    let thread = std::thread::Builder::new().spawn(move || {
        let Ok(signal) = signals().wait() else { return };
        let failure = Failure::new(Class::Handover, format!("ended by {signal} while at work"))
            .hint("the initrd's PID 1 ended it: see its log for why (a time-out of the unit, a shutdown)");
        // Who is at work says nothing more, and is not cut off in the middle of a line.
        let _alone = reporter.emit_last(Event::failed(&failure), CONSOLE);
        // Comes back only where it does not work, as where the program's own file cannot be read any more.
        let error = Command::new("/proc/self/exe")
            .arg0("ironroot")
            .args(before.arguments())
            .stdin(Stdio::null())
            .exec();
        log::warn!("what was at work may leave something behind: {error}");
        before.clean_up();
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
pub(super) fn main(before: &Before) -> ExitCode {
    // Whoever sends the signal again gets the same end.
    let _ = signals().thread_block();
    if before.sysroot.is_absolute() && before.sysroot != Path::new("/") {
        before.clean_up();
    }
    ExitCode::from(code())
}

/// What this process has started and not reaped yet (Documentation/filesystems/proc.rst, `children`); nothing where the
/// kernel does not tell.
fn children() -> Vec<Pid> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|pid| Some(Pid::from_raw(pid.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        before: Before,
    }

    const TABLE: &str = "\
21 1 0:2 / / rw - rootfs rootfs rw
30 21 0:20 / /run rw - tmpfs run rw
31 30 0:21 / /run/ironroot/image rw - tmpfs old rw
40 21 0:22 / /sysroot rw - tmpfs root rw
41 40 0:23 / /sysroot/usr rw - tmpfs usr rw
42 21 0:24 / /sysroot2 rw - tmpfs other rw
43 30 0:25 / /run/ironroot/scratch rw - tmpfs new rw
";

    #[test]
    fn only_what_came_later_is_taken_away_and_the_newest_first() {
        let before = Before {
            sysroot: "/sysroot".into(),
            mounts: vec![31, 21],
            ..Before::default()
        };
        let now = mount::parse_mountinfo(TABLE);
        let ids: Vec<u64> = before.new_mounts(&now).map(|entry| entry.id).collect();
        assert_eq!(ids, [43, 41, 40]);
        let unknown = Before {
            mounts_unknown: true,
            ..before
        };
        assert_eq!(unknown.new_mounts(&now).count(), 0);
    }

    #[test]
    fn what_was_there_before_is_handed_over_as_arguments() {
        for sysroot in ["/sysroot", "/a -b", "/--mount"] {
            let before = Before {
                sysroot: sysroot.into(),
                mounts: vec![1, 4_294_967_296],
                mounts_unknown: sysroot == "/sysroot",
                mappings: vec!["ironroot-state-0".into(), "ironroot-a b".into()],
            };
            let read = Line::try_parse_from(before.arguments()).unwrap().before;
            assert_eq!(read, before);
        }
    }

    #[test]
    fn mapped_devices_are_known_by_their_names() {
        let root = tempfile::tempdir().unwrap();
        for (device, name) in [
            ("dm-0", "ironroot-state-0\n"),
            ("dm-1", "vg-root\n"),
            ("dm-2", "ironroot-image\n"),
        ] {
            let folder = root.path().join("sys/block").join(device).join("dm");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("name"), name).unwrap();
        }
        std::fs::create_dir_all(root.path().join("sys/block/sda")).unwrap();
        assert_eq!(
            mappings(root.path()),
            ["ironroot-image", "ironroot-state-0"]
        );
        assert!(mappings(&root.path().join("none")).is_empty());
    }
}
