//! A million entries, in a process of its own, as its memory is looked at.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod tree_support;

use std::fs;
use std::io::Read;

use ironroot::image::tree::{Options, unpack};
use tree_support::{Made, directory, isolated};

/// An archive of a file and its further names, a thousand in a directory.
struct Million {
    next: u32,
    ready: Vec<u8>,
}

impl Read for Million {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ready.is_empty() && self.next < 1_000_000 {
            let name = format!("{}/{}", self.next / 1000, self.next % 1000);
            self.ready = match self.next {
                0 => Made::new().file("0/0", "x").0,
                _ => Made::new().hard(&name, "0/0").0,
            };
            self.next += 1;
            if self.next == 1_000_000 {
                self.ready.extend_from_slice(&[0; 1024]);
            }
        }
        let length = buffer.len().min(self.ready.len());
        buffer[..length].copy_from_slice(&self.ready[..length]);
        self.ready.drain(..length);
        Ok(length)
    }
}

#[test]
fn a_million_entries_need_little_memory() {
    isolated("mode=0755,nr_inodes=0", |place| {
        let (_, root) = directory(place, "root");
        let before = resident();
        let mut source = std::io::BufReader::new(Million {
            next: 0,
            ready: vec![],
        });
        let census = unpack(&mut source, &root, &Options::default()).unwrap();
        assert_eq!((census.entries, census.hard_links), (1_000_000, 999_999));
        let grown = resident().saturating_sub(before);
        assert!(grown < 8 << 10, "{grown} KiB more");
    });
}

/// Kilobytes of memory that this process holds.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
