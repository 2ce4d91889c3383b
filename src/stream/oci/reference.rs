//! `oci://registry/repository[:tag][@sha256:…]` (OCI distribution specification 1.1, "Pulling manifests").

use std::fmt;
use std::str::FromStr;

use super::manifest::Layer;
use crate::stream::location::HttpUrl;
use crate::units::{Digest, HashAlgorithm};

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciReference {
    /// Host and perhaps port, as it was written.
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
    /// Spoken to without TLS.
    plain_http: bool,
    /// One layer of the image, where only that is meant.
    layer: Option<Layer>,
}

impl OciReference {
    /// The same, reached without TLS.
    #[must_use]
    pub fn over_plain_http(mut self) -> OciReference {
        self.plain_http = true;
        self
    }

    /// One layer of this image.
    pub(super) fn of_layer(&self, layer: &Layer) -> OciReference {
        OciReference {
            layer: Some(layer.clone()),
            ..self.clone()
        }
    }

    /// The layer, where only that is meant.
    pub(super) fn layer(&self) -> Option<&Layer> {
        self.layer.as_ref()
    }

    /// The same as a mirror of `image`: a digest that one of them names holds for it. Fails where both name
    /// one and they differ.
    pub fn as_mirror_of(mut self, image: &OciReference) -> Result<OciReference, &'static str> {
        match (&self.digest, &image.digest) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                Err("it names another digest than `image.url`")
            }
            (Some(_), _) => Ok(self),
            (None, _) => {
                self.digest.clone_from(&image.digest);
                Ok(self)
            }
        }
    }

    /// Whether somebody on the way could exchange what is meant.
    pub(in crate::stream) fn is_open_to_change(&self) -> bool {
        self.plain_http && self.digest.is_none() && self.layer.is_none()
    }

    pub(super) fn registry(&self) -> &str {
        &self.registry
    }

    pub(super) fn repository(&self) -> &str {
        &self.repository
    }

    /// The digest of the manifest or index, where it is pinned.
    pub(super) fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What a manifest is asked for by: the digest, else the tag.
    pub(super) fn wanted(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }

    /// The root of the registry's API. Docker's own registry has another name than its images.
    pub(in crate::stream) fn base(&self) -> Option<HttpUrl> {
        let scheme = if self.plain_http { "http" } else { "https" };
        let host = match self.registry.as_str() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        format!("{scheme}://{host}/").parse().ok()
    }
}

impl FromStr for OciReference {
    type Err = &'static str;

    /// Reads what stands after `oci://`.
    fn from_str(text: &str) -> Result<OciReference, &'static str> {
        let (registry, rest) = text
            .split_once('/')
            .ok_or("it is oci://registry/repository")?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => {
                let digest: Digest = digest.parse().map_err(|_| "the digest is not sha256:…")?;
                if digest.algorithm() != HashAlgorithm::Sha256 {
                    return Err("the digest is not sha256:…");
                }
                (rest, Some(digest))
            }
            None => (rest, None),
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag.to_owned())),
            None => (rest, None),
        };
        if registry.is_empty() || registry.contains(['@', '?', '#', '\\']) {
            return Err("the registry is a host and perhaps a port");
        }
        let is_component = |c: &str| {
            let edge =
                |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            edge(c.bytes().next())
                && edge(c.bytes().last())
                && c.bytes().all(|b| {
                    b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
                })
        };
        if repository.len() > 255 || !repository.split('/').all(is_component) {
            return Err("a repository is lower-case letters, digits, `.`, `_`, `-` and `/`");
        }
        let is_tag = |t: &String| {
            (1..=128).contains(&t.len())
                && !t.starts_with(['.', '-'])
                && t.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        if !tag.as_ref().is_none_or(is_tag) {
            return Err("a tag is letters, digits, `.`, `_` and `-`");
        }
        let reference = OciReference {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag,
            digest,
            plain_http: false,
            layer: None,
        };
        match reference.base() {
            Some(_) => Ok(reference),
            None => Err("the registry is a host and perhaps a port"),
        }
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oci://{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        match &self.layer {
            Some(layer) => write!(f, " layer {}", layer.digest),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_come_back_as_they_were_written() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for text in [
            "ghcr.io/ironcore-dev/os-images/debian:12.1-metal".to_owned(),
            "127.0.0.1:5000/os".to_owned(),
            "[::1]:5000/os:v1".to_owned(),
            format!("h/os:v1@{digest}"),
            format!("h/os@{digest}"),
        ] {
            let read: OciReference = text.parse().unwrap();
            assert_eq!(read.to_string(), format!("oci://{text}"));
        }
        let read: OciReference = format!("h:5000/os:v1@{digest}").parse().unwrap();
        assert_eq!(read.wanted(), digest);
        assert_eq!(read.base().unwrap().to_string(), "https://h:5000/");
        assert_eq!(
            read.over_plain_http().base().unwrap().to_string(),
            "http://h:5000/"
        );
        let plain: OciReference = "h/os".parse().unwrap();
        assert_eq!(plain.wanted(), "latest");
        assert!(plain.over_plain_http().is_open_to_change());
        let docker: OciReference = "docker.io/library/debian".parse().unwrap();
        assert_eq!(
            docker.base().unwrap().to_string(),
            "https://registry-1.docker.io/"
        );
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "",
            "os",
            "/os",
            "h/",
            "h/OS",
            "h/a//b",
            "h/os:",
            "h/os:a b",
            "h/os@sha256:12",
            "u:p@h/os",
            "h/../x",
            "h?x/os",
            "h/os?x=y",
            "h:99999/os",
        ] {
            assert!(text.parse::<OciReference>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC*") {
            if let Ok(read) = text.parse::<OciReference>() {
                prop_assert_eq!(read.to_string(), format!("oci://{}", text));
            }
        }
    }
}
