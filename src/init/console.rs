//! Telling people: a line on every `console=` of the kernel command line, and in the kernel's log.
//!
//! Two rules. A console that nobody reads (a serial line with flow control and nothing plugged in) must not
//! stop the machine: every write is bounded. And no line appears twice on one screen: the kernel prints its
//! log on the same consoles, so the lines in the log get a level that it does not print there (`info` when the
//! kernel is quiet, `debug` otherwise), and where it prints even `debug`, they stay out of the log.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::config::cmdline::Cmdline;
use crate::report::console::Console;
use crate::report::jsonl::JsonLines;
use crate::report::{Reporter, Sink};
use crate::sys::clock::Deadline;
use crate::sys::kmsg::Kmsg;

/// Every event as a JSON line; the new system finds it in /run.
pub const EVENTS: &str = "/run/ironroot/events.jsonl";

/// 4 KiB at 9600 baud take four seconds; a terminal that takes nothing for this long is dead for now.
const PATIENCE: Duration = Duration::from_secs(5);

/// A reporter on the consoles, in the kernel's log and in [`EVENTS`]. PID 1 and the flow each make their own.
pub fn reporter(cmdline: &Cmdline) -> Reporter {
    let mut sinks = vec![Sink::Console(Console::new(outputs(cmdline)))];
    sinks.extend(events());
    Reporter::new(sinks)
}

/// The consoles of the command line but for the last, which is the kernel's /dev/console
/// (Documentation/admin-guide/serial-console.rst): where an initrd's own lines do not come. `None` where there is one.
pub fn beside_the_last(cmdline: &Cmdline) -> Option<Sink> {
    let mut devices = devices(cmdline);
    // The last word counts for the kernel, also where it has been there before.
    let last = cmdline.all("console").last()?;
    let last = Path::new("/dev").join(last.split(',').next()?);
    devices.retain(|device| *device != last);
    if devices.is_empty() {
        return None;
    }
    let mut consoles = Consoles::new(devices);
    // Where none of them is there, the last one has had the line.
    consoles.fallback = Line::new(PathBuf::from("/dev/null"));
    Some(Sink::Console(Console::new(vec![Box::new(consoles)])))
}

/// stderr, with every write bounded where it is a terminal: in an initrd that is a console, and one that takes nothing
/// (Ctrl-S, flow control with nobody there) would stop the work in the middle of a disk. It is opened anew, as whoever
/// gave it to us may have it open too and does not expect writes that do not wait.
pub fn bounded_stderr() -> Box<dyn Write + Send> {
    let stderr = io::stderr();
    if !stderr.is_terminal() {
        return Box::new(stderr);
    }
    let mut line = Line::new(PathBuf::from("/proc/self/fd/2"));
    if !line.put(b"") {
        return Box::new(stderr);
    }
    Box::new(Consoles {
        lines: vec![line],
        fallback: Line::new(PathBuf::from("/dev/null")),
    })
}

/// Every event as a line of [`EVENTS`], where that can be written.
pub fn events() -> Option<Sink> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(EVENTS)
        .ok()?;
    Some(Sink::JsonLines(JsonLines::new(Box::new(file))))
}

/// The consoles of the command line and, where its lines would not show twice, the kernel's log.
pub fn outputs(cmdline: &Cmdline) -> Vec<Box<dyn Write + Send>> {
    let mut outputs: Vec<Box<dyn Write + Send>> = vec![Box::new(Consoles::new(devices(cmdline)))];
    // The kernel drops all but ten lines in five seconds of what programs write, unless told otherwise.
    let _ = std::fs::write("/proc/sys/kernel/printk_devkmsg", "on\n");
    let printk = std::fs::read_to_string("/proc/sys/kernel/printk").unwrap_or_default();
    if let Some(level) = log_level(&printk, cmdline)
        && let Ok(kmsg) = Kmsg::open(Path::new("/dev/kmsg"), level)
    {
        outputs.push(Box::new(kmsg));
    }
    outputs
}

/// The device of each `console=`, in order, each once; /dev/console where there is none.
pub fn devices(cmdline: &Cmdline) -> Vec<PathBuf> {
    let mut devices = Vec::new();
    for value in cmdline.all("console") {
        // `ttyS0,115200n8`, `tty0`, `uart8250,io,0x3f8` (which becomes a ttyS and has no device of its own).
        let name = value.split(',').next().unwrap_or_default();
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if name.is_empty() || !plain {
            continue;
        }
        let device = Path::new("/dev").join(name);
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    if devices.is_empty() {
        devices.push(PathBuf::from("/dev/console"));
    }
    devices
}

/// The level for our lines in the kernel's log such that the kernel does not print them on its consoles; `None`
/// where it prints every level. `printk` is the text of /proc/sys/kernel/printk, whose first number is the
/// level from which on nothing is printed.
fn log_level(printk: &str, cmdline: &Cmdline) -> Option<u8> {
    if cmdline.has("ignore_loglevel") {
        return None;
    }
    let printed_below: u8 = printk.split_whitespace().next()?.parse().ok()?;
    [6, 7].into_iter().find(|level| *level >= printed_below)
}

/// All consoles as one output that never fails: a console may come later (its driver is a module) or come
/// back.
#[derive(Debug)]
struct Consoles {
    lines: Vec<Line>,
    fallback: Line,
}

impl Consoles {
    fn new(devices: Vec<PathBuf>) -> Consoles {
        Consoles {
            lines: devices.into_iter().map(Line::new).collect(),
            fallback: Line::new(PathBuf::from("/dev/console")),
        }
    }
}

impl Write for Consoles {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut opened = false;
        for line in &mut self.lines {
            opened |= line.put(text);
        }
        if !opened {
            self.fallback.put(text);
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One console.
#[derive(Debug)]
struct Line {
    device: PathBuf,
    file: Option<File>,
    /// It took nothing last time: it is given no time until it takes something.
    stuck: bool,
}

impl Line {
    fn new(device: PathBuf) -> Line {
        Line {
            device,
            file: None,
            stuck: false,
        }
    }

    /// Writes what the console takes. Whether there is a console at all.
    fn put(&mut self, text: &[u8]) -> bool {
        if self.file.is_none() {
            self.file = OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
                .open(&self.device)
                .ok();
        }
        let Some(file) = self.file.as_mut() else {
            return false;
        };
        let patience = if self.stuck { Duration::ZERO } else { PATIENCE };
        if let Ok(all) = put_within(file, text, Deadline::after(patience)) {
            self.stuck = !all;
            return true;
        }
        // A port without hardware opens well and says EIO here; a line that was hung up needs opening again.
        self.file = None;
        false
    }
}

/// Whether everything was written before the deadline.
fn put_within(file: &mut File, mut text: &[u8], deadline: Deadline) -> io::Result<bool> {
    while !text.is_empty() {
        match file.write(text) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => text = text.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if deadline.passed() {
                    return Ok(false);
                }
                let timeout =
                    PollTimeout::try_from(deadline.remaining()).unwrap_or(PollTimeout::MAX);
                let mut waiting = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
                match poll(&mut waiting, timeout) {
                    Ok(_) | Err(nix::Error::EINTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::time::Instant;

    fn of(text: &str) -> Vec<String> {
        devices(&Cmdline::parse(text))
            .iter()
            .map(|d| d.display().to_string())
            .collect()
    }

    #[test]
    fn every_console_once_in_order() {
        assert_eq!(
            of("console=tty0 console=ttyS0,115200n8 quiet console=hvc0 console=ttyS0"),
            ["/dev/tty0", "/dev/ttyS0", "/dev/hvc0"]
        );
        assert_eq!(of("console=ttyAMA0"), ["/dev/ttyAMA0"]);
        assert_eq!(of("quiet"), ["/dev/console"]);
        assert_eq!(of("console="), ["/dev/console"]);
        assert_eq!(of("console=../../etc/passwd"), ["/dev/console"]);
    }

    #[test]
    fn the_last_console_is_left_to_the_initrd() {
        let other = |line: &str| {
            let sink = beside_the_last(&Cmdline::parse(line))?;
            Some(format!("{sink:?}"))
        };
        assert!(other("quiet").is_none());
        assert!(other("console=ttyS0,115200").is_none());
        assert!(other("console=ttyS0 console=ttyS0").is_none());
        assert!(other("console=tty0 console=ttyS0").is_some());
        assert!(other("console=ttyS0 console=tty0 console=ttyS0").is_some());
    }

    #[test]
    fn no_line_appears_twice_on_a_console() {
        let plain = Cmdline::parse("");
        assert_eq!(log_level("4\t4\t1\t7\n", &plain), Some(6), "quiet");
        assert_eq!(log_level("7\t4\t1\t7\n", &plain), Some(7), "the default");
        assert_eq!(log_level("8\t4\t1\t7\n", &plain), None, "loglevel=8");
        assert_eq!(log_level("10\t4\t1\t7\n", &plain), None, "debug");
        assert_eq!(log_level("4 4", &Cmdline::parse("ignore_loglevel")), None);
        assert_eq!(log_level("", &plain), None);
    }

    #[test]
    fn a_console_that_nobody_reads_delays_once_and_loses_text_only() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("dead");
        nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // A reader that reads nothing yet.
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&place)
            .unwrap();
        let mut line = Line::new(place);
        let block = vec![b'x'; 1 << 20];
        let start = Instant::now();
        assert!(line.put(&block));
        assert!(line.stuck && start.elapsed() >= PATIENCE);
        let start = Instant::now();
        for _ in 0..50 {
            assert!(line.put(b"more\n"));
        }
        assert!(start.elapsed() < Duration::from_secs(1));
        // It recovers when somebody reads.
        let mut all = vec![0; 1 << 20];
        while reader.read(&mut all).is_ok_and(|n| n > 0) {}
        assert!(line.put(b"alive\n") && !line.stuck);
        let n = reader.read(&mut all).unwrap();
        assert_eq!(&all[..n], b"alive\n");
    }

    #[test]
    fn a_console_may_come_later_and_the_output_never_fails() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("late");
        let mut consoles = Consoles::new(vec![place.clone()]);
        consoles.fallback = Line::new(directory.path().join("neither"));
        consoles.write_all(b"early\n").unwrap();
        File::create(&place).unwrap();
        consoles.write_all(b"late\n").unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"late\n");
    }
}
