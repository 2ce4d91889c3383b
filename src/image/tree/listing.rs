//! A directory and its entries, one after the other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::{Dir, Entry, OwningIter};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// An open directory that is being read. An iterator over a borrowed [`Dir`] goes back to the first entry when it
/// is dropped, so the place is kept here.
#[derive(Debug)]
pub(super) struct Listing {
    fd: OwnedFd,
    entries: OwningIter,
}

impl Listing {
    pub(super) fn of(fd: OwnedFd) -> nix::Result<Listing> {
        // A descriptor of its own: reading moves it.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let entries = Dir::from_fd(openat(&fd, ".", flags, Mode::empty())?)?.into_iter();
        Ok(Listing { fd, entries })
    }

    pub(super) fn next(&mut self) -> Option<nix::Result<Entry>> {
        self.entries.next()
    }

    /// Begins again with the first entry.
    pub(super) fn again(&mut self) -> nix::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        self.entries = Dir::from_fd(openat(&self.fd, ".", flags, Mode::empty())?)?.into_iter();
        Ok(())
    }
}

impl AsFd for Listing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
