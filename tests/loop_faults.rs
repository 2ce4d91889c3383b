//! Faults of servers on the way to a disk: the exit code of each, what its message says to do, and that
//! nothing boots afterwards; and those that an installation survives. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use support::disk_image::{MIB, gpt, sha256};
use support::fault_server::{
    Act, CA_PEM, EXPIRED_PEM, FUTURE_PEM, FaultServer, ODD_CA_PEM, OTHER_NAME_PEM, Request, Serve,
    file, head, ok, status,
};
use support::loop_device::{LoopDevice, PATTERN};
use support::program::{Config, Ended, install};
use support::verdict::{assert_installed_gpt, assert_no_tail, assert_not_bootable, assert_pattern};

const RIGHT: Serve<'static> = Serve {
    headers: &[("ETag", "\"v1\"")],
    ranges: true,
    stop_after: None,
};
/// How much the first answer gives: more than a block, so that the installation has begun.
const HALF: usize = 7 * MIB;

fn flags(retry_for: &str) -> Vec<&str> {
    vec![
        "--overwrite",
        "Always",
        "--insecure",
        "--retry-for",
        retry_for,
    ]
}

/// What a server answers.
type Answer = fn(&Request, &[u8]) -> Vec<Act>;

fn half(request: &Request, data: &[u8]) -> Vec<Act> {
    let stop_after = Some(HALF);
    file(
        request,
        data,
        Serve {
            stop_after,
            ..RIGHT
        },
    )
}

/// A right server, but for these headers.
fn with(request: &Request, data: &[u8], headers: &[(&str, &str)], ranges: bool) -> Vec<Act> {
    let stop_after = None;
    file(
        request,
        data,
        Serve {
            headers,
            ranges,
            stop_after,
        },
    )
}

/// 206 with this Content-Range.
fn part(range: &str, bytes: &[u8], more: &[(&str, &str)]) -> Vec<Act> {
    let mut headers = vec![("Content-Range", range)];
    headers.extend(more);
    vec![
        head("206 Partial Content", &headers),
        Act::Send(bytes.to_vec()),
    ]
}

/// Every row: what a server does after the first half, whether that matters although a digest is declared, and
/// what the message must have.
const HALF_WAY: &[(&str, Answer, bool, &[&str])] = &[
    (
        "200 to a Range request, of another version",
        |r, d| with(r, d, &[("ETag", "\"v2\"")], false),
        true,
        &["changed while downloading", "under a new name"],
    ),
    (
        "200 to a Range request, of who knows what",
        |r, d| with(r, d, &[], false),
        false,
        &["from its start", "nothing shows"],
    ),
    (
        "another ETag half-way",
        |r, d| with(r, d, &[("ETag", "\"v2\"")], true),
        true,
        &["changed while downloading", "start again"],
    ),
    (
        "a Content-Range of other bytes",
        |_, d| part("bytes 0-12582911/12582912", d, &[]),
        true,
        &["asked for the bytes from 7340032 on, got those from 0 on"],
    ),
    (
        "no Content-Range",
        |_, d| vec![head("206 Partial Content", &[]), Act::Send(d.to_vec())],
        true,
        &["206 without a usable Content-Range"],
    ),
    (
        "another length",
        |_, d| part("bytes 7340032-12582912/12582913", &d[HALF..], &[]),
        true,
        &["it had 12582912 bytes and has 12582913 now"],
    ),
    (
        "more than was announced",
        |_, d| part("bytes 7340032-12582911/12582912", d, &[]),
        true,
        &["more than the announced 12582912 bytes"],
    ),
    (
        "gzip that a proxy added",
        |_, d| {
            let coding = [("Content-Encoding", "gzip")];
            part("bytes 7340032-12582911/12582912", &d[HALF..], &coding)
        },
        true,
        &["Content-Encoding: gzip", "as it is"],
    ),
    (
        "416",
        |_, _| status("416 Range Not Satisfiable", &[]),
        true,
        &["416"],
    ),
    (
        "the file is gone",
        |_, _| status("404 Not Found", &[]),
        true,
        &["404", "is published"],
    ),
    (
        "access ran out",
        |_, _| status("403 Forbidden", &[]),
        true,
        &["403", "headers"],
    ),
    (
        "503 for ever",
        |_, _| status("503 Service Unavailable", &[("Retry-After", "0")]),
        true,
        &["7340032 of 12582912 bytes", "attempts", "503"],
    ),
    (
        "a reset for ever",
        |_, _| vec![Act::Reset],
        true,
        &["7340032 of 12582912 bytes", "attempts"],
    ),
];

#[test]
fn a_fault_half_way_ends_with_11_and_nothing_that_boots() {
    let image = Arc::new(gpt(12));
    let digest = sha256(&image);
    for (name, answer, always, parts) in HALF_WAY {
        for digest in ["", digest.as_str()] {
            if !always && !digest.is_empty() {
                continue;
            }
            println!("{name}, digest {digest:?}");
            let data = Arc::clone(&image);
            let server = FaultServer::start(move |request| match request.number {
                0 => half(request, &data),
                _ => answer(request, &data),
            });
            let disk = LoopDevice::patterned(16);
            let ended = install(&server.url("/image"), digest, &disk, &flags("300ms"));
            ended
                .failed_with(11, parts)
                .failed_with(11, &["in step writeBody", "next: "]);
            assert_not_bootable(&disk);
            assert_no_tail(&disk);
        }
    }
}

#[test]
fn a_fault_at_the_start_leaves_the_disk_as_it_was() {
    let image = Arc::new(gpt(12));
    let rows: &[(&str, Answer, &[&str])] = &[
        (
            "gzip that a proxy added",
            |r, d| with(r, d, &[("Content-Encoding", "gzip")], true),
            &["Content-Encoding: gzip", "as it is"],
        ),
        (
            "401",
            |_, _| status("401 Unauthorized", &[]),
            &["401", "headers"],
        ),
        (
            "404",
            |_, _| status("404 Not Found", &[]),
            &["404", "is published"],
        ),
        (
            "429 for ever",
            |_, _| status("429 Too Many Requests", &[("Retry-After", "0")]),
            &["429", "attempts"],
        ),
        (
            "206 unasked",
            |_, d| part("bytes 0-9/12582912", &d[..10], &[]),
            &["206"],
        ),
        ("a reset", |_, _| vec![Act::Reset], &["attempts"]),
    ];
    let disk = LoopDevice::patterned(16);
    for (name, answer, parts) in rows {
        println!("{name}");
        let (data, answer) = (Arc::clone(&image), *answer);
        let server = FaultServer::start(move |request| answer(request, &data));
        let ended = install(&server.url("/image"), "", &disk, &flags("300ms"));
        ended
            .failed_with(11, parts)
            .failed_with(11, &["in step openImage", "next: "]);
        assert_pattern(&disk);
    }
}

#[test]
fn a_certificate_that_is_refused_leaves_the_disk_as_it_was_and_says_what_is_wrong() {
    let image = gpt(8);
    let disk = LoopDevice::patterned(16);
    for (certificate, ca, parts) in [
        (EXPIRED_PEM, ODD_CA_PEM, ["ended on 2021-01-01", "renew it"]),
        // What a clock in 1970 makes of every certificate.
        (FUTURE_PEM, ODD_CA_PEM, ["clock is wrong", "2100-01-01"]),
        (OTHER_NAME_PEM, ODD_CA_PEM, ["images.example", "in the URL"]),
        (OTHER_NAME_PEM, CA_PEM, ["add the server's CA", "`ca`"]),
    ] {
        let data = image.clone();
        let server = FaultServer::start_odd_tls(certificate, move |_| ok(&data));
        let started = std::time::Instant::now();
        let ended = Config::new(&server.url("/image"), &sha256(&image), &disk)
            .with("/ca", json!([String::from_utf8(ca.to_vec()).unwrap()]))
            .with("/disk/overwrite", json!("Always"))
            .install(&["--retry-for", "1m"]);
        ended.failed_with(11, &parts);
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "no retry helps"
        );
        assert_pattern(&disk);
    }
}

/// A registry with `blob` where a disk with `digest` should be.
fn registry(
    digest: &str,
    answer: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static,
) -> FaultServer {
    let manifest = format!(
        r#"{{"schemaVersion":2,"layers":[{{"mediaType":"application/vnd.ironcore.image.rootfs","digest":"{digest}","size":1}}]}}"#
    );
    FaultServer::start(move |request| match request.target.as_str() {
        "/v2/os/manifests/v1" => ok(manifest.as_bytes()),
        _ => answer(request),
    })
}

fn from_registry(server: &FaultServer, disk: &LoopDevice) -> Ended {
    let url = format!("oci://127.0.0.1:{}/os:v1", server.port());
    let mut config = Config::new(&url, "", disk)
        .with("/image/plainHttp", json!(true))
        .with("/image/insecure", json!(true))
        .with("/disk/overwrite", json!("Always"));
    config.value["image"]
        .as_object_mut()
        .unwrap()
        .remove("digest");
    config.install(&["--retry-for", "300ms"])
}

#[test]
fn a_registry_whose_blob_is_another_or_whose_token_runs_out_leaves_nothing_that_boots() {
    let image = gpt(12);
    let digest = sha256(&image);
    let mut other = image.clone();
    other[9 * MIB] ^= 1;
    let server = registry(&digest, move |request| file(request, &other, RIGHT));
    let disk = LoopDevice::patterned(16);
    from_registry(&server, &disk).failed_with(12, &[&digest, "in the manifest of oci://"]);
    assert_not_bootable(&disk);

    // One token, good for one request; the token server gives no second one.
    let server = registry(&digest, move |request| {
        let host = request.header("host").unwrap();
        let challenge = format!(r#"Bearer realm="http://{host}/token""#);
        match request.target.as_str() {
            "/token?scope=repository%3Aos%3Apull" if request.number < 4 => {
                ok(br#"{"token":"once"}"#)
            }
            target if target.starts_with("/token") => status("401 Unauthorized", &[]),
            _ if request.header("authorization").is_none() || request.range_from().is_some() => {
                status("401 Unauthorized", &[("WWW-Authenticate", &challenge)])
            }
            _ => half(request, &image),
        }
    });
    let disk = LoopDevice::patterned(16);
    from_registry(&server, &disk).failed_with(11, &["401", "/token", "next: "]);
    assert_not_bootable(&disk);
}

#[test]
fn resets_across_mirrors_and_servers_that_ask_for_patience_give_the_whole_disk() {
    let image = gpt(12);
    let digest = sha256(&image);
    let server = |etag: &'static [(&'static str, &'static str)], every: usize| {
        let data = image.clone();
        FaultServer::start(move |request| {
            let serve = Serve {
                headers: etag,
                ranges: true,
                stop_after: Some(every),
            };
            match request.number % 4 {
                1 => status("429 Too Many Requests", &[("Retry-After", "0")]),
                2 => status("503 Service Unavailable", &[("Retry-After", "0")]),
                _ => {
                    let mut acts = file(request, &data, serve);
                    acts.push(Act::Reset);
                    acts
                }
            }
        })
    };
    let first = server(&[("ETag", "\"a\"")], 3 * MIB);
    let second = server(&[("ETag", "\"b\"")], 2 * MIB + 12_345);
    let disk = LoopDevice::patterned(24);
    Config::new(&first.url("/image"), &digest, &disk)
        .with("/image/mirrors", json!([second.url("/image")]))
        .with("/disk/overwrite", json!("Always"))
        .install(&["--retry-for", "20s"])
        .succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
    assert!(!second.requests().is_empty());
}

#[test]
fn a_slow_drip_is_no_failure() {
    let image = gpt(8);
    let data = image.clone();
    // Longer in all than the budget, with pauses that are shorter.
    let server = FaultServer::start(move |_| {
        let length = data.len().to_string();
        let mut acts = vec![head("200 OK", &[("Content-Length", &length)])];
        for piece in data.chunks(MIB / 2) {
            acts.push(Act::Send(piece.to_vec()));
            acts.push(Act::Sleep(Duration::from_millis(100)));
        }
        acts
    });
    let disk = LoopDevice::patterned(16);
    install(
        &server.url("/image"),
        &sha256(&image),
        &disk,
        &flags("500ms"),
    )
    .succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn silence_over_the_idle_limit_ends_with_11_and_nothing_that_boots() {
    let image = gpt(12);
    let digest = sha256(&image);
    let server = FaultServer::start(move |request| {
        let mut acts = half(request, &image);
        acts.truncate(if request.number == 0 { 2 } else { 0 });
        acts.push(Act::Silence);
        acts
    });
    let disk = LoopDevice::patterned(16);
    // No limit on silence is longer than what the budget allows.
    let ended = install(&server.url("/image"), &digest, &disk, &flags("1s"));
    ended.failed_with(11, &["7340032 of 12582912 bytes", "in step writeBody"]);
    assert_not_bootable(&disk);
}
