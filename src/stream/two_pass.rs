//! qcow2: the content is not in the order of the file, so that the file is read twice. The first pass reads all
//! of it and proves it, before anybody has written anything; the second reads what the content needs, in the
//! content's order, each piece compared with what was proven.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::buffer::{ALIGNMENT, BLOCK, BLOCKS_PARALLEL};
use super::codec;
use super::digest::Item;
use super::download::Download;
use super::image::ImageStream;
use super::pieces::{self, Pieces, Sums};
use super::pipeline::{Outlets, Shared, Threads};
use super::verified::Verified;
use crate::error::{Class, Failure, Result};
use crate::image::qcow2::{self, Header, Problem, Reader};
use crate::report::{Event, Reporter};
use crate::units::HashAlgorithm;

/// How many blocks of content may exist.
pub(super) const BLOCKS: usize = BLOCKS_PARALLEL;

// Invariant I7, as in `buffer`.
const _: () =
    assert!(BLOCKS * (BLOCK + ALIGNMENT) + pieces::MEMORY + qcow2::MEMORY + (4 << 20) <= 64 << 20);

/// Progress events, at most five a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// What the file's first bytes say.
pub(super) fn header(what: &str, head: &[u8]) -> Result<Header> {
    Header::parse(head).map_err(|problem| failure(what, problem))
}

/// Whether the second pass will be possible: `download` reads in any order, of a file of `length` bytes.
pub(super) fn must_give_ranges(download: &mut Download, length: Option<u64>) -> Result<()> {
    // The answer to a range that begins at 0 may be all of the file.
    download.seek(length.map_or(1, |length| length.saturating_sub(1).max(1)));
    let mut byte = [0];
    download.fill(&mut byte)?;
    download.seek(0);
    Ok(())
}

/// The first pass: reads `whole`, the file as it is, to its end.
pub(super) fn prove(
    what: &str,
    mut whole: ImageStream,
    reporter: &Reporter,
) -> Result<(Sums, Verified)> {
    Sums::check(what, whole.content_length())?;
    reporter.info(format!(
        "image {what} is qcow2: it is read twice, first to prove it, then to write it"
    ));
    let mut sums = Sums::default();
    let mut told = Instant::now();
    while let Some(block) = whole.next_block()? {
        sums.add(what, &block)?;
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            let counters = whole.counters();
            reporter.emit(Event::Progress {
                step: "openImage",
                written: 0,
                total: None,
                received: counters.received,
                expected: counters.expected,
            });
        }
    }
    Ok((sums, whole.finish()?))
}

/// The second pass: the content, in order.
pub(super) fn content(
    shared: &Arc<Shared>,
    header: Header,
    download: Download,
    sums: Sums,
    declared_content: Option<HashAlgorithm>,
) -> Result<(Threads, Receiver<Item>)> {
    let pieces = Pieces::new(shared.what.clone(), download, sums);
    let size = header.size();
    let reader = Reader::new(header, pieces);
    Threads::produce(
        shared,
        "ir-qcow2",
        declared_content,
        move |shared, outlets| give_out(shared, reader, size, outlets),
    )
}

/// Reads content into blocks. Returns how many bytes it had; `None` when it was cut off.
fn give_out(
    shared: &Shared,
    mut reader: Reader<Pieces>,
    size: u64,
    outlets: Outlets,
) -> Option<u64> {
    let mut at = 0u64;
    while at < size {
        let mut buffer = shared.blocks.take()?;
        let space = buffer.space();
        let left = usize::try_from(size - at).unwrap_or(usize::MAX);
        let step = space.len().min(left);
        let block = space.get_mut(..step)?;
        let read = reader
            .read(at, block)
            .map_err(|problem| failure(&shared.what, problem))
            .and_then(|()| match at {
                0 => codec::check_content(&shared.what, block, shared.purpose),
                _ => Ok(()),
            });
        if let Err(failure) = read {
            shared.fail(failure);
            return None;
        }
        at = at.saturating_add(step as u64);
        outlets.send(&buffer.share(step))?;
    }
    outlets.end()?;
    Some(at)
}

fn failure(what: &str, problem: Problem) -> Failure {
    match problem {
        Problem::Unsupported(why) => Failure::new(
            Class::Config,
            format!("{what} is a qcow2 image that cannot be read: {why}"),
        )
        .hint("make a plain copy: `qemu-img convert -O qcow2 OLD NEW`, with `-c` for a compressed one"),
        Problem::Damaged(why) => Failure::new(
            Class::Integrity,
            format!("{what} is a damaged qcow2 image: {why}"),
        )
        .hint("`qemu-img check` shows more; publish the image again"),
        Problem::Source(failure) => failure,
    }
}
