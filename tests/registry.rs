//! Images in registries: Debian's docker-registry, filled by skopeo, and a scripted one for what it does not
//! do. On the loopback device; needs the packages docker-registry and skopeo.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)] // helpers of tests are tests

#[path = "support/registry.rs"]
mod server;
mod support;

use std::process::Command;
use std::time::Instant;

use ironroot::error::{Class, Failure, chain, describe};
use ironroot::stream::{
    Budget, ImageRequest, ImageStream, Location, Purpose, RegistryAccess, Verified,
};
use server::Registry;
use support::fault_server::{Act, FaultServer, Request, Serve, file, ok, status};
use support::images::{LONG, RIGHT, fetcher, gzip, image, request, sha256, zstd};

const DISK: &str = "application/vnd.ironcore.image.rootfs";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn read(asked: ImageRequest) -> Result<(Vec<u8>, Verified), Failure> {
    let mut stream = ImageStream::open(&fetcher(&[]), asked, Budget::new(LONG))?;
    let mut content = Vec::new();
    while let Some(block) = stream.next_block()? {
        content.extend_from_slice(&block);
    }
    Ok((content, stream.finish()?))
}

fn asked(reference: &str, docker_config: Option<&str>) -> ImageRequest {
    let Location::Oci(reference) = reference.parse().unwrap() else {
        panic!("{reference} is no reference");
    };
    ImageRequest {
        locations: vec![Location::Oci(reference.over_plain_http())],
        registry: RegistryAccess {
            arch: "x86_64".to_owned(),
            docker_config: docker_config.map(|text| text.as_bytes().to_vec()),
        },
        ..request(&[])
    }
}

fn manifest(layers: &[(&str, &[u8])]) -> Vec<u8> {
    let layers: Vec<String> = layers
        .iter()
        .map(|(kind, bytes)| {
            let (digest, size) = (sha256(bytes), bytes.len());
            format!(r#"{{"mediaType":"{kind}","digest":"{digest}","size":{size}}}"#)
        })
        .collect();
    let config = sha256(b"{}");
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{"mediaType":"application/vnd.ironcore.image.config.v1+json","digest":"{config}","size":2}},"layers":[{}]}}"#,
        layers.join(",")
    )
    .into_bytes()
}

fn index(manifests: &[(&str, &[u8])]) -> Vec<u8> {
    let entries: Vec<String> = manifests
        .iter()
        .map(|(arch, bytes)| {
            let (digest, size) = (sha256(bytes), bytes.len());
            format!(
                r#"{{"mediaType":"{MANIFEST}","digest":"{digest}","size":{size},"platform":{{"architecture":"{arch}","os":"linux"}}}}"#
            )
        })
        .collect();
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{}]}}"#,
        entries.join(",")
    )
    .into_bytes()
}

/// Pushing as the tests of the client need it.
impl Registry {
    /// Pushes an OCI layout with skopeo: blobs, and the document that is its only entry.
    fn push(&self, blobs: &[&[u8]], kind: &str, document: &[u8], rest: &str, more: &[&str]) {
        let layout = tempfile::tempdir_in(self.directory.path()).unwrap();
        let place = layout.path().join("blobs/sha256");
        std::fs::create_dir_all(&place).unwrap();
        let put = |bytes: &[u8]| std::fs::write(place.join(sha256(bytes).hex()), bytes).unwrap();
        blobs.iter().copied().for_each(put);
        put(b"{}");
        put(document);
        let (digest, size) = (sha256(document), document.len());
        let top = format!(
            r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{kind}","digest":"{digest}","size":{size}}}]}}"#
        );
        std::fs::write(layout.path().join("index.json"), top).unwrap();
        let version = r#"{"imageLayoutVersion":"1.0.0"}"#;
        std::fs::write(layout.path().join("oci-layout"), version).unwrap();
        let to = self.reference(rest).replace("oci://", "docker://");
        let out = Command::new("skopeo")
            .args([
                "copy",
                "--all",
                "--insecure-policy",
                "--dest-tls-verify=false",
            ])
            .args(more)
            .args([&format!("oci:{}", layout.path().display()), &to])
            .output()
            .expect("skopeo is installed (package skopeo)");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

#[test]
fn a_disk_comes_from_a_real_registry_by_tag_by_digest_and_by_platform() {
    let registry = Registry::start("");
    let content = image((5 << 20) + 77);
    let packed = zstd(&content);
    let one = manifest(&[
        ("application/vnd.ironcore.image.kernel", b"kernel"),
        (DISK, &packed),
    ]);
    let other = manifest(&[(DISK, b"for another machine")]);
    let both = index(&[("arm64", &other), ("amd64", &one)]);
    let blobs: [&[u8]; 5] = [b"kernel", &packed, b"for another machine", &one, &other];
    registry.push(&blobs, MANIFEST, &one, "os/one:v1", &[]);
    registry.push(&blobs, INDEX, &both, "os/both:v1", &[]);
    for rest in [
        "os/one:v1".to_owned(),
        format!("os/one@{}", sha256(&one)),
        format!("os/one:v1@{}", sha256(&one)),
        "os/both:v1".to_owned(),
        format!("os/both@{}", sha256(&both)),
    ] {
        let (got, verified) = read(asked(&registry.reference(&rest), None)).unwrap();
        assert!(got == content, "{rest}");
        assert_eq!(verified.download_digest(), Some(&sha256(&packed)));
    }
    let failure = read(asked(&registry.reference("os/one:nothing"), None)).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(
        !failure.is_transient() && describe(&failure).contains("404"),
        "{failure}"
    );
}

/// A registry of one image, whose answers a test can change.
fn scripted(
    content: Vec<u8>,
    change: impl Fn(&Request) -> Option<Vec<Act>> + Send + Sync + 'static,
) -> FaultServer {
    let document = manifest(&[(DISK, &content)]);
    let blob = format!("/v2/os/blobs/{}", sha256(&content));
    FaultServer::start(move |request| {
        if let Some(acts) = change(request) {
            return acts;
        }
        match request.target.as_str() {
            target if target == blob => file(request, &content, RIGHT),
            target if target.starts_with("/v2/os/manifests/") => ok(&document),
            _ => status("404 Not Found", &[]),
        }
    })
}

fn at(server: &FaultServer, rest: &str) -> String {
    format!("oci://127.0.0.1:{}/{rest}", server.port())
}

#[test]
fn a_blob_or_a_manifest_with_another_digest_is_never_verified() {
    let content = image(300_000);
    let server = scripted(content.clone(), |request| {
        let wrong = request.target.contains("/blobs/");
        wrong.then(|| ok(&image(300_001)))
    });
    let failure = read(asked(&at(&server, "os:v1"), None)).unwrap_err();
    assert_eq!(failure.class(), Class::Integrity, "{failure}");
    assert!(
        failure.to_string().contains("in the manifest of oci://"),
        "{failure}"
    );

    let server = scripted(content, |_| None);
    let pinned = at(&server, &format!("os@{}", sha256(b"another manifest")));
    let failure = read(asked(&pinned, None)).unwrap_err();
    assert_eq!(failure.class(), Class::Integrity, "{failure}");
    assert!(
        server
            .requests()
            .iter()
            .all(|r| !r.target.contains("/blobs/"))
    );
}

#[test]
fn a_layer_that_is_not_compressed_as_its_media_type_declares_is_refused() {
    let content = image(300_000);
    for (suffix, right) in [("+gzip", true), ("+zstd", false), ("+xz", false)] {
        let packed = gzip(&content);
        let kind = format!("{DISK}{suffix}");
        let document = manifest(&[(&kind, &packed)]);
        let server = FaultServer::start(move |request| {
            if request.target.contains("/manifests/") {
                ok(&document)
            } else {
                file(request, &packed, RIGHT)
            }
        });
        let got = read(asked(&at(&server, "os:v1"), None));
        if right {
            assert!(got.unwrap().0 == content);
            continue;
        }
        let failure = got.unwrap_err();
        assert_eq!(failure.class(), Class::Integrity, "{failure}");
        assert!(
            failure.to_string().contains("is gzip, and the media type"),
            "{failure}"
        );
    }
}

#[test]
fn a_tag_over_plain_http_is_no_proof_and_a_digest_is() {
    let content = image(10_000);
    let server = scripted(content.clone(), |_| None);
    let secure = |rest: &str| ImageRequest {
        insecure: false,
        ..asked(&at(&server, rest), None)
    };
    let failure = read(secure("os:v1")).unwrap_err();
    assert_eq!(failure.class(), Class::Config);
    assert!(server.requests().is_empty());
    let pinned = format!("os@{}", sha256(&manifest(&[(DISK, &content)])));
    assert!(read(secure(&pinned)).unwrap().1.is_proven());
    let digest = Some(sha256(&content));
    assert!(
        read(ImageRequest {
            digest,
            ..secure("os:v1")
        })
        .is_ok()
    );
}

/// What the manifest led to is fetched as that: a tag that moves meanwhile changes nothing, and nothing is asked twice.
#[test]
fn a_root_in_one_layer_is_looked_up_once() {
    let content = image(300_000);
    let server = scripted(content.clone(), |_| None);
    let root = ImageRequest {
        purpose: Purpose::Root,
        ..asked(&at(&server, "os:v1"), None)
    };
    let mut parts = root.split(&fetcher(&[]), &mut Budget::new(LONG)).unwrap();
    assert_eq!(parts.len(), 1);
    let (got, verified) = read(parts.remove(0)).unwrap();
    assert!(got == content && verified.is_proven());
    let manifests = server
        .requests()
        .iter()
        .filter(|r| r.target.contains("/manifests/"))
        .count();
    assert_eq!(manifests, 1);
}

#[test]
fn a_token_is_fetched_renewed_half_way_and_shown_to_nobody_else() {
    let content = image(900_000);
    let data = content.clone();
    let elsewhere = FaultServer::start(move |request| {
        let stop_after = Some(400_000);
        let mut acts = file(
            request,
            &data,
            Serve {
                stop_after,
                ..RIGHT
            },
        );
        acts.push(Act::Reset);
        acts
    });
    let cdn = elsewhere.url("/cdn");
    let tokens = std::sync::atomic::AtomicUsize::new(0);
    let server = scripted(content.clone(), move |request| {
        let host = request.header("host").unwrap().to_owned();
        if request.target.starts_with("/token?") {
            assert_eq!(
                request.target,
                "/token?service=here&scope=repository%3Aos%3Apull"
            );
            // "me:s3cr3t"
            if request.header("authorization") != Some("Basic bWU6czNjcjN0") {
                return Some(status("401 Unauthorized", &[]));
            }
            let number = tokens.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            return Some(ok(format!(r#"{{"token":"t0ken-{number}"}}"#).as_bytes()));
        }
        // Each token is good for the manifest, or for one request for the blob.
        let newest = tokens.load(std::sync::atomic::Ordering::SeqCst);
        let good = newest > 0
            && request.header("authorization") == Some(&format!("Bearer t0ken-{}", newest - 1));
        let spent = request.target.contains("/blobs/")
            && newest * 400_000 <= request.range_from().unwrap_or(0);
        if !good || spent {
            let challenge = format!(
                r#"Bearer realm="http://{host}/token",service="here",scope="repository:os:pull""#
            );
            return Some(status(
                "401 Unauthorized",
                &[("WWW-Authenticate", &challenge)],
            ));
        }
        let is_blob = request.target.contains("/blobs/");
        is_blob.then(|| status("307 Temporary Redirect", &[("Location", &cdn)]))
    });
    let config = format!(
        r#"{{"auths":{{"127.0.0.1:{}":{{"auth":"bWU6czNjcjN0"}}}}}}"#,
        server.port()
    );
    let (got, _) = read(asked(&at(&server, "os:v1"), Some(&config))).unwrap();
    assert!(got == content);
    let renewals = server
        .requests()
        .iter()
        .filter(|r| r.target.starts_with("/token"))
        .count();
    assert!(renewals >= 3, "{renewals}");
    assert!(
        elsewhere
            .requests()
            .iter()
            .all(|r| r.header("authorization").is_none())
    );

    let wrong = config.replace("bWU6czNjcjN0", "bWU6d3Jvbmc=");
    for config in [None, Some(wrong.as_str())] {
        let failure = read(asked(&at(&server, "os:v1"), config)).unwrap_err();
        assert_eq!(failure.class(), Class::Network);
        assert!(!failure.is_transient());
        let text = chain(&failure);
        assert!(
            text.contains("401") && !text.contains("bWU6") && !text.contains("t0ken"),
            "{text}"
        );
    }
}

#[test]
fn a_registry_that_is_late_is_waited_for_and_what_is_no_disk_is_named() {
    let content = image(10_000);
    let server = scripted(content.clone(), |request| {
        (request.number < 2).then(|| status("503 Service Unavailable", &[]))
    });
    assert!(read(asked(&at(&server, "os:v1"), None)).unwrap().0 == content);

    let tree = manifest(&[("application/vnd.oci.image.layer.v1.tar+gzip", b"x")]);
    let server = FaultServer::start(move |_| ok(&tree));
    let failure = read(asked(&at(&server, "os:v1"), None)).unwrap_err();
    assert_eq!(failure.class(), Class::Config);
    assert!(failure.to_string().contains("tree of files"), "{failure}");
}

#[test]
fn user_and_password_open_a_real_registry() {
    let registry = Registry::start("auth: {htpasswd: {realm: here, path: ROOT/htpasswd}}");
    let content = image(100_000);
    let document = manifest(&[(DISK, &content)]);
    let login = ["--dest-creds", "me:s3cr3t"];
    registry.push(&[&content], MANIFEST, &document, "os:v1", &login);
    let reference = registry.reference("os:v1");
    let host = format!("127.0.0.1:{}", registry.port);
    let config = format!(r#"{{"auths":{{"{host}":{{"username":"me","password":"s3cr3t"}}}}}}"#);
    assert!(read(asked(&reference, Some(&config))).unwrap().0 == content);
    let wrong = config.replace("s3cr3t", "wr0ng");
    for config in [None, Some("{}"), Some(wrong.as_str())] {
        let failure = read(asked(&reference, config)).unwrap_err();
        assert_eq!(failure.class(), Class::Network);
        assert!(!failure.is_transient());
        assert!(!describe(&failure).contains("wr0ng"));
    }
}

/// `servers` as an image and its mirrors.
fn mirrored(references: &[String]) -> ImageRequest {
    let mut all = references.iter().map(|r| asked(r, None));
    let mut first = all.next().unwrap();
    first
        .locations
        .extend(all.flat_map(|other| other.locations));
    first
}

#[test]
fn a_mirror_stands_in_for_a_registry_that_is_down_knows_nothing_or_lies() {
    let content = image(300_000);
    let down = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!(
            "oci://127.0.0.1:{}/os:v1",
            free.local_addr().unwrap().port()
        )
    };
    let empty = FaultServer::start(|_| status("404 Not Found", &[]));
    let pin = sha256(&manifest(&[(DISK, &content)]));
    let liar = scripted(image(300_001), |_| None);
    let mirror = scripted(content.clone(), |_| None);
    let good = at(&mirror, "os:v1");
    for first in [
        down.clone(),
        at(&empty, "os:v1"),
        at(&liar, &format!("os@{pin}")),
    ] {
        let started = Instant::now();
        let (got, proof) = read(mirrored(&[first.clone(), good.clone()])).unwrap();
        assert!(got == content, "{first}");
        assert_eq!(proof.download_digest(), Some(&sha256(&content)));
        assert!(
            started.elapsed() < LONG / 2,
            "the budget was not spent on it"
        );
    }

    // Nobody has it: every registry is named, and nothing is asked for again.
    let failure = read(mirrored(&[at(&empty, "os:v1"), at(&empty, "os:v2")])).unwrap_err();
    assert_eq!(failure.class(), Class::Network);
    assert!(!failure.is_transient());
    let text = chain(&failure);
    assert!(
        text.contains("os/manifests/v1") && text.contains("os:v2"),
        "{text}"
    );

    // A registry and a web server are not each other's mirrors.
    let mixed = ImageRequest {
        locations: [
            mirrored(std::slice::from_ref(&good)).locations,
            request(&["http://127.0.0.1:1/x".to_owned()]).locations,
        ]
        .concat(),
        ..mirrored(&[good])
    };
    assert_eq!(read(mixed).unwrap_err().class(), Class::Config);
}

#[test]
fn a_mirror_goes_on_with_a_blob_that_another_registry_began_and_never_with_another_blob() {
    let content = image(900_000);
    let breaking = || {
        let data = content.clone();
        scripted(content.clone(), move |request| {
            if !request.target.contains("/blobs/") {
                return None;
            }
            if request.range_from().is_some() {
                return Some(vec![Act::Reset]);
            }
            let stop_after = Some(300_000);
            let mut acts = file(
                request,
                &data,
                Serve {
                    stop_after,
                    ..RIGHT
                },
            );
            acts.push(Act::Reset);
            Some(acts)
        })
    };
    // The mirror wants a token of its own.
    let mirror = scripted(content.clone(), |request| {
        if request.target.starts_with("/token?") {
            return Some(ok(br#"{"token":"m"}"#));
        }
        let host = request.header("host").unwrap();
        let challenge = format!(r#"Bearer realm="http://{host}/token""#);
        (request.header("authorization") != Some("Bearer m"))
            .then(|| status("401 Unauthorized", &[("WWW-Authenticate", &challenge)]))
    });
    let first = breaking();
    let (got, _) = read(mirrored(&[at(&first, "os:v1"), at(&mirror, "os:v1")])).unwrap();
    assert!(got == content);
    let blobs: Vec<_> = mirror
        .requests()
        .into_iter()
        .filter(|r| r.target.contains("/blobs/"))
        .collect();
    assert!(blobs.iter().all(|r| r.range_from().is_some()));
    assert!(
        first
            .requests()
            .iter()
            .all(|r| r.header("authorization").is_none())
    );

    let first = breaking();
    let mut other = content.clone();
    other[800_000] ^= 1;
    let wrong = scripted(content.clone(), move |request| {
        let is_blob = request.target.contains("/blobs/");
        is_blob.then(|| file(request, &other, RIGHT))
    });
    let failure = read(mirrored(&[at(&first, "os:v1"), at(&wrong, "os:v1")])).unwrap_err();
    assert_eq!(failure.class(), Class::Integrity, "{failure}");
}

#[test]
fn an_identity_token_is_exchanged_at_the_token_server_and_shown_to_nobody_else() {
    let content = image(10_000);
    let elsewhere = FaultServer::start(|_| ok(br#"{"access_token":"t0ken"}"#));
    let other = elsewhere.url("/token");
    let server = scripted(content.clone(), move |request| {
        let host = request.header("host").unwrap();
        if request.target == "/token" {
            assert_eq!(request.method, "POST");
            let body = String::from_utf8(request.body.clone()).unwrap();
            assert!(body.contains("grant_type=refresh_token&"), "{body}");
            assert!(
                body.contains("service=a+b&scope=repository%3Aos%3Apull"),
                "{body}"
            );
            return Some(if body.contains("refresh_token=s3cr3t%2B") {
                ok(br#"{"access_token":"t0ken"}"#)
            } else if body.contains("moved") {
                status("307 Temporary Redirect", &[("Location", &other)])
            } else {
                status("401 Unauthorized", &[])
            });
        }
        let challenge = format!(
            r#"Bearer realm="http://{host}/token",service="a b",scope="repository:os:pull""#
        );
        (request.header("authorization") != Some("Bearer t0ken"))
            .then(|| status("401 Unauthorized", &[("WWW-Authenticate", &challenge)]))
    });
    let with = |token: &str| {
        let config = format!(
            r#"{{"auths":{{"127.0.0.1:{}":{{"auth":"bWU6","identitytoken":"{token}"}}}}}}"#,
            server.port()
        );
        read(asked(&at(&server, "os:v1"), Some(&config)))
    };
    assert!(with("s3cr3t+").unwrap().0 == content);
    for wrong in ["wr0ng", "moved"] {
        let failure = with(wrong).unwrap_err();
        assert_eq!(failure.class(), Class::Network);
        assert!(!failure.is_transient());
        assert!(
            !describe(&failure).contains(wrong),
            "{}",
            describe(&failure)
        );
    }
    assert!(elsewhere.requests().is_empty());
}

#[test]
fn a_qcow2_disk_comes_from_a_registry_in_two_passes() {
    let content = image((5 << 20) + 512);
    let packed = support::qcow2::qcow2(&content, &["-c"]);
    let registry = Registry::start("");
    let document = manifest(&[(DISK, &packed)]);
    registry.push(&[&packed], MANIFEST, &document, "os:v1", &[]);
    let (got, proof) = read(asked(&registry.reference("os:v1"), None)).unwrap();
    assert!(got == content);
    assert_eq!(proof.download_digest(), Some(&sha256(&packed)));
}

#[test]
fn credentials_are_not_for_a_server_that_a_redirect_led_to() {
    let content = image(10_000);
    let elsewhere = FaultServer::start(|request| {
        if request.target.starts_with("/token") {
            return ok(br#"{"token":"t"}"#);
        }
        let host = request.header("host").unwrap();
        let challenge = format!(r#"Bearer realm="http://{host}/token""#);
        status("401 Unauthorized", &[("WWW-Authenticate", &challenge)])
    });
    for part in ["/blobs/", "/manifests/"] {
        let target = elsewhere.url("/cdn");
        let server = scripted(content.clone(), move |request| {
            let moved = request.target.contains(part);
            moved.then(|| status("307 Temporary Redirect", &[("Location", &target)]))
        });
        let config = format!(
            r#"{{"auths":{{"127.0.0.1:{}":{{"auth":"bWU6czNjcjN0"}}}}}}"#,
            server.port()
        );
        let failure = read(asked(&at(&server, "os:v1"), Some(&config))).unwrap_err();
        assert_eq!(failure.class(), Class::Network);
        assert!(chain(&failure).contains("401"), "{}", chain(&failure));
    }
    let theirs = elsewhere.requests();
    assert_eq!(theirs.len(), 2, "no token was asked for");
    assert!(theirs.iter().all(|r| r.header("authorization").is_none()));
}
