//! Installations that end too early: at each step, at each write, at ten points of a slow download. Each
//! time nothing on the disk boots or all of it is complete, and the same command then finishes the work.
//! Needs root and strace.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use support::disk_image::{MIB, gpt, mbr, sha256};
use support::fault_server::{Act, FaultServer, head};
use support::loop_device::{LoopDevice, PATTERN, tool};
use support::program::{Config, command};
use support::traced::{self, Call};
use support::verdict::{assert_complete_gpt, assert_installed_gpt, same};

/// An image in a file, and the config that installs it.
struct Case {
    image: Vec<u8>,
    path: String,
    disk: LoopDevice,
    /// What the disk is filled with.
    before: u8,
    overwrite: &'static str,
}

impl Case {
    fn new(disk: LoopDevice, before: u8, overwrite: &'static str) -> Case {
        let image = gpt(8);
        let path = disk.directory().join("image");
        std::fs::write(&path, &image).unwrap();
        Case {
            image,
            path: path.to_str().unwrap().to_owned(),
            disk,
            before,
            overwrite,
        }
    }

    fn blank() -> Case {
        Case::new(LoopDevice::blank(12), 0, "IfBlank")
    }

    fn config(&self) -> Config {
        Config::new(&self.path, &sha256(&self.image), &self.disk)
            .with("/disk/overwrite", json!(self.overwrite))
    }

    /// Nothing boots, or all is there.
    #[track_caller]
    fn is_nothing_or_complete(&self) {
        let lba0 = &self.disk.bytes()[..512];
        if lba0.iter().all(|b| *b == self.before) {
            let found = tool("wipefs", &[self.disk.arg()]);
            assert!(!found.contains("PMBR") && !found.contains("dos"), "{found}");
        } else if lba0.iter().any(|b| *b != 0) {
            assert_complete_gpt(&self.disk, &self.image, 512, self.before);
        }
    }

    /// The same config is accepted as it is and finishes what was begun.
    #[track_caller]
    fn the_same_again_completes_it(&self) {
        self.config().plan().succeeded();
        self.config().install(&[]).succeeded();
        assert_complete_gpt(&self.disk, &self.image, 512, self.before);
    }
}

#[test]
fn stopped_after_any_step() {
    for step in 0..=8 {
        let case = if step % 2 == 0 {
            Case::blank()
        } else {
            Case::new(LoopDevice::patterned(12), PATTERN, "Always")
        };
        println!("after {step} steps");
        let ended = case.config().install(&["--stop-after", &step.to_string()]);
        let complete = step >= 6;
        if step < 8 {
            ended.failed_with(70, &["stopped before step"]);
        }
        let now = case.disk.bytes();
        if step < 3 {
            same(
                &now,
                &vec![case.before; now.len()],
                "before the first write",
            );
        } else if complete {
            assert_complete_gpt(&case.disk, &case.image, 512, case.before);
        } else if step > 3 {
            same(&now[..MIB - 4096], &vec![0; MIB - 4096], "the head");
        }
        case.is_nothing_or_complete();
        case.the_same_again_completes_it();
    }
}

#[test]
fn a_reinstallation_stopped_after_any_step() {
    let mut case = Case::blank();
    case.config().install(&[]).succeeded();
    case.overwrite = "IfOurs";
    for step in 0..=8 {
        println!("after {step} steps");
        let raised = case.config().with("/metadata/generation", json!(step + 2));
        let _ = raised.install(&["--stop-after", &step.to_string()]);
        let now = case.disk.bytes();
        match step {
            // The old system, whole; from the mark on it belongs to the new installation.
            0..=3 | 6.. => {
                assert_complete_or_marked(&case, &now);
            }
            _ => same(&now[..MIB - 4096], &vec![0; MIB - 4096], "the head"),
        }
        // The next round starts from a whole system.
        raised.plan().succeeded();
        raised.install(&[]).succeeded();
        assert_installed_gpt(&case.disk, &case.image, 512, 0);
    }
}

#[track_caller]
fn assert_complete_or_marked(case: &Case, now: &[u8]) {
    same(
        &now[MIB..8 * MIB - 33 * 512],
        &case.image[MIB..8 * MIB - 33 * 512],
        "body",
    );
    let text = tool("sgdisk", &["--verify", case.disk.arg()]);
    assert!(text.contains("No problems found"), "{text}");
}

/// How many writes and flushes the main thread makes.
fn counts(case: &Case) -> [(&'static str, usize); 2] {
    traced::counts(&case.config(), &case.disk)
}

/// Runs an installation, and has it killed when it is about to make the `n`th call of a kind.
fn traced(case: &Case, kill: Option<(&str, usize)>) -> Vec<Call> {
    traced::install(&case.config(), &case.disk, kill)
}

#[test]
fn the_order_of_writes_and_flushes() {
    use Call::{Flush, Write};
    let case = Case::blank();
    let calls = traced(&case, None);
    println!("{calls:?}");
    assert_installed_gpt(&case.disk, &case.image, 512, 0);
    let tail = 12 * MIB - 33 * 512;
    // The mark alone, then LBA 0 with all of the old head, each on the medium before what follows.
    let area = [
        Write(MIB - 4096, 512),
        Flush,
        Write(MIB - 4096 + 512, 4096 - 512),
        Flush,
        Write(MIB - 4096, 512),
        Flush,
    ];
    assert_eq!(calls[..6], area);
    assert_eq!(calls[6..8], [Write(0, MIB - 4096), Flush]);
    // The image's own backup goes; then the backup GPT, the primary with the record, LBA 0, each on the medium before what follows.
    let end = [
        Write(8 * MIB - 33 * 512, 33 * 512),
        Write(tail, 33 * 512),
        Flush,
        Write(512, MIB - 512 - 4096),
        Write(MIB - 4096, 512),
        Flush,
        Write(MIB - 4096 + 512, 4096 - 512),
        Flush,
        Write(MIB - 4096, 512),
        Flush,
        Write(0, 512),
        Flush,
        Write(MIB - 4096, 4096),
        Flush,
    ];
    let (middle, commit) = calls[8..].split_at(calls.len() - 8 - end.len());
    assert_eq!(commit, end);
    assert_eq!(middle.last(), Some(&Flush));
    // Of the old content the end, with the backup of its table, goes when all the rest is gone.
    let mut cleared = (0..middle.len()).filter(|n| middle[*n] == Flush);
    let (rest, last) = (cleared.next().unwrap(), cleared.next().unwrap());
    let at_the_end = |c: &Call| matches!(c, Write(at, _) if *at >= 10 * MIB);
    assert!(!middle[..rest].iter().any(at_the_end) && middle[rest..last].iter().any(at_the_end));
    for call in &middle[last..] {
        if let Write(at, length) = call {
            assert!(
                *at >= MIB && at + length <= tail,
                "{call:?} before the verdict"
            );
        }
    }
}

#[test]
fn killed_before_any_write_or_flush() {
    // On a disk that is larger, and on one of the image's very size.
    for mib in [12, 8] {
        let fresh = || Case::new(LoopDevice::blank(mib), 0, "IfBlank");
        for (call, count) in counts(&fresh()) {
            for n in 1..=count {
                println!("{call} {n} of {count} on {mib} MiB");
                let case = fresh();
                traced(&case, Some((call, n)));
                case.is_nothing_or_complete();
                case.the_same_again_completes_it();
            }
        }
    }
}

/// The table of the old system leads to the places where a probe would still find its partitions. Whenever the erasing
/// of it ends, the next run finds them.
#[test]
fn nothing_old_shows_after_an_erasing_that_was_killed_before_any_write_or_flush() {
    let old = |disk: &LoopDevice| {
        let start = MIB * 12;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(disk.path())
            .unwrap();
        let old = vec![PATTERN; 8 * MIB];
        std::os::unix::fs::FileExt::write_all_at(&file, &old, start as u64).unwrap();
        tool("sgdisk", &["-n1:12M:+8M", disk.arg()]);
    };
    let fresh = || {
        let disk = LoopDevice::blank(24);
        old(&disk);
        Case::new(disk, 0, "Always")
    };
    let is_free = |case: &Case| {
        let now = case.disk.bytes();
        let ends = [12 * MIB..13 * MIB, 18 * MIB..20 * MIB];
        ends.into_iter().all(|end| now[end].iter().all(|b| *b == 0))
    };
    let mut cut_short = 0;
    for (call, count) in counts(&fresh()) {
        // The mark and the erasing; what comes then is another test's.
        for n in 1..=count.min(16) {
            println!("{call} {n} of {count}");
            let case = fresh();
            traced(&case, Some((call, n)));
            cut_short += usize::from(!is_free(&case) && case.disk.bytes()[..512] == [0; 512]);
            case.config().install(&[]).succeeded();
            assert_complete_or_marked(&case, &case.disk.bytes());
            assert!(is_free(&case), "{call} {n}");
        }
    }
    assert!(cut_short > 2, "{cut_short}");
}

#[test]
fn an_mbr_installation_killed_before_any_write_or_flush() {
    let image = mbr(4, 3);
    let fresh = || {
        let mut case = Case::blank();
        case.image.clone_from(&image);
        std::fs::write(&case.path, &image).unwrap();
        case
    };
    let complete = |case: &Case| {
        let now = case.disk.bytes();
        same(&now[..MIB - 4096], &image[..MIB - 4096], "head");
        same(&now[MIB..image.len()], &image[MIB..], "body");
    };
    for (call, count) in counts(&fresh()) {
        for n in 1..=count {
            println!("{call} {n} of {count}");
            let case = fresh();
            traced(&case, Some((call, n)));
            if case.disk.bytes()[..512].iter().any(|b| *b != 0) {
                complete(&case);
            }
            case.config().plan().succeeded();
            case.config().install(&[]).succeeded();
            complete(&case);
        }
    }
}

/// When a slow installation is killed.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// At the beginning of a step.
    Step(&'static str),
    /// When so many MiB have come.
    Received(u64),
}

#[test]
fn killed_at_ten_points_of_a_slow_download() {
    use Point::{Received, Step};
    // Eight MiB at 16 MiB/s.
    let image = gpt(8);
    let data = image.clone();
    let server = FaultServer::start(move |_| {
        let length = data.len().to_string();
        let mut acts = vec![head("200 OK", &[("Content-Length", &length)])];
        for piece in data.chunks(256 << 10) {
            acts.push(Act::Send(piece.to_vec()));
            acts.push(Act::Sleep(Duration::from_millis(16)));
        }
        acts
    });
    for point in [
        Step("lockDisk"),
        Step("openImage"),
        Step("writeMark"),
        Step("clearDisk"),
        Step("writeBody"),
        Received(5),
        Received(7),
        Received(8),
        Step("commitHead"),
        Step("rereadPartitions"),
    ] {
        println!("{point:?}");
        let case = Case::blank();
        let config = Config::new(&server.url("/image"), &sha256(&image), &case.disk);
        let file = config.file();
        let mut child = command(&["--json", "install", "--config", file.to_str().unwrap()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let reached = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .any(|line| {
                let event: Value = serde_json::from_str(&line).unwrap();
                match point {
                    Step(step) => event["event"] == "stepStarted" && event["step"] == step,
                    Received(mib) => event["received"].as_u64().is_some_and(|n| n >= mib << 20),
                }
            });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reached, "{point:?}");
        case.is_nothing_or_complete();
        case.the_same_again_completes_it();
    }
}
