//! Partitions that outlive reinstallations, on real loop devices, with sectors of 512 and of 4096 bytes: what they
//! hold, what the table says of them, what refuses, and what a kill at any write or flush leaves.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::fs::OpenOptions;
use std::io::Cursor;
use std::os::unix::fs::FileExt as _;

use ironroot::host::tables::{self, Table, TablePartition};
use ironroot::image::record::{self, State};
use ironroot::plan::step::Target;
use ironroot::run::kept;
use ironroot::run::target_disk::TargetDisk;
use ironroot::sys::block;
use ironroot::units::{Bytes, SectorSize};
use serde_json::json;
use support::disk_image::{MIB, RECORD, compressed, gpt, gpt_4096, sha256};
use support::loop_device::{LoopDevice, tool};
use support::program::Config;
use support::traced::{self, Call};
use support::verdict::{Untouched, same};

/// Where the kept partitions are, in MiB: number, from, to.
const KEPT: [(u32, usize, usize); 2] = [(5, 20, 26), (9, 30, 33)];
const DISK: usize = 40;

struct Machine {
    disk: LoopDevice,
    sector: usize,
    image: Vec<u8>,
    generation: u32,
    keep: serde_json::Value,
    kept: Vec<TablePartition>,
    content: Vec<Vec<u8>>,
}

impl Machine {
    /// A disk that was installed once, and then got two partitions with data.
    fn new(sector: usize) -> Machine {
        let image = if sector == 512 { gpt(8) } else { gpt_4096(8) };
        let size = sector.to_string();
        let disk = LoopDevice::attached(&vec![0; DISK * MIB], &["--sector-size", &size]);
        let mut machine = Machine {
            disk,
            sector,
            image,
            generation: 1,
            keep: json!(["ceph-*", "9"]),
            kept: Vec::new(),
            content: Vec::new(),
        };
        machine.config("IfBlank").install(&[]).succeeded();
        machine.disk.forget_partitions();
        let mut args = Vec::new();
        for (number, from, to) in KEPT {
            args.push(format!("--new={number}:{from}M:{}M", to - 1));
            let name = if number == 5 {
                "ceph-0 \u{1f9ca}"
            } else {
                "data"
            };
            args.push(format!("--change-name={number}:{name}"));
            args.push(format!("--typecode={number}:8302"));
            args.push(format!("--attributes={number}:set:59"));
        }
        // sgdisk's end is the last MiB's first sector: set it by sectors instead.
        let per_mib = MIB / sector;
        for (i, (number, from, to)) in KEPT.into_iter().enumerate() {
            args[i * 4] = format!("--new={number}:{}:{}", from * per_mib, to * per_mib - 1);
        }
        args.push(machine.disk.arg().to_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        tool("sgdisk", &args);
        machine.disk.forget_partitions();
        let file = OpenOptions::new()
            .write(true)
            .open(machine.disk.path())
            .unwrap();
        for (number, from, to) in KEPT {
            let bytes: Vec<u8> = (0..(to - from) * MIB)
                .map(|i| u8::try_from((i / 7 + i / 4096 * 13 + number as usize) % 251).unwrap())
                .collect();
            file.write_all_at(&bytes, (from * MIB) as u64).unwrap();
            machine.content.push(bytes);
        }
        file.sync_all().unwrap();
        machine.kept = machine.listed(&machine.disk.bytes());
        assert_eq!(machine.kept.len(), 2);
        machine
    }

    fn config(&self, overwrite: &str) -> Config {
        let path = self.disk.directory().join("image");
        std::fs::write(&path, &self.image).unwrap();
        Config::new(path.to_str().unwrap(), &sha256(&self.image), &self.disk)
            .with("/disk/overwrite", json!(overwrite))
            .with("/disk/keep", self.keep.clone())
            .with("/metadata/generation", json!(self.generation))
    }

    fn table(&self, bytes: &[u8]) -> Table {
        let sector = SectorSize::new(u32::try_from(self.sector).unwrap()).unwrap();
        tables::read(&mut Cursor::new(bytes), Bytes(bytes.len() as u64), sector)
    }

    /// Those of the kept numbers that the table on `bytes` lists.
    fn listed(&self, bytes: &[u8]) -> Vec<TablePartition> {
        let table = self.table(bytes);
        let numbers = KEPT.map(|(number, ..)| number);
        let kept = table
            .partitions()
            .iter()
            .filter(|p| numbers.contains(&p.number));
        kept.cloned().collect()
    }

    /// What is kept is there, and a table says so.
    #[track_caller]
    fn is_kept(&self, bytes: &[u8]) {
        for ((number, from, to), content) in KEPT.iter().zip(&self.content) {
            let what = format!("kept partition {number}");
            same(&bytes[from * MIB..to * MIB], content, &what);
        }
        assert_eq!(self.listed(bytes), self.kept);
    }

    /// The image is there, beside what is kept, and other people's tools find nothing to complain about.
    #[track_caller]
    fn is_complete(&self) {
        let now = self.disk.bytes();
        self.is_kept(&now);
        let stale = self.image.len() - (1 + 128 * 128 / self.sector) * self.sector;
        same(&now[MIB..stale], &self.image[MIB..stale], "body");
        same(&now[..440], &self.image[..440], "boot code");
        let array = 2 * self.sector + 128 * 128;
        same(
            &now[array..RECORD.start],
            &self.image[array..RECORD.start],
            "behind the table",
        );
        let Table::Gpt(gpt) = self.table(&now) else {
            panic!("no GPT")
        };
        assert!(gpt.protective && gpt.copies_agree && gpt.backup_at_end);
        assert_eq!(gpt.disk_guid, "7e2a9a5b-62b0-4a1d-9a42-aaaaaaaaaaaa");
        let numbers: Vec<u32> = gpt.partitions.iter().map(|p| p.number).collect();
        assert_eq!(numbers, [1, 5, 9, 14, 15]);
        let record = record::decode(&now[RECORD]).unwrap().expect("a record");
        assert_ne!(record.state, State::Mark);
        let text = tool("sgdisk", &["--verify", self.disk.arg()]);
        assert!(text.contains("No problems found"), "{text}");
        let text = tool("sfdisk", &["--verify", self.disk.arg()]);
        assert!(text.contains("No errors detected"), "{text}");
    }
}

#[test]
fn kept_over_three_reinstallations() {
    for sector in [512, 4096] {
        println!("sectors of {sector} bytes");
        let mut machine = Machine::new(sector);
        let entry = |number: u32| {
            let at = 2 * sector + (number as usize - 1) * 128;
            machine.disk.bytes()[at..at + 128].to_vec()
        };
        let entries = KEPT.map(|(number, ..)| entry(number));
        for round in 2..5 {
            // Each time another system.
            machine.generation = round;
            let changed = 6 * MIB + round as usize * 4096;
            machine.image[changed] ^= 0xff;
            let plan = machine.config("IfOurs").plan().succeeded();
            for part in [
                "partition 5 \"ceph-0",
                "partition 9 \"data\"",
                &machine.kept[0].partuuid,
            ] {
                assert!(plan.stdout.contains(part), "{part:?} in {}", plan.stdout);
            }
            machine.config("IfOurs").install(&[]).succeeded();
            machine.is_complete();
            assert_eq!(machine.disk.partitions(), [1, 5, 9, 14, 15]);
            machine.disk.forget_partitions();
            let now = machine.disk.bytes();
            for ((number, ..), before) in KEPT.iter().zip(&entries) {
                let at = 2 * sector + (*number as usize - 1) * 128;
                same(&now[at..at + 128], before, "entry");
            }
        }
    }
}

#[test]
fn wiping_the_whole_disk_spares_what_is_kept() {
    for (round, wipe) in ["Zero", "Discard"].into_iter().enumerate() {
        let mut machine = Machine::new(512);
        machine.generation = 2 + u32::try_from(round).unwrap();
        let stray = (28 * MIB) as u64;
        let file = OpenOptions::new()
            .write(true)
            .open(machine.disk.path())
            .unwrap();
        file.write_all_at(b"left over", stray).unwrap();
        file.sync_all().unwrap();
        let config = machine.config("IfOurs").with("/disk/wipe", json!(wipe));
        config.install(&[]).succeeded();
        machine.is_complete();
        let at = usize::try_from(stray).unwrap();
        assert_eq!(machine.disk.bytes()[at..at + 9], [0; 9]);
    }
}

#[test]
fn what_cannot_be_kept_is_refused_before_the_first_write() {
    let mut machine = Machine::new(512);
    machine.generation = 2;
    let refused = |machine: &Machine, parts: &[&str]| {
        let untouched = Untouched::of(&machine.disk);
        machine.config("IfOurs").install(&[]).failed_with(13, parts);
        untouched.check();
    };
    // Its own number, in the image too.
    machine.keep = json!(["part 1"]);
    refused(
        &machine,
        &[
            "partition 1 \"part 1\"",
            "of the image",
            "has the same number",
        ],
    );
    machine.keep = json!(["15"]);
    refused(
        &machine,
        &["partition 15 \"part 15\"", "EFI system or BIOS boot"],
    );
    // An image that reaches into it.
    machine.keep = json!(["data", "ceph-*"]);
    let small = std::mem::replace(&mut machine.image, gpt(24));
    refused(
        &machine,
        &[
            "partition 5 \"ceph-0",
            "partition 1 \"part 1\"",
            "lies over it",
        ],
    );
    // One that is only as long.
    machine.image.clone_from(&small);
    machine.image.resize(22 * MIB, 0);
    refused(&machine, &["partition 5 \"ceph-0", "the image is 22.0 MiB"]);
    machine.image = small;
    // A damaged copy; without anything to keep it stops nobody.
    let file = OpenOptions::new()
        .write(true)
        .open(machine.disk.path())
        .unwrap();
    file.write_all_at(b"X", (DISK * MIB - 512) as u64).unwrap();
    file.sync_all().unwrap();
    let untouched = Untouched::of(&machine.disk);
    machine
        .config("Always")
        .install(&[])
        .failed_with(13, &["backup GPT is missing"]);
    untouched.check();
    machine.keep = json!([]);
    machine.config("Always").install(&[]).succeeded();
}

#[test]
fn an_image_that_is_longer_than_its_table_says_stops_before_what_is_kept() {
    let mut machine = Machine::new(512);
    machine.generation = 2;
    let good = machine.image.clone();
    let mut long = good.clone();
    long.resize(23 * MIB, 0x5a);
    machine.image = compressed("zstd", &long);
    let failed = machine.config("IfOurs").install(&[]);
    failed.failed_with(14, &["would overwrite the kept partition", "is untouched"]);
    let now = machine.disk.bytes();
    machine.is_kept(&now);
    same(&now[..512], &[0; 512], "LBA 0");
    // The tools of a rescuer see it too.
    let text = tool("sgdisk", &["--print", machine.disk.arg()]);
    assert!(text.contains("ceph-0") && text.contains("data"), "{text}");
    assert!(!text.contains("part 1"), "{text}");
    machine.image = good;
    machine.config("IfOurs").install(&[]).succeeded();
    machine.is_complete();
}

#[test]
fn a_table_that_changed_since_the_plan_is_refused() {
    let machine = Machine::new(512);
    let file = std::fs::File::open(machine.disk.path()).unwrap();
    let target = Target {
        path: machine.disk.path().to_owned(),
        name: machine.disk.name().to_owned(),
        dev: Some(block::device_number(&file).unwrap()),
        size: Bytes((DISK * MIB) as u64),
        sector: SectorSize::S512,
        identity: record::DiskIdentity::default(),
    };
    let disk = TargetDisk::open(&target).unwrap();
    assert_eq!(kept::entries(&disk, &machine.kept).unwrap().len(), 2);
    let mut planned = machine.kept.clone();
    planned[1].size = Bytes(planned[1].size.0 - 512);
    let failure = kept::entries(&disk, &planned).unwrap_err();
    let text = failure.to_string();
    assert!(
        text.contains("partition 9 \"data\"") && text.contains("is gone"),
        "{text}"
    );
}

#[test]
fn the_order_of_writes_and_flushes_with_something_kept() {
    use Call::{Flush, Write};
    for sector in [512, 4096] {
        let mut machine = Machine::new(sector);
        machine.generation = 2;
        let calls = traced::install(&machine.config("IfOurs"), &machine.disk, None);
        println!("{calls:?}");
        let table = sector + 128 * 128;
        let backup = DISK * MIB - table;
        // The mark, of which no cut leaves half.
        let begin = [
            Write(MIB - 4096, 512),
            Flush,
            Write(MIB - 4096 + 512, 4096 - 512),
            Flush,
            Write(MIB - 4096, 512),
            Flush,
            Write(0, sector),
            Flush,
            Write(backup, table),
            Flush,
            Write(sector, table),
            Flush,
        ];
        assert_eq!(calls[..12], begin);
        let stale = 8 * MIB - table;
        let end = [
            Write(stale, table),
            Write(backup, table),
            Flush,
            Write(sector, MIB - sector - 4096),
            Write(MIB - 4096, 512),
            Flush,
            Write(MIB - 4096 + 512, 4096 - 512),
            Flush,
            Write(MIB - 4096, 512),
            Flush,
            Write(0, sector),
            Flush,
            Write(MIB - 4096, 4096),
            Flush,
        ];
        let (middle, commit) = calls[12..].split_at(calls.len() - 12 - end.len());
        assert_eq!(commit, end);
        for call in middle {
            if let Write(at, length) = call {
                assert!(*at >= sector + table && at + length <= backup, "{call:?}");
                for (_, from, to) in KEPT {
                    assert!(at + length <= from * MIB || *at >= to * MIB, "{call:?}");
                }
            }
        }
        machine.is_complete();
    }
}

#[test]
fn killed_before_any_write_or_flush_with_something_kept() {
    let mut machine = Machine::new(512);
    machine.generation = 2;
    let whole = machine.disk.bytes();
    let reset = |machine: &Machine, bytes: &[u8]| {
        machine.disk.forget_partitions();
        let file = OpenOptions::new()
            .write(true)
            .open(machine.disk.path())
            .unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
    };
    let counts = traced::counts(&machine.config("IfOurs"), &machine.disk);
    for (call, count) in counts {
        for n in 1..=count {
            println!("{call} {n} of {count}");
            reset(&machine, &whole);
            traced::install(&machine.config("IfOurs"), &machine.disk, Some((call, n)));
            let now = machine.disk.bytes();
            machine.is_kept(&now);
            if now[..512].iter().any(|b| *b != 0) {
                // The old system, of which nothing but the record's place has changed, or the new one.
                if n < count - 1 {
                    same(&now[..RECORD.start], &whole[..RECORD.start], "old head");
                    same(&now[MIB..], &whole[MIB..], "old disk");
                } else {
                    machine.is_complete();
                }
            }
            if now[..512].iter().all(|b| *b == 0) {
                // Whatever table is there by now: who keeps less is not taken for the one who was cut off.
                let keep = std::mem::replace(&mut machine.keep, json!(["data"]));
                machine.config("IfBlank").plan().failed_with(13, &[]);
                machine.keep = json!([]);
                machine.config("IfBlank").plan().failed_with(13, &[]);
                machine.keep = keep;
            }
            machine.config("IfOurs").plan().succeeded();
            machine.config("IfOurs").install(&[]).succeeded();
            machine.is_complete();
        }
    }
}

#[test]
fn stopped_after_any_step_with_something_kept() {
    let mut machine = Machine::new(4096);
    for step in 0..=9 {
        println!("after {step} steps");
        machine.generation += 1;
        let _ = machine
            .config("IfOurs")
            .install(&["--stop-after", &step.to_string()]);
        machine.is_kept(&machine.disk.bytes());
        machine.config("IfOurs").install(&[]).succeeded();
        machine.is_complete();
        machine.disk.forget_partitions();
    }
}

#[test]
fn the_same_config_goes_on_and_one_that_keeps_less_does_not() {
    let mut machine = Machine::new(512);
    machine.generation = 2;
    machine
        .config("IfOurs")
        .install(&["--stop-after", "5"])
        .failed_with(70, &[]);
    machine.keep = json!(["data"]);
    let untouched = Untouched::of(&machine.disk);
    let refused = machine.config("IfBlank").install(&[]);
    refused.failed_with(13, &["does not name any more", "partition 5 \"ceph-0"]);
    untouched.check();
    machine.keep = json!(["data", "5"]);
    machine.config("IfBlank").install(&[]).succeeded();
    machine.is_complete();
}
