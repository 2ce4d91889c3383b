//! How far an image is, told now and then while it is taken.

use std::time::{Duration, Instant};

use crate::report::{Event, Reporter};
use crate::stream::ImageStream;

/// Progress events, at most five a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Tells of one step.
#[derive(Debug)]
pub struct Progress<'a> {
    reporter: &'a Reporter,
    step: &'static str,
    told: Option<Instant>,
}

impl<'a> Progress<'a> {
    /// Nothing was told yet.
    pub fn new(step: &'static str, reporter: &'a Reporter) -> Progress<'a> {
        Progress {
            reporter,
            step,
            told: None,
        }
    }

    /// Tells that `written` bytes of `stream` were taken, where the last time is long enough ago.
    pub fn tell(&mut self, stream: &ImageStream, written: u64) {
        if self.told.is_none_or(|t| t.elapsed() >= PROGRESS_EVERY) {
            self.told = Some(Instant::now());
            self.tell_end(stream, written);
        }
    }

    /// Tells it in any case.
    pub fn tell_end(&self, stream: &ImageStream, written: u64) {
        let counters = stream.counters();
        self.reporter.emit(Event::Progress {
            step: self.step,
            written,
            total: stream.content_length(),
            received: counters.received,
            expected: counters.expected,
        });
    }
}
