//! The fresh MBR of a disk whose root is unpacked from a tree, for BIOS machines: the root, active, and room in front
//! of it for a boot loader's core.

use super::{NewPartition, NewTable, ROOT_LABEL, ROOT_LEAST, Wanted, root_length};
use crate::config::wire::TableKind;
use crate::host::seed::Seed;
use crate::plan::layout::mbr::{self, Primary};
use crate::plan::layout::space::align_down;
use crate::plan::refusal::Refusal;
use crate::plan::step::Target;
use crate::units::{Bytes, MIB};

/// Number of the root partition.
pub const ROOT: u32 = 1;

/// Linux.
const LINUX: &str = "83";
const LINUX_BYTE: u8 = 0x83;

/// Where in LBA 0 the disk signature is.
const SIGNATURE: usize = 440;

/// The disk signature that `seed` gives; no disk has zero.
pub fn signature(seed: &Seed) -> u32 {
    let (signature, ..) = seed.guid("tree disk signature").as_fields();
    signature.max(1)
}

/// PARTUUID of the root, as Linux makes it (block/partitions/msdos.c).
pub fn partuuid(signature: u32) -> String {
    format!("{signature:08x}-{ROOT:02x}")
}

/// Where the root is.
pub fn partitions(
    target: &Target,
    arch: &str,
    wanted: &Wanted<'_>,
    signature: u32,
) -> Result<NewTable, Refusal> {
    let least = ROOT_LEAST.saturating_add(MIB);
    if target.size.0 < least {
        return Err(Refusal::TooSmall {
            disk: target.name.clone(),
            what: format!("a root for {arch}"),
            need: Bytes(least),
            have: target.size,
        });
    }
    let reach = align_down(mbr::reach(target));
    let root = root_length(target, MIB, (reach, wanted))?;
    // What takes the rest of a larger disk would not get it.
    if target.size.0 > mbr::reach(target) && wanted.takes_the_rest() {
        return Err(Refusal::Partitions {
            what: format!(
                "an MBR reaches no further than {}, and {} has {}",
                Bytes(mbr::reach(target)),
                target.name,
                target.size
            ),
            next: "leave `disk.table` out, or give the root (a partition with the label `root`) and all others a size",
        });
    }
    Ok(NewTable {
        kind: TableKind::Mbr,
        disk_guid: String::new(),
        signature: Some(format!("{signature:08x}")),
        partitions: vec![NewPartition {
            number: ROOT,
            label: ROOT_LABEL,
            kind: LINUX,
            partuuid: partuuid(signature),
            start: Bytes(MIB),
            size: Bytes(root),
        }],
    })
}

/// LBA 0, without boot code.
pub(super) fn lba0(table: &NewTable, target: &Target) -> Option<[u8; 512]> {
    let mut lba0 = [0u8; 512];
    let signature = u32::from_str_radix(table.signature.as_deref()?, 16).ok()?;
    super::put(&mut lba0, SIGNATURE, &signature.to_le_bytes())?;
    for partition in &table.partitions {
        let sectors = |bytes: Bytes| u32::try_from(bytes.0 / target.sector.get()).ok();
        let entry = Primary {
            // Code as syslinux's looks for the active one.
            active: partition.number == ROOT,
            kind: LINUX_BYTE,
            first: sectors(partition.start)?,
            count: sectors(partition.size)?,
        };
        mbr::set(&mut lba0, partition.number, entry)?;
    }
    super::put(&mut lba0, 510, &[0x55, 0xaa])?;
    Some(lba0)
}
