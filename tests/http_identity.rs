//! Who asks: client certificates, passwords and tokens, and that none of them shows or leaves its server.
#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod support;

use std::time::Duration;

use ironroot::error::{Class, Failure, describe};
use ironroot::stream::{Budget, ClientCertificate, Fetcher, Location};
use ironroot::units::Bytes;
use support::fault_server::{CA_PEM, FaultServer, ok, status};
use support::images::fetcher;

const CERTIFICATE: &[u8] = include_bytes!("support/tls/client.pem");
const KEY: &[u8] = include_bytes!("support/tls/client.key");

fn get(fetcher: &Fetcher, url: &str, headers: &[(&str, &str)]) -> Result<Vec<u8>, Failure> {
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let location: Location = url.parse()?;
    let mut budget = Budget::new(Duration::from_millis(300));
    fetcher.get_small(&location, &headers, Bytes(1000), &mut budget)
}

fn with(chain: &[u8], key: &[u8]) -> Result<Fetcher, Failure> {
    fetcher(&[CA_PEM]).with_client_certificate(ClientCertificate {
        chain_pem: chain.to_vec(),
        key_pem: key.to_vec(),
    })
}

#[test]
fn a_server_that_wants_a_certificate_gets_it() {
    let server = FaultServer::start_mutual_tls(|_| ok(b"for you"));
    let url = server.url("/x");
    assert_eq!(
        get(&with(CERTIFICATE, KEY).unwrap(), &url, &[]).unwrap(),
        b"for you"
    );
    let failure = get(&fetcher(&[CA_PEM]), &url, &[]).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(
        describe(&failure).contains("ertificate"),
        "{}",
        describe(&failure)
    );
    // A server that wants none is served as before.
    let server = FaultServer::start_tls(|_| ok(b"for all"));
    let fetcher = with(CERTIFICATE, KEY).unwrap();
    assert_eq!(get(&fetcher, &server.url("/x"), &[]).unwrap(), b"for all");
}

#[test]
fn a_certificate_that_is_none_is_refused_without_showing_the_key() {
    let other = include_bytes!("support/tls/server.key");
    for (chain, key) in [
        (&b""[..], KEY),
        (CERTIFICATE, &b"hello"[..]),
        (CERTIFICATE, CERTIFICATE),
        (CERTIFICATE, &other[..]),
    ] {
        let failure = with(chain, key).unwrap_err();
        assert_eq!(failure.class(), Class::Config);
        let text = describe(&failure);
        assert!(text.starts_with("client certificate: "), "{text}");
        let secret = String::from_utf8_lossy(KEY)
            .lines()
            .nth(1)
            .unwrap()
            .to_owned();
        assert!(!text.contains(&secret), "{text}");
    }
}

#[test]
fn user_and_password_of_a_url_are_sent_as_basic_authentication_to_its_own_server_only() {
    let other = FaultServer::start(|_| ok(b"there"));
    let elsewhere = other.url("/z");
    let server = FaultServer::start(move |request| match request.target.as_str() {
        "/x" => {
            let host = request.header("host").unwrap();
            status("302 Found", &[("Location", &format!("http://{host}/y"))])
        }
        "/y" => status("302 Found", &[("Location", &elsewhere)]),
        _ => status("404 Not Found", &[]),
    });
    let url = server.url("/x").replace("http://", "http://bob:pa%3A55@");
    assert_eq!(get(&fetcher(&[]), &url, &[]).unwrap(), b"there");
    let sent: Vec<_> = server
        .requests()
        .iter()
        .map(|r| r.header("authorization").map(str::to_owned))
        .collect();
    // "bob:pa:55"
    let basic = Some("Basic Ym9iOnBhOjU1".to_owned());
    assert_eq!(sent, [basic.clone(), basic]);
    assert_eq!(other.requests()[0].header("authorization"), None);
}

#[test]
fn a_token_is_in_no_message() {
    let server = FaultServer::start(|_| status("401 Unauthorized", &[]));
    let url = server
        .url("/x?sig=s3cr3t")
        .replace("http://", "http://bob:s3cr3t@");
    let failure = get(&fetcher(&[]), &url, &[("X-Token", "s3cr3t")]).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(!failure.is_transient());
    let text = describe(&failure);
    assert!(text.contains("401") && !text.contains("s3cr3t"), "{text}");
    let headers = [("Authorization", "Bearer s3cr3t")];
    let failure = get(&fetcher(&[]), &server.url("/x"), &headers).unwrap_err();
    assert!(!describe(&failure).contains("s3cr3t"));
    let last = server.requests().pop().unwrap();
    assert_eq!(last.header("authorization"), Some("Bearer s3cr3t"));
}

/// The kernel's own list of sockets says which timer runs on a connection that waits.
#[test]
fn an_idle_connection_is_kept_alive() {
    let server = FaultServer::start(|_| vec![support::fault_server::Act::Silence]);
    let port = server.port();
    let url = server.url("/x");
    let waiting = std::thread::spawn(move || get(&fetcher(&[]), &url, &[]));
    let mut timers = Vec::new();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(5));
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        // sl local remote st tx:rx tr:when …; timer 2 is the keepalive timer (proc_net_tcp in the kernel's docs).
        let established = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields
                .get(2)
                .is_some_and(|remote| remote.ends_with(&format!(":{port:04X}")))
                && fields.get(3) == Some(&"01")
        };
        timers.extend(
            table
                .lines()
                .filter(established)
                .map(|line| line.split_whitespace().nth(5).unwrap()[..2].to_owned()),
        );
        if timers.iter().any(|t| t == "02") {
            break;
        }
    }
    assert!(timers.iter().any(|t| t == "02"), "{timers:?}");
    assert!(waiting.join().unwrap().is_err());
}
