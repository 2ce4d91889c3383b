//! One entry of an archive takes its place in the tree.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, ftruncate, linkat, symlinkat, unlinkat, write};

use super::acl::Acl;
use super::archive::Archive;
use super::attributes::{ACL_ACCESS, ACL_DEFAULT, Failed, Subject, set_acl};
use super::census::bump;
use super::ledger::Content;
use super::member::{Attributes, Kind, Member};
use super::names::{clean, split};
use super::parents::Directory;
use super::refusal::{failed, integrity, shown};
use super::remove::clear;
use super::unpack::Unpacking;
use super::whiteout;
use crate::error::{Failure, Result};
use crate::sys::beneath::{Walk, kind};
use crate::units::Bytes;

/// Where an entry goes.
struct Spot<'a> {
    path: &'a [u8],
    parent: &'a Directory,
    name: &'a OsStr,
}

impl Unpacking<'_> {
    /// Puts an entry with this clean path in its place.
    pub(super) fn place(
        &mut self,
        path: &[u8],
        member: &Member,
        archive: &mut Archive<'_>,
    ) -> Result<()> {
        if path.is_empty() {
            return self.place_root(member);
        }
        let (parent_path, name) = split(path);
        if self.layer.is_some()
            && let Some(what) = whiteout::read(name)?
        {
            return self.white_out(parent_path, what);
        }
        let parent = if let Some(parent) = self.parents.find(parent_path)? {
            parent
        } else {
            bump(&mut self.census.implied_directories, 1);
            self.parents.make(parent_path)?
        };
        let spot = Spot {
            path,
            parent: &parent,
            name: OsStr::from_bytes(name),
        };
        if let Some(layer) = &mut self.layer {
            layer.saw(parent.id, spot.name);
        }
        match &member.kind {
            Kind::File => self.file(&spot, member, archive),
            Kind::Directory => self.directory(&spot, &member.attributes),
            Kind::Symlink(text) => self.symlink(&spot, text, &member.attributes),
            Kind::HardLink(target) => self.hard_link(&spot, target),
            Kind::CharDevice(device) => {
                self.node(&spot, SFlag::S_IFCHR, *device, &member.attributes)
            }
            Kind::BlockDevice(device) => {
                self.node(&spot, SFlag::S_IFBLK, *device, &member.attributes)
            }
            Kind::Fifo => self.node(&spot, SFlag::S_IFIFO, 0, &member.attributes),
        }
    }

    /// The root itself: it stays, and gets the attributes.
    fn place_root(&mut self, member: &Member) -> Result<()> {
        if member.kind != Kind::Directory {
            return Err(integrity(format!(
                "the archive's entry {} is the root of the tree, and no directory",
                shown(&member.path)
            )));
        }
        let fd = self.root.directory(Path::new(""), Walk::InRoot)?;
        self.settle_directory(b"", &fd, false, false, &member.attributes)?;
        self.parents.keep(b"", fd)?;
        Ok(())
    }

    fn directory(&mut self, spot: &Spot<'_>, attributes: &Attributes) -> Result<()> {
        let attempt = || mkdirat(spot.parent, spot.name, Mode::S_IRWXU);
        let is_new = match attempt() {
            Err(Errno::EEXIST) if self.is_directory(spot)? => false,
            Err(Errno::EEXIST) => {
                self.remove(spot)?;
                attempt().map_err(|errno| self.failed("making the directory", spot, errno))?;
                true
            }
            answer => {
                answer.map_err(|errno| self.failed("making the directory", spot, errno))?;
                true
            }
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(spot.parent, spot.name, flags, Mode::empty())
            .map_err(|errno| self.failed("opening the directory", spot, errno))?;
        let inherits = is_new && spot.parent.bequeaths_acl;
        self.settle_directory(spot.path, &fd, is_new, inherits, attributes)?;
        // Most likely what comes next is in it.
        self.parents.keep(spot.path, fd)?;
        Ok(())
    }

    fn settle_directory(
        &mut self,
        path: &[u8],
        fd: &OwnedFd,
        is_new: bool,
        inherits: bool,
        attributes: &Attributes,
    ) -> Result<()> {
        bump(&mut self.census.directories, 1);
        let subject = Subject::open(fd.as_fd());
        if !is_new {
            let dropped = subject.drop_stale_xattrs(&attributes.xattrs);
            dropped.map_err(|e| self.not_set(path, &e))?;
        }
        self.attributes(path, subject, inherits, attributes)?;
        self.later.stamp(path, attributes.mtime)
    }

    fn file(&mut self, spot: &Spot<'_>, member: &Member, archive: &mut Archive<'_>) -> Result<()> {
        let total = self.census.bytes.saturating_add(member.stored);
        if total > self.options.limits.bytes {
            return Err(integrity(format!(
                "the archive has more than {} of content",
                Bytes(self.options.limits.bytes)
            )));
        }
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = self.make(spot, "creating the file", || {
            openat(spot.parent, spot.name, flags, Mode::S_IRUSR | Mode::S_IWUSR)
        })?;
        self.content(spot, member, &fd, archive)?;
        bump(&mut self.census.files, 1);
        let subject = Subject::open(fd.as_fd());
        self.settle(spot, subject, &member.attributes)
    }

    fn content(
        &mut self,
        spot: &Spot<'_>,
        member: &Member,
        fd: &OwnedFd,
        archive: &mut Archive<'_>,
    ) -> Result<()> {
        let mut sum = self.ledger.as_ref().map(|_| Content::default());
        let Some(map) = &member.sparse else {
            let stored = member.stored;
            self.piece(spot, (0, stored), stored, (fd, &mut sum), archive)?;
            return self.remember(spot, fd, sum.map(|sum| sum.finish(stored)));
        };
        for (start, length) in map.segments() {
            let offset = i64::try_from(*start).map_err(|_| {
                Archive::wrong(
                    spot.path,
                    "sparse file: a piece lies past the end of any file",
                )
            })?;
            nix::unistd::lseek(fd, offset, nix::unistd::Whence::SeekSet)
                .map_err(|errno| self.failed("writing", spot, errno))?;
            let place = (*start, *length);
            self.piece(spot, place, member.stored, (fd, &mut sum), archive)?;
        }
        let size = i64::try_from(map.size())
            .map_err(|_| Archive::wrong(spot.path, "sparse file: it is longer than any file"))?;
        ftruncate(fd, size).map_err(|errno| self.failed("setting the size of", spot, errno))?;
        self.remember(spot, fd, sum.map(|sum| sum.finish(map.size())))
    }

    /// Remembers the content of a file, where somebody wants it.
    fn remember(&mut self, spot: &Spot<'_>, fd: &OwnedFd, sum: Option<u64>) -> Result<()> {
        let (Some(ledger), Some(sum)) = (&mut self.ledger, sum) else {
            return Ok(());
        };
        let stat =
            fstat(fd).map_err(|errno| failed("looking at", spot.path, errno, 0, self.root))?;
        ledger.remember(stat.st_ino, sum)
    }

    /// As many bytes to where the descriptor stands, which is at `start`; the file needs `need` in all.
    fn piece(
        &mut self,
        spot: &Spot<'_>,
        (start, length): (u64, u64),
        need: u64,
        (fd, sum): (&OwnedFd, &mut Option<Content>),
        archive: &mut Archive<'_>,
    ) -> Result<()> {
        let mut left = length;
        while left > 0 {
            let bytes = archive.content(left)?;
            if bytes.is_empty() {
                return Err(Archive::wrong(spot.path, "it is shorter than it says"));
            }
            let count = match write(fd, bytes) {
                Err(Errno::EINTR) => continue,
                Ok(0) => Err(Errno::EIO),
                answer => answer,
            }
            .map_err(|errno| failed("writing", spot.path, errno, need, self.root))?;
            if let Some(sum) = sum {
                let at = start.saturating_add(length.saturating_sub(left));
                sum.put(at, bytes.get(..count).unwrap_or_default());
            }
            archive.taken(count);
            let count = u64::try_from(count).unwrap_or(left).min(left);
            left = left.saturating_sub(count);
            bump(&mut self.census.bytes, count);
            self.options.progress.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    fn symlink(&mut self, spot: &Spot<'_>, text: &[u8], attributes: &Attributes) -> Result<()> {
        if text.is_empty() || text.contains(&0) {
            return Err(Archive::wrong(
                spot.path,
                "a symbolic link to nothing that can be named",
            ));
        }
        self.make(spot, "making the symbolic link", || {
            symlinkat(OsStr::from_bytes(text), spot.parent, spot.name)
        })?;
        bump(&mut self.census.symlinks, 1);
        let subject = Subject::entry(spot.parent.as_fd(), spot.name, true);
        self.settle(spot, subject, attributes)
    }

    fn node(
        &mut self,
        spot: &Spot<'_>,
        kind: SFlag,
        device: nix::sys::stat::dev_t,
        attributes: &Attributes,
    ) -> Result<()> {
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        self.make(spot, "making the device", || {
            mknodat(spot.parent, spot.name, kind, mode, device)
        })?;
        let count = if kind == SFlag::S_IFIFO {
            &mut self.census.fifos
        } else {
            &mut self.census.devices
        };
        bump(count, 1);
        let subject = Subject::entry(spot.parent.as_fd(), spot.name, false);
        self.settle(spot, subject, attributes)
    }

    /// A further name of a file (or a symbolic link, a device) that is in the tree. What the archive says of
    /// its attributes was said of the first name.
    fn hard_link(&mut self, spot: &Spot<'_>, target: &[u8]) -> Result<()> {
        let wrong = |what: &str| {
            integrity(format!(
                "the archive makes {} a hard link to {}, which {what}",
                shown(spot.path),
                shown(target)
            ))
        };
        let clean = clean(target, self.options.limits.depth)?;
        let (parent, name) = split(&clean);
        let name = OsStr::from_bytes(name);
        if name.is_empty() {
            return Err(wrong("is the root of the tree"));
        }
        let from = self
            .parents
            .find(parent)?
            .ok_or_else(|| wrong("is not in the tree"))?;
        let follow = AtFlags::AT_SYMLINK_NOFOLLOW;
        let stat = match fstatat(&*from, name, follow) {
            Err(Errno::ENOENT) => return Err(wrong("is not in the tree")),
            stat => stat.map_err(|errno| self.failed("looking up the target of", spot, errno))?,
        };
        if kind(&stat) == SFlag::S_IFDIR {
            return Err(wrong("is a directory"));
        }
        // Removing what is there would remove the target where they are the same file already.
        let same = fstatat(spot.parent, spot.name, follow)
            .is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino));
        if !same {
            self.make(spot, "making the hard link", || {
                linkat(&*from, name, spot.parent, spot.name, AtFlags::empty())
            })?;
        }
        bump(&mut self.census.hard_links, 1);
        Ok(())
    }

    /// Makes a new entry; what stands in its place is removed, never opened.
    fn make<T>(
        &mut self,
        spot: &Spot<'_>,
        doing: &str,
        attempt: impl Fn() -> nix::Result<T>,
    ) -> Result<T> {
        match attempt() {
            Err(Errno::EEXIST) => {
                self.remove(spot)?;
                attempt()
            }
            answer => answer,
        }
        .map_err(|errno| self.failed(doing, spot, errno))
    }

    fn is_directory(&self, spot: &Spot<'_>) -> Result<bool> {
        let stat = fstatat(spot.parent, spot.name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed("looking at", spot, errno))?;
        Ok(kind(&stat) == SFlag::S_IFDIR)
    }

    /// Removes what stands where an entry goes, of whatever kind, with all that is in it.
    fn remove(&mut self, spot: &Spot<'_>) -> Result<()> {
        bump(&mut self.census.replaced, 1);
        let wrong = |errno| failed("replacing", spot.path, errno, 0, self.root);
        let follow = AtFlags::AT_SYMLINK_NOFOLLOW;
        let stat = fstatat(spot.parent, spot.name, follow).map_err(wrong)?;
        if matches!(kind(&stat), SFlag::S_IFDIR | SFlag::S_IFLNK) {
            self.parents.forget();
        }
        let mut flag = UnlinkatFlags::NoRemoveDir;
        if kind(&stat) == SFlag::S_IFDIR {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let fd = openat(spot.parent, spot.name, flags, Mode::empty()).map_err(wrong)?;
            clear(&fd, Path::new(OsStr::from_bytes(spot.path)), None)?;
            flag = UnlinkatFlags::RemoveDir;
        }
        unlinkat(spot.parent, spot.name, flag).map_err(wrong)
    }

    fn settle(
        &mut self,
        spot: &Spot<'_>,
        subject: Subject<'_>,
        attributes: &Attributes,
    ) -> Result<()> {
        self.attributes(spot.path, subject, spot.parent.bequeaths_acl, attributes)?;
        subject
            .times(attributes.mtime, attributes.atime)
            .map_err(|e| self.not_set(spot.path, &e))
    }

    /// Everything but the times.
    fn attributes(
        &mut self,
        path: &[u8],
        subject: Subject<'_>,
        inherits: bool,
        attributes: &Attributes,
    ) -> Result<()> {
        let census = &mut self.census;
        let set = subject
            .owner(attributes.uid, attributes.gid)
            .and_then(|()| {
                if inherits {
                    subject.drop_inherited_acl()?;
                }
                subject.mode(attributes.mode)?;
                subject.xattrs(&attributes.xattrs, census)
            });
        set.map_err(|e| self.not_set(path, &e))?;
        for (attribute, text) in [
            (ACL_ACCESS, &attributes.acl_access),
            (ACL_DEFAULT, &attributes.acl_default),
        ] {
            // GNU tar may write both forms: ids are exact, while the names are those of where it ran.
            let in_binary = || attributes.xattrs.iter().any(|(name, _)| name == attribute);
            if let Some(text) = text
                && !in_binary()
            {
                self.acl(path, subject, attribute, text)?;
            }
        }
        Ok(())
    }

    fn acl(
        &mut self,
        path: &[u8],
        subject: Subject<'_>,
        attribute: &'static [u8],
        text: &[u8],
    ) -> Result<()> {
        let acl = Acl::parse(text).map_err(|what| Archive::wrong(path, &format!("ACL: {what}")))?;
        if acl.is_empty() {
            return Ok(());
        }
        if acl.has_names() {
            let inode = match subject.of {
                crate::sys::xattr::Of::Open(fd) => fstat(fd),
                crate::sys::xattr::Of::Entry(directory, name) => {
                    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
                }
            }
            .map_err(|errno| failed("looking at", path, errno, 0, self.root))?
            .st_ino;
            let (later, census) = (&mut self.later, &mut self.census);
            return later.acl(path, inode, attribute, acl, self.root, census);
        }
        let (value, _) = acl.encode(&super::accounts::ImageAccounts::default());
        set_acl(subject.of, attribute, &value, &mut self.census).map_err(|e| self.not_set(path, &e))
    }

    fn failed(&self, doing: &str, spot: &Spot<'_>, errno: Errno) -> Failure {
        failed(doing, spot.path, errno, 0, self.root)
    }

    fn not_set(&self, path: &[u8], failure: &Failed) -> Failure {
        failed(failure.doing, path, failure.errno, 0, self.root)
    }
}
