//! Requests through a proxy: plain ones, tunnels, passwords, exceptions.
#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod support;

use std::time::Duration;

use ironroot::error::{Class, Failure, chain};
use ironroot::report::Reporter;
use ironroot::stream::{Budget, FetchOptions, Fetcher, Location, Proxies};
use ironroot::units::Bytes;
use support::fault_server::{CA_PEM, FaultServer, ok, status};
use support::images::options;
use support::proxy::Proxy;

fn get(proxies: Proxies, url: &str) -> Result<Vec<u8>, Failure> {
    let options = FetchOptions {
        proxies,
        ..options(&[CA_PEM])
    };
    let fetcher = Fetcher::new(options, Reporter::default())?;
    let location: Location = url.parse()?;
    let mut budget = Budget::new(Duration::from_millis(300));
    fetcher.get_small(&location, &[], Bytes(1000), &mut budget)
}

/// The same proxy for both schemes.
fn through(address: &str, exceptions: &[&str]) -> Proxies {
    let exceptions: Vec<String> = exceptions.iter().map(ToString::to_string).collect();
    Proxies::new(Some(address), Some(address), &exceptions).unwrap()
}

#[test]
fn a_plain_request_names_the_server_to_the_proxy() {
    let server = FaultServer::start(|_| ok(b"hello"));
    let proxy = Proxy::start(server.port(), None);
    let body = get(
        through(&proxy.address(), &[]),
        "http://images.example/x?y=z",
    );
    assert_eq!(body.unwrap(), b"hello");
    assert_eq!(proxy.lines(), ["GET http://images.example/x?y=z HTTP/1.1"]);
}

#[test]
fn https_goes_through_a_tunnel_and_the_server_still_has_to_prove_itself() {
    let server = FaultServer::start_tls(|_| ok(b"secret"));
    let proxy = Proxy::start(server.port(), None);
    let body = get(through(&proxy.address(), &[]), "https://localhost/x");
    assert_eq!(body.unwrap(), b"secret");
    assert_eq!(proxy.lines(), ["CONNECT localhost:443 HTTP/1.1"]);
    assert_eq!(server.requests()[0].target, "/x");

    // The certificate is not for this name.
    let failure = get(through(&proxy.address(), &[]), "https://images.example/x").unwrap_err();
    assert!(
        chain(&failure).contains("certificate"),
        "{}",
        chain(&failure)
    );
    assert!(
        chain(&failure).contains(&proxy.address()),
        "{}",
        chain(&failure)
    );
}

#[test]
fn a_redirect_chooses_its_proxy_anew() {
    let server = FaultServer::start(|request| match request.number {
        0 => status("302 Found", &[("Location", "http://other.example/y")]),
        _ => ok(b"there"),
    });
    let proxy = Proxy::start(server.port(), None);
    let direct = ["127.0.0.1"];
    let body = get(through(&proxy.address(), &direct), &server.url("/x"));
    assert_eq!(body.unwrap(), b"there");
    assert_eq!(proxy.lines(), ["GET http://other.example/y HTTP/1.1"]);
}

#[test]
fn exceptions_are_reached_without_the_proxy() {
    let server = FaultServer::start(|_| ok(b"direct"));
    let gone = "127.0.0.1:1";
    for exception in ["127.0.0.0/8", "127.0.0.1", "*"] {
        let body = get(through(gone, &[exception]), &server.url("/"));
        assert_eq!(body.unwrap(), b"direct", "{exception}");
    }
    let failure = get(through(gone, &["10.0.0.0/8"]), &server.url("/")).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(
        chain(&failure).contains("http://127.0.0.1:1"),
        "{}",
        chain(&failure)
    );
}

#[test]
fn a_password_goes_to_the_proxy_only_and_is_in_no_message() {
    let server = FaultServer::start_tls(|_| ok(b"in"));
    let plain = FaultServer::start(|_| ok(b"in"));
    // "user:pa55"
    let authorization = Some("Basic dXNlcjpwYTU1");
    for (port, url) in [
        (server.port(), "https://localhost/x"),
        (plain.port(), "http://images.example/x"),
    ] {
        let proxy = Proxy::start(port, authorization);
        let with = format!("http://user:pa55@{}", proxy.address());
        assert_eq!(get(through(&with, &[]), url).unwrap(), b"in");
        let wrong = format!("http://user:s3cr3t@{}", proxy.address());
        let before = proxy.lines().len();
        let failure = get(through(&wrong, &[]), url).unwrap_err();
        assert!(!failure.is_transient(), "{failure}");
        assert_eq!(proxy.lines().len(), before + 1, "no retry helps");
        assert!(failure.next().contains("user and password"));
        let text = chain(&failure);
        assert!(
            text.contains(&proxy.address()) && !text.contains("s3cr3t"),
            "{text}"
        );
    }
    assert!(
        server
            .requests()
            .iter()
            .all(|r| r.header("proxy-authorization").is_none())
    );
}

#[test]
fn without_proxies_nothing_is_taken_from_the_environment() {
    // The library would, unless told otherwise; the variables are read once, where the flow begins.
    let server = FaultServer::start(|_| ok(b"direct"));
    assert_eq!(
        get(Proxies::default(), &server.url("/")).unwrap(),
        b"direct"
    );
}
