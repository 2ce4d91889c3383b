//! A tree of files becomes a bootable disk: the steps, and, once the image's head has been read, what it is and
//! whether there is room.

mod boot;
mod image;

use serde::Serialize;

use super::disk_root::{self, default_loader};
use super::keep;
use super::layout::Shape;
use super::memory_root;
use super::refusal::Refusal;
use super::step::{Changes, Step, Target};
use super::{clear, tree_layout};
use crate::config::quantity::SizeText;
use crate::config::request::{self, Addition, DiskInstall, tree};
use crate::config::wire::{Bootloader, ImageKind, TableKind};
use crate::host::{Disk, Facts, Place, RecordIdentity};
use crate::image::boot::grub_core::Platform;
use crate::units::{Bytes, MIB, SectorSize};
use boot::{loader, may_have_this_table};
use tree_layout::{Guids, NewTable, Wanted};

pub use boot::BootWish;
pub use image::{TreeImage, adopt, adopt_running, identify, instead_of_a_disk};

/// A file system that is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewFileSystem {
    /// Number of the partition.
    pub partition: u32,
    /// Which.
    pub kind: NewFileSystemKind,
    /// Its label.
    pub label: &'static str,
    /// Its UUID; of a FAT, the first 32 bits of it.
    pub uuid: String,
}

/// Which file system is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NewFileSystemKind {
    /// FAT, of an EFI system partition.
    Fat,
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
}

/// What is demanded of the root that is running, where it becomes that of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningRoot {
    /// A kernel for the boot loader.
    pub needs_kernel: bool,
}

/// A smaller xfs is made by no recent mkfs.xfs (mkfs.xfs(8), since xfsprogs 5.19).
const XFS_LEAST: Bytes = Bytes(300 * MIB);

impl std::fmt::Display for NewFileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            NewFileSystemKind::Fat => "FAT",
            NewFileSystemKind::Ext4 => "ext4",
            NewFileSystemKind::Xfs => "xfs",
        };
        write!(f, "{kind} {:?} on partition {}", self.label, self.partition)
    }
}

/// What the disk keeps and gets besides the tree.
#[derive(Debug)]
pub(super) struct Beside<'a> {
    /// What stays, and what is added.
    pub shape: &'a Shape,
    /// The copy of the old table that goes first.
    pub first: keep::Copy,
    /// What the config says of the root.
    pub root: RootWish,
    /// The step that provides paths which last.
    pub keep_paths: Option<Step>,
    /// The step that looks, before the first write, whether they can be provided.
    pub look_ahead: Option<Step>,
    /// Numbers of kept partitions that it needs.
    pub open: Vec<u32>,
}

/// What a config says of the root's partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RootWish {
    /// Its size.
    size: Option<SizeText>,
    /// Its file system.
    filesystem: Option<request::preserve::NewFileSystem>,
}

/// Takes the root out of the partitions that are wanted.
pub(super) fn root_of(add: &mut Vec<Addition>) -> RootWish {
    let at = add.iter().position(|a| a.label == tree_layout::ROOT_LABEL);
    let root = at.map(|at| add.remove(at));
    RootWish {
        size: root.as_ref().map(|root| root.size),
        filesystem: root.and_then(|root| root.filesystem),
    }
}

/// The file system of the root in `table`.
fn root_filesystem(
    root: RootWish,
    target: &Target,
    table: &NewTable,
) -> Result<NewFileSystemKind, Refusal> {
    use request::preserve::NewFileSystem as Made;
    let have = table.root().map_or(Bytes::ZERO, |p| p.size);
    match root.filesystem {
        None | Some(Made::Ext4) => Ok(NewFileSystemKind::Ext4),
        Some(Made::Xfs) if have >= XFS_LEAST => Ok(NewFileSystemKind::Xfs),
        Some(Made::Xfs) => Err(Refusal::TooSmall {
            disk: target.name.clone(),
            what: format!("a root on xfs, which has {have}"),
            need: Bytes(
                target
                    .size
                    .0
                    .saturating_add(XFS_LEAST.0.saturating_sub(have.0)),
            ),
            have: target.size,
        }),
        Some(Made::Vfat) => Err(Refusal::NotATree {
            why: tree::NO_ROOT_ON_FAT.to_owned(),
        }),
    }
}

/// The steps between the lock and the commit of a disk whose root is unpacked from a tree.
pub(super) fn steps(
    install: &DiskInstall,
    facts: &Facts,
    (disk, target): (&Disk, &Target),
    record: RecordIdentity,
    beside: Beside<'_>,
) -> Result<Vec<Step>, Refusal> {
    sense_for_a_tree(install)?;
    let image = &install.image;
    if image.running && facts.place != Place::Running {
        return Err(Refusal::NotRunning);
    }
    let arch = &facts.machine.arch;
    let (bootloader, platform) = loader(install.tree.bootloader, &facts.machine)?;
    if bootloader == Bootloader::Uki
        && facts.machine.secure_boot
        && !install.changes.arguments.is_empty()
    {
        return Err(Refusal::CannotBoot {
            why: "with Secure Boot the addon that adds `disk.kernelArguments` to a unified kernel image would have to be signed".to_owned(),
            next: "put the words into the image, or use `disk.bootloader`: SystemdBoot",
        });
    }
    let on_bios = platform == Some(Platform::I386Pc);
    if on_bios && target.sector != SectorSize::S512 {
        return Err(Refusal::CannotBoot {
            why: "no BIOS boots a disk with sectors of 4096 bytes".to_owned(),
            next: "use a disk with sectors of 512 bytes, or UEFI",
        });
    }
    let kind = install.tree.table;
    may_have_this_table(kind, &facts.machine, target)?;
    let mut guids = Guids::of(&facts.seed);
    let Beside {
        shape,
        first,
        root: root_wish,
        look_ahead,
        keep_paths,
        open,
    } = beside;
    let wanted = Wanted {
        root_type: memory_root::identify::root_guid(arch),
        root_size: root_wish.size,
        bios_boot: on_bios && kind == TableKind::Gpt,
        add: &shape.add,
        kept: &shape.kept,
    };
    let (table, esp) = match kind {
        TableKind::Gpt => {
            let table = tree_layout::partitions(target, arch, &wanted, &guids)?;
            (table, Some(guids.esp.clone()))
        }
        TableKind::Mbr => {
            let signature = tree_layout::mbr::signature(&facts.seed);
            guids.root = tree_layout::mbr::partuuid(signature);
            let table = tree_layout::mbr::partitions(target, arch, &wanted, signature)?;
            (table, None)
        }
    };
    let root = tree_layout::root(kind);
    let filesystem = root_filesystem(root_wish, target, &table)?;
    let running = image.running.then_some(RunningRoot {
        needs_kernel: match bootloader {
            Bootloader::Auto | Bootloader::Uki | Bootloader::SystemdBoot | Bootloader::Grub => true,
            // It may bring one.
            Bootloader::ImageScript | Bootloader::None => false,
        },
    });
    // The kernel's words go into what is made, not into what is there.
    let changes = Changes {
        append: Vec::new(),
        remove: Vec::new(),
        ..Changes::of(&install.changes)
    };
    let mut steps = vec![Step::OpenTree {
        locations: if image.running {
            vec![request::RUNNING.to_owned()]
        } else {
            image.locations.iter().map(ToString::to_string).collect()
        },
        digest: image.digest.clone(),
        content_digest: image.content_digest.clone(),
        table: table.clone(),
        filesystem,
        shape: Box::new(shape.clone()),
        running,
    }];
    steps.extend(look_ahead);
    steps.push(Step::WriteMark { record });
    if !shape.kept.is_empty() {
        steps.push(Step::ReplaceTable {
            kept: shape.kept.clone(),
            first,
        });
    }
    let spared = clear::spared(disk, &shape.kept);
    steps.extend(disk_root::erase(disk, install.wipe, &spared));
    let fat = esp.clone().map(|uuid| NewFileSystem {
        partition: tree_layout::ESP,
        kind: NewFileSystemKind::Fat,
        label: "ESP",
        uuid,
    });
    let own = NewFileSystem {
        partition: root,
        kind: filesystem,
        label: "root",
        uuid: guids.filesystem,
    };
    steps.extend([
        Step::MakePartitions { table, kept: open },
        Step::MakeFileSystems {
            filesystems: fat.into_iter().chain([own]).collect(),
        },
        Step::UnpackTree {
            partition: root,
            remember: image.verify_disk,
            running: image.running,
        },
    ]);
    steps.extend(image.verify_disk.then_some(Step::ReadBack));
    steps.push(Step::SettleTree {
        partition: root,
        root: guids.root.clone(),
        esp: esp.clone(),
    });
    steps.extend(shape.add.iter().filter_map(|added| {
        Some(Step::MakeFilesystem {
            label: added.label.clone(),
            filesystem: added.filesystem?,
        })
    }));
    if !changes.is_empty() {
        steps.push(Step::ChangeSystem { changes });
    }
    steps.extend(keep_paths);
    steps.extend([
        Step::InstallBootloader {
            wish: BootWish {
                bootloader,
                arguments: install.changes.arguments.clone(),
                root: guids.root,
                esp,
                table: kind,
                platform,
                secure_boot: facts.machine.secure_boot,
                fallback: default_loader(arch).map(str::to_owned),
            },
        },
        Step::ClosePartitions,
    ]);
    Ok(steps)
}

/// Refuses what makes no sense with a tree, also where only the image's head told that it is one.
fn sense_for_a_tree(install: &DiskInstall) -> Result<(), Refusal> {
    let wrong = |grow| tree::wrong_to_grow(grow, install.tree.table, &install.partitions);
    if let Some(why) = install.grow.as_ref().and_then(wrong) {
        return Err(Refusal::NotATree {
            why: format!("`disk.grow`: {why}"),
        });
    }
    let files = &install.changes.files;
    match files.iter().find(|file| tree::is_on_esp(&file.path)) {
        None => Ok(()),
        Some(file) => Err(Refusal::NotATree {
            why: format!(
                "`disk.files` names {}, and {}",
                file.path.display(),
                tree::ESP_IS_THE_LOADERS
            ),
        }),
    }
}

/// What the operator should know of an image that nothing proves.
pub(super) fn note(install: &DiskInstall) -> Option<String> {
    install.image.running.then(|| {
        "the image is the root that is running: nothing can prove it, and each file is copied as it is at that moment; stop what writes to it first".to_owned()
    })
}

/// Whether the kind of image asks for these steps.
pub(super) fn is_wanted(install: &DiskInstall) -> bool {
    install.image.kind == ImageKind::Tree
}
