//! Whiteouts of OCI layers (OCI image-spec, layer.md, "Whiteouts"): they hide what lower layers have, never
//! what their own layer has, wherever in the layer they stand.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::census::bump;
use super::parents::Id;
use super::refusal::{failed, integrity, shown};
use super::remove::clear;
use super::unpack::Unpacking;
use crate::error::Result;
use crate::sys::beneath::kind;

/// What a name that begins with `.wh.` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whiteout<'a> {
    /// `.wh.NAME`: NAME is gone.
    Entry(&'a OsStr),
    /// `.wh..wh..opq`: everything in the directory is gone.
    Opaque,
    /// Other names with `.wh..wh.` are the housekeeping of AUFS and mean nothing.
    Nothing,
}

/// The meaning of a name; `None` for a plain one.
pub(super) fn read(name: &[u8]) -> Result<Option<Whiteout<'_>>> {
    let Some(hidden) = name.strip_prefix(b".wh.") else {
        return Ok(None);
    };
    match hidden {
        b".wh..opq" => Ok(Some(Whiteout::Opaque)),
        b"" | b"." | b".." => Err(integrity(format!(
            "the whiteout {} names no entry",
            shown(name)
        ))),
        _ if hidden.starts_with(b".wh.") => Ok(Some(Whiteout::Nothing)),
        _ => Ok(Some(Whiteout::Entry(OsStr::from_bytes(hidden)))),
    }
}

/// What the layer that is being unpacked has: eight bytes for each entry, hashed with keys of this run.
#[derive(Debug, Default)]
pub(super) struct Layer {
    hasher: RandomState,
    seen: HashSet<u64>,
}

impl Layer {
    pub(super) fn saw(&mut self, directory: Id, name: &OsStr) {
        let hash = self.hasher.hash_one((directory, name.as_bytes()));
        self.seen.insert(hash);
    }

    fn has(&self, directory: Id, name: &OsStr) -> bool {
        let hash = self.hasher.hash_one((directory, name.as_bytes()));
        self.seen.contains(&hash)
    }
}

impl Unpacking<'_> {
    /// Carries out a whiteout in the directory at `path`.
    pub(super) fn white_out(&mut self, path: &[u8], what: Whiteout<'_>) -> Result<()> {
        let Some(directory) = self.parents.find(path)? else {
            // Nothing of it is there.
            return Ok(());
        };
        let Some(layer) = &self.layer else {
            return Ok(());
        };
        let spare = |id: Id, name: &OsStr| layer.has(id, name);
        let root = self.root;
        let wrong = |errno| failed("removing by a whiteout in", path, errno, 0, root);
        let place = Path::new(OsStr::from_bytes(path));
        match what {
            Whiteout::Nothing => return Ok(()),
            Whiteout::Opaque => {
                clear(&*directory, place, Some(&spare))?;
            }
            Whiteout::Entry(name) => {
                let stat = match fstatat(&*directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                    Err(Errno::ENOENT) => return Ok(()),
                    stat => stat.map_err(wrong)?,
                };
                let own = layer.has(directory.id, name);
                if kind(&stat) == SFlag::S_IFDIR {
                    let flags =
                        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                    let inner = openat(&*directory, name, flags, Mode::empty()).map_err(wrong)?;
                    clear(&inner, place, Some(&spare))?;
                    if !own {
                        match unlinkat(&*directory, name, UnlinkatFlags::RemoveDir) {
                            // This layer has something in it.
                            Ok(()) | Err(Errno::ENOTEMPTY) => {}
                            Err(errno) => return Err(wrong(errno)),
                        }
                    }
                } else if !own {
                    unlinkat(&*directory, name, UnlinkatFlags::NoRemoveDir).map_err(wrong)?;
                }
            }
        }
        self.parents.forget();
        bump(&mut self.census.whiteouts, 1);
        Ok(())
    }
}
