//! What in the image mounts something at a preserved path too. systemd leaves a path alone at which something is
//! mounted already, and so the image's own entry would be ignored without a word.

use std::path::{Path, PathBuf};

use crate::error::printable;
use crate::run::own_mounts::{self, OwnMount, When};
use crate::sys::beneath::Root;

/// What the system at `root` says of the place `target`, whatever links lead there.
pub fn at(root: &Root, target: &Path) -> Vec<OwnMount> {
    among(root, own_mounts::of(root).all, target)
}

/// Warnings about what is in conflict with `targets` in a session.
pub fn find(root: &Root, targets: &[&Path]) -> Vec<String> {
    let own_mounts::OwnMounts { all, unread } = own_mounts::of(root);
    let mut warnings: Vec<String> = unread.into_iter().collect();
    for target in targets {
        // Nothing is mounted where a unit is masked.
        let rivals = among(root, all.clone(), target);
        for rival in rivals.iter().filter(|r| r.when != When::Never) {
            warnings.push(format!(
                "{} of the image mounts something at {} too: that is ignored, the preserved path is there already; take it out of the image",
                printable(&rival.file),
                printable(&target.display().to_string())
            ));
        }
    }
    warnings
}

fn among(root: &Root, mut all: Vec<OwnMount>, target: &Path) -> Vec<OwnMount> {
    let place = real(root, target);
    all.retain(|own| real(root, &own.entry.target) == place);
    all
}

/// A path that cannot be walked is compared as it is written.
fn real(root: &Root, path: &Path) -> PathBuf {
    root.real_path(path)
        .unwrap_or_else(|_| path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mounts_there_is_found_through_links_of_either() {
        let dir = tempfile::tempdir().unwrap();
        let units = dir.path().join("usr/lib/systemd/system");
        std::fs::create_dir_all(&units).unwrap();
        std::fs::create_dir_all(dir.path().join("etc/systemd/system")).unwrap();
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, dir.path().join(at));
        link("/srv", "data").unwrap();
        link("/dev/null", "etc/systemd/system/opt.mount").unwrap();
        std::fs::write(dir.path().join("etc/fstab"), "x /srv ext4\n").unwrap();
        std::fs::write(units.join("data.mount"), "[Mount]\nWhere=/data\n").unwrap();
        let root = Root::open(dir.path()).unwrap();
        for target in ["/srv", "/data"] {
            let found = find(&root, &[Path::new(target), Path::new("/var")]);
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(found[0].starts_with("/etc/fstab of the image"));
            assert!(found[1].starts_with("/usr/lib/systemd/system/data.mount"));
        }
        assert!(find(&root, &[Path::new("/opt"), Path::new("/srv/x")]).is_empty());
        assert_eq!(at(&root, Path::new("/opt"))[0].when, When::Never);
    }
}
