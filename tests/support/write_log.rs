//! What a power cut leaves of a disk: the log of every write and flush that QEMU's `blklogwrites` made, replayed up to
//! any point, with what was not flushed there, lost, or half there.
//!
//! The format is that of dm-log-writes (kernel: Documentation/admin-guide/device-mapper/log-writes.rst,
//! drivers/md/dm-log-writes.c).

#![allow(dead_code)] // each test program uses a part

use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// A write of these bytes at this place.
#[derive(Clone, Debug)]
struct Write {
    at: usize,
    data: Vec<u8>,
}

enum Event {
    Write(Write),
    Flush,
}

/// All that was done to a disk, in order.
pub struct WriteLog {
    events: Vec<Event>,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn place(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

impl WriteLog {
    pub fn read(path: &Path) -> WriteLog {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(number(&bytes, 0), MAGIC);
        let count = number(&bytes, 16);
        let sector = place(u64::from(u32::from_le_bytes(
            bytes[24..28].try_into().unwrap(),
        )));
        let mut events = Vec::new();
        let mut at = sector;
        for _ in 0..count {
            let entry = &bytes[at..at + 32];
            let (start, sectors, flags) = (number(entry, 0), number(entry, 8), number(entry, 16));
            at += sector;
            if flags & FLUSH != 0 {
                events.push(Event::Flush);
            }
            let length = place(sectors) * sector;
            if length > 0 {
                let data = if flags & DISCARD == 0 {
                    at += length;
                    bytes[at - length..at].to_vec()
                } else {
                    vec![0; length]
                };
                events.push(Event::Write(Write {
                    at: place(start) * sector,
                    data,
                }));
            }
            if flags & FUA != 0 {
                events.push(Event::Flush);
            }
        }
        assert!(count > 10, "{count} entries");
        WriteLog { events }
    }

    pub fn flushes(&self) -> usize {
        let flush = |e: &&Event| matches!(e, Event::Flush);
        self.events.iter().filter(flush).count()
    }

    /// The same, as if one flush had been forgotten.
    pub fn without_flush(mut self, number: usize) -> WriteLog {
        let flush = |(_, e): &(usize, &Event)| matches!(e, Event::Flush);
        let all = self.events.iter().enumerate();
        let (at, _) = all.filter(flush).nth(number).unwrap();
        self.events.remove(at);
        self
    }

    /// The disk after so many flushes, nothing of what followed; all of it for `usize::MAX`.
    pub fn after(&self, before: &[u8], flushes: usize) -> Vec<u8> {
        let mut disk = before.to_vec();
        let mut pending = Vec::new();
        let mut seen = 0;
        for event in &self.events {
            match event {
                Event::Write(write) => pending.push(write),
                Event::Flush => {
                    if seen == flushes {
                        return disk;
                    }
                    seen += 1;
                    for write in pending.drain(..) {
                        put(&mut disk, write);
                    }
                }
            }
        }
        if flushes == usize::MAX {
            for write in pending {
                put(&mut disk, write);
            }
        }
        disk
    }

    /// The disk when the power goes between flush `epoch` and the next one: of what was written meanwhile none
    /// (`part` 0), every other write (1), or all but the last (2) is there.
    pub fn cut(&self, before: &[u8], epoch: usize, part: usize) -> Vec<u8> {
        let mut disk = before.to_vec();
        let mut groups = self.events.split(|e| matches!(e, Event::Flush));
        let writes = |group: &[Event], keep: &dyn Fn(usize) -> bool, disk: &mut [u8]| {
            for (n, event) in group.iter().enumerate() {
                if let Event::Write(write) = event
                    && keep(n)
                {
                    put(disk, write);
                }
            }
        };
        for group in groups.by_ref().take(epoch) {
            writes(group, &|_| true, &mut disk);
        }
        let open = groups.next().unwrap_or_default();
        let keep = |n| match part {
            0 => false,
            1 => n % 2 == 0,
            _ => n + 1 < open.len(),
        };
        writes(open, &keep, &mut disk);
        disk
    }

    /// Shows `judge` every state that a cut can leave, as far as it can differ in what a firmware looks at: at each
    /// flush what is durable; that with all, each one alone, all but one, and one half of each of the writes that
    /// were not flushed yet. `judge` learns how many flushes there were. How many states it saw.
    pub fn cuts(&self, before: &[u8], mut judge: impl FnMut(&[u8], usize)) -> usize {
        let mut disk = before.to_vec();
        let mut pending: Vec<Write> = Vec::new();
        let (mut flushes, mut states) = (0, 0);
        let end = std::iter::once(&Event::Flush);
        for event in self.events.iter().chain(end) {
            match event {
                Event::Write(write) => pending.push(write.clone()),
                Event::Flush => {
                    for set in subsets(&disk, &pending) {
                        let mut undo = Vec::new();
                        for write in &set {
                            undo.push(swap(&mut disk, write));
                        }
                        judge(&disk, flushes);
                        states += 1;
                        for write in undo.iter().rev() {
                            put(&mut disk, write);
                        }
                    }
                    for write in pending.drain(..) {
                        put(&mut disk, &write);
                    }
                    flushes += 1;
                }
            }
        }
        states
    }
}

fn put(disk: &mut [u8], write: &Write) {
    disk[write.at..write.at + write.data.len()].copy_from_slice(&write.data);
}

fn swap(disk: &mut [u8], write: &Write) -> Write {
    let old = disk[write.at..write.at + write.data.len()].to_vec();
    put(disk, write);
    Write {
        at: write.at,
        data: old,
    }
}

/// The sets of unflushed writes that are worth a look.
fn subsets(disk: &[u8], pending: &[Write]) -> Vec<Vec<Write>> {
    const END: usize = 1 << 20;
    let mut sets = vec![Vec::new(), pending.to_vec()];
    let tables = |w: &Write| w.at < END || w.at + w.data.len() > disk.len() - END;
    let boots = disk[..512].iter().any(|b| *b != 0);
    for (i, write) in pending.iter().enumerate() {
        // Elsewhere nothing that was written is looked at before LBA 0 is there.
        if !boots && !tables(write) {
            continue;
        }
        sets.push(vec![write.clone()]);
        let mut rest = pending.to_vec();
        rest.remove(i);
        sets.push(rest);
        let half = (write.data.len() / 2).next_multiple_of(512);
        let (first, second) = write.data.split_at(half.min(write.data.len()));
        for (at, data) in [(write.at, first), (write.at + first.len(), second)] {
            sets.push(vec![Write {
                at,
                data: data.to_vec(),
            }]);
        }
    }
    sets
}
