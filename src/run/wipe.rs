//! Wiping a disk as a whole, by the device's own means where it has them.

use std::io;

use super::progress::Meter;
use super::target_disk::TargetDisk;
use crate::config::wire::Wipe;
use crate::error::{Class, Context as _, Result};
use crate::plan::step::{Span, total};
use crate::report::Reporter;
use crate::sys::block;
use crate::units::Bytes;

/// A device that zeroes by itself is told in pieces of this size, and one that does not is written so much
/// between two events.
const PIECE: u64 = 1 << 30;

/// Wipes `spans`, the first of which begins with LBA 0: that is zeroed and on the medium before the rest
/// begins, so that the disk cannot boot from there on.
pub fn wipe(disk: &TargetDisk, method: Wipe, spans: &[Span], reporter: &Reporter) -> Result<()> {
    if let Some(first) = spans.first() {
        disk.zero(*first)?;
        disk.flush()?;
    }
    let what = |span: Span| {
        format!(
            "{} {} at byte {}, {}",
            match method {
                Wipe::Discard => "discarding",
                Wipe::Zero | Wipe::Signatures => "zeroing",
            },
            disk.target().path.display(),
            span.start.0,
            span.length
        )
    };
    let mut meter = Meter::new("wipeDisk", total(spans), reporter);
    for span in pieces(spans) {
        disk.must_spare(span)?;
        let done = match method {
            Wipe::Discard => block::discard(disk.file(), span.start, span.length),
            Wipe::Zero => zero(disk, span),
            Wipe::Signatures => Ok(()),
        };
        match done {
            Err(e) if method == Wipe::Discard && is_unsupported(&e) => {
                reporter.warn(format!(
                    "{} cannot discard; only its signatures are cleared, what lies between them stays",
                    disk.target().path.display()
                ));
                return Ok(());
            }
            other => other.context(Class::Media, || what(span)).map_err(|f| {
                f.hint("the disk does not boot; check its cabling and health, then install again")
            })?,
        }
        meter.add(span.length);
    }
    disk.flush()?;
    meter.end();
    Ok(())
}

fn zero(disk: &TargetDisk, span: Span) -> io::Result<()> {
    if disk.target().dev.is_none() {
        return block::punch_hole(disk.file(), span.start, span.length);
    }
    block::zero_out(disk.file(), span.start, span.length)
}

/// The device has no such command, or takes none of this length.
fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error() == Some(nix::libc::EOPNOTSUPP)
}

/// The spans in pieces of at most [`PIECE`].
fn pieces(spans: &[Span]) -> impl Iterator<Item = Span> {
    spans.iter().flat_map(|span| {
        let end = span.start.0.saturating_add(span.length.0);
        let mut at = span.start.0;
        std::iter::from_fn(move || {
            let length = end.saturating_sub(at).min(PIECE);
            let piece = Span {
                start: Bytes(at),
                length: Bytes(length),
            };
            at = at.saturating_add(length);
            (length > 0).then_some(piece)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_small_and_cover_the_spans_without_a_gap(
            spans in proptest::collection::vec((0u64..(1 << 40), 0u64..(5 << 30)), 0..4),
        ) {
            let spans: Vec<Span> = spans.iter()
                .map(|(start, length)| Span { start: Bytes(*start), length: Bytes(*length) })
                .collect();
            let pieces: Vec<Span> = pieces(&spans).collect();
            prop_assert!(pieces.iter().all(|p| p.length.0 > 0 && p.length.0 <= PIECE));
            prop_assert_eq!(total(&pieces), total(&spans));
            let mut rest = pieces.into_iter();
            for span in spans.iter().filter(|s| s.length.0 > 0) {
                let mut at = span.start.0;
                while at < span.start.0 + span.length.0 {
                    let piece = rest.next().unwrap();
                    prop_assert_eq!(piece.start.0, at);
                    at += piece.length.0;
                }
            }
        }
    }
}
