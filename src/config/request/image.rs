//! The image of a boot config, and its proof.

mod running;

use std::path::PathBuf;

pub use running::RUNNING;

use super::{Problems, wire};
use crate::stream::{Keyring, Location, RegistryAccess, SignatureKind, SignatureOf};
use crate::units::{Bytes, Digest};

/// An image and its proof.
#[derive(Clone, Debug)]
pub struct Image {
    /// It is the root that is running, and has no location.
    pub running: bool,
    /// The URL, then the mirrors.
    pub locations: Vec<Location>,
    /// Digest of the download.
    pub digest: Option<Digest>,
    /// Digest of the content.
    pub content_digest: Option<Digest>,
    /// A file of checksums that names the image.
    pub checksums: Option<Location>,
    /// A detached signature.
    pub signature: Option<Signature>,
    /// Headers. They may be secrets.
    pub headers: Vec<(String, String)>,
    /// What proves this machine to the image's servers.
    pub client_certificate: Option<ClientCertificate>,
    /// Credentials for a registry: a docker config.
    pub credentials: Option<Text>,
    /// A missing proof is forgiven.
    pub insecure: bool,
    /// What was written is read back.
    pub verify_disk: bool,
    /// What it is.
    pub kind: wire::ImageKind,
    /// Length of the download, where it is declared.
    pub size: Option<Bytes>,
    /// Length of the decoded content, where it is declared.
    pub content_size: Option<Bytes>,
    /// The URL as it was written; it may hold secrets and is never shown.
    pub raw_url: String,
}

impl Image {
    /// What the identity of an installation is made of: the digest, else the whole URL. Only ever hashed.
    pub fn identity_source(&self) -> String {
        match (&self.digest, &self.content_digest) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(digest)) => format!("content {digest}"),
            (None, None) => self.raw_url.clone(),
        }
    }

    /// Every place that is read for it.
    pub fn all_locations(&self) -> impl Iterator<Item = &Location> {
        let signature = self.signature.iter().flat_map(|s| &s.location);
        self.locations
            .iter()
            .chain(&self.checksums)
            .chain(signature)
    }

    /// What names this image to people: its digest, else its URL without secrets.
    pub fn name(&self) -> String {
        match (&self.digest, &self.content_digest) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(digest)) => format!("content {digest}"),
            (None, None) if self.running => RUNNING.to_owned(),
            (None, None) => self
                .locations
                .first()
                .map(ToString::to_string)
                .unwrap_or_default(),
        }
    }
}

/// A TLS client certificate.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The certificates.
    pub chain: Text,
    /// The private key.
    pub key: Text,
}

/// A text that the config holds, or the file that does. It may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Text {
    /// The text itself.
    Inline(String),
    /// A file of the initrd.
    File(PathBuf),
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Text::Inline(_) => f.write_str("Inline(…)"),
            Text::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

/// A demanded signature.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Kind of signature.
    pub kind: SignatureKind,
    /// The keys that the config gives; `None`: those of the initrd.
    pub keys: Option<Keyring>,
    /// Where it is; `None`: beside what it signs.
    pub location: Option<Location>,
    /// What it is of.
    pub of: SignatureOf,
}
/// The meaning of `image`.
pub(super) fn read(image: &wire::Image, problems: &mut Problems) -> Option<Image> {
    if image.url == RUNNING {
        return Some(running::read(image, problems));
    }
    let url = problems.location("image.url", &image.url);
    let mut locations = Vec::new();
    for (i, mirror) in image.mirrors.iter().enumerate() {
        locations.extend(problems.location(&format!("image.mirrors[{i}]"), mirror));
    }
    locations.splice(0..0, [url?]);
    let credentials = registry_keys(image, &mut locations, problems);
    let checksums = image
        .checksums
        .as_ref()
        .and_then(|text| problems.location("image.checksums", text));
    let signature = image
        .signature
        .as_ref()
        .map(|s| read_signature(s, checksums.is_some(), problems));
    // Whoever can change the image on its way can change a checksum file on the same kind of way.
    let proven = image.digest.is_some()
        || image.content_digest.is_some()
        || signature.is_some()
        || checksums.as_ref().is_some_and(|c| !c.is_plain_http());
    if !proven && !image.insecure && locations.iter().any(Location::is_plain_http) {
        problems.add(
            "image",
            "an image over plain HTTP needs a proof that does not come over plain HTTP: give `digest`, `contentDigest` or `signature`, `checksums` over https, use https for the image, or accept whatever arrives with `insecure`: true",
        );
    }
    Some(Image {
        running: false,
        locations,
        digest: image.digest.clone(),
        content_digest: image.content_digest.clone(),
        checksums,
        signature,
        headers: image.headers.clone().into_iter().collect(),
        client_certificate: image
            .client_certificate
            .as_ref()
            .and_then(|c| client_certificate(c, problems)),
        credentials,
        insecure: image.insecure,
        verify_disk: image.verify_disk,
        raw_url: image.url.clone(),
        kind: image.kind,
        size: image.size.map(|s| s.0),
        content_size: image.content_size.map(|s| s.0),
    })
}

fn client_certificate(
    given: &wire::ClientCertificate,
    problems: &mut Problems,
) -> Option<ClientCertificate> {
    let mut read = |key: &str, text: &str| {
        if text.starts_with('/') {
            return Some(Text::File(text.into()));
        }
        if text.contains("-----BEGIN ") {
            return Some(Text::Inline(text.to_owned()));
        }
        let path = format!("image.clientCertificate.{key}");
        problems.add(&path, "neither PEM nor an absolute path");
        None
    };
    let chain = read("certificate", &given.certificate);
    let key = read("privateKey", &given.private_key);
    Some(ClientCertificate {
        chain: chain?,
        key: key?,
    })
}

/// What concerns registries only: how they are spoken to, and the credentials.
fn registry_keys(
    image: &wire::Image,
    locations: &mut [Location],
    problems: &mut Problems,
) -> Option<Text> {
    let in_registry = locations.iter().any(|l| matches!(l, Location::Oci(_)));
    for location in &mut *locations {
        if let Location::Oci(reference) = location
            && image.plain_http
        {
            *reference = reference.clone().over_plain_http();
        }
    }
    if let Some((first, mirrors)) = locations.split_first_mut() {
        for (i, mirror) in mirrors.iter_mut().enumerate() {
            let as_mirror = match (&*first, &*mirror) {
                (Location::Oci(image), Location::Oci(mirror)) => mirror
                    .clone()
                    .as_mirror_of(image)
                    .map(|reference| Some(Location::Oci(reference))),
                (Location::Oci(_), _) | (_, Location::Oci(_)) => {
                    Err("either all are oci://, `image.url` and its mirrors, or none is")
                }
                (Location::Http(_) | Location::File(_), _) => Ok(None),
            };
            match as_mirror {
                Ok(Some(location)) => *mirror = location,
                Ok(None) => {}
                Err(why) => problems.add(&format!("image.mirrors[{i}]"), why),
            }
        }
    }
    let beside = image
        .signature
        .as_ref()
        .is_some_and(|s| s.url.is_none() && s.of == wire::SignatureOf::Image);
    if in_registry && beside {
        problems.add(
            "image.signature.url",
            "needed with oci://: nothing is beside an image in a registry",
        );
    }
    if !in_registry && image.plain_http {
        problems.add(
            "image.plainHttp",
            "only for oci://: elsewhere the URL says it",
        );
    }
    let text = image.credentials.as_ref()?;
    if !in_registry {
        problems.add("image.credentials", "only for oci://");
    }
    if text.starts_with('/') {
        return Some(Text::File(text.into()));
    }
    if let Err(why) = RegistryAccess::check_docker_config(text.as_bytes()) {
        let text = format!("neither an absolute path nor the text of a file: {why}");
        problems.add("image.credentials", text);
    }
    Some(Text::Inline(text.clone()))
}

fn read_signature(
    signature: &wire::Signature,
    checksums: bool,
    problems: &mut Problems,
) -> Signature {
    let kind = match signature.kind {
        wire::SignatureKind::Minisign => SignatureKind::Minisign,
        wire::SignatureKind::Openpgp => SignatureKind::OpenPgp,
    };
    let keys = signature.public_key.as_ref().and_then(|text| {
        Keyring::parse(kind, text.as_bytes())
            .map_err(|why| problems.add("image.signature.publicKey", why))
            .ok()
    });
    let location = signature
        .url
        .as_ref()
        .and_then(|text| problems.location("image.signature.url", text));
    let of = match signature.of {
        wire::SignatureOf::Image => SignatureOf::Image,
        wire::SignatureOf::Checksums => {
            if !checksums {
                problems.add("image.signature.of", "`Checksums` needs `image.checksums`");
            }
            SignatureOf::Checksums
        }
    };
    Signature {
        kind,
        keys,
        location,
        of,
    }
}
