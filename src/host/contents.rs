//! Reading the disks themselves: table, record, signatures. In parallel, read-only, and with a deadline: one
//! dying disk must not hold up a machine that has sixty.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

use super::tables::{self, Table};
use super::{Content, DevNum, Disk, DiskKind, RecordFound, signatures, sysfs};
use crate::image::record;
use crate::units::{Bytes, SectorSize};

/// Disks that are read at the same time; each costs a thread and at most a MiB.
const WORKERS: usize = 8;
/// A disk that spins up takes 10 to 15 seconds; the kernel's own retries on a dying one take minutes.
const DEADLINE: Duration = Duration::from_secs(60);

/// What reading one disk gave.
#[derive(Debug, Default)]
struct Read {
    table: Table,
    record: RecordFound,
    contents: Vec<Content>,
    unreadable: Option<String>,
    blank: Vec<String>,
    no_medium: bool,
}

/// Reads every disk that has a size, and fills in table, record, contents and `unreadable`. A disk that
/// has not answered within a minute is unreadable; its thread is left behind.
pub fn read_all(root: &Path, disks: &mut [Disk]) {
    read_until(root, disks, Instant::now() + DEADLINE, read);
}

/// As [`read_all`], and each partition without a signature is read at both ends, whether it is blank: two MiB
/// for each.
pub fn read_all_with_blanks(root: &Path, disks: &mut [Disk]) {
    let thorough: Reader = |root, disk| read_disk(root, disk, true);
    read_until(root, disks, Instant::now() + DEADLINE, thorough);
}

/// Reads one disk.
type Reader = fn(&Path, &Disk) -> Read;

fn read_until(root: &Path, disks: &mut [Disk], deadline: Instant, reader: Reader) {
    let jobs: Vec<(usize, Disk)> = disks
        .iter()
        .enumerate()
        .filter(|(_, disk)| disk.size.0 > 0)
        .map(|(index, disk)| (index, disk.clone()))
        .collect();
    for (index, _) in &jobs {
        if let Some(disk) = disks.get_mut(*index) {
            disk.unreadable = Some("the disk did not answer in time".to_owned());
        }
    }
    let expected = jobs.len();
    let results = start(root, jobs, reader);
    for _ in 0..expected {
        let left = deadline.saturating_duration_since(Instant::now());
        // Timeout, or every worker is gone: what is left stays unreadable.
        let Ok((index, read)) = results.recv_timeout(left) else {
            break;
        };
        if let Some(disk) = disks.get_mut(index) {
            disk.table = read.table;
            disk.record = read.record;
            disk.contents = read.contents;
            disk.unreadable = read.unreadable;
            if read.no_medium {
                disk.size = Bytes::ZERO;
            }
            for partition in &mut disk.partitions {
                partition.blank = read.blank.contains(&partition.name);
            }
        }
    }
}

fn start(root: &Path, jobs: Vec<(usize, Disk)>, reader: Reader) -> Receiver<(usize, Read)> {
    let (sender, results) = channel();
    let workers = jobs.len().min(WORKERS);
    let queue = Arc::new(Mutex::new(jobs.into_iter()));
    for _ in 0..workers {
        let (queue, sender, root) = (Arc::clone(&queue), sender.clone(), root.to_owned());
        let worker = move || {
            loop {
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((index, disk)) = job else { break };
                // Nobody listens any more once the deadline has passed.
                if sender.send((index, reader(&root, &disk))).is_err() {
                    break;
                }
            }
        };
        // No threads to be had: the disks stay unreadable, which refuses them.
        let _ = std::thread::Builder::new()
            .name("disk-probe".to_owned())
            .spawn(worker);
    }
    results
}

fn read(root: &Path, disk: &Disk) -> Read {
    read_disk(root, disk, false)
}

fn read_disk(root: &Path, disk: &Disk, blanks: bool) -> Read {
    if let Some(why) = not_to_be_read(root, disk) {
        return Read {
            unreadable: Some(why),
            ..Read::default()
        };
    }
    let file = match open(root, disk) {
        Ok(file) => file,
        // sysfs goes on saying how large the last one was.
        Err(error) if error.raw_os_error() == Some(Errno::ENOMEDIUM as i32) => {
            return Read {
                no_medium: true,
                ..Read::default()
            };
        }
        Err(error) => {
            let why = format!("opening {}: {error}", disk.path.display());
            return Read {
                unreadable: Some(why),
                ..Read::default()
            };
        }
    };
    let sector = disk.sector.unwrap_or(SectorSize::S512);
    let table = tables::read(&mut &file, disk.size, sector);
    let mut area = vec![0; record::SIZE];
    // A disk of less than a MiB has no record, and a read error shows up below as well.
    let found = match file.read_exact_at(&mut area, record::OFFSET) {
        Ok(()) => record::decode(&area),
        Err(_) => Ok(None),
    };
    let mut lba0 = vec![0; usize::try_from(sector.get()).unwrap_or(record::SIZE)];
    let found = match file.read_exact_at(&mut lba0, 0) {
        Ok(()) => found.map(|record| record.map(|record| record.committed_by(&lba0))),
        Err(_) => found,
    };
    let ours = !matches!(found, Ok(None));
    let mut contents = signatures::probe(&file, disk, &table, ours);
    if blanks {
        contents.look_for_blanks(&file, disk, &table);
    }
    // A mark is the first that is written. Where nothing else is on the disk, one that was cut off half-way has
    // erased nothing, and the disk is as blank as it was.
    let blank = table == Table::None && contents.found.is_empty() && contents.unreadable.is_none();
    let found = match found {
        Err(record::Unreadable::Checksum) if blank => Ok(None),
        found => found,
    };
    Read {
        record: record::judge(found, &table, disk),
        contents: contents.found,
        unreadable: contents.unreadable,
        blank: contents.blank,
        no_medium: false,
        table,
    }
}

/// Devices whose read would hang or take minutes.
fn not_to_be_read(root: &Path, disk: &Disk) -> Option<String> {
    if disk.kind == DiskKind::Floppy {
        return Some("floppy drives are not read".to_owned());
    }
    let dir = root.join("sys/block").join(disk.name.replace('/', "!"));
    sysfs::flag(dir.join("dm/suspended")).then(|| "the device is suspended".to_owned())
}

/// Opens the node of `disk` for reading, and makes sure that it is this disk. `O_NONBLOCK` keeps an empty
/// drive from waiting for its medium. A plain file is a disk below another root, and where the operator
/// chose it as one: that disk has no device number.
fn open(root: &Path, disk: &Disk) -> io::Result<File> {
    let path: PathBuf = root.join(disk.path.strip_prefix("/").unwrap_or(&disk.path));
    let flags = OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        let found = DevNum::of_rdev(metadata.rdev()).unwrap_or_default();
        if found != disk.dev {
            return Err(io::Error::other(format!(
                "the node has number {found}, the disk {}",
                disk.dev
            )));
        }
    } else if !metadata.is_file() || (root == Path::new("/") && disk.dev != DevNum::default()) {
        return Err(io::Error::other("it is no block device"));
    }
    // Signatures are few and far apart: reading ahead would double what is read. Advice may be refused.
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::host::fixture::Fixture;
    use crate::host::{RecordIdentity, disks};
    use crate::image::record::{DiskIdentity, Record, State};

    fn probed(f: &Fixture) -> Vec<Disk> {
        let mut disks = disks::list(f.root()).unwrap();
        read_all(f.root(), &mut disks);
        disks
    }

    fn put(f: &Fixture, name: &str, at: u64, bytes: &[u8]) {
        let node = OpenOptions::new().write(true).open(f.node(name)).unwrap();
        node.write_all_at(bytes, at).unwrap();
    }

    #[test]
    fn every_disk_gets_its_own_answer() {
        let f = Fixture::new();
        for n in 0..20u8 {
            let name = format!("vd{}", char::from(b'a' + n));
            f.disk(
                &name,
                &format!("pci/virtio{n}"),
                &format!("254:{}", u32::from(n) * 16),
                8192,
            );
        }
        put(&f, "vdb", 0, b"XFSB");
        put(&f, "vdt", 2 << 20, b"deep inside");
        std::fs::remove_file(f.node("vdc")).unwrap();
        let disks = probed(&f);
        assert_eq!(disks.len(), 20);
        for disk in &disks {
            match disk.name.as_str() {
                "vdb" => assert_eq!(disk.contents[0].what, "xfs"),
                "vdc" => assert!(
                    disk.unreadable
                        .as_ref()
                        .unwrap()
                        .contains("opening /dev/vdc")
                ),
                _ => assert_eq!(
                    (&disk.contents, &disk.unreadable),
                    (&vec![], &None),
                    "{}",
                    disk.name
                ),
            }
        }
    }

    #[test]
    fn a_mark_makes_no_disk_unblank_and_is_judged() {
        let f = Fixture::new();
        let dir = f.disk("vda", "pci/virtio0", "254:0", 8192);
        f.attributes(&dir, &[("serial", "S1")]);
        let identity = RecordIdentity {
            claim: "a/b".to_owned(),
            ..RecordIdentity::default()
        };
        let serial = |s: &str| DiskIdentity {
            serial: Some(s.to_owned()),
            ..DiskIdentity::default()
        };
        let mark = |s| Record {
            state: State::Mark,
            identity: identity.clone(),
            disk: serial(s),
        };
        put(
            &f,
            "vda",
            record::OFFSET,
            &record::encode(&mark("S1")).unwrap(),
        );
        let disk = probed(&f).remove(0);
        assert_eq!(
            (disk.record, disk.contents.len()),
            (RecordFound::Mark(identity.clone()), 0)
        );
        put(
            &f,
            "vda",
            record::OFFSET,
            &record::encode(&mark("S2")).unwrap(),
        );
        let disk = probed(&f).remove(0);
        assert!(
            matches!(disk.record, RecordFound::Foreign { .. }),
            "{:?}",
            disk.record
        );
    }

    #[test]
    fn a_mark_that_was_cut_off_on_a_blank_disk_leaves_it_blank() {
        let f = Fixture::new();
        f.disk("vda", "pci/virtio0", "254:0", 8192);
        let mark = record::encode(&Record {
            state: State::Mark,
            identity: RecordIdentity::default(),
            disk: DiskIdentity::default(),
        });
        put(&f, "vda", record::OFFSET, &mark.unwrap()[..2048]);
        let disk = probed(&f).remove(0);
        assert_eq!((disk.record, disk.contents), (RecordFound::None, vec![]));
        // With anything beside it somebody has to decide.
        put(&f, "vda", 0, b"XFSB");
        let disk = probed(&f).remove(0);
        assert!(matches!(disk.record, RecordFound::Foreign { .. }));
    }

    #[test]
    fn a_disk_that_does_not_answer_in_time_is_unreadable_and_holds_up_no_other() {
        let f = Fixture::new();
        for (name, dev) in [("vda", "254:0"), ("vdb", "254:16"), ("vdc", "254:32")] {
            f.disk(name, &format!("pci/{name}"), dev, 8192);
        }
        f.disk("sr0", "pci/ata1/host0/0:0:0:0", "11:0", 0);
        let dying: Reader = |root, disk| {
            if disk.name == "vda" {
                std::thread::sleep(Duration::from_secs(20));
            }
            read(root, disk)
        };
        let mut disks = disks::list(f.root()).unwrap();
        let begin = Instant::now();
        read_until(f.root(), &mut disks, begin + Duration::from_secs(3), dying);
        assert!(begin.elapsed() < Duration::from_secs(10));
        let why: Vec<(&str, bool)> = disks
            .iter()
            .map(|d| (d.name.as_str(), d.unreadable.is_some()))
            .collect();
        assert_eq!(
            why,
            [
                ("sr0", false),
                ("vda", true),
                ("vdb", false),
                ("vdc", false)
            ]
        );
    }

    #[test]
    fn a_suspended_map_and_a_floppy_are_not_read() {
        let f = Fixture::new();
        let dm = f.disk("dm-0", "", "253:0", 8192);
        f.attributes(&dm, &[("dm/suspended", "1")]);
        f.disk("fd0", "platform/floppy.0", "2:0", 2880);
        let disks = probed(&f);
        assert_eq!(
            disks[0].unreadable.as_deref(),
            Some("the device is suspended")
        );
        assert_eq!(
            disks[1].unreadable.as_deref(),
            Some("floppy drives are not read")
        );
    }
}
