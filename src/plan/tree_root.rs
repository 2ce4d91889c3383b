//! A tree of files becomes a bootable disk: the steps, and, once the image's head has been read, what it is and
//! whether there is room.

use serde::Serialize;

use super::disk_root::{self, default_loader};
use super::keep;
use super::layout::Shape;
use super::memory_root::{self, Lengths};
use super::refusal::Refusal;
use super::step::{Changes, Step, Target};
use super::{clear, tree_layout};
use crate::config::quantity::SizeText;
use crate::config::request::{self, Addition, DiskInstall, tree};
use crate::config::wire::{Bootloader, ImageKind, TableKind};
use crate::error::printable;
use crate::host::tables::{self, Table};
use crate::host::{Disk, Facts, Firmware, Machine, Place, RecordIdentity};
use crate::image::boot::arguments::Edit;
use crate::image::boot::grub_core::Platform;
use crate::image::superblock::{self, FileSystem};
use crate::units::{Bytes, MIB, SectorSize};
use tree_layout::{Guids, NewTable, Wanted};

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

/// Who will start the kernel of a tree, and with what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootWish {
    /// Which boot loader.
    pub bootloader: Bootloader,
    /// How the kernel's words differ from those that the tree brings.
    pub arguments: Edit,
    /// PARTUUID of the root.
    pub root: String,
    /// PARTUUID of the EFI system partition, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub esp: Option<String>,
    /// The kind of the table.
    #[serde(skip_serializing_if = "tree_layout::is_gpt")]
    pub table: TableKind,
    /// What GRUB or the tree's own script is made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Whether firmware starts only what is signed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub secure_boot: bool,
    /// The name under which firmware finds a boot program on a disk without entries; `None` where it is not known
    /// for this architecture.
    pub fallback: Option<String>,
}

impl BootWish {
    /// Whether programs of the tree are run for it, as far as is known before the tree is there.
    pub const fn runs_the_trees_programs(&self) -> bool {
        match self.bootloader {
            Bootloader::Grub | Bootloader::ImageScript => true,
            Bootloader::Auto | Bootloader::Uki | Bootloader::SystemdBoot | Bootloader::None => {
                false
            }
        }
    }
}

impl std::fmt::Display for BootWish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.bootloader {
            Bootloader::Auto => {
                "install what starts the tree's kernel: its unified kernel image, or systemd-boot"
            }
            Bootloader::Uki => "install the tree's unified kernel image",
            Bootloader::SystemdBoot => "install systemd-boot, the tree's kernel and initrd",
            Bootloader::Grub => {
                f.write_str("install the tree's GRUB for ")?;
                self.platform.map_or("this machine", Platform::name)
            }
            Bootloader::ImageScript => "run the tree's own script, which installs a boot loader",
            Bootloader::None => return f.write_str("install no boot loader"),
        };
        f.write_str(what)?;
        let words = self.arguments.appended();
        if !words.is_empty() {
            write!(f, ", with {}", printable(&words.join(" ")))?;
        }
        Ok(())
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

/// Refuses an MBR where nothing would boot from it.
fn may_have_this_table(kind: TableKind, machine: &Machine, target: &Target) -> Result<(), Refusal> {
    let next = "leave `disk.table` out: a GPT is what it gets then";
    if kind == TableKind::Gpt {
        return Ok(());
    }
    let why = if machine.firmware != Firmware::Bios {
        "`disk.table`: mbr is for machines that boot by BIOS, and this one boots by UEFI"
    } else if target.sector != SectorSize::S512 {
        "an MBR is for sectors of 512 bytes, and this disk has others"
    } else {
        return Ok(());
    };
    Err(Refusal::CannotBoot {
        why: why.to_owned(),
        next,
    })
}

/// Who starts the kernel on this machine, and what GRUB is made for, where it is GRUB. Refuses what is known to fail
/// before the tree is looked at.
fn loader(asked: Bootloader, machine: &Machine) -> Result<(Bootloader, Option<Platform>), Refusal> {
    let bios = machine.firmware == Firmware::Bios;
    let known_to_uefi = || match default_loader(&machine.arch) {
        Some(_) => Ok(()),
        None => Err(Refusal::CannotBoot {
            why: format!(
                "the name of UEFI's boot program for {} is not known",
                machine.arch
            ),
            next: "use a disk image",
        }),
    };
    match asked {
        Bootloader::Uki | Bootloader::SystemdBoot => {}
        Bootloader::Auto if !bios => {}
        Bootloader::None => return Ok((asked, None)),
        // A script that installs GRUB needs the same partition.
        Bootloader::ImageScript => return Ok((asked, Platform::of(&machine.arch, bios))),
        // Of the boot loaders that come with a tree it is the one for BIOS.
        Bootloader::Auto | Bootloader::Grub => {
            if !bios {
                known_to_uefi()?;
            }
            return match Platform::of(&machine.arch, bios) {
                Some(platform) => Ok((Bootloader::Grub, Some(platform))),
                None => Err(Refusal::CannotBoot {
                    why: format!(
                        "which GRUB starts a machine of architecture {} with this firmware is not known",
                        machine.arch
                    ),
                    next: "use a disk image, or another `disk.bootloader`",
                }),
            };
        }
    }
    known_to_uefi()?;
    Ok((asked, None))
}

/// What a tree is, by its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeImage {
    /// A file system, which is mounted and copied.
    FileSystem(FileSystem),
    /// A tar archive, which is unpacked while it comes.
    Tar,
}

impl std::fmt::Display for TreeImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TreeImage::FileSystem(fs) => write!(f, "{fs}"),
            TreeImage::Tar => f.write_str("a tar archive"),
        }
    }
}

/// Whether an image that begins with `head` is a tree.
pub fn identify(head: &[u8]) -> Option<TreeImage> {
    match superblock::of(head) {
        Some(fs) => Some(TreeImage::FileSystem(fs)),
        None => memory_root::identify::is_tar(head).then_some(TreeImage::Tar),
    }
}

/// What an image that begins with `head` is, where it is no disk but a tree. `several`: it comes in layers.
pub fn instead_of_a_disk(head: &[u8], several: bool) -> Option<String> {
    let table = tables::read(
        &mut std::io::Cursor::new(head),
        Bytes(u64::MAX >> 1),
        SectorSize::S512,
    );
    match identify(head) {
        // A file system that is made to be written to may be anything's first partition.
        Some(TreeImage::FileSystem(FileSystem::Other { .. })) => None,
        Some(image) if table == Table::None => Some(image.to_string()),
        Some(_) | None if several => Some("an image in layers".to_owned()),
        Some(_) | None => None,
    }
}

/// What the tree is that begins with `head`, and the least that it must have to be whole. Fails before anything is
/// written, where it does not fit.
pub fn adopt(
    head: &[u8],
    lengths: Lengths,
    target: &Target,
    table: &NewTable,
) -> Result<(TreeImage, Bytes), Refusal> {
    let Some(image) = identify(head) else {
        return Err(Refusal::NotATree {
            why: "it begins with no file system and no tar archive".to_owned(),
        });
    };
    let own = match &image {
        TreeImage::FileSystem(fs) => fs.length().unwrap_or_default(),
        TreeImage::Tar => Bytes::ZERO,
    };
    if let Some(exact) = lengths.exact.filter(|exact| own > *exact) {
        return Err(Refusal::NotATree {
            why: format!(
                "it is cut short: {image} of {} bytes, and it has {}",
                own.0, exact.0
            ),
        });
    }
    let content = lengths
        .exact
        .or(lengths.declared)
        .unwrap_or_default()
        .max(lengths.at_least)
        .max(own);
    let sure = match &image {
        // The image lies beside what is copied out of it, which is no shorter.
        TreeImage::FileSystem(FileSystem::Squashfs { .. } | FileSystem::Erofs { .. }) => {
            content.0.saturating_mul(2)
        }
        // Mostly holes, perhaps.
        TreeImage::FileSystem(FileSystem::Other { .. }) => 0,
        TreeImage::Tar => content.0,
    };
    fits(sure, &format!("unpacked from {image}"), target, table)?;
    Ok((image, own))
}

/// What the operator should know of an image that nothing proves.
pub(super) fn note(install: &DiskInstall) -> Option<String> {
    install.image.running.then(|| {
        "the image is the root that is running: nothing can prove it, and each file is copied as it is at that moment; stop what writes to it first".to_owned()
    })
}

/// Whether there is room for the root that is running. Fails before anything is written, where there is not.
pub fn adopt_running(size: Bytes, target: &Target, table: &NewTable) -> Result<(), Refusal> {
    fits(size.0, "copied from the one that is running", target, table)
}

fn fits(sure: u64, from: &str, target: &Target, table: &NewTable) -> Result<(), Refusal> {
    let root = table.root().map_or(Bytes::ZERO, |p| p.size);
    if sure <= root.0 {
        return Ok(());
    }
    let beside = target.size.0.saturating_sub(root.0);
    let esp = match table.kind {
        TableKind::Gpt => ", with the EFI system partition",
        TableKind::Mbr => "",
    };
    Err(Refusal::TooSmall {
        disk: target.name.clone(),
        what: format!("the root, {from}{esp}"),
        need: Bytes(sure.saturating_add(beside)),
        have: target.size,
    })
}

/// Whether the kind of image asks for these steps.
pub(super) fn is_wanted(install: &DiskInstall) -> bool {
    install.image.kind == ImageKind::Tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::seed::Seed;
    use crate::image::record::DiskIdentity;

    fn fits(head: &[u8], lengths: Lengths, mib: u64) -> Result<(TreeImage, Bytes), Refusal> {
        let target = Target {
            path: "/dev/x".into(),
            name: "x".to_owned(),
            dev: None,
            size: Bytes(mib * MIB),
            sector: SectorSize::S512,
            identity: DiskIdentity::default(),
        };
        let guids = Guids::of(&Seed::default());
        let table = tree_layout::partitions(&target, "x86_64", &Wanted::default(), &guids)?;
        adopt(head, lengths, &target, &table)
    }

    fn squashfs(length: u64) -> Vec<u8> {
        let mut head = vec![0; 4096];
        head[..4].copy_from_slice(b"hsqs");
        head[40..48].copy_from_slice(&length.to_le_bytes());
        head
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let lengths = Lengths::default();
        // The root of a disk of 512 MiB has 446.
        assert!(fits(&squashfs(223 * MIB), lengths, 512).is_ok());
        let refusal = fits(&squashfs(224 * MIB), lengths, 512).unwrap_err();
        let text = refusal.to_string();
        assert!(
            text.contains("needs 514.0 MiB") && text.contains("has 512.0 MiB"),
            "{text}"
        );
        let declared = Lengths {
            declared: Some(Bytes(1 << 40)),
            ..lengths
        };
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(fits(&tar, lengths, 512), Ok((TreeImage::Tar, Bytes(0))));
        assert!(matches!(
            fits(&tar, declared, 512),
            Err(Refusal::TooSmall { .. })
        ));
    }

    #[test]
    fn a_tree_is_told_from_a_disk() {
        let mut tar = vec![0; 1 << 20];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(
            instead_of_a_disk(&tar, false).as_deref(),
            Some("a tar archive")
        );
        assert_eq!(
            instead_of_a_disk(&squashfs(1), false).as_deref(),
            Some("squashfs")
        );
        assert_eq!(instead_of_a_disk(b"<html>", false), None);
        assert!(instead_of_a_disk(&squashfs(1), true).is_some());
        // A boot sector with a partition counts, whatever else is there.
        tar[510..512].copy_from_slice(&[0x55, 0xaa]);
        tar[446 + 4] = 0x83;
        tar[446 + 8] = 1;
        tar[446 + 12] = 100;
        assert_eq!(instead_of_a_disk(&tar, false), None);
    }

    #[test]
    fn what_is_no_tree_and_what_is_cut_short_is_refused() {
        let lengths = Lengths::default();
        for head in [&b"<html>"[..], &[0; 4096]] {
            assert!(matches!(
                fits(head, lengths, 512),
                Err(Refusal::NotATree { .. })
            ));
        }
        let exact = Lengths {
            exact: Some(Bytes(MIB)),
            ..lengths
        };
        let refusal = fits(&squashfs(2 * MIB), exact, 512).unwrap_err();
        assert!(refusal.to_string().contains("cut short"), "{refusal}");
    }
}
