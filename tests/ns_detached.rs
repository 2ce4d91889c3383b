//! Mounts by descriptor, for real, in a mount namespace of their own. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use ironroot::error::{Class, chain};
use ironroot::sys::detached::{Context, Detached, Flags, Overlay, Tmpfs, read_only};
use ironroot::sys::loopdev::{LoopDevice, Range};
use ironroot::sys::mount;
use ironroot::units::Bytes;
use nix::libc;
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
        tmpfs("scratch").attach_at(&path).unwrap();
        test(&path);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn tmpfs(name: &str) -> Detached {
    let wanted = Tmpfs {
        size: Bytes(64 << 20),
        inodes: 1000,
        mode: 0o755,
        interleave: true,
        name: name.to_owned(),
    };
    wanted.mount(Flags::ROOT).unwrap()
}

fn directory(path: &Path) -> PathBuf {
    fs::create_dir_all(path).unwrap();
    path.to_owned()
}

fn handle(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)
        .unwrap()
}

fn options(target: &Path) -> String {
    mount::at(&mount::mounted().unwrap(), target)
        .unwrap()
        .options
        .clone()
}

#[test]
fn a_tmpfs_has_the_size_inodes_and_mode_that_were_said() {
    isolated(|root| {
        let target = directory(&root.join("a"));
        let made = tmpfs("the name");
        let before = nix::sys::statvfs::fstatvfs(made.as_fd()).unwrap();
        assert_eq!(before.blocks() * before.fragment_size(), 64 << 20);
        assert_eq!(before.files(), 1000);
        made.attach_at(&target).unwrap();
        let found = fs::metadata(&target).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid()), (0o755, 0));
        let entries = mount::mounted().unwrap();
        let entry = mount::at(&entries, &target).unwrap();
        assert_eq!(entry.source, Path::new("the name"));
        assert!(fs::write(target.join("big"), vec![1; 65 << 20]).is_err());
    });
}

#[test]
fn a_bind_is_attached_by_descriptor_and_its_flags_are_its_own() {
    isolated(|root| {
        // A source under nosuid,nodev,noexec, as /run is.
        let run = directory(&root.join("run"));
        let strict = Flags {
            nosuid: true,
            nodev: true,
            noexec: true,
            read_only: false,
        };
        let made = tmpfs("run");
        made.set_flags(strict, false).unwrap();
        made.attach_at(&run).unwrap();
        assert!(options(&run).starts_with("rw,nosuid,nodev,noexec"));
        fs::create_dir_all(run.join("state")).unwrap();
        fs::write(run.join("state/file"), "content").unwrap();

        let copy = Detached::copy_of(handle(&run.join("state")).as_fd(), "state", false).unwrap();
        copy.set_flags(Flags::ROOT, false).unwrap();
        let target = root.join("target");
        directory(&target);
        let descriptor = handle(&target);
        // What the name means may change; the descriptor stays what was looked at.
        fs::rename(&target, root.join("moved")).unwrap();
        symlink(&run, &target).unwrap();
        copy.attach(descriptor.as_fd(), "target").unwrap();
        let moved = root.join("moved");
        assert_eq!(fs::read_to_string(moved.join("file")).unwrap(), "content");
        let found = options(&moved);
        assert!(
            !found.contains("nosuid") && !found.contains("nodev") && !found.contains("noexec"),
            "{found}"
        );
        assert!(
            options(&run).starts_with("rw,nosuid,nodev,noexec"),
            "the source keeps its own"
        );

        // A file on a file; read-only for this mount only.
        let copy =
            Detached::copy_of(handle(&run.join("state/file")).as_fd(), "file", false).unwrap();
        copy.set_flags(Flags::LAYER, false).unwrap();
        let target = root.join("target-file");
        fs::write(&target, "").unwrap();
        copy.attach_at(&target).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "content");
        assert!(fs::write(&target, "x").is_err());
        fs::write(run.join("state/file"), "new").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
    });
}

#[test]
fn a_symbolic_link_is_no_target_and_a_dropped_mount_is_gone() {
    isolated(|root| {
        directory(&root.join("elsewhere"));
        symlink("elsewhere", root.join("link")).unwrap();
        let failure = tmpfs("x").attach_at(&root.join("link")).unwrap_err();
        assert_eq!(failure.class(), Class::Media);
        let count = mount::mounted().unwrap().len();
        drop(tmpfs("y"));
        assert_eq!(mount::mounted().unwrap().len(), count);
    });
}

#[test]
fn a_squashfs_image_under_an_overlay_is_a_root_that_can_be_written() {
    isolated(|root| {
        let tree = directory(&root.join("tree"));
        directory(&tree.join("etc"));
        fs::write(tree.join("etc/os-release"), "ID=test\n").unwrap();
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o755)).unwrap();
        let image = root.join("image");
        let made = Command::new("mksquashfs")
            .args([&tree, &image])
            .args(["-quiet", "-no-progress"])
            .status()
            .unwrap();
        assert!(made.success());
        let device =
            LoopDevice::attach(&File::open(&image).unwrap(), &image, Range::WHOLE).unwrap();
        let lower = directory(&root.join("lower"));
        read_only("squashfs", device.path(), &[])
            .unwrap()
            .attach_at(&lower)
            .unwrap();
        // The mount holds the device now.
        drop(device);
        for name in ["upper", "work", "new-root"] {
            directory(&root.join(name));
        }
        let overlay = Overlay {
            lower: &lower,
            upper: &root.join("upper"),
            work: &root.join("work"),
            root_context: None,
            name: "ironroot",
        };
        let target = root.join("new-root");
        overlay
            .mount(Flags::ROOT)
            .unwrap()
            .attach_at(&target)
            .unwrap();
        let file = target.join("etc/os-release");
        assert_eq!(fs::read_to_string(&file).unwrap(), "ID=test\n");
        fs::write(&file, "ID=changed\n").unwrap();
        let above = fs::read_to_string(root.join("upper/etc/os-release")).unwrap();
        assert_eq!(above, "ID=changed\n");
        assert_eq!(
            fs::read_to_string(lower.join("etc/os-release")).unwrap(),
            "ID=test\n"
        );
        assert!(options(&lower).starts_with("ro"));
        let entries = mount::mounted().unwrap();
        assert_eq!(mount::at(&entries, &target).unwrap().kind, "overlay");
        for place in [&target, &lower] {
            mount::detach(place).unwrap();
        }
    });
}

#[test]
fn refusals_say_what_the_file_system_says() {
    isolated(|root| {
        let missing = root.join("missing");
        let overlay = Overlay {
            lower: &missing,
            upper: root,
            work: root,
            root_context: None,
            name: "ironroot",
        };
        let failure = overlay.mount(Flags::ROOT).unwrap_err();
        let text = chain(&failure);
        assert!(text.starts_with("mounting ironroot as overlay: "), "{text}");
        assert!(
            text.contains(missing.to_str().unwrap()) && text.contains("ENOENT"),
            "{text}"
        );

        let garbage = root.join("garbage");
        fs::write(&garbage, vec![7; 1 << 20]).unwrap();
        let device =
            LoopDevice::attach(&File::open(&garbage).unwrap(), &garbage, Range::WHOLE).unwrap();
        let text = chain(&read_only("squashfs", device.path(), &[]).unwrap_err());
        assert!(
            text.to_lowercase().contains("squashfs superblock"),
            "{text}"
        );

        let failure = Context::new("nosuchfs", "x").unwrap_err();
        assert!(
            failure.next().contains("module for nosuchfs"),
            "{failure:?}"
        );
        let failure = Context::new("tmpfs", "x")
            .unwrap()
            .set("size", b"lots")
            .unwrap_err();
        assert!(chain(&failure).contains("option size=lots"), "{failure:?}");
    });
}

/// An option that the kernel has and refuses is not passed over like one that it does not know.
#[test]
fn an_option_that_is_refused_is_not_one_that_is_unknown() {
    isolated(|_| {
        let context = || Context::new("overlay", "x").unwrap();
        assert!(context().set_if_known("index", b"off").unwrap());
        assert!(!context().set_if_known("no-such-option", b"off").unwrap());
        let failure = context().set_if_known("index", b"maybe").unwrap_err();
        assert!(
            chain(&failure).contains("mounting x as overlay: option index=maybe"),
            "{failure:?}"
        );
        assert!(!context().set_if_taken("index", b"maybe").unwrap());
    });
}
