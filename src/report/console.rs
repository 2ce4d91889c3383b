//! Events as lines for people: on every `console=` of the kernel, on /dev/kmsg, or on stderr.

use std::io::Write;
use std::time::{Duration, Instant};

use super::{Event, Stamped};
use crate::units::Bytes;

/// A progress line on a serial console each few seconds; 115200 baud leave little room for more.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Writes short lines to one or more devices.
pub struct Console {
    outs: Vec<Box<dyn Write + Send>>,
    last_progress: Option<Instant>,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Console({} outputs)", self.outs.len())
    }
}

impl Console {
    /// Writes to all of `outs`.
    pub fn new(outs: Vec<Box<dyn Write + Send>>) -> Console {
        Console {
            outs,
            last_progress: None,
        }
    }

    pub(super) fn emit(&mut self, event: &Stamped) -> std::io::Result<()> {
        if matches!(event.event, Event::Progress { .. }) {
            let now = Instant::now();
            if self
                .last_progress
                .is_some_and(|last| now.duration_since(last) < PROGRESS_EVERY)
            {
                return Ok(());
            }
            self.last_progress = Some(now);
        }
        let Some(text) = line(&event.event) else {
            return Ok(());
        };
        let mut block = String::new();
        for part in text.lines() {
            block.push_str("ironroot: ");
            block.push_str(part);
            block.push('\n');
        }
        // One dead console must not silence the others.
        self.outs.retain_mut(|out| {
            out.write_all(block.as_bytes())
                .and_then(|()| out.flush())
                .is_ok()
        });
        if self.outs.is_empty() {
            Err(std::io::ErrorKind::BrokenPipe.into())
        } else {
            Ok(())
        }
    }
}

/// The line of an event; `None` for what only machines want.
pub fn line(event: &Event) -> Option<String> {
    Some(match event {
        Event::Start { version, role, .. } => format!("starting (version {version}, {role})"),
        Event::Warning { text } => format!("warning: {text}"),
        Event::Waiting {
            reason,
            deadline_seconds,
        } => {
            format!("waiting for {reason} (at most {deadline_seconds} s)")
        }
        Event::Retry {
            error,
            in_milliseconds,
        } => {
            format!(
                "{error}; trying again in {} s",
                in_milliseconds.div_ceil(1000)
            )
        }
        Event::Config {
            origin,
            digest,
            name,
        } => format!(
            "boot config {}from {origin} ({digest})",
            name.as_ref().map(|n| format!("{n:?} ")).unwrap_or_default()
        ),
        Event::Plan { steps } => {
            let mut text = format!("plan of {} steps:", steps.len());
            for (i, step) in steps.iter().enumerate() {
                text.push_str(&format!("\n  {}. {step}", i + 1));
            }
            text
        }
        Event::StepStarted {
            index, total, text, ..
        } => format!("[{index}/{total}] {text}"),
        Event::Progress {
            written,
            total,
            received,
            expected,
            ..
        } => format!(
            "written {}{}, received {}{}",
            Bytes(*written).short(),
            of(*total, *written),
            Bytes(*received).short(),
            of(*expected, *received)
        ),
        Event::StepDone { .. } => return None,
        Event::Info { text } | Event::Finished { text, .. } => text.clone(),
        Event::Failed {
            exit_code,
            step,
            error,
            next,
            ..
        } => {
            let place = step
                .as_ref()
                .map(|s| format!(" in step {s}"))
                .unwrap_or_default();
            format!("FAILED (code {exit_code}){place}: {error}\n  next: {next}")
        }
    })
}

fn of(total: Option<u64>, done: u64) -> String {
    match total {
        Some(total) if total > 0 => {
            let percent = u128::from(done) * 100 / u128::from(total);
            format!(" of {} ({percent}%)", Bytes(total).short())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_code_step_cause_and_what_to_do() {
        let text = line(&Event::Failed {
            class: crate::error::Class::Refused,
            exit_code: 13,
            step: Some("lock".into()),
            error: "disk /dev/sda is mounted on /".into(),
            next: "unmount it".into(),
        })
        .unwrap();
        assert_eq!(
            text,
            "FAILED (code 13) in step lock: disk /dev/sda is mounted on /\n  next: unmount it"
        );
    }

    #[test]
    fn progress_shows_percent_only_where_the_total_is_known() {
        let event = |total| Event::Progress {
            step: "write",
            written: 1 << 20,
            total,
            received: 512,
            expected: None,
        };
        assert_eq!(
            line(&event(Some(2 << 20))).unwrap(),
            "written 1.0 MiB of 2.0 MiB (50%), received 512 B"
        );
        assert_eq!(
            line(&event(None)).unwrap(),
            "written 1.0 MiB, received 512 B"
        );
    }
}
