//! The file systems of the target's partitions, and which of them is the root.

use std::cmp::Ordering;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::fstab::Spec;
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::signatures;
use crate::host::tables::{PartitionKind, Table, TablePartition};
use crate::image::boot::versions;
use crate::plan::memory_root::identify::{LINUX_DATA, root_guid};
use crate::run::partitions::Node;
use crate::sys::beneath::{Root, Walk};
use crate::sys::mount::{Flags, Guard};

/// Extended boot loader partition (UAPI.2 Discoverable Partitions Specification).
const XBOOTLDR: &str = "bc13c2ff-59e6-4262-a352-b275fd6f7172";

/// Subvolumes in which distributions put the root of a btrfs whose default is its top.
const SUBVOLUMES: [&str; 4] = ["", "subvol=@", "subvol=root", "subvol=@rootfs"];

/// File systems that are mounted, and the kernel's name for each.
const KNOWN: [(&str, &str); 7] = [
    ("ext4", "ext4"),
    ("ext3", "ext4"),
    ("ext2", "ext4"),
    ("xfs", "xfs"),
    ("btrfs", "btrfs"),
    ("vfat", "vfat"),
    ("f2fs", "f2fs"),
];

/// A file system on a partition.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Partition number.
    pub number: u32,
    /// Device node.
    pub path: PathBuf,
    /// Type, as the kernel names it.
    pub filesystem: &'static str,
    /// Whether boot loaders read it: an ESP or an extended boot loader partition.
    pub is_boot: bool,
    /// Name of the partition.
    pub partlabel: Option<String>,
    /// Label of the file system.
    pub label: Option<String>,
    kind: PartitionKind,
    partuuid: String,
    uuid: Option<String>,
}

impl Volume {
    /// Whether a line of fstab means it.
    pub fn is(&self, spec: &Spec) -> bool {
        let same = |have: &Option<String>, wanted: &str| {
            have.as_deref()
                .is_some_and(|h| h.eq_ignore_ascii_case(wanted))
        };
        match spec {
            Spec::Uuid(uuid) => same(&self.uuid, uuid),
            Spec::Label(label) => self.label.as_ref() == Some(label),
            Spec::Partuuid(uuid) => self.partuuid.eq_ignore_ascii_case(uuid),
            Spec::Partlabel(name) => self.partlabel.as_ref() == Some(name),
            Spec::Other(_) => false,
        }
    }

    /// Mounts it.
    ///
    /// # Errors
    /// As mount(2) has it.
    pub fn attach(&self, place: &Path, flags: Flags, options: &str) -> Result<Guard> {
        crate::init::modules::want(self.filesystem);
        // Who only looks writes nothing, not even what a journal holds; a device that cannot be written (`quiet`) could
        // not be mounted otherwise.
        let quiet = match self.filesystem {
            "ext4" => "noload",
            "xfs" | "f2fs" => "norecovery",
            "btrfs" => "rescue=nologreplay",
            _ => "",
        };
        let looked: Vec<&str> = [quiet, options]
            .into_iter()
            .filter(|o| !o.is_empty())
            .collect();
        let looked = looked.join(",");
        let options = if flags.contains(super::LOOK) {
            &looked
        } else {
            options
        };
        Guard::attach(&self.path, place, self.filesystem, flags, options)
    }
}

/// The file systems on the partitions of `table`.
pub fn of(nodes: &[Node], table: &Table) -> Result<Vec<Volume>> {
    let mut volumes = Vec::new();
    for partition in table.partitions().iter().filter(|p| !p.kind.is_extended()) {
        let Some(node) = nodes.iter().find(|n| n.place.number == partition.number) else {
            continue;
        };
        let file = File::open(&node.path)
            .context(Class::Media, || format!("opening {}", node.path.display()))?;
        let name = node.path.display().to_string();
        let contents = signatures::probe_one(&file, &name, partition.size);
        let found = contents.found.iter().find_map(|content| {
            let known = KNOWN.iter().find(|(what, _)| *what == content.what)?;
            Some((content, known.1))
        });
        let Some((content, filesystem)) = found else {
            continue;
        };
        let xbootldr = matches!(&partition.kind, PartitionKind::Guid(guid) if guid == XBOOTLDR);
        // Fedora CoreOS and its relatives know theirs by its label.
        let labelled = [&partition.name, &content.label]
            .iter()
            .any(|name| name.as_deref() == Some("boot"));
        volumes.push(Volume {
            number: partition.number,
            path: node.path.clone(),
            filesystem,
            is_boot: partition.kind.is_esp() || xbootldr || labelled,
            partlabel: partition.name.clone(),
            label: content.label.clone(),
            kind: partition.kind.clone(),
            partuuid: partition.partuuid.clone(),
            uuid: content.uuid.clone(),
        });
    }
    Ok(volumes)
}

/// What systemd finds where nobody names the root (systemd-gpt-auto-generator(8)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootByType {
    /// No partition has the type of a root.
    None,
    /// This one, by its PARTUUID.
    One(String),
    /// One that cannot be looked into: why.
    Unclear(String),
}

/// Says that a partition is not to be found by its type (UAPI.2, "Partition Attribute Flags").
const NO_AUTO: u64 = 1 << 63;

/// The root that systemd finds on a machine of `arch`: of several the one with the newest version for its name, of equal
/// ones the first (UAPI.2, "Partition Names"; systemd: `partition_pick_label` of dissect-image.c).
pub fn root_by_type(table: &Table, volumes: &[Volume], arch: &str) -> RootByType {
    let Some(guid) = root_guid(arch) else {
        return RootByType::None;
    };
    let is = |p: &&TablePartition| {
        matches!(&p.kind, PartitionKind::Guid(g) if g == guid) && p.attributes & NO_AUTO == 0
    };
    let name = |p: &TablePartition| p.name.clone().unwrap_or_default();
    let newest =
        table.partitions().iter().filter(is).reduce(|best, next| {
            match versions::compare(&name(next), &name(best)) {
                Ordering::Greater => next,
                Ordering::Equal | Ordering::Less => best,
            }
        });
    match newest {
        None => RootByType::None,
        Some(one) if volumes.iter().any(|v| v.number == one.number) => {
            RootByType::One(one.partuuid.clone())
        }
        Some(one) => RootByType::Unclear(format!(
            "partition {} has the type of a root and holds no file system that is looked into",
            one.number
        )),
    }
}

/// Mounts the root at `place` and says on which partition it is: the one with the type of a root for `arch`,
/// else the one that holds a system. The inner error says why there is none.
///
/// # Errors
/// Class media where two partitions hold a system.
pub fn find_root(
    volumes: &[Volume],
    arch: &str,
    place: &Path,
    flags: Flags,
) -> Result<std::result::Result<(u32, Guard), String>> {
    let has =
        |volume: &Volume, guid: &str| matches!(&volume.kind, PartitionKind::Guid(g) if g == guid);
    let typed: Vec<&Volume> = volumes
        .iter()
        .filter(|v| root_guid(arch).is_some_and(|guid| has(v, guid)))
        .collect();
    let linux = |v: &&Volume| has(v, LINUX_DATA) || matches!(v.kind, PartitionKind::Byte(0x83));
    let candidates = if typed.is_empty() {
        volumes.iter().filter(linux).collect()
    } else {
        typed
    };
    let mut found: Option<(u32, Guard)> = None;
    let mut looked = Vec::new();
    for volume in candidates {
        let options: &[&str] = if volume.filesystem == "btrfs" {
            &SUBVOLUMES
        } else {
            &[""]
        };
        for option in options {
            let Ok(guard) = volume.attach(place, flags, option).map_err(|failure| {
                looked.push(format!(
                    "partition {}: {}",
                    volume.number,
                    crate::error::chain(&failure)
                ));
            }) else {
                continue;
            };
            if !is_root(place)? {
                looked.push(format!("partition {} holds no system", volume.number));
                guard.unmount()?;
                continue;
            }
            if let Some((other, _)) = &found {
                return Err(Failure::new(
                    Class::Media,
                    format!("partitions {other} and {} both hold a system", volume.number),
                )
                .hint("give the root the partition type of a root, so that it is known which one starts"));
            }
            found = Some((volume.number, guard));
            break;
        }
    }
    Ok(found.ok_or_else(|| match looked.as_slice() {
        [] => "no partition has a type and a file system that a root may have".to_owned(),
        some => some.join("; "),
    }))
}

/// Whether a system is mounted there.
fn is_root(place: &Path) -> Result<bool> {
    const SIGNS: [&str; 5] = [
        "/etc/os-release",
        "/usr/lib/os-release",
        "/usr/lib/systemd/systemd",
        "/sbin/init",
        "/etc/fstab",
    ];
    let root = Root::open(place)?;
    // A link that leads out of a partition of its own (/usr elsewhere) is a sign all the same.
    Ok(SIGNS
        .iter()
        .any(|sign| root.entry(Path::new(sign), Walk::InRoot).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tables::{CopyState, Gpt};
    use crate::units::{Bytes, MIB, SectorSize};

    #[test]
    fn of_several_roots_the_newest_version_is_the_one() {
        let guid = root_guid("x86_64").unwrap();
        let root_of = |names: &[(&str, u64)], readable: &[u32]| {
            let partition = |(n, (name, attributes)): (usize, &(&str, u64))| TablePartition {
                number: u32::try_from(n + 1).unwrap(),
                name: (!name.is_empty()).then(|| (*name).to_owned()),
                attributes: *attributes,
                kind: PartitionKind::Guid(guid.to_owned()),
                partuuid: format!("u{}", n + 1),
                start: Bytes::ZERO,
                size: Bytes(MIB),
            };
            let partitions = names.iter().enumerate().map(partition).collect();
            let table = Table::Gpt(Gpt {
                sector: SectorSize::S512,
                disk_guid: String::new(),
                protective: true,
                primary: CopyState::Valid,
                primary_end: Bytes::ZERO,
                backup: CopyState::Valid,
                copies_agree: true,
                backup_lists: None,
                backup_at_end: true,
                usable: (34, 100),
                entries: 128,
                partitions,
                flaws: Vec::new(),
            });
            let volume = |number: &u32| Volume {
                number: *number,
                path: PathBuf::new(),
                filesystem: "ext4",
                is_boot: false,
                partlabel: None,
                label: None,
                kind: PartitionKind::Guid(guid.to_owned()),
                partuuid: String::new(),
                uuid: None,
            };
            let volumes: Vec<Volume> = readable.iter().map(volume).collect();
            root_by_type(&table, &volumes, "x86_64")
        };
        let one = |partuuid: &str| RootByType::One(partuuid.to_owned());
        assert_eq!(root_of(&[], &[]), RootByType::None);
        assert_eq!(root_of(&[("", 0)], &[1]), one("u1"));
        assert_eq!(
            root_of(&[("root-9", 0), ("root-10", 0)], &[1, 2]),
            one("u2")
        );
        assert_eq!(
            root_of(&[("root-10", 0), ("root-9", 0)], &[1, 2]),
            one("u1")
        );
        assert_eq!(root_of(&[("same", 0), ("same", 0)], &[1, 2]), one("u1"));
        assert_eq!(root_of(&[("a", 0), ("b", NO_AUTO)], &[1, 2]), one("u1"));
        assert_eq!(root_of(&[("tiny-root", 0), ("data", 0)], &[1]), one("u1"));
        // What is kept from others is looked into by nobody.
        let unclear = root_of(&[("root", 0), ("zoo", 0)], &[1]);
        assert!(matches!(unclear, RootByType::Unclear(why) if why.contains("partition 2")));
    }
}
