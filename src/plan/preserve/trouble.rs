//! What is wrong with a source, and what to do about it.

use std::fmt;

use crate::units::Bytes;

/// What is wrong with a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing has that name.
    Missing {
        /// Disks that may have it and cannot be read.
        unreadable: Vec<String>,
    },
    /// Several have it.
    Several(Vec<String>),
    /// It cannot be read.
    Unreadable(String),
    /// A table lists it, and the kernel does not.
    NotInKernel(String),
    /// It is a part of something else, which has another name.
    PartOf(String),
    /// It is in use.
    InUse(String),
    /// It has no file system, and must not get one.
    Blank(String),
    /// It holds something else than a file system.
    Occupied(String),
    /// It is encrypted, and the config has no key for it.
    Encrypted(String),
    /// It has another file system than the config says.
    OtherFileSystem(String),
    /// It cannot be written.
    ReadOnly(String),
    /// No disk, or several, on which it could be made.
    Disks {
        /// What the config asks for.
        wanted: String,
        /// Those that match.
        found: Vec<String>,
    },
    /// A disk whose table gets no new partition.
    NoTable {
        /// The disk.
        disk: String,
        /// Why.
        why: String,
    },
    /// A disk on which making other partitions was cut off.
    Begun {
        /// The disk.
        disk: String,
        /// What is there.
        why: String,
        /// Nothing else is on the disk.
        whole_disk: bool,
    },
    /// A disk without room for it.
    NoRoom {
        /// The disk.
        disk: String,
        /// What is asked for.
        need: Bytes,
        /// The largest free range.
        largest: Bytes,
    },
    /// Another entry uses it in a way that excludes this one.
    Conflict(String),
}

impl Trouble {
    /// Whether waiting may help.
    pub fn may_heal(&self) -> bool {
        match self {
            Trouble::Missing { .. }
            | Trouble::Unreadable(_)
            | Trouble::NotInKernel(_)
            | Trouble::InUse(_) => true,
            Trouble::Disks { found, .. } => found.is_empty(),
            Trouble::Several(_)
            | Trouble::PartOf(_)
            | Trouble::NoTable { .. }
            | Trouble::Begun { .. }
            | Trouble::NoRoom { .. }
            | Trouble::Blank(_)
            | Trouble::Occupied(_)
            | Trouble::Encrypted(_)
            | Trouble::OtherFileSystem(_)
            | Trouble::ReadOnly(_)
            | Trouble::Conflict(_) => false,
        }
    }

    /// What to do next.
    pub fn next(&self) -> &'static str {
        match self {
            Trouble::Missing { .. } => {
                "compare the name with `ironroot disks`, check that the disk's driver is loaded, or set `required` to false"
            }
            Trouble::Several(_) => {
                "name it by partuuid or by the disk's serial, or give one of them another name"
            }
            Trouble::Unreadable(_) => "check the disk",
            Trouble::NotInKernel(_) => {
                "make the kernel read the table again (partprobe), and see that it knows GPT"
            }
            Trouble::PartOf(_) => {
                "name the whole: by label or UUID of the file system in it, or by its path; or take it apart"
            }
            Trouble::InUse(_) => "unmount it or stop what holds it",
            Trouble::Blank(_) => {
                "make a file system there, or set `format` to IfBlank and name it by partlabel, partuuid or disk"
            }
            Trouble::Occupied(_) => {
                "name another place; what is there is not erased. Where it may be lost, erase it with `blkdiscard`, or `blkdiscard -z` where it cannot discard"
            }
            Trouble::Encrypted(_) => {
                "set `luks.keyFile` to a key file in the initrd, or name another place; what is there is not erased"
            }
            Trouble::OtherFileSystem(_) => "correct `filesystem`, or leave it away",
            Trouble::ReadOnly(_) => "check the write protection, or add the option ro",
            Trouble::Disks { .. } => {
                "say in `source.disk` on which disk the partition shall be made; `ironroot disks` lists all"
            }
            Trouble::NoTable { .. } => {
                "repair the table on a running system (`sgdisk --verify` names what is wrong, `sgdisk -e` writes the copy that is whole to both places), or name another disk; nothing was written"
            }
            Trouble::Begun {
                whole_disk: true, ..
            } => {
                "making partitions was cut off there: start once with the `preserve` of that time; or, where the disk may be lost, clear it with `sgdisk --zap-all` on a running system; nothing was written"
            }
            Trouble::Begun {
                whole_disk: false, ..
            } => {
                "making partitions was cut off there: start once with the `preserve` of that time; or write the first copy of the table to both places with `sgdisk -e` on a running system; nothing was written"
            }
            Trouble::NoRoom { .. } => "ask for less in `create`, or name another disk",
            Trouble::Conflict(_) => "correct `preserve`",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Missing { unreadable } => {
                f.write_str("no device has that name")?;
                if unreadable.is_empty() {
                    Ok(())
                } else {
                    write!(f, "; not to be read: {}", unreadable.join(", "))
                }
            }
            Trouble::Several(names) => write!(
                f,
                "{} devices have that name: {}",
                names.len(),
                names.join(" and ")
            ),
            Trouble::Unreadable(why) => write!(f, "it cannot be read: {why}"),
            Trouble::InUse(how) => write!(f, "it is in use: {how}"),
            Trouble::Blank(name) => write!(f, "{name} is blank, and `format` is Never"),
            Trouble::Occupied(what) => write!(f, "it holds no file system to mount: {what}"),
            Trouble::NotInKernel(place) => {
                write!(f, "{place}, which the kernel does not know")
            }
            Trouble::PartOf(how) => {
                write!(f, "what has that name is a part of something else: {how}")
            }
            Trouble::Encrypted(what) => write!(f, "it is encrypted: {what}"),
            Trouble::ReadOnly(name) => write!(f, "{name} is read-only"),
            Trouble::Disks { wanted, found } => match found.as_slice() {
                [] => write!(f, "it would be made, and no disk matches {wanted}"),
                several => write!(
                    f,
                    "it would be made, and {} disks match {wanted}: {}",
                    several.len(),
                    several.join(" and ")
                ),
            },
            Trouble::NoTable { disk, why } | Trouble::Begun { disk, why, .. } => {
                write!(
                    f,
                    "it would be made, and {disk} gets no new partition: {why}"
                )
            }
            Trouble::NoRoom {
                disk,
                need,
                largest,
            } => write!(
                f,
                "it would be made, and there is no room on {disk} for {need}: the largest free range is {largest}"
            ),
            Trouble::OtherFileSystem(what) | Trouble::Conflict(what) => f.write_str(what),
        }
    }
}
