//! A session from memory.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::image::{self, Image};
use super::preserve::{self, Preserved};
use super::{Problems, wire};
use crate::config::quantity::Amount;
use crate::units::Bytes;

/// Run an image from memory, the disks untouched.
#[derive(Clone, Debug)]
pub struct MemorySession {
    /// The image.
    pub image: Image,
    /// How much may be written in the session; for an unpacked image, with the image itself. `None`: half of
    /// the memory.
    pub size: Option<Amount>,
    /// How many files that may be; `None`: as many as fit.
    pub inodes: Option<u64>,
    /// How the root is made.
    pub method: wire::MemoryMethod,
    /// Paths that get a plain tmpfs of their own.
    pub scratch: Vec<PathBuf>,
    /// Swap in compressed memory.
    pub zram: Option<Amount>,
    /// dm-verity of the image.
    pub verity: Option<Verity>,
    /// Where what is written is kept: an overlay over all of the root. `None`: in memory.
    pub upper: Option<Preserved>,
    /// Paths below which what is written stays in memory all the same.
    pub volatile: Vec<PathBuf>,
}

/// How an image is proven block by block while it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verity {
    /// The root hash, in lower-case hexadecimal digits.
    pub root_hash: String,
    /// Where the superblock of the hash tree begins in the image.
    pub hash_offset: Bytes,
}

/// What must not be covered: the root itself, what the kernel mounts, and what makes the system.
const NOT_SCRATCH: [&str; 12] = [
    "/", "/proc", "/sys", "/dev", "/run", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64",
    "/boot",
];

/// What the kernel mounts.
const KERNELS: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// The meaning of `memory`.
pub(super) fn read(
    config: &wire::BootConfig,
    memory: &wire::Memory,
    problems: &mut Problems,
) -> Option<MemorySession> {
    let mut scratch: Vec<PathBuf> = Vec::new();
    for (i, text) in memory.scratch.iter().enumerate() {
        let path = format!("memory.scratch[{i}]");
        match plain_path(text) {
            Err(why) => problems.add(&path, why),
            Ok(given) if NOT_SCRATCH.iter().any(|n| given == Path::new(n)) => {
                problems.add(
                    &path,
                    "the system itself is there; name a directory below it",
                );
            }
            Ok(given) if scratch.contains(&given) => problems.add(&path, "given twice"),
            Ok(given) => scratch.push(given),
        }
    }
    // A mount over a parent would hide what was mounted below it.
    scratch.sort();
    let volatile = volatile(memory, &scratch, problems);
    let verity = memory.verity.as_ref().and_then(|v| verity(v, problems));
    let upper = memory.upper.as_ref().and_then(|u| upper(u, problems));
    let image = image::read(config.image.as_ref()?, problems)?;
    if image.running {
        problems.add(
            "image.url",
            "the root that is running is in memory already: only with `disk`",
        );
    }
    if memory.upper.is_some() && memory.method == wire::MemoryMethod::Extract {
        problems.add(
            "memory.upper",
            "an unpacked image is in memory with all that is written: use `method` Overlay",
        );
    }
    if verity.is_some() && memory.method == wire::MemoryMethod::Extract {
        problems.add(
            "memory.verity",
            "an unpacked image is not read block by block: use `method` Overlay",
        );
    }
    Some(MemorySession {
        image,
        size: memory.size,
        inodes: memory.inodes,
        method: memory.method,
        scratch,
        zram: memory.zram,
        verity,
        upper,
        volatile,
    })
}

fn volatile(memory: &wire::Memory, scratch: &[PathBuf], problems: &mut Problems) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for (i, text) in memory.volatile.iter().enumerate() {
        let key = format!("memory.volatile[{i}]");
        match plain_path(text) {
            Err(why) => problems.add(&key, why),
            Ok(path) if path == Path::new("/") => {
                problems.add(&key, "without `upper` all of the root is");
            }
            Ok(path) if KERNELS.iter().any(|k| path.starts_with(k)) => {
                problems.add(&key, "the kernel mounts something there");
            }
            Ok(path) if all.contains(&path) || scratch.contains(&path) => {
                problems.add(&key, "given twice");
            }
            Ok(path) => all.push(path),
        }
    }
    if memory.upper.is_none() && !memory.volatile.is_empty() {
        problems.add(
            "memory.volatile",
            "only with `upper`: all that is written is in memory",
        );
    }
    all.sort();
    all
}

fn upper(given: &wire::Upper, problems: &mut Problems) -> Option<Preserved> {
    let source = preserve::source_of(&given.source, "memory.upper.source", problems);
    let subdir = preserve::inner_path(given.subdir.as_deref().unwrap_or_default())
        .map_err(|why| problems.add("memory.upper.subdir", why));
    Some(Preserved::whole_root(source?, subdir.ok()?))
}

fn verity(given: &wire::Verity, problems: &mut Problems) -> Option<Verity> {
    let digits = given.root_hash.len();
    // SHA-256 and SHA-512 are what veritysetup makes.
    let plain =
        (digits == 64 || digits == 128) && given.root_hash.bytes().all(|b| b.is_ascii_hexdigit());
    if !plain {
        problems.add("memory.verity.rootHash", "not 64 or 128 hexadecimal digits");
        return None;
    }
    Some(Verity {
        root_hash: given.root_hash.to_ascii_lowercase(),
        hash_offset: given.hash_offset.0,
    })
}

/// An absolute path without `.`, `..` and control characters, and without a slash at its end.
pub(super) fn plain_path(text: &str) -> Result<PathBuf, &'static str> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err("not an absolute path");
    }
    if text.chars().any(char::is_control) {
        return Err("control characters are not allowed");
    }
    let plain = path
        .components()
        .all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    if !plain || text.split('/').any(|part| part == ".") {
        return Err("`.` and `..` are not allowed");
    }
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_and_has_no_detours() {
        for (text, good) in [
            ("/var/lib/x", true),
            ("/var//lib/x/", true),
            ("var", false),
            ("/a/../b", false),
            ("/a/./b", false),
            ("/a\nb", false),
            ("", false),
        ] {
            assert_eq!(plain_path(text).is_ok(), good, "{text:?}");
        }
        assert_eq!(plain_path("/var//lib/x/").unwrap(), Path::new("/var/lib/x"));
    }
}
