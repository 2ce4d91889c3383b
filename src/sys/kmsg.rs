//! Lines into the kernel's log (Documentation/ABI/testing/dev-kmsg), where they outlive this program.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Longest text of one record; the kernel refuses more (kernel/printk/printk.c, `PRINTKRB_RECORD_MAX`).
const LONGEST: usize = 900;

/// Writes every line as one record of a fixed level.
#[derive(Debug)]
pub struct Kmsg {
    file: File,
    level: u8,
}

impl Kmsg {
    /// Opens `device` (/dev/kmsg) for records of syslog level `level`, 0 to 7.
    pub fn open(device: &Path, level: u8) -> io::Result<Kmsg> {
        let file = OpenOptions::new().write(true).open(device)?;
        Ok(Kmsg {
            file,
            level: level.min(7),
        })
    }
}

impl Write for Kmsg {
    /// One write(2) is one record, so lines are written one at a time. A line that the kernel's log does not
    /// take is lost: it is on the consoles as well.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        for line in text.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            for part in line.chunks(LONGEST) {
                let mut record = format!("<{}>", self.level).into_bytes();
                record.extend_from_slice(part);
                let _ = self.file.write(&record);
            }
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_record_with_its_level() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let mut kmsg = Kmsg::open(place.path(), 6).unwrap();
        kmsg.write_all(b"ironroot: one\nironroot: two\n").unwrap();
        let text = std::fs::read_to_string(place.path()).unwrap();
        assert_eq!(text, "<6>ironroot: one<6>ironroot: two");
    }

    #[test]
    fn a_long_line_becomes_several_records() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let mut kmsg = Kmsg::open(place.path(), 7).unwrap();
        kmsg.write_all(&[b'x'; 2000]).unwrap();
        let text = std::fs::read_to_string(place.path()).unwrap();
        assert_eq!(text.matches("<7>").count(), 3);
        assert_eq!(text.matches('x').count(), 2000);
    }
}
