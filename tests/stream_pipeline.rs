//! Image streams from the first byte to the verdict: codecs, digests, sources, and the threads and buffers
//! between. Every server is on the loopback device.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use ironroot::error::{Class, describe};
use ironroot::report::Reporter;
use ironroot::stream::{
    BLOCK, Budget, Codec, FetchOptions, Fetcher, ImageRequest, ImageStream, MAX_HELD,
};
use ironroot::units::Bytes;
use support::fault_server::{Act, FaultServer, Serve, file, head, ok, status};
use support::images::{
    LONG, RIGHT, SHORT, apart, bzip2, fails, gzip, image, lz4, open, read, request, sha256, sha512,
    xz, zstd,
};

/// How many threads this process has.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

#[test]
fn every_codec_arrives_whole_with_its_digests() {
    let content = image(2 * BLOCK + 12_345);
    for (codec, packed) in [
        (Codec::Raw, content.clone()),
        (Codec::Gzip, gzip(&content)),
        (Codec::Zstd, zstd(&content)),
        (Codec::Xz, xz(&content)),
        (Codec::Bzip2, bzip2(&content)),
        (Codec::Lz4, lz4(&content)),
    ] {
        let data = packed.clone();
        let server = FaultServer::start(move |r| file(r, &data, RIGHT));
        let mut stream = open(
            ImageRequest {
                digest: Some(sha256(&packed)),
                content_digest: Some(sha512(&content)),
                insecure: false,
                ..request(&[server.url("/image")])
            },
            LONG,
        )
        .unwrap();
        assert_eq!(stream.format(), codec);
        let known = (codec == Codec::Raw).then_some(content.len() as u64);
        assert_eq!(stream.content_length(), known);
        let at_least = match codec {
            Codec::Raw | Codec::Zstd => content.len() as u64,
            Codec::Gzip | Codec::Xz | Codec::Bzip2 | Codec::Lz4 | Codec::Qcow2 => 0,
        };
        assert_eq!(stream.content_at_least(), at_least);
        assert_eq!(stream.counters().expected, Some(packed.len() as u64));
        let mut got = Vec::new();
        while let Some(block) = stream.next_block().unwrap() {
            got.extend_from_slice(&block);
        }
        assert_eq!(stream.counters().received, packed.len() as u64);
        assert!(got == content, "{codec}");
        let verified = stream.finish().unwrap();
        assert_eq!(verified.download_digest(), Some(&sha256(&packed)));
        assert_eq!(verified.received(), Bytes(packed.len() as u64));
        assert_eq!(verified.content_length(), Bytes(content.len() as u64));
        assert!(verified.is_proven());
    }
}

#[test]
fn what_several_threads_decode_is_the_same_and_stops_at_once() {
    let content = image(20 * BLOCK + 4321);
    for (codec, size) in [
        (Codec::Gzip, 50_000),
        (Codec::Zstd, 70_000),
        (Codec::Zstd, 3 << 20),
        (Codec::Xz, 3 << 20),
    ] {
        let packed = apart(codec, &content, size);
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), &packed).unwrap();
        let asked = ImageRequest {
            digest: Some(sha256(&packed)),
            content_digest: Some(sha256(&content)),
            ..request(&[path.path().display().to_string()])
        };
        assert!(read(asked.clone(), LONG).unwrap().0 == content, "{codec}");
        for blocks in [0, 1, 6] {
            let mut stream = open(asked.clone(), LONG).unwrap();
            for _ in 0..blocks {
                assert!(stream.next_block().unwrap().is_some());
            }
            std::thread::sleep(Duration::from_millis(50));
            let started = Instant::now();
            drop(stream);
            assert!(started.elapsed() < Duration::from_secs(3), "{codec}");
        }
        // One flipped bit far behind the first frames.
        let mut damaged = packed.clone();
        let at = damaged.len() * 3 / 4;
        damaged[at] ^= 1;
        std::fs::write(path.path(), &damaged).unwrap();
        let failure = read(asked, LONG).unwrap_err();
        assert_eq!(failure.class(), Class::Integrity, "{codec}: {failure}");
    }
}

#[test]
fn damage_is_told_at_once_while_helpers_wait_for_a_silent_server() {
    let content = image(6 * BLOCK);
    for (codec, size) in [(Codec::Gzip, 50_000), (Codec::Xz, 1 << 20)] {
        let mut packed = apart(codec, &content, size);
        let at = packed.len() / 3;
        packed[at] ^= 1;
        packed.truncate(packed.len() * 3 / 4);
        let server = FaultServer::start(move |_| {
            let length = [("Content-Length", "999999999")];
            vec![
                head("200 OK", &length),
                Act::Send(packed.clone()),
                Act::Silence,
            ]
        });
        let slow = FetchOptions {
            idle_timeout: Duration::from_secs(25),
            ..FetchOptions::default()
        };
        let patient = Fetcher::new(slow, Reporter::default()).unwrap();
        let started = Instant::now();
        let mut stream =
            ImageStream::open(&patient, request(&[server.url("/")]), Budget::new(LONG)).unwrap();
        let failure = loop {
            match stream.next_block() {
                Ok(block) => assert!(block.is_some(), "{codec} ended"),
                Err(failure) => break failure,
            }
        };
        drop(stream);
        assert_eq!(failure.class(), Class::Integrity, "{codec}: {failure}");
        assert!(started.elapsed() < Duration::from_secs(10), "{codec}");
    }
}

#[test]
fn content_of_exactly_whole_blocks_has_no_empty_last_one() {
    for packed in [image(2 * BLOCK), zstd(&image(2 * BLOCK))] {
        let server = FaultServer::start(move |_| ok(&packed));
        let mut stream = open(request(&[server.url("/")]), LONG).unwrap();
        for _ in 0..2 {
            assert_eq!(stream.next_block().unwrap().map(|b| b.len()), Some(BLOCK));
        }
        assert!(stream.next_block().unwrap().is_none());
        assert!(stream.next_block().unwrap().is_none());
        stream.finish().unwrap();
    }
}

#[test]
fn a_wrong_digest_is_never_verified() {
    let content = image(100_000);
    let packed = gzip(&content);
    let data = packed.clone();
    let server = FaultServer::start(move |_| ok(&data));
    let base = request(&[server.url("/")]);
    let right = (sha256(&packed), sha512(&content));
    for (digest, content_digest, insecure) in [
        (Some(sha256(b"other")), None, true),
        (Some(right.0.clone()), Some(sha256(b"other")), false),
        (Some(sha512(b"other")), Some(right.1.clone()), false),
    ] {
        let asked = ImageRequest {
            digest,
            content_digest,
            insecure,
            ..base.clone()
        };
        let failure = read(asked, LONG).err().unwrap();
        assert_eq!(failure.class(), Class::Integrity, "{failure}");
        assert!(!failure.is_transient());
    }
    let interchanged = ImageRequest {
        digest: Some(sha256(&content)),
        content_digest: Some(sha256(&content)),
        ..base
    };
    let failure = read(interchanged, LONG).err().unwrap();
    assert!(failure.next().contains("interchanged"));
}

#[test]
fn plain_http_needs_a_digest_or_consent() {
    let server = FaultServer::start(|_| ok(b"content"));
    let mut asked = request(&[server.url("/")]);
    asked.insecure = false;
    let failure = open(asked.clone(), LONG).unwrap_err();
    assert_eq!(failure.class(), Class::Config);
    assert!(failure.next().contains("digest"));
    assert!(server.requests().is_empty());
    asked.digest = Some(sha256(b"content"));
    assert!(read(asked, LONG).is_ok());
}

#[test]
fn finish_before_the_end_proves_nothing() {
    let content = image(3 * BLOCK);
    let server = FaultServer::start(move |_| ok(&content));
    let mut stream = open(request(&[server.url("/")]), LONG).unwrap();
    drop(stream.next_block().unwrap());
    assert_eq!(stream.finish().unwrap_err().class(), Class::Bug);
}

#[test]
fn damaged_and_unsupported_files_are_refused() {
    let content = image(200_000);
    let mut flipped = gzip(&content);
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    for (name, bytes, class) in [
        ("empty", Vec::new(), Class::Integrity),
        ("one byte of gzip", vec![0x1f], Class::Integrity),
        ("flipped bit", flipped, Class::Integrity),
        (
            "trailing",
            [gzip(&content), vec![1]].concat(),
            Class::Integrity,
        ),
        ("nothing inside", gzip(b""), Class::Integrity),
        ("cut bzip2", b"BZh91AY&SY".to_vec(), Class::Integrity),
        (
            "lz4 legacy",
            b"\x02\x21\x4c\x18\x01\0\0\0".to_vec(),
            Class::Config,
        ),
        (
            "lz4, then legacy",
            [&lz4(&content)[..], b"\x02\x21\x4c\x18\x01\0\0\0"].concat(),
            Class::Integrity,
        ),
        (
            "bzip2 trailing",
            [bzip2(&content), vec![0]].concat(),
            Class::Integrity,
        ),
        (
            "qcow2, cut",
            b"QFI\xfb\0\0\0\x03".to_vec(),
            Class::Integrity,
        ),
        ("qcow", b"QFI\xfb\0\0\0\x01".to_vec(), Class::Config),
        ("qcow2 inside", gzip(b"QFI\xfb\0\0\0\x03"), Class::Config),
        ("compressed twice", zstd(&gzip(&content)), Class::Config),
        (
            "window",
            b"\x28\xb5\x2f\xfd\x00\x90\x01\0\0".to_vec(),
            Class::Integrity,
        ),
    ] {
        let server = FaultServer::start(move |_| ok(&bytes));
        let failure = fails(server.url("/image"), LONG);
        assert_eq!(failure.class(), class, "{name}: {}", describe(&failure));
        assert!(
            failure.to_string().contains(&server.url("/image")),
            "{failure}"
        );
        assert_eq!(
            server.requests().len(),
            1,
            "{name}: a verdict is not retried"
        );
    }
}

#[test]
fn files_and_block_devices_are_sources_as_well() {
    let content = image(BLOCK + 100);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.zst");
    std::fs::write(&path, zstd(&content)).unwrap();
    let asked = ImageRequest {
        insecure: false,
        ..request(&[format!("file://{}", path.display())])
    };
    let mut stream = open(asked, LONG).unwrap();
    assert_eq!(stream.content_at_least(), content.len() as u64);
    let mut got = Vec::new();
    while let Some(block) = stream.next_block().unwrap() {
        got.extend_from_slice(&block);
    }
    assert!(got == content);
    assert!(!stream.finish().unwrap().is_proven());

    // A raw image on a block device is as long as the device.
    let content = image(BLOCK + 4096);
    let path = dir.path().join("image.raw");
    std::fs::write(&path, &content).unwrap();
    let losetup = |args: &[&str]| {
        let output = Command::new("losetup").args(args).output().unwrap();
        assert!(output.status.success(), "losetup {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let device = losetup(&["--find", "--show", "--read-only", path.to_str().unwrap()]);
    let stream = open(request(std::slice::from_ref(&device)), LONG);
    let length = stream.map(|s| (s.format(), s.content_length()));
    let got = read(request(std::slice::from_ref(&device)), LONG);
    losetup(&["--detach", &device]);
    assert_eq!(length.unwrap(), (Codec::Raw, Some(content.len() as u64)));
    assert!(got.unwrap().0 == content);
}

#[test]
fn dropping_a_stream_stops_its_threads_at_once_wherever_they_wait() {
    let content = image(12 * BLOCK);
    let packed = gzip(&content);
    let stalled = packed[..packed.len() / 4].to_vec();
    let slow = FetchOptions {
        idle_timeout: Duration::from_secs(25),
        ..FetchOptions::default()
    };
    let patient = Fetcher::new(slow, Reporter::default()).unwrap();
    // Full pools behind a consumer that stopped; a silent server; a wait between two attempts.
    let full = FaultServer::start(move |_| ok(&content));
    let full_gzip = FaultServer::start(move |_| ok(&packed));
    let data = stalled.clone();
    let silent = FaultServer::start(move |_| {
        let length = [("Content-Length", "999999999")];
        vec![
            head("200 OK", &length),
            Act::Send(data.clone()),
            Act::Silence,
        ]
    });
    let waiting = FaultServer::start(move |request| match request.number {
        0 => vec![
            head(
                "200 OK",
                &[("Content-Length", "999999999"), ("ETag", "\"v1\"")],
            ),
            Act::Send(stalled.clone()),
            Act::Reset,
        ],
        _ => status("503 Service Unavailable", &[("Retry-After", "60")]),
    });
    for server in [&full, &full_gzip, &silent, &waiting] {
        let budget = Budget::new(Duration::from_secs(600));
        let mut stream = ImageStream::open(&patient, request(&[server.url("/")]), budget).unwrap();
        let block = stream.next_block().unwrap();
        std::thread::sleep(Duration::from_millis(150));
        let started = Instant::now();
        drop(stream);
        let took = started.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
        // A block outlives its stream.
        assert!(block.is_some_and(|b| b.len() == BLOCK));
    }
}

/// That this process has `count` threads.
fn assert_only(count: usize) {
    // A joined thread may be listed for a moment after its end.
    let deadline = Instant::now() + Duration::from_secs(5);
    while threads() > count && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(threads(), count);
}

#[test]
fn a_stream_leaves_no_thread_behind() {
    // Alone in a process of its own: other tests have threads of the same names.
    if std::env::var_os("IRONROOT_ALONE").is_none() {
        let test = std::env::current_exe().unwrap();
        let status = Command::new(test)
            .args(["--exact", "a_stream_leaves_no_thread_behind"])
            .env("IRONROOT_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let content = image(12 * BLOCK);
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), gzip(&content)).unwrap();
    let before = threads();
    // What several threads decode, besides.
    for codec in [Codec::Gzip, Codec::Zstd, Codec::Xz] {
        let packed = apart(codec, &content[..4 * BLOCK], 64 << 10);
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), packed).unwrap();
        for read_blocks in [0, 1, usize::MAX] {
            let asked = request(&[path.path().display().to_string()]);
            let mut stream = open(asked, LONG).unwrap();
            let mut count = 0;
            while count < read_blocks && stream.next_block().unwrap().is_some() {
                count += 1;
            }
            drop(stream);
            assert_only(before);
        }
    }
    for read_blocks in [0, 1, usize::MAX] {
        let asked = ImageRequest {
            content_digest: Some(sha256(&content)),
            ..request(&[path.path().display().to_string()])
        };
        let mut stream = open(asked, LONG).unwrap();
        // Fetch, decode, and two hashes.
        assert_eq!(threads(), before + 4);
        let mut count = 0;
        while count < read_blocks && stream.next_block().unwrap().is_some() {
            count += 1;
        }
        if read_blocks == usize::MAX {
            stream.finish().unwrap();
        } else {
            drop(stream);
        }
        assert_only(before);
    }
}

#[test]
fn a_consumer_that_holds_too_many_blocks_is_told_instead_of_starved() {
    let content = image(12 * BLOCK);
    let server = FaultServer::start(move |_| ok(&content));
    let mut stream = open(request(&[server.url("/")]), LONG).unwrap();
    let mut held = Vec::new();
    let failure = loop {
        match stream.next_block() {
            Ok(block) => held.push(block),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.class(), Class::Bug);
    assert_eq!(held.len(), MAX_HELD + 1);
    held.clear();
    while stream.next_block().unwrap().is_some() {}
    stream.finish().unwrap();
}

#[test]
fn a_consumer_may_hold_blocks_on_other_threads() {
    let content = image(12 * BLOCK);
    let data = gzip(&content);
    let server = FaultServer::start(move |_| ok(&data));
    let mut stream = open(request(&[server.url("/")]), LONG).unwrap();
    let (tx, rx) = std::sync::mpsc::sync_channel::<ironroot::stream::Block>(2);
    let writer = std::thread::spawn(move || {
        let mut got = Vec::new();
        for block in rx {
            got.extend_from_slice(&block);
        }
        got
    });
    while let Some(block) = stream.next_block().unwrap() {
        tx.send(block).unwrap();
    }
    drop(tx);
    stream.finish().unwrap();
    assert!(writer.join().unwrap() == content);
}

#[test]
fn time_that_the_consumer_takes_is_not_time_without_progress() {
    // As many blocks as there are buffers: the next thing that comes from the network is the break.
    let full = (MAX_HELD + 4) * BLOCK;
    let content = image(full + BLOCK);
    let data = content.clone();
    let server = FaultServer::start(move |request| {
        let stop_after = Some(full);
        let mut acts = file(
            request,
            &data,
            Serve {
                stop_after,
                ..RIGHT
            },
        );
        if request.number == 0 {
            acts.push(Act::Reset);
        }
        acts
    });
    let mut stream = open(request(&[server.url("/")]), SHORT).unwrap();
    let first = stream.next_block().unwrap().unwrap();
    let mut got = first.to_vec();
    let deadline = Instant::now() + LONG;
    while stream.counters().received < full as u64 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(SHORT * 3);
    drop(first);
    while let Some(block) = stream.next_block().unwrap() {
        got.extend_from_slice(&block);
    }
    assert!(got == content);
    stream.finish().unwrap();
    assert_eq!(server.requests().len(), 2);
}
