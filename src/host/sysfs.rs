//! Attributes of sysfs and procfs: small files, one value each, which may be missing or refuse to be read.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

/// An attribute is at most a page; /proc files that grow with the machine get [`read_long`].
const ATTRIBUTE_LIMIT: u64 = 4096;
/// Far above a mountinfo with thousands of mounts.
const LONG_LIMIT: u64 = 4 << 20;

/// The bytes of an attribute; `None` where it cannot be read.
pub(super) fn bytes(path: impl AsRef<Path>) -> Option<Vec<u8>> {
    bounded(path.as_ref(), ATTRIBUTE_LIMIT)
}

/// The text of an attribute without white space and zeros at its ends; `None` where nothing is left.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let bytes = bytes(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let trimmed = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

/// The number in an attribute.
pub(super) fn number<T: FromStr>(path: impl AsRef<Path>) -> Option<T> {
    text(path)?.parse().ok()
}

/// Whether an attribute is `1`.
pub(super) fn flag(path: impl AsRef<Path>) -> bool {
    text(path).as_deref() == Some("1")
}

/// A file of /proc, cut at 4 MiB; empty where it cannot be read.
pub(super) fn read_long(path: impl AsRef<Path>) -> String {
    let bytes = bounded(path.as_ref(), LONG_LIMIT).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The names in a directory, in natural order; empty where it cannot be read.
pub(super) fn names(path: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    super::order::sort(&mut names, String::as_str);
    names
}

fn bounded(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(limit)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}
