//! Format 1 byte by byte, and what each kind of misfit is called.

use proptest::prelude::*;

use super::*;
use crate::host::tables::{CopyState, Gpt, Mbr};
use crate::units::Bytes;

const GUID: &str = "11111111-2222-3333-4444-555555555555";

fn identity() -> RecordIdentity {
    RecordIdentity {
        identity: "sha256:00ff".to_owned(),
        claim: "tenant-a/worker-7".to_owned(),
        image: "sha256:abcd".to_owned(),
        version: "0.1.0".to_owned(),
        time: 1_764_000_000,
        kept: Vec::new(),
        sections: None,
    }
}

fn disk() -> Disk {
    Disk {
        name: "sda".to_owned(),
        wwn: Some("naa.5000".to_owned()),
        serial: Some("S1".to_owned()),
        sector: Some(SectorSize::S512),
        ..Disk::default()
    }
}

fn gpt() -> Gpt {
    Gpt {
        sector: SectorSize::S512,
        disk_guid: GUID.to_owned(),
        protective: true,
        primary: CopyState::Valid,
        primary_end: Bytes(34 * 512),
        backup: CopyState::Valid,
        copies_agree: true,
        backup_lists: None,
        backup_at_end: true,
        usable: (34, 1000),
        entries: 128,
        partitions: vec![],
        flaws: vec![],
    }
}

fn record(state: State, table: &Table) -> Record {
    let disk = DiskIdentity::of(&disk());
    Record {
        state,
        identity: identity(),
        disk: match state {
            State::Mark => disk,
            State::Record | State::Sealed => disk.with_table(table),
        },
    }
}

fn why(found: RecordFound) -> String {
    match found {
        RecordFound::Foreign { why, .. } => why,
        other => panic!("accepted: {other:?}"),
    }
}

#[test]
fn the_layout_of_format_1_is_frozen() {
    let bytes = encode(&record(State::Record, &Table::Gpt(gpt()))).unwrap();
    assert_eq!(
        &bytes[..24],
        b"ironroot record\n\x01\x00\x02\x00\xc1\x00\x00\x00"
    );
    let end = bytes[24..].iter().position(|b| *b == 0).unwrap() + 24;
    assert_eq!(
        std::str::from_utf8(&bytes[24..end]).unwrap(),
        "{\"identity\":\"sha256:00ff\",\"claim\":\"tenant-a/worker-7\",\"image\":\"sha256:abcd\",\
         \"version\":\"0.1.0\",\"time\":1764000000,\"diskGuid\":\"11111111-2222-3333-4444-555555555555\",\
         \"wwn\":\"naa.5000\",\"serial\":\"S1\"}"
    );
    assert_eq!(OFFSET + 4096, 1 << 20);
}

#[test]
fn unknown_fields_are_passed_over_and_a_newer_format_is_not() {
    let json =
        br#"{"identity":"x","claim":"c","image":"i","version":"9","time":1,"colour":"blue"}"#;
    let with = |format: u16| {
        let mut area = [0u8; SIZE];
        area[..16].copy_from_slice(MAGIC);
        area[16..18].copy_from_slice(&format.to_le_bytes());
        area[18] = 1;
        area[20..24].copy_from_slice(&u32::try_from(json.len()).unwrap().to_le_bytes());
        area[24..24 + json.len()].copy_from_slice(json);
        let digest = Sha256::digest(&area[..DIGEST_AT]);
        area[DIGEST_AT..].copy_from_slice(&digest);
        area
    };
    assert_eq!(decode(&with(1)).unwrap().unwrap().identity.identity, "x");
    assert_eq!(decode(&with(2)), Err(Unreadable::Format(2)));
}

#[test]
fn a_torn_write_is_no_record() {
    let old = encode(&record(State::Mark, &Table::None)).unwrap();
    let new = encode(&record(State::Record, &Table::Gpt(gpt()))).unwrap();
    for sectors in 1..8 {
        let mut torn = old;
        torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
        assert_eq!(decode(&torn), Err(Unreadable::Checksum), "{sectors}");
        let mut torn = new;
        torn[..sectors * 512].copy_from_slice(&old[..sectors * 512]);
        assert_eq!(decode(&torn), Err(Unreadable::Checksum), "{sectors}");
    }
    assert_eq!(decode(&new[..4000]), Err(Unreadable::Short(4000)));
    assert_eq!(decode(&[0; SIZE]), Ok(None));
    assert_eq!(decode(&[]), Ok(None));
}

/// What a disk may have of `to` over `from`: any of the sectors, or all but the last so many.
fn cuts(from: &[u8], to: &[u8]) -> Vec<Vec<u8>> {
    let sectors = from.len() / SECTOR;
    (0u32..1 << sectors)
        .map(|chosen| {
            let mut cut = from.to_vec();
            for n in (0..sectors).filter(|n| chosen & (1 << n) != 0) {
                let place = n * SECTOR..(n + 1) * SECTOR;
                cut[place.clone()].copy_from_slice(&to[place]);
            }
            cut
        })
        .collect()
}

/// As `write_area` in src/run/head.rs writes: each step is on the medium before the next.
fn steps(old: &[u8; SIZE], begun: &[u8], new: &[u8; SIZE]) -> [Vec<u8>; 4] {
    let first = [begun, &old[SECTOR..]].concat();
    let second = [begun, &new[SECTOR..]].concat();
    [old.to_vec(), first, second, new.to_vec()]
}

#[test]
fn a_cut_at_any_sector_leaves_the_old_or_the_new_or_a_mark_of_the_new() {
    let gpt = Table::Gpt(gpt());
    let mut other = record(State::Mark, &Table::None);
    other.identity.identity = "1:other".to_owned();
    other.identity.claim = "c".repeat(300);
    other.identity.kept = vec![3, 4];
    let areas = vec![
        [0; SIZE],
        [0xa5; SIZE],
        encode(&other).unwrap(),
        encode(&record(State::Mark, &gpt)).unwrap(),
        encode(&record(State::Record, &gpt)).unwrap(),
        encode(&record(State::Sealed, &gpt)).unwrap(),
    ];
    let mut seen = 0;
    for old in &areas {
        for new in [
            &other,
            &record(State::Mark, &gpt),
            &record(State::Record, &gpt),
        ] {
            let mark = Record {
                state: State::Mark,
                disk: DiskIdentity::of(&disk()),
                ..new.clone()
            };
            let begun = begun(&mark).unwrap().unwrap();
            let new = encode(new).unwrap();
            for pair in steps(old, &begun, &new).windows(2) {
                for cut in cuts(&pair[0], &pair[1]) {
                    seen += 1;
                    if cut == *old || cut == new {
                        continue;
                    }
                    let found = decode(&cut).unwrap().unwrap();
                    assert_eq!(found.state, State::Mark);
                    assert_eq!(found.disk, mark.disk);
                    assert_eq!(found.identity.identity, mark.identity.identity);
                    assert_eq!(found.identity.kept, mark.identity.kept);
                }
            }
        }
    }
    assert_eq!(seen, 6 * 3 * 3 * 256);
}

#[test]
fn what_has_no_room_in_one_sector_is_left_out_or_there_is_none() {
    let mut mark = record(State::Mark, &Table::None);
    mark.identity.claim = "c".repeat(400);
    let sector = begun(&mark).unwrap().unwrap();
    let area = [sector.as_slice(), &[7; SIZE - SECTOR]].concat();
    let found = decode(&area).unwrap().unwrap();
    assert_eq!(found.identity.claim, "");
    assert_eq!(found.disk, mark.disk);
    mark.disk.serial = Some("s".repeat(400));
    assert_eq!(begun(&mark).unwrap(), None);
    // No byte of it is free.
    for at in MAGIC.len()..SECTOR {
        let mut area = area.clone();
        area[at] ^= 1;
        assert!(decode(&area).is_err(), "{at}");
    }
}

#[test]
fn a_record_counts_on_its_own_disk_with_its_own_table_only() {
    let table = Table::Gpt(gpt());
    let found = || Ok(Some(record(State::Record, &table)));
    assert_eq!(
        judge(found(), &table, &disk()),
        RecordFound::Installed(identity())
    );

    let clone = Disk {
        serial: Some("S2".to_owned()),
        ..disk()
    };
    assert!(why(judge(found(), &table, &clone)).contains("serial number S1, this disk has S2"));
    // Another kernel may leave out a name, or make one of another kind, as long as the other one fits.
    let named = |wwn: Option<&str>, serial: Option<&str>| Disk {
        wwn: wwn.map(str::to_owned),
        serial: serial.map(str::to_owned),
        ..disk()
    };
    for (wwn, serial) in [
        (None, Some("S1")),
        (Some("0x5000"), None),
        (Some("nvme.144d-53"), Some("S1")),
    ] {
        assert_eq!(
            judge(found(), &table, &named(wwn, serial)),
            RecordFound::Installed(identity()),
            "{wwn:?} {serial:?}"
        );
    }
    for (wwn, serial) in [
        (None, None),
        (Some("nvme.144d-53"), None),
        (Some("naa.6000"), Some("S1")),
        (Some("naa.5000"), Some("S2")),
    ] {
        why(judge(found(), &table, &named(wwn, serial)));
    }
    let nameless = named(None, None);
    assert!(why(judge(found(), &table, &nameless)).contains("this disk has none"));

    let other = Table::Gpt(Gpt {
        disk_guid: "other".to_owned(),
        ..gpt()
    });
    assert!(why(judge(found(), &other, &disk())).contains("disk GUID"));
    for broken in [
        Table::None,
        Table::Damaged {
            why: "x".to_owned(),
        },
        Table::Gpt(Gpt {
            protective: false,
            ..gpt()
        }),
        Table::Gpt(Gpt {
            primary: CopyState::Missing,
            ..gpt()
        }),
        Table::Gpt(Gpt {
            backup: CopyState::Missing,
            ..gpt()
        }),
        Table::Gpt(Gpt {
            copies_agree: false,
            ..gpt()
        }),
        Table::Gpt(Gpt {
            sector: SectorSize::S4096,
            ..gpt()
        }),
        Table::Mbr(Mbr {
            signature: "deadbeef".to_owned(),
            partitions: vec![],
        }),
    ] {
        why(judge(found(), &broken, &disk()));
    }
}

#[test]
fn an_mbr_is_known_by_its_signature() {
    let table = Table::Mbr(Mbr {
        signature: "deadbeef".to_owned(),
        partitions: vec![],
    });
    let found = || Ok(Some(record(State::Record, &table)));
    assert!(matches!(
        judge(found(), &table, &disk()),
        RecordFound::Installed(_)
    ));
    let other = Table::Mbr(Mbr {
        signature: "cafecafe".to_owned(),
        partitions: vec![],
    });
    assert!(why(judge(found(), &other, &disk())).contains("disk signature"));
}

#[test]
fn a_mark_needs_no_table_but_its_own_disk() {
    let found = || Ok(Some(record(State::Mark, &Table::None)));
    assert_eq!(
        judge(found(), &Table::None, &disk()),
        RecordFound::Mark(identity())
    );
    let clone = Disk {
        wwn: Some("naa.6000".to_owned()),
        ..disk()
    };
    assert!(why(judge(found(), &Table::None, &clone)).contains("wwn"));
    assert_eq!(judge(Ok(None), &Table::None, &disk()), RecordFound::None);
    why(judge(Err(Unreadable::Checksum), &Table::None, &disk()));
}

#[test]
fn a_record_without_the_sector_that_commits_it_is_still_a_mark() {
    let table = Table::Gpt(Gpt {
        protective: false,
        ..gpt()
    });
    let found = |lba0: &[u8]| Ok(Some(record(State::Record, &table).committed_by(lba0)));
    let cut_off = judge(found(&[0; 512]), &table, &disk());
    assert_eq!(cut_off, RecordFound::Mark(identity()));
    let mut damaged = [0; 512];
    damaged[511] = 1;
    why(judge(found(&damaged), &table, &disk()));
    why(judge(found(&[]), &table, &disk()));
    let clone = Disk {
        serial: Some("S2".to_owned()),
        ..disk()
    };
    why(judge(found(&[0; 512]), &table, &clone));
}

#[test]
fn a_sealed_record_whose_lba_0_was_zeroed_is_no_unfinished_installation() {
    let whole = Table::Gpt(gpt());
    let headless = Table::Gpt(Gpt {
        protective: false,
        ..gpt()
    });
    let sealed = |lba0: &[u8]| Ok(Some(record(State::Sealed, &whole).committed_by(lba0)));
    assert_eq!(
        judge(sealed(&[1; 512]), &whole, &disk()),
        RecordFound::Installed(identity())
    );
    let text = why(judge(sealed(&[0; 512]), &headless, &disk()));
    assert!(text.contains("sector 0 is no protective MBR"), "{text}");
}

/// Each mix of old and new sectors is one of both, whatever a cut leaves.
#[test]
fn a_damaged_table_of_its_own_is_told_from_another_one() {
    let sealed = record(State::Sealed, &Table::Gpt(gpt()));
    let left = |table: &Table, disk: &Disk| match judge(Ok(Some(sealed.clone())), table, disk) {
        RecordFound::Foreign { of, .. } => of.map(|of| of.claim),
        other => panic!("accepted: {other:?}"),
    };
    let half = Table::Gpt(Gpt {
        backup: CopyState::Missing,
        ..gpt()
    });
    let torn = Table::Damaged {
        why: "both copies".to_owned(),
    };
    let used_since = Table::Gpt(Gpt {
        disk_guid: "99999999-2222-3333-4444-555555555555".to_owned(),
        ..gpt()
    });
    let copied_to = Disk {
        serial: Some("S2".to_owned()),
        wwn: Some("naa.5001".to_owned()),
        ..disk()
    };
    let claim = Some("tenant-a/worker-7".to_owned());
    assert_eq!(left(&half, &disk()), claim);
    assert_eq!(left(&torn, &disk()), claim);
    assert_eq!(left(&used_since, &disk()), None);
    // `sgdisk --zap-all` leaves the record: whoever did that wanted the disk empty.
    assert_eq!(left(&Table::None, &disk()), None);
    assert_eq!(left(&half, &copied_to), None);
}

#[test]
fn a_seal_is_one_sector() {
    let old = encode(&record(State::Record, &Table::Gpt(gpt()))).unwrap();
    let new = encode(&record(State::Sealed, &Table::Gpt(gpt()))).unwrap();
    assert_eq!(old[512..], new[512..]);
    assert_eq!(decode(&new).unwrap().unwrap().state, State::Sealed);
    assert_eq!(&new[18..20], &[3, 0x5a]);
}

#[test]
fn what_the_disk_section_said_is_left_out_where_it_does_not_fit() {
    let mut long = record(State::Record, &Table::Gpt(gpt()));
    let key = |n: u32| (format!("key{n}"), "12345678".to_owned());
    long.identity.sections = Some((0..20).map(key).collect());
    let read = decode(&encode(&long).unwrap()).unwrap().unwrap();
    assert_eq!(read, long);
    long.identity.image = "x".repeat(3200);
    let read = decode(&encode(&long).unwrap()).unwrap().unwrap();
    assert_eq!(read.identity.sections, None);
    assert_eq!(read.identity.image, long.identity.image);
}

#[test]
fn a_record_that_does_not_fit_is_a_config_error() {
    let mut long = record(State::Mark, &Table::None);
    long.identity.image = "x".repeat(4000);
    let error = encode(&long).unwrap_err();
    assert_eq!(error.class(), Class::Config);
    assert!(error.next().contains("image.digest"));
}

fn any_record() -> impl Strategy<Value = Record> {
    let text = "\\PC{0,40}";
    let maybe = || proptest::option::of("\\PC{0,20}");
    let state = [State::Mark, State::Record, State::Sealed];
    (
        proptest::sample::select(state.to_vec()),
        text,
        text,
        text,
        (any::<u64>(), proptest::collection::vec(1u32..=128, 0..128)),
        maybe(),
        maybe(),
        maybe(),
        maybe(),
    )
        .prop_map(
            |(
                state,
                identity,
                claim,
                image,
                (time, kept),
                disk_guid,
                mbr_signature,
                wwn,
                serial,
            )| Record {
                state,
                identity: RecordIdentity {
                    identity,
                    claim,
                    image,
                    version: "1".to_owned(),
                    time,
                    kept,
                    sections: None,
                },
                disk: DiskIdentity {
                    disk_guid,
                    mbr_signature,
                    wwn,
                    serial,
                },
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read(record in any_record()) {
        prop_assert_eq!(decode(&encode(&record).unwrap()), Ok(Some(record)));
    }

    #[test]
    fn every_flipped_byte_is_noticed(record in any_record(), at in 0..SIZE, by in 1u8..) {
        let mut bytes = encode(&record).unwrap();
        bytes[at] ^= by;
        let read = decode(&bytes);
        prop_assert!(matches!(read, Ok(None) | Err(_)), "{:?}", read);
        prop_assert_eq!(read == Ok(None), at < MAGIC.len());
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..5000), ours in any::<bool>()) {
        if ours && bytes.len() > 16 {
            bytes[..16].copy_from_slice(MAGIC);
        }
        let _ = decode(&bytes);
    }
}
