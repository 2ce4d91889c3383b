use std::io::Cursor;

use proptest::prelude::*;
use uuid::Uuid;

use super::entry::{Entries, Entry};
use super::header::Header;
use super::kept::entry_of;
use super::*;
use crate::config::quantity::SizeText;
use crate::config::request::preserve::NewFileSystem;
use crate::host::tables::PartitionKind;
use crate::image::record::DiskIdentity;
use crate::plan::keep;

const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";

fn guid(n: u32) -> Uuid {
    Uuid::from_u128(0x1111_2222_3333_4444_5555_0000_0000_0000 + u128::from(n))
}

fn target(mib: u64, sector: SectorSize) -> Target {
    Target {
        path: "/dev/vda".into(),
        name: "vda".to_owned(),
        dev: None,
        size: Bytes(mib * MIB),
        sector,
        identity: DiskIdentity::default(),
    }
}

/// The first MiB of an image of `mib` MiB with partitions (number, first MiB, last MiB, label).
fn image(mib: u64, sector: SectorSize, partitions: &[(u32, u64, u64, &str)]) -> Vec<u8> {
    let sector = sector.get();
    let per_mib = MIB / sector;
    let mut entries = Entries::empty(128);
    let kind = Uuid::try_parse(LINUX).unwrap();
    for (number, from, to, label) in partitions {
        let entry = Entry::new(kind, guid(*number), from * per_mib, to * per_mib - 1, label);
        assert!(entries.set(*number, &entry));
    }
    let last = mib * per_mib - 1;
    let header = Header::fresh(guid(0), sector, 2 + 128 * 128 / sector);
    let copies = header
        .on_disk(&entries, sector, last, last - 128 * 128 / sector - 1)
        .unwrap();
    let mut head = vec![0; 1 << 20];
    head[..440].fill(0x90);
    head[446 + 4] = 0xee;
    head[446 + 8..446 + 12].copy_from_slice(&1u32.to_le_bytes());
    head[446 + 12..446 + 16].copy_from_slice(&u32::try_from(last).unwrap().to_le_bytes());
    head[510..512].copy_from_slice(&[0x55, 0xaa]);
    let at = usize::try_from(sector).unwrap();
    head[at..at + copies.primary.len()].copy_from_slice(&copies.primary);
    head[2 * at..2 * at + 128 * 128].copy_from_slice(entries.bytes());
    head
}

fn partition(number: u32, from: u64, to: u64, label: &str) -> TablePartition {
    TablePartition {
        number,
        start: Bytes(from * MIB),
        size: Bytes((to - from) * MIB),
        kind: PartitionKind::Guid(LINUX.to_owned()),
        partuuid: guid(1000 + number).to_string(),
        name: Some(label.to_owned()),
        attributes: 0,
    }
}

fn addition(label: &str, size: SizeText) -> Addition {
    Addition {
        label: label.to_owned(),
        size,
        kind: LINUX.to_owned(),
        filesystem: Some(NewFileSystem::Ext4),
    }
}

fn adopted(head: &[u8], mib: u64, target: &Target, shape: &Shape) -> Result<Layout, Refusal> {
    let entries: Vec<Entry> = shape
        .kept
        .iter()
        .map(|p| entry_of(p, target.sector.get()).unwrap())
        .collect();
    let length = Length {
        exact: Some(Bytes(mib * MIB)),
        at_least: Bytes::ZERO,
    };
    adopt(
        head,
        length,
        target,
        RecordPolicy::Required,
        shape,
        &entries,
    )
}

fn keeping(kept: Vec<TablePartition>) -> Shape {
    Shape {
        kept,
        interim_guid: keep::interim_guid("1:x"),
        ..Shape::default()
    }
}

/// The table that a reader finds on a disk with `parts` at their places.
fn found(target: &Target, parts: &[(u64, &[u8])]) -> Table {
    let mut disk = vec![0; usize::try_from(target.size.0).unwrap()];
    for (at, bytes) in parts {
        let at = usize::try_from(*at).unwrap();
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }
    tables::read(&mut Cursor::new(disk), target.size, target.sector)
}

#[test]
fn the_interim_table_lists_only_what_is_kept_in_both_copies() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let target = target(64, sector);
        let kept = vec![partition(3, 40, 50, "data"), partition(9, 50, 51, "ceph-1")];
        let shape = keeping(kept.clone());
        let head = image(16, sector, &[(1, 1, 15, "root")]);
        let layout = adopted(&head, 16, &target, &shape).unwrap();
        let interim = layout.interim.as_ref().unwrap();
        let copies = [&interim.primary, &interim.backup];
        let both: Vec<(u64, &[u8])> = copies.iter().map(|c| (c.0.0, c.1.as_slice())).collect();
        for parts in [&both[..], &both[..1], &both[1..]] {
            let Table::Gpt(gpt) = found(&target, parts) else {
                panic!("no GPT")
            };
            assert_eq!(gpt.partitions, kept);
            assert_eq!(gpt.copies_agree, parts.len() == 2);
            assert_eq!(gpt.disk_guid, shape.interim_guid);
            assert!(!gpt.protective && gpt.flaws.is_empty(), "{:?}", gpt.flaws);
        }
        let places = keep::interim_places(target.size, sector).unwrap();
        assert_eq!(places.0.start, interim.primary.0);
        assert_eq!(places.0.length.0, interim.primary.1.len() as u64);
        assert_eq!(places.1.start, interim.backup.0);
        assert_eq!(places.1.length.0, interim.backup.1.len() as u64);
        assert_eq!(layout.body_end(), Some(interim.backup.0));

        let mut all = vec![layout.image.partitions()[0].clone()];
        all.extend(kept);
        assert_eq!(layout.table.partitions(), all);
    }
}

#[test]
fn collisions_name_both_sides() {
    let disk = target(64, SectorSize::S512);
    let head = image(
        16,
        SectorSize::S512,
        &[(1, 1, 8, "root"), (2, 8, 12, "var")],
    );
    let refused = |kept: TablePartition| {
        let label = kept.name.clone().unwrap();
        let refusal = adopted(&head, 16, &disk, &keeping(vec![kept])).unwrap_err();
        let text = refusal.to_string();
        assert!(text.contains(&format!("{label:?}")), "{text}");
        text
    };
    let text = refused(partition(2, 40, 50, "data"));
    assert!(
        text.contains("partition 2 \"var\"") && text.contains("has the same number"),
        "{text}"
    );
    let text = refused(partition(3, 10, 20, "data"));
    assert!(
        text.contains("partition 2 \"var\"") && text.contains("lies over it"),
        "{text}"
    );
    let text = refused(partition(3, 14, 20, "data"));
    assert!(text.contains("the image is 16.0 MiB"), "{text}");
    let text = refused(partition(3, 40, 64, "data"));
    assert!(text.contains("the backup table begins"), "{text}");
    let mut twin = partition(3, 40, 50, "data");
    twin.partuuid = guid(1).to_string();
    assert!(refused(twin.clone()).contains("has the same PARTUUID"));
    let shape = Shape {
        guids: Guids::New,
        ..keeping(vec![twin])
    };
    assert!(adopted(&head, 16, &disk, &shape).is_ok());
    let mut low = partition(3, 40, 50, "data");
    low.start = Bytes(MIB / 2);
    low.size = Bytes(MIB / 4);
    assert!(refused(low).contains("first MiB"));
}

#[test]
fn a_partition_grows_up_to_what_is_kept_or_added_or_the_end() {
    let head = image(
        16,
        SectorSize::S512,
        &[(1, 4, 15, "root"), (15, 1, 4, "esp")],
    );
    let disk = target(64, SectorSize::S512);
    let end = |shape: &Shape| {
        let layout = adopted(&head, 16, &disk, shape).unwrap();
        let root = &layout.table.partitions()[0];
        assert_eq!(
            (root.number, root.start.0, layout.grown),
            (1, 4 * MIB, Some(1))
        );
        assert_eq!(layout.image.partitions()[0].size.0, 11 * MIB);
        (root.start.0 + root.size.0) / MIB
    };
    let growing = |name: &str| Shape {
        grow: Some(Named::Label(name.to_owned())),
        ..Shape::default()
    };
    assert_eq!(end(&growing("root")), 63);
    let mut shape = growing("root");
    shape.add = vec![addition("data", "20MiB".parse().unwrap())];
    assert_eq!(end(&shape), 43);
    shape.grow = Some(Named::Number(1));
    shape.kept = vec![partition(3, 30, 40, "old")];
    shape.interim_guid = keep::interim_guid("1:x");
    // The addition finds no room between the two, and goes behind what is kept.
    assert_eq!(end(&shape), 30);
    let esp = adopted(&head, 16, &disk, &growing("esp")).unwrap();
    assert_eq!(esp.table.partitions(), esp.image.partitions());
    let missing = adopted(&head, 16, &disk, &growing("home")).unwrap_err();
    let text = missing.to_string();
    assert!(
        text.contains("1 \"root\"") && text.contains("15 \"esp\""),
        "{text}"
    );
}

#[test]
fn new_guids_are_new_and_nothing_else_changes() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let head = image(16, sector, &[(1, 1, 8, "root"), (14, 8, 15, "var")]);
        let shape = Shape {
            guids: Guids::New,
            seed: Seed::random().unwrap(),
            ..Shape::default()
        };
        let layout = adopted(&head, 16, &target(20, sector), &shape).unwrap();
        let (Table::Gpt(old), Table::Gpt(new)) = (&layout.image, &layout.table) else {
            panic!("no GPT")
        };
        assert_ne!(old.disk_guid, new.disk_guid);
        for (a, b) in old.partitions.iter().zip(&new.partitions) {
            assert_ne!(a.partuuid, b.partuuid);
            let same = TablePartition {
                partuuid: a.partuuid.clone(),
                ..b.clone()
            };
            assert_eq!(*a, same);
        }
    }
    let mut mbr = vec![0; 1 << 20];
    mbr[440..444].copy_from_slice(&7u32.to_le_bytes());
    mbr[446 + 4] = 0x83;
    mbr[446 + 8..446 + 16].copy_from_slice(&[0, 8, 0, 0, 0, 8, 0, 0]);
    mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
    let shape = Shape {
        guids: Guids::New,
        seed: Seed::random().unwrap(),
        ..Shape::default()
    };
    let layout = adopted(&mbr, 4, &target(20, SectorSize::S512), &shape).unwrap();
    assert_ne!(layout.head[440..444], mbr[440..444]);
    mbr[440..444].copy_from_slice(&layout.head[440..444]);
    assert_eq!(layout.head, mbr);
    for shape in [
        keeping(vec![partition(3, 10, 12, "data")]),
        Shape {
            add: vec![Addition {
                kind: "21686148-6449-6e6f-744e-656564454649".to_owned(),
                ..addition("a", SizeText::Rest)
            }],
            ..Shape::default()
        },
        Shape {
            add: vec![addition("a", SizeText::Rest)],
            lasting: Some("a".to_owned()),
            ..Shape::default()
        },
    ] {
        let refusal = adopted(&mbr, 4, &target(20, SectorSize::S512), &shape).unwrap_err();
        assert!(refusal.to_string().contains("has an MBR"), "{refusal}");
    }
}

/// A head of 1 MiB with an MBR: number, type, first MiB, the MiB behind the last.
fn mbr_head(entries: &[(usize, u8, u32, u32)]) -> Vec<u8> {
    let mut head = vec![0; 1 << 20];
    head[440..444].copy_from_slice(&0xcafe_cafe_u32.to_le_bytes());
    for (number, kind, from, to) in entries {
        let at = 446 + (number - 1) * 16;
        head[at] = if *number == 1 { 0x80 } else { 0 };
        head[at + 4] = *kind;
        head[at + 8..at + 12].copy_from_slice(&(from * 2048).to_le_bytes());
        head[at + 12..at + 16].copy_from_slice(&((to - from) * 2048).to_le_bytes());
    }
    head[510..512].copy_from_slice(&[0x55, 0xaa]);
    head
}

/// What another reader sees: number, type, active, first MiB, MiB.
fn mbr_seen(head: &[u8]) -> Vec<(usize, u8, bool, u32, u32)> {
    let mbr = mbrman::MBRHeader::read_from(&mut std::io::Cursor::new(&head[..512])).unwrap();
    mbr.iter()
        .filter(|(_, p)| p.is_used())
        .map(|(i, p)| {
            assert_eq!((p.starting_lba % 2048, p.sectors % 2048), (0, 0));
            (
                i,
                p.sys,
                p.is_active(),
                p.starting_lba / 2048,
                p.sectors / 2048,
            )
        })
        .collect()
}

#[test]
fn partitions_of_an_mbr_grow_and_are_added_up_to_four() {
    let size = |text: &str| text.parse::<SizeText>().unwrap();
    let target = target(40, SectorSize::S512);
    let head = mbr_head(&[(1, 0x83, 1, 4), (3, 0x0c, 4, 8)]);
    let wish = |grow: Option<u32>, add: &[(&str, &str)]| {
        let add = add.iter().map(|(label, text)| addition(label, size(text)));
        let shape = Shape {
            grow: grow.map(Named::Number),
            add: add.collect(),
            seed: Seed::random().unwrap(),
            ..Shape::default()
        };
        adopted(&head, 10, &target, &shape)
    };
    let layout = wish(None, &[("a", "5MiB"), ("b", "Rest")]).unwrap();
    // Behind the image, which is longer than its last partition.
    let rows = [
        (1, 0x83, true, 1, 3),
        (2, 0x83, false, 10, 5),
        (3, 0x0c, false, 4, 4),
        (4, 0x83, false, 15, 25),
    ];
    assert_eq!(mbr_seen(&layout.head), rows);
    assert_eq!(layout.head[..446], head[..446]);
    assert_eq!(layout.head[512..], head[512..]);
    let names: Vec<_> = layout
        .added
        .iter()
        .map(|a| (a.number, a.label.as_str()))
        .collect();
    assert_eq!(names, [(2, "a"), (4, "b")]);
    assert_eq!(layout.tail, None);

    let layout = wish(Some(3), &[("a", "5MiB")]).unwrap();
    let rows = [
        (1, 0x83, true, 1, 3),
        (2, 0x83, false, 35, 5),
        (3, 0x0c, false, 4, 31),
    ];
    assert_eq!(mbr_seen(&layout.head), rows);
    assert_eq!(layout.grown, Some(3));

    let refused = |layout: Result<Layout, Refusal>, why: &str| {
        let text = layout.unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    };
    let three = [("a", "1MiB"), ("b", "1MiB"), ("c", "1MiB")];
    refused(
        wish(None, &three),
        "has room for 4 partitions, and none is left for \"c\"",
    );
    refused(wish(Some(2), &[]), "the image has no such partition");
    refused(wish(None, &[("a", "31MiB")]), "there is no room on");
    // A chain of logical partitions is left alone.
    let extended = mbr_head(&[(1, 0x83, 1, 4), (2, 0x05, 4, 8)]);
    let shape = Shape {
        grow: Some(Named::Number(2)),
        ..Shape::default()
    };
    refused(
        adopted(&extended, 10, &target, &shape),
        "only primary partitions grow",
    );
}

#[test]
fn an_mbr_reaches_two_tebibytes() {
    let head = mbr_head(&[(1, 0x83, 1, 4)]);
    let shape = Shape {
        add: vec![addition("rest", SizeText::Rest)],
        ..Shape::default()
    };
    let mut target = target(0, SectorSize::S512);
    target.size = Bytes(3 << 40);
    let layout = adopted(&head, 4, &target, &shape).unwrap();
    assert_eq!(
        mbr_seen(&layout.head)[1],
        (2, 0x83, false, 4, (2 << 20) - 4)
    );
}

/// The writes of a reinstallation, in their order, the last of them torn at every block.
#[test]
fn a_write_torn_anywhere_leaves_a_copy_that_lists_what_is_kept() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let target = target(32, sector);
        let kept = vec![partition(3, 20, 22, "data")];
        let shape = keeping(kept.clone());
        let old = adopted(
            &image(16, sector, &[(1, 1, 15, "old")]),
            16,
            &target,
            &shape,
        )
        .unwrap();
        let new = adopted(
            &image(12, sector, &[(1, 1, 11, "new")]),
            12,
            &target,
            &shape,
        )
        .unwrap();
        let interim = new.interim.as_ref().unwrap();
        let block = usize::try_from(sector.get()).unwrap();
        let tail = |layout: &Layout| layout.tail.clone().unwrap();
        let disk = crate::host::Disk {
            size: target.size,
            sector: Some(sector),
            table: old.table.clone(),
            ..crate::host::Disk::default()
        };
        let cleared =
            crate::plan::clear::spans(&disk, &crate::plan::clear::spared(&disk, &kept)).into_iter();
        let zeros = |s: Span| (s.start, vec![0; usize::try_from(s.length.0).unwrap()]);
        for first_primary in [false, true] {
            let mut now = vec![0u8; usize::try_from(target.size.0).unwrap()];
            let mut apply = |at: Bytes, bytes: &[u8], torn: bool| {
                for (i, part) in bytes.chunks(block).enumerate() {
                    let at = usize::try_from(at.0).unwrap() + i * block;
                    now[at..at + part.len()].copy_from_slice(part);
                    let near_a_table = !(64 << 10..31 << 20).contains(&at);
                    if torn && near_a_table {
                        let table = tables::read(&mut Cursor::new(&now), target.size, sector);
                        assert!(
                            table.partitions().contains(&kept[0]),
                            "torn at byte {at}: {table:?}"
                        );
                    }
                }
            };
            apply(Bytes::ZERO, &old.head, false);
            // Where one of the old copies is broken, it goes first.
            if first_primary {
                apply(Bytes(sector.get()), &vec![7; block], false);
            }
            apply(tail(&old).0, &tail(&old).1, false);
            let (one, other) = if first_primary {
                (&interim.primary, &interim.backup)
            } else {
                (&interim.backup, &interim.primary)
            };
            apply(Bytes::ZERO, &vec![0; block], true);
            apply(one.0, &one.1, true);
            apply(other.0, &other.1, true);
            for (at, bytes) in cleared.clone().map(zeros) {
                apply(at, &bytes, true);
            }
            apply(tail(&new).0, &tail(&new).1, true);
            apply(Bytes(sector.get()), &new.head[block..], true);
            apply(Bytes::ZERO, &new.head[..block], true);
            let table = tables::read(&mut Cursor::new(&now), target.size, sector);
            assert_eq!(table, new.table);
        }
    }
}

proptest! {
    /// Whatever is asked for: either a refusal, or a table that is whole, without overlaps, aligned, with the
    /// kept and the image's partitions where they were.
    #[test]
    fn what_comes_out_is_whole(
        large in any::<bool>(), mib in 18u64..90,
        kept in proptest::collection::vec((1u32..20, 2u64..80, 1u64..20), 0..4),
        add in proptest::collection::vec(prop_oneof![Just("1MiB"), Just("7MB"), Just("30%"), Just("50%")], 0..4),
        rest in any::<bool>(), grow in any::<bool>(), new in any::<bool>(),
    ) {
        let sector = if large { SectorSize::S4096 } else { SectorSize::S512 };
        let target = target(mib, sector);
        let head = image(16, sector, &[(14, 1, 2, "boot"), (15, 2, 4, "esp"), (1, 4, 15, "root")]);
        let kept = kept.into_iter().map(|(n, from, length)| partition(n, from, from + length, &format!("kept {n}")));
        let mut shape = keeping(kept.collect());
        shape.add = add.iter().enumerate().map(|(i, s)| addition(&format!("added {i}"), s.parse().unwrap())).collect();
        if rest && !grow {
            shape.add.push(addition("rest", SizeText::Rest));
        }
        shape.grow = grow.then_some(Named::Number(1));
        shape.guids = if new { Guids::New } else { Guids::Keep };
        // The first plan sees to it that what is kept does not overlap and has one number each.
        for (i, one) in shape.kept.iter().enumerate() {
            for other in &shape.kept[i + 1..] {
                prop_assume!(one.number != other.number && !extent(one).overlaps(extent(other)));
            }
        }
        if let Ok(layout) = adopted(&head, 16, &target, &shape) {
            let (at, tail) = layout.tail.as_ref().unwrap();
            let table = found(&target, &[(0, &layout.head), (at.0, tail)]);
            prop_assert_eq!(&table, &layout.table);
            let Table::Gpt(gpt) = &table else { panic!("no GPT") };
            prop_assert!(gpt.flaws.is_empty(), "{:?}", gpt.flaws);
            prop_assert!(gpt.protective && gpt.copies_agree && gpt.backup_at_end);
            for one in &shape.kept {
                prop_assert!(gpt.partitions.contains(one), "{one:?}");
            }
            prop_assert_eq!(gpt.partitions.len(), 3 + shape.kept.len() + shape.add.len());
            for old in layout.image.partitions() {
                let now = gpt.partitions.iter().find(|p| p.number == old.number).unwrap();
                prop_assert_eq!((now.start, &now.name, &now.kind), (old.start, &old.name, &old.kind));
                prop_assert!(now.size == old.size || (now.number == 1 && now.size > old.size));
                prop_assert_eq!(new, now.partuuid != old.partuuid);
            }
            for added in &layout.added {
                let now = gpt.partitions.iter().find(|p| p.number == added.number).unwrap();
                prop_assert_eq!(extent(now), added.place);
                prop_assert!(now.start.0 % MIB == 0 && now.size.0 % MIB == 0 && now.size.0 > 0);
                prop_assert!(extent(now).end <= layout.body_end().unwrap().0);
            }
        }
    }
}
