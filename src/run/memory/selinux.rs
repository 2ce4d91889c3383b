//! SELinux. When the new system loads its policy, everything on a tmpfs gets the label of a tmpfs: an unpacked
//! image could not start then. Below an overlay the labels stay in the image, and only what is written needs
//! one.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::config::cmdline::Cmdline;
use crate::error::{Class, Failure, Result, printable};
use crate::sys::xattr;

/// The attribute that holds a label.
const LABEL: &[u8] = b"security.selinux";

/// The type of a root directory in the reference policy.
const ROOT_LABEL: &str = "system_u:object_r:root_t:s0";

/// Whether the image whose root is `root` loads a policy and enforces it on this machine.
pub fn is_enforcing(root: &Path, cmdline: &Cmdline) -> bool {
    if cmdline.get("selinux") == Some("0") || cmdline.get("enforcing") == Some("0") {
        return false;
    }
    let text = std::fs::read_to_string(root.join("etc/selinux/config")).unwrap_or_default();
    mode(&text) == Some("enforcing")
}

/// `SELINUX=` of /etc/selinux/config (selinux(8)); the last one counts.
fn mode(text: &str) -> Option<&str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("SELINUX="))
        .map(str::trim)
        .next_back()
}

/// Refuses an unpacked image that enforces.
pub fn must_not_enforce(root: &Path, cmdline: &Cmdline) -> Result<()> {
    if !is_enforcing(root, cmdline) {
        return Ok(());
    }
    Err(Failure::new(
        Class::Handover,
        "the image enforces SELinux, and unpacked into memory its files would lose their labels",
    )
    .hint("publish the image as squashfs or erofs, or add enforcing=0 to the kernel command line"))
}

/// Gives the upper directory of the root the label of the image's root `lower`, where it has none: on a file system with
/// labels of its own the policy finds it there.
pub fn label_like(lower: &Path, upper: &OwnedFd) {
    let of_upper = xattr::Of::Open(upper.as_fd());
    let wanted = std::fs::File::open(lower)
        .ok()
        .and_then(|root| label_of(root.as_fd()));
    if let (Some(label), Ok(None)) = (wanted, xattr::get(of_upper, LABEL)) {
        set_label(upper.as_fd(), &label);
    }
}

/// The label of what is open (not with `O_PATH`).
pub fn label_of(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    xattr::get(xattr::Of::Open(fd), LABEL).ok().flatten()
}

/// Gives what is open (not with `O_PATH`) a label.
pub fn set_label(fd: BorrowedFd<'_>, label: &[u8]) {
    // A file system without labels is one that the policy gives them to.
    let _ = xattr::set(xattr::Of::Open(fd), LABEL, label);
}

/// The label that the root of the session gets: that of the image's own root. `None` where this kernel has no
/// SELinux.
pub fn root_context(lower: &Path) -> Option<String> {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known
        .lines()
        .any(|line| line.trim_end().ends_with("selinuxfs"))
    {
        return None;
    }
    let of_image = std::fs::File::open(lower)
        .ok()
        .and_then(|root| label_of(root.as_fd()))
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .map(|label| label.trim_end_matches('\0').to_owned())
        .filter(|label| printable(label) == *label);
    Some(of_image.unwrap_or_else(|| ROOT_LABEL.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_own_file_says_whether_it_enforces() {
        let root = tempfile::tempdir().unwrap();
        let enforcing = |line: &str| is_enforcing(root.path(), &Cmdline::parse(line));
        assert!(!enforcing(""));
        std::fs::create_dir_all(root.path().join("etc/selinux")).unwrap();
        let config = root.path().join("etc/selinux/config");
        std::fs::write(&config, "# c\nSELINUX=enforcing \nSELINUXTYPE=targeted\n").unwrap();
        assert!(enforcing("quiet") && !enforcing("selinux=0") && !enforcing("enforcing=0"));
        assert_eq!(
            must_not_enforce(root.path(), &Cmdline::default())
                .unwrap_err()
                .class(),
            Class::Handover
        );
        std::fs::write(&config, "SELINUX=permissive\n").unwrap();
        assert!(!enforcing(""));
    }
}
