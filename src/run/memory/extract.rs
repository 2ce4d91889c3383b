//! A file system image unpacked: kept and proven first, mounted where nobody sees it, copied, and given back. Image and
//! tree are in memory together for a moment; what stays is the tree.

use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use super::hold::Held;
use super::lower;
use super::tree::Tree;
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::tree;
use crate::plan::memory_root::{self, Room, RootLayout};
use crate::report::Reporter;
use crate::sys::beneath::Root;
use crate::units::Bytes;

/// A block of stat(2).
const BLOCK: u64 = 512;

/// Unpacks `held`, all proofs of which were good.
pub fn unpack(held: Held, layout: &RootLayout, room: &Room, reporter: &Reporter) -> Result<Tree> {
    let Held {
        tmpfs,
        file,
        length,
    } = held;
    let held = file
        .metadata()
        .context(
            Class::Media,
            || "asking for the size of the image in memory",
        )?
        .blocks()
        .saturating_mul(BLOCK);
    let mounted = lower::mount(&file, length, None, layout)?;
    let from = Root::of(&mounted.as_fd(), "the image")?;
    let size = tree::measure(&from, room.inodes).map_err(unreadable)?;
    let limit = memory_root::unpacked(&layout.image, &size, Bytes(held), room)?;
    reporter.info(format!(
        "unpacking {} files, {}",
        size.inodes,
        size.bytes.short()
    ));
    let tree = Tree::new(limit, room)?;
    let whole = Path::new("/");
    let census = tree::copy(&from, whole, tree.root(), Path::new(""), &AtomicU64::new(0))
        .map_err(unreadable)?;
    for note in census.notes() {
        reporter.warn(note);
    }
    // In this order: each holds the next.
    drop(from);
    drop(mounted);
    drop(file);
    drop(tmpfs);
    Ok(tree)
}

/// What cannot be read of an image in memory is the image's fault.
fn unreadable(failure: Failure) -> Failure {
    if failure.class() != Class::Media {
        return failure;
    }
    Failure::new(Class::Integrity, "the image cannot be unpacked")
        .caused_by(failure)
        .hint("the image is damaged: publish it again")
}
