//! The failures of this room: whose fault an errno is, and what the file system has left.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::error::{Class, Failure, printable};
use crate::units::Bytes;

/// A name from an archive as people can read it.
pub(super) fn shown(name: &[u8]) -> String {
    format!("\"{}\"", printable(&String::from_utf8_lossy(name)))
}

/// The archive is damaged or hostile.
pub(super) fn integrity(message: impl Into<String>) -> Failure {
    Failure::new(Class::Integrity, message)
}

/// What `doing` to the entry `path` failed with. `need` is what this entry needs, where it needs space;
/// `filesystem` is asked how much it has.
pub(super) fn failed(
    doing: &str,
    path: &[u8],
    errno: Errno,
    need: u64,
    filesystem: &impl AsFd,
) -> Failure {
    let mut message = format!("{doing} {}", shown(path));
    let class = match errno {
        Errno::ENOSPC | Errno::EDQUOT => {
            if need > 0 {
                message.push_str(&format!(" of {}", Bytes(need)));
            }
            message.push_str(&room(filesystem));
            Class::Space
        }
        Errno::ENOMEM => Class::Space,
        // Only names and numbers of the archive lead here.
        Errno::ENAMETOOLONG
        | Errno::ELOOP
        | Errno::ENOTDIR
        | Errno::EFBIG
        | Errno::EINVAL
        | Errno::EMLINK
        | Errno::EOVERFLOW => Class::Integrity,
        _ => Class::Media,
    };
    Failure::new(class, message).caused_by(errno)
}

/// As [`failed`], where no archive is to blame.
pub(super) fn failed_to_copy(
    doing: &str,
    path: &[u8],
    errno: Errno,
    need: u64,
    filesystem: &impl AsFd,
) -> Failure {
    let failure = failed(doing, path, errno, need, filesystem);
    match failure.class() {
        Class::Space => failure,
        _ => Failure::new(Class::Media, failure.to_string()).caused_by(errno),
    }
}

fn room(filesystem: &impl AsFd) -> String {
    let Ok(stat) = nix::sys::statvfs::fstatvfs(filesystem) else {
        return String::new();
    };
    let bytes = |blocks| Bytes(u64::saturating_mul(blocks, stat.fragment_size()));
    format!(
        ": the file system of {} has {} and {} of {} inodes free",
        bytes(stat.blocks()).short(),
        bytes(stat.blocks_available()),
        stat.files_available(),
        stat.files()
    )
}
