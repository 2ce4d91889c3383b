//! Paths inside a directory that is the root of everything asked of it: openat2(2) resolves them in the
//! kernel, so that no `..` and no symbolic link, whoever made it, leads out (Linux 5.6 or later).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, mkdirat};

use crate::error::{Class, Failure};

/// What was tried on a path inside a root, and what the kernel answered.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {path:?} in {root:?}")]
pub struct Error {
    doing: &'static str,
    path: PathBuf,
    root: PathBuf,
    /// The kernel's answer.
    #[source]
    pub errno: Errno,
}

impl Error {
    /// Whether the path leads to nothing: it is absent, runs through a file, or its links run in circles.
    pub fn is_missing(&self) -> bool {
        matches!(self.errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP)
    }

    /// As a failure of `class`; no space is always [`Class::Space`].
    pub fn of_class(self, class: Class) -> Failure {
        let class = match self.errno {
            Errno::ENOSPC | Errno::EDQUOT | Errno::ENOMEM => Class::Space,
            _ => class,
        };
        Failure::new(class, self.to_string()).caused_by(self.errno)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        error.of_class(Class::Media)
    }
}

/// What the calls of this module return.
pub type Result<T> = std::result::Result<T, Error>;

/// How a path is walked. None leads out of the root, and none goes through a magic link of /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Symbolic links are followed as if the process had changed its root (`lib -> usr/lib`, `/run`).
    InRoot,
    /// A symbolic link anywhere is an error (`ELOOP`), and so is a way out by `..` (`EXDEV`).
    NoLinks,
    /// As [`Walk::NoLinks`], and a mount point on the way is an error as well (`EXDEV`).
    NoLinksOneFilesystem,
}

impl Walk {
    fn flags(self) -> ResolveFlag {
        let strict = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        match self {
            Walk::InRoot => ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS,
            Walk::NoLinks => strict,
            Walk::NoLinksOneFilesystem => strict | ResolveFlag::RESOLVE_NO_XDEV,
        }
    }
}

/// openat2(2) answers `EAGAIN` when anything on this machine was renamed or mounted while it walked a `..`: in
/// an initrd udevd renames without a pause while it looks at the devices. So often it is asked again, with a
/// pause that grows up to [`LONGEST_PAUSE`]: two seconds in all.
const ATTEMPTS: u32 = 128;
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// As many links as the kernel follows (path_resolution(7)).
const LINKS: usize = 40;

/// A directory; every path given to it is meant inside it, with or without a leading `/`.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    name: PathBuf,
}

impl AsFd for Root {
    /// The directory itself, opened with `O_PATH`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Root {
    /// The directory at `path`, which is resolved as any path of this process.
    pub fn open(path: &Path) -> Result<Root> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match nix::fcntl::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Root {
                fd,
                name: path.to_owned(),
            }),
            Err(errno) => Err(Error {
                doing: "opening the directory",
                path: ".".into(),
                root: path.to_owned(),
                errno,
            }),
        }
    }

    /// The directory behind a descriptor of any kind; `name` stands for it in messages.
    pub fn of(fd: &impl AsFd, name: impl Into<PathBuf>) -> Result<Root> {
        let name = name.into();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(fd, ".", flags, Mode::empty()) {
            Ok(fd) => Ok(Root { fd, name }),
            Err(errno) => Err(Error {
                doing: "opening the directory",
                path: ".".into(),
                root: name,
                errno,
            }),
        }
    }

    /// What messages call this root.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// What `path` leads to, with `O_PATH`: opening it has no effect on devices and FIFOs.
    pub fn handle(&self, path: &Path, walk: Walk) -> Result<OwnedFd> {
        self.attempt("looking up", path, walk, OFlag::O_PATH)
    }

    /// The entry itself with `O_PATH`; a symbolic link as the last component is not followed.
    pub fn entry(&self, path: &Path, walk: Walk) -> Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        // With NO_SYMLINKS even the last component would be refused: its parent is walked instead.
        match Self::split(path) {
            Some((parent, name)) if walk != Walk::InRoot => {
                let parent = self.attempt("looking up", parent, walk, OFlag::O_PATH)?;
                let flags = flags | OFlag::O_CLOEXEC;
                openat(parent, name, flags, Mode::empty())
                    .map_err(|errno| self.error("looking up", path, errno))
            }
            _ => self.attempt("looking up", path, walk, flags),
        }
    }

    /// The directory that `path` leads to, opened for reading, so that its attributes can be set as well.
    pub fn directory(&self, path: &Path, walk: Walk) -> Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        self.attempt("opening the directory", path, walk, flags)
    }

    /// As [`Root::directory`], but a symbolic link as the last component is not followed.
    pub fn directory_itself(&self, path: &Path, walk: Walk) -> Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        self.attempt("opening the directory", path, walk, flags)
    }

    /// The regular file that `path` leads to, for reading. Anything else is refused (`EINVAL`) before it is
    /// opened: opening a device may have effects, and opening a FIFO waits.
    pub fn file(&self, path: &Path, walk: Walk) -> Result<File> {
        let doing = "opening the file";
        let regular = |fd: &OwnedFd| {
            let stat = fstat(fd).map_err(|errno| self.error(doing, path, errno))?;
            match kind(&stat) {
                SFlag::S_IFREG => Ok(()),
                SFlag::S_IFDIR => Err(self.error(doing, path, Errno::EISDIR)),
                _ => Err(self.error(doing, path, Errno::EINVAL)),
            }
        };
        regular(&self.handle(path, walk)?)?;
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let fd = self.attempt(doing, path, walk, flags)?;
        regular(&fd)?;
        Ok(File::from(fd))
    }

    /// The contents of a regular file of at most `limit` bytes; a larger one is an error (`EFBIG`).
    pub fn read(&self, path: &Path, walk: Walk, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(path, walk)?
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|e| self.error("reading", path, errno(&e)))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length <= limit) {
            Ok(bytes)
        } else {
            Err(self.error("reading", path, Errno::EFBIG))
        }
    }

    /// stat(2) of what `path` leads to.
    pub fn stat(&self, path: &Path, walk: Walk) -> Result<FileStat> {
        fstat(self.handle(path, walk)?).map_err(|errno| self.error("looking up", path, errno))
    }

    /// Whether `path` leads to anything.
    pub fn exists(&self, path: &Path, walk: Walk) -> Result<bool> {
        match self.handle(path, walk) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The text of the symbolic link at `path`.
    pub fn read_link(&self, path: &Path, walk: Walk) -> Result<OsString> {
        // An empty name means the link that the descriptor itself stands for (readlinkat(2)).
        readlinkat(self.entry(path, walk)?, "")
            .map_err(|errno| self.error("reading the link", path, errno))
    }

    /// Where `path` leads to: its links are followed inside the root as far as they are there, and the rest of it is
    /// taken as it is written. For comparing places; a descriptor is the way to use one.
    ///
    /// # Errors
    /// `ELOOP` after [`LINKS`] links; whatever reading one of them answers.
    pub fn real_path(&self, path: &Path) -> Result<PathBuf> {
        self.way(path, &mut |_| true)
    }

    /// As [`Root::real_path`], where `trusts` is asked for the directory of each link: one that is in a directory which is
    /// not trusted is an error (`ELOOP`).
    pub fn way(&self, path: &Path, trusts: &mut dyn FnMut(&OwnedFd) -> bool) -> Result<PathBuf> {
        let parts = |path: &Path| -> Vec<OsString> {
            path.components()
                .rev()
                .map(|part| part.as_os_str().to_owned())
                .collect()
        };
        let mut left = parts(path);
        let mut real = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop() {
            match part.as_bytes() {
                b"/" => real = PathBuf::from("/"),
                b"." => {}
                b".." => drop(real.pop()),
                _ => {
                    let next = real.join(&part);
                    match self.read_link(&next, Walk::NoLinks) {
                        Ok(_) if links == LINKS => {
                            return Err(self.error("looking up", path, Errno::ELOOP));
                        }
                        Ok(link) => {
                            if !trusts(&self.handle(&real, Walk::NoLinks)?) {
                                return Err(self.error("following a link at", &next, Errno::ELOOP));
                            }
                            links += 1;
                            left.extend(parts(Path::new(&link)));
                        }
                        // ENOENT: no link, or nothing at all (readlinkat(2), an empty name).
                        Err(error) if error.is_missing() || error.errno == Errno::EINVAL => {
                            real = next;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(real)
    }

    /// The directory that holds the last component of `path`, opened for reading, and that component.
    pub fn parent<'p>(&self, path: &'p Path, walk: Walk) -> Result<(OwnedFd, &'p OsStr)> {
        let (parent, name) = Self::split(path)
            .ok_or_else(|| self.error("looking up the parent of", path, Errno::EINVAL))?;
        Ok((self.directory(parent, walk)?, name))
    }

    /// Makes one directory, whose parent exists, with exactly this mode, and opens it for reading.
    pub fn make_directory(&self, path: &Path, mode: u32, walk: Walk) -> Result<OwnedFd> {
        let (parent, name) = self.parent(path, walk)?;
        make_directory_at(&parent, name, mode)
            .map_err(|errno| self.error("making the directory", path, errno))
    }

    /// Opens the directory at `path`; those components that are missing are made, with exactly this mode.
    pub fn make_directories(&self, path: &Path, mode: u32, walk: Walk) -> Result<OwnedFd> {
        let mut here = match self.directory(path, walk) {
            Err(error) if error.errno == Errno::ENOENT => self.directory(Path::new(""), walk)?,
            found => return found,
        };
        let mut walked = PathBuf::new();
        for name in inside(path).components() {
            walked.push(name);
            here = match self.directory(&walked, walk) {
                Err(error) if error.errno == Errno::ENOENT => {
                    match make_directory_at(&here, name.as_os_str(), mode) {
                        // A dangling link: EEXIST would puzzle whoever was told that it does not exist.
                        Err(Errno::EEXIST) => return Err(error),
                        answer => answer
                            .map_err(|errno| self.error("making the directory", &walked, errno))?,
                    }
                }
                found => found?,
            };
        }
        Ok(here)
    }

    /// Makes a regular file, which must not exist, with exactly this mode, for writing.
    pub fn create_file(&self, path: &Path, mode: u32, walk: Walk) -> Result<File> {
        let (parent, name) = self.parent(path, walk)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(parent, name, flags, Mode::from_bits_truncate(0o600))
            // The mode at creation is cut by the process's umask.
            .and_then(|fd| fchmod(&fd, Mode::from_bits_truncate(mode)).map(|()| File::from(fd)))
            .map_err(|errno| self.error("creating the file", path, errno))
    }

    fn attempt(
        &self,
        doing: &'static str,
        path: &Path,
        walk: Walk,
        flags: OFlag,
    ) -> Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(walk.flags());
        patiently(&self.fd, inside(path), how).map_err(|errno| self.error(doing, path, errno))
    }

    /// Parent and last component; `None` where the path has none (`/`, `a/..`).
    fn split(path: &Path) -> Option<(&Path, &OsStr)> {
        Some((path.parent()?, path.file_name()?))
    }

    fn error(&self, doing: &'static str, path: &Path, errno: Errno) -> Error {
        Error {
            doing,
            path: path.to_owned(),
            root: self.name.clone(),
            errno,
        }
    }
}

/// openat2(2), asked again as long as the answer is that something else moved meanwhile.
///
/// # Errors
/// As openat2(2); `EAGAIN` only where two seconds did not suffice.
pub fn patiently(directory: impl AsFd, path: &Path, how: OpenHow) -> nix::Result<OwnedFd> {
    asked_again(|| openat2(directory.as_fd(), path, how), std::thread::sleep)
}

fn asked_again<T>(
    mut ask: impl FnMut() -> nix::Result<T>,
    mut pause: impl FnMut(Duration),
) -> nix::Result<T> {
    let mut wait = Duration::ZERO;
    for _ in 1..ATTEMPTS {
        match ask() {
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                pause(wait);
                wait = (wait + Duration::from_millis(1)).min(LONGEST_PAUSE);
            }
            answer => return answer,
        }
    }
    ask()
}

/// The type bits of a mode.
pub fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Makes the directory `name` in `parent` with exactly this mode and opens it for reading. `name` is one
/// component; a symbolic link is not followed.
pub fn make_directory_at(
    parent: &impl AsFd,
    name: &OsStr,
    mode: u32,
) -> std::result::Result<OwnedFd, Errno> {
    mkdirat(parent, name, Mode::from_bits_truncate(0o700))?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(parent, name, flags, Mode::empty())?;
    fchmod(&fd, Mode::from_bits_truncate(mode))?;
    Ok(fd)
}

/// Without leading slashes, which only `RESOLVE_IN_ROOT` takes for the root; the root itself is `.`.
fn inside(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let start = bytes.iter().take_while(|b| **b == b'/').count();
    match bytes.get(start..) {
        Some(rest) if !rest.is_empty() => Path::new(OsStr::from_bytes(rest)),
        _ => Path::new("."),
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests;
