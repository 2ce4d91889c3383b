//! What proves an image: checksum files and detached signatures, right, wrong and missing. Every server is
//! on the loopback device.

mod support;
#![allow(clippy::unwrap_used)] // helpers of tests are tests


use std::time::Duration;

use ironroot::error::{Class, Failure, describe};
use ironroot::stream::{Budget, ImageRequest, ImageStream, Verified};
use support::fault_server::{CA_PEM, FaultServer, Request, ok, status};
use support::images::{LONG, fetcher, gzip, image, request, sha256, sha512};

fn read(asked: ImageRequest) -> Result<Verified, Failure> {
    let mut stream = ImageStream::open(&fetcher(&[CA_PEM]), asked, Budget::new(LONG))?;
    while stream.next_block()?.is_some() {}
    stream.finish()
}

/// Files by their path.
fn serve(request: &Request, files: &[(&str, Vec<u8>)]) -> Vec<support::fault_server::Act> {
    let path = request.target.split('?').next().unwrap();
    match files.iter().find(|(name, _)| *name == path) {
        Some((_, bytes)) => ok(bytes),
        None => status("404 Not Found", &[]),
    }
}

fn server(files: Vec<(&'static str, Vec<u8>)>) -> FaultServer {
    FaultServer::start_tls(move |request| serve(request, &files))
}

fn asked(server: &FaultServer, image: &str, checksums: &str) -> ImageRequest {
    ImageRequest {
        checksums: Some(server.url(checksums).parse().unwrap()),
        insecure: false,
        ..request(&[server.url(image)])
    }
}

#[test]
fn a_checksum_file_proves_the_image_it_names() {
    let packed = gzip(&image(300_000));
    let sums = format!(
        "# made by hand\r\n{}  other.gz\r\n{} *./a b.gz\r\nSHA512 (a b.gz) = {}\r\n",
        sha256(b"other").hex(),
        sha256(&packed).hex(),
        sha512(&packed).hex(),
    );
    let server = server(vec![("/a%20b.gz", packed), ("/SUMS", sums.into_bytes())]);
    let verified = read(asked(&server, "/a%20b.gz?token=x", "/SUMS")).unwrap();
    assert!(verified.is_proven());
}

#[test]
fn a_wrong_checksum_is_never_verified() {
    let content = image(300_000);
    let sums = format!("{}  x.raw\n", sha256(b"other").hex());
    let server = server(vec![("/x.raw", content), ("/SUMS", sums.into_bytes())]);
    for insecure in [false, true] {
        let failure = read(ImageRequest {
            insecure,
            ..asked(&server, "/x.raw", "/SUMS")
        })
        .unwrap_err();
        assert_eq!(failure.class(), Class::Integrity);
        assert!(!failure.is_transient());
        let text = describe(&failure);
        assert!(text.contains("/SUMS is sha256:"), "{text}");
    }
}

#[test]
fn a_checksum_file_without_the_image_says_what_is_there_and_the_image_is_not_asked_for() {
    let sums = format!("{}  y.raw\n", sha256(b"y").hex());
    let server = server(vec![("/x.raw", image(1000)), ("/SUMS", sums.into_bytes())]);
    let failure = read(asked(&server, "/x.raw", "/SUMS")).unwrap_err();
    assert_eq!(failure.class(), Class::Integrity);
    assert!(
        failure.to_string().contains("it is about y.raw"),
        "{failure}"
    );
    assert!(server.requests().iter().all(|r| r.target == "/SUMS"));

    let failure = read(asked(&server, "/x.raw", "/missing")).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(!failure.is_transient());
}

#[test]
fn a_declared_digest_and_the_checksum_file_must_agree() {
    let content = image(100_000);
    let sums = format!("{}  x.raw\n", sha256(&content).hex());
    let server = server(vec![
        ("/x.raw", content.clone()),
        ("/SUMS", sums.into_bytes()),
    ]);
    let with = |digest| ImageRequest {
        digest: Some(digest),
        ..asked(&server, "/x.raw", "/SUMS")
    };
    assert!(read(with(sha256(&content))).is_ok());
    assert!(read(with(sha512(&content))).is_ok());
    for other in [sha256(b"other"), sha512(b"other")] {
        let failure = read(with(other)).unwrap_err();
        assert_eq!(failure.class(), Class::Integrity, "{failure}");
    }
}

#[test]
fn a_checksum_file_over_plain_http_is_no_proof() {
    let content = image(100_000);
    let sums = format!("{}  x.raw\n", sha256(&content).hex()).into_bytes();
    let files = vec![("/x.raw", content), ("/SUMS", sums.clone())];
    let plain = FaultServer::start(move |request| serve(request, &files));
    let both = asked(&plain, "/x.raw", "/SUMS");
    let failure = read(both.clone()).unwrap_err();
    assert_eq!(failure.class(), Class::Config);
    assert!(
        failure.to_string().contains("so are its checksums"),
        "{failure}"
    );
    assert!(plain.requests().is_empty());

    let accepted = ImageRequest {
        insecure: true,
        ..both.clone()
    };
    read(accepted).unwrap();

    let secure = server(vec![("/SUMS", sums)]);
    let checksums = Some(secure.url("/SUMS").parse().unwrap());
    read(ImageRequest { checksums, ..both }).unwrap();
}

#[test]
fn the_headers_of_the_image_go_to_its_own_server_only() {
    let content = image(10_000);
    let sums = format!("{}  x.raw\n", sha256(&content).hex()).into_bytes();
    let own = server(vec![("/x.raw", content), ("/SUMS", sums.clone())]);
    let other = server(vec![("/SUMS", sums)]);
    for sums in [&own, &other] {
        let request = ImageRequest {
            headers: vec![("X-Token".to_owned(), "s3cr3t".to_owned())],
            checksums: Some(sums.url("/SUMS").parse().unwrap()),
            ..asked(&own, "/x.raw", "/SUMS")
        };
        read(request).unwrap();
    }
    let token = |server: &FaultServer| {
        let all = server.requests();
        all.iter().all(|r| r.header("x-token") == Some("s3cr3t"))
    };
    assert!(token(&own) && !token(&other));
    assert_eq!(own.requests().len(), 3);
}

#[test]
fn the_budget_is_shared_and_a_checksum_server_may_be_late() {
    let content = image(10_000);
    let sums = format!("{}  x.raw\n", sha256(&content).hex()).into_bytes();
    let late = FaultServer::start_tls(move |request| match request.number {
        0 => status("503 Service Unavailable", &[]),
        _ => serve(request, &[("/SUMS", sums.clone())]),
    });
    let images = server(vec![("/x.raw", content)]);
    let request = ImageRequest {
        checksums: Some(late.url("/SUMS").parse().unwrap()),
        ..asked(&images, "/x.raw", "/SUMS")
    };
    let started = std::time::Instant::now();
    read(request).unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
}
