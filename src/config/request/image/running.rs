//! The root that is running, as an image: there is nothing to fetch, and nothing to compare it with.

use super::super::{Problems, wire};
use super::Image;

/// `image.url` of the root that is running.
pub const RUNNING: &str = "live:";

/// The image, and a problem for each key that cannot mean anything with it.
pub(super) fn read(image: &wire::Image, problems: &mut Problems) -> Image {
    let wire::Image {
        url,
        mirrors,
        digest,
        content_digest,
        checksums,
        signature,
        client_certificate,
        credentials,
        plain_http,
        kind,
        size,
        content_size,
        headers,
        // Forgives what is missing by nature.
        insecure,
        verify_disk,
    } = image;
    for (key, given) in [
        ("mirrors", !mirrors.is_empty()),
        ("digest", digest.is_some()),
        ("contentDigest", content_digest.is_some()),
        ("checksums", checksums.is_some()),
        ("signature", signature.is_some()),
        ("clientCertificate", client_certificate.is_some()),
        ("credentials", credentials.is_some()),
        ("plainHttp", *plain_http),
        ("size", size.is_some()),
        ("contentSize", content_size.is_some()),
        ("headers", !headers.is_empty()),
    ] {
        if given {
            problems.add(
                &format!("image.{key}"),
                "`image.url` is the root that is running: nothing is fetched, and nothing can prove it",
            );
        }
    }
    if *kind == wire::ImageKind::Disk {
        problems.add("image.kind", "the root that is running is a Tree");
    }
    Image {
        running: true,
        locations: Vec::new(),
        digest: None,
        content_digest: None,
        checksums: None,
        signature: None,
        headers: Vec::new(),
        client_certificate: None,
        credentials: None,
        insecure: *insecure,
        verify_disk: *verify_disk,
        kind: wire::ImageKind::Tree,
        size: None,
        content_size: None,
        raw_url: url.clone(),
    }
}
