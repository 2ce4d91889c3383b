//! The kernels of a tree, with their initrds.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use super::rooted::{is_file, names};
use crate::error::{Class, Failure, Result};
use crate::sys::beneath::Root;

/// Where kernels are looked for, as messages say it.
pub const PLACES: &str = "/boot/vmlinuz-VERSION, /usr/lib/modules/VERSION/vmlinuz";

/// Directories of kernel modules, and of what belongs to them.
const MODULES: &str = "usr/lib/modules";

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its version.
    pub version: String,
    /// Its file in the tree.
    pub file: PathBuf,
    /// Its initrd, where it has one.
    pub initrd: Option<PathBuf>,
}

/// All kernels of a tree, the newest last.
pub fn find(root: &Root) -> Result<Vec<Kernel>> {
    let mut candidates: Vec<(String, PathBuf)> = Vec::new();
    for name in names(root, Path::new("boot"))? {
        if let Some(version) = version_of_kernel(&name) {
            candidates.push((version.to_owned(), Path::new("boot").join(&name)));
        }
    }
    for version in names(root, Path::new(MODULES))? {
        let path = Path::new(MODULES).join(&version).join("vmlinuz");
        if candidates.iter().all(|(v, _)| *v != version) {
            candidates.push((version, path));
        }
    }
    let mut kernels: Vec<Kernel> = candidates
        .into_iter()
        .filter(|(_, path)| is_file(root, path))
        .map(|(version, file)| Kernel {
            initrd: initrds_of(&version)
                .into_iter()
                .find(|path| is_file(root, path)),
            version,
            file,
        })
        .collect();
    kernels.sort_by(|a, b| compare(&a.version, &b.version));
    Ok(kernels)
}

/// The version of the tree's only set of kernel modules, or of the newest.
pub fn modules_version(root: &Root) -> Result<String> {
    let mut versions = names(root, Path::new(MODULES))?;
    versions.retain(|version| is_version(version));
    versions.sort_by(|a, b| compare(a, b));
    versions.pop().ok_or_else(|| {
        Failure::new(
            Class::Integrity,
            format!("the tree has no kernel modules: /{MODULES} is empty"),
        )
        .hint("the image's kernel and its root do not belong together; publish the image again")
    })
}

/// A version is one component of a path, and a word of a boot entry.
fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.len() < 128
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._+-~".contains(c))
}

/// Debian and Fedora: `vmlinuz-VERSION`; others by architecture: `vmlinux-`, `Image-`, `kernel-`.
fn version_of_kernel(name: &str) -> Option<&str> {
    ["vmlinuz-", "vmlinux-", "Image-", "kernel-"]
        .into_iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .filter(|version| is_version(version))
}

fn initrds_of(version: &str) -> Vec<PathBuf> {
    [
        format!("boot/initrd.img-{version}"),
        format!("boot/initramfs-{version}.img"),
        format!("boot/initrd-{version}"),
        format!("boot/initrd-{version}.img"),
        format!("{MODULES}/{version}/initramfs.img"),
        format!("{MODULES}/{version}/initrd"),
        format!("{MODULES}/{version}/initramfs"),
    ]
    .into_iter()
    .map(PathBuf::from)
    .collect()
}

/// Numbers count as numbers: 6.9 is older than 6.10.
pub fn compare(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    loop {
        let (left, right) = (take(&mut one), take(&mut other));
        let numbers = [left, right].map(|part| part.first().is_some_and(u8::is_ascii_digit));
        let order = if numbers == [true, true] {
            let (left, right) = (without_zeros(left), without_zeros(right));
            left.len().cmp(&right.len()).then_with(|| left.cmp(right))
        } else {
            left.cmp(right)
        };
        if order != Ordering::Equal || (left.is_empty() && right.is_empty()) {
            return order;
        }
    }
}

/// The longest beginning that is all digits or has none.
fn take<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let digits = text.first().is_some_and(u8::is_ascii_digit);
    let end = text
        .iter()
        .position(|b| b.is_ascii_digit() != digits)
        .unwrap_or(text.len());
    let (head, rest) = text.split_at_checked(end).unwrap_or((text, &[]));
    *text = rest;
    head
}

fn without_zeros(digits: &[u8]) -> &[u8] {
    let start = digits.iter().take_while(|b| **b == b'0').count();
    digits.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    #[test]
    fn kernels_are_found_with_their_initrds_the_newest_last() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        for path in [
            "boot/vmlinuz-6.9.1",
            "boot/initramfs-6.9.1.img",
            "boot/vmlinuz-6.10.0-rc1",
            "boot/initrd.img-6.10.0-rc1",
            "boot/vmlinuz-0-rescue/oops",
            "boot/vmlinuz",
            "boot/config-6.9.1",
            "usr/lib/modules/6.11.2/vmlinuz",
            "usr/lib/modules/6.9.1/vmlinuz",
            "usr/lib/modules/5.0/modules.dep",
        ] {
            put(path);
        }
        let root = Root::open(folder.path()).unwrap();
        let found = find(&root).unwrap();
        let seen: Vec<(&str, &str, Option<&str>)> = found
            .iter()
            .map(|k| {
                let initrd = k.initrd.as_deref().and_then(Path::to_str);
                (k.version.as_str(), k.file.to_str().unwrap(), initrd)
            })
            .collect();
        assert_eq!(
            seen,
            [
                (
                    "6.9.1",
                    "boot/vmlinuz-6.9.1",
                    Some("boot/initramfs-6.9.1.img")
                ),
                (
                    "6.10.0-rc1",
                    "boot/vmlinuz-6.10.0-rc1",
                    Some("boot/initrd.img-6.10.0-rc1")
                ),
                ("6.11.2", "usr/lib/modules/6.11.2/vmlinuz", None),
            ]
        );
        assert_eq!(modules_version(&root).unwrap(), "6.11.2");
    }

    #[test]
    fn links_lead_to_what_is_in_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("boot")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("boot/vmlinuz-1.0")).unwrap();
        let root = Root::open(folder.path()).unwrap();
        assert_eq!(find(&root).unwrap(), []);
        assert!(modules_version(&root).is_err());
    }

    proptest! {
        #[test]
        fn the_order_of_versions_is_one(a in "[0-9.a-z-]{0,8}", b in "[0-9.a-z-]{0,8}", c in "[0-9.a-z-]{0,8}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
                prop_assert!(compare(&a, &c).is_le());
            }
        }
    }
}
