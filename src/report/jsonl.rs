//! Events as JSON lines: the machine form, to a file that survives into the new system or to stdout.

use std::io::Write;

use super::Stamped;

/// Writes one JSON document a line.
pub struct JsonLines {
    out: Box<dyn Write + Send>,
}

impl std::fmt::Debug for JsonLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JsonLines")
    }
}

impl JsonLines {
    /// Writes to `out`.
    pub fn new(out: Box<dyn Write + Send>) -> JsonLines {
        JsonLines { out }
    }

    pub(super) fn emit(&mut self, event: &Stamped) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        // One write a line, so that two processes appending to one file do not mix their lines.
        self.out.write_all(&line)?;
        self.out.flush()
    }
}
