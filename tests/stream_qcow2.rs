//! qcow2 images as image streams: every byte compared with what QEMU reads, over files and over servers that
//! misbehave in either of the two passes. Needs qemu-utils.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ironroot::error::{Class, Failure, chain, describe};
use ironroot::stream::{BLOCK, Codec, ImageRequest};
use support::fault_server::{Act, FaultServer, Request, Serve, file, status};
use support::images::{
    LONG, RIGHT, SHORT, fails, get, gzip, image, open, read, request, resetting, sha256, sha512,
};
use support::qcow2::{qcow2, qemu, raw};

const MIB: usize = 1 << 20;

/// Noise, zeros of every length, and what compresses; longer than two blocks, and a whole number of sectors.
fn disk() -> Vec<u8> {
    let mut disk = vec![0; 2 * BLOCK + 3 * MIB + 7 * 512];
    let noise = image(3 * MIB);
    disk[..100_000].copy_from_slice(&noise[..100_000]);
    disk[MIB + 4096..MIB + 70_000].fill(0x5a);
    disk[2 * MIB + 512..4 * MIB + 1024].copy_from_slice(&noise[..2 * MIB + 512]);
    disk[6 * MIB..6 * MIB + 3_000_000].copy_from_slice(&noise[..3_000_000]);
    let end = disk.len();
    disk[end - 1000..].copy_from_slice(&noise[..1000]);
    disk
}

/// `bytes` in a file, read as an image.
fn from_file(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    get(file.path().display().to_string())
}

fn serving(data: Vec<u8>) -> FaultServer {
    FaultServer::start(move |r| file(r, &data, RIGHT))
}

#[test]
fn every_variant_of_qemu_img_reads_as_the_raw_disk() {
    let content = disk();
    for args in [
        &["-o", "compat=0.10"][..],
        &["-c", "-o", "compat=0.10"],
        &["-o", "compat=1.1"],
        &["-c", "-o", "compression_type=zlib"],
        &["-c", "-o", "compression_type=zstd"],
        &["-o", "cluster_size=512"],
        &["-o", "cluster_size=2M"],
        &["-c", "-o", "cluster_size=512"],
        &["-c", "-o", "cluster_size=2M"],
        &["-c", "-o", "compression_type=zstd,cluster_size=2M"],
        &["-c", "-o", "compression_type=zstd,cluster_size=4K"],
        &["-o", "preallocation=metadata"],
        &["-o", "preallocation=falloc"],
        &["-o", "preallocation=full,cluster_size=512"],
        &["-o", "preallocation=metadata,cluster_size=2M"],
        &["-o", "lazy_refcounts=on"],
        &["-o", "refcount_bits=1"],
        &["-S", "0"],
        &["-S", "512", "-m", "8", "-W"],
    ] {
        let packed = qcow2(&content, args);
        assert!(from_file(&packed).unwrap() == content, "{args:?}");
    }
}

#[test]
fn an_image_that_lived_reads_as_its_active_state() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    let name = path.to_str().unwrap();
    let look = |what: &str| {
        let file = std::fs::read(&path).unwrap();
        let expected = raw(&path);
        assert!(from_file(&file).unwrap() == expected, "{what}");
        expected
    };
    for (compat, size) in [("0.10", "9M"), ("1.1", "5000000")] {
        std::fs::write(&path, qcow2(&disk()[..4 * MIB], &["-c"])).unwrap();
        let option = format!("compat={compat}");
        qemu(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-o", &option, name, size],
        );
        let io = |commands: &[&str]| {
            let mut args = vec!["-f", "qcow2"];
            args.extend(commands.iter().flat_map(|c| ["-c", c]));
            args.push(name);
            qemu("qemu-io", &args);
        };
        look("nothing was written");
        io(&[
            "write -P 1 0 300k",
            "write -P 2 4M 700k",
            "write -P 3 4999168 512",
        ]);
        let before = look("written");
        qemu("qemu-img", &["snapshot", "-c", "one", name]);
        io(&["write -P 4 100k 1M", "write -z 4100k 200k", "discard 0 64k"]);
        let after = look("written after a snapshot");
        assert!(before != after);
        qemu("qemu-img", &["snapshot", "-c", "two", name]);
        io(&["write -c -P 5 2M 64k"]);
        look("with a compressed cluster");
        if compat != "0.10" {
            qemu("qemu-img", &["resize", "-q", name, "600M"]);
            io(&["write -P 6 599M 70k"]);
            look("grown");
        }
    }
}

#[test]
fn the_stream_says_what_it_is_and_proves_both_digests() {
    let content = disk();
    let packed = qcow2(&content, &["-c"]);
    let server = serving(packed.clone());
    let asked = ImageRequest {
        digest: Some(sha256(&packed)),
        content_digest: Some(sha512(&content)),
        insecure: false,
        ..request(&[server.url("/disk.qcow2")])
    };
    let stream = open(asked.clone(), LONG).unwrap();
    assert_eq!(stream.format(), Codec::Qcow2);
    assert_eq!(stream.content_length(), Some(content.len() as u64));
    drop(stream);
    let (got, proof) = read(asked.clone(), LONG).unwrap();
    assert!(got == content);
    assert!(proof.is_proven());
    assert_eq!(proof.download_digest(), Some(&sha256(&packed)));
    assert_eq!(proof.received().0, packed.len() as u64);
    assert_eq!(proof.content_length().0, content.len() as u64);
    assert_eq!(proof.content_digest(), Some(&sha512(&content)));

    // A wrong digest of the download is told before there is a stream to write from, one of the content at its end.
    let wrong = ImageRequest {
        digest: Some(sha256(b"another")),
        ..asked.clone()
    };
    assert_eq!(open(wrong, LONG).unwrap_err().class(), Class::Integrity);
    for wrong in [sha256(&packed), sha256(b"another")] {
        let wrong = ImageRequest {
            content_digest: Some(wrong),
            ..asked.clone()
        };
        let failure = read(wrong, LONG).unwrap_err();
        assert_eq!(failure.class(), Class::Integrity);
        assert!(failure.to_string().contains("decoded content"), "{failure}");
    }
}

#[test]
fn what_needs_another_file_or_a_key_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (base, disk) = (place("base"), place("disk"));
    let data = format!("data_file={}", place("data"));
    let secret = ["--object", "secret,id=s,data=x"];
    qemu("qemu-img", &["create", "-q", "-f", "qcow2", &base, "1M"]);
    for (args, part) in [
        (&["-b", &base, "-F", "qcow2"][..], "backing file"),
        (&["-o", &data], "external data file"),
        (&["-o", "extended_l2=on"], "extended L2"),
        (&["-o", "encrypt.format=aes,encrypt.key-secret=s"], "AES"),
    ] {
        let all = [
            &["create", "-q", "-f", "qcow2"],
            &secret[..],
            args,
            &[&disk, "1M"],
        ]
        .concat();
        qemu("qemu-img", &all);
        let failure = open(request(std::slice::from_ref(&disk)), SHORT).unwrap_err();
        assert_eq!(failure.class(), Class::Config);
        assert!(failure.to_string().contains(part), "{failure}");
        assert!(failure.next().contains("qemu-img convert"), "{failure}");
    }
    // In use, or its machine died.
    let mut dirty = qcow2(&image(MIB), &["-o", "lazy_refcounts=on"]);
    dirty[79] |= 1;
    assert!(from_file(&dirty).unwrap_err().to_string().contains("dirty"));

    let packed = gzip(&qcow2(&image(MIB), &[]));
    let failure = from_file(&packed).unwrap_err();
    assert_eq!(failure.class(), Class::Config);
    assert!(
        failure.to_string().contains("compressed qcow2"),
        "{failure}"
    );
}

#[test]
fn a_file_that_was_cut_short_is_never_a_disk_of_zeros() {
    let content = disk();
    for args in [&["-c"][..], &[], &["-o", "cluster_size=2M"]] {
        let packed = qcow2(&content, args);
        let mut refused = 0;
        for length in [packed.len() - 70_000, packed.len() / 2, 200_000, 100, 3] {
            match from_file(&packed[..length]) {
                // Only what lies behind the content's end was missing.
                Ok(got) => assert!(got == content, "{length}"),
                Err(failure) => {
                    refused += 1;
                    assert_eq!(failure.class(), Class::Integrity, "{length}: {failure}");
                }
            }
        }
        assert!(refused >= 4, "{args:?}");
    }
}

#[test]
fn a_connection_that_breaks_in_either_pass_is_resumed() {
    let content = disk();
    for args in [&["-c"][..], &["-m", "8", "-W"]] {
        let packed = qcow2(&content, args);
        for every in [300_000, 1_500_000] {
            let server = resetting(packed.clone(), every, RIGHT);
            assert!(get(server.url("/")).unwrap() == content);
            assert!(server.requests().len() > 2 * packed.len() / every);
        }
    }
}

#[test]
fn what_heals_is_retried_in_the_second_pass_and_what_does_not_ends_it() {
    let content = disk();
    let packed = qcow2(&content, &[]);
    let first_pass_over = |request: &Request| request.number >= 2;
    let data = packed.clone();
    let server = FaultServer::start(move |request| match request.number {
        2 | 3 => status("503 Service Unavailable", &[("Retry-After", "0")]),
        4 => vec![Act::Silence],
        5 => vec![Act::Reset],
        _ => file(request, &data, RIGHT),
    });
    assert!(get(server.url("/")).unwrap() == content);

    let data = packed.clone();
    let server = FaultServer::start(move |request| {
        if first_pass_over(request) {
            return status("404 Not Found", &[]);
        }
        file(request, &data, RIGHT)
    });
    let failure = fails(server.url("/x"), LONG);
    assert_eq!(failure.class(), Class::Network);
    assert!(chain(&failure).contains("/x: 404"), "{}", chain(&failure));

    let server = FaultServer::start(move |request| {
        if first_pass_over(request) {
            return vec![Act::Reset];
        }
        file(request, &packed, RIGHT)
    });
    let failure = fails(server.url("/"), SHORT);
    assert_eq!(failure.class(), Class::Network);
    assert!(describe(&failure).contains("attempts"), "{failure}");
}

#[test]
fn a_server_without_ranges_is_refused_before_all_of_the_file_was_fetched() {
    let packed = qcow2(&disk(), &[]);
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let server = FaultServer::start(move |request| {
        let ranges = false;
        counter.fetch_add(1, Ordering::SeqCst);
        file(request, &packed, Serve { ranges, ..RIGHT })
    });
    let failure = open(request(&[server.url("/")]), LONG).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    let text = describe(&failure);
    assert!(
        text.contains("does not give parts") && text.contains("raw image"),
        "{text}"
    );
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

/// A server whose file is `then` from the third request on, which is the first of the second pass.
fn changing(
    first: Vec<u8>,
    then: Vec<u8>,
    etag: &'static [(&'static str, &'static str)],
) -> FaultServer {
    FaultServer::start(move |request| match request.number {
        0 | 1 => file(request, &first, RIGHT),
        _ => {
            let headers = etag;
            file(request, &then, Serve { headers, ..RIGHT })
        }
    })
}

#[test]
fn a_file_that_changes_between_the_passes_is_found_out() {
    const SAME: &[(&str, &str)] = &[("ETag", "\"v1\"")];
    const OTHER: &[(&str, &str)] = &[("ETag", "\"v2\"")];
    let packed = qcow2(&disk(), &[]);
    let mut one_byte = packed.clone();
    let at = packed.len() / 2;
    one_byte[at] ^= 1;
    let shorter = packed[..packed.len() - 65_536].to_vec();
    for (then, etag) in [
        (one_byte.clone(), SAME),
        (one_byte.clone(), OTHER),
        (shorter.clone(), SAME),
        (shorter, OTHER),
    ] {
        for digest in [None, Some(sha256(&packed))] {
            let server = changing(packed.clone(), then.clone(), etag);
            let asked = ImageRequest {
                digest,
                ..request(&[server.url("/")])
            };
            let failure = read(asked, LONG).unwrap_err();
            assert_eq!(failure.class(), Class::Integrity, "{}", chain(&failure));
            assert!(chain(&failure).contains("change"), "{}", chain(&failure));
        }
    }

    // The same for a file on a disk.
    let packed = qcow2(&image(20 * BLOCK), &["-o", "cluster_size=64K"]);
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), &packed).unwrap();
    let mut stream = open(request(&[path.path().display().to_string()]), SHORT).unwrap();
    // So many blocks exist ahead of the consumer that the first pieces may have been read.
    let at = packed.len() - 100;
    write_at(path.path(), at, &[packed[at] ^ 1]);
    let failure = loop {
        match stream.next_block() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a changed file came to its end"),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.class(), Class::Integrity);
}

fn write_at(path: &Path, at: usize, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at as u64).unwrap();
}

#[test]
fn another_mirror_serves_the_second_pass_when_the_first_one_changed_or_went() {
    let content = disk();
    let packed = qcow2(&content, &[]);
    let mut other = packed.clone();
    other[packed.len() / 2] ^= 1;
    let data = packed.clone();
    let gone = FaultServer::start(move |request| match request.number {
        0 | 1 => file(request, &data, RIGHT),
        _ => status("410 Gone", &[]),
    });
    let data = packed.clone();
    let no_ranges = FaultServer::start(move |request| {
        let ranges = false;
        file(request, &data, Serve { ranges, ..RIGHT })
    });
    for first in [
        changing(packed.clone(), other, RIGHT.headers),
        gone,
        no_ranges,
    ] {
        let mirror = serving(packed.clone());
        let asked = ImageRequest {
            digest: Some(sha256(&packed)),
            ..request(&[first.url("/"), mirror.url("/")])
        };
        assert!(read(asked, LONG).unwrap().0 == content);
        assert!(!mirror.requests().is_empty());
    }
}

#[test]
fn dropping_the_stream_stops_the_second_pass_at_once() {
    let packed = qcow2(&image(12 * BLOCK), &[]);
    for silent in [true, false] {
        for blocks in [0, 1] {
            let data = packed.clone();
            let server = FaultServer::start(move |request| {
                let stop_after = (silent && request.number > 1).then_some(3 * MIB);
                let mut acts = file(
                    request,
                    &data,
                    Serve {
                        stop_after,
                        ..RIGHT
                    },
                );
                acts.extend(stop_after.map(|_| Act::Silence));
                acts
            });
            let mut stream = open(request(&[server.url("/")]), LONG).unwrap();
            for _ in 0..blocks {
                assert!(stream.next_block().unwrap().is_some());
            }
            let started = Instant::now();
            drop(stream);
            assert!(
                started.elapsed() < Duration::from_millis(900),
                "the idle time is 1 s"
            );
        }
    }
}
