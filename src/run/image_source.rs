//! From an image of the plan to a stream of its content.

use std::collections::VecDeque;
use std::path::Path;

use crate::config::request::{Image, Text};
use crate::error::{Class, Context as _, Failure, Result};
use crate::report::Reporter;
use crate::stream::{
    Block, Budget, Fetcher, ImageRequest, ImageStream, KEY_DIRECTORY, Keyring, Location, Purpose,
    RegistryAccess, SignatureRequest, Verified,
};
use crate::units::Bytes;

/// Credentials of registries that an initrd may carry.
const DOCKER_CONFIG: &str = "/etc/ironroot/docker-config.json";

/// An image and what is needed to read it.
#[derive(Debug)]
pub struct Source<'a> {
    /// The image.
    pub image: &'a Image,
    /// Who fetches it.
    pub fetcher: &'a Fetcher,
    /// Keys of the initrd.
    pub keys: &'a Keyring,
    /// Where /sys is.
    pub root: &'a Path,
    /// This machine's architecture, as `uname -m` has it.
    pub arch: &'a str,
}

impl Source<'_> {
    /// Connects and finds the format.
    pub fn open(&self, purpose: Purpose, budget: Budget) -> Result<ImageStream> {
        ImageStream::open(self.fetcher, self.request(purpose)?, budget)
    }

    /// What makes up the image, in the order in which it is taken: several parts where it is in layers.
    pub fn parts(&self, purpose: Purpose, mut budget: Budget) -> Result<Parts> {
        let requests = self.request(purpose)?.split(self.fetcher, &mut budget)?;
        Ok(Parts {
            count: requests.len(),
            waiting: requests.into(),
            fetcher: self.fetcher.clone(),
            budget,
        })
    }

    fn request(&self, purpose: Purpose) -> Result<ImageRequest> {
        let image = self.image;
        Ok(ImageRequest {
            locations: image.locations.clone(),
            headers: image.headers.clone(),
            digest: image.digest.clone(),
            content_digest: image.content_digest.clone(),
            checksums: image.checksums.clone(),
            length: image.size,
            content_length: image.content_size,
            signature: demanded_signature(image, self.keys)?,
            registry: registry_access(image, self.root, self.arch)?,
            purpose,
            insecure: image.insecure,
        })
    }

    /// How messages name the image.
    pub fn shown(&self) -> String {
        self.image
            .locations
            .first()
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// The first block of the content, and a line that tells what is coming.
    pub fn first_block(&self, stream: &mut ImageStream, reporter: &Reporter) -> Result<Block> {
        let Some(first) = stream.next_block()? else {
            return Err(Failure::new(
                Class::Integrity,
                format!("image {} is empty", self.shown()),
            ));
        };
        reporter.info(format!(
            "image {}: {}{}",
            self.shown(),
            stream.format().name(),
            stream
                .content_length()
                .map(|l| format!(", {} of content", Bytes(l)))
                .unwrap_or_default()
        ));
        Ok(first)
    }
}

/// The parts of an image that were not opened yet.
#[derive(Debug)]
pub struct Parts {
    count: usize,
    waiting: VecDeque<ImageRequest>,
    fetcher: Fetcher,
    budget: Budget,
}

impl Parts {
    /// How many there are in all.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Connects to the next part; `None` after the last.
    pub fn next_stream(&mut self) -> Result<Option<ImageStream>> {
        let Some(request) = self.waiting.pop_front() else {
            return Ok(None);
        };
        self.budget.renew();
        ImageStream::open(&self.fetcher, request, self.budget.clone()).map(Some)
    }

    /// Connects to the next part, which is kept as it is; `None` after the last.
    pub fn next_file(&mut self) -> Result<Option<ImageStream>> {
        if let Some(request) = self.waiting.front_mut() {
            request.purpose = Purpose::File;
        }
        self.next_stream()
    }
}

/// Tells what was proven.
pub fn tell(proof: &Verified, reporter: &Reporter) {
    reporter.info(format!(
        "verdict: {} of content, {}",
        proof.content_length(),
        match (proof.is_proven(), proof.download_digest()) {
            (true, Some(digest)) => format!("proven, download {digest}"),
            (true, None) => "proven".to_owned(),
            (false, _) => "complete, no digest was declared".to_owned(),
        }
    ));
    if let Some(key) = proof.signed_by() {
        reporter.info(format!("verdict: signed by {key}"));
    }
}

/// The signature that the config demands, with the keys that may have made it.
fn demanded_signature(image: &Image, keys: &Keyring) -> Result<Option<SignatureRequest>> {
    let Some(signature) = &image.signature else {
        return Ok(None);
    };
    let keys = signature.keys.as_ref().unwrap_or(keys);
    if !keys.has(signature.kind) {
        let text = format!(
            "image.signature demands a {} signature; the config gives no publicKey, and {KEY_DIRECTORY} has no such key",
            signature.kind
        );
        return Err(Failure::new(Class::Config, text)
            .hint("add image.signature.publicKey, or put the key into the initrd"));
    }
    Ok(Some(SignatureRequest {
        kind: signature.kind,
        keys: keys.clone(),
        location: signature.location.clone(),
        of: signature.of,
    }))
}

/// How the registry is asked, where the image is in one: with the credentials that the config gives, else
/// with the initrd's.
fn registry_access(image: &Image, root: &Path, arch: &str) -> Result<RegistryAccess> {
    let mut access = RegistryAccess {
        arch: arch.to_owned(),
        docker_config: None,
    };
    if !image
        .locations
        .iter()
        .any(|l| matches!(l, Location::Oci(_)))
    {
        return Ok(access);
    }
    let read = |path: &Path| std::fs::read(root.join(path.strip_prefix("/").unwrap_or(path)));
    access.docker_config = match &image.credentials {
        Some(Text::Inline(text)) => Some(text.clone().into_bytes()),
        Some(Text::File(path)) => Some(read(path.as_path()).context(Class::Config, || {
            format!("reading image.credentials {}", path.display())
        })?),
        None => match read(Path::new(DOCKER_CONFIG)) {
            Ok(bytes) => Some(bytes),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(e).context(Class::Config, || format!("reading {DOCKER_CONFIG}")),
        },
    };
    Ok(access)
}
