//! Whether a mounted file system can be the root of a system: the mount, its directories.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};

use super::program::has_directory;
use crate::error::{Class, Context as _, Failure, Result};
use crate::sys::mount::{self, Entry};

/// The mounts that move into the new root, in this order: /proc last, because until then it is looked into.
pub const API: [&str; 4] = ["dev", "sys", "run", "proc"];

/// Sees that `dev`, `proc`, `sys` and `run` are directories in `root`, and makes those that are missing.
///
/// # Errors
/// Class handover: one is something else, such as a symbolic link (which would lead a mount elsewhere), or is
/// missing and cannot be made.
pub fn check_directories(root: &Path) -> Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let fd = nix::fcntl::open(root, flags, Mode::empty()).context(Class::Handover, || {
        format!("opening the new root {}", root.display())
    })?;
    for name in API {
        let what = match fstatat(&fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
                SFlag::S_IFDIR => continue,
                SFlag::S_IFLNK => "a symbolic link".to_owned(),
                _ => "not a directory".to_owned(),
            },
            Err(Errno::ENOENT) => {
                let mode = if matches!(name, "proc" | "sys") {
                    0o555
                } else {
                    0o755
                };
                match mkdirat(&fd, name, Mode::from_bits_truncate(mode)) {
                    Ok(()) => continue,
                    Err(errno) => format!("missing and cannot be made: {}", errno.desc()),
                }
            }
            Err(errno) => errno.desc().to_owned(),
        };
        let text = format!("/{name} in {} is {what}", root.display());
        return Err(Failure::new(Class::Handover, text)
            .hint(format!("the image needs an empty directory /{name}")));
    }
    Ok(())
}

/// Sees that `root`, without symbolic links in its path, is a mount of its own that hides nothing of a system.
/// Returns what the operator should know.
pub fn check_mount(root: &Path, mounted: &[Entry]) -> Result<Vec<String>> {
    let refuse = |what: String| {
        Failure::new(
            Class::Handover,
            format!("the new root {} {what}", root.display()),
        )
    };
    let stat = std::fs::metadata(root).context(Class::Handover, || {
        format!("looking at the new root {}", root.display())
    })?;
    let ours = std::fs::metadata("/").context(Class::Handover, || "looking at /")?;
    let entry = mount::at(mounted, root).filter(|_| root != Path::new("/"));
    let Some(entry) = entry.filter(|_| stat.is_dir()) else {
        return Err(refuse("is not a mounted directory".to_owned())
            .hint("mount the new system there first"));
    };
    if stat.dev() == ours.dev() {
        return Err(refuse(
            "is a part of the initrd's own file system, which is deleted".to_owned(),
        )
        .hint("put the new system onto a file system of its own"));
    }
    for flag in ["nosuid", "nodev", "noexec"] {
        if entry.options.split(',').any(|o| o == flag) {
            return Err(refuse(format!("is mounted {flag}"))
                .hint("nothing that needs privileges would work; mount it without these flags"));
        }
    }
    for name in API {
        if mount::at(mounted, &root.join(name)).is_some() {
            return Err(refuse(format!("has something mounted at /{name} already"))
                .hint(format!("unmount it: the initrd's own /{name} goes there")));
        }
    }
    Ok(mode_warning(stat.mode(), stat.uid(), stat.gid())
        .into_iter()
        .collect())
}

/// A root directory that only root may enter breaks every other user, and one that others may write is theirs.
/// Both come from the directory that an image was packed from.
fn mode_warning(mode: u32, user: u32, group: u32) -> Option<String> {
    let sound = mode & 0o005 == 0o005 && mode & 0o022 == 0 && user == 0 && group == 0;
    (!sound).then(|| {
        format!(
            "the image's root directory has mode {:04o} and owner {user}:{group}; usual is 0755 and 0:0",
            mode & 0o7777
        )
    })
}

/// A warning where the new system has no modules for the kernel `release`, which goes on running.
pub fn check_modules(root: &Path, release: &str) -> Option<String> {
    // A kernel without modules has no such file, and needs none.
    if !Path::new("/proc/modules").exists() {
        return None;
    }
    let folder = Path::new("/lib/modules").join(release);
    (!has_directory(root, &folder)).then(|| {
        format!(
            "the image has no {}: it was made for another kernel, and will have no drivers but those \
             that are loaded now",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn missing_directories_are_made() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("dev")).unwrap();
        check_directories(root.path()).unwrap();
        for name in API {
            assert!(root.path().join(name).is_dir(), "{name}");
        }
        let mode = |name| {
            fs::metadata(root.path().join(name))
                .unwrap()
                .permissions()
                .mode()
        };
        assert_eq!(mode("proc") & 0o7777, 0o555);
        assert_eq!(mode("run") & 0o7777, 0o755);
        check_directories(root.path()).unwrap();
        assert!(check_directories(&root.path().join("nothing")).is_err());
    }

    #[test]
    fn a_link_or_a_file_in_their_place_is_refused_by_name() {
        for name in API {
            let root = tempfile::tempdir().unwrap();
            let place = root.path().join(name);
            symlink("/tmp", &place).unwrap();
            let failure = check_directories(root.path()).unwrap_err();
            assert_eq!(failure.class(), Class::Handover);
            let wanted = format!("/{name} in ");
            assert!(failure.to_string().contains(&wanted), "{failure}");
            assert!(failure.to_string().contains("symbolic link"), "{failure}");
            fs::remove_file(&place).unwrap();
            fs::write(&place, "").unwrap();
            let failure = check_directories(root.path()).unwrap_err();
            assert!(failure.to_string().contains("not a directory"), "{failure}");
        }
    }

    #[test]
    fn a_root_directory_that_is_not_as_usual_is_told() {
        for (mode, user, good) in [
            (0o40755, 0, true),
            (0o40555, 0, true),
            (0o40700, 0, false),
            (0o41777, 0, false),
            (0o40775, 0, false),
            (0o40755, 1000, false),
        ] {
            assert_eq!(
                mode_warning(mode, user, 0).is_none(),
                good,
                "{mode:o} {user}"
            );
        }
    }

    #[test]
    fn modules_are_looked_for_inside_the_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/lib/modules/6.1.0")).unwrap();
        symlink("usr/lib", root.path().join("lib")).unwrap();
        assert_eq!(check_modules(root.path(), "6.1.0"), None);
        if Path::new("/proc/modules").exists() {
            assert!(
                check_modules(root.path(), "6.2.0")
                    .unwrap()
                    .contains("6.2.0")
            );
        }
    }

    #[test]
    fn a_directory_that_is_no_mount_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mounted = mount::mounted().unwrap();
        for root in [folder.path(), Path::new("/"), Path::new("/nothing")] {
            let failure = check_mount(root, &mounted).unwrap_err();
            assert_eq!(failure.class(), Class::Handover, "{}", root.display());
        }
    }
}
