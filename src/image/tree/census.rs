//! What was unpacked or copied, and what could not be kept.

use std::collections::BTreeMap;

use crate::units::Bytes;

/// Counts of one run; [`Census::add`] sums several layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Entries that the archive (or the source) has, of whatever kind.
    pub entries: u64,
    /// Regular files.
    pub files: u64,
    /// Directories that were named.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files that were there already.
    pub hard_links: u64,
    /// Character and block devices.
    pub devices: u64,
    /// FIFOs.
    pub fifos: u64,
    /// Bytes of content that were written, holes left out.
    pub bytes: u64,
    /// Entries that took the place of another one (of a lower layer, or named twice).
    pub replaced: u64,
    /// Directories that no entry named and that were made because something is in them, with mode 0755.
    pub implied_directories: u64,
    /// Whiteouts that were carried out, those of whole directories included.
    pub whiteouts: u64,
    /// Attributes of the `trusted.` namespace, which are never set: an overlay file system obeys them.
    pub dropped_trusted: u64,
    /// Attributes that the file system does not take: their names and how many entries had them.
    pub refused_xattrs: BTreeMap<String, u64>,
    /// Entries of ACLs that were left out because the image has no account of that name.
    pub unknown_acl_names: u64,
    /// Mount points that were met and not entered.
    pub mount_points: u64,
    /// Sockets that were passed over: they are nothing without the program that made them.
    pub sockets: u64,
}

/// Different names that are kept apart; an archive may invent any number.
const NAMES: usize = 32;

impl Census {
    /// Counts an attribute that the file system refused.
    pub(super) fn refused(&mut self, name: &[u8]) {
        let name = crate::error::printable(&String::from_utf8_lossy(name));
        self.count_refused(name, 1);
    }

    fn count_refused(&mut self, name: String, count: u64) {
        let full = self.refused_xattrs.len() >= NAMES && !self.refused_xattrs.contains_key(&name);
        let name = if full { "(others)".into() } else { name };
        bump(self.refused_xattrs.entry(name).or_default(), count);
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Census) {
        for (mine, theirs) in [
            (&mut self.entries, other.entries),
            (&mut self.files, other.files),
            (&mut self.directories, other.directories),
            (&mut self.symlinks, other.symlinks),
            (&mut self.hard_links, other.hard_links),
            (&mut self.devices, other.devices),
            (&mut self.fifos, other.fifos),
            (&mut self.bytes, other.bytes),
            (&mut self.replaced, other.replaced),
            (&mut self.implied_directories, other.implied_directories),
            (&mut self.whiteouts, other.whiteouts),
            (&mut self.dropped_trusted, other.dropped_trusted),
            (&mut self.unknown_acl_names, other.unknown_acl_names),
            (&mut self.mount_points, other.mount_points),
            (&mut self.sockets, other.sockets),
        ] {
            bump(mine, theirs);
        }
        for (name, count) in &other.refused_xattrs {
            self.count_refused(name.clone(), *count);
        }
    }

    /// What people should know: everything that is not as it was in the archive. Empty if all of it is.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |count: u64, text: String| {
            if count > 0 {
                notes.push(text);
            }
        };
        for (name, count) in &self.refused_xattrs {
            note(
                *count,
                format!("the file system does not take {name}: left out on {count} entries"),
            );
        }
        let trusted = self.dropped_trusted;
        note(
            trusted,
            format!("{trusted} attributes of the namespace trusted were left out"),
        );
        let names = self.unknown_acl_names;
        note(
            names,
            format!(
                "{names} entries of ACLs name users or groups that the image does not have: left out"
            ),
        );
        let sockets = self.sockets;
        note(sockets, format!("{sockets} sockets were passed over"));
        let mounts = self.mount_points;
        note(mounts, format!("{mounts} mount points were not entered"));
        notes
    }

    /// One line: how much of what.
    pub fn summary(&self) -> String {
        format!(
            "{} entries: {} files of {}, {} directories, {} symbolic links, {} hard links, {} devices and FIFOs",
            self.entries,
            self.files,
            Bytes(self.bytes).short(),
            self.directories,
            self.symlinks,
            self.hard_links,
            self.devices.saturating_add(self.fifos)
        )
    }
}

/// Counts up, and stays at the end of the scale.
pub(super) fn bump(count: &mut u64, by: u64) {
    *count = count.saturating_add(by);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_say_only_what_was_lost_and_names_are_bounded() {
        let mut census = Census {
            files: 7,
            dropped_trusted: 2,
            ..Census::default()
        };
        for n in 0..100 {
            census.refused(format!("user.{n}\x1b").as_bytes());
        }
        let mut sum = census.clone();
        sum.add(&census);
        assert_eq!((sum.files, sum.dropped_trusted), (14, 4));
        assert_eq!(sum.refused_xattrs.len(), NAMES + 1);
        assert_eq!(sum.refused_xattrs.values().sum::<u64>(), 200);
        assert!(sum.notes().iter().all(|note| !note.contains('\x1b')));
        assert!(sum.notes().iter().any(|note| note.contains("4 attributes")));
        assert!(
            Census {
                files: 7,
                ..Census::default()
            }
            .notes()
            .is_empty()
        );
    }
}
