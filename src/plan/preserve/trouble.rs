//! What is wrong with a source, and what to do about it.

use std::fmt;

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
    /// It is in use.
    InUse(String),
    /// It has no file system, and must not get one.
    Blank(String),
    /// It holds something else than a file system.
    Occupied(String),
    /// It has another file system than the config says.
    OtherFileSystem(String),
    /// It cannot be written.
    ReadOnly(String),
    /// Another entry uses it in a way that excludes this one.
    Conflict(String),
}

impl Trouble {
    /// Whether waiting may help.
    pub fn may_heal(&self) -> bool {
        match self {
            Trouble::Missing { .. } | Trouble::Unreadable(_) | Trouble::InUse(_) => true,
            Trouble::Several(_)
            | Trouble::Blank(_)
            | Trouble::Occupied(_)
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
            Trouble::InUse(_) => "unmount it or stop what holds it",
            Trouble::Blank(_) => {
                "make a file system there, or set `format` to IfBlank and name it by partlabel, partuuid or disk"
            }
            Trouble::Occupied(_) => {
                "name another place; what is there is not erased. Where it may be lost, erase it with blkdiscard, or zero both of its ends"
            }
            Trouble::OtherFileSystem(_) => "correct `filesystem`, or leave it away",
            Trouble::ReadOnly(_) => "check the write protection, or add the option ro",
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
            Trouble::ReadOnly(name) => write!(f, "{name} is read-only"),
            Trouble::OtherFileSystem(what) | Trouble::Conflict(what) => f.write_str(what),
        }
    }
}
