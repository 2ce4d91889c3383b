//! The threads of an image stream and the channels between them:
//!
//! ```text
//! fetch ──chunks──► decode ──blocks──► consumer          compressed
//!   ├──► hash (download)  └──► hash (content)
//!   └──► signature
//!
//! fetch ──blocks──► consumer                              raw: no copy, no decoder
//!   ├──► hash (download = content)
//!   └──► signature
//! ```
//!
//! Where the format allows it, the decoder has threads of its own (`codec/parallel.rs`, and the xz library).
//!
//! Memory is bounded by the two pools and by what the decoder takes; the channels are as long as their pool, so that only a lack of
//! buffers makes a stage wait. Every wait ends when the stream is dropped: buffers are refused, receivers
//! are gone, the network is cancelled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::buffer::{BLOCK, BLOCKS, CHUNK, CHUNKS, Pool, Slab};
use super::cancel::Cancel;
use super::codec::{self, Chunks, Codec, Decoder, Purpose, WINDOW_CAP, Way};
use super::digest::{self, Item};
use super::download::Download;
use super::proof::{SignedBy, Verifier};
use crate::error::{Class, Context as _, Failure, Result};
use crate::units::{Bytes, Digest, HashAlgorithm};

/// What the threads of one stream share.
#[derive(Debug)]
pub(super) struct Shared {
    /// How messages name the download.
    pub(super) what: String,
    pub(super) purpose: Purpose,
    cancel: Cancel,
    pub(super) blocks: Pool,
    chunks: Pool,
    /// The first failure; those that follow from it are not recorded.
    fault: Mutex<Option<Failure>>,
}

impl Shared {
    /// `blocks`: how many blocks of decoded content may exist.
    pub(super) fn new(what: String, purpose: Purpose, cancel: Cancel, blocks: usize) -> Shared {
        Shared {
            what,
            purpose,
            cancel,
            blocks: Pool::new(BLOCK, blocks),
            chunks: Pool::new(CHUNK, CHUNKS),
            fault: Mutex::default(),
        }
    }

    /// Records why the stream ends early.
    pub(super) fn fail(&self, failure: Failure) {
        self.fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(failure);
    }

    /// Why the stream ended early.
    pub(super) fn fault(&self) -> Failure {
        self.fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .unwrap_or_else(|| {
                let text = format!("reading {} stopped without a reason", self.what);
                Failure::new(Class::Bug, text)
            })
    }

    /// Makes every thread stop.
    pub(super) fn stop(&self) {
        self.cancel.cancel();
        self.blocks.close();
        self.chunks.close();
    }
}

/// The threads. Each returns nothing when it was cut off.
#[derive(Debug)]
pub(super) struct Threads {
    /// None where another thread fetches while it decodes.
    fetch: Option<JoinHandle<Option<u64>>>,
    decode: Option<JoinHandle<Option<u64>>>,
    download: Vec<JoinHandle<Option<Digest>>>,
    content: Vec<JoinHandle<Option<Digest>>>,
    signature: Option<JoinHandle<Option<Result<SignedBy>>>>,
}

/// What the threads found when all of them reached the end.
pub(super) struct Findings {
    pub(super) received: u64,
    pub(super) content_length: u64,
    pub(super) download: Vec<Digest>,
    pub(super) content: Vec<Digest>,
    /// Whether the download is what was signed, where that was asked.
    pub(super) signature: Option<Result<SignedBy>>,
}

impl Threads {
    /// Starts everything. `head` are the first bytes of the download, already read. Returns the threads and
    /// the blocks of decoded content.
    pub(super) fn start(
        shared: &Arc<Shared>,
        way: Way,
        download: Download,
        head: Vec<u8>,
        demanded: &[HashAlgorithm],
        declared_content: Option<HashAlgorithm>,
        verifier: Option<Verifier>,
    ) -> Result<(Threads, Receiver<Item>)> {
        let codec = way.codec;
        let raw = codec == Codec::Raw;
        // SHA-256 of the download is always wanted, for the record.
        let mut of_download = vec![HashAlgorithm::Sha256];
        of_download.extend(demanded);
        let mut of_content: Vec<HashAlgorithm> = declared_content.into_iter().collect();
        if raw {
            of_download.append(&mut of_content);
        }
        let mut seen = Vec::new();
        of_download.retain(|algorithm| {
            let new = !seen.contains(algorithm);
            seen.push(*algorithm);
            new
        });

        let received = download.received();
        let (download_hashes, mut from_fetch) = hashes(shared, &of_download, "ir-hash")?;
        let signature = match verifier {
            None => None,
            Some(verifier) => {
                let (outlet, input) = sync_channel(BLOCKS.max(CHUNKS) + 1);
                from_fetch.0.push(outlet);
                let cancel = shared.cancel.clone();
                Some(spawn("ir-signature", move || {
                    compare(verifier, input, cancel)
                })?)
            }
        };
        let (to_consumer, output) = sync_channel(BLOCKS + 1);
        let (content_hashes, decode) = if raw {
            from_fetch.0.push(to_consumer);
            (Vec::new(), None)
        } else {
            let (to_decoder, chunks) = sync_channel(CHUNKS + 1);
            from_fetch.0.push(to_decoder);
            let (hashes, mut from_decoder) = hashes(shared, &of_content, "ir-hash-content")?;
            from_decoder.0.push(to_consumer);
            let chunks = Chunks::new(chunks, shared.cancel.clone());
            let decoder = way
                .decoder(chunks, &shared.cancel)
                .context(Class::Space, || format!("preparing to decode {codec}"))?;
            let here = Arc::clone(shared);
            let decode = spawn("ir-decode", move || {
                // The consumer hears of a failure before this waits for what else the decoder has running.
                let mut decoder = decoder?;
                decode(&here, codec, decoder.as_mut(), &received, from_decoder)
            })?;
            (hashes, Some(decode))
        };
        let here = Arc::clone(shared);
        let fetch = spawn("ir-fetch", move || {
            let pool = if raw { &here.blocks } else { &here.chunks };
            fetch(&here, download, &head, pool, from_fetch)
        })?;
        let threads = Threads {
            fetch: Some(fetch),
            decode,
            download: download_hashes,
            content: content_hashes,
            signature,
        };
        Ok((threads, output))
    }

    /// Starts one thread that makes content out of what it fetches itself, and hashes beside it.
    pub(super) fn produce(
        shared: &Arc<Shared>,
        name: &str,
        declared_content: Option<HashAlgorithm>,
        work: impl FnOnce(&Shared, Outlets) -> Option<u64> + Send + 'static,
    ) -> Result<(Threads, Receiver<Item>)> {
        let of_content: Vec<HashAlgorithm> = declared_content.into_iter().collect();
        let (content, mut outlets) = hashes(shared, &of_content, "ir-hash-content")?;
        let (to_consumer, output) = sync_channel(BLOCKS + 1);
        outlets.0.push(to_consumer);
        let here = Arc::clone(shared);
        let decode = spawn(name, move || work(&here, outlets))?;
        let threads = Threads {
            fetch: None,
            decode: Some(decode),
            download: Vec::new(),
            content,
            signature: None,
        };
        Ok((threads, output))
    }

    /// Waits for all threads, which have reached their end or were told to stop.
    pub(super) fn join(self) -> Option<Findings> {
        fn all<T>(handles: Vec<JoinHandle<Option<T>>>) -> Option<Vec<T>> {
            // Every handle is waited for, also after one that found nothing.
            let results: Vec<Option<T>> = handles.into_iter().map(one).collect();
            results.into_iter().collect()
        }
        fn one<T>(handle: JoinHandle<Option<T>>) -> Option<T> {
            handle.join().ok().flatten()
        }
        let received = self.fetch.map_or(Some(0), one);
        let decoded = self.decode.map(one);
        let download = all(self.download);
        let content = all(self.content);
        let signature = self.signature.map(one);
        let (received, download) = (received?, download?);
        let (content_length, content) = match decoded {
            Some(decoded) => (decoded?, content?),
            // Raw: content and download are the same.
            None => (received, download.clone()),
        };
        let signature = match signature {
            Some(compared) => Some(compared?),
            None => None,
        };
        Some(Findings {
            received,
            content_length,
            download,
            content,
            signature,
        })
    }
}

/// The channels that a stage fills, all with the same.
pub(super) struct Outlets(Vec<SyncSender<Item>>);

impl Outlets {
    /// `None` when somebody does not listen any more.
    pub(super) fn send(&self, slab: &Slab) -> Option<()> {
        self.0
            .iter()
            .try_for_each(|outlet| outlet.send(Item::Data(slab.clone())).ok())
    }

    /// All was sent.
    pub(super) fn end(self) -> Option<()> {
        self.0
            .iter()
            .try_for_each(|outlet| outlet.send(Item::End).ok())
    }
}

type Hashes = Vec<JoinHandle<Option<Digest>>>;

fn hashes(
    shared: &Arc<Shared>,
    algorithms: &[HashAlgorithm],
    name: &str,
) -> Result<(Hashes, Outlets)> {
    let (mut handles, mut outlets) = (Vec::new(), Vec::new());
    for algorithm in algorithms.iter().copied() {
        let (outlet, input) = sync_channel(BLOCKS.max(CHUNKS) + 1);
        let cancel = shared.cancel.clone();
        handles.push(spawn(name, move || {
            digest::run(algorithm, &input, &cancel)
        })?);
        outlets.push(outlet);
    }
    Ok((handles, Outlets(outlets)))
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .context(Class::Space, || format!("starting the thread {name}"))
}

/// Compares the download with its signature; `None` when it was cut off.
fn compare(verifier: Verifier, input: Receiver<Item>, cancel: Cancel) -> Option<Result<SignedBy>> {
    let mut chunks = Chunks::new(input, cancel);
    let verdict = verifier.verify(&mut chunks);
    // Also after a verdict that did not need all of it: whoever stops listening stops the download.
    std::io::copy(&mut chunks, &mut std::io::sink()).ok()?;
    Some(verdict)
}

/// Reads the download into buffers of `pool`. Returns how many bytes it had.
fn fetch(
    shared: &Shared,
    mut download: Download,
    head: &[u8],
    pool: &Pool,
    outlets: Outlets,
) -> Option<u64> {
    let mut length = 0u64;
    let mut head = Some(head);
    loop {
        let mut buffer = pool.take()?;
        let space = buffer.space();
        let size = space.len();
        let mut filled = 0;
        if let Some(head) = head.take() {
            let (start, _) = space.split_at_mut_checked(head.len())?;
            start.copy_from_slice(head);
            filled = head.len();
        }
        match download.fill(space.get_mut(filled..).unwrap_or_default()) {
            Ok(count) => filled += count,
            Err(failure) => {
                shared.fail(failure);
                return None;
            }
        }
        if filled > 0 {
            length = length.saturating_add(filled as u64);
            outlets.send(&buffer.share(filled))?;
        }
        if filled < size {
            outlets.end()?;
            return Some(length);
        }
    }
}

/// Decodes into blocks. Returns how many bytes the content had.
fn decode(
    shared: &Shared,
    codec: Codec,
    decoder: &mut dyn Decoder,
    received: &AtomicU64,
    outlets: Outlets,
) -> Option<u64> {
    let mut length = 0u64;
    loop {
        let mut buffer = shared.blocks.take()?;
        let space = buffer.space();
        let size = space.len();
        let filled = match fill(decoder, space) {
            Ok(filled) => filled,
            Err(error) => {
                let received = received.load(Ordering::Relaxed);
                shared.fail(undecodable(&shared.what, codec, error, received, length));
                return None;
            }
        };
        if length == 0 {
            let start = space.get(..filled).unwrap_or_default();
            let judged = if start.is_empty() {
                let text = format!("the content of {} is empty", shared.what);
                Err(Failure::new(Class::Integrity, text))
            } else {
                codec::check_content(&shared.what, start, shared.purpose)
            };
            if let Err(failure) = judged {
                shared.fail(failure);
                return None;
            }
        }
        if filled > 0 {
            length = length.saturating_add(filled as u64);
            outlets.send(&buffer.share(filled))?;
        }
        if filled < size {
            outlets.end()?;
            return Some(length);
        }
    }
}

fn fill(decoder: &mut dyn Decoder, space: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = space.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match decoder.read(rest)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

fn undecodable(
    what: &str,
    codec: Codec,
    error: std::io::Error,
    received: u64,
    decoded: u64,
) -> Failure {
    let place = format!("{received} bytes were received, {decoded} decoded");
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Failure::new(
            Class::Integrity,
            format!("{what} is cut short: it ends in the middle of its {codec} stream; {place}"),
        )
        .hint("the file on the server is incomplete: upload it again"),
        std::io::ErrorKind::OutOfMemory => Failure::new(
            Class::Integrity,
            format!(
                "{what} asks for a larger {codec} window or dictionary than the {} that are allowed",
                Bytes(WINDOW_CAP)
            ),
        )
        .hint("compress it again with a smaller one"),
        _ => Failure::new(
            Class::Integrity,
            format!("{what} is damaged: its {codec} stream cannot be decoded; {place}"),
        )
        .caused_by(error)
        .hint("compare the file on the server with its digest"),
    }
}
