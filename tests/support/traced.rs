//! An installation under strace(1): which writes and flushes it makes, in which order, and how it fares when it is
//! killed before one of them.

use std::process::Command;

use super::loop_device::LoopDevice;
use super::program::Config;

/// A write or a flush.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    /// Offset, length.
    Write(usize, usize),
    Flush,
}

/// How many writes and flushes the main thread makes. strace counts each thread for itself, and which writer
/// gets which piece of the body is chance; so the kills are counted by the thread that makes all the others.
pub fn counts(config: &Config, disk: &LoopDevice) -> [(&'static str, usize); 2] {
    install(config, disk, None);
    let text = std::fs::read_to_string(disk.directory().join("strace")).unwrap();
    let main = text.split_once(' ').unwrap().0;
    let count = |call: &str| {
        let made = |line: &&str| line.starts_with(main) && line.contains(&format!(" {call}("));
        text.lines().filter(made).count()
    };
    let counts = ["pwrite64", "fsync"].map(|call| (call, count(call)));
    assert!(counts.iter().all(|(_, n)| *n >= 5), "{counts:?}\n{text}");
    counts
}

/// Runs an installation, and has it killed when it is about to make the `n`th call of a kind. The calls that it
/// made.
pub fn install(config: &Config, disk: &LoopDevice, kill: Option<(&str, usize)>) -> Vec<Call> {
    let log = disk.directory().join("strace");
    let mut strace = Command::new("strace");
    strace
        .args([
            "-f",
            "-qq",
            "-s",
            "0",
            "-e",
            "signal=none",
            "-e",
            "trace=pwrite64,fsync",
        ])
        .arg("-o")
        .arg(&log);
    if let Some((call, n)) = kill {
        strace.args(["-e", &format!("inject={call}:signal=SIGKILL:when={n}")]);
    }
    let out = strace
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .args(["install", "--config"])
        .arg(config.file())
        .output()
        .expect("strace");
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.success(), kill.is_none(), "{text}");
    if kill.is_some() {
        assert!(!text.contains("FAILED"), "{text}");
    }
    std::fs::read_to_string(log)
        .unwrap()
        .lines()
        .filter_map(|line| {
            let (call, arguments) = line.split_once(' ')?.1.trim().split_once('(')?;
            match call {
                "fsync" => Some(Call::Flush),
                "pwrite64" => {
                    let arguments = arguments.split_once(')')?.0;
                    let mut last = arguments.rsplit(", ");
                    let offset = last.next()?.parse().ok()?;
                    Some(Call::Write(offset, last.next()?.parse().ok()?))
                }
                _ => None,
            }
        })
        .collect()
}
