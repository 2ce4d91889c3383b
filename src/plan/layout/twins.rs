//! The same image on two disks of a machine: whoever looks for a PARTUUID finds either.

use crate::config::wire::Guids;
use crate::error::printable;
use crate::host::tables::{Table, TablePartition};
use crate::host::{Disk, DiskKind};

/// The GUIDs of another disk of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its kernel name.
    pub disk: String,
    /// Those of its table and its partitions.
    pub guids: Vec<String>,
}

/// The GUIDs of all disks but `target`. What is a path to the same disk, or part of something, is none of them.
pub fn taken(disks: &[Disk], target: &Disk) -> Vec<Taken> {
    let other = |disk: &&Disk| {
        disk.kind == DiskKind::Disk
            && disk.name != target.name
            && (disk.wwn.is_none() || disk.wwn != target.wwn)
    };
    let all = disks.iter().filter(other).map(|disk| Taken {
        disk: disk.name.clone(),
        guids: guids(&disk.table),
    });
    all.filter(|taken| !taken.guids.is_empty()).collect()
}

/// What the operator should know of a disk that will have `table`.
pub fn warning(table: &Table, taken: &[Taken], wish: Guids) -> Option<String> {
    if wish == Guids::New {
        return None;
    }
    let disks = sharing(&guids(table), taken)?;
    Some(format!(
        "GUIDs of this image are on {disks} already: {EITHER}; `disk.guids: New` keeps them apart"
    ))
}

/// The same of a disk that keeps partitions while all else on it is new.
pub fn warning_of_kept(kept: &[TablePartition], taken: &[Taken]) -> Option<String> {
    let own: Vec<String> = kept.iter().map(|p| p.partuuid.clone()).collect();
    let disks = sharing(&own, taken)?;
    Some(format!(
        "GUIDs of partitions that are kept are on {disks} too: {EITHER}"
    ))
}

/// The same of a disk that is booted as it is.
pub fn warning_of_installed(disk: &Disk, disks: &[Disk]) -> Option<String> {
    let others = sharing(&guids(&disk.table), &taken(disks, disk))?;
    Some(format!(
        "GUIDs of {} are on {others} too: {EITHER}; remove or erase the copy",
        printable(&disk.name)
    ))
}

const EITHER: &str = "a system that looks for its partitions by PARTUUID, and firmware whose boot entry names one, may take either disk";

/// The disks that have one of `own`.
fn sharing(own: &[String], taken: &[Taken]) -> Option<String> {
    let same = |guid: &String| own.iter().any(|o| o.eq_ignore_ascii_case(guid));
    let disks: Vec<String> = taken
        .iter()
        .filter(|taken| taken.guids.iter().any(same))
        .map(|taken| printable(&taken.disk))
        .collect();
    (!disks.is_empty()).then(|| disks.join(", "))
}

fn guids(table: &Table) -> Vec<String> {
    let own = match table {
        Table::Gpt(gpt) => Some(gpt.disk_guid.clone()),
        Table::Mbr(_) | Table::None | Table::Damaged { .. } => None,
    };
    let partitions = table.partitions().iter().map(|p| p.partuuid.clone());
    own.into_iter()
        .chain(partitions)
        .filter(|guid| !guid.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tables::{Mbr, PartitionKind};
    use crate::units::{Bytes, MIB};

    fn table(signature: &str) -> Table {
        Table::Mbr(Mbr {
            signature: signature.to_owned(),
            partitions: vec![TablePartition {
                number: 1,
                start: Bytes(MIB),
                size: Bytes(MIB),
                kind: PartitionKind::Byte(0x83),
                partuuid: format!("{signature}-01"),
                name: None,
                attributes: 0,
            }],
        })
    }

    #[test]
    fn a_second_disk_with_the_same_image_is_named() {
        let disk = |name: &str, signature: &str| Disk {
            name: name.to_owned(),
            table: table(signature),
            ..Disk::default()
        };
        let target = disk("sda", "cafecafe");
        let path = Disk {
            wwn: Some("naa.1".to_owned()),
            ..disk("sdc", "deadbeef")
        };
        let disks = [target.clone(), disk("sdb", "DEADBEEF"), path.clone()];
        let found = taken(&disks, &target);
        let said = warning(&table("deadbeef"), &found, Guids::Keep).unwrap();
        assert!(
            said.contains("on sdb, sdc already") && said.contains("disk.guids: New"),
            "{said}"
        );
        assert_eq!(warning(&table("deadbeef"), &found, Guids::New), None);
        // What the target itself held goes.
        assert_eq!(warning(&table("cafecafe"), &found, Guids::Keep), None);
        // A tree has GUIDs of its own; what it keeps has not.
        let kept = table("deadbeef").partitions().to_vec();
        let said = warning_of_kept(&kept, &found).unwrap();
        assert!(said.contains("on sdb, sdc too"), "{said}");
        assert_eq!(
            warning_of_kept(table("cafecafe").partitions(), &found),
            None
        );
        // The second network boot sees the same.
        let said = warning_of_installed(&path, &disks).unwrap();
        assert!(said.contains("GUIDs of sdc are on sdb too"), "{said}");
        assert_eq!(warning_of_installed(&disks[0], &disks), None);
        // Another path to the target is no other disk.
        let same = Disk {
            wwn: path.wwn.clone(),
            ..target
        };
        assert_eq!(taken(&disks[1..], &same).len(), 1);
    }
}
