//! Image streams over servers that misbehave: what is resumed, what is refused, and that nothing wrong ever
//! becomes a `Verified`. Every server is on the loopback device.

mod support;

use std::time::{Duration, Instant};

use ironroot::error::{Class, chain, describe};
use ironroot::stream::ImageRequest;
use support::fault_server::{Act, FaultServer, Request, Serve, file, head, ok, status};
use support::images::{
    ETAG, LONG, RIGHT, SHORT, fails, get, gzip, image, read, request, resetting, sha256, xz, zstd,
};

/// The first 100000 bytes of `data`, then a reset.
fn broken(request: &Request, data: &[u8]) -> Vec<Act> {
    let stop_after = Some(100_000);
    let mut acts = file(
        request,
        data,
        Serve {
            stop_after,
            ..RIGHT
        },
    );
    acts.push(Act::Reset);
    acts
}

#[test]
fn a_connection_that_breaks_every_few_bytes_is_resumed_where_it_broke() {
    let content = image(900_000);
    for packed in [content.clone(), gzip(&content), xz(&content)] {
        let server = resetting(packed.clone(), 100_000, RIGHT);
        assert!(get(server.url("/")).unwrap() == content);
        let requests = server.requests();
        assert!(requests.len() >= packed.len() / 100_000);
        // A reset may take the last bytes before it along; then they are asked for again.
        for pair in requests.windows(2) {
            assert!(pair[1].range_from().unwrap() >= pair[0].range_from().unwrap_or(0));
            assert_eq!(pair[1].header("if-range"), Some("\"v1\""));
        }
        assert_eq!(requests[0].header("range"), None);
    }
}

#[test]
fn last_modified_serves_where_there_is_no_etag_and_it_is_older_than_the_answer() {
    let content = image(300_000);
    let weak = &[
        ("ETag", "W/\"v1\""),
        ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("Date", "Sun, 06 Nov 1994 08:49:39 GMT"),
    ];
    let (fresh, headers) = (&weak[1..2], &weak[1..]);
    for headers in [&weak[..], fresh] {
        let server = resetting(content.clone(), 100_000, Serve { headers, ..RIGHT });
        let failure = fails(server.url("/"), LONG);
        assert!(describe(&failure).contains("cannot go on"), "{failure}");
    }
    let server = resetting(content.clone(), 100_000, Serve { headers, ..RIGHT });
    assert!(get(server.url("/")).unwrap() == content);
    for resumed in &server.requests()[1..] {
        assert_eq!(
            resumed.header("if-range"),
            Some("Sun, 06 Nov 1994 08:49:37 GMT")
        );
    }
}

#[test]
fn without_a_validator_only_a_digest_allows_to_resume() {
    let content = image(300_000);
    let bare = Serve {
        headers: &[],
        ..RIGHT
    };
    let server = resetting(content.clone(), 100_000, bare);
    let failure = fails(server.url("/"), LONG);
    assert_eq!(failure.class(), Class::Network);
    assert!(
        describe(&failure).contains("digest"),
        "{}",
        describe(&failure)
    );

    let server = resetting(content.clone(), 100_000, bare);
    let asked = ImageRequest {
        digest: Some(sha256(&content)),
        ..request(&[server.url("/")])
    };
    assert!(read(asked, LONG).unwrap().0 == content);
    assert!(
        server
            .requests()
            .iter()
            .all(|r| r.header("if-range").is_none())
    );
}

#[test]
fn a_server_without_ranges_is_skipped_into() {
    let content = image(3_000_000);
    let data = content.clone();
    let server = FaultServer::start(move |request| {
        let stop_after = Some((request.number + 1) * 1_100_000);
        let mut acts = file(
            request,
            &data,
            Serve {
                ranges: false,
                stop_after,
                ..RIGHT
            },
        );
        if request.number < 2 {
            acts.push(Act::Reset);
        }
        acts
    });
    assert!(get(server.url("/")).unwrap() == content);
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn a_server_that_always_breaks_before_the_new_bytes_comes_to_an_end() {
    let content = image(300_000);
    let server = resetting(
        content,
        100_000,
        Serve {
            ranges: false,
            ..RIGHT
        },
    );
    let started = Instant::now();
    let failure = fails(server.url("/"), SHORT);
    assert_eq!(failure.class(), Class::Network);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_file_that_changes_half_way_is_never_mixed() {
    // Each answers the second request after a reset at byte 100000 of the first.
    type Second = fn(&Request, &[u8]) -> Vec<Act>;
    let (old, new) = (image(300_000), vec![7; 300_000]);
    let seconds: [(&str, Second); 4] = [
        ("200, another ETag", |r, new| {
            let headers = &[("ETag", "\"v2\"")];
            file(
                r,
                new,
                Serve {
                    headers,
                    ranges: false,
                    stop_after: None,
                },
            )
        }),
        ("206, another ETag", |r, new| {
            let headers = &[("ETag", "\"v2\"")];
            file(r, new, Serve { headers, ..RIGHT })
        }),
        ("206, another length", |r, new| {
            file(r, &new[..200_000], RIGHT)
        }),
        ("416, shorter", |r, new| file(r, &new[..50_000], RIGHT)),
    ];
    for (name, second) in seconds {
        let (old, new) = (old.clone(), new.clone());
        let server = FaultServer::start(move |request| match request.number {
            0 => broken(request, &old),
            _ => second(request, &new),
        });
        let failure = fails(server.url("/"), LONG);
        assert_eq!(failure.class(), Class::Network, "{name}: {failure}");
        let text = chain(&failure);
        assert!(text.contains("changed while downloading"), "{name}: {text}");
    }
}

#[test]
fn a_wrong_content_range_is_refused() {
    let content = image(300_000);
    for range in [
        "bytes 0-299999/300000",
        "bytes 99999-299999/300000",
        "nonsense",
    ] {
        let data = content.clone();
        let server = FaultServer::start(move |request| match request.range_from() {
            None => broken(request, &data),
            Some(_) => vec![
                head(
                    "206 Partial Content",
                    &[("Content-Range", range), ("ETag", "\"v1\"")],
                ),
                Act::Send(data.clone()),
            ],
        });
        assert_eq!(
            fails(server.url("/"), LONG).class(),
            Class::Network,
            "{range}"
        );
    }
}

#[test]
fn more_than_the_announced_length_is_refused() {
    let content = image(300_000);
    let server = FaultServer::start(move |request| match request.range_from() {
        None => broken(request, &content),
        Some(from) => {
            let range = format!("bytes {from}-299999/300000");
            vec![
                head("206 Partial Content", &[("Content-Range", &range)]),
                Act::Send(image(400_000)),
            ]
        }
    });
    let failure = fails(server.url("/"), LONG);
    assert!(chain(&failure).contains("announced"), "{}", chain(&failure));
}

#[test]
fn a_content_length_that_is_never_reached_is_a_network_failure_with_both_numbers() {
    let server = FaultServer::start(|request| match request.range_from() {
        None => vec![
            head(
                "200 OK",
                &[("Content-Length", "500000"), ("ETag", "\"v1\"")],
            ),
            Act::Send(image(300_000)),
        ],
        Some(_) => vec![Act::Reset],
    });
    let failure = fails(server.url("/image.raw"), SHORT);
    assert_eq!(failure.class(), Class::Network);
    let text = chain(&failure);
    for part in [
        "300000 of 500000 bytes",
        &server.url("/image.raw"),
        "attempts",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_content_length_that_is_too_short_cuts_the_stream_and_the_decoder_sees_it() {
    let content = image(300_000);
    for packed in [gzip(&content), zstd(&content), xz(&content)] {
        let server = FaultServer::start(move |_| {
            let length = (packed.len() - 1000).to_string();
            vec![
                head("200 OK", &[("Content-Length", &length)]),
                Act::Send(packed.clone()),
            ]
        });
        let failure = fails(server.url("/"), LONG);
        assert_eq!(failure.class(), Class::Integrity, "{failure}");
        assert!(failure.to_string().contains("cut short"), "{failure}");
    }
}

#[test]
fn an_orderly_end_in_the_middle_is_the_files_fault_a_reset_the_networks() {
    let packed = gzip(&image(300_000));
    let half = packed.len() / 2;
    for (last, class) in [(None, Class::Integrity), (Some(Act::Reset), Class::Network)] {
        let (digest, packed) = (Some(sha256(&packed)), packed.clone());
        let server = FaultServer::start(move |request| {
            if request.number > 0 {
                return vec![Act::Reset];
            }
            let body = Act::Send(packed[..half].to_vec());
            let acts = [Some(head("200 OK", ETAG)), Some(body), last.clone()];
            acts.into_iter().flatten().collect()
        });
        // The end of a body without a length is the connection's: only with a digest it is listened to at all.
        let asked = ImageRequest {
            digest,
            ..request(&[server.url("/")])
        };
        let failure = read(asked, SHORT).unwrap_err();
        assert_eq!(failure.class(), class, "{}", describe(&failure));
    }
}

fn chunked(bytes: &[u8], ends: bool) -> Act {
    let mut out = Vec::new();
    for piece in bytes.chunks(10_000) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    if ends {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    Act::Send(out)
}

#[test]
fn chunked_bodies_work_and_without_their_end_are_resumed() {
    let content = image(300_000);
    let data = content.clone();
    let server = FaultServer::start(move |request| {
        let head = head(
            "200 OK",
            &[("Transfer-Encoding", "chunked"), ("ETag", "\"v1\"")],
        );
        match (request.target.as_str(), request.range_from()) {
            ("/whole", _) => vec![head, chunked(&data, true)],
            ("/cut", None) => vec![head, chunked(&data[..100_000], false)],
            // Everything came but the last chunk: the server will say that nothing is missing.
            (_, None) => vec![head, chunked(&data, false)],
            (_, Some(_)) => file(request, &data, RIGHT),
        }
    });
    for path in ["/whole", "/cut", "/end"] {
        assert!(get(server.url(path)).unwrap() == content, "{path}");
    }
    let data = content;
    let hopeless = FaultServer::start(move |request| match request.range_from() {
        None => vec![
            head(
                "200 OK",
                &[("Transfer-Encoding", "chunked"), ("ETag", "\"v1\"")],
            ),
            chunked(&data[..100_000], false),
        ],
        Some(_) => vec![Act::Reset],
    });
    assert_eq!(fails(hopeless.url("/"), SHORT).class(), Class::Network);
}

#[test]
fn silence_in_the_body_is_resumed_and_a_slow_drip_goes_on() {
    let content = image(30_000);
    let data = content.clone();
    let server = FaultServer::start(move |request| {
        let mut acts = file(
            request,
            &data,
            Serve {
                stop_after: Some(20_000),
                ..RIGHT
            },
        );
        if request.number == 0 {
            acts.push(Act::Silence);
        }
        acts
    });
    assert!(get(server.url("/")).unwrap() == content);
    assert_eq!(server.requests().len(), 2);

    // Longer in all than the idle time and the budget, each pause shorter than both.
    let data = content.clone();
    let server = FaultServer::start(move |_| {
        let mut acts = vec![head("200 OK", &[("Content-Length", "30000")])];
        for piece in data.chunks(1500) {
            acts.push(Act::Send(piece.to_vec()));
            acts.push(Act::Sleep(Duration::from_millis(75)));
        }
        acts
    });
    let (got, _) = read(request(&[server.url("/")]), SHORT).unwrap();
    assert!(got == content);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn statuses_that_heal_are_retried_and_others_end_the_download() {
    let server = FaultServer::start(|request| match request.number {
        0 => status("500 Internal Server Error", &[]),
        1 => status("503 Service Unavailable", &[("Retry-After", "0")]),
        _ => ok(b"content"),
    });
    assert_eq!(get(server.url("/")).unwrap(), b"content");

    let server = FaultServer::start(|_| status("404 Not Found", &[]));
    let failure = fails(server.url("/missing.raw"), LONG);
    assert_eq!(failure.class(), Class::Network);
    assert!(
        failure.to_string().contains("/missing.raw: 404"),
        "{failure}"
    );
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn retry_after_is_obeyed_half_way() {
    let content = image(300_000);
    for trouble in ["429 Too Many Requests", "503 Service Unavailable"] {
        let data = content.clone();
        let server = FaultServer::start(move |request| match request.number {
            0 => broken(request, &data),
            1 => status(trouble, &[("Retry-After", "1")]),
            _ => file(request, &data, RIGHT),
        });
        assert!(get(server.url("/")).unwrap() == content, "{trouble}");
        let times: Vec<_> = server.requests().iter().filter_map(|r| r.at).collect();
        assert_eq!(times.len(), 3, "{trouble}");
        assert!(
            times[2] - times[1] >= Duration::from_millis(950),
            "{trouble}"
        );
    }
}

#[test]
fn a_content_encoding_that_nobody_asked_for_is_refused_by_name() {
    let server = FaultServer::start(|_| {
        vec![
            head("200 OK", &[("Content-Encoding", "gzip")]),
            Act::Send(gzip(b"content")),
        ]
    });
    let failure = fails(server.url("/"), LONG);
    assert_eq!(failure.class(), Class::Network);
    assert!(
        failure.to_string().contains("Content-Encoding: gzip"),
        "{failure}"
    );
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_mirror_takes_over_before_the_first_byte() {
    let bad = FaultServer::start(|_| status("403 Forbidden", &[]));
    let good = FaultServer::start(|_| ok(b"content"));
    let asked = request(&[bad.url("/"), "/does/not/exist".into(), good.url("/")]);
    assert_eq!(read(asked, LONG).unwrap().0, b"content");

    let asked = request(&[bad.url("/a"), bad.url("/b")]);
    let failure = read(asked, LONG).err().unwrap();
    let text = describe(&failure);
    assert!(
        text.contains(&bad.url("/a")) && text.contains(&bad.url("/b")),
        "{text}"
    );
}

#[test]
fn a_mirror_continues_only_under_a_digest() {
    let content = image(300_000);
    let data = content.clone();
    let first = FaultServer::start(move |request| match request.number {
        0 => broken(request, &data),
        _ => vec![Act::Reset],
    });
    let data = content.clone();
    let headers = &[("ETag", "\"of the mirror\"")];
    let mirror =
        FaultServer::start(move |request| file(request, &data, Serve { headers, ..RIGHT }));
    let locations = [first.url("/"), mirror.url("/")];
    let asked = ImageRequest {
        digest: Some(sha256(&content)),
        ..request(&locations)
    };
    assert!(read(asked, LONG).unwrap().0 == content);
    let requests = mirror.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].range_from().unwrap() > 0);
    assert_eq!(requests[0].header("if-range"), None);

    let data = content.clone();
    let first = FaultServer::start(move |request| match request.number {
        0 => broken(request, &data),
        _ => vec![Act::Reset],
    });
    let asked = request(&[first.url("/"), mirror.url("/")]);
    assert_eq!(read(asked, SHORT).err().unwrap().class(), Class::Network);
    assert_eq!(mirror.requests().len(), 1, "the mirror was not asked again");
}

#[test]
fn a_mirror_with_another_version_is_found_out_by_the_digest() {
    let content = image(300_000);
    let data = content.clone();
    let first = FaultServer::start(move |request| match request.number {
        0 => broken(request, &data),
        _ => status("410 Gone", &[]),
    });
    let mirror = FaultServer::start(move |request| file(request, &vec![7; 300_000], RIGHT));
    let asked = ImageRequest {
        digest: Some(sha256(&content)),
        ..request(&[first.url("/"), mirror.url("/")])
    };
    assert_eq!(read(asked, LONG).err().unwrap().class(), Class::Integrity);
}

#[test]
fn a_file_as_mirror_is_not_mixed_in_without_a_digest_either() {
    let content = image(300_000);
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other.path(), vec![7; 300_000]).unwrap();
    let first = FaultServer::start(move |request| match request.number {
        0 => broken(request, &content),
        _ => vec![Act::Reset],
    });
    let asked = request(&[first.url("/"), other.path().display().to_string()]);
    assert_eq!(read(asked, SHORT).unwrap_err().class(), Class::Network);
}

#[test]
fn a_server_that_gives_less_than_the_rest_is_asked_for_more() {
    let content = image(300_000);
    let data = content.clone();
    let server = FaultServer::start(move |request| match request.range_from() {
        None => file(
            request,
            &data,
            Serve {
                stop_after: Some(100_000),
                ..RIGHT
            },
        ),
        // A whole and right answer, but not all of what was asked for (RFC 9110 section 15.3.7).
        Some(from) => {
            let to = (from + 50_000).min(data.len());
            let range = format!("bytes {from}-{}/{}", to - 1, data.len());
            let length = (to - from).to_string();
            let headers = [("Content-Range", &*range), ("Content-Length", &*length)];
            vec![
                head("206 Partial Content", &headers),
                Act::Send(data[from..to].to_vec()),
            ]
        }
    });
    assert!(get(server.url("/")).unwrap() == content);
    assert!(server.requests().len() >= 5);
}

#[test]
fn a_part_of_a_file_whose_length_nobody_says_is_not_taken_for_the_rest() {
    let content = image(300_000);
    let server = FaultServer::start(move |request| match request.range_from() {
        None => vec![
            head(
                "200 OK",
                &[("Transfer-Encoding", "chunked"), ("ETag", "\"v1\"")],
            ),
            chunked(&content[..100_000], false),
        ],
        Some(from) => {
            let range = format!("bytes {from}-199999/*");
            let length = (200_000 - from).to_string();
            vec![
                head(
                    "206 Partial Content",
                    &[("Content-Range", &range), ("Content-Length", &length)],
                ),
                Act::Send(content[from..200_000].to_vec()),
            ]
        }
    });
    let failure = fails(server.url("/"), SHORT);
    assert_eq!(failure.class(), Class::Network);
    assert!(
        chain(&failure).contains("nobody says"),
        "{}",
        chain(&failure)
    );
}
