//! What is changed in the installed system before it starts for the first time.

use std::fmt;
use std::path::PathBuf;

use super::memory::plain_path;
use super::{Problems, wire};
use crate::image::boot::arguments::{self, Edit};
use crate::stream::HttpUrl;

/// What is changed in the installed system. Contents may be secrets: they are in no plan and no log.
#[derive(Clone, Default, PartialEq)]
pub struct SystemChanges {
    /// Kernel arguments, in whatever its boot loader reads.
    pub arguments: Edit,
    /// Files.
    pub files: Vec<SystemFile>,
    /// Ignition config for the first boot.
    pub ignition: Option<HttpUrl>,
}

/// A file for the installed system.
#[derive(Clone, PartialEq)]
pub struct SystemFile {
    /// Absolute path there.
    pub path: PathBuf,
    /// Mode.
    pub mode: u32,
    /// Its text.
    pub contents: String,
}

impl fmt::Debug for SystemChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemChanges")
            .field("arguments", &self.arguments)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SystemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:o})", self.path.display(), self.mode)
    }
}

impl SystemChanges {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.arguments.is_empty() && self.files.is_empty() && self.ignition.is_none()
    }
}

/// What the kernel or the init system mounts, or empties, at each boot: nothing of an image is seen there.
pub const NEVER: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/tmp", "/var/run"];

/// An installed system's own initrd may carry ironroot: it must not install again.
const SKIP: &str = "ironroot.skip";

pub(super) fn read(
    config: &wire::BootConfig,
    disk: &wire::Disk,
    problems: &mut Problems,
) -> SystemChanges {
    let wire::KernelArguments { append, remove } = &disk.kernel_arguments;
    for (key, words) in [("append", append), ("remove", remove)] {
        for (i, word) in words.iter().enumerate() {
            if let Some(why) = arguments::flaw(word) {
                problems.add(&format!("disk.kernelArguments.{key}[{i}]"), why);
            }
        }
    }
    let mut append = append.clone();
    if (!append.is_empty() || !remove.is_empty()) && !append.iter().any(|w| w == SKIP) {
        append.push(SKIP.to_owned());
    }
    let mut files: Vec<SystemFile> = Vec::new();
    for (i, given) in disk.files.iter().enumerate() {
        let key = format!("disk.files[{i}]");
        let path = plain_path(&given.path)
            .and_then(|path| {
                if path.file_name().is_none() {
                    Err("not the path of a file")
                } else if NEVER.iter().any(|n| path.starts_with(n)) {
                    Err("nothing that is written there lasts")
                } else {
                    Ok(path)
                }
            })
            .map_err(|why| problems.add(&format!("{key}.path"), why));
        let mode = mode(given.mode.as_deref()).ok_or_else(|| {
            problems.add(
                &format!("{key}.mode"),
                "not an octal mode from 0000 to 7777, such as \"0600\"",
            );
        });
        let (Ok(path), Ok(mode)) = (path, mode) else {
            continue;
        };
        match files
            .iter()
            .find(|f| f.path.starts_with(&path) || path.starts_with(&f.path))
        {
            Some(other) => problems.add(
                &format!("{key}.path"),
                format!("{} cannot be beside it", other.path.display()),
            ),
            None => files.push(SystemFile {
                path,
                mode,
                contents: given.contents.clone(),
            }),
        }
    }
    let ignition = config.ignition.as_ref().and_then(|ignition| {
        ignition
            .url
            .parse()
            .map_err(|e| problems.add("ignition.url", crate::error::chain(&e)))
            .ok()
    });
    SystemChanges {
        arguments: Edit::new(&append, remove),
        files,
        ignition,
    }
}

fn mode(text: Option<&str>) -> Option<u32> {
    let Some(text) = text else {
        return Some(0o644);
    };
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    octal.then(|| u32::from_str_radix(text, 8).ok()).flatten()
}
