//! The proof that a stream was complete (invariant I3). It can be had from [`super::ImageStream::finish`]
//! and from a whole copy of the root that is running only, so whoever asks for a [`Verified`] cannot be reached by bytes that were not checked.

use crate::error::{Class, Failure, Result};
use crate::image::tree::RunningCopy;
use crate::units::{Bytes, Digest, HashAlgorithm};

use super::proof::SignedBy;

/// Length matched, the decoder reached its end, nothing trailed, every declared digest matched.
#[derive(Debug)]
pub struct Verified {
    received: Bytes,
    content_length: Bytes,
    download: Vec<Digest>,
    content: Vec<Digest>,
    proven: bool,
    signed_by: Option<SignedBy>,
}

impl Verified {
    /// Of the root that is running: it was copied to its end, and there is nothing to compare it with.
    pub fn of_running(copied: &RunningCopy) -> Verified {
        let bytes = Bytes(copied.census().bytes);
        Verified {
            received: bytes,
            content_length: bytes,
            download: Vec::new(),
            content: Vec::new(),
            proven: false,
            signed_by: None,
        }
    }

    /// Bytes of the download.
    pub fn received(&self) -> Bytes {
        self.received
    }

    /// Bytes of the decoded content.
    pub fn content_length(&self) -> Bytes {
        self.content_length
    }

    /// The SHA-256 of the download; it is always computed.
    pub fn download_digest(&self) -> Option<&Digest> {
        sha256(&self.download)
    }

    /// A digest of the decoded content, where it was computed: declared, or the same as the download's.
    pub fn content_digest(&self) -> Option<&Digest> {
        sha256(&self.content).or(self.content.first())
    }

    /// Who signed the download or its checksum file, where a signature was demanded.
    pub fn signed_by(&self) -> Option<&SignedBy> {
        self.signed_by.as_ref()
    }

    /// The same, after the content was taken out of the download in a second pass.
    pub(super) fn with_content(
        self,
        what: &str,
        length: u64,
        content: Vec<Digest>,
        declared: Option<&Digest>,
    ) -> Result<Verified> {
        if let Some(declared) = declared {
            let demand = (declared, "declared");
            check(what, "decoded content", demand, &content, &self.download)?;
        }
        Ok(Verified {
            content_length: Bytes(length),
            content,
            proven: self.proven || declared.is_some(),
            ..self
        })
    }

    /// Whether a digest or a signature was among what was checked.
    pub fn is_proven(&self) -> bool {
        self.proven
    }
}

fn sha256(digests: &[Digest]) -> Option<&Digest> {
    digests
        .iter()
        .find(|d| d.algorithm() == HashAlgorithm::Sha256)
}

/// What the stages counted and computed.
pub(super) struct Evidence<'a> {
    pub(super) what: &'a str,
    pub(super) received: u64,
    pub(super) content_length: u64,
    pub(super) download: Vec<Digest>,
    pub(super) content: Vec<Digest>,
    /// Every digest of the download that is demanded, and by what.
    pub(super) demanded: &'a [Demand],
    pub(super) declared_content: Option<&'a Digest>,
    /// What comparing the download with its signature gave.
    pub(super) signature: Option<Result<SignedBy>>,
    /// Whether there must be such a result.
    pub(super) signed: bool,
    pub(super) checksums_signed_by: Option<SignedBy>,
}

/// A digest that the download must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) digest: Digest,
    /// Who says so, for messages: "declared", or the name of a checksum file.
    pub(super) by: String,
}

/// The lengths that are declared, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lengths {
    pub(super) download: Option<Bytes>,
    pub(super) content: Option<Bytes>,
}

impl Lengths {
    /// Fails with [`Class::Integrity`] where what came is not as long as declared.
    pub(super) fn check(self, what: &str, received: Option<u64>, content: u64) -> Result<()> {
        if let (Some(declared), Some(received)) = (self.download, received) {
            check_length(what, "download", declared, received)?;
        }
        match self.content {
            Some(declared) => check_length(what, "decoded content", declared, content),
            None => Ok(()),
        }
    }
}

/// Fails with [`Class::Integrity`] where `found` is not the declared length of the `of` of `what`.
pub(super) fn check_length(what: &str, of: &str, declared: Bytes, found: u64) -> Result<()> {
    if found == declared.0 {
        return Ok(());
    }
    let text = format!(
        "the {of} of {what} has {found} bytes, declared are {}",
        declared.0
    );
    Err(Failure::new(Class::Integrity, text).hint(
        "`size` is the length of the file as it is downloaded, `contentSize` that of its decoded content: the image and what is declared are of two versions, or the download was cut",
    ))
}

/// The verdict.
pub(super) fn verdict(evidence: Evidence<'_>) -> Result<Verified> {
    let Evidence {
        what,
        received,
        content_length,
        download,
        content,
        demanded,
        declared_content,
        signature,
        signed,
        checksums_signed_by,
    } = evidence;
    for demand in demanded {
        let Demand { digest, by } = demand;
        check(what, "download", (digest, by), &download, &content)?;
    }
    if let Some(declared) = declared_content {
        let demand = (declared, "declared");
        check(what, "decoded content", demand, &content, &download)?;
    }
    let signature = signature.transpose()?;
    if signed && signature.is_none() {
        let text = format!("the signature of {what} was not checked");
        return Err(Failure::new(Class::Bug, text).permanent());
    }
    let signed_by = signature.or(checksums_signed_by);
    Ok(Verified {
        received: Bytes(received),
        content_length: Bytes(content_length),
        download,
        content,
        proven: !demanded.is_empty() || declared_content.is_some() || signed_by.is_some(),
        signed_by,
    })
}

fn check(
    what: &str,
    of: &str,
    (declared, by): (&Digest, &str),
    computed: &[Digest],
    others: &[Digest],
) -> Result<()> {
    let found = computed
        .iter()
        .find(|d| d.algorithm() == declared.algorithm())
        .ok_or_else(|| {
            Failure::new(Class::Bug, format!("the {of} of {what} was not hashed")).permanent()
        })?;
    if found == declared {
        return Ok(());
    }
    let hint = if others.contains(declared) {
        "`digest` is that of the file as it is downloaded, `contentDigest` that of its decoded content: they are interchanged"
    } else {
        "the image and its digest are of two versions, or somebody changed the image"
    };
    Err(Failure::new(
        Class::Integrity,
        format!("the {of} of {what} has the digest {found}, {by} is {declared}"),
    )
    .hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: &str) -> Digest {
        format!("sha256:{}", byte.repeat(32)).parse().unwrap()
    }

    #[test]
    fn every_declared_digest_must_match() {
        let (a, b) = (digest("aa"), digest("bb"));
        let judge = |declared: Option<&Digest>, declared_content: Option<&Digest>| {
            let demanded: Vec<Demand> = declared
                .map(|digest| Demand {
                    digest: digest.clone(),
                    by: "declared".to_owned(),
                })
                .into_iter()
                .collect();
            verdict(Evidence {
                what: "x",
                received: 1,
                content_length: 2,
                download: vec![a.clone()],
                content: vec![b.clone()],
                demanded: &demanded,
                declared_content,
                signature: None,
                signed: false,
                checksums_signed_by: None,
            })
        };
        assert!(judge(Some(&a), Some(&b)).unwrap().is_proven());
        assert!(!judge(None, None).unwrap().is_proven());
        for (d, c) in [(Some(&b), None), (None, Some(&a)), (Some(&a), Some(&a))] {
            let failure = judge(d, c).unwrap_err();
            assert_eq!(failure.class(), Class::Integrity);
            assert!(failure.next().contains("interchanged"));
        }
        let sha512 = format!("sha512:{}", "aa".repeat(64)).parse().unwrap();
        assert_eq!(judge(Some(&sha512), None).unwrap_err().class(), Class::Bug);
    }
}
