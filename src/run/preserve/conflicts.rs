//! What in the image mounts something at a preserved path too. systemd leaves a path alone at which something is
//! mounted already, and so the image's own entry would be ignored without a word.

use std::path::{Path, PathBuf};

use crate::error::printable;
use crate::run::own_mounts::{self, OwnMount, When};
use crate::sys::beneath::{Root, Walk};

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

/// What the system at `root` mounts above one of `targets`, and so hides it: the target's position, and what it is. A place
/// above at which something is mounted already is left alone by systemd.
pub fn above(root: &Root, targets: &[&Path]) -> Vec<(usize, OwnMount)> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut own: Vec<(PathBuf, OwnMount)> = Vec::new();
    for mount in own_mounts::of(root).all {
        let place = real(root, &mount.entry.target);
        // The first of two for one place counts; of one that is masked, nothing is mounted.
        if seen.contains(&place) {
            continue;
        }
        seen.push(place.clone());
        if mount.when != When::Never && !is_mounted(root, &place) {
            own.push((place, mount));
        }
    }
    let mut found = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        let target = real(root, target);
        let hides = |place: &Path| target != place && target.starts_with(place);
        found.extend(
            own.iter()
                .filter(|(place, _)| hides(place))
                .map(|(_, mount)| (i, mount.clone())),
        );
    }
    found
}

/// Whether something is mounted at `place` in the root: it is in another mount than what is above it.
fn is_mounted(root: &Root, place: &Path) -> bool {
    let id = |path: &Path| {
        let handle = root.handle(path, Walk::InRoot).ok()?;
        super::mount_id(&handle).ok()
    };
    match (id(place), place.parent().map(id)) {
        (Some(here), Some(Some(above))) => here != above,
        _ => false,
    }
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

    #[test]
    fn what_is_mounted_above_is_found_and_what_is_masked_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let units = dir.path().join("etc/systemd/system");
        std::fs::create_dir_all(&units).unwrap();
        std::fs::create_dir_all(dir.path().join("srv/deep")).unwrap();
        let link = |to: &str, at: &Path| std::os::unix::fs::symlink(to, at);
        link("/srv/deep", &dir.path().join("data")).unwrap();
        link("/dev/null", &units.join("opt.mount")).unwrap();
        std::fs::write(
            dir.path().join("etc/fstab"),
            "x /srv ext4\nx /opt ext4\nx /mnt ext4 noauto\nx /mnt/b ext4 noauto,x-systemd.automount\nx /boot ext4 x-initrd.mount\n",
        )
        .unwrap();
        let root = Root::open(dir.path()).unwrap();
        let when = |target: &str| -> Vec<When> {
            let found = above(&root, &[Path::new("/usr/x"), Path::new(target)]);
            assert!(found.iter().all(|(i, _)| *i == 1), "{found:?}");
            found.into_iter().map(|(_, own)| own.when).collect()
        };
        // /data is in /srv.
        for target in ["/srv/a", "/data/x", "/data", "/boot/x"] {
            assert_eq!(when(target), [When::AtBoot], "{target}");
        }
        assert_eq!(when("/mnt/a"), [When::OnDemand]);
        assert_eq!(when("/mnt/b/c"), [When::OnDemand, When::AtBoot]);
        for target in ["/srv", "/opt/x", "/srvx", "/etc/x"] {
            assert_eq!(when(target), [], "{target}");
        }
    }
}
