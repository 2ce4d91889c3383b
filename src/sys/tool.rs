//! The closed list of outside programs, and the one way to run them: bounded in time, with what they said
//! in the error. `ironroot tools` prints the list; initrd builders embed exactly these.

use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use super::clock::Deadline;
use crate::error::{Class, Context as _, Failure, Result, printable};

/// A program that ironroot may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tool {
    /// Makes an ext4 file system.
    Mke2fs,
    /// Checks an ext4 file system.
    E2fsck,
    /// Grows an ext4 file system.
    Resize2fs,
    /// Makes an xfs file system.
    MkfsXfs,
    /// Makes a FAT file system.
    MkfsVfat,
    /// Checks a FAT file system.
    FsckVfat,
    /// Opens and makes encrypted devices.
    Cryptsetup,
}

/// Where programs are, in the order of a search; the initrd's links make most of them one.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

impl Tool {
    /// Every program of the list.
    pub const ALL: [Tool; 7] = [
        Tool::Mke2fs,
        Tool::E2fsck,
        Tool::Resize2fs,
        Tool::MkfsXfs,
        Tool::MkfsVfat,
        Tool::FsckVfat,
        Tool::Cryptsetup,
    ];

    /// The names under which the program is installed, the best first.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            // Not mkfs.ext4: under that name the program takes other defaults.
            Tool::Mke2fs => &["mke2fs"],
            Tool::E2fsck => &["e2fsck"],
            Tool::Resize2fs => &["resize2fs"],
            Tool::MkfsXfs => &["mkfs.xfs"],
            Tool::MkfsVfat => &["mkfs.vfat", "mkfs.fat"],
            Tool::FsckVfat => &["fsck.vfat", "fsck.fat"],
            Tool::Cryptsetup => &["cryptsetup"],
        }
    }

    /// What it is needed for.
    pub const fn purpose(self) -> &'static str {
        match self {
            Tool::Mke2fs => "makes ext4 file systems on partitions that the boot config asks for",
            Tool::E2fsck => "checks an ext4 file system before it is mounted or grows",
            Tool::Resize2fs => "grows an ext4 file system to its partition",
            Tool::MkfsXfs => "makes xfs file systems that the boot config asks for",
            Tool::MkfsVfat => "makes FAT file systems, such as the EFI system partition's",
            Tool::Cryptsetup => "opens encrypted sources of preserved paths",
            Tool::FsckVfat => "checks a FAT file system before it is mounted",
        }
    }

    /// The Debian package it comes in.
    pub const fn package(self) -> &'static str {
        match self {
            Tool::Mke2fs | Tool::E2fsck | Tool::Resize2fs => "e2fsprogs",
            Tool::MkfsXfs => "xfsprogs",
            Tool::MkfsVfat | Tool::FsckVfat => "dosfstools",
            Tool::Cryptsetup => "cryptsetup-bin",
        }
    }

    /// Where the program is on this system; `None` where it is not.
    pub fn find(self) -> Option<PathBuf> {
        self.names()
            .iter()
            .flat_map(|name| DIRECTORIES.map(|dir| PathBuf::from(dir).join(name)))
            .find(|path| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok())
    }

    /// Where the program is, or the failure that says which package has it.
    ///
    /// # Errors
    /// Class config when it is not installed.
    pub fn require(self) -> Result<PathBuf> {
        self.find().ok_or_else(|| {
            Failure::new(
                Class::Config,
                format!("{self} is needed and not installed: it {}", self.purpose()),
            )
            .hint(format!(
                "add the programs that `ironroot tools` prints to the initrd ({self} is in Debian's {})",
                self.package()
            ))
        })
    }

    const fn name(self) -> &'static str {
        match self.names().first() {
            Some(name) => name,
            None => "",
        }
    }
}

impl std::fmt::Display for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a program said and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// The first 64 KiB of its standard output.
    pub stdout: String,
    /// The last KiB of its standard error.
    pub stderr: String,
}

/// Runs `tool` and wants exit code 0.
///
/// # Errors
/// Class media when it failed, was ended by a signal or did not end within `timeout`; class config when it is
/// not installed.
pub fn run(tool: Tool, args: &[&str], timeout: Duration) -> Result<Output> {
    run_expecting(tool, args, timeout, &[0])
}

/// Runs `tool` and takes any exit code of `good` for success: e2fsck says 1 for "errors corrected".
///
/// # Errors
/// As [`run`].
pub fn run_expecting(tool: Tool, args: &[&str], timeout: Duration, good: &[i32]) -> Result<Output> {
    let path = tool.require()?;
    let call = printable(&format!("{} {}", path.display(), args.join(" ")));
    let mut command = Command::new(&path);
    command
        .args(args)
        .env_clear()
        .env("PATH", DIRECTORIES.join(":"))
        .env("LC_ALL", "C")
        // Without the rules that answer it, libdevmapper would wait for udev for ever; the node is found by sysfs.
        .env("DM_DISABLE_UDEV", "1");
    let (output, status) = bounded(command, timeout, &call)?;
    if output.code.is_some_and(|code| good.contains(&code)) {
        return Ok(output);
    }
    let said = match output.stderr.trim() {
        "" => output.stdout.trim(),
        text => text,
    };
    let said: Vec<&str> = tail(said, 300)
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let ended = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    };
    Err(Failure::new(
        Class::Media,
        format!("{call} {ended}: {}", printable(&said.join("; "))),
    ))
}

/// What was said last is why it failed.
fn tail(text: &str, limit: usize) -> &str {
    let from = text.len().saturating_sub(limit);
    let from = (from..=text.len()).find(|i| text.is_char_boundary(*i));
    from.and_then(|i| text.get(i..)).unwrap_or(text)
}

/// Runs `command` for at most `timeout`, and keeps what it said within bounds.
pub(super) fn bounded(
    mut command: Command,
    timeout: Duration,
    call: &str,
) -> Result<(Output, ExitStatus)> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: whatever the program starts dies with it.
        .process_group(0);
    // The helper listens to signals that it blocks (cli/ended.rs); a program that is started would never get them.
    // SAFETY: between fork and exec this makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?));
    }
    let mut child = command
        .spawn()
        .context(Class::Media, || format!("starting {call}"))?;
    let stdout = child
        .stdout
        .take()
        .map(|s| collect(s, Keep::First(64 << 10)));
    let stderr = child.stderr.take().map(|s| collect(s, Keep::Last(1 << 10)));
    let deadline = Deadline::after(timeout);
    let status = wait(&mut child, deadline, call)?;
    // What it left running would hold its files, and the pipes.
    kill_group(&child);
    // A grandchild that keeps the pipe open must not hold us.
    let grace = Duration::from_secs(2);
    let text = |from: Option<Receiver<Vec<u8>>>| {
        from.and_then(|r| r.recv_timeout(grace).ok())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    };
    let output = Output {
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    };
    Ok((output, status))
}

/// Kills whatever is left of the child's process group; that there is nothing is no fault.
fn kill_group(child: &Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

fn wait(child: &mut Child, deadline: Deadline, call: &str) -> Result<ExitStatus> {
    let mut pause = Duration::from_millis(2);
    loop {
        let ended = child
            .try_wait()
            .context(Class::Media, || format!("waiting for {call}"))?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if deadline.passed() {
            kill_group(child);
            let _ = child.kill();
            // A process in the middle of disk I/O dies only when that ends: reaped later by whoever can.
            let _ = child.try_wait();
            return Err(Failure::new(
                Class::Media,
                format!("{call} did not end in time and was killed"),
            ));
        }
        std::thread::sleep(pause.min(deadline.remaining()));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

enum Keep {
    First(usize),
    Last(usize),
}

/// Reads to the end in a thread of its own, so that a full pipe never stops the program.
fn collect(mut from: impl Read + Send + 'static, keep: Keep) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    let thread = std::thread::Builder::new().spawn(move || {
        let mut kept = Vec::new();
        let mut buffer = [0u8; 4096];
        while let Ok(n) = from.read(&mut buffer) {
            let Some(new) = buffer.get(..n).filter(|b| !b.is_empty()) else {
                break;
            };
            match keep {
                Keep::First(limit) => {
                    let room = limit.saturating_sub(kept.len());
                    kept.extend(new.iter().take(room));
                }
                Keep::Last(limit) => {
                    kept.extend_from_slice(new);
                    let surplus = kept.len().saturating_sub(limit);
                    kept.drain(..surplus);
                }
            }
        }
        let _ = send.send(kept);
    });
    // Without a thread the pipe is closed and nothing is said; the exit code still counts.
    drop(thread);
    receive
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str, timeout: Duration) -> Result<(Output, ExitStatus)> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        bounded(command, timeout, "sh")
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let start = Instant::now();
        let failure = shell("sleep 60 & sleep 60", Duration::from_millis(200)).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(failure.class(), Class::Media);
        assert!(failure.to_string().contains("did not end in time"));
    }

    #[test]
    fn what_a_program_leaves_running_is_killed() {
        let start = Instant::now();
        let (output, _) = shell("sleep 60 & echo $!", Duration::from_secs(20)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
        let process = format!("/proc/{}/stat", output.stdout.trim());
        // Whoever reaps it may not have done so yet.
        let gone = || std::fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z "));
        assert!((0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            gone()
        }));
    }

    #[test]
    fn much_output_is_bounded_and_the_end_of_stderr_is_kept() {
        let (output, status) = shell(
            "i=0; while [ $i -lt 9000 ]; do echo 0123456789; echo e$i >&2; i=$((i+1)); done; exit 3",
            Duration::from_secs(20),
        )
        .unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(output.stdout.len(), 64 << 10);
        assert!(output.stderr.len() <= 1 << 10);
        assert!(output.stderr.ends_with("e8999\n"));
    }

    #[test]
    fn a_failed_tool_says_what_it_said() {
        let failure = run(
            Tool::Mke2fs,
            &["-t", "ext4", "/nonexistent/image"],
            Duration::from_secs(20),
        )
        .unwrap_err();
        let text = failure.to_string();
        assert!(
            text.contains("mke2fs -t ext4 /nonexistent/image ended with code"),
            "{text}"
        );
        assert!(text.contains("/nonexistent/image does not exist"), "{text}");
    }

    #[test]
    fn the_end_of_a_text_respects_characters() {
        assert_eq!(tail("äöü", 3), "ü");
        assert_eq!(tail("abc", 10), "abc");
    }

    #[test]
    fn every_tool_says_what_it_is_for() {
        for tool in Tool::ALL {
            assert!(!tool.purpose().is_empty() && !tool.to_string().is_empty());
        }
    }
}
