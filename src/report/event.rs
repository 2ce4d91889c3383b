//! The events, in a versioned machine form. Readers must ignore kinds and fields that they do not know.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::error::{Class, Failure, chain};

/// Version of the event format; raised when a field changes its meaning.
pub const EVENT_VERSION: u32 = 1;

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(
    tag = "event",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Event {
    /// The first event of a run.
    Start {
        /// Version of the event format.
        format: u32,
        /// Version of ironroot.
        version: &'static str,
        /// How this process runs: `init`, `initrd`, `install`, …
        role: String,
    },
    /// A line for people.
    Info {
        /// The line.
        text: String,
    },
    /// Something is not as it should be; the run goes on.
    Warning {
        /// What, where, and what follows from it.
        text: String,
    },
    /// The run waits; never without a reason and a deadline.
    Waiting {
        /// For what.
        reason: String,
        /// Seconds until this wait ends at the latest.
        deadline_seconds: u64,
    },
    /// An attempt failed and will be made again.
    Retry {
        /// What failed, with its chain.
        error: String,
        /// Milliseconds until the next attempt.
        in_milliseconds: u64,
    },
    /// A boot config was found.
    Config {
        /// Where it came from, without secrets.
        origin: String,
        /// Its SHA-256.
        digest: String,
        /// `metadata.name`, where it has one.
        name: Option<String>,
    },
    /// What will be done.
    Plan {
        /// One line for each step.
        steps: Vec<String>,
    },
    /// A step began.
    StepStarted {
        /// Number of this step, from 1.
        index: usize,
        /// How many steps the plan has.
        total: usize,
        /// Stable name.
        step: &'static str,
        /// What it does, for people.
        text: String,
    },
    /// Bytes flow. At most five a second.
    Progress {
        /// Stable name of the step.
        step: &'static str,
        /// Bytes of content that were written.
        written: u64,
        /// Bytes of content in all, where known.
        total: Option<u64>,
        /// Bytes that came over the network or from the file.
        received: u64,
        /// Bytes to receive in all, where known.
        expected: Option<u64>,
    },
    /// A step ended well.
    StepDone {
        /// Stable name.
        step: &'static str,
        /// How long it took.
        milliseconds: u64,
    },
    /// The run ended well.
    Finished {
        /// What happens next: `reboot`, `park`, …
        handoff: String,
        /// One line for people.
        text: String,
    },
    /// The run ended badly.
    Failed {
        /// Whose fault.
        class: Class,
        /// The exit code of that class.
        exit_code: u8,
        /// The step that failed.
        step: Option<String>,
        /// The chain of causes.
        error: String,
        /// What to do next.
        next: String,
    },
}

impl Event {
    /// The end of a run by `failure`.
    pub fn failed(failure: &Failure) -> Event {
        Event::Failed {
            class: failure.class(),
            exit_code: failure.class().exit_code(),
            step: failure.step().map(str::to_owned),
            error: chain(failure),
            next: failure.next().to_owned(),
        }
    }
}

/// An event with the time at which it happened.
#[derive(Clone, Debug, Serialize)]
pub struct Stamped {
    /// Seconds since 1970 by the machine's clock, which may be wrong before the clock is set.
    pub time: f64,
    /// Seconds since the kernel started: always rising, whatever the clock does.
    pub uptime: f64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Stamped {
    /// `event`, now.
    pub fn now(event: Event) -> Stamped {
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |d| d.as_secs_f64());
        Stamped {
            time,
            uptime: crate::sys::clock::uptime().as_secs_f64(),
            event,
        }
    }
}
