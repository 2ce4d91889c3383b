//! What fetches: whom it trusts, how long it waits, and what proves this machine.

use std::path::Path;
use std::time::Duration;

use super::Entrance;
use crate::config::request::{Request, Text};
use crate::error::{Class, Context as _, Result};
use crate::stream::{ClientCertificate, FetchOptions, Fetcher, Proxies};

/// How long a server may be silent at the least, however short the time for retries is.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(5);

/// Files of CA certificates that an initrd may carry.
const CA_FILES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// A server that says nothing must not outlast the time for which the operator wants to retry; an attempt
/// gets a few seconds all the same.
pub(super) fn options(ca: &[Vec<u8>], proxies: &Proxies, retry_for: Duration) -> FetchOptions {
    let normal = FetchOptions::default();
    let most = retry_for.max(SHORTEST_ATTEMPT);
    FetchOptions {
        ca_pem: ca.to_vec(),
        proxies: proxies.clone(),
        idle_timeout: normal.idle_timeout.min(most),
        connect_timeout: normal.connect_timeout.min(most),
        ..normal
    }
}

/// The fetcher for the image and what lies beside it.
pub(super) fn image_fetcher(root: &Path, request: &Request, fetcher: &Fetcher) -> Result<Fetcher> {
    let Some(certificate) = request
        .image()
        .and_then(|image| image.client_certificate.as_ref())
    else {
        return Ok(fetcher.clone());
    };
    let read = |text: &Text, key: &str| match text {
        Text::Inline(text) => Ok(text.clone().into_bytes()),
        Text::File(path) => std::fs::read(root.join(path.strip_prefix("/").unwrap_or(path)))
            .context(Class::Config, || {
                format!("reading image.clientCertificate.{key} {}", path.display())
            }),
    };
    fetcher.with_client_certificate(ClientCertificate {
        chain_pem: read(&certificate.chain, "certificate")?,
        key_pem: read(&certificate.key, "privateKey")?,
    })
}

/// One trust store for every fetch: the compiled-in roots, the initrd's, `ironroot.ca=`, the config's.
pub(super) fn certificates(entrance: &Entrance<'_>) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    // On a running Linux the system's own store counts as well.
    for file in CA_FILES {
        let path = entrance.root.join(file.trim_start_matches('/'));
        if let Ok(pem) = std::fs::read(path) {
            all.push(pem);
            break;
        }
    }
    for path in entrance.cmdline.all("ironroot.ca") {
        let place = entrance.root.join(path.trim_start_matches('/'));
        all.push(
            std::fs::read(&place)
                .context(Class::Config, || format!("reading ironroot.ca={path}"))?,
        );
    }
    Ok(all)
}
