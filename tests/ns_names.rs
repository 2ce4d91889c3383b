//! Names that a restricted DNS server resolves: it refuses, or never answers, questions for IPv6 addresses. In a
//! network and mount namespace of its own, with the static program that an initrd has, whose C library (musl) minds;
//! glibc's does not. Needs root and `scripts/build-static`; `IRONROOT_BINARY` names another program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

/// What the server does with a question for an IPv6 address.
#[derive(Clone, Copy, Debug)]
enum Aaaa {
    /// No such record, as it should be said.
    None,
    Refused,
    ServerFailure,
    NotImplemented,
    /// No such name, although it has an IPv4 address.
    NoSuchName,
    Never,
    /// At once an address that this machine, which has only IPv4, cannot reach; what is good comes later.
    Unreachable,
}

/// How much later.
const LATER: Duration = Duration::from_millis(1500);

/// A DNS message (RFC 1035, section 4.1) that answers `question`; None where nothing is sent.
fn answer(question: &[u8], to_aaaa: Aaaa) -> Option<Vec<u8>> {
    let name_end = 12 + question[12..].iter().position(|b| *b == 0).unwrap();
    let kind = u16::from_be_bytes([question[name_end + 1], question[name_end + 2]]);
    let mut reply = question[..name_end + 5].to_vec();
    // A response, recursion available; one question, no further records.
    reply[2] |= 0x80;
    reply[3] = 0x80;
    reply[4..12].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    if kind == 1 {
        reply[7] = 1;
        // The name of the question, A, IN, 60 s, 127.0.0.1.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        return Some(reply);
    }
    reply[3] |= match to_aaaa {
        Aaaa::None => 0,
        Aaaa::ServerFailure => 2,
        Aaaa::NoSuchName => 3,
        Aaaa::NotImplemented => 4,
        Aaaa::Refused => 5,
        Aaaa::Never => return None,
        Aaaa::Unreachable => {
            reply[7] = 1;
            // AAAA, IN, 60 s, 2001:db8::1.
            reply.extend([0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16]);
            reply.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            0
        }
    };
    Some(reply)
}

fn program() -> PathBuf {
    let built = || {
        let arch = std::env::consts::ARCH;
        let place = format!("target/{arch}-unknown-linux-musl/release/ironroot");
        Path::new(env!("CARGO_MANIFEST_DIR")).join(place)
    };
    let program = std::env::var_os("IRONROOT_BINARY").map_or_else(built, PathBuf::from);
    assert!(
        program.exists(),
        "{} is missing: run scripts/build-static first",
        program.display()
    );
    program
}

/// When the first question for a name came, and when somebody first came to where it leads: how long the program takes
/// to begin and to end, on a machine with much else to do, is no matter of names.
#[derive(Default)]
struct Times {
    asked: OnceLock<Instant>,
    came: OnceLock<Instant>,
}

/// Fetches a boot config by a name of that server; how long its address took and what was said.
fn fetch(to_aaaa: Aaaa) -> (Duration, String) {
    let program = program();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("needs root");
        let folder = tempfile::tempdir().unwrap();
        let resolv = folder.path().join("resolv.conf");
        std::fs::write(&resolv, "nameserver 127.0.0.1\n").unwrap();
        let script = r#"ip link set lo up; mount --make-rprivate /
            mount --bind "$1" "$(realpath /etc/resolv.conf)""#;
        let prepared = Command::new("sh")
            .args(["-euc", script, "sh"])
            .arg(&resolv)
            .status();
        assert!(prepared.unwrap().success());
        let times: &'static Times = Box::leak(Box::default());
        let names = UdpSocket::bind("127.0.0.1:53").unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = names.recv_from(&mut buffer) {
                times.asked.get_or_init(Instant::now);
                let Some(reply) = answer(&buffer[..length], to_aaaa) else {
                    continue;
                };
                let names = names.try_clone().unwrap();
                std::thread::spawn(move || {
                    if matches!(to_aaaa, Aaaa::Unreachable) && reply.len() < 60 {
                        std::thread::sleep(LATER);
                    }
                    let _ = names.send_to(&reply, from);
                });
            }
        });
        let web = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!(
            "http://boot.lab.example:{}/config.json",
            web.local_addr().unwrap().port()
        );
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = web.accept() {
                times.came.get_or_init(Instant::now);
                let _ = stream.read(&mut [0; 4096]);
                let text = "this is no config";
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                    text.len()
                );
            }
        });
        let out = Command::new(program)
            .args(["plan", "--retry-for", "60s", "--config", &url])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let (Some(asked), Some(came)) = (times.asked.get(), times.came.get()) else {
            panic!("{to_aaaa:?}: nobody came: {said}");
        };
        (*came - *asked, said)
    });
    thread.join().unwrap()
}

/// The C library gives a server five seconds.
const WELL_BEFORE: Duration = Duration::from_secs(4);

/// The config came, as its content is complained about.
#[track_caller]
fn comes(to_aaaa: Aaaa, within: Duration) {
    let (time, said) = fetch(to_aaaa);
    assert!(said.contains("not JSON"), "{to_aaaa:?}: {said}");
    assert!(time < within, "{to_aaaa:?}: {time:?}: {said}");
}

#[test]
fn a_server_that_knows_no_ipv6_address_and_says_so() {
    comes(Aaaa::None, WELL_BEFORE);
}

#[test]
fn a_server_that_refuses_questions_for_ipv6_addresses() {
    for to_aaaa in [
        Aaaa::Refused,
        Aaaa::ServerFailure,
        Aaaa::NotImplemented,
        Aaaa::NoSuchName,
    ] {
        comes(to_aaaa, WELL_BEFORE);
    }
}

#[test]
fn an_address_that_cannot_be_reached_is_not_taken_before_one_that_can() {
    comes(Aaaa::Unreachable, Duration::from_secs(6));
}

#[test]
fn a_server_that_never_answers_questions_for_ipv6_addresses() {
    comes(Aaaa::Never, WELL_BEFORE);
}
