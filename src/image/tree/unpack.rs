//! From a stream of archive bytes to a tree: one copy, no more than one entry's headers in memory, and
//! nothing outside the root whatever the archive says.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::archive::Archive;
use super::census::{Census, bump};
use super::later::Later;
use super::ledger::Ledger;
use super::limits::Limits;
use super::names::clean;
use super::parents::Parents;
use super::refusal::integrity;
use super::whiteout::Layer;
use crate::error::Result;
use crate::sys::beneath::Root;

/// How an archive is unpacked.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether `.wh.NAME` and `.wh..wh..opq` hide what lower layers have, as in the layers of an OCI image.
    /// Otherwise they are names like any others.
    pub whiteouts: bool,
    /// What is refused as hostile.
    pub limits: Limits,
    /// Counts the bytes of content that were written, while they are.
    pub progress: Arc<AtomicU64>,
}

/// A tree that is being unpacked.
pub(super) struct Unpacking<'r> {
    pub(super) root: &'r Root,
    pub(super) options: &'r Options,
    pub(super) parents: Parents<'r>,
    pub(super) later: Later,
    pub(super) layer: Option<Layer>,
    /// Remembers the contents, where somebody wants it.
    pub(super) ledger: Option<&'r mut Ledger>,
    pub(super) census: Census,
}

/// Unpacks a tar archive (not compressed) into `root` while it streams. Several layers of one image go into
/// the same root one after the other, each with a call of its own: a later one replaces, changes types and,
/// with whiteouts, removes.
///
/// What the archive says is kept: owners by number, modes, times to the nanosecond, extended attributes,
/// ACLs (names in them are those of the image's own `/etc/passwd` and `/etc/group`), hard links, holes,
/// devices and FIFOs. An entry that exists is replaced, never written through; a directory that exists stays
/// and gets the attributes of the new entry. Leading `/` and `./` of names are stripped.
///
/// The stream must be one whole archive: both blocks of the end mark, and nothing but zeros after them; it
/// is read to its end. An error of `from` that holds a [`crate::error::Failure`] is given on as it is.
///
/// # Errors
/// Class integrity for what is damaged, cut off or hostile; space where the file system is full, with what
/// was needed and what there is; media otherwise. The tree is then unfinished and of no use.
pub fn unpack(from: &mut dyn BufRead, root: &Root, options: &Options) -> Result<Census> {
    unpack_remembering(from, root, options, None)
}

/// The same, and `ledger` remembers what was written into the files.
///
/// # Errors
/// As [`unpack`], and as [`Ledger::remember`].
pub fn unpack_remembering(
    from: &mut dyn BufRead,
    root: &Root,
    options: &Options,
    ledger: Option<&mut Ledger>,
) -> Result<Census> {
    let mut archive = Archive::new(from, options.limits);
    let mut unpacking = Unpacking {
        root,
        options,
        parents: Parents::new(root),
        later: Later::default(),
        layer: options.whiteouts.then(Layer::default),
        ledger,
        census: Census::default(),
    };
    while let Some(member) = archive.next()? {
        let census = &mut unpacking.census;
        bump(&mut census.entries, 1);
        if census.entries > options.limits.entries {
            return Err(integrity(format!(
                "the archive has more than {} entries",
                options.limits.entries
            )));
        }
        let path = clean(&member.path, options.limits.depth)?;
        unpacking.place(&path, &member, &mut archive)?;
    }
    let Unpacking {
        later, mut census, ..
    } = unpacking;
    later.finish(root, &mut census)?;
    Ok(census)
}
