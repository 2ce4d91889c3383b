//! What is declared of an image and what its servers are told: lengths, headers, and who may go on with a download.

mod support;

use ironroot::error::{Class, describe};
use ironroot::stream::ImageRequest;
use ironroot::units::Bytes;
use support::fault_server::{Act, FaultServer, Serve, file, head, ok, status};
use support::images::{ETAG, LONG, RIGHT, gzip, image, read, request, sha256};

#[test]
fn a_declared_length_is_that_of_what_comes() {
    let content = image(300_000);
    let packed = gzip(&content);
    let (short, long) = (packed.len() as u64, content.len() as u64);
    let said = packed.clone();
    let server = FaultServer::start(move |request| {
        if request.target == "/said" {
            ok(&said)
        } else {
            // In one chunk: the length shows at the end only.
            let mut body = format!("{:x}\r\n", said.len()).into_bytes();
            body.extend_from_slice(&said);
            body.extend_from_slice(b"\r\n0\r\n\r\n");
            let chunked = head("200 OK", &[("Transfer-Encoding", "chunked")]);
            vec![chunked, Act::Send(body)]
        }
    });
    for path in ["/said", "/chunked"] {
        let asked = |length: u64, content_length: u64| ImageRequest {
            length: Some(Bytes(length)),
            content_length: Some(Bytes(content_length)),
            digest: Some(sha256(&packed)),
            ..request(&[server.url(path)])
        };
        assert!(read(asked(short, long), LONG).unwrap().0 == content);
        for (length, content_length, what) in [
            (short + 1, long, "the download"),
            (short, long - 1, "the decoded content"),
        ] {
            let failure = read(asked(length, content_length), LONG).unwrap_err();
            assert_eq!(failure.class(), Class::Integrity, "{failure}");
            assert!(failure.to_string().contains(what), "{failure}");
        }
    }
}

#[test]
fn headers_go_to_the_images_own_server_and_to_no_mirror_elsewhere() {
    let content = image(300_000);
    let data = content.clone();
    let mirror = FaultServer::start(move |request| file(request, &data, RIGHT));
    let first = FaultServer::start(|_| status("403 Forbidden", &[]));
    let asked = ImageRequest {
        headers: vec![("Authorization".to_owned(), "Bearer s3cret".to_owned())],
        ..request(&[first.url("/a"), first.url("/b"), mirror.url("/c")])
    };
    assert!(read(asked, LONG).unwrap().0 == content);
    let told = first.requests();
    assert_eq!(told.len(), 2);
    assert!(
        told.iter()
            .all(|r| r.header("authorization") == Some("Bearer s3cret"))
    );
    assert_eq!(mirror.requests()[0].header("authorization"), None);
}

/// A server that answers with `tag` and breaks off after 100000 bytes.
fn one_of_many(data: Vec<u8>, headers: &'static [(&'static str, &'static str)]) -> FaultServer {
    FaultServer::start(move |request| {
        let stop_after = Some(100_000);
        let mut acts = file(
            request,
            &data,
            Serve {
                headers,
                stop_after,
                ..RIGHT
            },
        );
        acts.push(Act::Reset);
        acts
    })
}

#[test]
fn behind_a_redirect_another_server_goes_on_under_a_digest_whatever_its_tag() {
    let content = image(450_000);
    let one = one_of_many(content.clone(), ETAG);
    let two = one_of_many(content.clone(), &[("ETag", "\"of the other\"")]);
    let places = [one.url("/x"), two.url("/x")];
    let front = FaultServer::start(move |request| {
        status("302 Found", &[("Location", &places[request.number % 2])])
    });
    let asked = ImageRequest {
        digest: Some(sha256(&content)),
        ..request(&[front.url("/")])
    };
    assert!(read(asked, LONG).unwrap().0 == content);
    // Once it is known that the servers differ, none is asked for "the same file or all of it".
    let late = two.requests();
    assert!(late.len() > 1);
    assert_eq!(late.last().unwrap().header("if-range"), None);

    let failure = read(request(&[front.url("/")]), LONG).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(
        describe(&failure).contains("changed while downloading"),
        "{failure}"
    );
}

#[test]
fn an_end_that_is_only_the_connections_needs_a_proof() {
    let content = image(300_000);
    let data = content.clone();
    let server = FaultServer::start(move |_| {
        // As HTTP/1.0 had it: neither a length nor chunks.
        vec![head("200 OK", &[]), Act::Send(data.clone())]
    });
    let failure = read(request(&[server.url("/")]), LONG).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(
        describe(&failure).contains("how long the file is"),
        "{failure}"
    );
    let asked = ImageRequest {
        digest: Some(sha256(&content)),
        ..request(&[server.url("/")])
    };
    assert!(read(asked, LONG).unwrap().0 == content);
}
