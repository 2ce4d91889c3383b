use super::name::*;
use super::*;
use proptest::prelude::*;
use std::process::Command;

fn volume(mib: u64, sector: SectorSize) -> Volume {
    Volume {
        size: Bytes(mib * MIB),
        start: Bytes(MIB),
        sector,
        label: "ESP",
        number: 0x1234_abcd,
    }
}

fn said(program: &str, args: &[&str]) -> (bool, Vec<u8>) {
    let out = Command::new(program).args(args).output().unwrap();
    let failed = !out.status.success();
    let text = if failed {
        [out.stdout, out.stderr].concat()
    } else {
        out.stdout
    };
    (!failed, text)
}

#[test]
fn every_size_and_sector_gives_a_fat_that_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fat");
    let name = path.to_str().unwrap();
    let content: Vec<u8> = (0..3_000_001u32).flat_map(u32::to_le_bytes).collect();
    let long = "debian/6.1.0-49-cloud-amd64/linux";
    let longer = "loader/entries/debian-6.1.0-49-cloud-amd64.conf";
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let least = least(sector).0 / MIB;
        for mib in [least, least + 1, least + 2, 300, 400, 511, 512, 513, 700] {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
                .unwrap();
            file.set_len(mib * MIB).unwrap();
            let mut fat = FatWriter::new(&file, volume(mib, sector)).unwrap();
            assert_eq!(fat.add(long, &mut &content[..]).unwrap(), 12_000_004);
            fat.add(longer, &mut &b"title x"[..]).unwrap();
            fat.add(
                "loader/entries/debian-6.1.0-50-cloud-amd64.conf",
                &mut &b""[..],
            )
            .unwrap();
            fat.add("EFI/BOOT/BOOTX64.EFI", &mut &b"loader"[..])
                .unwrap();
            for n in 0..200 {
                fat.add(
                    &format!("EFI/many/a name of some length {n}"),
                    &mut &[n; 9][..],
                )
                .unwrap();
            }
            fat.finish().unwrap();
            let (good, text) = said("fsck.vfat", &["-n", "-v", name]);
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(
                good && text.contains("32 bit entries"),
                "{mib} {sector}: {text}"
            );
            for (file, wanted) in [
                (long, &content[..]),
                (longer, b"title x"),
                ("EFI/BOOT/BOOTX64.EFI", b"loader"),
                ("EFI/many/a name of some length 199", &[199; 9]),
            ] {
                let (_, found) = said("mtype", &["-i", name, &format!("::{file}")]);
                assert!(found == wanted, "{mib} {sector} {file}");
            }
            let (_, text) = said("blkid", &["-p", name]);
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(
                text.contains("LABEL=\"ESP\"") && text.contains("UUID=\"1234-ABCD\""),
                "{text}"
            );
        }
    }
}

#[test]
fn there_is_no_file_system_before_the_end() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(64 * MIB).unwrap();
    for finished in [true, false] {
        let mut fat = FatWriter::new(&file, volume(64, SectorSize::S512)).unwrap();
        fat.add("A", &mut &b"x"[..]).unwrap();
        if finished {
            fat.finish().unwrap();
        }
        let mut boot = [0u8; 512];
        file.read_exact_at(&mut boot, 0).unwrap();
        assert_eq!(boot.iter().any(|b| *b != 0), finished);
    }
}

#[test]
fn what_does_not_fit_or_has_no_name_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(64 * MIB).unwrap();
    let mut fat = FatWriter::new(&file, volume(64, SectorSize::S512)).unwrap();
    let error = fat
        .add("large", &mut io::repeat(1).take(64 * MIB))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    for name in ["", "..", "a:b", "x\n", &"n".repeat(256)] {
        assert!(fat.add(name, &mut io::empty()).is_err(), "{name:?}");
    }
    fat.add("Name", &mut io::empty()).unwrap();
    assert!(fat.add("NAME", &mut io::empty()).is_err());
    assert!(FatWriter::new(&file, volume(64, SectorSize::S4096)).is_err());
}

proptest! {
    #[test]
    fn short_names_differ_and_are_of_eleven_good_characters(names in proptest::collection::hash_set("[a-zA-Z0-9._ -]{1,14}", 1..40)) {
        let mut taken = Vec::new();
        for name in &names {
            let Some(short) = short_name(name, &taken) else { continue };
            prop_assert!(!taken.contains(&short));
            prop_assert!(short.iter().all(|b| *b == b' ' || *b == b'~' || is_short_character(char::from(*b))));
            prop_assert!(short[0] != b' ');
            taken.push(short);
        }
    }

    #[test]
    fn a_long_name_is_read_back(name in "[a-zA-Z0-9._-]{1,60}") {
        let bytes = long_name(&name, &padded("X~1")).unwrap();
        let mut units = Vec::new();
        for entry in bytes.chunks(ENTRY).rev() {
            for at in (1..11).step_by(2).chain((14..26).step_by(2)).chain([28, 30]) {
                units.push(u16::from_le_bytes([entry[at], entry[at + 1]]));
            }
        }
        let end = units.iter().position(|u| *u == 0).unwrap_or(units.len());
        prop_assert_eq!(String::from_utf16(&units[..end]).unwrap(), name);
        prop_assert_eq!(bytes[0] & 0x40, 0x40);
    }
}
