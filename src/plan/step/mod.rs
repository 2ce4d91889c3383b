//! The steps of a plan. Each carries all that it needs: no meaningful choice is left in here.

mod changes;
mod handoff;
mod line;
mod seen;
mod target;

use std::path::PathBuf;

use serde::Serialize;

use super::keep::Copy;
use super::layout::Shape;
use super::memory_root::Room;
use super::preserve::create::NewPartitions;
use super::preserve::{Binding, SourceDevice, Upper};
use super::teardown::Standing;
use super::tree_layout::NewTable;
use super::tree_root::{self, BootWish};
use crate::config::request::preserve::NewFileSystem;
use crate::config::request::{Named, Verity};
use crate::config::wire::{Efi, ImageKind, MemoryMethod, OtherClaim, RecordPolicy, Wipe};
use crate::host::tables::TablePartition;
use crate::host::{DiskTries, RecordIdentity};
use crate::units::{Bytes, Digest};

pub use changes::Changes;
pub use handoff::{Esp, Handoff, Start, Switch};
pub use seen::Seen;
pub use target::{Span, Target, total};

/// One step.
#[derive(Clone, Debug, Serialize)]
#[serde(
    tag = "step",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Step {
    /// Open the target exclusively, check that it is the one that was chosen, and lock it.
    LockDisk {
        /// The target.
        target: Target,
        /// What was seen of it, which must be so still.
        #[serde(skip)]
        seen: Box<Seen>,
    },
    /// Lock the target while something still stands on it, so that nobody builds on it anew meanwhile, and make
    /// sure that nobody uses what stands there.
    LockStack {
        /// The target.
        target: Target,
        /// What was seen of it, which must be so still.
        #[serde(skip)]
        seen: Box<Seen>,
        /// All that will be taken down.
        devices: Vec<Standing>,
    },
    /// Take down a device that stands on the target and that nobody uses.
    TakeDown {
        /// The device.
        device: Standing,
    },
    /// Open the locked target exclusively: nothing stands on it any more.
    ClaimDisk,
    /// Open the image, read its head, and fit it to the disk. Refuses here what cannot work; nothing has
    /// been written yet.
    OpenImage {
        /// Where it is, without secrets.
        locations: Vec<String>,
        /// Digest of the download.
        digest: Option<Digest>,
        /// Digest of the content.
        content_digest: Option<Digest>,
        /// Whether the disk carries a record.
        record: RecordPolicy,
        /// What the table shall be.
        shape: Box<Shape>,
    },
    /// Write the mark of this installation: from now on the disk is ours to finish.
    WriteMark {
        /// Which installation.
        record: RecordIdentity,
    },
    /// Replace the table by one that lists only the kept partitions and boots nothing: LBA 0 first, then one
    /// copy at a time.
    ReplaceTable {
        /// What is kept.
        kept: Vec<TablePartition>,
        /// The copy that goes first.
        first: Copy,
    },
    /// Zero the old boot structures and signatures, LBA 0 first.
    ClearDisk {
        /// What is zeroed, in this order.
        spans: Vec<Span>,
    },
    /// Wipe the disk as a whole, LBA 0 first.
    WipeDisk {
        /// How.
        method: Wipe,
        /// What is wiped, in this order.
        spans: Vec<Span>,
    },
    /// Stream the image behind its head onto the disk.
    WriteBody {
        /// Whether sums are kept for reading back.
        remember: bool,
    },
    /// Read the body, or the tree, back from the disk and compare.
    ReadBack,
    /// Open the image of a tree, read its head, and find out what it is and whether it fits. Nothing has been
    /// written yet.
    OpenTree {
        /// Where it is, without secrets.
        locations: Vec<String>,
        /// Digest of the download.
        digest: Option<Digest>,
        /// Digest of the content.
        content_digest: Option<Digest>,
        /// The table that the disk will have.
        table: NewTable,
        /// The root's file system.
        filesystem: tree_root::NewFileSystemKind,
        /// What it keeps and gets besides.
        shape: Box<Shape>,
        /// Where the tree is the root that is running: what is demanded of it.
        #[serde(skip_serializing_if = "Option::is_none")]
        running: Option<tree_root::RunningRoot>,
    },
    /// Make the kernel know the partitions of that table, which stays in memory.
    MakePartitions {
        /// The table.
        table: NewTable,
        /// Numbers of kept partitions that are opened too.
        kept: Vec<u32>,
    },
    /// Make their file systems.
    MakeFileSystems {
        /// Which.
        filesystems: Vec<tree_root::NewFileSystem>,
    },
    /// Unpack the tree into its partition, and check every proof.
    UnpackTree {
        /// Number of the partition.
        partition: u32,
        /// Whether sums are kept for reading back.
        remember: bool,
        /// It is the root that is running, which nothing proves.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        running: bool,
    },
    /// Make the tree this disk's: /etc/fstab and /etc/machine-id.
    SettleTree {
        /// Number of the partition.
        partition: u32,
        /// PARTUUID of the root.
        root: String,
        /// PARTUUID of the EFI system partition, where there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        esp: Option<String>,
    },
    /// Put what starts the tree's kernel onto the disk.
    InstallBootloader {
        /// What, and with which words.
        wish: BootWish,
    },
    /// Make the kernel know the partitions of the table that is still in memory, so that they can be mounted.
    OpenPartitions {
        /// Numbers of kept partitions that are opened too.
        kept: Vec<u32>,
    },
    /// Change the installed system before it starts for the first time.
    ChangeSystem {
        /// What, without contents, which may be secrets.
        changes: Changes,
    },
    /// Make a file system on a partition that was added.
    MakeFilesystem {
        /// The partition's label.
        label: String,
        /// Which file system.
        filesystem: NewFileSystem,
    },
    /// Grow the file system of the partition that has grown.
    GrowFilesystem {
        /// The partition, as the config names it.
        partition: Named,
    },
    /// Look, while the old system is still there, whether preserved paths can be provided from what is kept.
    LookAtSources {
        /// Where they live: file systems that are there.
        sources: Vec<SourceDevice>,
        /// What they are.
        bindings: Vec<Binding>,
    },
    /// Make preserved paths ready, and have the installed system mount them at each of its boots.
    KeepPaths {
        /// Where they live.
        sources: Vec<SourceDevice>,
        /// What they are, parents first.
        bindings: Vec<Binding>,
    },
    /// End that; all work on them is on the disk.
    ClosePartitions,
    /// The verdict; then backup table, primary table with the record, and LBA 0 at the very end.
    CommitHead {
        /// Which installation; `None` where the disk carries no record.
        record: Option<RecordIdentity>,
    },
    /// Write beside machine ids that their first boot begins: the disk boots, and no installation is made again for it.
    BeginFirstBoot {
        /// Where they live.
        sources: Vec<SourceDevice>,
        /// What they are.
        bindings: Vec<Binding>,
    },
    /// Make the kernel see the new partitions.
    RereadPartitions,
    /// Make the firmware boot this disk next.
    BootEntry {
        /// What the config says.
        efi: Efi,
        /// Name of the entry.
        description: String,
        /// The ESP, where it is known before anything is written (a disk that is installed already).
        esp: Option<Esp>,
        /// PARTUUIDs of the disk's old partitions: entries of ours for these start nothing any more.
        replaced: Vec<String>,
        /// Whether the run fails without it: a machine that only reboots would come back over the network
        /// for ever.
        required: bool,
        /// This try, where they are counted: for a disk that was not written now.
        #[serde(skip_serializing_if = "Option::is_none")]
        tries: Option<DiskTries>,
        /// What is done where the firmware does not take it, instead of failing; [`Step::StartInstalled`].
        #[serde(skip_serializing_if = "Option::is_none")]
        otherwise: Option<Box<Step>>,
    },
    /// Make UEFI firmware boot an entry of its own next, once, and remember that this was tried.
    BootDisk {
        /// The number in `Boot####`.
        number: u16,
        /// What the firmware's menu shows.
        description: String,
        /// This try, and those before.
        tries: DiskTries,
    },
    /// Count that the installed system is started from here.
    CountStart {
        /// This start, and those before.
        tries: DiskTries,
    },
    /// Fail: what was tried so often does not work.
    GiveUp {
        /// What does not.
        reason: String,
    },
    /// Forget that booting from the disk was tried: the machine's next start may try again.
    ForgetDiskBoot,
    /// Open the image of a session, read its head, and find out what it is and whether there is room.
    OpenRoot {
        /// Where it is, without secrets.
        locations: Vec<String>,
        /// Digest of the download.
        digest: Option<Digest>,
        /// Digest of the content.
        content_digest: Option<Digest>,
        /// What the config says it is.
        kind: ImageKind,
        /// How it becomes a root.
        method: MemoryMethod,
        /// The limits.
        room: Room,
    },
    /// Bring the image into memory, kept or unpacked, and check every proof. Nobody can see it before.
    LoadRoot,
    /// Make it a root.
    MountRoot {
        /// Where.
        place: PathBuf,
        /// How the image is proven while it is read.
        verity: Option<Verity>,
        /// Where what is written is kept; `None`: in memory.
        upper: Option<Box<Upper>>,
    },
    /// Make partitions for preserved content on free space of a disk.
    AddPartitions {
        /// Which, and where.
        partitions: Box<NewPartitions>,
    },
    /// Open a device with preserved content, give it a file system where it is blank, check the file system and
    /// mount it.
    OpenSource {
        /// The device.
        source: Box<SourceDevice>,
    },
    /// Attach a preserved path to the root.
    Preserve {
        /// The path.
        binding: Box<Binding>,
    },
    /// A tmpfs of its own at a path of the root.
    Scratch {
        /// The path in the root.
        path: PathBuf,
        /// How much may be written.
        size: Bytes,
        /// How many files.
        inodes: u64,
    },
    /// At a path of a root whose writes are kept: the same content, and what is written stays in memory.
    Volatile {
        /// The path in the root.
        path: PathBuf,
        /// Which of them it is.
        number: usize,
        /// How much may be written.
        size: Bytes,
        /// How many files.
        inodes: u64,
    },
    /// Swap in compressed memory.
    ZramSwap {
        /// How much may be swapped out.
        size: Bytes,
    },
    /// Check that the root can be started.
    CheckRoot {
        /// Where it is.
        place: PathBuf,
        /// The init that is demanded; `None`: the usual ones.
        init: Option<String>,
    },
    /// Start the installed system from here, without the firmware. It is the end where that works.
    StartInstalled {
        /// The disk.
        target: Target,
        /// How.
        start: Start,
        /// Where its root is mounted for that.
        place: PathBuf,
        /// Its init; `None` for the usual places.
        init: Option<String>,
        /// Who switches to it.
        switch: Switch,
        /// Partitions that outlived the installation: what is on them is no part of the system.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        kept: Vec<u32>,
    },
    /// What happens at the end.
    Handoff(Handoff),
}

impl Step {
    /// Stable name, for events and messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Step::LockDisk { .. } => "lockDisk",
            Step::LockStack { .. } => "lockStack",
            Step::TakeDown { .. } => "takeDown",
            Step::ClaimDisk => "claimDisk",
            Step::WipeDisk { .. } => "wipeDisk",
            Step::OpenImage { .. } => "openImage",
            Step::WriteMark { .. } => "writeMark",
            Step::ReplaceTable { .. } => "replaceTable",
            Step::ClearDisk { .. } => "clearDisk",
            Step::WriteBody { .. } => "writeBody",
            Step::ReadBack => "readBack",
            Step::OpenPartitions { .. } => "openPartitions",
            Step::OpenTree { .. } => "openTree",
            Step::MakePartitions { .. } => "makePartitions",
            Step::MakeFileSystems { .. } => "makeFileSystems",
            Step::UnpackTree { .. } => "unpackTree",
            Step::SettleTree { .. } => "settleTree",
            Step::InstallBootloader { .. } => "installBootloader",
            Step::ChangeSystem { .. } => "changeSystem",
            Step::MakeFilesystem { .. } => "makeFilesystem",
            Step::GrowFilesystem { .. } => "growFilesystem",
            Step::LookAtSources { .. } => "lookAtSources",
            Step::KeepPaths { .. } => "keepPaths",
            Step::ClosePartitions => "closePartitions",
            Step::CommitHead { .. } => "commitHead",
            Step::BeginFirstBoot { .. } => "beginFirstBoot",
            Step::RereadPartitions => "rereadPartitions",
            Step::BootEntry { .. } => "bootEntry",
            Step::BootDisk { .. } => "bootDisk",
            Step::ForgetDiskBoot => "forgetDiskBoot",
            Step::CountStart { .. } => "countStart",
            Step::GiveUp { .. } => "giveUp",
            Step::OpenRoot { .. } => "openRoot",
            Step::LoadRoot => "loadRoot",
            Step::MountRoot { .. } => "mountRoot",
            Step::AddPartitions { .. } => "addPartitions",
            Step::OpenSource { .. } => "openSource",
            Step::Preserve { .. } => "preserve",
            Step::Scratch { .. } => "scratch",
            Step::Volatile { .. } => "volatile",
            Step::ZramSwap { .. } => "zramSwap",
            Step::CheckRoot { .. } => "checkRoot",
            Step::StartInstalled { .. } => "startInstalled",
            Step::Handoff(_) => "handoff",
        }
    }

    /// Whether it changes bytes of a disk.
    pub const fn is_destructive(&self) -> bool {
        match self {
            Step::WriteMark { .. }
            | Step::ReplaceTable { .. }
            | Step::ClearDisk { .. }
            | Step::WipeDisk { .. }
            | Step::WriteBody { .. }
            | Step::MakeFileSystems { .. }
            | Step::UnpackTree { .. }
            | Step::SettleTree { .. }
            | Step::InstallBootloader { .. }
            | Step::ChangeSystem { .. }
            | Step::KeepPaths { .. }
            | Step::MakeFilesystem { .. }
            | Step::GrowFilesystem { .. }
            | Step::AddPartitions { .. }
            | Step::CommitHead { .. } => true,
            Step::OpenSource { source } => source.format.is_some(),
            Step::Preserve { binding } => matches!(binding.other_claim, OtherClaim::Erase),
            Step::LockDisk { .. }
            | Step::LockStack { .. }
            | Step::TakeDown { .. }
            | Step::ClaimDisk
            | Step::OpenImage { .. }
            | Step::LookAtSources { .. }
            | Step::ReadBack
            | Step::OpenPartitions { .. }
            | Step::OpenTree { .. }
            | Step::MakePartitions { .. }
            | Step::ClosePartitions
            // One word in a record of ironroot's own.
            | Step::BeginFirstBoot { .. }
            | Step::RereadPartitions
            | Step::BootEntry { .. }
            | Step::BootDisk { .. }
            | Step::ForgetDiskBoot
            | Step::CountStart { .. }
            | Step::GiveUp { .. }
            | Step::OpenRoot { .. }
            | Step::LoadRoot
            | Step::MountRoot { .. }
            | Step::Scratch { .. }
            | Step::Volatile { .. }
            | Step::ZramSwap { .. }
            | Step::CheckRoot { .. }
            | Step::StartInstalled { .. }
            | Step::Handoff(_) => false,
        }
    }

    /// Whether its failure only warns: the system is complete by then (a finished install is never undone).
    pub const fn may_fail(&self) -> bool {
        match self {
            Step::RereadPartitions
            | Step::BeginFirstBoot { .. }
            | Step::ForgetDiskBoot
            | Step::CountStart { .. }
            | Step::ZramSwap { .. }
            | Step::StartInstalled { .. } => true,
            Step::BootEntry { required, .. } => !*required,
            Step::AddPartitions { partitions } => !partitions.required,
            Step::OpenSource { source } => !source.required,
            Step::Preserve { binding } => !binding.required,
            Step::LockDisk { .. }
            | Step::LockStack { .. }
            | Step::TakeDown { .. }
            | Step::ClaimDisk
            | Step::OpenImage { .. }
            | Step::LookAtSources { .. }
            | Step::WriteMark { .. }
            | Step::ReplaceTable { .. }
            | Step::ClearDisk { .. }
            | Step::WipeDisk { .. }
            | Step::WriteBody { .. }
            | Step::ReadBack
            | Step::OpenPartitions { .. }
            | Step::OpenTree { .. }
            | Step::MakePartitions { .. }
            | Step::MakeFileSystems { .. }
            | Step::UnpackTree { .. }
            | Step::SettleTree { .. }
            | Step::InstallBootloader { .. }
            | Step::ChangeSystem { .. }
            | Step::KeepPaths { .. }
            | Step::MakeFilesystem { .. }
            | Step::GrowFilesystem { .. }
            | Step::ClosePartitions
            | Step::CommitHead { .. }
            | Step::BootDisk { .. }
            | Step::GiveUp { .. }
            | Step::OpenRoot { .. }
            | Step::LoadRoot
            | Step::MountRoot { .. }
            | Step::Scratch { .. }
            | Step::Volatile { .. }
            | Step::CheckRoot { .. }
            | Step::Handoff(_) => false,
        }
    }
}
