//! The check of a file system before it is mounted: what can be repaired without a decision is, and what could not be
//! looked at is not called damaged.

use std::path::Path;
use std::time::Duration;

use super::patience;
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::plan::preserve::SourceDevice;
use crate::report::Reporter;
use crate::sys::tool::{self, Output, Tool};

/// A check after a power cut replays a journal; a full one reads all metadata.
const CHECK: Duration = Duration::from_secs(4 * 60 * 60);

/// e2fsck(8), "EXIT CODE": a sum of these, and of 8 operational error, 16 usage, 32 cancelled, 128 library.
mod e2fsck {
    /// Errors left uncorrected.
    pub const LEFT: i32 = 4;
    /// Codes without a bit that says that the check itself failed. 2 is for a file system that is mounted.
    pub const CHECKED: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Corrected,
    Damaged,
}

/// Repairs what can be repaired without a decision. xfs, btrfs and f2fs replay their logs when they are mounted.
pub fn check(device: &SourceDevice, reporter: &Reporter) -> Result<()> {
    let path = device.path.to_string_lossy();
    let run = |tool: Tool, args: &[&str], good: &[i32]| {
        patience::telling(
            &format!("{tool} of {device}"),
            || patience::at_most(CHECK),
            reporter,
            || tool::run_expecting(tool, args, CHECK, good),
        )
        .map_err(|failure| {
            let outer = Failure::new(
                Class::Preserve,
                format!("the {} on {device} could not be checked", device.filesystem),
            );
            let hint = if failure.next() == failure.class().advice() {
                format!("run `{tool}` on a running system, in a version that knows this file system; nothing was changed here")
            } else {
                failure.next().to_owned()
            };
            outer.caused_by(failure).hint(hint)
        })
    };
    let (tool, output, verdict) = match device.filesystem.as_str() {
        "ext4" => {
            let output = run(Tool::E2fsck, &["-p", &path], &e2fsck::CHECKED)?;
            let verdict = of_e2fsck(output.code);
            (Tool::E2fsck, output, verdict)
        }
        "vfat" => {
            let output = run(Tool::FsckVfat, &["-a", &path], &[0, 1])?;
            if output.code == Some(0) {
                (Tool::FsckVfat, output, Verdict::Clean)
            } else {
                // fsck.fat(8): 1 is for errors that were corrected, for those that were not, and for giving up.
                let again = run(Tool::FsckVfat, &["-n", &path], &[0, 1])?;
                if again.code == Some(0) {
                    (Tool::FsckVfat, output, Verdict::Corrected)
                } else {
                    (Tool::FsckVfat, again, Verdict::Damaged)
                }
            }
        }
        _ => return Ok(()),
    };
    match verdict {
        Verdict::Clean => Ok(()),
        Verdict::Corrected => {
            reporter.warn(format!(
                "the {} on {device} had errors, which were corrected",
                device.filesystem
            ));
            Ok(())
        }
        Verdict::Damaged => Err(damaged(device, tool, &output)),
    }
}

/// Looks at an ext4 that says itself that it has errors, on `path`, which shows `device`, without a change.
///
/// # Errors
/// Class preserve where errors are found: which of them need a decision, only a repair tells.
pub fn look(device: &SourceDevice, path: &Path, reporter: &Reporter) -> Result<()> {
    let path = path.to_string_lossy();
    let output = patience::telling(
        &format!("{} of {device}", Tool::E2fsck),
        || patience::at_most(CHECK),
        reporter,
        || tool::run_expecting(Tool::E2fsck, &["-n", &path], CHECK, &e2fsck::CHECKED),
    )
    .context(Class::Preserve, || {
        format!("the {} on {device} could not be checked", device.filesystem)
    })?;
    match of_e2fsck(output.code) {
        Verdict::Clean | Verdict::Corrected => Ok(()),
        Verdict::Damaged => Err(said(
            Failure::new(
                Class::Preserve,
                format!("the {} on {device} has errors", device.filesystem),
            ),
            Tool::E2fsck,
            &output,
        )
        .hint("start the system that is still there, which repairs what needs no decision, or run `e2fsck -p` on a running system; then try again")),
    }
}

fn of_e2fsck(code: Option<i32>) -> Verdict {
    match code {
        Some(0) => Verdict::Clean,
        Some(code) if code & e2fsck::LEFT == 0 => Verdict::Corrected,
        _ => Verdict::Damaged,
    }
}

fn damaged(device: &SourceDevice, tool: Tool, output: &Output) -> Failure {
    let failure = Failure::new(
        Class::Preserve,
        format!(
            "the {} on {device} is damaged and cannot be repaired without a decision",
            device.filesystem
        ),
    );
    said(failure, tool, output).hint(format!(
        "look at it with `{tool}` on a running system, or restore it from a backup"
    ))
}

/// `failure`, because of what `tool` said.
fn said(failure: Failure, tool: Tool, output: &Output) -> Failure {
    let said = format!("{}\n{}", output.stdout, output.stderr);
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    // What was said last is why it failed.
    let from = lines.len().saturating_sub(5);
    let said = lines.get(from..).unwrap_or_default().join("; ");
    let said: String = said.chars().take(400).collect();
    let code = output.code.unwrap_or_default();
    failure.caused_by(std::io::Error::other(format!(
        "{tool} ended with code {code}: {}",
        printable(&said)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_checked_and_left_is_damage() {
        for (code, verdict) in [
            (0, Verdict::Clean),
            (1, Verdict::Corrected),
            (2, Verdict::Corrected),
            (3, Verdict::Corrected),
            (4, Verdict::Damaged),
            (5, Verdict::Damaged),
        ] {
            assert_eq!(of_e2fsck(Some(code)), verdict, "{code}");
        }
        for code in [8, 12, 16, 32, 128] {
            assert!(!e2fsck::CHECKED.contains(&code), "{code}");
        }
    }
}
