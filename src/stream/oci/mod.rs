//! An image in a registry (OCI distribution specification 1.1): from a reference to the URL and the digest of
//! each blob, which then is downloaded like any other file. Every document on the way is checked
//! against the digest that led to it.

mod access;
mod manifest;
mod reference;
mod session;

pub(super) use access::check_docker_config;
pub use reference::OciReference;
pub(super) use session::Session;

use sha2::{Digest as _, Sha256};

use super::budget::Budget;
use super::cancel::{Cancel, Driver};
use super::codec::Purpose;
use super::fetch::Fetcher;
use super::location::HttpUrl;
use crate::error::{Class, Failure, Result};
use crate::units::{Digest, HashAlgorithm};

/// How a registry is asked.
#[derive(Clone, Default)]
pub struct RegistryAccess {
    /// This machine's architecture, as `uname -m` has it.
    pub arch: String,
    /// A docker `config.json` with credentials. It is a secret.
    pub docker_config: Option<Vec<u8>>,
}

impl RegistryAccess {
    /// Whether `text` can be a docker config; the error shows nothing of it.
    pub fn check_docker_config(text: &[u8]) -> Result<(), String> {
        check_docker_config(text)
    }
}

impl std::fmt::Debug for RegistryAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegistryAccess({})", self.arch)
    }
}

/// A disk in a registry.
#[derive(Debug)]
pub(super) struct Blob {
    pub(super) url: HttpUrl,
    pub(super) digest: Digest,
    /// What the download goes on with.
    pub(super) session: Session,
}

/// Finds the disk that `reference` means for this machine; of a reference to a layer, that layer. What may heal
/// is retried within `budget`.
pub(super) fn resolve(
    fetcher: &Fetcher,
    reference: &OciReference,
    access: &RegistryAccess,
    purpose: Purpose,
    budget: &mut Budget,
) -> Result<Blob> {
    let (digest, session) = if let Some(layer) = reference.layer() {
        (layer.clone(), Session::new(reference, access)?)
    } else {
        let (mut layers, session) = layers(fetcher, reference, access, purpose, budget)?;
        let (Some(one), true) = (layers.pop(), layers.is_empty()) else {
            let text = format!("{reference} has several layers");
            return Err(Failure::new(Class::Bug, text));
        };
        (one, session)
    };
    let path = format!("/v2/{}/blobs/{digest}", reference.repository());
    let url = session.url(&path)?;
    Ok(Blob {
        url,
        digest,
        session,
    })
}

/// The layers of `reference` that serve `purpose`, each as a reference of its own.
pub(super) fn split(
    fetcher: &Fetcher,
    reference: &OciReference,
    access: &RegistryAccess,
    purpose: Purpose,
    budget: &mut Budget,
) -> Result<Vec<OciReference>> {
    let (layers, _) = layers(fetcher, reference, access, purpose, budget)?;
    Ok(layers.iter().map(|d| reference.of_layer(d)).collect())
}

fn layers(
    fetcher: &Fetcher,
    reference: &OciReference,
    access: &RegistryAccess,
    purpose: Purpose,
    budget: &mut Budget,
) -> Result<(Vec<Digest>, Session)> {
    let driver = Driver::new(Cancel::default())?;
    let mut session = Session::new(reference, access)?;
    let mut wanted = reference.wanted();
    let mut demanded = reference.digest().cloned();
    // An index, then a manifest.
    for _ in 0..2 {
        let path = format!("/v2/{}/manifests/{wanted}", reference.repository());
        let text = session.get(fetcher, &driver, &path, budget)?;
        if let Some(demanded) = &demanded {
            let found = digest_like(demanded, &text);
            if found != *demanded {
                return Err(Failure::new(
                    Class::Integrity,
                    format!("{reference}: the registry gave {found} for {demanded}"),
                )
                .hint(
                    "the registry or something before it is damaged, or somebody changed the image",
                ));
            }
        }
        let next = manifest::read(&text, &access.arch, purpose).map_err(|why| {
            let hint = match purpose {
                Purpose::Disk => "name an image with a raw disk as a layer of type application/vnd.ironcore.image.rootfs",
                Purpose::Root => "name an image with a layer of type application/vnd.ironcore.image.squashfs, or an ordinary container image of a whole system",
            };
            Failure::new(Class::Config, format!("{reference}: {why}")).hint(hint)
        })?;
        match next {
            manifest::Next::Manifest(digest) => {
                wanted = digest.to_string();
                demanded = Some(digest);
            }
            manifest::Next::Layers(layers) => return Ok((layers, session)),
        }
    }
    let text = format!("{reference}: the index leads to another index");
    Err(Failure::new(Class::Config, text))
}

fn digest_like(wanted: &Digest, text: &[u8]) -> Digest {
    match wanted.algorithm() {
        HashAlgorithm::Sha256 => Digest::from_bytes(HashAlgorithm::Sha256, &Sha256::digest(text)),
        HashAlgorithm::Sha512 => {
            Digest::from_bytes(HashAlgorithm::Sha512, &sha2::Sha512::digest(text))
        }
    }
}
