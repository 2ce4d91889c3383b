//! Sets what is said of an entry on the entry, in the order that loses nothing: owner, mode, attributes,
//! times. chown(2) takes the setuid bits and `security.capability` away, so both come after it.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, Mode, UtimensatFlags, fchmod, fchmodat, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat};

use super::census::{Census, bump};
use super::member::{Time, Xattr};
use crate::sys::xattr::{self, Of};

/// The attributes that ACLs are (include/uapi/linux/xattr.h).
pub(super) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// What was tried and the kernel's answer; the caller knows the path.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) doing: &'static str,
    pub(super) errno: Errno,
}

/// Makes the kernel's answer a [`Failed`].
fn doing(doing: &'static str) -> impl Fn(Errno) -> Failed {
    move |errno| Failed { doing, errno }
}

/// An entry on its way to its attributes. It was made by us, or it is an open directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) of: Of<'a>,
    /// A symbolic link has no mode.
    pub(super) is_link: bool,
}

impl<'a> Subject<'a> {
    /// What this descriptor is open on.
    pub(super) fn open(fd: BorrowedFd<'a>) -> Subject<'a> {
        Subject {
            of: Of::Open(fd),
            is_link: false,
        }
    }

    /// An entry that is not opened.
    pub(super) fn entry(directory: BorrowedFd<'a>, name: &'a OsStr, is_link: bool) -> Subject<'a> {
        Subject {
            of: Of::Entry(directory, name),
            is_link,
        }
    }

    pub(super) fn owner(&self, uid: u32, gid: u32) -> Result<(), Failed> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self.of {
            Of::Open(fd) => fchown(fd, uid, gid),
            Of::Entry(directory, name) => {
                fchownat(directory, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
            }
        }
        .map_err(doing("setting the owner of"))
    }

    pub(super) fn mode(&self, mode: u32) -> Result<(), Failed> {
        let mode = Mode::from_bits_truncate(mode);
        match self.of {
            _ if self.is_link => Ok(()),
            Of::Open(fd) => fchmod(fd, mode),
            // We made it, and not as a link.
            Of::Entry(directory, name) => {
                fchmodat(directory, name, mode, FchmodatFlags::FollowSymlink)
            }
        }
        .map_err(doing("setting the mode of"))
    }

    /// Without `atime`, the time of the last access stays.
    pub(super) fn times(&self, mtime: Time, atime: Option<Time>) -> Result<(), Failed> {
        let atime = atime.map_or(TimeSpec::UTIME_OMIT, time_spec);
        let mtime = time_spec(mtime);
        match self.of {
            Of::Open(fd) => futimens(fd, &atime, &mtime),
            Of::Entry(directory, name) => {
                let flag = UtimensatFlags::NoFollowSymlink;
                utimensat(directory, name, &atime, &mtime, flag)
            }
        }
        .map_err(doing("setting the times of"))
    }

    /// Takes away the ACLs that a new entry got from its directory's default ACL; before [`Subject::mode`],
    /// as they change what the mode means.
    pub(super) fn drop_inherited_acl(&self) -> Result<(), Failed> {
        if self.is_link {
            return Ok(());
        }
        for name in [ACL_ACCESS, ACL_DEFAULT] {
            xattr::remove(self.of, name).map_err(doing("removing the inherited ACL of"))?;
        }
        Ok(())
    }

    /// Sets attributes. Those of the namespace `trusted` and those that the file system does not take are
    /// counted; what it should take and does not is an error.
    pub(super) fn xattrs(&self, xattrs: &[Xattr], census: &mut Census) -> Result<(), Failed> {
        for (name, value) in xattrs {
            if name.starts_with(b"trusted.") {
                bump(&mut census.dropped_trusted, 1);
                continue;
            }
            match xattr::set(self.of, name, value) {
                Ok(()) => {}
                Err(errno) if is_refusal(name, errno) => census.refused(name),
                Err(errno) => {
                    return Err(Failed {
                        doing: what(name),
                        errno,
                    });
                }
            }
        }
        Ok(())
    }

    /// Removes what an older entry of this name had and the new one has not. Labels stay: the kernel's
    /// security module puts them on by itself.
    pub(super) fn drop_stale_xattrs(&self, keep: &[Xattr]) -> Result<(), Failed> {
        let names = xattr::list(self.of).map_err(doing("listing the attributes of"))?;
        for name in names {
            let ours = name.starts_with(b"user.")
                || name == b"security.capability"
                || name == ACL_ACCESS
                || name == ACL_DEFAULT;
            if ours && !keep.iter().any(|(kept, _)| *kept == name) {
                xattr::remove(self.of, &name).map_err(doing("removing old attributes of"))?;
            }
        }
        Ok(())
    }
}

/// Sets an ACL, or counts that the file system has none.
pub(super) fn set_acl(
    of: Of<'_>,
    attribute: &'static [u8],
    value: &[u8],
    census: &mut Census,
) -> Result<(), Failed> {
    match xattr::set(of, attribute, value) {
        Err(errno) if is_refusal(attribute, errno) => census.refused(attribute),
        answer => answer.map_err(doing(what(attribute)))?,
    }
    Ok(())
}

/// Whether the answer means "not on this file system" or "not on this kind of entry".
fn is_refusal(name: &[u8], errno: Errno) -> bool {
    // Only regular files and directories can have attributes of users (xattr(7)).
    errno == Errno::EOPNOTSUPP || (errno == Errno::EPERM && name.starts_with(b"user."))
}

fn what(name: &[u8]) -> &'static str {
    match name {
        b"security.capability" => "setting the capabilities of",
        b"security.selinux" => "setting the SELinux label of",
        ACL_ACCESS | ACL_DEFAULT => "setting the ACL of",
        _ => "setting an extended attribute of",
    }
}

/// As the kernel takes it.
pub(super) fn time_spec(time: Time) -> TimeSpec {
    TimeSpec::new(time.seconds, time.nanoseconds.into())
}
