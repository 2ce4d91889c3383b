//! The steps of an installation, as a chain of states: each step takes what the one before it made, so that
//! none can run twice or out of order.

use super::bulk::{self, Piece, Sum};
use super::head::{self, Finalized, HeadHold};
use super::image_source::{self, Source};
use super::partitions::{self, Place, Shared};
use super::progress::Progress;
use super::source_disk;
use super::target_disk::{LockedDisk, TargetDisk};
use super::tree_disk::{self, OpenedTree, PartitionedTree, Unpacked};
use super::{kept, make_filesystem, teardown, wipe};
use crate::config::wire::{ImageKind, RecordPolicy, Wipe};
use crate::error::{Class, Failure, Result};
use crate::host::RecordIdentity;
use crate::host::tables::TablePartition;
use crate::image::boot::grub_core::BootCode;
use crate::plan::keep::Copy;
use crate::plan::layout::{self, Layout, Length, Shape, extend};
use crate::plan::step::{Span, Target};
use crate::plan::teardown::Standing;
use crate::plan::tree_root;
use crate::report::Reporter;
use crate::stream::{Block, Budget, ImageStream, Purpose, Verified};
use crate::units::{Bytes, MIB};

/// What was to be written to a disk as it is, is a tree: another plan is needed. Nothing has been written.
#[derive(Debug, thiserror::Error)]
#[error("it is {0}, a tree of files")]
pub struct ItIsATree(pub String);

impl From<ItIsATree> for Failure {
    fn from(tree: ItIsATree) -> Failure {
        Failure::new(Class::Config, "the image is no disk image")
            .caused_by(tree)
            .hint("set `image.kind` to Tree")
    }
}

/// How far an installation is.
#[derive(Debug)]
pub enum Stage {
    /// Nothing is open.
    Idle,
    /// The disk is locked, and something stands on it.
    Stacked(LockedDisk),
    /// The disk is locked and claimed.
    Locked(TargetDisk),
    /// The image's head is here and fits; from here on bytes may change.
    Opened(Box<Opened>),
    /// The same of a tree, and its table is made.
    OpenedTree(Box<OpenedTree>),
    /// The kernel knows the partitions of that table, which is in memory only.
    PartitionedTree(Box<PartitionedTree>),
    /// The body is on the disk and every proof was good.
    Written(Box<Written>),
    /// The same, and its partitions, which no table on the disk names yet, can be mounted.
    Working(Box<Working>),
    /// The disk boots.
    Complete(TargetDisk, Box<Finalized>),
}

/// A locked disk, and an image whose first block is here.
#[derive(Debug)]
pub struct Opened {
    disk: TargetDisk,
    stream: ImageStream,
    first: Block,
    head: HeadHold,
}

/// A disk with the image's body, the head held back.
#[derive(Debug)]
pub struct Written {
    disk: TargetDisk,
    head: HeadHold,
    proof: Verified,
    sums: Vec<Sum>,
}

/// A written disk whose partitions the kernel knows from memory.
#[derive(Debug)]
pub struct Working {
    shared: Shared,
    head: HeadHold,
    proof: Verified,
    /// What can be read back.
    unpacked: Option<Unpacked>,
}

/// The partitions of a table that the kernel is told of. Nobody else has to touch what is kept, nor to find an LVM or
/// RAID in it: of that only `also`.
pub fn places(layout: &Layout, also: &[u32]) -> Vec<Place> {
    let is_kept = |number| layout.kept.iter().any(|p| p.number == number);
    let mut places = partitions::places(&layout.table);
    places.retain(|place| !is_kept(place.number) || also.contains(&place.number));
    places
}

impl Working {
    /// The disk and its partitions.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The layout, with the table that the disk will have.
    pub fn layout(&self) -> &Layout {
        self.head.layout()
    }
}

impl Stage {
    fn name(&self) -> &'static str {
        match self {
            Stage::Idle => "idle",
            Stage::Stacked(_) => "stacked",
            Stage::Locked(_) => "locked",
            Stage::Opened(_) => "opened",
            Stage::OpenedTree(_) => "openedTree",
            Stage::PartitionedTree(_) => "partitionedTree",
            Stage::Written(_) => "written",
            Stage::Working(_) => "working",
            Stage::Complete(..) => "complete",
        }
    }

    fn out_of_order(&self, step: &str) -> Failure {
        Failure::new(
            Class::Bug,
            format!("step {step} cannot follow the state {:?}", self.name()),
        )
        .hint("report this as a bug of ironroot")
    }

    /// Locks the target.
    pub fn lock(self, target: &Target) -> Result<Stage> {
        match self {
            Stage::Idle => Ok(Stage::Locked(TargetDisk::open(target)?)),
            other => Err(other.out_of_order("lockDisk")),
        }
    }

    /// Locks the target, on which `devices` stand: nothing is taken down while one of them is in use.
    pub fn lock_stack(self, target: &Target, devices: &[Standing]) -> Result<Stage> {
        match self {
            Stage::Idle => {
                let disk = LockedDisk::open(target)?;
                teardown::must_be_unused(devices)?;
                Ok(Stage::Stacked(disk))
            }
            other => Err(other.out_of_order("lockStack")),
        }
    }

    /// Takes down one of the devices that stand on it.
    pub fn take_down(self, device: &Standing) -> Result<Stage> {
        match self {
            Stage::Stacked(disk) => {
                teardown::take_down(device)?;
                Ok(Stage::Stacked(disk))
            }
            other => Err(other.out_of_order("takeDown")),
        }
    }

    /// Claims the target, on which nothing stands any more.
    pub fn claim(self) -> Result<Stage> {
        match self {
            Stage::Stacked(disk) => Ok(Stage::Locked(teardown::claim(disk)?)),
            other => Err(other.out_of_order("claimDisk")),
        }
    }

    /// Opens the image and fits its head to the disk.
    pub fn open(
        self,
        source: &Source<'_>,
        record: RecordPolicy,
        shape: &Shape,
        budget: Budget,
        reporter: &Reporter,
    ) -> Result<Stage> {
        let mut disk = match self {
            Stage::Locked(disk) => disk,
            other => return Err(other.out_of_order("openImage")),
        };
        let entries = kept::entries(&disk, &shape.kept)?;
        for filesystem in shape.add.iter().filter_map(|a| a.filesystem) {
            make_filesystem::can_be_made(filesystem)?;
        }
        let Source { image, root, .. } = source;
        source_disk::must_not_be_target(root, &image.locations, disk.target())?;
        let (mut stream, several) = if image.kind == ImageKind::Auto {
            let mut parts = source.parts(Purpose::DiskOrTree, budget)?;
            let stream = parts
                .next_stream()?
                .ok_or_else(|| Failure::new(Class::Bug, "the image has no part"))?;
            (stream, parts.count() > 1)
        } else {
            (source.open(Purpose::Disk, budget)?, false)
        };
        let first = source.first_block(&mut stream, reporter)?;
        if image.kind == ImageKind::Auto
            && let Some(what) = tree_root::instead_of_a_disk(&first, several)
        {
            return Err(ItIsATree(what).into());
        }
        let length = stream.content_length();
        let head_len = usize::try_from(MIB).unwrap_or(usize::MAX);
        let head = first.get(..head_len).unwrap_or(&first);
        let layout = layout::adopt(
            head,
            Length {
                exact: length.map(Bytes),
                at_least: Bytes(stream.content_at_least()),
            },
            disk.target(),
            record,
            shape,
            &entries,
        )?;
        if let Some(twin) = layout::twins::warning(&layout.table, &shape.taken, shape.guids) {
            reporter.warn(twin);
        }
        disk.spare(layout.spared());
        Ok(Stage::Opened(Box::new(Opened {
            disk,
            stream,
            first,
            head: HeadHold::new(layout),
        })))
    }

    /// Opens the image of a tree and fits it to the disk.
    pub fn open_tree(
        self,
        source: &Source<'_>,
        wanted: tree_disk::Wanted<'_>,
        budget: Budget,
        reporter: &Reporter,
    ) -> Result<Stage> {
        match self {
            Stage::Locked(disk) => OpenedTree::open(disk, source, wanted, budget, reporter)
                .map(|opened| Stage::OpenedTree(Box::new(opened))),
            other => Err(other.out_of_order("openTree")),
        }
    }

    /// Makes the kernel know the partitions of a tree's table; of what is kept, only those of `also`.
    pub fn make_partitions(self, also: &[u32]) -> Result<Stage> {
        match self {
            Stage::OpenedTree(opened) => opened
                .make_partitions(also)
                .map(|made| Stage::PartitionedTree(Box::new(made))),
            other => Err(other.out_of_order("makePartitions")),
        }
    }

    /// Makes their file systems.
    pub fn make_filesystems(self, make: impl FnOnce(&Shared) -> Result<()>) -> Result<Stage> {
        match self {
            Stage::PartitionedTree(tree) => {
                make(tree.shared())?;
                Ok(Stage::PartitionedTree(tree))
            }
            other => Err(other.out_of_order("makeFileSystems")),
        }
    }

    /// Unpacks a tree into the partition with this number, to be read back or not. The verdict is the price of the
    /// next state.
    pub fn unpack_tree(self, what: (u32, bool), reporter: &Reporter) -> Result<Stage> {
        match self {
            Stage::PartitionedTree(tree) => {
                let (shared, head, proof, unpacked) = tree.unpack(what, reporter)?;
                Ok(Stage::Working(Box::new(Working {
                    shared,
                    head,
                    proof,
                    unpacked,
                })))
            }
            other => Err(other.out_of_order("unpackTree")),
        }
    }

    /// Looks at what is kept before the first byte changes.
    pub fn look_ahead(
        self,
        look: impl FnOnce(&TargetDisk, &[TablePartition]) -> Result<()>,
    ) -> Result<Stage> {
        match &self {
            Stage::Opened(opened) => look(&opened.disk, &opened.head.layout().kept)?,
            Stage::OpenedTree(opened) => look(opened.disk(), &opened.layout().kept)?,
            _ => return Err(self.out_of_order("lookAtSources")),
        }
        Ok(self)
    }

    /// Writes the mark.
    pub fn mark(self, identity: &RecordIdentity) -> Result<Stage> {
        match self {
            Stage::Opened(opened) => {
                head::write_mark(&opened.disk, identity, opened.head.layout())?;
                Ok(Stage::Opened(opened))
            }
            Stage::OpenedTree(opened) => {
                head::write_mark(opened.disk(), identity, opened.layout())?;
                Ok(Stage::OpenedTree(opened))
            }
            other => Err(other.out_of_order("writeMark")),
        }
    }

    /// Wipes the disk as a whole.
    pub fn wipe(self, method: Wipe, spans: &[Span], reporter: &Reporter) -> Result<Stage> {
        match self {
            Stage::Opened(opened) => {
                wipe::wipe(&opened.disk, method, spans, reporter)?;
                Ok(Stage::Opened(opened))
            }
            Stage::OpenedTree(opened) => {
                wipe::wipe(opened.disk(), method, spans, reporter)?;
                Ok(Stage::OpenedTree(opened))
            }
            other => Err(other.out_of_order("wipeDisk")),
        }
    }

    /// Replaces the table by one that lists only what is kept.
    pub fn replace_table(self, first: Copy) -> Result<Stage> {
        match self {
            Stage::Opened(opened) => {
                head::replace_table(&opened.disk, opened.head.layout(), first)?;
                Ok(Stage::Opened(opened))
            }
            Stage::OpenedTree(opened) => {
                head::replace_table(opened.disk(), opened.layout(), first)?;
                Ok(Stage::OpenedTree(opened))
            }
            other => Err(other.out_of_order("replaceTable")),
        }
    }

    /// Zeroes the old content.
    pub fn clear(self, spans: &[Span]) -> Result<Stage> {
        match self {
            Stage::Opened(opened) => {
                head::clear(&opened.disk, spans)?;
                Ok(Stage::Opened(opened))
            }
            Stage::OpenedTree(opened) => {
                head::clear(opened.disk(), spans)?;
                Ok(Stage::OpenedTree(opened))
            }
            other => Err(other.out_of_order("clearDisk")),
        }
    }

    /// Streams the body. With `remember`, what is written can be read back and compared afterwards.
    pub fn write(self, remember: bool, reporter: &Reporter) -> Result<Stage> {
        let Opened {
            disk,
            mut stream,
            first,
            head,
        } = match self {
            Stage::Opened(opened) => *opened,
            other => return Err(other.out_of_order("writeBody")),
        };
        let mut progress = Progress::new("writeBody", reporter);
        let mut at = 0u64;
        let mut next = Some(first);
        let sums = bulk::write(&disk, remember, |sink| {
            while let Some(block) = next.take() {
                disk.must_hold(Bytes(at), block.len())?;
                let length = block.len() as u64;
                let (start, range) = head.body_of(Bytes(at), block.len());
                let piece = Piece {
                    block,
                    range,
                    at: start,
                };
                if !piece.range.is_empty() && !sink.put(piece) {
                    return Err(Failure::new(
                        Class::Bug,
                        "the writers stopped without saying why",
                    ));
                }
                at = at.saturating_add(length);
                progress.tell(&stream, at);
                next = stream.next_block()?;
            }
            Ok(())
        })?;
        progress.tell_end(&stream, at);
        let proof = stream.finish()?;
        layout::must_be_whole(&head.layout().image, Bytes(at))?;
        image_source::tell(&proof, reporter);
        Ok(Stage::Written(Box::new(Written {
            disk,
            head,
            proof,
            sums,
        })))
    }

    /// Reads the body, or the tree, back and compares it with what was written.
    pub fn read_back(self, reporter: &Reporter) -> Result<Stage> {
        match self {
            Stage::Written(mut written) => {
                let sums = std::mem::take(&mut written.sums);
                let read = bulk::read_back(&written.disk, sums)?;
                reporter.info(format!("read back {read}: the disk holds what was written"));
                Ok(Stage::Written(written))
            }
            Stage::Working(mut working) => match working.unpacked.take() {
                Some(unpacked) => {
                    unpacked.read_back(&working.shared, reporter)?;
                    Ok(Stage::Working(working))
                }
                None => Err(Stage::Working(working).out_of_order("readBack")),
            },
            other => Err(other.out_of_order("readBack")),
        }
    }

    /// Makes the kernel know the partitions of the table that is still in memory, so that their content can be
    /// worked on: after the verdict, before the disk can boot. Of what is kept, only the partitions of `also`.
    pub fn open_partitions(self, also: &[u32]) -> Result<Stage> {
        let Written {
            disk,
            mut head,
            proof,
            ..
        } = match self {
            Stage::Written(written) => *written,
            other => return Err(other.out_of_order("openPartitions")),
        };
        // What grows or is added may lie there; afterwards it would be too late.
        let stale = head.layout().stale_backup;
        for span in stale.into_iter().chain(extend::fresh(&head.layout().added)) {
            disk.zero(span)?;
        }
        head.forget_stale_backup();
        let places = places(head.layout(), also);
        Ok(Stage::Working(Box::new(Working {
            shared: Shared::new(disk, &places)?,
            head,
            proof,
            unpacked: None,
        })))
    }

    /// Installs a boot loader: what of it stands in LBA 0 is held back with the head.
    pub fn install_bootloader(
        self,
        install: impl FnOnce(&Working) -> Result<Option<BootCode>>,
    ) -> Result<Stage> {
        match self {
            Stage::Working(mut working) => {
                if let Some(code) = install(&working)? {
                    working.head.set_boot_code(&code)?;
                }
                Ok(Stage::Working(working))
            }
            other => Err(other.out_of_order("installBootloader")),
        }
    }

    /// Does `work` on the partitions.
    pub fn work(self, step: &str, work: impl FnOnce(&Working) -> Result<()>) -> Result<Stage> {
        match self {
            Stage::Working(working) => {
                work(&working)?;
                Ok(Stage::Working(working))
            }
            other => Err(other.out_of_order(step)),
        }
    }

    /// Ends the work on partitions: all of it is on the disk then, and the disk is claimed again.
    pub fn close_partitions(self) -> Result<Stage> {
        let Working {
            shared,
            head,
            proof,
            ..
        } = match self {
            Stage::Working(working) => *working,
            other => return Err(other.out_of_order("closePartitions")),
        };
        Ok(Stage::Written(Box::new(Written {
            disk: shared.claim()?,
            head,
            proof,
            sums: Vec::new(),
        })))
    }

    /// Makes the disk bootable.
    pub fn commit(self, record: Option<&RecordIdentity>) -> Result<Stage> {
        let Written {
            disk, head, proof, ..
        } = match self {
            Stage::Written(written) => *written,
            other => return Err(other.out_of_order("commitHead")),
        };
        let finalized = head.release(proof, &disk, record)?;
        Ok(Stage::Complete(disk, Box::new(finalized)))
    }
}
