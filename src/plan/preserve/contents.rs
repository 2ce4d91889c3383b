//! What is on a source, and what becomes of it: a file system that is mounted, a blank device that gets one, or an
//! encrypted device with either of these inside.

use std::path::PathBuf;

use serde::Serialize;

use super::candidates::Candidate;
use super::{Luks, Trouble};
use crate::config::request::preserve::{NewFileSystem, Preserved};
use crate::host::RecordFound;
use crate::host::signatures::UNKNOWN;
use crate::host::signatures::unfinished::UNFINISHED_FILESYSTEM;
use crate::host::tables::Table;

/// File systems that are mounted as sources, and the type under which the kernel knows them.
const MOUNTABLE: [(&str, &str); 7] = [
    // One driver for all three; ext4 without a journal is what the other two are.
    ("ext4", "ext4"),
    ("ext3", "ext4"),
    ("ext2", "ext4"),
    ("xfs", "xfs"),
    ("btrfs", "btrfs"),
    ("vfat", "vfat"),
    ("f2fs", "f2fs"),
];

/// File systems of which a part looks like the whole: beside our mark, which is not seen where such a one is complete or
/// holds something, they are made again. An ext4 has its superblock when all else is there.
const MADE_AGAIN: [&str; 2] = ["xfs", "vfat"];

/// libblkid's name of an encrypted device.
const LUKS: &str = "crypto_LUKS";

/// Label of a LUKS2 header whose file system has not been made yet. Nothing has ever been stored there, because it goes
/// before the first mount that can write: what was cut off begins again.
pub const UNFINISHED: &str = "ironroot-unfinished";

/// What the entries of one device want of its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// A blank device may get a file system, and this one is wanted.
    pub inside: Inside,
    /// The device is encrypted.
    pub key_file: Option<PathBuf>,
}

/// What may be done to a device, or to what is inside an encrypted one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inside {
    /// A blank one gets a file system.
    pub format: bool,
    /// The file system that a blank one gets, and any other must have.
    pub filesystem: Option<NewFileSystem>,
}

impl Agreed {
    /// How source `number` is opened, where it is encrypted.
    pub fn luks(&self, number: usize) -> Option<Luks> {
        self.key_file.clone().map(|key_file| Luks {
            key_file,
            name: format!("ironroot-state-{number}"),
            inside: self.inside,
        })
    }
}

/// What all users of a device agree on.
pub fn agreed(users: &[(usize, &Preserved)]) -> Result<Agreed, Trouble> {
    let mut wanted: Option<NewFileSystem> = None;
    for fs in users.iter().filter_map(|(_, u)| u.filesystem) {
        match wanted {
            Some(other) if other != fs => {
                return Err(Trouble::Conflict(format!(
                    "one entry wants {} there and another {}",
                    other.name(),
                    fs.name()
                )));
            }
            _ => wanted = Some(fs),
        }
    }
    let key_file = users.first().and_then(|(_, u)| u.key_file.clone());
    if users.iter().any(|(_, u)| u.key_file != key_file) {
        return Err(Trouble::Conflict(
            "its entries name it with different `luks`".to_owned(),
        ));
    }
    Ok(Agreed {
        inside: Inside {
            format: users.iter().any(|(_, u)| u.format),
            filesystem: wanted,
        },
        key_file,
    })
}

/// What a device is mounted as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Type of the file system, as the kernel names it; `crypto_LUKS` where it is inside.
    pub filesystem: String,
    /// UUID of what was found.
    pub uuid: Option<String>,
    /// What is made, inside where it is encrypted.
    pub format: Option<NewFileSystem>,
}

/// What becomes of a device.
pub fn of(device: &Candidate<'_>, agreed: &Agreed) -> Result<Content, Trouble> {
    let found = device.contents();
    let whole = device.partition.is_none();
    if found.is_empty() && whole {
        // A table without a signature of its own, and what ironroot itself wrote there, are no blank.
        if device.disk.table != Table::None {
            let why = format!("{} has a partition table", device.name);
            return Err(Trouble::Occupied(why));
        }
        if device.disk.record != RecordFound::None {
            let why = format!("{} carries the record of an installation", device.name);
            return Err(Trouble::Occupied(why));
        }
    }
    let partuuid = device.partuuid();
    let decide = |found: &[&crate::host::Content]| {
        decide(
            device.name,
            partuuid.as_deref(),
            found,
            device.is_blank(),
            agreed.inside,
        )
    };
    if agreed.key_file.is_none() {
        return decide(&found);
    }
    let make = || Content {
        filesystem: LUKS.to_owned(),
        uuid: None,
        format: Some(agreed.inside.filesystem.unwrap_or(NewFileSystem::Ext4)),
    };
    match found.as_slice() {
        [one] if one.what == LUKS => {
            let unfinished = one.label.as_deref() == Some(UNFINISHED);
            if unfinished && agreed.inside.format {
                return Ok(make());
            }
            Ok(Content {
                filesystem: LUKS.to_owned(),
                uuid: one.uuid.clone(),
                format: None,
            })
        }
        [one] => Err(Trouble::Conflict(format!(
            "{one}, which is not encrypted, and `luks` is given"
        ))),
        other => decide(other).map(|_| make()),
    }
}

/// Whether `found`, on the device with this PARTUUID, is what a cut left while ironroot was making a file system.
/// Nothing was ever kept there.
pub fn begins_again(found: &[&crate::host::Content], partuuid: Option<&str>) -> bool {
    let (marks, others): (Vec<&crate::host::Content>, Vec<&crate::host::Content>) = found
        .iter()
        .copied()
        .partition(|c| c.what == UNFINISHED_FILESYSTEM);
    // A copy of the device is another device.
    let is_ours =
        |c: &&crate::host::Content| c.uuid.as_deref() == Some(partuuid.unwrap_or_default());
    let again =
        |c: &&crate::host::Content| c.what == UNKNOWN || MADE_AGAIN.contains(&c.what.as_str());
    marks.iter().any(is_ours) && others.iter().all(again)
}

/// What becomes of the inside of an encrypted device with this PARTUUID: `found` on the mapping `name`, which is `blank`
/// or not.
pub fn inside(
    name: &str,
    partuuid: Option<&str>,
    found: &[crate::host::Content],
    blank: bool,
    wanted: Inside,
) -> Result<Content, Trouble> {
    let found: Vec<&crate::host::Content> = found.iter().filter(|c| c.what != UNKNOWN).collect();
    decide(name, partuuid, &found, blank, wanted)
}

fn decide(
    name: &str,
    partuuid: Option<&str>,
    found: &[&crate::host::Content],
    blank: bool,
    wanted: Inside,
) -> Result<Content, Trouble> {
    let Inside { format, filesystem } = wanted;
    let again = format && begins_again(found, partuuid);
    let complete = |c: &&&crate::host::Content| {
        c.what != UNFINISHED_FILESYSTEM || c.uuid.as_deref() != Some(partuuid.unwrap_or_default())
    };
    let blank = blank || again;
    let found: Vec<&crate::host::Content> = match found {
        _ if again => Vec::new(),
        // What was complete and only had not lost its mark; it does on its way to the mount.
        [_, _] if found.iter().any(|c| c.what == "ext4") => {
            found.iter().filter(complete).copied().collect()
        }
        all => all.to_vec(),
    };
    match found.as_slice() {
        [] if !blank => Err(Trouble::Occupied(format!("{UNKNOWN} on {name}"))),
        [] if format => {
            let fs = filesystem.unwrap_or(NewFileSystem::Ext4);
            Ok(Content {
                filesystem: fs.name().to_owned(),
                uuid: None,
                format: Some(fs),
            })
        }
        [] => Err(Trouble::Blank(name.to_owned())),
        [one] => {
            let known = MOUNTABLE.iter().find(|(what, _)| *what == one.what);
            match known {
                None if one.what == LUKS => Err(Trouble::Encrypted(one.to_string())),
                None => Err(Trouble::Occupied(one.to_string())),
                Some(_) if filesystem.is_some_and(|fs| fs.name() != one.what) => {
                    Err(Trouble::OtherFileSystem(format!(
                        "{one}, and `filesystem` is {}",
                        filesystem.map_or("", NewFileSystem::name)
                    )))
                }
                Some((_, kind)) => Ok(Content {
                    filesystem: (*kind).to_owned(),
                    uuid: one.uuid.clone(),
                    format: None,
                }),
            }
        }
        several => {
            let all: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(Trouble::Occupied(all.join(" and ")))
        }
    }
}
