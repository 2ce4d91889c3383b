//! Mount options by the names of mount(8), as far as they make sense for a preserved path. What is unknown is
//! refused: an option that nobody applies is a promise that nobody keeps.

use serde::Serialize;

/// When reading counts as a use (mount(8)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Atime {
    /// Once a day, and after a change.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strictatime,
}

/// Flags of the mount itself; each is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(clippy::struct_excessive_bools)] // They are the kernel's flags, one for one.
pub struct MountFlags {
    /// No writing.
    pub read_only: bool,
    /// Set-user-ID bits and file capabilities have no effect.
    pub nosuid: bool,
    /// Device nodes cannot be opened.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// When reading counts as a use.
    pub atime: Atime,
    /// Reading a directory never does.
    pub nodiratime: bool,
}

impl Default for MountFlags {
    /// What a system kept between two boots has neither devices nor programs that make root of anybody.
    fn default() -> Self {
        MountFlags {
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            atime: Atime::Relatime,
            nodiratime: false,
        }
    }
}

impl std::fmt::Display for MountFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = [
            (true, if self.read_only { "ro" } else { "rw" }),
            (self.nosuid, "nosuid"),
            (self.nodev, "nodev"),
            (self.noexec, "noexec"),
            (self.atime == Atime::Noatime, "noatime"),
            (self.atime == Atime::Strictatime, "strictatime"),
            (self.nodiratime, "nodiratime"),
        ];
        let given: Vec<&str> = words
            .into_iter()
            .filter_map(|(is, word)| is.then_some(word))
            .collect();
        f.write_str(&given.join(","))
    }
}

/// Options of one preserved path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Of the mount.
    pub flags: MountFlags,
    /// Of the file system, for all that is on it: `sync`, `dirsync`, `lazytime`, `discard`.
    pub file_system: Vec<&'static str>,
}

/// Reads `given`; of two that contradict each other the later one counts. Or what is wrong, by position.
pub(super) fn parse(given: &[String]) -> Result<MountOptions, Vec<(usize, String)>> {
    let mut options = MountOptions::default();
    let mut wrong = Vec::new();
    for (i, word) in given.iter().enumerate() {
        let flags = &mut options.flags;
        match word.as_str() {
            "defaults" => {}
            "ro" => flags.read_only = true,
            "rw" => flags.read_only = false,
            "nosuid" => flags.nosuid = true,
            "suid" => flags.nosuid = false,
            "nodev" => flags.nodev = true,
            "dev" => flags.nodev = false,
            "noexec" => flags.noexec = true,
            "exec" => flags.noexec = false,
            "relatime" => flags.atime = Atime::Relatime,
            "noatime" => flags.atime = Atime::Noatime,
            "strictatime" => flags.atime = Atime::Strictatime,
            "nodiratime" => flags.nodiratime = true,
            "diratime" => flags.nodiratime = false,
            "sync" => set(&mut options.file_system, "sync", true),
            "async" => set(&mut options.file_system, "sync", false),
            "dirsync" => set(&mut options.file_system, "dirsync", true),
            "lazytime" => set(&mut options.file_system, "lazytime", true),
            "nolazytime" => set(&mut options.file_system, "lazytime", false),
            "discard" => set(&mut options.file_system, "discard", true),
            "nodiscard" => set(&mut options.file_system, "discard", false),
            _ => wrong.push((i, UNKNOWN.to_owned())),
        }
    }
    if wrong.is_empty() {
        Ok(options)
    } else {
        Err(wrong)
    }
}

const UNKNOWN: &str = "not a mount option that is known here: ro, rw, nosuid, suid, nodev, dev, noexec, exec, \
    relatime, noatime, strictatime, nodiratime, diratime, sync, async, dirsync, lazytime, nolazytime, discard, \
    nodiscard, defaults";

fn set(all: &mut Vec<&'static str>, word: &'static str, wanted: bool) {
    all.retain(|w| *w != word);
    if wanted {
        all.push(word);
    }
}
