//! Extended attributes (xattr(7)) of every kind of entry, and never through a symbolic link.
//!
//! What has an open descriptor is set through it. A symbolic link, a device or a FIFO cannot be opened for
//! that; it is named by its directory and its name: setxattrat(2) and its family (Linux 6.13), and before
//! that `l…xattr` on `/proc/thread-self/fd/N/NAME`, which needs a mounted /proc.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::libc;

/// Largest value, and largest list of names, that the kernel knows (include/uapi/linux/limits.h,
/// `XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub const SIZE_MAX: usize = 65536;
/// Longest name (`XATTR_NAME_MAX`).
pub const NAME_MAX: usize = 255;

/// Enough for nearly every list and value; a larger one is asked for a second time.
const USUAL: usize = 512;

/// Whose attributes.
#[derive(Clone, Copy, Debug)]
pub enum Of<'a> {
    /// Of what this descriptor is open on (not with `O_PATH`).
    Open(BorrowedFd<'a>),
    /// Of the entry with this name, one component, in this directory.
    Entry(BorrowedFd<'a>, &'a OsStr),
}

/// What the calls of this module return.
pub type Result<T> = std::result::Result<T, Errno>;

/// Sets an attribute, whether it exists or not.
pub fn set(of: Of<'_>, name: &[u8], value: &[u8]) -> Result<()> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    match of {
        Of::Open(fd) => {
            // SAFETY: name and value live across the call, and the length is that of the value.
            let answer = unsafe {
                libc::fsetxattr(
                    fd.as_raw_fd(),
                    name.as_ptr(),
                    value.as_ptr().cast(),
                    value.len(),
                    0,
                )
            };
            Errno::result(answer).map(drop)
        }
        Of::Entry(directory, entry) => {
            let by_call = |entry: &CStr| at::set(directory, entry, &name, value);
            let by_path = |path: &CStr| {
                // SAFETY: as above; the path lives across the call as well.
                let answer = unsafe {
                    libc::lsetxattr(
                        path.as_ptr(),
                        name.as_ptr(),
                        value.as_ptr().cast(),
                        value.len(),
                        0,
                    )
                };
                Errno::result(answer).map(drop)
            };
            either(directory, entry, by_call, by_path)
        }
    }
}

/// An attribute's value; `None` where there is no such attribute or the file system has none at all.
pub fn get(of: Of<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    let value = growing(|buffer| match of {
        Of::Open(fd) => {
            // SAFETY: the kernel writes at most the buffer's length into the buffer.
            let answer = unsafe {
                libc::fgetxattr(
                    fd.as_raw_fd(),
                    name.as_ptr(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                )
            };
            length(answer)
        }
        Of::Entry(directory, entry) => {
            // Both ways want the buffer, but only one is gone at a time.
            let buffer = std::cell::RefCell::new(buffer);
            let by_call = |entry: &CStr| at::get(directory, entry, &name, &mut buffer.borrow_mut());
            let by_path = |path: &CStr| {
                let mut buffer = buffer.borrow_mut();
                // SAFETY: as above; the path lives across the call as well.
                let answer = unsafe {
                    libc::lgetxattr(
                        path.as_ptr(),
                        name.as_ptr(),
                        buffer.as_mut_ptr().cast(),
                        buffer.len(),
                    )
                };
                length(answer)
            };
            either(directory, entry, by_call, by_path)
        }
    });
    match value {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The names of all attributes; none where the file system has none at all.
pub fn list(of: Of<'_>) -> Result<Vec<Vec<u8>>> {
    let names = growing(|buffer| match of {
        Of::Open(fd) => {
            // SAFETY: the kernel writes at most the buffer's length into the buffer.
            let answer = unsafe {
                libc::flistxattr(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len())
            };
            length(answer)
        }
        Of::Entry(directory, entry) => {
            let buffer = std::cell::RefCell::new(buffer);
            let by_call = |entry: &CStr| at::list(directory, entry, &mut buffer.borrow_mut());
            let by_path = |path: &CStr| {
                let mut buffer = buffer.borrow_mut();
                // SAFETY: as above; the path lives across the call as well.
                let answer = unsafe {
                    libc::llistxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
                };
                length(answer)
            };
            either(directory, entry, by_call, by_path)
        }
    });
    match names {
        Ok(names) => Ok(names
            .split(|b| *b == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect()),
        Err(Errno::EOPNOTSUPP) => Ok(Vec::new()),
        Err(errno) => Err(errno),
    }
}

/// Removes an attribute; one that is not there is no error.
pub fn remove(of: Of<'_>, name: &[u8]) -> Result<()> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    let answer = match of {
        Of::Open(fd) => {
            // SAFETY: the name lives across the call.
            let answer = unsafe { libc::fremovexattr(fd.as_raw_fd(), name.as_ptr()) };
            Errno::result(answer).map(drop)
        }
        Of::Entry(directory, entry) => {
            let by_call = |entry: &CStr| at::remove(directory, entry, &name);
            let by_path = |path: &CStr| {
                // SAFETY: path and name live across the call.
                let answer = unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) };
                Errno::result(answer).map(drop)
            };
            either(directory, entry, by_call, by_path)
        }
    };
    match answer {
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        answer => answer,
    }
}

/// Asks with a small buffer and, where that was too small, with the largest that can be needed.
fn growing(mut ask: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    for size in [USUAL, SIZE_MAX] {
        let mut buffer = vec![0; size];
        match ask(&mut buffer) {
            Err(Errno::ERANGE) => {}
            Err(errno) => return Err(errno),
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
        }
    }
    Err(Errno::ERANGE)
}

fn length(answer: libc::ssize_t) -> Result<usize> {
    Errno::result(answer).and_then(|n| usize::try_from(n).map_err(|_| Errno::EOVERFLOW))
}

/// Once the kernel has said that it lacks the `…xattrat` family, it is not asked again.
static WITHOUT_AT: AtomicBool = AtomicBool::new(false);

fn either<T>(
    directory: BorrowedFd<'_>,
    entry: &OsStr,
    by_call: impl FnOnce(&CStr) -> Result<T>,
    by_path: impl FnOnce(&CStr) -> Result<T>,
) -> Result<T> {
    // One component only: a path would be walked outside anybody's control.
    if entry.as_bytes().contains(&b'/') {
        return Err(Errno::EINVAL);
    }
    if !WITHOUT_AT.load(Ordering::Relaxed) {
        let entry = CString::new(entry.as_bytes()).map_err(|_| Errno::EINVAL)?;
        match by_call(&entry) {
            Err(Errno::ENOSYS) => WITHOUT_AT.store(true, Ordering::Relaxed),
            answer => return answer,
        }
    }
    let mut path = format!("/proc/thread-self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(entry.as_bytes());
    by_path(&CString::new(path).map_err(|_| Errno::EINVAL)?)
}

/// The calls of Linux 6.13 (include/uapi/asm-generic/unistd.h), which libc does not wrap yet.
mod at {
    use std::os::fd::AsRawFd as _;

    use super::{BorrowedFd, CStr, Errno, Result, length, libc};

    // The same on every architecture that was added to or unified with the common table.
    const SETXATTRAT: libc::c_long = 463;
    const GETXATTRAT: libc::c_long = 464;
    const LISTXATTRAT: libc::c_long = 465;
    const REMOVEXATTRAT: libc::c_long = 466;

    /// `struct xattr_args` (include/uapi/linux/xattr.h): a pointer in 64 bits on every architecture.
    #[repr(C, align(8))]
    struct Args {
        value: u64,
        size: u32,
        flags: u32,
    }

    impl Args {
        fn new(value: *const u8, size: usize) -> Result<Args> {
            Ok(Args {
                value: u64::try_from(value.addr()).map_err(|_| Errno::EOVERFLOW)?,
                size: u32::try_from(size).map_err(|_| Errno::E2BIG)?,
                flags: 0,
            })
        }
    }

    pub(super) fn set(
        directory: BorrowedFd<'_>,
        entry: &CStr,
        name: &CStr,
        value: &[u8],
    ) -> Result<()> {
        value.as_ptr().expose_provenance();
        let args = Args::new(value.as_ptr(), value.len())?;
        // SAFETY: entry, name, value and args live across the call; args tells the value's length and is
        // as long as is said.
        let answer = unsafe {
            libc::syscall(
                SETXATTRAT,
                directory.as_raw_fd(),
                entry.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                name.as_ptr(),
                &raw const args,
                size_of::<Args>(),
            )
        };
        Errno::result(answer).map(drop)
    }

    pub(super) fn get(
        directory: BorrowedFd<'_>,
        entry: &CStr,
        name: &CStr,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let start = buffer.as_mut_ptr();
        start.expose_provenance();
        let mut args = Args::new(start, buffer.len())?;
        // SAFETY: as in `set`; the kernel writes at most the buffer's length into the buffer.
        let answer = unsafe {
            libc::syscall(
                GETXATTRAT,
                directory.as_raw_fd(),
                entry.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                name.as_ptr(),
                &raw mut args,
                size_of::<Args>(),
            )
        };
        length(libc::ssize_t::try_from(answer).map_err(|_| Errno::EOVERFLOW)?)
    }

    pub(super) fn list(
        directory: BorrowedFd<'_>,
        entry: &CStr,
        buffer: &mut [u8],
    ) -> Result<usize> {
        // SAFETY: the kernel writes at most the buffer's length into the buffer.
        let answer = unsafe {
            libc::syscall(
                LISTXATTRAT,
                directory.as_raw_fd(),
                entry.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        length(libc::ssize_t::try_from(answer).map_err(|_| Errno::EOVERFLOW)?)
    }

    pub(super) fn remove(directory: BorrowedFd<'_>, entry: &CStr, name: &CStr) -> Result<()> {
        // SAFETY: entry and name live across the call.
        let answer = unsafe {
            libc::syscall(
                REMOVEXATTRAT,
                directory.as_raw_fd(),
                entry.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                name.as_ptr(),
            )
        };
        Errno::result(answer).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    fn names(of: Of<'_>) -> Vec<Vec<u8>> {
        let mut names = list(of).unwrap();
        // A file system or a security module may add names of its own.
        names.retain(|name| name.starts_with(b"user.") || name.starts_with(b"trusted."));
        names.sort();
        names
    }

    /// Needs root for `trusted.`, which every kind of entry can have.
    #[test]
    fn every_kind_of_entry_has_attributes_of_its_own_by_either_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let directory = std::fs::File::open(dir.path()).unwrap();
        let file = std::fs::File::open(dir.path().join("file")).unwrap();
        for without_at in [false, true] {
            WITHOUT_AT.store(without_at, Ordering::Relaxed);
            let entry = |name: &'static str| Of::Entry(directory.as_fd(), OsStr::new(name));
            let large = vec![7; 2000];
            for (of, name, value) in [
                (entry("link"), &b"trusted.link"[..], &large[..]),
                (entry("fifo"), b"trusted.fifo", b"f\n\0"),
                (entry("file"), b"user.file", b""),
                (Of::Open(file.as_fd()), b"user.open", b"o"),
                (Of::Open(directory.as_fd()), b"user.dir", b"d"),
            ] {
                assert_eq!(get(of, name), Ok(None));
                set(of, name, b"first").unwrap();
                set(of, name, value).unwrap();
                assert_eq!(get(of, name).unwrap().unwrap(), value);
            }
            assert_eq!(names(entry("link")), [b"trusted.link"]);
            assert_eq!(names(entry("fifo")), [b"trusted.fifo"]);
            assert_eq!(
                names(Of::Open(file.as_fd())),
                [&b"user.file"[..], b"user.open"]
            );
            assert_eq!(names(Of::Open(directory.as_fd())), [b"user.dir"]);
            for (of, name) in [
                (entry("link"), &b"trusted.link"[..]),
                (entry("fifo"), b"trusted.fifo"),
                (entry("file"), b"user.file"),
                (Of::Open(file.as_fd()), b"user.open"),
                (Of::Open(directory.as_fd()), b"user.dir"),
            ] {
                remove(of, name).unwrap();
                remove(of, name).unwrap();
                assert_eq!(get(of, name), Ok(None));
            }
            assert_eq!(set(entry("../file"), b"user.x", b""), Err(Errno::EINVAL));
            assert_eq!(set(entry("file"), b"user.\0x", b""), Err(Errno::EINVAL));
            assert_eq!(set(entry("gone"), b"user.x", b""), Err(Errno::ENOENT));
        }
        WITHOUT_AT.store(false, Ordering::Relaxed);
    }

    #[test]
    fn a_file_system_without_attributes_has_none_and_takes_none() {
        let proc = std::fs::File::open("/proc/version").unwrap();
        assert_eq!(list(Of::Open(proc.as_fd())), Ok(vec![]));
        assert_eq!(get(Of::Open(proc.as_fd()), b"user.x"), Ok(None));
        let refused = set(Of::Open(proc.as_fd()), b"user.x", b"");
        assert!(
            matches!(refused, Err(Errno::EOPNOTSUPP | Errno::EPERM)),
            "{refused:?}"
        );
    }
}
