//! What proves an image: checksum files and detached signatures, right, wrong and missing. Every server is
//! on the loopback device.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

mod support;

use std::time::Duration;

use ironroot::error::{Class, Failure, describe};
use ironroot::stream::{
    Budget, ImageRequest, ImageStream, Keyring, SignatureKind, SignatureOf, SignatureRequest,
    Verified,
};
use support::fault_server::{Act, CA_PEM, FaultServer, Request, Serve, file, ok, status};
use support::images::{LONG, RIGHT, fetcher, gzip, image, request, sha256, sha512};

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

/// A minisign key pair, and what it signs.
struct Signer(minisign::KeyPair);

impl Signer {
    fn new() -> Signer {
        Signer(minisign::KeyPair::generate_unencrypted_keypair().unwrap())
    }

    fn keys(&self) -> Keyring {
        let public = self.0.pk.to_box().unwrap().to_string();
        Keyring::parse(SignatureKind::Minisign, public.as_bytes()).unwrap()
    }

    fn sign(&self, data: &[u8]) -> Vec<u8> {
        minisign::sign(None, &self.0.sk, data, None, None)
            .unwrap()
            .to_bytes()
    }
}

fn signed(server: &FaultServer, image: &str, keys: Keyring) -> ImageRequest {
    ImageRequest {
        signature: Some(SignatureRequest {
            kind: SignatureKind::Minisign,
            keys,
            location: None,
            of: SignatureOf::Image,
        }),
        insecure: false,
        ..request(&[server.url(image)])
    }
}

/// Plain HTTP: a signature is proof enough.
fn plain(files: Vec<(&'static str, Vec<u8>)>) -> FaultServer {
    FaultServer::start(move |request| serve(request, &files))
}

#[test]
fn a_signature_beside_the_image_proves_it_in_every_format() {
    let signer = Signer::new();
    // More than a block, so that every stage runs several times.
    let content = image((9 << 20) + 12345);
    for bytes in [content.clone(), gzip(&content)] {
        let signature = signer.sign(&bytes);
        let server = plain(vec![("/x", bytes), ("/x.minisig", signature)]);
        let verified = read(signed(&server, "/x?token=1", signer.keys())).unwrap();
        assert!(verified.is_proven());
        let by = verified.signed_by().unwrap().to_string();
        assert!(by.starts_with("minisign key "), "{by}");
        let targets: Vec<String> = server.requests().iter().map(|r| r.target.clone()).collect();
        assert_eq!(targets, ["/x.minisig?token=1", "/x?token=1"]);
    }
}

#[test]
fn the_first_pass_over_a_qcow2_image_checks_signature_and_checksums() {
    let signer = Signer::new();
    let packed = support::qcow2::qcow2(&image(3 << 20), &["-c"]);
    let mut other = packed.clone();
    *other.last_mut().unwrap() ^= 1;
    let serving = |signature: Vec<u8>| {
        let files = [("/x", packed.clone()), ("/x.minisig", signature)];
        FaultServer::start(move |r| {
            let found = files.iter().find(|(path, _)| r.target == *path);
            found.map_or_else(
                || status("404 Not Found", &[]),
                |(_, data)| file(r, data, RIGHT),
            )
        })
    };
    let server = serving(signer.sign(&packed));
    let verified = read(signed(&server, "/x", signer.keys())).unwrap();
    assert!(verified.is_proven() && verified.signed_by().is_some());

    let server = serving(signer.sign(&other));
    let asked = signed(&server, "/x", signer.keys());
    let failure = support::images::open(asked, LONG).unwrap_err();
    assert_eq!(failure.class(), Class::Integrity, "{failure}");
}

#[test]
fn a_wrong_signature_is_never_verified_and_names_key_and_file() {
    let signer = Signer::new();
    let content = image(3 << 20);
    let mut other = content.clone();
    *other.last_mut().unwrap() ^= 1;
    let server = plain(vec![("/x", other), ("/x.minisig", signer.sign(&content))]);
    for insecure in [false, true] {
        let failure = read(ImageRequest {
            insecure,
            ..signed(&server, "/x", signer.keys())
        })
        .unwrap_err();
        assert_eq!(failure.class(), Class::Integrity);
        let text = describe(&failure);
        for part in [&server.url("/x"), "minisign key ", "/x.minisig"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn a_missing_or_foreign_signature_is_refused_before_the_image_is_asked_for() {
    let (signer, other) = (Signer::new(), Signer::new());
    let content = image(100_000);
    let foreign = other.sign(&content);
    let server = plain(vec![
        ("/x", content.clone()),
        ("/y", content),
        ("/y.minisig", foreign),
    ]);
    for (path, part) in [("/x", "is missing"), ("/y", "it was made with key")] {
        let failure = read(signed(&server, path, signer.keys())).unwrap_err();
        assert_eq!(failure.class(), Class::Integrity);
        let text = describe(&failure);
        assert!(
            text.contains(part) && text.contains(&server.url(path)),
            "{text}"
        );
    }
    assert!(
        server
            .requests()
            .iter()
            .all(|r| r.target.ends_with(".minisig"))
    );
}

#[test]
fn a_signed_image_resumes_across_resets_and_mirrors() {
    let signer = Signer::new();
    let content = image(5 << 20);
    let signature = signer.sign(&content);
    let broken = content.clone();
    let server = FaultServer::start(move |request| {
        if request.target == "/x.minisig" {
            return ok(&signature);
        }
        let stop_after = Some(700_000);
        let mut acts = file(
            request,
            &broken,
            Serve {
                stop_after,
                ..RIGHT
            },
        );
        acts.push(Act::Reset);
        acts
    });
    let mirror = plain(vec![("/m", content)]);
    let asked = signed(&server, "/x", signer.keys());
    let locations = vec![
        server.url("/x").parse().unwrap(),
        mirror.url("/m").parse().unwrap(),
    ];
    assert!(
        read(ImageRequest { locations, ..asked })
            .unwrap()
            .is_proven()
    );
}

#[test]
fn a_signed_checksum_file_proves_over_plain_http() {
    let signer = Signer::new();
    let content = image(100_000);
    let sums = format!("{}  x\n", sha256(&content).hex()).into_bytes();
    let signature = signer.sign(&sums);
    let server = plain(vec![
        ("/x", content),
        ("/SUMS", sums),
        ("/SUMS.minisig", signature),
        ("/bad", b"0 x".to_vec()),
        ("/bad.minisig", signer.sign(b"1 x")),
    ]);
    let asked = |sums: &str, of| {
        let base = signed(&server, "/x", signer.keys());
        ImageRequest {
            checksums: Some(server.url(sums).parse().unwrap()),
            signature: base.signature.map(|s| SignatureRequest { of, ..s }),
            ..request(&[server.url("/x")])
        }
    };
    let verified = read(asked("/SUMS", SignatureOf::Checksums)).unwrap();
    assert!(verified.signed_by().is_some());
    let failure = read(asked("/bad", SignatureOf::Checksums)).unwrap_err();
    assert_eq!(failure.class(), Class::Integrity);
    assert!(
        failure
            .to_string()
            .contains("/bad is not what minisign key"),
        "{failure}"
    );
    // The image's own signature is another thing.
    let failure = read(asked("/SUMS", SignatureOf::Image)).unwrap_err();
    assert!(failure.to_string().contains("x.minisig"), "{failure}");
}

/// GnuPG in a home of its own.
fn gpg(home: &std::path::Path, arguments: &[&str]) -> Vec<u8> {
    let output = std::process::Command::new("gpg")
        .args([
            "--homedir",
            home.to_str().unwrap(),
            "--batch",
            "--quiet",
            "--yes",
        ])
        .args(["--pinentry-mode", "loopback", "--passphrase", ""])
        .args(arguments)
        .output()
        .expect("gpg is installed (package gnupg)");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

#[test]
fn openpgp_signatures_of_images_and_checksum_files_in_the_ways_distributions_publish_them() {
    let home = tempfile::Builder::new()
        .prefix("gpg")
        .tempdir_in("/tmp")
        .unwrap();
    let home = home.path();
    gpg(home, &["--quick-gen-key", "me", "ed25519", "sign", "never"]);
    let public = gpg(home, &["--armor", "--export", "me"]);
    let content = image((5 << 20) + 1);
    let bsd = format!(
        "# x: {} bytes\nSHA256 (x) = {}\n",
        content.len(),
        sha256(&content).hex()
    );
    let write = |name: &str, bytes: &[u8]| {
        let path = home.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (image_file, sums_file) = (write("x", &content), write("sums", bsd.as_bytes()));
    let sign = |arguments: &[&str], path: &str| {
        gpg(home, &[&["--output", "-"], arguments, &[path]].concat())
    };
    let server = plain(vec![
        ("/x", content),
        ("/x.sig", sign(&["--detach-sign"], &image_file)),
        ("/SUMS", bsd.into_bytes()),
        ("/SUMS.gpg", sign(&["--armor", "--detach-sign"], &sums_file)),
        ("/CHECKSUM", sign(&["--clear-sign"], &sums_file)),
    ]);
    let keys = Keyring::parse(SignatureKind::OpenPgp, &public).unwrap();
    let asked = |of, sums: Option<&str>, at: Option<&str>| ImageRequest {
        checksums: sums.map(|path| server.url(path).parse().unwrap()),
        signature: Some(SignatureRequest {
            kind: SignatureKind::OpenPgp,
            keys: keys.clone(),
            location: at.map(|path| server.url(path).parse().unwrap()),
            of,
        }),
        insecure: false,
        ..request(&[server.url("/x")])
    };
    for (of, sums, at) in [
        (SignatureOf::Image, None, None),
        (SignatureOf::Image, Some("/SUMS"), None),
        (SignatureOf::Checksums, Some("/SUMS"), Some("/SUMS.gpg")),
        (SignatureOf::Checksums, Some("/CHECKSUM"), None),
    ] {
        let verified = read(asked(of, sums, at)).unwrap();
        let by = verified.signed_by().unwrap().to_string();
        assert!(by.starts_with("OpenPGP key "), "{by}");
    }
    for (of, sums, at) in [
        (SignatureOf::Image, None, Some("/SUMS.gpg")),
        (SignatureOf::Checksums, Some("/SUMS"), Some("/x.sig")),
        (SignatureOf::Checksums, Some("/SUMS"), None),
    ] {
        let failure = read(asked(of, sums, at)).unwrap_err();
        assert_eq!(failure.class(), Class::Integrity, "{failure}");
    }
    let _ = std::process::Command::new("gpgconf")
        .args(["--homedir", home.to_str().unwrap(), "--kill", "all"])
        .status();
}
