//! An image unpacked into a tmpfs, while it streams: one copy, never the archive and the tree together.

use std::os::fd::AsFd as _;
use std::path::Path;

use super::blocks::BlockReader;
use super::mounts::Mounts;
use crate::error::Result;
use crate::image::tree;
use crate::plan::memory_root::Room;
use crate::report::Reporter;
use crate::sys::beneath::Root;
use crate::sys::detached::{Detached, Flags, Tmpfs};
use crate::sys::mount;
use crate::units::Bytes;

/// A tree in memory.
#[derive(Debug)]
pub struct Tree {
    /// The tmpfs, which has no place yet: nobody can open what is not proven.
    tmpfs: Detached,
    root: Root,
}

impl Tree {
    /// An empty one of at most `limit`: what does not fit fails, and kills nothing.
    pub fn new(limit: Bytes, room: &Room) -> Result<Tree> {
        let tmpfs = Tmpfs {
            size: limit,
            inodes: room.inodes,
            mode: 0o755,
            interleave: room.interleave,
            name: "ironroot".to_owned(),
        }
        .mount(Flags::ROOT)?;
        let top = Root::of(&tmpfs.as_fd(), "the new root")?;
        Ok(Tree { tmpfs, root: top })
    }

    /// Where it is filled.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Unpacks what `reader` gives over what is there. Nothing of it has been proven yet. `layered`: it is a
    /// layer of a container image, which says by names what it takes away.
    pub fn add(
        &self,
        reader: &mut BlockReader<'_>,
        layered: bool,
        reporter: &Reporter,
    ) -> Result<()> {
        let options = tree::Options {
            whiteouts: layered,
            ..tree::Options::default()
        };
        for note in tree::unpack(reader, &self.root, &options)?.notes() {
            reporter.warn(note);
        }
        Ok(())
    }

    /// Gives the tree its place and its room.
    pub fn place(self, place: &Path, room: &Room, made: &mut Mounts) -> Result<()> {
        made.attach(self.tmpfs, place)?;
        mount::resize(place, room.size)
    }
}
