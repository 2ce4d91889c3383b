//! The steps of a plan. Each carries all that it needs: no meaningful choice is left in here.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::keep::{self, Copy};
use super::layout::Shape;
use super::memory_root::Room;
use super::preserve::{Binding, SourceDevice, Upper};
use super::teardown::Standing;
use super::tree_layout::NewTable;
use super::tree_root::{self, BootWish};
use crate::config::request::preserve::NewFileSystem;
use crate::config::request::{Named, SystemChanges, Verity};
use crate::config::wire::{Efi, ImageKind, MemoryMethod, OtherClaim, RecordPolicy, Wipe};
use crate::error::printable;
use crate::host::tables::TablePartition;
use crate::host::{DevNum, RecordIdentity};
use crate::image::record::DiskIdentity;
use crate::units::{Bytes, Digest, SectorSize};

/// The one device (or file) that will be written.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Device node.
    pub path: PathBuf,
    /// Kernel name; the path for a regular file.
    pub name: String,
    /// Device number; the opened device must have it. `None` for a regular file.
    pub dev: Option<DevNum>,
    /// Size.
    pub size: Bytes,
    /// Logical sector size.
    pub sector: SectorSize,
    /// Serial and WWN, for the log and the record.
    pub identity: DiskIdentity,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.path.display(), self.size.short())?;
        if let Some(serial) = &self.identity.serial {
            write!(f, ", serial {}", printable(serial))?;
        }
        if let Some(wwn) = &self.identity.wwn {
            write!(f, ", wwn {}", printable(wwn))?;
        }
        if let Some(dev) = self.dev {
            write!(f, ", {dev}")?;
        }
        f.write_str(")")
    }
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Span {
    /// First byte.
    pub start: Bytes,
    /// Number of bytes.
    pub length: Bytes,
}

/// What is changed in an installed system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// Kernel arguments that are added.
    pub append: Vec<String>,
    /// Kernel arguments that are taken away.
    pub remove: Vec<String>,
    /// Files that are written.
    pub files: Vec<PathBuf>,
    /// Whether an Ignition config is put in place.
    pub ignition: bool,
}

impl Changes {
    /// The changes, without what may be secret in them.
    pub fn of(changes: &SystemChanges) -> Changes {
        Changes {
            append: changes.arguments.appended().to_vec(),
            remove: changes.arguments.removed().to_vec(),
            files: changes.files.iter().map(|f| f.path.clone()).collect(),
            ignition: changes.ignition.is_some(),
        }
    }
}

impl Changes {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        let Changes {
            append,
            remove,
            files,
            ignition,
        } = self;
        append.is_empty() && remove.is_empty() && files.is_empty() && !ignition
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let arguments = |words: &[String]| printable(&words.join(" "));
        if !self.append.is_empty() {
            parts.push(format!("add kernel arguments {}", arguments(&self.append)));
        }
        if !self.remove.is_empty() {
            parts.push(format!("take away {}", arguments(&self.remove)));
        }
        for path in &self.files {
            parts.push(format!("write {}", printable(&path.display().to_string())));
        }
        if self.ignition {
            parts.push("put the Ignition config in place".to_owned());
        }
        write!(f, "change the installed system: {}", parts.join(", "))
    }
}

/// The number of bytes of all `spans`.
pub fn total(spans: &[Span]) -> Bytes {
    let sum = |sum: u64, span: &Span| sum.saturating_add(span.length.0);
    Bytes(spans.iter().fold(0, sum))
}

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
    },
    /// Lock the target while something still stands on it, so that nobody builds on it anew meanwhile, and make
    /// sure that nobody uses what stands there.
    LockStack {
        /// The target.
        target: Target,
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
    /// Read the body back from the disk and compare.
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
    },
    /// Make the kernel know the partitions of a fresh table, which stays in memory.
    MakePartitions {
        /// The table.
        table: NewTable,
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
    },
    /// Make the tree this disk's: /etc/fstab and /etc/machine-id.
    SettleTree {
        /// Number of the partition.
        partition: u32,
        /// PARTUUID of the root.
        root: String,
        /// PARTUUID of the EFI system partition.
        esp: String,
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
    },
    /// Make UEFI firmware boot an entry of its own next, once, and remember that this was tried.
    BootDisk {
        /// The number in `Boot####`.
        number: u16,
        /// What the firmware's menu shows.
        description: String,
        /// When, in seconds since 1970.
        time: u64,
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

/// How an installed system is started without the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    /// In this kernel; by its own kernel where it has no modules for this one.
    Root,
    /// By its own kernel.
    Kexec,
}

/// Who switches to a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Switch {
    /// Our own PID 1.
    Ours,
    /// The PID 1 of the initrd that we are a helper in.
    Initrds,
}

/// An EFI system partition, as a boot entry names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Esp {
    /// Partition number.
    pub number: u32,
    /// Byte offset.
    pub start: Bytes,
    /// Size.
    pub size: Bytes,
    /// PARTUUID.
    pub partuuid: String,
    /// Logical sector size of the disk.
    pub sector: SectorSize,
}

/// What happens at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(
    tag = "handoff",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Handoff {
    /// Restart the machine.
    Reboot,
    /// Power off.
    PowerOff,
    /// The root is mounted for the initrd's own PID 1, which switches to it.
    Sysroot {
        /// Where.
        root: PathBuf,
    },
    /// Start the kernel that was loaded.
    Kexec,
    /// Stay.
    Park {
        /// Why, for the console.
        reason: String,
    },
    /// Start the system whose root file system is mounted already, in this kernel.
    SwitchRoot {
        /// Where it is mounted.
        root: PathBuf,
        /// Its init, as `init=` names it inside the new root; `None` for the usual places.
        init: Option<String>,
    },
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
            Step::KeepPaths { .. } => "keepPaths",
            Step::ClosePartitions => "closePartitions",
            Step::CommitHead { .. } => "commitHead",
            Step::RereadPartitions => "rereadPartitions",
            Step::BootEntry { .. } => "bootEntry",
            Step::BootDisk { .. } => "bootDisk",
            Step::ForgetDiskBoot => "forgetDiskBoot",
            Step::OpenRoot { .. } => "openRoot",
            Step::LoadRoot => "loadRoot",
            Step::MountRoot { .. } => "mountRoot",
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
            | Step::CommitHead { .. } => true,
            Step::OpenSource { source } => source.format.is_some(),
            Step::Preserve { binding } => matches!(binding.other_claim, OtherClaim::Erase),
            Step::LockDisk { .. }
            | Step::LockStack { .. }
            | Step::TakeDown { .. }
            | Step::ClaimDisk
            | Step::OpenImage { .. }
            | Step::ReadBack
            | Step::OpenPartitions { .. }
            | Step::OpenTree { .. }
            | Step::MakePartitions { .. }
            | Step::ClosePartitions
            | Step::RereadPartitions
            | Step::BootEntry { .. }
            | Step::BootDisk { .. }
            | Step::ForgetDiskBoot
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
            | Step::ForgetDiskBoot
            | Step::ZramSwap { .. }
            | Step::StartInstalled { .. } => true,
            Step::BootEntry { required, .. } => !*required,
            Step::OpenSource { source } => !source.required,
            Step::Preserve { binding } => !binding.required,
            Step::LockDisk { .. }
            | Step::LockStack { .. }
            | Step::TakeDown { .. }
            | Step::ClaimDisk
            | Step::OpenImage { .. }
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

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::LockDisk { target } => write!(f, "lock disk {target}"),
            Step::LockStack { target, devices } => write!(
                f,
                "lock disk {target}, and see that nobody uses the {} that stand on it",
                devices.len()
            ),
            Step::TakeDown { device } => {
                let (what, name) = (printable(&device.what), printable(&device.device));
                if device.dev == DevNum::default() {
                    return write!(f, "take down {what} ({name})");
                }
                write!(f, "take down {what} ({name}, {})", device.dev)
            }
            Step::ClaimDisk => f.write_str("claim the disk, on which nothing stands any more"),
            Step::WipeDisk { method, spans } => write!(
                f,
                "ERASE {} of the disk by {}",
                total(spans).short(),
                match method {
                    Wipe::Discard => "discarding",
                    Wipe::Zero => "zeroing",
                    Wipe::Signatures => "its signatures",
                }
            ),
            Step::OpenImage {
                locations,
                digest,
                content_digest,
                ..
            }
            | Step::OpenRoot {
                locations,
                digest,
                content_digest,
                ..
            }
            | Step::OpenTree {
                locations,
                digest,
                content_digest,
                ..
            } => {
                write!(f, "open image {}", locations.join(", then "))?;
                match (digest, content_digest) {
                    (Some(digest), _) => write!(f, " ({digest})"),
                    (None, Some(digest)) => write!(f, " (content {digest})"),
                    (None, None) => f.write_str(" (no digest)"),
                }?;
                let changes = match self {
                    Step::OpenImage { shape, .. } => shape.changes(),
                    _ => Vec::new(),
                };
                match changes.as_slice() {
                    [] => Ok(()),
                    all => write!(f, "; in its table: {}", all.join(", ")),
                }
            }
            Step::WriteMark { .. } => f.write_str("ERASE begins: mark the disk as being installed"),
            Step::ReplaceTable { kept, .. } => {
                let kept: Vec<String> = kept.iter().map(keep::describe).collect();
                write!(
                    f,
                    "ERASE the partition table but for what is kept: {}",
                    kept.join("; ")
                )
            }
            Step::ClearDisk { spans } => {
                write!(
                    f,
                    "ERASE {} old boot structures and signatures ({})",
                    spans.len(),
                    total(spans).short()
                )
            }
            Step::WriteBody { .. } => {
                f.write_str("ERASE the disk with the image, its first MiB held back")
            }
            Step::ReadBack => f.write_str("read back what was written and compare"),
            Step::OpenPartitions { kept } => {
                f.write_str("open the partitions that were written")?;
                for (i, number) in kept.iter().enumerate() {
                    write!(
                        f,
                        "{}{number}",
                        if i == 0 {
                            ", and of those that are kept "
                        } else {
                            ", "
                        }
                    )?;
                }
                Ok(())
            }
            Step::MakePartitions { table } => {
                f.write_str("partitions of a new table, in memory only:")?;
                for (i, p) in table.partitions.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma} {} {} ({})", p.number, p.label, p.size.short())?;
                }
                Ok(())
            }
            Step::MakeFileSystems { filesystems } => {
                let all: Vec<String> = filesystems.iter().map(ToString::to_string).collect();
                write!(f, "ERASE: make {}", all.join(", "))
            }
            Step::UnpackTree { partition } => write!(
                f,
                "unpack the tree into partition {partition} and check every proof"
            ),
            Step::SettleTree { .. } => f.write_str("write /etc/fstab and empty /etc/machine-id"),
            Step::InstallBootloader { wish } => write!(f, "{wish}"),
            Step::ChangeSystem { changes } => write!(f, "{changes}"),
            Step::MakeFilesystem { label, filesystem } => write!(
                f,
                "make {} on the added partition {label:?}",
                filesystem.name()
            ),
            Step::GrowFilesystem { partition } => {
                write!(f, "grow the file system of partition {partition}")
            }
            Step::KeepPaths { sources, bindings } => {
                f.write_str("in the installed system and its fstab:")?;
                for source in sources {
                    match (source.format, &source.on_target) {
                        (Some(fs), _) => write!(f, " ERASE: make {} on ", fs.name())?,
                        (None, _) => f.write_str(" open ")?,
                    }
                    match &source.on_target {
                        Some(_) => write!(f, "{}", source.name)?,
                        None => write!(f, "{source}")?,
                    }
                    write!(f, ", as source {} ({});", source.number, source.wanted)?;
                }
                for (i, binding) in bindings.iter().enumerate() {
                    write!(f, "{} {binding}", if i == 0 { "" } else { ";" })?;
                }
                Ok(())
            }
            Step::ClosePartitions => f.write_str("close the partitions and flush them"),
            Step::CommitHead { record } => write!(
                f,
                "check every proof; then write the backup table, the table{} and LBA 0",
                if record.is_some() {
                    " with the record"
                } else {
                    ""
                }
            ),
            Step::RereadPartitions => f.write_str("make the kernel see the new partitions"),
            Step::BootEntry {
                efi, description, ..
            } => {
                write!(
                    f,
                    "UEFI:{}",
                    if efi.entry {
                        format!(" entry {description:?}")
                    } else {
                        String::new()
                    }
                )?;
                f.write_str(if efi.boot_next { ", boot it next" } else { "" })
            }
            Step::BootDisk {
                number,
                description,
                ..
            } => write!(
                f,
                "UEFI: boot entry Boot{number:04X} {:?} next, once",
                printable(description)
            ),
            Step::ForgetDiskBoot => f.write_str("UEFI: forget that the disk was tried"),
            Step::LoadRoot => f.write_str("bring it into memory and check every proof"),
            Step::MountRoot {
                place,
                verity,
                upper,
            } => {
                write!(f, "make it the root at {}", place.display())?;
                if verity.is_some() {
                    f.write_str(", every block proven when it is read")?;
                }
                match upper {
                    Some(upper) => write!(f, ", what is written on {upper}"),
                    None => Ok(()),
                }
            }
            Step::OpenSource { source } => {
                match source.format {
                    Some(fs) => write!(f, "ERASE: make {} on {source}, which is blank", fs.name())?,
                    None => write!(f, "open {source}, {}", source.filesystem)?,
                }
                write!(f, ", as source {} ({})", source.number, source.wanted)
            }
            Step::Preserve { binding } => write!(f, "{binding}"),
            Step::Scratch { path, size, .. } => {
                write!(f, "a tmpfs at {} ({})", path.display(), size.short())
            }
            Step::Volatile { path, size, .. } => write!(
                f,
                "what is written below {} stays in memory ({})",
                path.display(),
                size.short()
            ),
            Step::ZramSwap { size } => write!(f, "swap in compressed memory ({})", size.short()),
            Step::CheckRoot { init, .. } => write!(
                f,
                "check that the root can be started{}",
                init.as_ref()
                    .map(|i| format!(" with {}", printable(i)))
                    .unwrap_or_default()
            ),
            Step::StartInstalled { target, start, .. } => write!(
                f,
                "start the system on {} {}",
                target.path.display(),
                match start {
                    Start::Root =>
                        "in this kernel, or by its own where it has no modules for this one",
                    Start::Kexec => "by its own kernel",
                }
            ),
            Step::Handoff(Handoff::Kexec) => f.write_str("start the kernel that was loaded"),
            Step::Handoff(Handoff::Reboot) => f.write_str("reboot"),
            Step::Handoff(Handoff::PowerOff) => f.write_str("power off"),
            Step::Handoff(Handoff::Sysroot { root }) => {
                write!(f, "leave the root at {} to the initrd", root.display())
            }
            Step::Handoff(Handoff::Park { reason }) => write!(f, "park: {reason}"),
            Step::Handoff(Handoff::SwitchRoot { root, init }) => {
                write!(f, "start the system in {}", root.display())?;
                match init {
                    Some(init) => write!(f, ", init {}", printable(init)),
                    None => Ok(()),
                }
            }
        }
    }
}
