//! The switch of the root for real: ironroot as PID 1 of namespaces of its own, whose root is a tmpfs. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/small_system.rs"]
mod small_system;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ironroot::config::cmdline::Cmdline;
use ironroot::error::{Class, Result};
use ironroot::init::switch_root::{self, Inheritance, Ready, delete};
use ironroot::sys::mount::{self, Flags};
use nix::sched::{CloneFlags, unshare};

/// What the new init says of itself. `$0` and the arguments come from how it was started.
const PROBE: &str = r#"#!/bin/sh
echo "arguments: $0 $*"
echo "root: $(stat -c '%a %u:%g' /) $(awk '$5 == "/" { print $6 }' /proc/1/mountinfo)"
echo "mounts: $(awk '{ print $5 }' /proc/1/mountinfo | tr '\n' ' ')"
echo "umask: $(umask)"
echo "environment: $(tr '\0' '\n' </proc/1/environ | sort | tr '\n' ' ')"
echo "processes: $(cat /proc/[0-9]*/comm 2>/dev/null | sort | tr '\n' ' ')"
echo "kept: $(cat /run/kept)"
echo "below: $(cat /run/ironroot/lower/file)"
echo "old: $(ls -d /ironroot /config /.ironroot-new-root 2>/dev/null)"
echo "end"
"#;

/// From the host's root to a tmpfs with `$INITRD` in it, and a new root with `$NEW` below its /run.
const START: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 initrd "$PLACE"
cp -a "$INITRD/." "$PLACE"
cd "$PLACE"
mkdir -p old config
mount -t proc proc proc
mount -t tmpfs -o mode=0755 dev dev
mknod dev/null c 1 3
mount -t tmpfs -o mode=0755,nosuid,nodev run run
echo content >run/kept
mkdir -p run/ironroot/root run/ironroot/lower
mount -t tmpfs -o mode=0755 new run/ironroot/root
cp -a "$NEW/." run/ironroot/root
mount -t tmpfs lower run/ironroot/lower
echo layer >run/ironroot/lower/file
mount -t tmpfs config config
pivot_root . old
exec /bin/busybox chroot . /bin/sh /start
"#;

/// Runs `start`, a shell script, as PID 1 of an initrd; what was said until it ended.
fn boot(start: &str, prepare: impl FnOnce(&Path)) -> String {
    let [place, initrd, new] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    small_system::busybox(initrd.path());
    small_system::ironroot(initrd.path());
    small_system::script(&initrd.path().join("start"), start);
    small_system::busybox(new.path());
    prepare(new.path());
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            START,
        ])
        .env("PLACE", place.path())
        .env("INITRD", initrd.path())
        .env("NEW", new.path())
        .env("HOME", "/home/of/it")
        .env("TERM", "of-it")
        .stdin(Stdio::null())
        .stdout(said.as_file().try_clone().unwrap())
        .stderr(said.as_file().try_clone().unwrap())
        .spawn()
        .unwrap();
    let began = Instant::now();
    loop {
        let ended = child.try_wait().unwrap().is_some();
        let text = fs::read_to_string(said.path()).unwrap();
        if ended || began.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            child.wait().unwrap();
            return text;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("no line {name:?} in\n{text}"));
    found.strip_prefix(' ').unwrap_or(found)
}

#[test]
fn the_new_init_finds_everything_as_if_the_kernel_had_started_it() {
    // Shared mounts and a process that does not want to end: what other initrds leave behind.
    let start = r#"
umount -l /old
mount --make-rshared /
(trap '' TERM; echo >/run/trapped; sleep 1000) &
while [ ! -e /run/trapped ]; do :; done
umask 077
exec 9>/run/open
exec /ironroot switch-root /run/ironroot/root "" one "two words"
"#;
    let began = Instant::now();
    let said = boot(start, |new| {
        symlink("/etc/init", new.join("sbin/init")).unwrap();
        small_system::script(&new.join("etc/init"), PROBE);
    });
    assert!(said.contains("\nend\n"), "{said}");
    assert_eq!(line(&said, "arguments"), "/sbin/init one two words");
    let root = line(&said, "root");
    assert!(root.starts_with("755 0:0 rw,"), "{root}");
    for flag in ["nosuid", "nodev", "noexec"] {
        assert!(!root.contains(flag), "{root}");
    }
    // The old root, /config and the old places are gone from the table.
    let mut mounts: Vec<_> = line(&said, "mounts").split_whitespace().collect();
    mounts.sort_unstable();
    assert_eq!(
        mounts,
        ["/", "/dev", "/proc", "/run", "/run/ironroot/lower"]
    );
    assert_eq!(line(&said, "umask"), "0022");
    // Nothing of the shell, of cargo or of this test.
    assert_eq!(
        line(&said, "environment"),
        "HOME=/home/of/it PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=of-it "
    );
    assert_eq!(line(&said, "kept"), "content");
    assert_eq!(line(&said, "below"), "layer");
    assert_eq!(line(&said, "old"), "");
    assert!(!line(&said, "processes").contains("sleep"), "{said}");
    // SIGTERM was not enough.
    assert!(began.elapsed() >= Duration::from_secs(5));
}

#[test]
fn no_signal_is_ignored_or_blocked_and_no_other_file_is_open() {
    // A program that changes nothing of this itself, as a shell would.
    let boot = |what: &str| {
        let start = format!(
            "trap '' HUP QUIT\nexec 9>/run/open\nexec /ironroot switch-root /run/ironroot/root {what}\n"
        );
        boot(&start, |_| {})
    };
    let said = boot("/bin/cat /proc/self/status");
    for name in ["SigBlk", "SigIgn", "SigCgt"] {
        assert_eq!(line(&said, name).trim(), "0000000000000000", "{said}");
    }
    // The fourth is the directory that is being read.
    let said = boot("/bin/ls /proc/self/fd");
    assert_eq!(
        said.split_whitespace().collect::<Vec<_>>(),
        ["0", "1", "2", "3"]
    );
}

#[test]
fn where_the_init_cannot_be_started_after_all_the_next_one_is() {
    // A file that is open for writing cannot be executed: no check can know.
    let start = r"
exec 9>>/run/ironroot/root/sbin/init
exec /ironroot switch-root /run/ironroot/root
";
    let said = boot(start, |new| {
        small_system::script(&new.join("sbin/init"), "#!/bin/sh\necho wrong\n");
        small_system::script(&new.join("bin/init"), PROBE);
    });
    assert_eq!(line(&said, "arguments"), "/bin/init ", "{said}");
    assert!(!said.contains("wrong"), "{said}");
}

#[test]
fn only_pid_1_may_do_it() {
    let start = r#"
/ironroot switch-root /run/ironroot/root
echo "code: $?"
/ironroot switch-root --dry-run /run/ironroot/root
echo "dry: $?"
/ironroot switch-root --dry-run /run/ironroot/root /none
echo "dry none: $?"
echo "intact: $(ls -d /ironroot /config /run/ironroot/root/sbin/init | tr '\n' ' ')"
"#;
    let said = boot(start, |new| {
        small_system::script(&new.join("sbin/init"), PROBE);
    });
    assert!(said.contains("is not PID 1"), "{said}");
    assert_eq!(line(&said, "code"), "17");
    assert_eq!(line(&said, "dry"), "0");
    assert_eq!(line(&said, "dry none"), "17");
    assert!(said.contains("init=/none"), "{said}");
    assert_eq!(
        line(&said, "intact"),
        "/config /ironroot /run/ironroot/root/sbin/init "
    );
}

/// Runs `test` in a thread whose mounts nobody else sees, with an empty directory on a tmpfs.
fn isolated(test: impl FnOnce(&Path) + Send + 'static) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_owned();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)
            .expect("a mount namespace of its own (these tests need root)");
        mount::make_private(Path::new("/")).unwrap();
        // It goes with the namespace.
        tmpfs(&path, Flags::empty());
        test(&path);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn tmpfs(at: &Path, flags: Flags) {
    fs::create_dir_all(at).unwrap();
    mount::attach(Path::new("test"), at, "tmpfs", flags, "mode=0755").unwrap();
}

fn preflight(root: &Path) -> Result<Ready> {
    let nothing = Inheritance::new([], [], &Cmdline::default());
    switch_root::preflight(root, None, nothing)
}

#[test]
fn a_root_that_would_not_work_is_refused_before_anything_is_touched() {
    isolated(|place| {
        let root = place.join("root");
        let refused = |wanted: &str| {
            let before = mount::mounted().unwrap();
            let failure = preflight(&root).unwrap_err();
            assert_eq!(failure.class(), Class::Handover, "{failure}");
            assert!(failure.to_string().contains(wanted), "{wanted}: {failure}");
            assert_eq!(mount::mounted().unwrap(), before);
        };
        fs::create_dir(&root).unwrap();
        refused("is not a mounted directory");
        for (flag, name) in [
            (Flags::MS_NOSUID, "mounted nosuid"),
            (Flags::MS_NODEV, "mounted nodev"),
            (Flags::MS_NOEXEC, "mounted noexec"),
        ] {
            tmpfs(&root, flag);
            small_system::busybox(&root);
            refused(name);
            mount::detach(&root).unwrap();
        }
        tmpfs(&root, Flags::empty());
        refused("no init in");
        small_system::busybox(&root);
        let ready = preflight(&root).unwrap();
        assert_eq!(ready.init(), Path::new("/bin/sh"));
        assert!(
            ready.warnings.iter().any(|w| w.contains("no init")),
            "{:?}",
            ready.warnings
        );
        assert!(
            ready.warnings.iter().all(|w| !w.contains("mode")),
            "{:?}",
            ready.warnings
        );

        // By another name: what counts is where it leads.
        symlink("root", place.join("link")).unwrap();
        preflight(&place.join("link")).unwrap();

        tmpfs(&root.join("run"), Flags::empty());
        refused("has something mounted at /run");
        mount::detach(&root.join("run")).unwrap();

        fs::remove_dir(root.join("proc")).unwrap();
        symlink("/sys", root.join("proc")).unwrap();
        refused("/proc in");
        fs::remove_file(root.join("proc")).unwrap();

        // Missing, and the file system cannot be written.
        mount::set_flags(&root, Flags::MS_RDONLY).unwrap();
        refused("missing and cannot be made");
        mount::set_flags(&root, Flags::empty()).unwrap();
        preflight(&root).unwrap();
        assert!(root.join("proc").is_dir());

        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
        let warnings = preflight(&root).unwrap().warnings;
        assert!(
            warnings.iter().any(|w| w.contains("mode 0700")),
            "{warnings:?}"
        );

        mount::detach(&root).unwrap();
        // A directory of the file system that / is on, made a mount.
        let below = tempfile::tempdir_in("/").unwrap();
        small_system::busybox(below.path());
        mount::bind(below.path(), &root).unwrap();
        refused("the initrd's own file system");
    });
}

#[test]
fn deleting_the_initrd_stays_in_it() {
    isolated(|place| {
        let [initrd, disk] = ["initrd", "disk"].map(|name| place.join(name));
        tmpfs(&initrd, Flags::empty());
        tmpfs(&disk, Flags::empty());
        fs::write(disk.join("precious"), "1").unwrap();
        // Links to elsewhere, another file system, a bind mount of the very same one.
        symlink(&disk, initrd.join("link")).unwrap();
        fs::create_dir_all(initrd.join("a/b/c")).unwrap();
        fs::write(initrd.join("a/b/c/file"), "1").unwrap();
        symlink("../../..", initrd.join("a/b/c/up")).unwrap();
        fs::create_dir_all(initrd.join("mounted/kept")).unwrap();
        mount::bind(&disk, &initrd.join("mounted/kept")).unwrap();
        let same = initrd.join("same");
        fs::create_dir_all(same.join("inner")).unwrap();
        let kept = place.join("kept");
        tmpfs(&kept, Flags::empty());
        fs::create_dir(kept.join("shown")).unwrap();
        fs::write(kept.join("shown/precious"), "1").unwrap();
        mount::bind(&kept.join("shown"), &same.join("inner")).unwrap();
        // Deeper than what is followed, and wide.
        let mut deep = initrd.join("deep");
        for _ in 0..300 {
            deep = deep.join("d");
        }
        fs::create_dir_all(&deep).unwrap();
        for number in 0..5000 {
            fs::write(initrd.join(format!("a/{number}")), "").unwrap();
        }
        let deleted = delete::children(File::open(&initrd).unwrap().into());
        assert!(fs::exists(disk.join("precious")).unwrap());
        assert!(fs::exists(kept.join("shown/precious")).unwrap());
        let mut left: Vec<_> = fs::read_dir(&initrd)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["deep", "mounted", "same"]);
        // 5000 files, the link, a/b/c with two in it.
        assert_eq!(deleted.gone, 5006, "{deleted:?}");
        assert!(deleted.left > 200, "{deleted:?}");
    });
}

#[test]
fn only_file_systems_in_memory_are_ever_deleted() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = || File::open(folder.path()).unwrap();
    assert!(!delete::is_in_memory(open()), "target/ is on a disk");
    fs::write(folder.path().join("file"), "").unwrap();
    let deleted = delete::children(open().into());
    assert_eq!((deleted.gone, deleted.left), (0, 0));
    assert!(folder.path().join("file").exists());
    assert!(!delete::is_in_memory(File::open("/proc").unwrap()));
}
