//! What holds for every decoder: any cutting into chunks gives the same content, any cut or garbage none.

use std::io::{ErrorKind, Write as _};

use proptest::prelude::*;

use super::*;

const PACKED: [Codec; 3] = [Codec::Gzip, Codec::Zstd, Codec::Xz];

fn pack(codec: Codec, content: &[u8]) -> Vec<u8> {
    match codec {
        Codec::Raw => content.to_vec(),
        Codec::Gzip => {
            let mut w = flate2::GzBuilder::new()
                .filename("disk.raw")
                .comment("a comment")
                .extra(vec![1, 2, 3])
                .write(Vec::new(), flate2::Compression::fast());
            w.write_all(content).unwrap();
            w.finish().unwrap()
        }
        Codec::Zstd => ::zstd::stream::encode_all(content, 1).unwrap(),
        Codec::Xz => {
            let options = lzma_rust2::XzOptions::with_preset(0);
            let mut w = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
            w.write_all(content).unwrap();
            w.finish().unwrap()
        }
    }
}

/// Decodes `pieces` into outputs of `step` bytes each.
fn unpack<'a>(
    codec: Codec,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    step: usize,
) -> io::Result<Vec<u8>> {
    let mut decoder = decoder(codec, Chunks::of(pieces, true))?.unwrap();
    let (mut all, mut out) = (Vec::new(), vec![0; step]);
    loop {
        match decoder.read(&mut out)? {
            0 => break,
            n => all.extend_from_slice(&out[..n]),
        }
    }
    assert_eq!(decoder.read(&mut out)?, 0, "the end stays the end");
    Ok(all)
}

fn whole(codec: Codec, packed: &[u8]) -> io::Result<Vec<u8>> {
    unpack(codec, [packed], 64 << 10)
}

/// Content that compresses, but not to nothing.
fn content() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((any::<u8>(), 1usize..300), 1..60).prop_map(|runs| {
        runs.into_iter()
            .flat_map(|(byte, len)| std::iter::repeat_n(byte, len))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_chunking_gives_the_same_content(
        first in content(), second in content(), cuts in prop::collection::vec(1usize..400, 1..20),
        step in 1usize..5000,
    ) {
        for codec in PACKED {
            // Two members, frames or streams.
            let packed = [pack(codec, &first), pack(codec, &second)].concat();
            let mut rest = &packed[..];
            let mut pieces = Vec::new();
            for cut in cuts.iter().cycle() {
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                pieces.push(head);
                rest = tail;
                if rest.is_empty() {
                    break;
                }
            }
            let got = unpack(codec, pieces, step).unwrap();
            prop_assert_eq!(got, [first.clone(), second.clone()].concat());
        }
    }

    #[test]
    fn no_cut_ends_well(content in content(), at in any::<prop::sample::Index>()) {
        for codec in PACKED {
            let packed = pack(codec, &content);
            let cut = &packed[..=at.index(packed.len() - 1)];
            if cut.len() < packed.len() {
                prop_assert!(whole(codec, cut).is_err(), "{} cut at {}", codec, cut.len());
            }
        }
    }

    #[test]
    fn garbage_behind_the_end_is_found(content in content(), garbage in prop::collection::vec(1u8.., 1..40)) {
        for codec in PACKED {
            let packed = [pack(codec, &content), garbage.clone()].concat();
            prop_assert!(whole(codec, &packed).is_err(), "{}", codec);
        }
    }

    #[test]
    fn a_flipped_bit_in_the_content_is_found_or_harmless(
        content in content(), at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        for codec in [Codec::Gzip, Codec::Xz] {
            let mut packed = pack(codec, &content);
            let at = at.index(packed.len());
            packed[at] ^= 1 << bit;
            // A flip in a gzip header's name or time changes nothing; wrong content never passes.
            if let Ok(got) = whole(codec, &packed) {
                prop_assert_eq!(got, content.clone());
            }
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for (codec, magic) in [
            (Codec::Gzip, &b"\x1f\x8b\x08"[..]),
            (Codec::Zstd, b"\x28\xb5\x2f\xfd"),
            (Codec::Xz, b"\xfd7zXZ\0\x00\x01\x69\x22\xde\x36"),
        ] {
            let _ = whole(codec, &bytes);
            let _ = whole(codec, &[magic, &bytes].concat());
        }
    }
}

#[test]
fn every_cut_of_a_small_stream_fails() {
    let content = b"some content, some content, and an end".repeat(20);
    for codec in PACKED {
        let packed = pack(codec, &content);
        for cut in 1..packed.len() {
            assert!(
                whole(codec, &packed[..cut]).is_err(),
                "{codec} cut at {cut}"
            );
        }
        let failure = whole(codec, &packed[..packed.len() / 2]).unwrap_err();
        assert_eq!(
            failure.kind(),
            ErrorKind::UnexpectedEof,
            "{codec}: {failure}"
        );
    }
}

#[test]
fn padding_of_the_right_kind_is_accepted() {
    let packed = |codec| pack(codec, b"content");
    let padded = |codec, n: usize| [packed(codec), vec![0; n]].concat();
    for n in [1, 4, 511, 100_000] {
        assert_eq!(
            whole(Codec::Gzip, &padded(Codec::Gzip, n)).unwrap(),
            b"content"
        );
    }
    for (n, fine) in [(4, true), (512, true), (1, false), (6, false)] {
        assert_eq!(whole(Codec::Xz, &padded(Codec::Xz, n)).is_ok(), fine, "{n}");
    }
    assert!(whole(Codec::Zstd, &padded(Codec::Zstd, 4)).is_err());
    let between = [padded(Codec::Xz, 8), packed(Codec::Xz)].concat();
    assert_eq!(whole(Codec::Xz, &between).unwrap(), b"contentcontent");
    let after = [padded(Codec::Gzip, 8), packed(Codec::Gzip)].concat();
    assert!(
        whole(Codec::Gzip, &after).is_err(),
        "a member after padding"
    );
}

#[test]
fn bgzf_and_skippable_frames() {
    // The empty member that ends every bgzf file (SAM specification section 4.1.2).
    let end = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0\x1b\0\x03\0\0\0\0\0\0\0\0\0";
    let bgzf = [&pack(Codec::Gzip, b"a")[..], &pack(Codec::Gzip, b"b"), end].concat();
    assert_eq!(whole(Codec::Gzip, &bgzf).unwrap(), b"ab");

    let skip = b"\x50\x2a\x4d\x18\x04\0\0\0abcd";
    let frames = [
        skip,
        &pack(Codec::Zstd, b"a")[..],
        skip,
        &pack(Codec::Zstd, b"b"),
        skip,
    ]
    .concat();
    assert_eq!(whole(Codec::Zstd, &frames).unwrap(), b"ab");
    assert!(whole(Codec::Zstd, &frames[..frames.len() - 2]).is_err());
}

#[test]
fn gzip_header_checksums_are_checked() {
    let mut header = b"\x1f\x8b\x08\x02\0\0\0\0\0\xff".to_vec();
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    header.extend_from_slice(&crc.sum().to_le_bytes()[..2]);
    let body = &pack(Codec::Gzip, b"x")[10 + 5 + 9 + 10..];
    let good = [&header[..], body].concat();
    assert_eq!(whole(Codec::Gzip, &good).unwrap(), b"x");
    header[10] ^= 1;
    assert!(whole(Codec::Gzip, &[&header[..], body].concat()).is_err());
}

#[test]
fn windows_and_dictionaries_above_the_cap_are_refused() {
    // A frame that asks for 256 MiB, with an empty last block.
    let frame = b"\x28\xb5\x2f\xfd\x00\x90\x01\0\0";
    let failure = whole(Codec::Zstd, frame).unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::OutOfMemory);
    assert!(whole(Codec::Zstd, b"\x28\xb5\x2f\xfd\x00\x88\x01\0\0").is_ok());

    let mut options = lzma_rust2::XzOptions::with_preset(0);
    options.lzma_options.dict_size = 256 << 20;
    let mut w = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    w.write_all(b"content").unwrap();
    let failure = whole(Codec::Xz, &w.finish().unwrap()).unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::OutOfMemory);
}

#[test]
fn a_download_that_was_cut_off_is_not_taken_for_an_end() {
    for codec in PACKED {
        let packed = pack(codec, b"content");
        let mut decoder = decoder(codec, Chunks::of([&packed[..]], false))
            .unwrap()
            .unwrap();
        let mut out = [0; 64];
        let failure = loop {
            match decoder.read(&mut out) {
                Ok(n) => assert_ne!(n, 0, "{codec} ended"),
                Err(failure) => break failure,
            }
        };
        assert_eq!(failure.kind(), ErrorKind::BrokenPipe, "{codec}");
    }
}
