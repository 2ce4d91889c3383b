//! Who is told, and how: every stage emits an [`Event`], every sink hears all of them.
//!
//! To add a sink: a file here, an arm in [`Sink`]. A sink that fails is dropped with a note on the
//! others; it never fails the run.

pub mod console;
pub mod event;
pub mod jsonl;
pub mod logger;
pub mod webhook;

use std::sync::{Arc, Mutex};

pub use event::{Event, Stamped};

/// Where events go.
#[derive(Debug)]
pub enum Sink {
    /// Short lines for people: consoles, or stderr.
    Console(console::Console),
    /// One JSON document a line: a file under /run/ironroot, or stdout with `--json`.
    JsonLines(jsonl::JsonLines),
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
}

impl Reporter {
    /// A reporter with these sinks.
    pub fn new(sinks: Vec<Sink>) -> Reporter {
        Reporter {
            sinks: Arc::new(Mutex::new(sinks)),
        }
    }

    /// One more sink.
    pub fn add(&self, sink: Sink) {
        self.lock().push(sink);
    }

    /// Tells everybody.
    pub fn emit(&self, event: Event) {
        let stamped = Stamped::now(event);
        self.lock().retain_mut(|sink| sink.emit(&stamped).is_ok());
    }

    /// A warning: something is not as it should be, and the run goes on.
    pub fn warn(&self, text: impl Into<String>) {
        self.emit(Event::Warning { text: text.into() });
    }

    /// Something worth a line.
    pub fn info(&self, text: impl Into<String>) {
        self.emit(Event::Info { text: text.into() });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Sink>> {
        // A sink that panicked half-way leaves at worst half a line behind.
        self.sinks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
