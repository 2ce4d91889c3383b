//! Mounts for real, in a mount namespace of their own. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ironroot::init::mounts;
use ironroot::sys::mount::{self, Flags, Guard};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` in a thread whose mounts nobody else sees, with an empty directory on a tmpfs.
fn isolated(test: impl FnOnce(&Path) + Send + 'static) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_owned();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)
            .expect("a mount namespace of its own (these tests need root)");
        mount::make_private(Path::new("/")).unwrap();
        // It goes with the namespace.
        let options = "mode=0755";
        mount::attach(Path::new("test"), &path, "tmpfs", Flags::empty(), options).unwrap();
        test(&path);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn mounted(target: &Path) -> Option<mount::Entry> {
    let entries = mount::mounted().unwrap();
    mount::at(&entries, target).cloned()
}

#[test]
fn a_guard_unmounts_also_what_is_busy() {
    isolated(|root| {
        let target = root.join("a b");
        std::fs::create_dir(&target).unwrap();
        let attach =
            || Guard::attach(Path::new("x"), &target, "tmpfs", Flags::empty(), "").unwrap();
        {
            let guard = attach();
            assert_eq!(mounted(guard.target()).unwrap().kind, "tmpfs");
        }
        assert_eq!(mounted(&target), None);

        let guard = attach();
        let open = std::fs::File::create(target.join("open")).unwrap();
        let failure = guard.unmount().unwrap_err();
        assert!(failure.to_string().starts_with("unmounting "), "{failure}");
        assert_eq!(mounted(&target), None, "taken out of the tree all the same");
        drop(open);

        attach().unmount().unwrap();
        assert_eq!(attach().keep(), target);
        assert!(mounted(&target).is_some());
        mount::detach(&target).unwrap();
    });
}

#[test]
fn bind_flags_and_moving() {
    isolated(|root| {
        let [source, bound, moved] = ["source", "bound", "moved"].map(|name| {
            let path = root.join(name);
            std::fs::create_dir(&path).unwrap();
            path
        });
        std::fs::write(source.join("file"), "text").unwrap();
        let guard = Guard::bind(&source, &bound).unwrap();
        mount::set_flags(&bound, Flags::MS_RDONLY | Flags::MS_NOSUID).unwrap();
        let options = mounted(&bound).unwrap().options;
        assert!(options.starts_with("ro,nosuid"), "{options}");
        assert!(std::fs::write(bound.join("new"), "").is_err());
        std::fs::write(source.join("new"), "").unwrap();
        mount::shift(&guard.keep(), &moved).unwrap();
        assert_eq!(mounted(&bound), None);
        assert_eq!(std::fs::read_to_string(moved.join("file")).unwrap(), "text");
        mount::detach(&moved).unwrap();
    });
}

#[test]
fn the_early_mounts_have_the_modes_that_the_new_system_expects_and_are_made_once() {
    isolated(|root| {
        // As in an initramfs: nothing but directories.
        nix::unistd::chroot(root).unwrap();
        std::env::set_current_dir("/").unwrap();
        let failures = mounts::early();
        assert!(failures.is_empty(), "{failures:?}");
        let flags = |target: &str| {
            let entry = mounted(Path::new(target)).unwrap_or_else(|| panic!("{target}"));
            (entry.kind, entry.options)
        };
        for (target, kind, wanted) in [
            ("/proc", "proc", "rw,nosuid,nodev,noexec"),
            ("/sys", "sysfs", "rw,nosuid,nodev,noexec"),
            ("/dev", "devtmpfs", "rw,nosuid"),
            ("/dev/pts", "devpts", "rw,nosuid,noexec"),
            ("/dev/shm", "tmpfs", "rw,nosuid,nodev"),
            ("/run", "tmpfs", "rw,nosuid,nodev"),
        ] {
            let (found, options) = flags(target);
            assert_eq!(found, kind, "{target}");
            assert!(options.starts_with(wanted), "{target}: {options}");
        }
        // strictatime is what is left when relatime and noatime are absent.
        assert!(!flags("/run").1.contains("atime"));
        let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("/run"), 0o755);
        assert_eq!(mode("/run/ironroot"), 0o700);
        assert_eq!(mode("/dev/shm"), 0o1777);
        assert_eq!(mode("/tmp"), 0o1777);

        let before = mount::mounted().unwrap();
        std::fs::write("/run/ironroot/kept", "").unwrap();
        assert!(mounts::early().is_empty());
        assert_eq!(mount::mounted().unwrap(), before);
        assert!(Path::new("/run/ironroot/kept").exists());
        for target in ["/run", "/dev/shm", "/dev/pts", "/dev", "/sys", "/proc"] {
            mount::detach_lazily(Path::new(target)).unwrap();
        }
    });
}
