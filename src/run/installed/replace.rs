//! Replacing a file of the installed system whole: nobody ever sees half of it.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};
use nix::unistd::{Gid, Uid, UnlinkatFlags};

use crate::error::{Class, Context as _, Failure, Result};
use crate::sys::beneath::{self, Root, Walk};
use crate::sys::xattr;

/// Where a security module keeps what a file is; a new file has what its directory has, as when the system itself
/// had made it.
const LABEL: &[u8] = b"security.selinux";

/// What the new file is like.
#[derive(Clone, Copy, Debug)]
pub enum Like {
    /// Owner, group and mode of the file that it replaces.
    Old,
    /// This mode, owned by root.
    New(u32),
}

/// Puts `contents` at `path`. Directories that are missing are made.
///
/// # Errors
/// Class media; a directory or device at `path` is refused.
pub fn replace(root: &Root, path: &Path, contents: &[u8], like: Like) -> Result<()> {
    let failed = || format!("writing {} of the installed system", path.display());
    let name = path
        .file_name()
        .ok_or_else(|| Failure::new(Class::Bug, failed()))?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let directory = root.make_directories(parent, 0o755, Walk::InRoot)?;
    let old: Option<FileStat> = match root.entry(path, Walk::InRoot) {
        Ok(entry) => Some(nix::sys::stat::fstat(&entry).context(Class::Media, failed)?),
        Err(error) if error.is_missing() => None,
        Err(error) => return Err(error.into()),
    };
    match old.as_ref().map(beneath::kind) {
        None | Some(SFlag::S_IFREG | SFlag::S_IFLNK) => {}
        Some(_) => {
            return Err(
                Failure::new(Class::Media, format!("{}: it is no file", failed())).hint(
                    "the image has a directory or a device of that name: choose another path",
                ),
            );
        }
    }
    let regular = old.as_ref().filter(|s| beneath::kind(s) == SFlag::S_IFREG);
    let (mode, owner) = match (like, regular) {
        (Like::Old, Some(stat)) => (stat.st_mode & 0o7777, (stat.st_uid, stat.st_gid)),
        (Like::Old, None) => (0o644, (0, 0)),
        (Like::New(mode), _) => (mode, (0, 0)),
    };
    let label = match regular {
        Some(_) => label_of(&root.file(path, Walk::InRoot)?),
        None => label_of(&directory),
    };

    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(".ironroot-new");
    let place = parent.join(&temporary);
    match nix::unistd::unlinkat(
        &directory,
        temporary.as_os_str(),
        UnlinkatFlags::NoRemoveDir,
    ) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno).context(Class::Media, failed),
    }
    let mut file = root.create_file(&place, 0o600, Walk::InRoot)?;
    file.write_all(contents).context(Class::Media, failed)?;
    // FAT has no owners: what it cannot keep is not asked of it.
    let (uid, gid) = owner;
    if (uid, gid) != (0, 0) {
        nix::unistd::fchown(
            file.as_fd(),
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
        )
        .context(Class::Media, failed)?;
    }
    match nix::sys::stat::fchmod(file.as_fd(), nix::sys::stat::Mode::from_bits_truncate(mode)) {
        Ok(()) | Err(Errno::EPERM) => {}
        Err(errno) => return Err(errno).context(Class::Media, failed),
    }
    if let Some(label) = label {
        xattr::set(xattr::Of::Open(file.as_fd()), LABEL, &label).context(Class::Media, failed)?;
    }
    file.sync_all().context(Class::Media, failed)?;
    nix::fcntl::renameat(&directory, temporary.as_os_str(), &directory, name)
        .context(Class::Media, failed)?;
    nix::unistd::fsync(&directory).context(Class::Media, failed)
}

fn label_of(file: &impl std::os::fd::AsFd) -> Option<Vec<u8>> {
    xattr::get(xattr::Of::Open(file.as_fd()), LABEL)
        .ok()
        .flatten()
}
