//! What a tree in use asks of whoever copies it: parts of it are nobody's to copy, and the rest changes meanwhile.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};

use super::super::census::{Census, bump};
use super::super::ledger::Ledger;
use super::super::parents::Id;
use super::super::refusal::shown;
use super::{Copying, tree};
use crate::error::Result;
use crate::sys::beneath::Root;

/// Directories at the top whose content belongs to the session that runs, or to the kernel.
pub const EMPTIED: [&str; 5] = ["dev", "proc", "run", "sys", "tmp"];

/// Files that must be on one machine only: a seed that two boots begin with makes the same random numbers twice
/// (systemd-random-seed.service(8), and the same of sysvinit).
pub const LEFT_OUT: [&str; 2] = ["var/lib/systemd/random-seed", "var/lib/urandom/random-seed"];

/// Names that are remembered of what changed.
const NAMES: usize = 8;

/// What else is left out of the copy.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// Files by device and inode: the disk that is written may be a file of this very root.
    pub files: Vec<(u64, u64)>,
}

impl LeftOut {
    /// Whether a directory at this place stays empty.
    pub(in super::super) fn empties(path: &[u8]) -> bool {
        EMPTIED.iter().any(|name| name.as_bytes() == path)
    }

    /// Whether this file is left out, wherever it is.
    pub(in super::super) fn has(&self, stat: &FileStat) -> bool {
        self.files.contains(&(stat.st_dev, stat.st_ino))
    }
}

/// How a tree changed while it was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Entries that were listed and went.
    pub gone: u64,
    /// Files that were written to.
    pub changed: u64,
    /// The first of both.
    pub names: Vec<String>,
}

impl Changes {
    fn name(&mut self, path: &[u8]) {
        if self.names.len() < NAMES {
            self.names.push(shown(path));
        }
    }

    /// What people should know; `None` where nothing changed.
    pub fn note(&self) -> Option<String> {
        let counted = [
            (self.changed, "files were written to"),
            (self.gone, "files or directories went"),
        ];
        let what: Vec<String> = counted
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let all = self.changed.saturating_add(self.gone);
        let more = usize::try_from(all).is_ok_and(|all| all > self.names.len());
        (!what.is_empty()).then(|| {
            format!(
                "while they were copied, {}: {}{}",
                what.join(", and "),
                self.names.join(", "),
                if more { ", …" } else { "" }
            )
        })
    }
}

/// A whole copy of a tree in use: only [`copy_running`] makes one, at its end.
#[derive(Debug)]
pub struct RunningCopy {
    census: Census,
    changes: Changes,
}

impl RunningCopy {
    /// What was copied.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// What changed meanwhile.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }
}

/// The mode of a copy whose source is in use.
pub(super) struct Running<'a> {
    left_out: &'a LeftOut,
    changes: Changes,
}

/// Copies the tree of a system that runs, as [`super::copy`] does, but for what `left_out`, [`EMPTIED`] and
/// [`LEFT_OUT`] name. What goes meanwhile is passed over, and a file that changes is copied as it is then: each is
/// read once, so that a tree that never rests is no endless one.
///
/// # Errors
/// As [`super::copy_remembering`].
pub fn copy_running(
    from: &Root,
    to: &Root,
    left_out: &LeftOut,
    (progress, ledger): (&AtomicU64, Option<&mut Ledger>),
) -> Result<RunningCopy> {
    let mut copying = Copying::new(to, progress, ledger);
    copying.running = Some(Running {
        left_out,
        changes: Changes::default(),
    });
    let none = Path::new("");
    tree(&mut copying, from, none, none)?;
    Ok(RunningCopy {
        census: copying.census,
        changes: copying.running.map(|r| r.changes).unwrap_or_default(),
    })
}

impl Copying<'_> {
    /// Whether an entry is none of the copy.
    pub(super) fn leaves_out(&self, path: &[u8], stat: &FileStat) -> bool {
        self.running.as_ref().is_some_and(|running| {
            LEFT_OUT.iter().any(|name| name.as_bytes() == path) || running.left_out.has(stat)
        })
    }

    /// Whether a directory is copied without what is in it.
    pub(super) fn empties(&self, path: &[u8]) -> bool {
        self.running.is_some() && LeftOut::empties(path)
    }

    /// Whether `errno` says that something else is there by now, or nothing, and that is to be borne.
    pub(super) fn is_gone(&mut self, errno: Errno, path: &[u8]) -> bool {
        // Nothing is there; a link, a file, a socket or a device without driver is there instead.
        let gone = matches!(
            errno,
            Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO | Errno::ENODEV
        );
        match &mut self.running {
            Some(running) if gone => {
                bump(&mut running.changes.gone, 1);
                running.changes.name(path);
                true
            }
            _ => false,
        }
    }

    /// The same of a file that has other names, of which none was copied yet.
    pub(super) fn is_gone_with_links(
        &mut self,
        errno: Errno,
        stat: &FileStat,
        path: &[u8],
    ) -> bool {
        let gone = self.is_gone(errno, path);
        if gone {
            let id: Id = (stat.st_dev, stat.st_ino);
            self.links.remove(&id);
        }
        gone
    }

    /// What the file that was opened is, where that may be another one by now.
    pub(super) fn as_opened(&self, file: &File, stat: &FileStat) -> nix::Result<FileStat> {
        if self.running.is_some() {
            fstat(file)
        } else {
            Ok(*stat)
        }
    }

    /// Remembers a file that was written to since `before`.
    pub(super) fn compare(&mut self, source: &File, before: &FileStat, path: &[u8]) {
        let Some(running) = &mut self.running else {
            return;
        };
        let of = |stat: &FileStat| {
            (
                stat.st_size,
                (stat.st_mtime, stat.st_mtime_nsec),
                (stat.st_ctime, stat.st_ctime_nsec),
            )
        };
        if !fstat(source).is_ok_and(|after| of(&after) == of(before)) {
            bump(&mut running.changes.changed, 1);
            running.changes.name(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_what_changed_are_bounded() {
        let mut changes = Changes::default();
        assert_eq!(changes.note(), None);
        for n in 0..20 {
            changes.name(format!("var/log/{n}").as_bytes());
            changes.changed += 1;
        }
        changes.gone = 1;
        let note = changes.note().unwrap();
        assert!(note.contains("20 files were written to, and 1 files or directories went"));
        assert!(note.ends_with("\"var/log/7\", …"), "{note}");
    }
}
