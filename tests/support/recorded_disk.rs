//! A loop device whose writes and flushes are recorded, in their order: the file behind it is served by QEMU's storage
//! daemon, with a log in the format of dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst).

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SECTOR: usize = 512;

/// Flags of an entry: a flush, written through, and without data.
const FLUSH: u64 = 1;
const THROUGH: u64 = 2;
const DISCARD: u64 = 4;

/// The device. Nothing is recorded before it is made.
pub struct RecordedDisk {
    directory: tempfile::TempDir,
    daemon: Child,
    device: Option<PathBuf>,
    before: Vec<u8>,
}

/// What reached the device.
pub struct Recording {
    before: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    at: usize,
    data: Vec<u8>,
    through: bool,
    flush: bool,
}

impl RecordedDisk {
    /// A device of `mib` MiB, made ready by a program that gets its file as the last argument.
    pub fn new(mib: usize, program: &str, args: &[&str]) -> RecordedDisk {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(path("disk"), vec![0u8; mib << 20]).unwrap();
        for name in ["log", "served"] {
            std::fs::write(path(name), "").unwrap();
        }
        let disk = path("disk");
        let args: Vec<&str> = args.iter().copied().chain([disk.as_str()]).collect();
        super::loop_device::tool(program, &args);
        let before = std::fs::read(path("disk")).unwrap();
        let daemon = Command::new("qemu-storage-daemon")
            .args([
                "--blockdev",
                &format!("driver=file,node-name=disk,filename={}", path("disk")),
            ])
            .args([
                "--blockdev",
                &format!("driver=file,node-name=log,filename={}", path("log")),
            ])
            .args([
                "--blockdev",
                "driver=blklogwrites,node-name=both,file=disk,log=log,log-sector-size=512",
            ])
            .args([
                "--export",
                &format!(
                    "type=fuse,id=e,node-name=both,mountpoint={},writable=on,allow-other=off",
                    path("served")
                ),
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut this = RecordedDisk {
            directory,
            daemon,
            device: None,
            before,
        };
        this.device = Some(this.attached());
        this
    }

    /// The loop device over what is served, once it is served.
    fn attached(&self) -> PathBuf {
        let served = self.directory.path().join("served");
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(50));
            if std::fs::metadata(&served).unwrap().len() != self.before.len() as u64 {
                continue;
            }
            let args = ["--find", "--show", served.to_str().unwrap()];
            if let (true, text) = super::loop_device::try_tool("losetup", &args) {
                return PathBuf::from(text.trim());
            }
        }
        panic!("nothing is served");
    }

    /// The path as an argument.
    pub fn arg(&self) -> &str {
        self.device.as_ref().unwrap().to_str().unwrap()
    }

    /// Ends the recording.
    pub fn finish(mut self) -> Recording {
        self.detach();
        let log = std::fs::read(self.directory.path().join("log")).unwrap();
        Recording {
            before: std::mem::take(&mut self.before),
            entries: entries(&log),
        }
    }

    fn detach(&mut self) {
        if let Some(device) = self.device.take() {
            let _ =
                super::loop_device::try_tool("losetup", &["--detach", device.to_str().unwrap()]);
        }
        // Its end unmounts what it serves; SIGTERM lets it write its log to the end.
        let pid = self.daemon.id().to_string();
        let _ = super::loop_device::try_tool("kill", &["-TERM", &pid]);
        let _ = self.daemon.wait();
    }
}

impl Drop for RecordedDisk {
    fn drop(&mut self) {
        self.detach();
    }
}

/// The super block, which says how many entries there are, and each entry with what it wrote.
fn entries(log: &[u8]) -> Vec<Entry> {
    let number = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
    assert_eq!(
        number(0),
        0x006a_7366_7773_6872,
        "the magic number of the log"
    );
    let (mut at, mut entries) = (SECTOR, Vec::new());
    for _ in 0..number(16) {
        let (sector, sectors, flags) = (number(at), number(at + 8), number(at + 16));
        let length = usize::try_from(sectors).unwrap() * SECTOR;
        at += SECTOR;
        let data = if flags & DISCARD == 0 {
            at += length;
            log[at - length..at].to_vec()
        } else {
            vec![0; length]
        };
        entries.push(Entry {
            at: usize::try_from(sector).unwrap() * SECTOR,
            data,
            through: flags & THROUGH != 0,
            flush: flags & FLUSH != 0,
        });
    }
    entries
}

impl Recording {
    /// How many flushes there are.
    pub fn epochs(&self) -> usize {
        self.entries.iter().filter(|entry| entry.flush).count()
    }

    /// The device when the power goes between flush `epoch` and the next one: of what was written meanwhile none
    /// (`part` 0), every other write (1), or all but the last (2) is there.
    pub fn cut(&self, epoch: usize, part: usize) -> Vec<u8> {
        let mut disk = self.before.clone();
        let (mut seen, mut since) = (0, 0);
        let open = self.open(epoch);
        for entry in &self.entries {
            let is_open = seen == epoch;
            let is_there = match part {
                _ if !is_open || entry.through => true,
                0 => false,
                1 => since % 2 == 0,
                _ => since + 1 < open,
            };
            if is_there {
                disk[entry.at..][..entry.data.len()].copy_from_slice(&entry.data);
            }
            since += usize::from(is_open);
            if entry.flush {
                if is_open {
                    break;
                }
                seen += 1;
            }
        }
        disk
    }

    /// How many writes there are between flush `epoch` and the next one.
    fn open(&self, epoch: usize) -> usize {
        let parts = self.entries.split(|entry| entry.flush);
        parts.map(<[Entry]>::len).nth(epoch).unwrap_or_default()
    }
}
