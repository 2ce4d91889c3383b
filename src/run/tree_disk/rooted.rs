//! The root partition, mounted where nobody else sees it, and paths in it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::dir::Dir;

use crate::error::{Class, Context as _, Failure, Result};
use crate::image::superblock::{self, FileSystem};
use crate::init::modules;
use crate::run::partitions::Node;
use crate::sys::beneath::{Root, Walk};
use crate::sys::block;
use crate::sys::detached::{Context, Detached, Flags};

/// More names in one directory are not looked at.
const NAMES: usize = 65_536;

/// A root file system that has no place in the tree of mounts. Nothing in it can be started from here.
#[derive(Debug)]
pub struct Rooted {
    // Closed before the mount goes.
    root: Root,
    mount: Detached,
    what: String,
}

impl Rooted {
    /// Mounts the file system on `node`.
    pub fn mount(node: &Node) -> Result<Rooted> {
        let what = format!("partition {}", node.place.number);
        let mount = mount(
            node,
            &what,
            Flags {
                read_only: false,
                nosuid: true,
                nodev: true,
                noexec: true,
            },
        )?;
        Ok(Rooted {
            root: Root::of(&mount.as_fd(), "the new root")?,
            mount,
            what,
        })
    }

    /// Its root directory.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The mount.
    pub fn mount_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Brings everything onto the medium and unmounts.
    pub fn finish(self) -> Result<()> {
        let Rooted { root, mount, what } = self;
        let directory = root.directory(Path::new(""), Walk::NoLinks)?;
        drop(root);
        nix::unistd::syncfs(&directory).context(Class::Media, || format!("flushing {what}"))?;
        drop(directory);
        drop(mount);
        Ok(())
    }
}

/// Name for mount(2) of the file system on `node`, which was made here.
pub fn kind(node: &Node) -> Result<&'static str> {
    let reading = || format!("reading the superblock of partition {}", node.place.number);
    let file = File::open(&node.path).context(Class::Media, reading)?;
    let mut head = vec![0u8; superblock::HEAD];
    file.read_exact_at(&mut head, 0)
        .context(Class::Media, reading)?;
    match superblock::of(&head) {
        Some(FileSystem::Other { name }) => Ok(name),
        _ => Err(Failure::new(
            Class::Media,
            format!("{}: no file system is in it", reading()),
        )),
    }
}

/// Mounts the file system on `node`, which was made here, where nobody sees it.
pub fn mount(node: &Node, what: &str, flags: Flags) -> Result<Detached> {
    let kind = kind(node)?;
    modules::want(kind);
    let context = Context::new(kind, what)?.set("source", node.path.as_os_str().as_bytes())?;
    match kind {
        "ext4" => context.set("errors", b"remount-ro")?.mount(flags),
        _ => context.mount(flags),
    }
}

/// The names in the directory at `path`, sorted; none where there is no such directory.
pub fn names(root: &Root, path: &Path) -> Result<Vec<String>> {
    let directory: OwnedFd = match root.directory(path, Walk::InRoot) {
        Ok(directory) => directory,
        Err(error) if error.is_missing() => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let reading = || format!("reading the directory {} of the root", path.display());
    let entries = Dir::from_fd(directory).context(Class::Media, reading)?;
    let mut names = Vec::new();
    for entry in entries.into_iter().take(NAMES) {
        let entry = entry.context(Class::Media, reading)?;
        // A name that is no text is none that is looked for.
        if let Ok(name) = entry.file_name().to_str()
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The text of a file; `None` where there is none, or none that is text.
pub fn text(root: &Root, path: &Path, limit: u64) -> Result<Option<String>> {
    match root.read(path, Walk::InRoot, limit) {
        Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether `path` is a regular file.
pub fn is_file(root: &Root, path: &Path) -> bool {
    root.file(path, Walk::InRoot).is_ok()
}

/// Writes a file: one that is there keeps its owner, mode and attributes; a new one gets 0644.
pub fn write(root: &Root, path: &Path, content: &[u8]) -> Result<()> {
    let writing = || format!("writing {} of the root", path.display());
    let mut file = match root.file(path, Walk::InRoot) {
        Ok(there) => {
            let file = block::reopen(&there, false).context(Class::Media, writing)?;
            file.set_len(0).context(Class::Media, writing)?;
            file
        }
        Err(error) if error.is_missing() => {
            if let Some(parent) = path.parent() {
                root.make_directories(parent, 0o755, Walk::InRoot)?;
            }
            root.create_file(path, 0o644, Walk::InRoot)?
        }
        Err(error) => return Err(error.into()),
    };
    file.write_all(content)
        .map_err(|e| space_or_media(&writing(), e))
}

/// A failure to write, which may be for want of space.
pub fn space_or_media(doing: &str, error: std::io::Error) -> Failure {
    let class = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Class::Space,
        _ => Class::Media,
    };
    let failure = Failure::new(class, doing).caused_by(error);
    match class {
        Class::Space => {
            failure.hint("use a larger disk or a smaller image; the disk does not boot now")
        }
        _ => failure,
    }
}
