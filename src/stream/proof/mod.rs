//! What proves an image: digests that the boot config declares, those that a checksum file gives, and
//! detached signatures of the image or of the checksum file.

mod checksums;
mod keys;
mod minisign;
mod openpgp;
mod signature;

pub use keys::{KEY_DIRECTORY, Keyring};
pub(super) use signature::Verifier;
pub use signature::{SignatureKind, SignedBy};

use super::budget::Budget;
use super::fetch::Fetcher;
use super::image::ImageRequest;
use super::location::Location;
use super::verified::Demand;
use crate::error::{Class, Failure, Result};
use crate::units::{Bytes, MIB};

/// Larger checksum files are refused; those of whole distributions have a few hundred KiB.
const CHECKSUMS_LIMIT: Bytes = Bytes(4 * MIB);
/// Larger signature files are refused.
const SIGNATURE_LIMIT: Bytes = Bytes(MIB);

/// What a detached signature is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureOf {
    /// The image as it is downloaded.
    #[default]
    Image,
    /// The checksum file, which then proves the image.
    Checksums,
}

/// A demanded signature.
#[derive(Clone, Debug)]
pub struct SignatureRequest {
    /// Kind of signature.
    pub kind: SignatureKind,
    /// Any of these keys may have made it.
    pub keys: Keyring,
    /// Where it is. Default: beside what it signs, with the kind's [`SignatureKind::ending`]; a checksum
    /// file with an OpenPGP cleartext signature carries it itself.
    pub location: Option<Location>,
    /// What it is of.
    pub of: SignatureOf,
}

/// Invariant I4: over plain HTTP an image needs a proof that somebody on the way cannot change with it.
pub(super) fn must_suffice(request: &ImageRequest) -> Result<()> {
    let proven = request.digest.is_some()
        || request.content_digest.is_some()
        || request.signature.is_some()
        || request
            .checksums
            .as_ref()
            .is_some_and(|c| !c.is_plain_http());
    if proven || request.insecure {
        return Ok(());
    }
    match request.locations.iter().find(|l| l.is_plain_http()) {
        None => Ok(()),
        Some(plain) => {
            let text = match &request.checksums {
                None => format!("{plain} is plain HTTP, and no digest is declared"),
                Some(sums) => format!("{plain} is plain HTTP, and so are its checksums {sums}"),
            };
            Err(Failure::new(Class::Config, text).hint(
                "declare image.digest or image.signature, use https, or accept it with image.insecure",
            ))
        }
    }
}

/// What the download must turn out to be.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    /// The digests it must have.
    pub(super) demands: Vec<Demand>,
    /// The signature that must fit.
    pub(super) signature: Option<Verifier>,
    /// Who signed the checksum file.
    pub(super) checksums_signed_by: Option<SignedBy>,
}

/// Fetches checksum file and signature, where they are asked for, and checks all that can be checked
/// before the image is here.
pub(super) fn expectation(
    fetcher: &Fetcher,
    request: &ImageRequest,
    budget: &mut Budget,
) -> Result<Expectation> {
    let mut expected = Expectation {
        demands: request
            .digest
            .iter()
            .map(|digest| Demand {
                digest: digest.clone(),
                by: "declared".to_owned(),
            })
            .collect(),
        ..Expectation::default()
    };
    let Some(image) = request.locations.first() else {
        return Ok(expected);
    };
    let mut desk = Desk {
        fetcher,
        request,
        budget,
    };
    let signature = |of| request.signature.as_ref().filter(|s| s.of == of);
    if let Some(checksums) = &request.checksums {
        let mut text = desk.get(checksums, CHECKSUMS_LIMIT)?;
        if let Some(signature) = signature(SignatureOf::Checksums) {
            let (signed, by) = desk.check_file(signature, checksums, text)?;
            text = signed;
            expected.checksums_signed_by = Some(by);
        }
        expected.add(from_checksums(&text, checksums, image)?, image)?;
    } else if signature(SignatureOf::Checksums).is_some() {
        let text = "a signature of the checksum file is demanded, and there is no checksum file";
        return Err(Failure::new(Class::Config, text).hint("give image.checksums"));
    }
    if let Some(signature) = signature(SignatureOf::Image) {
        expected.signature = Some(desk.verifier(signature, image)?);
    }
    Ok(expected)
}

impl Expectation {
    fn add(&mut self, demand: Demand, image: &Location) -> Result<()> {
        let contradicted = self.demands.iter().find(|d| {
            d.digest.algorithm() == demand.digest.algorithm() && d.digest != demand.digest
        });
        if let Some(declared) = contradicted {
            return Err(Failure::new(
                Class::Integrity,
                format!(
                    "image {image}: {} is {}, {} is {}",
                    declared.by, declared.digest, demand.by, demand.digest
                ),
            )
            .hint("the checksum file has changed, or the digest is that of another version"));
        }
        self.demands.push(demand);
        Ok(())
    }
}

fn from_checksums(text: &[u8], checksums: &Location, image: &Location) -> Result<Demand> {
    let digest = checksums::find(text, &image.decoded_path()).map_err(|why| {
        Failure::new(Class::Integrity, format!("checksum file {checksums} {why}"))
            .hint("check that image.checksums is the file that belongs to image.url")
    })?;
    Ok(Demand {
        digest,
        by: format!("in {checksums}"),
    })
}

/// Fetches what lies beside an image.
struct Desk<'a> {
    fetcher: &'a Fetcher,
    request: &'a ImageRequest,
    budget: &'a mut Budget,
}

impl Desk<'_> {
    fn get(&mut self, location: &Location, limit: Bytes) -> Result<Vec<u8>> {
        // The image's headers can hold secrets: they go to its own server only.
        let mut own = self.request.locations.first().into_iter();
        let headers: &[(String, String)] = if own.any(|l| l.same_origin(location)) {
            &self.request.headers
        } else {
            &[]
        };
        self.fetcher
            .get_beside_image(location, headers, limit, self.budget)
    }

    fn verifier(&mut self, signature: &SignatureRequest, file: &Location) -> Result<Verifier> {
        let location = signature
            .location
            .clone()
            .unwrap_or_else(|| file.with_ending(signature.kind.ending()));
        let text = self.get(&location, SIGNATURE_LIMIT).map_err(|failure| {
            let name = format!("{} signature {location} of {file}", signature.kind);
            missing(failure, &name)
        })?;
        let (at, of) = (location.to_string(), file.to_string());
        Verifier::prepare(signature.kind, &signature.keys, &text, &at, &of)
    }

    /// Checks the signature of a small file. Returns the part of it that was signed.
    fn check_file(
        &mut self,
        signature: &SignatureRequest,
        file: &Location,
        text: Vec<u8>,
    ) -> Result<(Vec<u8>, SignedBy)> {
        let inline = signature.kind == SignatureKind::OpenPgp
            && signature.location.is_none()
            && openpgp::is_cleartext(&text);
        if inline {
            return openpgp::open_cleartext(signature.keys.openpgp(), &text).map_err(|why| {
                Failure::new(
                    Class::Integrity,
                    format!("the OpenPGP signature in {file} is not good: {why}"),
                )
            });
        }
        let by = self.verifier(signature, file)?.verify(text.as_slice())?;
        Ok((text, by))
    }
}

/// A signature that is not there is a missing proof; a server that does not answer is not.
fn missing(failure: Failure, name: &str) -> Failure {
    if failure.class() != Class::Network || failure.is_transient() {
        return failure;
    }
    Failure::new(Class::Integrity, format!("{name} is missing"))
        .caused_by(failure)
        .hint("publish the signature beside the file, or say where it is")
}

/// Checks the signature of a boot config: `text` came from `location`, its signature stands beside it.
/// Any of `keys` may have made it: a minisign key, or, where there is none, an OpenPGP key.
pub fn check_config(
    fetcher: &Fetcher,
    keys: &Keyring,
    location: &Location,
    text: &[u8],
    budget: &mut Budget,
) -> Result<SignedBy> {
    let kind = if keys.has(SignatureKind::Minisign) {
        SignatureKind::Minisign
    } else {
        SignatureKind::OpenPgp
    };
    let beside = location.with_ending(kind.ending());
    let name = format!("{kind} signature {beside} of boot config {location}");
    let signature = fetcher
        .get_beside_image(&beside, &[], SIGNATURE_LIMIT, budget)
        .map_err(|failure| {
            missing(failure, &name)
                .hint("sign the boot config: this initrd carries keys, so that it takes no other")
        })?;
    let of = format!("boot config {location}");
    Verifier::prepare(kind, keys, &signature, &beside.to_string(), &of)?.verify(text)
}
