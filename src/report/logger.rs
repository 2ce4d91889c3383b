//! The `log` crate's records (our libraries' and our own) as lines on stderr, at the level asked for.

use log::{LevelFilter, Log, Metadata, Record};

use crate::error::printable;

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        use std::io::Write as _;
        if self.enabled(record.metadata()) {
            let text = printable(&record.args().to_string());
            // Nobody is left to tell when stderr is gone.
            let _ = writeln!(
                std::io::stderr(),
                "ironroot: {}: {}: {text}",
                record.level().as_str().to_lowercase(),
                record.target()
            );
        }
    }

    fn flush(&self) {}
}

/// Installs the logger; a second call only changes the level.
pub fn install(level: LevelFilter) {
    static LOGGER: Stderr = Stderr;
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(level);
}
