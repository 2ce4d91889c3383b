//! Why a plan is refused. Nothing has been written when one of these appears.

use std::fmt;
use std::path::PathBuf;

use super::preserve::Trouble;
use super::teardown::Why;
use crate::error::{Class, Failure, printable};
use crate::host::{Content, Disk, Holder, holders};
use crate::units::{Bytes, SectorSize};

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// No disk matches.
    NoDisk {
        /// The selector, for people.
        wanted: String,
        /// Every disk, and why it does not serve.
        candidates: Vec<Candidate>,
    },
    /// Several disks match and `pick` is `Only`.
    Ambiguous {
        /// The selector, for people.
        wanted: String,
        /// The disks that match.
        candidates: Vec<Candidate>,
        /// What to do.
        next: &'static str,
    },
    /// The disk that holds the system that is asked for cannot be taken.
    Ours {
        /// Kernel name.
        disk: String,
        /// What it holds.
        what: &'static str,
        /// Why it cannot be taken.
        why: Box<Refusal>,
    },
    /// Several disks hold the system that is asked for.
    Twice {
        /// What they hold.
        what: &'static str,
        /// The disks.
        candidates: Vec<Candidate>,
    },
    /// Another disk than the one that would be taken has what is left of a system of this claim.
    Left {
        /// Kernel name.
        disk: String,
        /// Why its record does not count.
        why: String,
    },
    /// The path that was given is no disk.
    NotADisk {
        /// The path.
        path: String,
        /// What it is.
        what: String,
        /// What to do.
        next: String,
    },
    /// The disk is in use.
    Busy {
        /// Kernel name.
        disk: String,
        /// By what.
        holders: Vec<Holder>,
        /// Why that stays.
        why: Why,
    },
    /// The kernel refuses writes.
    ReadOnly {
        /// Kernel name.
        disk: String,
    },
    /// A disk that may hold this very installation cannot be read.
    Unreadable {
        /// Kernel name.
        disk: String,
        /// What the kernel said.
        why: String,
    },
    /// The disk holds data that may not be erased.
    NotBlank {
        /// Kernel name.
        disk: String,
        /// What was found.
        found: Vec<String>,
        /// Which `overwrite` would allow it.
        allow: &'static str,
    },
    /// The disk is too small.
    TooSmall {
        /// Kernel name.
        disk: String,
        /// What needs the room.
        what: String,
        /// Needed.
        need: Bytes,
        /// There.
        have: Bytes,
    },
    /// Image and disk have different sector sizes.
    SectorSize {
        /// Kernel name.
        disk: String,
        /// The image's.
        image: SectorSize,
        /// The disk's.
        have: SectorSize,
    },
    /// A partition cannot be kept.
    Keep {
        /// Kernel name.
        disk: String,
        /// What is wrong; with a collision, both sides.
        what: String,
        /// What to do.
        next: &'static str,
    },
    /// A partition cannot grow, or be added.
    Partitions {
        /// What was asked for, and what is in the way.
        what: String,
        /// What to do.
        next: &'static str,
    },
    /// The image itself needs the bytes of the record.
    RecordArea {
        /// What is there.
        why: String,
    },
    /// A session from memory needs a place from which a root can be switched to.
    NotInAnInitrd,
    /// The root that is running is wanted, and it is an initrd's.
    NotRunning,
    /// The image is no root that this version can run from memory.
    NotARoot {
        /// Why.
        why: String,
    },
    /// There is not enough memory.
    NoRoom {
        /// For what.
        what: String,
        /// Needed.
        need: Bytes,
        /// There.
        have: Bytes,
        /// What to do.
        more: &'static str,
    },
    /// A preserved path cannot be provided.
    Preserve {
        /// The path in the new root.
        target: PathBuf,
        /// How the config names its source.
        source: String,
        /// What is wrong with it.
        trouble: Trouble,
    },
    /// What is written cannot be kept where the config says.
    Upper {
        /// How the config names the place.
        source: String,
        /// What is wrong with it.
        trouble: Trouble,
    },
    /// The image is no tree that can become the root of a disk.
    NotATree {
        /// Why.
        why: String,
    },
    /// A disk with this tree could not be made to boot on this machine.
    CannotBoot {
        /// Why.
        why: String,
        /// What to do.
        next: &'static str,
    },
    /// The image is no disk image that this version can make bootable.
    NotADiskImage {
        /// Why.
        why: String,
    },
}

/// A disk as a refusal lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Kernel name.
    pub name: String,
    /// Size, transport, model, serial, wwn.
    pub description: String,
    /// Why it does not serve; empty where it does.
    pub why: String,
}

impl Candidate {
    /// `disk`, and why it does not serve.
    pub fn new(disk: &Disk, why: impl Into<String>) -> Candidate {
        let mut parts = vec![disk.size.short()];
        parts.extend(disk.transport.map(|t| format!("{t:?}").to_lowercase()));
        for (key, value) in [
            ("model", &disk.model),
            ("serial", &disk.serial),
            ("wwn", &disk.wwn),
        ] {
            parts.extend(value.as_ref().map(|v| format!("{key}={}", printable(v))));
        }
        Candidate {
            name: disk.name.clone(),
            description: parts.join(" "),
            why: why.into(),
        }
    }
}

impl Refusal {
    /// Whether waiting (for a disk that appears late) may help.
    pub fn may_heal(&self) -> bool {
        match self {
            Refusal::NoDisk { .. } | Refusal::Unreadable { .. } => true,
            Refusal::NotADisk { what, .. } => what == MISSING,
            Refusal::Preserve { trouble, .. } | Refusal::Upper { trouble, .. } => {
                trouble.may_heal()
            }
            Refusal::Ambiguous { .. }
            | Refusal::Ours { .. }
            | Refusal::Twice { .. }
            | Refusal::Left { .. }
            | Refusal::Busy { .. }
            | Refusal::ReadOnly { .. }
            | Refusal::NotBlank { .. }
            | Refusal::TooSmall { .. }
            | Refusal::SectorSize { .. }
            | Refusal::Keep { .. }
            | Refusal::Partitions { .. }
            | Refusal::RecordArea { .. }
            | Refusal::NotInAnInitrd
            | Refusal::NotRunning
            | Refusal::NotARoot { .. }
            | Refusal::NoRoom { .. }
            | Refusal::NotATree { .. }
            | Refusal::CannotBoot { .. }
            | Refusal::NotADiskImage { .. } => false,
        }
    }

    fn next(&self) -> String {
        match self {
            Refusal::NoDisk { .. } => {
                "compare the selector with `ironroot disks`, or check that the disk's driver is loaded".to_owned()
            }
            Refusal::Ours { why, .. } => why.next(),
            Refusal::Twice { .. } => {
                "select one of them by serial, wwn or path, and erase the other if it is not needed (`blkdiscard`, or `blkdiscard -z` where it cannot discard)".to_owned()
            }
            Refusal::Left { .. } => {
                "repair its table (sgdisk, gdisk) or erase the disk, or narrow the selector down to the one that is meant".to_owned()
            }
            Refusal::NotADisk { next, .. } => next.clone(),
            Refusal::Busy { why, .. } => why.next(),
            Refusal::ReadOnly { .. } => "check the disk's write protection".to_owned(),
            Refusal::Unreadable { .. } => {
                "check the disk, or narrow the selector down to another; where the selector means this one alone, bootPolicy NetworkBootAlways does not ask what is installed".to_owned()
            }
            Refusal::NotBlank { allow, .. } => {
                format!("if this data may be lost, set `overwrite` to {allow}; else select another disk")
            }
            Refusal::TooSmall { .. } => "use a larger disk or a smaller image".to_owned(),
            Refusal::SectorSize { image, .. } => {
                format!("use an image made for the disk's sector size, or a disk with {image}-byte sectors")
            }
            Refusal::Ambiguous { next, .. }
            | Refusal::Keep { next, .. }
            | Refusal::Partitions { next, .. }
            | Refusal::CannotBoot { next, .. } => (*next).to_owned(),
            Refusal::RecordArea { .. } => {
                "set `disk.record` to Skip; the next network boot cannot see then that this machine is installed"
                    .to_owned()
            }
            Refusal::NotInAnInitrd => {
                "boot this machine with an initrd that carries ironroot, or give `disk` instead of `memory`".to_owned()
            }
            Refusal::NotRunning => {
                "start the system first, from memory for instance, and run `ironroot install` in it".to_owned()
            }
            Refusal::NoRoom { more, .. } => (*more).to_owned(),
            Refusal::Preserve { trouble, .. } => trouble.next().to_owned(),
            Refusal::Upper { trouble, .. } => match trouble {
                Trouble::Missing { .. } => {
                    "compare the name with `ironroot disks`, or check that the disk's driver is loaded"
                }
                Trouble::Blank(_) | Trouble::OtherFileSystem(_) => {
                    "make a file system there, such as ext4; this never does it unasked"
                }
                Trouble::ReadOnly(_) => "check the write protection, or name another place",
                Trouble::Conflict(_) => "name another place for one of them",
                Trouble::Encrypted(_) => "name a file system that is not encrypted",
                other => other.next(),
            }
            .to_owned(),
            Refusal::NotARoot { .. } | Refusal::NotATree { .. } | Refusal::NotADiskImage { .. } => {
                "check what the image's URL serves".to_owned()
            }
        }
    }
}

/// What [`Refusal::NotADisk`] says of a path that does not exist.
pub const MISSING: &str = "does not exist";

fn list(f: &mut fmt::Formatter<'_>, candidates: &[Candidate]) -> fmt::Result {
    for c in candidates {
        write!(f, "\n  {}  {}", c.name, c.description)?;
        if !c.why.is_empty() {
            write!(f, "  ({})", c.why)?;
        }
    }
    Ok(())
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoDisk { wanted, candidates } if candidates.is_empty() => {
                write!(
                    f,
                    "no disk matches {wanted}: this machine has no disk at all"
                )
            }
            Refusal::NoDisk { wanted, candidates } => {
                write!(f, "no disk matches {wanted}; there are:")?;
                list(f, candidates)
            }
            Refusal::Ambiguous {
                wanted, candidates, ..
            } => {
                write!(f, "{} disks match {wanted}:", candidates.len())?;
                list(f, candidates)
            }
            Refusal::Ours { disk, what, why } => {
                write!(
                    f,
                    "disk {disk} holds {what}, and no other disk is taken instead: {why}"
                )
            }
            Refusal::Twice { what, candidates } => {
                write!(f, "{} disks hold {what}:", candidates.len())?;
                list(f, candidates)
            }
            Refusal::Left { disk, why } => write!(
                f,
                "disk {disk} has what is left of an installation of this claim, and no other disk is taken instead: {why}"
            ),
            Refusal::NotADisk { path, what, .. } => write!(f, "target {path} {what}"),
            Refusal::Busy { disk, holders, .. } => {
                write!(f, "disk {disk} is in use:")?;
                let lines = holders::tree(disk, holders);
                lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
            }
            Refusal::ReadOnly { disk } => write!(f, "disk {disk} is read-only"),
            Refusal::Unreadable { disk, why } => write!(
                f,
                "disk {disk} cannot be read ({why}), so whether it holds this installation is not known"
            ),
            Refusal::NotBlank { disk, found, .. } => {
                write!(f, "disk {disk} is not blank: {}", found.join(", "))
            }
            Refusal::TooSmall {
                disk,
                what,
                need,
                have,
            } => {
                write!(
                    f,
                    "disk {disk} is too small: {what} needs {need}, the disk has {have}"
                )
            }
            Refusal::SectorSize { disk, image, have } => write!(
                f,
                "the image is made for sectors of {image} bytes, disk {disk} has sectors of {have} bytes"
            ),
            Refusal::Keep { disk, what, .. } => {
                write!(
                    f,
                    "`disk.keep` cannot be carried out on disk {disk}: {what}"
                )
            }
            Refusal::Partitions { what, .. } => f.write_str(what),
            Refusal::RecordArea { why } => {
                write!(f, "the installation's record has no room: {why}")
            }
            Refusal::NotInAnInitrd => f.write_str(
                "the config wants a session from memory, which can only begin in an initrd",
            ),
            Refusal::NotRunning => {
                f.write_str("the root that is running is wanted, and here that is an initrd's")
            }
            Refusal::NotARoot { why } => {
                write!(f, "the image cannot be the root of a session: {why}")
            }
            Refusal::NoRoom {
                what, need, have, ..
            } => write!(
                f,
                "not enough memory: {what} needs {need}, there are {have}"
            ),
            Refusal::Preserve {
                target,
                source,
                trouble,
            } => write!(
                f,
                "{} cannot be preserved: source {source}: {trouble}",
                target.display()
            ),
            Refusal::Upper {
                source,
                trouble: Trouble::Blank(name),
            } => write!(
                f,
                "what is written cannot be kept on {source}: {name} is blank"
            ),
            Refusal::Upper { source, trouble } => {
                write!(f, "what is written cannot be kept on {source}: {trouble}")
            }
            Refusal::NotATree { why } => {
                write!(f, "the image cannot become the root of a disk: {why}")
            }
            Refusal::CannotBoot { why, .. } => {
                write!(f, "a disk with this tree would not boot: {why}")
            }
            Refusal::NotADiskImage { why } => write!(f, "the image is not a disk image: {why}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let class = match refusal {
            // What arrived is not what was declared: a wrong image, not a wrong disk.
            Refusal::NotADiskImage { .. } | Refusal::NotATree { .. } | Refusal::NotARoot { .. } => {
                Class::Integrity
            }
            Refusal::NoRoom { .. } => Class::Space,
            Refusal::NotInAnInitrd => Class::Usage,
            Refusal::Preserve { .. } | Refusal::Upper { .. } => Class::Preserve,
            _ => Class::Refused,
        };
        Failure::new(class, refusal.to_string()).hint(refusal.next())
    }
}

/// The contents of a disk as a refusal lists them: the first few.
pub fn summary(contents: &[Content]) -> Vec<String> {
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = contents
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    if contents.len() > SHOWN {
        lines.push(format!("and {} more", contents.len() - SHOWN));
    }
    lines
}
