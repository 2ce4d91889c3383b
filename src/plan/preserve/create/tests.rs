use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::*;
use crate::config::parse;
use crate::config::request::{Request, interpret};
use crate::host::seed::Seed;
use crate::host::tables::{self, Table};
use crate::host::{Partition, signatures};
use crate::plan::layout::create::{Edit, edit};
use crate::plan::refusal::Refusal;
use crate::plan::step::Step;
use crate::units::SectorSize;

const SIZE: u64 = 40 * MIB;
const SECTOR: usize = 512;

/// A disk that takes no room.
struct Medium(File);

impl Medium {
    fn blank() -> Medium {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        Medium(file)
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).unwrap();
    }

    /// Both ends, with all that these tests write there.
    fn copy(&self) -> Medium {
        let copy = Medium::blank();
        let half = usize::try_from(MIB).unwrap();
        for at in [0, SIZE - MIB] {
            copy.write(at, &self.read(at, half));
        }
        copy
    }

    fn table(&self) -> Table {
        tables::read(&mut &self.0, Bytes(SIZE), SectorSize::S512)
    }

    /// What a host with this disk sees; its kernel knows the partitions of a whole table, or of the copy that is.
    fn facts(&self) -> Facts {
        let table = self.table();
        let mut disk = Disk {
            name: "sda".to_owned(),
            path: "/dev/sda".into(),
            dev: DevNum { major: 8, minor: 0 },
            size: Bytes(SIZE),
            sector: Some(SectorSize::S512),
            serial: Some("s".to_owned()),
            ..Disk::default()
        };
        if matches!(&table, Table::Gpt(gpt) if gpt.protective) {
            let known = table.partitions().iter().map(|p| Partition {
                name: format!("sda{}", p.number),
                number: p.number,
                dev: DevNum {
                    major: 8,
                    minor: p.number,
                },
                start: p.start,
                size: p.size,
                blank: true,
            });
            disk.partitions = known.collect();
        }
        let contents = signatures::probe(&self.0, &disk, &table, false);
        disk.contents = contents.found;
        disk.unreadable = contents.unreadable;
        disk.table = table;
        Facts {
            disks: vec![disk],
            waited: true,
            seed: Seed::random().unwrap(),
            ..Facts::default()
        }
    }

    /// The sectors that `group` changes.
    fn changes(&self, group: &[(Bytes, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
        let sectors = group.iter().flat_map(|(at, bytes)| {
            let offsets = (at.0..).step_by(SECTOR);
            offsets.zip(bytes.chunks(SECTOR).map(<[u8]>::to_vec))
        });
        sectors
            .filter(|(at, new)| self.read(*at, SECTOR) != *new)
            .collect()
    }

    /// Shows every state that a cut can leave: after each flush, any sectors of what is written next.
    fn cuts(&self, edit: &Edit, judge: &mut dyn FnMut(&Medium)) {
        let disk = self.copy();
        for group in &edit.groups {
            let changes = disk.changes(group);
            assert!(changes.len() < 6, "{}", changes.len());
            for set in 0..1u32 << changes.len() {
                let cut = disk.copy();
                for (n, (at, new)) in changes.iter().enumerate() {
                    if set & (1 << n) != 0 {
                        cut.write(*at, new);
                    }
                }
                judge(&cut);
            }
            for (at, new) in changes {
                disk.write(at, &new);
            }
        }
    }
}

fn request(names: &[&str]) -> Request {
    let entries: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                r#"{{"target":"/{name}","source":{{"partlabel":"{name}","disk":{{"serial":"s"}}}},"format":"IfBlank","create":"10MiB"}}"#
            )
        })
        .collect();
    let text = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","metadata":{{"claim":"a/b"}},
        "image":{{"url":"https://h/x"}},"memory":{{}},"preserve":[{}]}}"#,
        entries.join(",")
    );
    interpret(&parse::parse(text.as_bytes()).unwrap()).unwrap()
}

/// What is made on the disk; `None` where all is there.
fn planned(disk: &Medium, names: &[&str]) -> Result<Option<NewPartitions>, Trouble> {
    match crate::plan::preserve::decide(&request(names), &disk.facts()) {
        Ok(decided) => Ok(decided.partitions.into_iter().next().map(|step| {
            let Step::AddPartitions { partitions } = step else {
                panic!("{step:?}");
            };
            *partitions
        })),
        Err(Refusal::Preserve { trouble, .. }) => Err(trouble),
        Err(other) => panic!("{other:?}"),
    }
}

fn edited(disk: &Medium, new: &NewPartitions) -> Edit {
    edit(&disk.read(0, usize::try_from(MIB).unwrap()), new).unwrap()
}

#[track_caller]
fn is_whole(disk: &Medium, names: &[&str]) {
    let table = disk.table();
    assert_eq!(table.why_not_whole(SectorSize::S512), None);
    let found: Vec<&str> = table
        .partitions()
        .iter()
        .map(|p| p.name.as_deref().unwrap())
        .collect();
    assert_eq!(found, names);
}

fn apply(disk: &Medium, edit: &Edit) {
    for (at, bytes) in edit.groups.iter().flatten() {
        disk.write(at.0, bytes);
    }
}

#[test]
fn on_a_blank_disk_every_cut_goes_on_and_so_does_a_cut_in_that() {
    let names = ["a", "b", "c"];
    let blank = Medium::blank();
    let first = planned(&blank, &names).unwrap().unwrap();
    assert_eq!((first.add.len(), first.begun), (3, false));
    let (mut states, mut begun) = (0, 0);
    let go_on = |cut: &Medium| {
        let new = planned(cut, &names).unwrap_or_else(|trouble| panic!("{trouble}"))?;
        assert!(new.new_table && new.add.len() == 3);
        Some((edited(cut, &new), new.begun))
    };
    blank.cuts(&edited(&blank, &first), &mut |cut| {
        states += 1;
        let Some((again, was_begun)) = go_on(cut) else {
            return is_whole(cut, &names);
        };
        begun += usize::from(was_begun);
        cut.cuts(&again, &mut |cut| {
            let Some((last, _)) = go_on(cut) else {
                return is_whole(cut, &names);
            };
            apply(cut, &last);
            is_whole(cut, &names);
        });
    });
    // Nothing, the anchor, either half of the primary, all of it, the backup in each of its halves, and the end.
    assert!(states >= 11 && begun >= 7, "{states} {begun}");
}

#[test]
fn in_a_table_that_is_there_a_cut_goes_on_or_is_damage() {
    let disk = Medium::blank();
    let old = planned(&disk, &["old"]).unwrap().unwrap();
    apply(&disk, &edited(&disk, &old));
    is_whole(&disk, &["old"]);
    let there = disk.table().partitions().to_vec();
    let names = ["a", "b"];
    let both = ["old", "a", "b"];
    let new = planned(&disk, &names).unwrap().unwrap();
    let (mut on, mut damaged) = (0, 0);
    disk.cuts(&edited(&disk, &new), &mut |cut| {
        let found = cut.table();
        assert!(there.iter().all(|p| found.partitions().contains(p)));
        match planned(cut, &names) {
            Ok(Some(again)) => {
                apply(cut, &edited(cut, &again));
                is_whole(cut, &both);
                assert_eq!(cut.table().partitions().first(), there.first());
                on += 1;
            }
            // All is there; of two copies one may be broken, which firmware and kernels live with.
            Ok(None) => assert_eq!(found.partitions().len(), 3),
            Err(trouble @ Trouble::NoTable { .. }) => {
                assert!(trouble.to_string().contains("GPT is damaged"), "{trouble}");
                assert!(trouble.next().contains("sgdisk --verify"));
                damaged += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    });
    assert!(on >= 2 && damaged >= 2, "{on} {damaged}");
}

#[test]
fn what_was_begun_is_finished_by_the_config_that_began_it() {
    let begun_on = |disk: &Medium, names: &[&str], groups: usize| {
        let new = planned(disk, names).unwrap().unwrap();
        for (at, bytes) in edited(disk, &new).groups.iter().take(groups).flatten() {
            disk.write(at.0, bytes);
        }
    };
    let disk = Medium::blank();
    begun_on(&disk, &["a", "b"], 3);
    assert!(planned(&disk, &["b", "a"]).unwrap().unwrap().begun);
    // One alone would take the other's place, and one before them both of theirs.
    for names in [["a"].as_slice(), &["b"], &["x"], &["A", "a", "b"]] {
        let trouble = planned(&disk, names).unwrap_err();
        let Trouble::Begun { whole_disk, .. } = &trouble else {
            panic!("{names:?}: {trouble:?}");
        };
        assert!(*whole_disk && trouble.next().contains("--zap-all"));
        assert!(!trouble.may_heal());
    }
    // One more is no other.
    let more = planned(&disk, &["a", "b", "c"]).unwrap().unwrap();
    assert!(more.begun && more.add.len() == 3);

    let disk = Medium::blank();
    apply(
        &disk,
        &edited(&disk, &planned(&disk, &["old"]).unwrap().unwrap()),
    );
    begun_on(&disk, &["a", "b"], 1);
    let trouble = planned(&disk, &["a"]).unwrap_err();
    let Trouble::Begun { whole_disk, .. } = &trouble else {
        panic!("{trouble:?}");
    };
    assert!(!*whole_disk && trouble.next().contains("sgdisk -e"));
    assert!(planned(&disk, &["a", "b"]).unwrap().unwrap().begun);
}

#[test]
fn what_the_kernel_makes_no_partitions_of_gets_none() {
    for (kind, part) in [
        (DiskKind::DeviceMapper, "device mapper"),
        (DiskKind::Zram, "zram"),
        (DiskKind::Ram, "memory"),
        (DiskKind::Optical, "no partitions"),
    ] {
        let mut facts = Medium::blank().facts();
        facts.disks[0].kind = kind;
        let mut request = request(&["a"]);
        let select = &mut request.preserve[0].create.as_mut().unwrap().disk;
        **select = crate::config::wire::Select {
            path: Some("/dev/sda".to_owned()),
            ..Default::default()
        };
        let refusal = crate::plan::preserve::decide(&request, &facts).unwrap_err();
        let Refusal::Preserve { trouble, .. } = refusal else {
            panic!("{refusal:?}");
        };
        assert!(trouble.to_string().contains(part), "{trouble}");
    }
}

#[test]
fn the_disk_that_the_machine_was_started_from_is_not_taken() {
    let disk = Medium::blank();
    apply(
        &disk,
        &edited(&disk, &planned(&disk, &["old"]).unwrap().unwrap()),
    );
    let mut facts = disk.facts();
    let mut request = request(&["a"]);
    let select = &mut request.preserve[0].create.as_mut().unwrap().disk;
    **select = crate::config::wire::Select::default();
    let decide = |facts: &Facts| crate::plan::preserve::decide(&request, facts);
    assert_eq!(decide(&facts).unwrap().partitions.len(), 1);
    let Table::Gpt(gpt) = disk.table() else {
        panic!("no GPT");
    };
    facts.machine.booted_from = Some(gpt.partitions[0].partuuid.clone());
    let Err(Refusal::Preserve { trouble, .. }) = decide(&facts) else {
        panic!("it was taken");
    };
    assert!(matches!(trouble, Trouble::Disks { found, .. } if found.is_empty()));
}
