//! An image as a stream of decoded blocks, and in the end the proof that all of it was right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use super::budget::Budget;
use super::buffer::{Block, MAX_HELD};
use super::cancel::{Cancel, Driver};
use super::codec::{self, Codec, HEAD, Means, Purpose, Way};
use super::digest::Item;
use super::download::{Download, Policy, What};
use super::fetch::Fetcher;
use super::http;
use super::location::Location;
use super::oci::{self, RegistryAccess};
use super::pipeline::{Shared, Threads};
use super::proof::{self, Expectation, SignatureRequest, SignedBy, Verifier};
use super::two_pass;
use super::verified::{self, Demand, Evidence, Lengths, Verified, verdict};
use crate::error::{Class, Failure, Result};
use crate::image::qcow2::Header;
use crate::report::Reporter;
use crate::units::{Bytes, Digest};

/// Which image, and what is known of it.
#[derive(Clone, Default)]
pub struct ImageRequest {
    /// The URL, then its mirrors, in the order in which they are tried. With a `digest` or
    /// `content_digest`, a mirror also continues a download that another began.
    pub locations: Vec<Location>,
    /// Headers for the origin of the first location, and so for a mirror there. They may be secrets.
    pub headers: Vec<(String, String)>,
    /// The digest of the file as it is downloaded.
    pub digest: Option<Digest>,
    /// The digest of the decoded content.
    pub content_digest: Option<Digest>,
    /// A file of checksums that names the last segment of the first location's path. The headers go there
    /// as well where it has the origin of the first location.
    pub checksums: Option<Location>,
    /// The length of the file as it is downloaded.
    pub length: Option<Bytes>,
    /// The length of the decoded content.
    pub content_length: Option<Bytes>,
    /// A detached signature that must fit.
    pub signature: Option<SignatureRequest>,
    /// How registries are asked.
    pub registry: RegistryAccess,
    /// What the image is for.
    pub purpose: Purpose,
    /// A missing proof is accepted: plain HTTP without any digest. A wrong digest never is.
    pub insecure: bool,
}

impl std::fmt::Debug for ImageRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("ImageRequest")
            .field("locations", &self.locations)
            .field("headers", &names)
            .field("digest", &self.digest)
            .field("content_digest", &self.content_digest)
            .field("checksums", &self.checksums)
            .field("length", &self.length)
            .field("content_length", &self.content_length)
            .field("signature", &self.signature)
            .field("registry", &self.registry)
            .field("purpose", &self.purpose)
            .field("insecure", &self.insecure)
            .finish()
    }
}

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that came from the network or the file.
    pub received: u64,
    /// Bytes that will have come in the end, where it is known.
    pub expected: Option<u64>,
}

/// An image on its way. Dropping it stops its threads at once and waits for them.
#[derive(Debug)]
pub struct ImageStream {
    shared: Arc<Shared>,
    demanded: Vec<Demand>,
    /// Whether the download's own signature is demanded.
    signed: bool,
    checksums_signed_by: Option<SignedBy>,
    content_digest: Option<Digest>,
    lengths: Lengths,
    /// What a first pass over the whole download gave, where this is the second.
    proven: Option<Verified>,
    codec: Codec,
    content_length: Option<u64>,
    content_at_least: u64,
    received: Arc<AtomicU64>,
    expected: Option<u64>,
    blocks: Option<Receiver<Item>>,
    threads: Option<Threads>,
    held: Arc<AtomicUsize>,
    ended: bool,
}

impl ImageRequest {
    /// The requests whose contents make up the image, in the order in which they are taken: of an image in a
    /// registry one for each layer, which is not looked up again; else this one alone. What is declared of the whole
    /// (a digest, a signature) fits no single one of several layers and is refused then.
    pub fn split(self, fetcher: &Fetcher, budget: &mut Budget) -> Result<Vec<ImageRequest>> {
        let references = oci::references(&self.locations)?;
        let Some(first) = references.first() else {
            return Ok(vec![self]);
        };
        // What may be exchanged on the way is refused before the registry is asked.
        proof::must_suffice(&self)?;
        let layers = oci::split(fetcher, &references, &self.registry, self.purpose, budget)?;
        let declared = self.digest.is_some()
            || self.content_digest.is_some()
            || self.checksums.is_some()
            || self.signature.is_some();
        if declared && layers.len() > 1 {
            let text = format!(
                "{first} has {} layers, and the config declares a digest or a signature of one file",
                layers.len()
            );
            return Err(Failure::new(Class::Config, text)
                .hint("pin the image itself: oci://registry/repository@sha256:…"));
        }
        // A length of the whole is that of no single layer.
        let lengths = |whole: Option<Bytes>| whole.filter(|_| layers.len() == 1);
        let (length, content_length) = (lengths(self.length), lengths(self.content_length));
        Ok(layers
            .into_iter()
            .map(|layer| ImageRequest {
                locations: layer.into_iter().map(Location::Oci).collect(),
                length,
                content_length,
                ..self.clone()
            })
            .collect())
    }
}

impl ImageStream {
    /// Connects, reads the first bytes, finds the format and starts the threads. Attempts that may heal are
    /// repeated within `budget`, now and whenever the connection breaks. A qcow2 image is read to its end and
    /// proven here, before it is read again.
    ///
    /// Fails with [`Class::Network`] when no location answers as needed, [`Class::Config`] for a request
    /// or a format that is not supported, [`Class::Integrity`] for an empty file or a window above the cap.
    pub fn open(
        fetcher: &Fetcher,
        request: ImageRequest,
        mut budget: Budget,
    ) -> Result<ImageStream> {
        let Some(first) = request.locations.first() else {
            return Err(Failure::new(Class::Config, "the image has no location"));
        };
        let what = first.to_string();
        proof::must_suffice(&request)?;
        let Expectation {
            demands: mut demanded,
            signature,
            checksums_signed_by,
        } = proof::expectation(fetcher, &request, &mut budget)?;
        let mut locations = request.locations.clone();
        let mut sessions = Vec::new();
        let references = oci::references(&request.locations)?;
        // Whom the headers are for, whatever mirror comes first now.
        let owner = match first {
            Location::Http(url) => Some(url.clone()),
            Location::Oci(reference) => reference.base(),
            Location::File(_) => None,
        };
        let mut packed = None;
        if !references.is_empty() {
            let blob = oci::resolve(
                fetcher,
                &references,
                &request.registry,
                request.purpose,
                &mut budget,
            )?;
            demanded.push(Demand {
                digest: blob.digest,
                by: format!("in the manifest of {}", blob.by),
            });
            packed = blob.packed;
            let (urls, all): (Vec<_>, Vec<_>) = blob.places.into_iter().unzip();
            locations = urls.into_iter().map(Location::Http).collect();
            sessions = all;
        }
        let signed = signature.is_some();
        let anchored = !demanded.is_empty() || signed || request.content_digest.is_some();
        let cancel = Cancel::default();
        let headers = http::headers(&request.headers)?;
        let download = |cancel: &Cancel, random| -> Result<Download> {
            let policy = Policy {
                anchored: anchored || random,
                what: if random { What::Parts } else { What::Image },
            };
            let driver = Driver::new(cancel.clone())?;
            let (headers, budget) = (headers.clone(), budget.clone());
            let download = Download::new(fetcher, driver, &locations, headers, budget, policy);
            Ok(download
                .with_headers_for(owner.as_ref())
                .in_sessions(&sessions))
        };
        let mut first_pass = download(&cancel, false)?;
        let mut head = vec![0; HEAD];
        let count = first_pass.fill(&mut head)?;
        head.truncate(count);
        if let (Some(declared), Some(total)) = (request.length, first_pass.total()) {
            // Before anything is erased for it.
            verified::check_length(&what, "download", declared, total)?;
        }
        let sniffed = codec::sniff(&what, &head, request.purpose)?;
        if let Some(packed) = packed.filter(|packed| *packed != sniffed.codec) {
            let text = format!(
                "{what} is {}, and the media type of its layer declares {packed}",
                sniffed.codec
            );
            return Err(Failure::new(Class::Integrity, text)
                .hint("let whatever pushed the image declare the compression that it has"));
        }

        let opened = Opened {
            what,
            purpose: request.purpose,
            codec: sniffed.codec,
            at_least: sniffed.at_least,
            demanded,
            signature,
            checksums_signed_by,
            content_digest: request.content_digest,
            lengths: Lengths {
                download: request.length,
                content: request.content_length,
            },
        };
        if sniffed.codec != Codec::Qcow2 {
            return opened.in_one_pass(cancel, first_pass, head);
        }
        let header = two_pass::header(&opened.what, &head)?;
        let second = Cancel::default();
        let mut any_order = download(&second, true)?.counting_on(first_pass.received());
        if locations.iter().any(Location::is_remote) {
            // Before all of it is fetched for nothing.
            two_pass::must_give_ranges(&mut any_order, first_pass.total())?;
        }
        opened.in_two_passes(
            (cancel, first_pass, head),
            (second, any_order, header),
            fetcher.reporter(),
        )
    }

    /// How the download is compressed, by its first bytes.
    pub fn format(&self) -> Codec {
        self.codec
    }

    /// The length of the decoded content in bytes, where it is known for certain before the end: raw images
    /// of known length, and qcow2.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// The decoded content has at least that many bytes: what a zstd frame's header says (further frames
    /// may follow), the length of a raw image, otherwise 0. A disk smaller than this need not be written to.
    pub fn content_at_least(&self) -> u64 {
        self.content_at_least
    }

    /// How far the download is.
    pub fn counters(&self) -> Counters {
        Counters {
            received: self.received.load(Ordering::Relaxed),
            expected: self.expected,
        }
    }

    /// The next block of decoded content: exactly [`super::BLOCK`] bytes, except for the last one. `None`
    /// after the last; that alone proves nothing, see [`ImageStream::finish`]. At most
    /// [`MAX_HELD`] blocks may be held when this is called.
    pub fn next_block(&mut self) -> Result<Option<Block>> {
        if self.ended {
            return Ok(None);
        }
        let held = self.held.load(Ordering::SeqCst);
        if held > MAX_HELD {
            let text = format!("{held} blocks are held, at most {MAX_HELD} may be");
            return Err(Failure::new(Class::Bug, text));
        }
        match self.blocks.as_ref().map(Receiver::recv) {
            Some(Ok(Item::Data(slab))) => Ok(Some(Block::new(slab, &self.held))),
            Some(Ok(Item::End)) => {
                self.ended = true;
                Ok(None)
            }
            Some(Err(_)) | None => {
                self.blocks = None;
                Err(self.shared.fault())
            }
        }
    }

    /// The verdict, after [`ImageStream::next_block`] gave `None`. Fails with [`Class::Integrity`] when a digest
    /// is not the declared one.
    pub fn finish(mut self) -> Result<Verified> {
        let unfinished = || {
            let text = format!("{} was not read to its end", self.shared.what);
            Failure::new(Class::Bug, text)
        };
        if !self.ended {
            return Err(unfinished());
        }
        let findings = self.threads.take().and_then(Threads::join);
        let Some(findings) = findings else {
            return Err(unfinished());
        };
        if let Some(proven) = self.proven.take() {
            let (length, content) = (findings.content_length, findings.content);
            let declared = self.content_digest.as_ref();
            let what = &self.shared.what;
            self.lengths.check(what, None, length)?;
            return proven.with_content(what, length, content, declared);
        }
        let what = &self.shared.what;
        self.lengths
            .check(what, Some(findings.received), findings.content_length)?;
        verdict(Evidence {
            what,
            received: findings.received,
            content_length: findings.content_length,
            download: findings.download,
            content: findings.content,
            signature: findings.signature,
            signed: self.signed,
            checksums_signed_by: self.checksums_signed_by.take(),
            demanded: &self.demanded,
            declared_content: self.content_digest.as_ref(),
        })
    }
}

/// What was found out before the first pass.
struct Opened {
    what: String,
    purpose: Purpose,
    codec: Codec,
    at_least: u64,
    demanded: Vec<Demand>,
    signature: Option<Verifier>,
    checksums_signed_by: Option<SignedBy>,
    content_digest: Option<Digest>,
    lengths: Lengths,
}

impl Opened {
    /// Decodes while the download comes; `head` has come already.
    fn in_one_pass(self, cancel: Cancel, download: Download, head: Vec<u8>) -> Result<ImageStream> {
        let way = Way::of(self.codec, &head, Means::of_this_machine());
        let shared = Arc::new(Shared::new(self.what, self.purpose, cancel, way.blocks()));
        let (received, expected) = (download.received(), download.total());
        let algorithms: Vec<_> = self.demanded.iter().map(|d| d.digest.algorithm()).collect();
        let signed = self.signature.is_some();
        let started = Threads::start(
            &shared,
            way,
            download,
            head,
            &algorithms,
            self.content_digest.as_ref().map(Digest::algorithm),
            self.signature,
        );
        // Where a thread could not be started, those before it must not wait for ever.
        let (threads, blocks) = started.inspect_err(|_| shared.stop())?;
        let content_length = expected.filter(|_| self.codec == Codec::Raw);
        Ok(ImageStream {
            shared,
            demanded: self.demanded,
            signed,
            checksums_signed_by: self.checksums_signed_by,
            content_digest: self.content_digest,
            lengths: self.lengths,
            proven: None,
            codec: self.codec,
            content_length,
            content_at_least: content_length.unwrap_or(self.at_least),
            received,
            expected,
            blocks: Some(blocks),
            threads: Some(threads),
            held: Arc::default(),
            ended: false,
        })
    }

    /// Proves the whole download, and then takes the content out of it.
    fn in_two_passes(
        self,
        (cancel, download, head): (Cancel, Download, Vec<u8>),
        (second, any_order, header): (Cancel, Download, Header),
        reporter: &Reporter,
    ) -> Result<ImageStream> {
        let (what, codec, purpose) = (self.what.clone(), self.codec, self.purpose);
        let (content_digest, lengths) = (self.content_digest.clone(), self.lengths);
        let whole = Opened {
            codec: Codec::Raw,
            content_digest: None,
            lengths: Lengths {
                content: None,
                ..lengths
            },
            ..self
        };
        let whole = whole.in_one_pass(cancel, download, head)?;
        let (sums, proven) = two_pass::prove(&what, whole, reporter)?;
        let size = header.size();
        let received = any_order.received();
        let shared = Arc::new(Shared::new(what, purpose, second, two_pass::BLOCKS));
        let algorithm = content_digest.as_ref().map(Digest::algorithm);
        let started = two_pass::content(&shared, header, any_order, sums, algorithm);
        let (threads, blocks) = started.inspect_err(|_| shared.stop())?;
        Ok(ImageStream {
            shared,
            demanded: Vec::new(),
            signed: false,
            checksums_signed_by: None,
            content_digest,
            lengths,
            proven: Some(proven),
            codec,
            content_length: Some(size),
            content_at_least: size,
            received,
            expected: None,
            blocks: Some(blocks),
            threads: Some(threads),
            held: Arc::default(),
            ended: false,
        })
    }
}

impl Drop for ImageStream {
    fn drop(&mut self) {
        self.shared.stop();
        self.blocks = None;
        if let Some(threads) = self.threads.take() {
            // What they found is of no interest any more.
            let _ = threads.join();
        }
    }
}
