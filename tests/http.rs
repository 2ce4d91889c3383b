//! Small files and reports over HTTP: retries, redirects, secrets, TLS. Every server is on the loopback
//! device.

mod support;

use std::time::{Duration, Instant};

use ironroot::error::{Class, Failure, chain, describe};
use ironroot::stream::{Budget, Location};
use ironroot::units::Bytes;
use support::fault_server::{
    Act, CA_PEM, EXPIRED_PEM, FUTURE_PEM, FaultServer, ODD_CA_PEM, OTHER_NAME_PEM, head, ok, status,
};
use support::images::fetcher;

fn get_with(url: &str, headers: &[(&str, &str)], retry_for: Duration) -> Result<Vec<u8>, Failure> {
    let headers: Vec<_> = headers
        .iter()
        .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
        .collect();
    let location: Location = url.parse()?;
    let mut budget = Budget::new(retry_for);
    fetcher(&[CA_PEM]).get_small(&location, &headers, Bytes(1000), &mut budget)
}

fn get(url: &str, retry_for: Duration) -> Result<Vec<u8>, Failure> {
    get_with(url, &[], retry_for)
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(150);

#[test]
fn a_file_arrives_and_the_request_says_who_asks() {
    let server = FaultServer::start(|_| ok(b"hello"));
    assert_eq!(get(&server.url("/x?y=z"), LONG).unwrap(), b"hello");
    let request = &server.requests()[0];
    assert_eq!(
        (request.method.as_str(), request.target.as_str()),
        ("GET", "/x?y=z")
    );
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    assert!(
        request
            .header("user-agent")
            .unwrap()
            .starts_with("ironroot/")
    );
}

#[test]
fn ipv6_literals_work() {
    let server = FaultServer::start_v6(|_| ok(b"six"));
    assert!(server.url("/").starts_with("http://[::1]:"));
    assert_eq!(get(&server.url("/"), LONG).unwrap(), b"six");
}

#[test]
fn what_heals_is_asked_for_again() {
    for trouble in [
        "404 Not Found",
        "408 Request Timeout",
        "425 Too Early",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "502 Bad Gateway",
        "503 Service Unavailable",
    ] {
        let server = FaultServer::start(move |request| match request.number {
            0 | 1 => status(trouble, &[]),
            _ => ok(b"at last"),
        });
        assert_eq!(
            get(&server.url("/"), LONG).unwrap(),
            b"at last",
            "{trouble}"
        );
        assert_eq!(server.requests().len(), 3);
    }
}

#[test]
fn what_does_not_heal_ends_at_once() {
    for trouble in [
        "400 Bad Request",
        "401 Unauthorized",
        "403 Forbidden",
        "410 Gone",
    ] {
        let server = FaultServer::start(move |_| status(trouble, &[]));
        let failure = get(&server.url("/"), LONG).unwrap_err();
        assert_eq!(failure.class(), Class::Network);
        assert!(!failure.is_transient());
        assert!(failure.to_string().contains(trouble), "{failure}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn the_budget_ends_a_hopeless_wait_with_everything_one_must_know() {
    let server = FaultServer::start(|_| status("503 Service Unavailable", &[]));
    let started = Instant::now();
    let failure = get(&server.url("/config.json"), SHORT).unwrap_err();
    assert!(started.elapsed() >= SHORT && started.elapsed() < Duration::from_secs(5));
    assert_eq!(failure.class(), Class::Network);
    let text = chain(&failure);
    let attempts = format!("{} attempts", server.requests().len());
    for part in [server.url("/config.json"), "503".into(), attempts] {
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    assert!(server.requests().len() > 2);
}

#[test]
fn retry_after_is_obeyed() {
    let server = FaultServer::start(|request| match request.number {
        0 => status("503 Service Unavailable", &[("Retry-After", "1")]),
        _ => ok(b"at last"),
    });
    assert_eq!(get(&server.url("/"), LONG).unwrap(), b"at last");
    let times: Vec<_> = server.requests().iter().filter_map(|r| r.at).collect();
    assert!(times[1] - times[0] >= Duration::from_millis(950));
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let port = {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        gone.local_addr().unwrap().port()
    };
    let url = format!("http://127.0.0.1:{port}/");
    let failure = get(&url, SHORT).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(chain(&failure).contains("refused"), "{}", chain(&failure));

    // A name that does not resolve is no reason to give up at once either. This one has a label that is too
    // long for DNS, so that the C library refuses it without asking anybody.
    let failure = get(&format!("http://{}.invalid/", "a".repeat(64)), SHORT).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(failure.to_string().contains("attempts"), "{failure}");
}

#[test]
fn silence_ends_after_the_idle_time_and_is_tried_again() {
    let server = FaultServer::start(|request| match request.number {
        0 => vec![Act::Silence],
        1 => vec![head("200 OK", &[("Content-Length", "5")]), Act::Silence],
        _ => ok(b"hello"),
    });
    assert_eq!(get(&server.url("/"), LONG).unwrap(), b"hello");
}

#[test]
fn redirects_are_followed_as_far_as_is_sane() {
    let server = FaultServer::start(|request| match request.target.as_str() {
        "/a" => status("302 Found", &[("Location", "/b?c")]),
        "/b?c" => ok(b"there"),
        "/nowhere" => status("301 Moved Permanently", &[]),
        "/file" => status("302 Found", &[("Location", "file:///etc/passwd")]),
        _ => status("307 Temporary Redirect", &[("Location", "/loop")]),
    });
    assert_eq!(get(&server.url("/a"), LONG).unwrap(), b"there");
    for (path, why) in [
        ("/loop", "more than 10 redirects"),
        ("/nowhere", "Location"),
        ("/file", "Location"),
    ] {
        let failure = get(&server.url(path), LONG).unwrap_err();
        assert_eq!(failure.class(), Class::Network);
        assert!(!failure.is_transient());
        assert!(failure.to_string().contains(why), "{failure}");
    }
    let loops = server
        .requests()
        .iter()
        .filter(|r| r.target == "/loop")
        .count();
    assert_eq!(loops, 11, "the first request and ten redirects");
}

#[test]
fn tls_trusts_the_given_ca_and_no_other() {
    let server = FaultServer::start_tls(|_| ok(b"secret"));
    assert_eq!(get(&server.url("/"), LONG).unwrap(), b"secret");

    let location: Location = server.url("/").parse().unwrap();
    let started = Instant::now();
    let failure = fetcher(&[])
        .get_small(&location, &[], Bytes(1000), &mut Budget::new(LONG))
        .unwrap_err();
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "no retry helps"
    );
    assert_eq!(failure.class(), Class::Network);
    assert!(failure.next().contains("CA"), "{}", describe(&failure));
}

#[test]
fn a_refused_certificate_says_what_is_wrong_and_what_to_do() {
    let trusted: &[&[u8]] = &[ODD_CA_PEM];
    for (certificate, ca, parts) in [
        (
            EXPIRED_PEM,
            trusted,
            ["ended on 2021-01-01 00:00 UTC", "renew"],
        ),
        // As every certificate is to a machine whose clock stands in 1970.
        (
            FUTURE_PEM,
            trusted,
            ["clock is wrong", "begins on 2100-01-01 00:00 UTC"],
        ),
        (OTHER_NAME_PEM, trusted, ["images.example", "in the URL"]),
        (OTHER_NAME_PEM, &[CA_PEM], ["CA to `ca`", "ironroot.ca="]),
    ] {
        let server = FaultServer::start_odd_tls(certificate, |_| ok(b"secret"));
        let location: Location = server.url("/").parse().unwrap();
        let started = Instant::now();
        let failure = fetcher(ca)
            .get_small(&location, &[], Bytes(1000), &mut Budget::new(LONG))
            .unwrap_err();
        assert!(started.elapsed() < LONG / 2, "no retry helps");
        assert_eq!(failure.class(), Class::Network);
        for part in parts {
            assert!(failure.next().contains(part), "{}", describe(&failure));
        }
        assert!(server.requests().is_empty(), "nothing was asked");
    }
}

#[test]
fn https_is_never_left_for_http() {
    let plain = FaultServer::start(|_| ok(b"anybody could have written this"));
    let target = plain.url("/x");
    let tls = FaultServer::start_tls(move |_| status("302 Found", &[("Location", &target)]));
    let failure = get(&tls.url("/"), LONG).unwrap_err();
    assert!(
        failure
            .to_string()
            .contains("redirected from https to http"),
        "{failure}"
    );
    assert!(!failure.is_transient());
    assert!(plain.requests().is_empty());

    let target = tls.url("/ok");
    let up = FaultServer::start(move |_| status("302 Found", &[("Location", &target)]));
    // Towards https it may go; that the second server redirects back down is refused there.
    let failure = get(&up.url("/"), LONG).unwrap_err();
    assert_eq!(tls.requests().len(), 2, "{failure}");
}

#[test]
fn secrets_go_to_their_origin_only_and_into_no_message() {
    let other = FaultServer::start(|_| status("403 Forbidden", &[]));
    let target = other.url("/x?signature=5ecret");
    let server = FaultServer::start(move |request| match request.target.as_str() {
        "/a?token=5ecret" => status("302 Found", &[("Location", "/b")]),
        _ => status("302 Found", &[("Location", &target)]),
    });
    let url = server
        .url("/a?token=5ecret")
        .replace("http://", "http://bob:5ecret@");
    let headers = [("Authorization", "Bearer 5ecret"), ("X-Token", "5ecret")];
    let failure = get_with(&url, &headers, LONG).unwrap_err();
    assert!(
        !describe(&failure).contains("5ecret"),
        "{}",
        describe(&failure)
    );
    let ours = server.requests();
    assert!(ours.iter().all(|r| r.header("x-token") == Some("5ecret")));
    assert_eq!(ours.len(), 2);
    let theirs = &other.requests()[0];
    assert_eq!(
        (theirs.header("x-token"), theirs.header("authorization")),
        (None, None)
    );

    let accepting = [("Accept-Encoding", "gzip"), ("User-Agent", "mine")];
    let server = FaultServer::start(|_| ok(b"plain"));
    get_with(&server.url("/"), &accepting, LONG).unwrap();
    let request = &server.requests()[0];
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    assert_eq!(request.header("user-agent"), Some("mine"));

    let refused = get_with(
        "http://bob:5ecret@127.0.0.1:1/?token=5ecret",
        &headers,
        SHORT,
    );
    assert!(!describe(&refused.unwrap_err()).contains("5ecret"));
}

#[test]
fn a_large_answer_is_refused_whether_it_says_so_or_not() {
    let big = vec![b'x'; 2000];
    let server = FaultServer::start(move |request| match request.target.as_str() {
        "/said" => ok(&big),
        _ => vec![head("200 OK", &[]), Act::Send(big.clone())],
    });
    for path in ["/said", "/unsaid"] {
        let failure = get(&server.url(path), LONG).unwrap_err();
        assert_eq!(failure.class(), Class::Config);
        assert!(
            failure.to_string().contains("at most 1000 bytes"),
            "{failure}"
        );
    }
}

#[test]
fn files_are_read_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    std::fs::write(&path, b"{}").unwrap();
    assert_eq!(get(path.to_str().unwrap(), LONG).unwrap(), b"{}");
    assert_eq!(
        get(&format!("file://{}", path.display()), LONG).unwrap(),
        b"{}"
    );
    let failure = get("/does/not/exist", LONG).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(chain(&failure).contains("/does/not/exist"));
}

#[test]
fn a_report_is_posted_and_repeated_until_it_is_taken() {
    let server = FaultServer::start(|request| match request.number {
        0 => vec![Act::Reset],
        1 => status("500 Internal Server Error", &[]),
        _ => status("204 No Content", &[]),
    });
    let url = server.url("/report").parse().unwrap();
    let headers = [("X-Token".to_owned(), "t".to_owned())];
    fetcher(&[])
        .post_json(
            &url,
            &headers,
            b"{\"a\":1}".to_vec(),
            &mut Budget::new(LONG),
        )
        .unwrap();
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    for request in &requests {
        assert_eq!(request.method, "POST");
        assert_eq!(request.body, b"{\"a\":1}");
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.header("x-token"), Some("t"));
    }
}

#[test]
fn a_report_that_nobody_takes_ends_with_the_budget() {
    let server = FaultServer::start(|request| match request.target.as_str() {
        "/hang" => vec![Act::Silence],
        "/found" => status("302 Found", &[("Location", "/")]),
        _ => status("404 Not Found", &[]),
    });
    for path in ["/hang", "/found", "/missing"] {
        let url = server.url(path).parse().unwrap();
        let started = Instant::now();
        let failure = fetcher(&[])
            .post_json(&url, &[], Vec::new(), &mut Budget::new(SHORT))
            .unwrap_err();
        assert_eq!(failure.class(), Class::Network, "{path}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
