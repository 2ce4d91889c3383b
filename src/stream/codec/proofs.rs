//! What holds for every decoder, on one thread and on several: any cutting into chunks gives the same
//! content, any cut or garbage none.

use std::io::{ErrorKind, Write as _};

use proptest::prelude::*;

use super::frames::{Framing, Grain, Plan};
use super::parallel::Parallel;
use super::*;

const PACKED: [Codec; 5] = [
    Codec::Gzip,
    Codec::Zstd,
    Codec::Xz,
    Codec::Bzip2,
    Codec::Lz4,
];
/// Those whose checksums find every change of the content.
const CHECKED: [Codec; 4] = [Codec::Gzip, Codec::Xz, Codec::Bzip2, Codec::Lz4];

fn pack(codec: Codec, content: &[u8]) -> Vec<u8> {
    match codec {
        Codec::Raw | Codec::Qcow2 => content.to_vec(),
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
        Codec::Bzip2 => {
            let mut w = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
            w.write_all(content).unwrap();
            w.finish().unwrap()
        }
        Codec::Lz4 => lz4(content, lz4_flex::frame::BlockMode::Linked),
    }
}

fn lz4(content: &[u8], mode: lz4_flex::frame::BlockMode) -> Vec<u8> {
    let info = lz4_flex::frame::FrameInfo::new()
        .block_mode(mode)
        .block_size(lz4_flex::frame::BlockSize::Max64KB)
        .block_checksums(true)
        .content_checksum(true)
        .content_size(Some(content.len() as u64));
    let mut w = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    w.write_all(content).unwrap();
    w.finish().unwrap()
}

/// `content` in pieces of `size` bytes that can be decoded each by itself, as bgzip, pzstd and `xz -T0`
/// make them; other formats as they are.
fn pack_apart(codec: Codec, content: &[u8], size: usize) -> Vec<u8> {
    let pieces = content.chunks(size);
    match codec {
        Codec::Gzip => pieces.flat_map(bgzf).collect(),
        Codec::Zstd => pieces
            .flat_map(|piece| {
                let frame = pack(codec, piece);
                let mut skip = b"\x50\x2a\x4d\x18\x04\0\0\0".to_vec();
                skip.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_le_bytes());
                [skip, frame].concat()
            })
            .collect(),
        Codec::Xz => {
            let stream = liblzma::stream::MtStreamBuilder::new()
                .threads(2)
                .preset(0)
                .block_size(size as u64)
                .check(liblzma::stream::Check::Crc64)
                .encoder()
                .unwrap();
            let mut w = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
            w.write_all(content).unwrap();
            w.finish().unwrap()
        }
        Codec::Raw | Codec::Bzip2 | Codec::Lz4 | Codec::Qcow2 => {
            pieces.flat_map(|p| pack(codec, p)).collect()
        }
    }
}

/// A gzip member that says how long it is.
fn bgzf(content: &[u8]) -> Vec<u8> {
    let mut w = flate2::GzBuilder::new()
        .extra(b"BC\x02\0\0\0".to_vec())
        .write(Vec::new(), flate2::Compression::fast());
    w.write_all(content).unwrap();
    let mut member = w.finish().unwrap();
    let length = u16::try_from(member.len() - 1).unwrap();
    member[16..18].copy_from_slice(&length.to_le_bytes());
    member
}

/// Little pieces for several threads.
fn plan(codec: Codec) -> Option<Plan> {
    let framing = match codec {
        Codec::Gzip => Framing::Gzip,
        Codec::Zstd => Framing::Zstd { window: 1 << 20 },
        Codec::Raw | Codec::Xz | Codec::Bzip2 | Codec::Lz4 | Codec::Qcow2 => return None,
    };
    let grain = Grain {
        enough: 100,
        enough_decoded: u64::MAX,
        longest: 2000,
        piece: 300,
    };
    Some(Plan {
        framing,
        helpers: 2,
        ahead: 1000,
        grain,
    })
}

/// Decodes `pieces` into outputs of `step` bytes each, on one thread and on several, which must find the
/// same.
fn unpack<'a>(
    codec: Codec,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    step: usize,
) -> io::Result<Vec<u8>> {
    let pieces: Vec<&[u8]> = pieces.into_iter().collect();
    let one = unpack_on(1, codec, &pieces, step);
    let several = unpack_on(3, codec, &pieces, step);
    match (&one, &several) {
        (Ok(one), Ok(several)) => assert!(one == several, "{codec}: different content"),
        (Err(one), Err(several)) => {
            // A member whose header lies about its length ends too early for one thread and does not fit for
            // several: the same verdict (code 12) by two names.
            let verdict = |error: &io::Error| match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => "damaged".to_owned(),
                other => other.to_string(),
            };
            // A zstd frame that is nonsense as well asks for too much memory: whichever is found first is said.
            let both = [one.kind(), several.kind()];
            let either = codec == Codec::Zstd
                && both.contains(&io::ErrorKind::OutOfMemory)
                && both.contains(&io::ErrorKind::InvalidData);
            assert!(
                either || verdict(one) == verdict(several),
                "{codec}: {one}, {several}"
            );
        }
        (one, several) => panic!("{codec}: {one:?} on one thread, {several:?} on several"),
    }
    one
}

fn unpack_on(threads: u32, codec: Codec, pieces: &[&[u8]], step: usize) -> io::Result<Vec<u8>> {
    let means = Means {
        threads,
        memory: 64 << 20,
    };
    let way = Way {
        codec,
        means,
        plan: None,
    };
    let (chunks, cancel) = (Chunks::of(pieces.iter().copied(), true), Cancel::default());
    let mut decoder: Box<dyn Decoder> = match plan(codec) {
        Some(plan) if threads > 1 => Box::new(Parallel::new(plan, chunks, cancel)?),
        _ => way.decoder(chunks, &cancel)?.unwrap(),
    };
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

/// `bytes` cut into pieces of the lengths `cuts`, over and over.
fn pieces<'a>(mut bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for cut in cuts.iter().cycle() {
        let (head, tail) = bytes.split_at((*cut).min(bytes.len()));
        pieces.push(head);
        bytes = tail;
        if bytes.is_empty() {
            break;
        }
    }
    pieces
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
            let got = unpack(codec, pieces(&packed, &cuts), step).unwrap();
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
        for codec in CHECKED {
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
    fn pieces_decoded_apart_are_the_whole(
        content in content(), size in 1usize..600, cuts in prop::collection::vec(1usize..400, 1..20),
        step in 1usize..5000, single in any::<bool>(),
    ) {
        for codec in PACKED {
            let mut packed = pack_apart(codec, &content, size);
            let mut expected = content.clone();
            if single {
                // What cannot be decoded apart may follow, and more that can.
                let long = vec![7; 100_000];
                packed.extend(pack(codec, &long));
                packed.extend(pack_apart(codec, &content, size));
                expected.extend(long);
                expected.extend(&content);
            }
            let got = unpack(codec, pieces(&packed, &cuts), step).unwrap();
            prop_assert!(got == expected, "{}", codec);
        }
    }

    #[test]
    fn one_thread_and_several_judge_damage_alike(
        content in content(), size in 1usize..600, at in any::<prop::sample::Index>(), byte in 1u8..,
        cut in any::<prop::sample::Index>(), cut_it in any::<bool>(), tail in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        for codec in PACKED {
            let mut packed = pack_apart(codec, &content, size);
            if cut_it {
                packed.truncate(1 + cut.index(packed.len()));
            }
            let at = at.index(packed.len());
            packed[at] ^= byte;
            packed.extend_from_slice(&tail);
            // `unpack` compares the two.
            if let Ok(got) = whole(codec, &packed) && codec != Codec::Zstd {
                prop_assert!(content.starts_with(&got), "{}", codec);
            }
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for (codec, magic) in [
            (Codec::Gzip, &b"\x1f\x8b\x08"[..]),
            (Codec::Zstd, b"\x28\xb5\x2f\xfd"),
            (Codec::Xz, b"\xfd7zXZ\0\x00\x01\x69\x22\xde\x36"),
            (Codec::Bzip2, b"BZh11AY&SY"),
            (Codec::Lz4, b"\x04\x22\x4d\x18\x40\x40\xc0"),
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
        let means = Means {
            threads: 2,
            memory: 64 << 20,
        };
        let cancel = Cancel::default();
        let chunks = Chunks::of([&packed[..]], false);
        let mut decoder: Box<dyn Decoder> = match plan(codec) {
            Some(plan) => Box::new(Parallel::new(plan, chunks, cancel).unwrap()),
            None => Way::of(codec, &packed, means)
                .decoder(chunks, &cancel)
                .unwrap()
                .unwrap(),
        };
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

/// Content with repetitions nearer and farther than every history.
fn long_content() -> Vec<u8> {
    let noise: Vec<u8> = (0..90_000u32)
        .map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    [
        &noise[..],
        &noise[..30_000],
        &vec![0; 70_000],
        &noise[20_000..],
    ]
    .concat()
}

#[test]
fn lz4_frames_of_every_kind() {
    use lz4_flex::frame::BlockMode::{Independent, Linked};
    let content = long_content();
    let skip = b"\x5f\x2a\x4d\x18\x03\0\0\0abc";
    for mode in [Independent, Linked] {
        let frame = lz4(&content, mode);
        assert!(whole(Codec::Lz4, &frame).unwrap() == content);
        let several = [skip, &frame[..], skip, &frame, skip].concat();
        assert!(whole(Codec::Lz4, &several).unwrap() == [&content[..], &content].concat());
        assert_eq!(
            sniff("x", &several, crate::stream::Purpose::Disk)
                .unwrap()
                .codec,
            Codec::Lz4
        );
        // Without its end mark and checksum, and without the latter only.
        for missing in [8, 4] {
            let failure = whole(Codec::Lz4, &frame[..frame.len() - missing]).unwrap_err();
            assert_eq!(failure.kind(), ErrorKind::UnexpectedEof);
        }
        let legacy = [&frame[..], b"\x02\x21\x4c\x18\x01\0\0\0\x10"].concat();
        let failure = whole(Codec::Lz4, &legacy).unwrap_err();
        assert!(failure.to_string().contains("legacy"), "{failure}");
    }
    // An empty block in the middle is no end.
    let frame = b"\x04\x22\x4d\x18\x60\x40\x82\x01\0\0\0\0\x02\0\0\x80ab\0\0\0\0";
    assert_eq!(whole(Codec::Lz4, frame).unwrap(), b"ab");
}

#[test]
fn a_member_that_lies_about_its_length_is_refused_on_one_thread_as_well() {
    let good = [bgzf(b"first"), bgzf(b"second")].concat();
    assert_eq!(whole(Codec::Gzip, &good).unwrap(), b"firstsecond");
    for at in [16, 17, good.len() - bgzf(b"second").len() + 16] {
        for change in [1, 0x10] {
            let mut lying = good.clone();
            lying[at] ^= change;
            assert!(whole(Codec::Gzip, &lying).is_err(), "{at}");
        }
    }
}

#[test]
fn xz_with_little_memory_many_streams_and_unknown_checks() {
    let content = long_content();
    let packed = pack_apart(Codec::Xz, &content, 20_000);
    let many = [&packed[..], &pack(Codec::Xz, b"x"), &packed].concat();
    let expected = [&content[..], b"x", &content].concat();
    assert!(whole(Codec::Xz, &many).unwrap() == expected);
    for memory in [0, 1, 1 << 20] {
        let means = Means { threads: 3, memory };
        let chunks = Chunks::of([&many[..]], true);
        let mut decoder = Way::of(Codec::Xz, &many, means)
            .decoder(chunks, &Cancel::default())
            .unwrap()
            .unwrap();
        let (mut all, mut out) = (Vec::new(), vec![0; 5000]);
        loop {
            match decoder.read(&mut out).unwrap() {
                0 => break,
                n => all.extend_from_slice(&out[..n]),
            }
        }
        assert!(all == expected, "{memory}");
    }
    // Check 5 does not exist; the header's own checksum is right.
    let mut unknown = packed;
    unknown[7] = 5;
    let mut crc = flate2::Crc::new();
    crc.update(&unknown[6..8]);
    unknown[8..12].copy_from_slice(&crc.sum().to_le_bytes());
    let failure = whole(Codec::Xz, &unknown).unwrap_err();
    assert!(failure.to_string().contains("check"), "{failure}");
}
