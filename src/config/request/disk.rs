//! The disk of a boot config, and what its partitions shall be.

use serde::Serialize;
use uuid::Uuid;

use super::preserve::NewFileSystem;
use super::{Image, Problems, SystemChanges, TreeDisk, image, sections, system, tree, wire};
use crate::config::quantity::SizeText;
use crate::host::Sections;
use crate::host::tables::PartitionKind;

/// A GPT name has room for so many UTF-16 units (UEFI specification 2.10, table 5-6).
const LABEL_UNITS: usize = 36;

/// The highest partition number that can be kept: what the smallest array of entries has room for.
const HIGHEST_NUMBER: u32 = 128;

/// Names of partition types (Discoverable Partitions Specification, and what sfdisk(8) calls them).
const TYPES: [(&str, &str); 8] = [
    ("linux", "0fc63daf-8483-4772-8e79-3d69d8477de4"),
    ("home", "933ac7e1-2eb4-4f13-b844-0e14e2aef915"),
    ("srv", "3b8f8425-20e0-4f3b-907f-1a25a76f98e8"),
    ("var", "4d21b016-b534-45c2-a9fb-5c16e091fd2d"),
    ("tmp", "7ec6f557-3bc5-4aca-b293-16ef5df639d1"),
    ("swap", "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"),
    ("lvm", "e6d6d379-f507-44c2-a23c-238f2a3df928"),
    ("raid", "a19d880f-05fc-4d3b-a006-743f0f84911e"),
];

/// Types whose content is no file system that is mounted.
const WITHOUT_FILE_SYSTEM: [&str; 3] = ["swap", "lvm", "raid"];

/// Install an image on a disk.
#[derive(Clone, Debug)]
pub struct DiskInstall {
    /// The image.
    pub image: Image,
    /// Which disks are allowed.
    pub select: wire::Select,
    /// What to do when several are.
    pub pick: wire::Pick,
    /// What may be erased.
    pub overwrite: wire::Overwrite,
    /// Partitions of the disk that survive; labels are patterns.
    pub keep: Vec<Named>,
    /// The partition of the image that takes the free space behind it.
    pub grow: Option<Named>,
    /// Further partitions.
    pub partitions: Vec<Addition>,
    /// Whether the image's GUIDs stay.
    pub guids: wire::Guids,
    /// How the old content goes.
    pub wipe: wire::Wipe,
    /// Whether the disk carries its record.
    pub record: wire::RecordPolicy,
    /// Boot entries.
    pub efi: wire::Efi,
    /// How a tree becomes bootable.
    pub tree: TreeDisk,
    /// What is changed in the installed system.
    pub changes: SystemChanges,
    /// What of the section shapes the system, for the record.
    pub sections: Sections,
}

/// A partition as a config names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Named {
    /// By its number.
    Number(u32),
    /// By its GPT name.
    Label(String),
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Named::Number(number) => write!(f, "{number}"),
            Named::Label(label) => write!(f, "{label:?}"),
        }
    }
}

/// A partition that is added.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Addition {
    /// GPT name.
    pub label: String,
    /// Size.
    pub size: SizeText,
    /// Type GUID, lower case.
    #[serde(rename = "type")]
    pub kind: String,
    /// File system to make.
    pub filesystem: Option<NewFileSystem>,
}

/// The meaning of `disk`, with the image.
pub(super) fn read(
    config: &wire::BootConfig,
    disk: &wire::Disk,
    problems: &mut Problems,
) -> Option<DiskInstall> {
    let always = config.boot_policy == wire::BootPolicy::NetworkBootAlways;
    let default = if always {
        wire::Overwrite::IfOurs
    } else {
        wire::Overwrite::IfBlank
    };
    let keep = disk
        .keep
        .iter()
        .enumerate()
        .filter_map(|(i, text)| named(&format!("disk.keep[{i}]"), text, problems))
        .collect();
    let grow = disk
        .grow
        .as_ref()
        .and_then(|text| named("disk.grow", text, problems));
    let partitions = additions(disk, problems);
    let image = image::read(config.image.as_ref()?, problems)?;
    let tree = tree::read(&image, disk, (grow.as_ref(), &partitions), problems);
    Some(DiskInstall {
        select: disk.select.clone(),
        pick: disk.pick,
        overwrite: disk.overwrite.unwrap_or(default),
        keep,
        grow,
        partitions,
        guids: disk.guids,
        record: disk.record,
        wipe: disk.wipe,
        efi: disk.efi,
        tree,
        image,
        changes: system::read(config, disk, problems),
        sections: sections::of(disk),
    })
}

/// A label, or a number as a string of digits.
fn named(path: &str, text: &str, problems: &mut Problems) -> Option<Named> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        if text.is_empty() {
            problems.add(path, "a partition's label or number is needed");
            return None;
        }
        return Some(Named::Label(text.to_owned()));
    }
    match text.parse::<u32>() {
        Ok(number) if (1..=HIGHEST_NUMBER).contains(&number) => Some(Named::Number(number)),
        _ => {
            problems.add(
                path,
                format!("partition numbers go from 1 to {HIGHEST_NUMBER}"),
            );
            None
        }
    }
}

/// The partitions to add.
pub(super) fn additions(disk: &wire::Disk, problems: &mut Problems) -> Vec<Addition> {
    let mut all: Vec<Addition> = Vec::new();
    for (i, wanted) in disk.partitions.iter().enumerate() {
        let at = |key: &str| format!("disk.partitions[{i}].{key}");
        if let Some(wrong) = wrong_label(&wanted.label) {
            problems.add(&at("label"), wrong);
        }
        if all.iter().any(|other| other.label == wanted.label) {
            problems.add(&at("label"), "another partition has this label");
        }
        if wanted.size == SizeText::Rest {
            if all.iter().any(|other| other.size == SizeText::Rest) {
                problems.add(&at("size"), "only one partition can have the `Rest`");
            }
            if disk.grow.is_some() {
                problems.add(
                    &at("size"),
                    "`disk.grow` takes the rest of the disk already: give this partition a size, or leave `grow` out",
                );
            }
        }
        let name = wanted.kind.as_deref().unwrap_or("linux");
        let filesystem = match wanted.filesystem.as_deref() {
            None => None,
            Some("ext4") => Some(NewFileSystem::Ext4),
            Some("xfs") => Some(NewFileSystem::Xfs),
            Some("vfat") => Some(NewFileSystem::Vfat),
            Some(other) => {
                problems.add(
                    &at("filesystem"),
                    format!("{other:?} is not one that can be made: ext4, xfs, vfat"),
                );
                None
            }
        };
        if filesystem.is_some() && WITHOUT_FILE_SYSTEM.contains(&name) {
            problems.add(
                &at("filesystem"),
                format!("a partition of type {name} has none"),
            );
        }
        match type_guid(name) {
            Ok(kind) => all.push(Addition {
                label: wanted.label.clone(),
                size: wanted.size,
                kind,
                filesystem,
            }),
            Err(why) => problems.add(&at("type"), why),
        }
    }
    all
}

/// Why no partition can be given this name.
pub(super) fn wrong_label(label: &str) -> Option<String> {
    if label.is_empty() {
        return Some("a partition that is added needs a label".to_owned());
    }
    if label.chars().any(char::is_control) || label.bytes().all(|b| b.is_ascii_digit()) {
        return Some("a label has no control characters and is not only digits".to_owned());
    }
    (label.encode_utf16().count() > LABEL_UNITS)
        .then(|| format!("a GPT has room for {LABEL_UNITS} characters"))
}

fn type_guid(name: &str) -> Result<String, String> {
    let text = TYPES
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(name, |(_, guid)| *guid);
    let names = || TYPES.map(|(known, _)| known).join(", ");
    let boot = "the image brings its own EFI system and BIOS boot partitions; none can be added";
    if name == "esp" {
        return Err(boot.to_owned());
    }
    let guid = Uuid::try_parse(text)
        .ok()
        .filter(|guid| !guid.is_nil())
        .ok_or_else(|| format!("{name:?} is neither a GUID nor one of {}", names()))?;
    let kind = PartitionKind::Guid(guid.to_string());
    if kind.is_esp() || kind.is_bios_boot() {
        return Err(boot.to_owned());
    }
    Ok(guid.to_string())
}
