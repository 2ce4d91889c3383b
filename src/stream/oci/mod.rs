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

use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use self::manifest::Layer;
use super::budget::Budget;
use super::cancel::{Cancel, Driver};
use super::codec::{Codec, Purpose};
use super::fetch::Fetcher;
use super::location::{HttpUrl, Location};
use crate::error::{Class, Failure, Result, chain};
use crate::report::Event;
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

/// A disk in one registry or in several.
#[derive(Debug)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    /// The compression that its media type declares.
    pub(super) packed: Option<Codec>,
    /// Which reference led to it.
    pub(super) by: OciReference,
    /// Where it is, and what the download goes on with there.
    pub(super) places: Vec<(HttpUrl, Session)>,
}

/// The references among `locations`: all of them, or none.
pub(super) fn references(locations: &[Location]) -> Result<Vec<OciReference>> {
    let mut references = Vec::new();
    for location in locations {
        if let Location::Oci(reference) = location {
            references.push(reference.clone());
        }
    }
    if !references.is_empty() && references.len() < locations.len() {
        let text = "an image and its mirrors are either all in registries or all outside of them";
        return Err(Failure::new(Class::Config, text));
    }
    Ok(references)
}

/// Finds the disk that `references`, an image and its mirrors, mean for this machine. The first registry that
/// answers says which blob it is; the others must have this very blob. What may heal is retried within `budget`.
pub(super) fn resolve(
    fetcher: &Fetcher,
    references: &[OciReference],
    access: &RegistryAccess,
    purpose: Purpose,
    budget: &mut Budget,
) -> Result<Blob> {
    let one_layer = references.first().and_then(|r| Some((r.layer()?, r)));
    let (layer, by, sessions) = if let Some((layer, by)) = one_layer {
        (layer.clone(), by.clone(), sessions(references, access)?)
    } else {
        let (mut layers, by, sessions) = layers(fetcher, references, access, purpose, budget)?;
        let (Some(one), true) = (layers.pop(), layers.is_empty()) else {
            let text = format!("{by} has several layers");
            return Err(Failure::new(Class::Bug, text));
        };
        (one, by, sessions)
    };
    let mut places = Vec::new();
    for (reference, session) in references.iter().zip(sessions) {
        let path = format!("/v2/{}/blobs/{}", reference.repository(), layer.digest);
        places.push((session.url(&path)?, session));
    }
    // The one that answered is asked first.
    let first = references.iter().position(|r| *r == by).unwrap_or(0);
    places.rotate_left(first);
    Ok(Blob {
        digest: layer.digest,
        packed: layer.packed,
        by,
        places,
    })
}

/// The layers that serve `purpose`, each as references of its own: an image and its mirrors.
pub(super) fn split(
    fetcher: &Fetcher,
    references: &[OciReference],
    access: &RegistryAccess,
    purpose: Purpose,
    budget: &mut Budget,
) -> Result<Vec<Vec<OciReference>>> {
    let (layers, _, _) = layers(fetcher, references, access, purpose, budget)?;
    let of = |layer| references.iter().map(|r| r.of_layer(layer)).collect();
    Ok(layers.iter().map(of).collect())
}

fn sessions(references: &[OciReference], access: &RegistryAccess) -> Result<Vec<Session>> {
    references.iter().map(|r| Session::new(r, access)).collect()
}

/// The layers, which reference led to them, and a session for each.
fn layers(
    fetcher: &Fetcher,
    references: &[OciReference],
    access: &RegistryAccess,
    purpose: Purpose,
    budget: &mut Budget,
) -> Result<(Vec<Layer>, OciReference, Vec<Session>)> {
    let driver = Driver::new(Cancel::default())?;
    let mut sessions = sessions(references, access)?;
    let question = Question {
        arch: &access.arch,
        purpose,
    };
    let mut candidates: Vec<_> = references.iter().zip(sessions.iter_mut()).collect();
    let (digests, by) = match candidates.as_mut_slice() {
        [(reference, session)] => {
            let digests = find(fetcher, &driver, reference, session, question, budget)?;
            (digests, *reference)
        }
        several => first_that_answers(fetcher, &driver, several, question, budget)?,
    };
    let by = by.clone();
    Ok((digests, by, sessions))
}

/// What is looked for in an index and a manifest.
#[derive(Clone, Copy)]
struct Question<'a> {
    /// As `uname -m` has it.
    arch: &'a str,
    purpose: Purpose,
}

/// Asks one registry after the other, round after round, until one knows the disk.
fn first_that_answers<'a>(
    fetcher: &Fetcher,
    driver: &Driver,
    several: &mut [(&'a OciReference, &mut Session)],
    question: Question<'_>,
    budget: &mut Budget,
) -> Result<(Vec<Layer>, &'a OciReference)> {
    let mut failures: Vec<Option<Failure>> = several.iter().map(|_| None).collect();
    let mut round = 0;
    loop {
        for ((reference, session), last) in several.iter_mut().zip(&mut failures) {
            if last.as_ref().is_some_and(|f| !f.is_transient()) {
                continue;
            }
            // Once each: another registry may have it now.
            let mut once = Budget::new(Duration::ZERO);
            match find(fetcher, driver, reference, session, question, &mut once) {
                Ok(digests) => {
                    budget.renew();
                    return Ok((digests, reference));
                }
                Err(failure) => *last = Some(failure),
            }
        }
        let hopeless = failures.iter().flatten().all(|f| !f.is_transient());
        if hopeless || budget.is_used_up() {
            return Err(none_answered(several, failures));
        }
        let delay = fetcher
            .options()
            .backoff
            .delay(round)
            .min(budget.remaining());
        let error = failures
            .iter()
            .flatten()
            .map(|f| chain(f))
            .collect::<Vec<_>>();
        fetcher.reporter().emit(Event::Retry {
            error: error.join("; "),
            in_milliseconds: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        });
        driver.sleep(delay)?;
        round = round.saturating_add(1);
    }
}

/// The failure of all registries: the first one's, with what the others said.
fn none_answered(
    several: &[(&OciReference, &mut Session)],
    failures: Vec<Option<Failure>>,
) -> Failure {
    let mut all = several.iter().zip(failures.into_iter().flatten());
    let Some((_, first)) = all.next() else {
        return Failure::new(Class::Bug, "an image without a registry");
    };
    let mut text = "no registry has the image".to_owned();
    for ((reference, _), failure) in all {
        let _ = write!(text, "; {reference}: {}", chain(&failure));
    }
    let next = first.next().to_owned();
    let whole = Failure::new(first.class(), text).hint(next);
    let whole = if first.is_transient() {
        whole
    } else {
        whole.permanent()
    };
    whole.caused_by(first)
}

/// The layers that `reference` means.
fn find(
    fetcher: &Fetcher,
    driver: &Driver,
    reference: &OciReference,
    session: &mut Session,
    question: Question<'_>,
    budget: &mut Budget,
) -> Result<Vec<Layer>> {
    let mut wanted = reference.wanted();
    let mut demanded = reference.digest().cloned();
    // An index, then a manifest.
    for _ in 0..2 {
        let path = format!("/v2/{}/manifests/{wanted}", reference.repository());
        let text = session.get(fetcher, driver, &path, budget)?;
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
        let next = manifest::read(&text, question.arch, question.purpose).map_err(|why| {
            let hint = match question.purpose {
                Purpose::Disk | Purpose::DiskOrTree => "name an image with a raw disk as a layer of type application/vnd.ironcore.image.rootfs",
                Purpose::Tree | Purpose::File => "name an image with a layer of type application/vnd.ironcore.image.squashfs, or an ordinary container image of a whole system with its kernel",
                Purpose::Root => "name an image with a layer of type application/vnd.ironcore.image.squashfs, or an ordinary container image of a whole system",
            };
            Failure::new(Class::Config, format!("{reference}: {why}")).hint(hint)
        })?;
        match next {
            manifest::Next::Manifest(digest) => {
                wanted = digest.to_string();
                demanded = Some(digest);
            }
            manifest::Next::Layers(layers) => return Ok(layers),
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
