//! The directories that entries are made in, kept open: an archive's entries stand together by directory, so
//! that most need no walk at all.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::stat::fstat;

use super::attributes::ACL_DEFAULT;
use super::refusal::{failed, integrity, shown};
use crate::error::Result;
use crate::sys::beneath::{Error, Root, Walk};
use crate::sys::xattr::{self, Of};

/// Directories that stay open: a path and what lies beside it.
const KEPT: usize = 16;

/// Device and inode number.
pub(super) type Id = (u64, u64);

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    /// Whether what is made in it gets an ACL from it.
    pub(super) bequeaths_acl: bool,
    pub(super) id: Id,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    pub(super) fn new(fd: OwnedFd) -> std::result::Result<Directory, Errno> {
        let stat = fstat(&fd)?;
        let acl = xattr::get(Of::Open(fd.as_fd()), ACL_DEFAULT)?;
        Ok(Directory {
            fd,
            bequeaths_acl: acl.is_some(),
            id: (stat.st_dev, stat.st_ino),
        })
    }
}

/// The open directories by their paths, the last used one first.
#[derive(Debug)]
pub(super) struct Parents<'r> {
    root: &'r Root,
    kept: Vec<(Vec<u8>, Rc<Directory>)>,
}

impl<'r> Parents<'r> {
    pub(super) fn new(root: &'r Root) -> Parents<'r> {
        Parents {
            root,
            kept: Vec::with_capacity(KEPT),
        }
    }

    /// The directory at `path`; symbolic links on the way are followed inside the root. `None` if there is
    /// none.
    pub(super) fn find(&mut self, path: &[u8]) -> Result<Option<Rc<Directory>>> {
        if let Some(at) = self.kept.iter().position(|(known, _)| known == path) {
            let found = self.kept.remove(at);
            let directory = Rc::clone(&found.1);
            self.kept.insert(0, found);
            return Ok(Some(directory));
        }
        match self
            .root
            .directory(Path::new(OsStr::from_bytes(path)), Walk::InRoot)
        {
            Ok(fd) => self.keep(path, fd).map(Some),
            Err(error) if error.errno == Errno::ENOENT => Ok(None),
            Err(error) => Err(Self::wrong(path, error)),
        }
    }

    /// Makes the directory at `path` and those above it that are missing, with mode 0755.
    pub(super) fn make(&mut self, path: &[u8]) -> Result<Rc<Directory>> {
        let made = self
            .root
            .make_directories(Path::new(OsStr::from_bytes(path)), 0o755, Walk::InRoot)
            .map_err(|error| Self::wrong(path, error))?;
        self.keep(path, made)
    }

    /// Keeps an open directory.
    pub(super) fn keep(&mut self, path: &[u8], fd: OwnedFd) -> Result<Rc<Directory>> {
        let directory = Directory::new(fd)
            .map_err(|errno| failed("looking at the directory", path, errno, 0, self.root))?;
        let directory = Rc::new(directory);
        self.kept.retain(|(known, _)| known != path);
        self.kept.truncate(KEPT.saturating_sub(1));
        self.kept.insert(0, (path.to_vec(), Rc::clone(&directory)));
        Ok(directory)
    }

    /// Must be called when a directory or a symbolic link is removed: paths may lead elsewhere then.
    pub(super) fn forget(&mut self) {
        self.kept.clear();
    }

    fn wrong(path: &[u8], error: Error) -> crate::error::Failure {
        match error.errno {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => integrity(format!(
                "the archive has entries in {}, which is no directory, or a link that leads to none",
                shown(path)
            ))
            .caused_by(error.errno),
            _ => error.into(),
        }
    }
}
