//! How far an image is, told now and then while it is taken.

use std::time::{Duration, Instant};

use crate::report::{Event, Reporter};
use crate::stream::ImageStream;
use crate::units::Bytes;

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

/// Tells of one step that takes nothing from a stream.
#[derive(Debug)]
pub struct Meter<'a> {
    reporter: &'a Reporter,
    step: &'static str,
    done: u64,
    total: Bytes,
    told: Option<Instant>,
}

impl<'a> Meter<'a> {
    /// Nothing is done yet.
    pub fn new(step: &'static str, total: Bytes, reporter: &'a Reporter) -> Meter<'a> {
        Meter {
            reporter,
            step,
            done: 0,
            total,
            told: None,
        }
    }

    /// `more` is done; told where the last time is long enough ago.
    pub fn add(&mut self, more: Bytes) {
        self.done = self.done.saturating_add(more.0);
        if self.told.is_none_or(|t| t.elapsed() >= PROGRESS_EVERY) {
            self.told = Some(Instant::now());
            self.end();
        }
    }

    /// Tells it in any case.
    pub fn end(&self) {
        self.reporter.emit(Event::Progress {
            step: self.step,
            written: self.done,
            total: Some(self.total.0),
            received: 0,
            expected: None,
        });
    }
}
