//! What disks get, and what their tables say then.

use super::gpt::guid;
use super::*;
use crate::config::request::preserve::NewFileSystem;
use crate::host::tables::{self, CopyState, Table};
use crate::image::record;
use crate::plan::layout::kept::entry_of;
use crate::units::SectorSize;
use proptest::prelude::*;

fn guids() -> Guids {
    let guid = |c: &str| format!("{c}0000000-1111-4222-8333-444444444444");
    Guids {
        disk: guid("a"),
        esp: guid("b"),
        root: guid("c"),
        bios: guid("e"),
        filesystem: guid("d"),
    }
}

fn target(size: u64, sector: SectorSize) -> Target {
    Target {
        path: "/dev/x".into(),
        name: "x".to_owned(),
        dev: None,
        size: Bytes(size),
        sector,
        identity: record::DiskIdentity::default(),
    }
}

fn plain(target: &Target) -> Result<NewTable, Refusal> {
    partitions(target, "x86_64", &Wanted::default(), &guids())
}

fn data(size: &str) -> Addition {
    Addition {
        label: "data".to_owned(),
        size: size.parse().unwrap(),
        kind: LINUX_DATA.to_owned(),
        filesystem: Some(NewFileSystem::Ext4),
    }
}

/// The partitions of the table that a disk of 8 GiB gets: number, name, start and length in MiB.
fn seen(wanted: &Wanted<'_>) -> Result<Vec<(u32, String, u64, u64)>, Refusal> {
    let target = target(8 << 30, SectorSize::S512);
    let table = partitions(&target, "x86_64", wanted, &guids())?;
    let shape = Shape {
        kept: wanted.kept.to_vec(),
        add: wanted.add.to_vec(),
        seed: Seed::random().unwrap(),
        interim_guid: guids().disk,
        ..Shape::default()
    };
    let kept = wanted.kept.iter().map(|p| entry_of(p, 512).unwrap());
    let kept: Vec<Entry> = kept.collect();
    let layout = layout(&table, &target, &shape, &kept)?;
    Ok(layout
        .table
        .partitions()
        .iter()
        .map(|p| {
            let name = p.name.clone().unwrap_or_default();
            (p.number, name, p.start.0 / MIB, p.size.0 / MIB)
        })
        .collect())
}

fn row(number: u32, name: &str, start: u64, size: u64) -> (u32, String, u64, u64) {
    (number, name.to_owned(), start, size)
}

#[test]
fn a_data_partition_stands_behind_the_root_and_stays_there_over_a_reinstall() {
    let size: SizeText = "2GiB".parse().unwrap();
    let first = seen(&Wanted {
        root_size: Some(size),
        add: &[data("Rest")],
        ..Wanted::default()
    });
    let rows = [
        row(1, "ESP", 1, 512),
        row(2, "root", 513, 2048),
        row(3, "data", 2561, 8192 - 2561 - 1),
    ];
    assert_eq!(first.unwrap(), rows);
    // The rest is the root's where nobody else wants it.
    let sized = [data("1GiB")];
    let wanted = Wanted {
        add: &sized,
        ..Wanted::default()
    };
    let rows = [
        row(1, "ESP", 1, 512),
        row(2, "root", 513, 8192 - 513 - 1 - 1024),
        row(3, "data", 8192 - 1 - 1024, 1024),
    ];
    assert_eq!(seen(&wanted).unwrap(), rows);

    let there = TablePartition {
        number: 3,
        kind: tables::PartitionKind::Guid(LINUX_DATA.to_owned()),
        name: Some("data".to_owned()),
        partuuid: guids().filesystem,
        start: Bytes(2561 * MIB),
        size: Bytes(1000 * MIB),
        attributes: 0,
    };
    let kept = std::slice::from_ref(&there);
    let again = Wanted {
        root_size: Some(size),
        kept,
        ..Wanted::default()
    };
    assert_eq!(
        seen(&again).unwrap(),
        [
            row(1, "ESP", 1, 512),
            row(2, "root", 513, 2048),
            row(3, "data", 2561, 1000),
        ]
    );
    // Without a size the root ends where it begins.
    let again = Wanted {
        root_size: None,
        ..again
    };
    assert_eq!(seen(&again).unwrap()[1], row(2, "root", 513, 2048));
    let larger = Wanted {
        root_size: Some("2049MiB".parse().unwrap()),
        ..again
    };
    let refusal = seen(&larger).unwrap_err();
    assert!(matches!(refusal, Refusal::Partitions { .. }), "{refusal}");
    // With another boot loader the root stands one MiB further on: no byte of what is kept is touched.
    let bios = Wanted {
        root_size: Some(size),
        bios_boot: true,
        ..again
    };
    assert!(matches!(seen(&bios), Err(Refusal::Partitions { .. })));
    // What lies where the EFI system partition goes is named.
    let early = TablePartition {
        start: Bytes(MIB),
        ..there
    };
    let wanted = Wanted {
        kept: std::slice::from_ref(&early),
        ..Wanted::default()
    };
    let refusal = seen(&wanted).unwrap_err();
    assert!(refusal.to_string().contains("lies over it"), "{refusal}");
}

#[test]
fn a_bios_boot_partition_stands_in_front_and_has_a_number_of_its_own() {
    let wanted = Wanted {
        bios_boot: true,
        ..Wanted::default()
    };
    assert_eq!(
        seen(&wanted).unwrap(),
        [
            row(1, "ESP", 2, 512),
            row(2, "root", 514, 8192 - 514 - 1),
            row(14, "BIOS boot", 1, 1),
        ]
    );
}

#[test]
fn what_does_not_fit_beside_the_root_is_too_much() {
    let wanted = Wanted {
        add: &[data("7680MiB")],
        ..Wanted::default()
    };
    let refusal = seen(&wanted).unwrap_err();
    assert!(matches!(refusal, Refusal::TooSmall { .. }), "{refusal}");
    let wanted = Wanted {
        root_size: Some(SizeText::Rest),
        add: &[data("10%")],
        ..Wanted::default()
    };
    let refusal = seen(&wanted).unwrap_err();
    assert!(matches!(refusal, Refusal::Partitions { .. }), "{refusal}");
}

/// A disk on which only what the layout writes is not zero, as far as a table goes.
fn disk(layout: &Layout, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    bytes[..layout.head.len()].copy_from_slice(&layout.head);
    let (at, tail) = layout.tail.as_ref().unwrap();
    let at = usize::try_from(at.0).unwrap();
    assert_eq!(at + tail.len(), bytes.len(), "the backup ends the disk");
    bytes[at..].copy_from_slice(tail);
    bytes
}

#[test]
fn both_copies_are_valid_on_disks_of_either_sector_size() {
    for (size, sector) in [
        (256 * MIB, SectorSize::S512),
        (512 * MIB, SectorSize::S4096),
        (300 * MIB + 512, SectorSize::S512),
    ] {
        let target = target(size, sector);
        let table = plain(&target).unwrap();
        let layout = layout(&table, &target, &Shape::default(), &[]).unwrap();
        let bytes = disk(&layout, size);
        let read = tables::read(&mut std::io::Cursor::new(&bytes), Bytes(size), sector);
        assert_eq!(read.why_not_whole(sector), None);
        let Table::Gpt(gpt) = &read else {
            panic!("{read:?}")
        };
        assert!(gpt.backup_at_end && gpt.flaws.is_empty(), "{gpt:?}");
        assert_eq!(gpt.primary, CopyState::Valid);
        assert_eq!(gpt.disk_guid, guids().disk);
        assert_eq!(gpt.partitions, layout.table.partitions());
        let [esp, root] = &gpt.partitions[..] else {
            panic!("{gpt:?}")
        };
        assert!(esp.kind.is_esp() && esp.name.as_deref() == Some("ESP"));
        assert_eq!(esp.partuuid, guids().esp);
        assert_eq!(root.partuuid, guids().root);
        assert_eq!(root.name.as_deref(), Some("root"));
        // No boot code, and room for the record.
        assert!(layout.head[..446].iter().all(|b| *b == 0));
        let area = usize::try_from(record::OFFSET).unwrap();
        assert!(layout.head[area..].iter().all(|b| *b == 0));
    }
}

proptest! {
    #[test]
    fn partitions_are_aligned_apart_and_within_the_usable_space(
        size in 1u64..(1 << 45), big in any::<bool>(),
    ) {
        let sector = if big { SectorSize::S4096 } else { SectorSize::S512 };
        let target = target(size / 4096 * 4096, sector);
        match plain(&target) {
            Err(refusal) => {
                prop_assert!(target.size.0 < if big { 400 } else { 200 } * MIB, "{}", refusal);
            }
            Ok(table) => {
                let layout = layout(&table, &target, &Shape::default(), &[]).unwrap();
                let tail = layout.tail.as_ref().unwrap().0.0;
                let mut at = MIB;
                for p in &table.partitions {
                    prop_assert!(p.start.0 >= at && p.start.0 % MIB == 0 && p.size.0 % MIB == 0);
                    at = p.start.0 + p.size.0;
                }
                prop_assert!(at <= tail);
                // No more is left over than alignment takes.
                prop_assert!(tail - at < MIB);
                let esp = table.partition(ESP).unwrap().size.0;
                prop_assert!((fat::least(sector).0..=512 * MIB).contains(&esp));
                prop_assert!(esp == 512 * MIB || target.size.0 < 4096 * MIB);
            }
        }
    }

    #[test]
    fn any_text_is_a_guid_or_not_without_a_panic(text in "\\PC{0,40}") {
        let _ = guid(&text);
    }
}

#[test]
fn a_guid_is_written_with_its_first_fields_reversed() {
    let bytes = guid(ESP_TYPE).unwrap();
    assert_eq!(bytes[..8], [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11]);
    assert_eq!(guid("c12a7328"), None);
}
