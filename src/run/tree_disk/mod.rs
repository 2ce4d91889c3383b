//! A tree of files becomes a bootable disk: from the head of its image to a root in which every proof was good, and
//! what starts it. Until the commit the disk has no table: nothing here can boot before.

mod boot_loader;
mod esp;
mod filesystems;
mod fstab;
mod grub;
mod image_script;
mod inside;
mod kernels;
mod loader_entry;
mod read_back;
mod rooted;
mod running;
mod settle;
pub(in crate::run) mod uki;
mod unpack;

pub use boot_loader::install as install_bootloader;
pub use filesystems::make as make_filesystems;
pub use settle::settle;

use read_back::Remembered;
use running::Running;

use super::head::HeadHold;
use super::image_source::{Parts, Source};
use super::install::places;
use super::partitions::Shared;
use super::target_disk::TargetDisk;
use super::{kept, make_filesystem, source_disk};
use crate::error::{Class, Failure, Result};
use crate::plan::clear;
use crate::plan::layout::{Layout, Shape};
use crate::plan::memory_root::Lengths;
use crate::plan::step::Target;
use crate::plan::tree_layout::{self, NewTable};
use crate::plan::tree_root::{self, NewFileSystemKind, RunningRoot, TreeImage};
use crate::report::Reporter;
use crate::stream::{Block, Budget, ImageStream, Location, Purpose, Verified};
use crate::units::{Bytes, MIB};

/// The image of a tree whose first block is here.
#[derive(Debug)]
struct Incoming {
    stream: ImageStream,
    first: Block,
    /// What comes after it, where the image is in layers.
    parts: Parts,
    /// Whether it came from a registry.
    layered: bool,
    image: TreeImage,
    /// The least that the content must have to be whole.
    at_least: Bytes,
}

/// Where the tree comes from.
#[derive(Debug)]
enum Origin {
    /// An image.
    Image(Box<Incoming>),
    /// The root that is running.
    Running(Running),
}

/// What a plan says of a tree's disk.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its table.
    pub table: &'a NewTable,
    /// The file system of the root.
    pub filesystem: NewFileSystemKind,
    /// What it keeps and gets besides.
    pub shape: &'a Shape,
    /// Where the tree is the root that is running.
    pub running: Option<RunningRoot>,
}

/// A locked disk, and a tree that fits it.
#[derive(Debug)]
pub struct OpenedTree {
    disk: TargetDisk,
    origin: Origin,
    head: HeadHold,
}

/// The same, and the kernel knows the partitions of the fresh table.
#[derive(Debug)]
pub struct PartitionedTree {
    shared: Shared,
    origin: Origin,
    head: HeadHold,
}

/// What was unpacked into a partition.
#[derive(Debug)]
pub struct Unpacked {
    partition: u32,
    remembered: Remembered,
}

impl Unpacked {
    /// Reads it back and compares.
    pub fn read_back(&self, shared: &Shared, reporter: &Reporter) -> Result<()> {
        self.remembered
            .compare(shared.node(self.partition)?, reporter)
    }
}

impl Incoming {
    fn open(
        source: &Source<'_>,
        (target, table): (&Target, &NewTable),
        budget: Budget,
        reporter: &Reporter,
    ) -> Result<Incoming> {
        let locations = &source.image.locations;
        source_disk::must_not_be_target(source.root, locations, target)?;
        let mut parts = source.parts(Purpose::Tree, budget)?;
        let Some(mut stream) = parts.next_stream()? else {
            return Err(Failure::new(Class::Bug, "the image has no part"));
        };
        let first = source.first_block(&mut stream, reporter)?;
        let lengths = Lengths {
            exact: stream.content_length().map(Bytes),
            at_least: Bytes(stream.content_at_least()),
            declared: source.image.content_size,
        };
        let (image, at_least) = tree_root::adopt(&first, lengths, target, table)?;
        if parts.count() > 1 {
            reporter.info(format!("the image has {} layers", parts.count()));
        }
        let layered = locations.iter().any(|l| matches!(l, Location::Oci(_)));
        Ok(Incoming {
            stream,
            first,
            parts,
            layered,
            image,
            at_least,
        })
    }
}

impl OpenedTree {
    /// Opens the image, finds out what it is and whether it fits.
    pub fn open(
        mut disk: TargetDisk,
        source: &Source<'_>,
        wanted: Wanted<'_>,
        budget: Budget,
        reporter: &Reporter,
    ) -> Result<OpenedTree> {
        let Wanted {
            table,
            filesystem,
            shape,
            running,
        } = wanted;
        let entries = kept::entries(&disk, &shape.kept)?;
        for filesystem in shape.add.iter().filter_map(|a| a.filesystem) {
            make_filesystem::can_be_made(filesystem)?;
        }
        filesystems::can_be_made(filesystem)?;
        let on = (disk.target(), table);
        let origin = match running {
            Some(demanded) => Origin::Running(Running::open(source.root, on, demanded, reporter)?),
            None => Origin::Image(Box::new(Incoming::open(source, on, budget, reporter)?)),
        };
        let layout = tree_layout::layout(table, disk.target(), shape, &entries)?;
        disk.spare(layout.spared());
        Ok(OpenedTree {
            disk,
            origin,
            head: HeadHold::new(layout),
        })
    }

    /// The disk.
    pub fn disk(&self) -> &TargetDisk {
        &self.disk
    }

    /// The table that the disk will have.
    pub fn layout(&self) -> &Layout {
        self.head.layout()
    }

    /// Makes the kernel know its partitions; of what is kept, only those of `also`.
    pub fn make_partitions(self, also: &[u32]) -> Result<PartitionedTree> {
        // All but what is kept is new: a tree's own partitions have no more of an image's bytes than added ones.
        for place in places(self.layout(), &[]) {
            let end = place.start.0.saturating_add(place.size.0);
            // The mark stands below the first MiB.
            for span in clear::ends(place.start.0.max(MIB), end) {
                self.disk.zero(span)?;
            }
        }
        let places = places(self.layout(), also);
        Ok(PartitionedTree {
            shared: Shared::new(self.disk, &places)?,
            origin: self.origin,
            head: self.head,
        })
    }
}

impl PartitionedTree {
    /// The disk and its partitions.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Unpacks the tree into `partition` and checks every proof. With `remember` it can be read back.
    pub fn unpack(
        self,
        (partition, remember): (u32, bool),
        reporter: &Reporter,
    ) -> Result<(Shared, HeadHold, Verified, Option<Unpacked>)> {
        let node = self.shared.node(partition)?;
        let (proof, remembered) = unpack::unpack(self.origin, node, remember, reporter)?;
        let unpacked = remembered.map(|remembered| Unpacked {
            partition,
            remembered,
        });
        Ok((self.shared, self.head, proof, unpacked))
    }
}
