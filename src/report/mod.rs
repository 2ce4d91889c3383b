//! Who is told, and how: every stage emits an [`Event`], every sink hears all of them.
//!
//! To add a sink: a file here, an arm in [`Sink`]. A sink that fails is dropped with a note on the
//! others; it never fails the run.

pub mod console;
pub mod event;
pub mod jsonl;
pub mod logger;
pub mod webhook;

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::sys::clock::Deadline;

pub use event::{Event, Stamped};

const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Where events go.
#[derive(Debug)]
pub enum Sink {
    /// Short lines for people: consoles, or stderr.
    Console(console::Console),
    /// One JSON document a line: a file under /run/ironroot, or stdout with `--json`.
    JsonLines(jsonl::JsonLines),
}

/// While it lives, whoever emits waits.
#[derive(Debug)]
pub struct Silence<'a> {
    _sinks: MutexGuard<'a, Vec<Sink>>,
}

impl Sink {
    fn emit(&mut self, event: &Stamped) -> std::io::Result<()> {
        match self {
            Sink::Console(sink) => sink.emit(event),
            Sink::JsonLines(sink) => sink.emit(event),
        }
    }
}

/// Hands events to every sink. Cheap to clone; usable from every thread.
#[derive(Clone, Debug, Default)]
pub struct Reporter {
    sinks: Arc<Mutex<Vec<Sink>>>,
    /// When the last event was told.
    told: Arc<Mutex<Option<Instant>>>,
}

impl Reporter {
    /// A reporter with these sinks.
    pub fn new(sinks: Vec<Sink>) -> Reporter {
        Reporter {
            sinks: Arc::new(Mutex::new(sinks)),
            told: Arc::default(),
        }
    }

    /// One more sink.
    pub fn add(&self, sink: Sink) {
        self.lock().push(sink);
    }

    /// Tells everybody.
    pub fn emit(&self, event: Event) {
        self.emit_of_silence(event);
        *self.told() = Some(Instant::now());
    }

    /// The same for what only says that nothing was told: [`Reporter::silent_for`] goes on.
    pub fn emit_of_silence(&self, event: Event) {
        let stamped = Stamped::now(event);
        self.lock().retain_mut(|sink| sink.emit(&stamped).is_ok());
    }

    /// How long nothing was told.
    pub fn silent_for(&self) -> Duration {
        self.told().map_or(Duration::ZERO, |told| told.elapsed())
    }

    /// Tells everybody, and nobody hears anything of others while the answer lives. Where somebody is still writing
    /// after `patience`, as to a console that takes nothing any more, nothing is told.
    pub fn emit_last(&self, event: Event, patience: Duration) -> Option<Silence<'_>> {
        let deadline = Deadline::after(patience);
        let mut sinks = loop {
            match self.sinks.try_lock() {
                Ok(sinks) => break sinks,
                Err(TryLockError::Poisoned(sinks)) => break sinks.into_inner(),
                Err(TryLockError::WouldBlock) if deadline.passed() => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(TRY_AGAIN),
            }
        };
        let stamped = Stamped::now(event);
        sinks.retain_mut(|sink| sink.emit(&stamped).is_ok());
        Some(Silence { _sinks: sinks })
    }

    /// A warning: something is not as it should be, and the run goes on.
    pub fn warn(&self, text: impl Into<String>) {
        self.emit(Event::Warning { text: text.into() });
    }

    /// Something worth a line.
    pub fn info(&self, text: impl Into<String>) {
        self.emit(Event::Info { text: text.into() });
    }

    fn told(&self) -> MutexGuard<'_, Option<Instant>> {
        self.told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Sink>> {
        // A sink that panicked half-way leaves at worst half a line behind.
        self.sinks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
