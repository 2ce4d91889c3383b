//! GRUB's core, and the boot code that loads it. Pure.
//!
//! On a BIOS machine the code in LBA 0 (`boot.img`) loads the first sector of the core, which loads the others by a
//! list of blocks in it (GRUB sources: include/grub/i386/pc/boot.h, grub-core/boot/i386/pc/{boot,diskboot}.S).

use serde::Serialize;

use crate::image::record;
use crate::units::Bytes;

/// Size of a sector to a BIOS.
const SECTOR: usize = 512;

/// Code comes first in LBA 0; behind it stand disk signature and table.
const CODE: usize = 440;

/// `GRUB_BOOT_MACHINE_KERNEL_SECTOR`: 8 bytes, the sector of the core.
const CORE_SECTOR: usize = 0x5c;

/// `GRUB_BOOT_MACHINE_DRIVE_CHECK`: a jump over the code for a BIOS that tells the wrong drive.
const DRIVE_CHECK: usize = 0x66;
const JUMP: u8 = 0xeb;
const NOP: [u8; 2] = [0x90, 0x90];

/// The first, and for a core that lies in one piece the only, block list: 8 bytes of sector, 2 of length, 2 of
/// segment. It stands at the end of the core's first sector.
const LIST: usize = SECTOR - 12;

/// A core is no smaller than its first sector and something to load, and no larger than what a BIOS boot partition
/// of the usual size has room for.
const LARGEST: usize = 1 << 20;

/// What GRUB is made for, as its directories are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Platform {
    /// BIOS.
    #[serde(rename = "i386-pc")]
    I386Pc,
    /// UEFI, x86.
    #[serde(rename = "x86_64-efi")]
    X8664Efi,
    /// UEFI, 64-bit ARM.
    #[serde(rename = "arm64-efi")]
    Arm64Efi,
}

impl Platform {
    /// The one for a machine; `arch` as `uname -m` has it.
    pub fn of(arch: &str, bios: bool) -> Option<Platform> {
        match (arch, bios) {
            ("x86_64", true) => Some(Platform::I386Pc),
            ("x86_64", false) => Some(Platform::X8664Efi),
            ("aarch64", false) => Some(Platform::Arm64Efi),
            _ => None,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Platform::I386Pc => "i386-pc",
            Platform::X8664Efi => "x86_64-efi",
            Platform::Arm64Efi => "arm64-efi",
        }
    }

    /// Whether UEFI starts it.
    pub const fn is_efi(self) -> bool {
        match self {
            Platform::I386Pc => false,
            Platform::X8664Efi | Platform::Arm64Efi => true,
        }
    }
}

/// The code in front of a table in LBA 0. Only what holds the head back writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootCode {
    code: Box<[u8; CODE]>,
    /// What it loads, where that stands right behind LBA 0.
    core: Vec<u8>,
}

impl BootCode {
    /// As it was read from a file of at most so many bytes; `None` where there are more.
    pub fn read(bytes: &[u8]) -> Option<BootCode> {
        let mut code = Box::new([0; CODE]);
        code.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(BootCode {
            code,
            core: Vec::new(),
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.code.as_slice()
    }

    /// The same, and the core that it loads from the sectors behind LBA 0, in front of the record of the installation.
    ///
    /// # Errors
    /// The core is too long for that.
    pub fn with_core(mut self, core: Vec<u8>) -> Result<BootCode, String> {
        let room = record::OFFSET.saturating_sub(SECTOR as u64);
        if core.len() as u64 > room {
            return Err(format!(
                "the core has {} bytes, and in front of the first partition are {room}",
                core.len()
            ));
        }
        self.core = core;
        Ok(self)
    }

    /// What stands right behind LBA 0.
    pub fn core(&self) -> &[u8] {
        &self.core
    }
}

/// `boot.img` and `core.img` as they stand on a disk whose core begins at byte `at`.
///
/// # Errors
/// Says what is wrong with them.
pub fn place(boot: &[u8], core: &[u8], at: Bytes) -> Result<(BootCode, Vec<u8>), String> {
    let sector = at.0 / SECTOR as u64;
    if boot.len() != SECTOR || boot.get(SECTOR - 2..) != Some(&[0x55, 0xaa]) {
        return Err("boot.img is no boot sector".to_owned());
    }
    if core.len() <= SECTOR || core.len() > LARGEST {
        return Err(format!("the core has {} bytes", core.len()));
    }
    let mut start = boot.to_vec();
    put(&mut start, CORE_SECTOR, &sector.to_le_bytes())?;
    // As for every hard disk (GRUB sources: util/setup.c).
    if start.get(DRIVE_CHECK) == Some(&JUMP) {
        put(&mut start, DRIVE_CHECK, &NOP)?;
    }
    let start = start.get(..CODE).and_then(BootCode::read);
    let start = start.ok_or("boot.img is too short")?;

    let mut core = core.to_vec();
    let rest = core.len().saturating_sub(SECTOR).div_ceil(SECTOR);
    let length = u16::try_from(rest).map_err(|_| "the core is too long")?;
    let next = sector.checked_add(1).ok_or("the disk is too long")?;
    put(&mut core, LIST, &next.to_le_bytes())?;
    put(&mut core, LIST + 8, &length.to_le_bytes())?;
    if core.get(LIST + 10..LIST + 12) == Some(&[0, 0]) {
        return Err("the core does not say where it is loaded".to_owned());
    }
    Ok((start, core))
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) -> Result<(), String> {
    let place = bytes.get_mut(at..at.saturating_add(what.len()));
    place.ok_or("it is too short")?.copy_from_slice(what);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;
    use proptest::prelude::*;

    fn boot() -> Vec<u8> {
        let mut boot = vec![0x11; 512];
        boot[DRIVE_CHECK] = JUMP;
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        boot
    }

    #[test]
    fn the_code_names_the_core_and_the_core_the_rest_of_itself() {
        let mut core = vec![0x22; 512 + 1025];
        core[LIST..512].fill(0);
        core[LIST + 10..512].copy_from_slice(&[0x20, 0x08]);
        let (start, placed) = place(&boot(), &core, Bytes(MIB)).unwrap();
        assert_eq!(start.bytes().len(), 440);
        assert_eq!(start.bytes()[0x5c..0x64], 2048u64.to_le_bytes());
        assert_eq!(start.bytes()[0x64..0x68], [0x11, 0x11, 0x90, 0x90]);
        assert_eq!(placed[500..508], 2049u64.to_le_bytes());
        assert_eq!(placed[508..512], [3, 0, 0x20, 0x08]);
        assert_eq!(placed[512..], core[512..]);
    }

    #[test]
    fn what_is_no_grub_is_refused() {
        let core = vec![0x22; 2048];
        assert!(place(&[0; 512], &core, Bytes(MIB)).is_err());
        assert!(place(&boot()[..100], &core, Bytes(MIB)).is_err());
        assert!(place(&boot(), &core[..512], Bytes(MIB)).is_err());
        assert!(place(&boot(), &vec![0x22; LARGEST + 1], Bytes(MIB)).is_err());
        // No segment.
        assert!(place(&boot(), &vec![0; 2048], Bytes(MIB)).is_err());
        assert!(BootCode::read(&[0; 441]).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_placed_or_refused(boot in proptest::collection::vec(any::<u8>(), 0..600),
            core in proptest::collection::vec(any::<u8>(), 0..2000), at in any::<u64>()) {
            let _ = place(&boot, &core, Bytes(at));
        }
    }
}
