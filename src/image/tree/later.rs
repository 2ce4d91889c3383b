//! What can only be set when everything is in place: the times of directories, which change with each entry
//! that is made in them, and ACLs with names, as the accounts of the image may come after the file.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::sys::stat::{fstatat, futimens};
use nix::sys::time::TimeSpec;

use super::accounts::ImageAccounts;
use super::acl::Acl;
use super::attributes::{Failed, set_acl, time_spec};
use super::census::{Census, bump};
use super::limits::{LATER_MAX, LATER_PATHS_MAX, WAITING_ACLS_MAX};
use super::member::Time;
use super::names::split;
use super::refusal::{failed, integrity};
use crate::error::Result;
use crate::sys::beneath::{Root, Walk};
use crate::sys::xattr::Of;

/// An ACL that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    path: Vec<u8>,
    /// The path may name something else by then.
    inode: u64,
    attribute: &'static [u8],
    acl: Acl,
}

/// Compact, as there may be as many as there are directories.
#[derive(Debug)]
struct Stamp {
    /// Where its path ends among the paths.
    end: usize,
    mtime: Time,
}

/// What is set at the end.
#[derive(Debug, Default)]
pub(super) struct Later {
    paths: Vec<u8>,
    stamps: Vec<Stamp>,
    acls: Vec<Waiting>,
}

impl Later {
    /// Remembers the time of a directory.
    pub(super) fn stamp(&mut self, path: &[u8], mtime: Time) -> Result<()> {
        let end = self.paths.len().saturating_add(path.len());
        if self.stamps.len() >= LATER_MAX || end > LATER_PATHS_MAX {
            return Err(integrity(format!(
                "the archive has more than {LATER_MAX} directories, or more than {LATER_PATHS_MAX} bytes of their names"
            )));
        }
        self.paths.extend_from_slice(path);
        self.stamps.push(Stamp { end, mtime });
        Ok(())
    }

    /// Remembers an ACL. Where too many wait, all are set by the accounts that are there by now.
    pub(super) fn acl(
        &mut self,
        path: &[u8],
        inode: u64,
        attribute: &'static [u8],
        acl: Acl,
        root: &Root,
        census: &mut Census,
    ) -> Result<()> {
        if self.acls.len() >= WAITING_ACLS_MAX {
            self.set_acls(root, census)?;
        }
        self.acls.push(Waiting {
            path: path.to_vec(),
            inode,
            attribute,
            acl,
        });
        Ok(())
    }

    /// Sets everything.
    pub(super) fn finish(mut self, root: &Root, census: &mut Census) -> Result<()> {
        self.set_acls(root, census)?;
        let mut start = 0;
        // Setting a time changes no other directory's, so the order is free; of two times for one directory
        // the later counts.
        for stamp in &self.stamps {
            let path = self.paths.get(start..stamp.end).unwrap_or_default();
            start = stamp.end;
            // Something that came later may have taken its place.
            let walk = Walk::InRoot;
            let directory = match root.directory_itself(Path::new(OsStr::from_bytes(path)), walk) {
                Err(error) if error.is_missing() => continue,
                found => found?,
            };
            futimens(directory, &TimeSpec::UTIME_OMIT, &time_spec(stamp.mtime))
                .map_err(|errno| failed("setting the times of", path, errno, 0, root))?;
        }
        Ok(())
    }

    fn set_acls(&mut self, root: &Root, census: &mut Census) -> Result<()> {
        if self.acls.is_empty() {
            return Ok(());
        }
        let accounts = ImageAccounts::of(root);
        for waiting in std::mem::take(&mut self.acls) {
            let (parent, name) = split(&waiting.path);
            let walk = Walk::InRoot;
            let parent = match root.directory(Path::new(OsStr::from_bytes(parent)), walk) {
                Err(error) if error.is_missing() => continue,
                found => found?,
            };
            // The root has no name in any directory of its own.
            let name = OsStr::from_bytes(if name.is_empty() { b"." } else { name });
            let follow = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
            if !fstatat(&parent, name, follow).is_ok_and(|stat| stat.st_ino == waiting.inode) {
                continue;
            }
            let (value, unknown) = waiting.acl.encode(&accounts);
            bump(&mut census.unknown_acl_names, unknown);
            set_acl(
                Of::Entry(parent.as_fd(), name),
                waiting.attribute,
                &value,
                census,
            )
            .map_err(|Failed { doing, errno }| failed(doing, &waiting.path, errno, 0, root))?;
        }
        Ok(())
    }
}
