use std::io::Read as _;

use proptest::prelude::*;

use super::*;
use crate::error::chain;

/// A header of this kind with a right checksum.
fn header(kind: u8, name: &[u8], size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_size(size);
    header.set_mode(0o100_644);
    header.set_uid(1);
    header.set_gid(2);
    header.set_mtime(3);
    header.as_old_mut().linkflag = [kind];
    header.set_cksum();
    header
}

fn entry(kind: u8, name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut out = header(kind, name, content.len() as u64).as_bytes().to_vec();
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

fn end() -> Vec<u8> {
    vec![0; 2 * BLOCK]
}

type Found = (Vec<u8>, Kind, Vec<u8>);

/// Names, kinds and contents; or the failure's text.
fn read(bytes: &[u8]) -> Result<Vec<Found>, String> {
    let mut source = bytes;
    let mut archive = Archive::new(&mut source, Limits::default());
    let mut entries = vec![];
    while let Some(member) = archive.next().map_err(|e| chain(&e))? {
        let mut content = vec![];
        loop {
            let piece = archive.content(7).map_err(|e| chain(&e))?;
            if piece.is_empty() {
                break;
            }
            content.extend_from_slice(piece);
            let length = piece.len();
            archive.taken(length);
        }
        assert_eq!(content.len() as u64, member.stored);
        entries.push((member.path, member.kind, content));
    }
    Ok(entries)
}

#[test]
fn entries_and_their_content() {
    let bytes = [
        entry(b'5', b"dir/", b""),
        entry(b'0', b"dir/file", &[b'x'; 1000]),
        entry(0, b"old/", b""),
        entry(
            b'L',
            b"././@LongLink",
            &[b"n".repeat(300), b"\0".to_vec()].concat(),
        ),
        entry(b'6', b"nnn", b""),
        entry(b'V', b"label", b""),
        end(),
    ]
    .concat();
    let entries = read(&bytes).unwrap();
    assert_eq!(
        entries,
        [
            (b"dir/".to_vec(), Kind::Directory, vec![]),
            (b"dir/file".to_vec(), Kind::File, vec![b'x'; 1000]),
            (b"old/".to_vec(), Kind::Directory, vec![]),
            (b"n".repeat(300), Kind::Fifo, vec![]),
        ]
    );
}

#[test]
fn an_archive_that_is_cut_anywhere_is_cut_off() {
    let whole = [entry(b'0', b"a", &[1; 600]), entry(b'0', b"b", b"b"), end()].concat();
    assert_eq!(read(&whole).unwrap().len(), 2);
    for length in 0..whole.len() {
        let text = read(&whole[..length]).unwrap_err();
        assert!(text.contains("cut off"), "{length}: {text}");
    }
}

#[test]
fn only_zeros_may_follow() {
    let one = [entry(b'0', b"a", b"a"), end()].concat();
    for zeros in [1, 511, 512, 10240, 1_000_000] {
        let mut padded = one.clone();
        padded.resize(one.len() + zeros, 0);
        assert!(read(&padded).is_ok());
        padded.push(1);
        assert!(read(&padded).unwrap_err().contains("follows"));
    }
    let two = [one.clone(), one.clone()].concat();
    assert!(read(&two).unwrap_err().contains("follows"));
    let lone = [
        entry(b'0', b"a", b"a"),
        vec![0; BLOCK],
        entry(b'0', b"b", b"b"),
        end(),
    ]
    .concat();
    assert!(read(&lone).unwrap_err().contains("follows"));
}

#[test]
fn what_programs_would_read_differently_is_refused() {
    let record = |text: &str| text.as_bytes().to_vec();
    for (what, bytes) in [
        (
            "two long names",
            [entry(b'L', b"l", b"a\0"), entry(b'L', b"l", b"b\0")].concat(),
        ),
        (
            "two extended",
            [entry(b'x', b"x", b""), entry(b'x', b"x", b"")].concat(),
        ),
        (
            "GNU long name",
            [
                entry(b'L', b"l", b"a\0"),
                entry(b'x', b"x", &record("10 path=b\n")),
            ]
            .concat(),
        ),
        ("has content all the same", entry(b'2', b"link", b"content")),
        ("has content all the same", entry(b'1', b"hard", b"content")),
        ("has content all the same", entry(b'5', b"dir", b"content")),
        ("type 'Q'", entry(b'Q', b"q", b"")),
        ("multi-volume", entry(b'M', b"m", b"")),
        ("to all entries", entry(b'g', b"g", &record("10 path=b\n"))),
        ("to all entries", entry(b'g', b"g", &record("9 size=1\n"))),
        ("KEY=VALUE", entry(b'x', b"x", b"nonsense")),
    ] {
        let bytes = [bytes, entry(b'0', b"f", b""), end()].concat();
        let text = read(&bytes).unwrap_err();
        assert!(text.contains(what), "{what}: {text}");
    }
    let description_only = [entry(b'L', b"l", b"a\0"), end()].concat();
    assert!(read(&description_only).unwrap_err().contains("description"));
}

#[test]
fn numbers_in_either_form() {
    assert_eq!(signed(b"0000644\0"), Some(0o644));
    assert_eq!(signed(b"   12 \0x"), Some(10));
    assert_eq!(signed(b"77777777"), Some(0o77_777_777));
    assert_eq!(signed(b"\0\0\0"), Some(0));
    assert_eq!(signed(b"12x"), None);
    assert_eq!(signed(b"-1"), None);
    assert_eq!(signed(b"\x80\0\0\0\0\0\0\0\0\0\x01\0"), Some(256));
    assert_eq!(signed(&[0xff; 12]), Some(-1));
    assert_eq!(signed(b"\xff\xff\xff\xfe"), Some(-2));
    let mut wrong = header(b'0', b"f", 0);
    wrong.as_old_mut().size = [0xff; 12];
    wrong.set_cksum();
    let bytes = [wrong.as_bytes().to_vec(), end()].concat();
    assert!(read(&bytes).unwrap_err().contains("size"));
}

#[test]
fn a_header_of_gigabytes_is_not_held() {
    let mut source = std::io::BufReader::new(std::io::repeat(b'n'));
    let large = header(b'L', b"l", 1 << 40);
    let mut source = large.as_bytes().chain(&mut source);
    let failure = Archive::new(&mut source, Limits::default())
        .next()
        .unwrap_err();
    assert!(chain(&failure).contains("at most"), "{}", chain(&failure));
}

#[test]
fn a_failure_of_the_stream_stays_what_it_is() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other(Failure::new(
                Class::Network,
                "the server is gone",
            )))
        }
    }
    let failure = Archive::new(&mut std::io::BufReader::new(Broken), Limits::default())
        .next()
        .unwrap_err();
    assert_eq!(
        (failure.class(), failure.to_string()),
        (Class::Network, "the server is gone".into())
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let _ = read(&bytes);
    }

    #[test]
    fn any_header_with_a_right_checksum_is_read_without_a_panic(
        fields in proptest::collection::vec(any::<u8>(), 512),
        kind in proptest::sample::select(&b"0123456789LKxgSVDMX\0"[..]),
        gnu: bool,
        rest in proptest::collection::vec(any::<u8>(), 0..2048),
    ) {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&fields);
        if gnu {
            header.as_mut_bytes()[257..265].copy_from_slice(b"ustar  \0");
        }
        header.as_old_mut().linkflag = [kind];
        header.set_size(rest.len() as u64 / 2);
        header.set_mode(0o644);
        header.set_mtime(1);
        header.set_cksum();
        let _ = read(&[header.as_bytes().to_vec(), rest].concat());
    }
}
