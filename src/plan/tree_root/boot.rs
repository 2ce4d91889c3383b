//! Who starts the kernel of a tree on this machine.

use serde::Serialize;

use crate::config::wire::{Bootloader, TableKind};
use crate::error::printable;
use crate::host::{Firmware, Machine};
use crate::image::boot::arguments::Edit;
use crate::image::boot::grub_core::Platform;
use crate::plan::disk_root::default_loader;
use crate::plan::refusal::Refusal;
use crate::plan::step::Target;
use crate::plan::tree_layout;
use crate::units::SectorSize;

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

/// Refuses an MBR where nothing would boot from it.
pub(super) fn may_have_this_table(
    kind: TableKind,
    machine: &Machine,
    target: &Target,
) -> Result<(), Refusal> {
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
pub(super) fn loader(
    asked: Bootloader,
    machine: &Machine,
) -> Result<(Bootloader, Option<Platform>), Refusal> {
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
