//! What was unpacked is read back from the medium and compared with what was written.

use std::os::fd::AsFd as _;
use std::time::Instant;

use super::rooted;
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::tree::{Ledger, Listing};
use crate::report::Reporter;
use crate::run::partitions::Node;
use crate::sys::beneath::Root;
use crate::sys::{block, detached};

/// What was written into a partition, and everything of it is on the medium.
#[derive(Debug)]
pub struct Remembered {
    ledger: Ledger,
    listing: Listing,
}

impl Remembered {
    /// What `ledger` knows of all that is in `root` now.
    pub fn of(ledger: Ledger, root: &Root) -> Result<Remembered> {
        let listing = ledger.list(root)?;
        Ok(Remembered { ledger, listing })
    }

    /// Reads the partition, which is not mounted, past everything that memory holds of it.
    pub fn compare(&self, node: &Node, reporter: &Reporter) -> Result<()> {
        let begun = Instant::now();
        let path = node.path.display();
        let device = super::esp::open(node)?;
        block::flush_and_forget(&device).context(Class::Media, || format!("flushing {path}"))?;
        drop(device);
        let lost = |failure: Failure| {
            Failure::new(
                Class::Media,
                format!("{path} does not hold the tree that was written"),
            )
            .caused_by(failure)
            .hint("the disk loses data: replace it; it does not boot now")
        };
        let kind = rooted::kind(node).map_err(lost)?;
        let mount = detached::read_only(kind, &node.path, &[]).map_err(lost)?;
        let root = Root::of(&mount.as_fd(), "the new root")?;
        let read = self.ledger.compare(&root, &self.listing).map_err(lost)?;
        reporter.info(format!(
            "read back {} files of {} in {} s: the disk holds what was written",
            read.files,
            read.bytes.short(),
            begun.elapsed().as_secs()
        ));
        Ok(())
    }
}
