use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

/// A root with traps in it, and beside it a directory that nothing may reach.
struct Lab {
    dir: tempfile::TempDir,
    root: Root,
}

fn lab() -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("root/usr/lib")).unwrap();
    fs::create_dir(at("outside")).unwrap();
    fs::write(at("outside/secret"), "secret").unwrap();
    fs::write(at("root/usr/lib/file"), "inside").unwrap();
    symlink("usr/lib", at("root/lib")).unwrap();
    symlink("/usr/lib", at("root/absolute")).unwrap();
    symlink("../outside", at("root/up")).unwrap();
    symlink("../../../../outside", at("root/usr/far")).unwrap();
    symlink(at("outside"), at("root/direct")).unwrap();
    symlink("/proc/self/root", at("root/magic")).unwrap();
    symlink("nowhere", at("root/dangling")).unwrap();
    symlink("circle", at("root/circle")).unwrap();
    let root = Root::open(&at("root")).unwrap();
    Lab { dir, root }
}

fn p(text: &str) -> &Path {
    Path::new(text)
}

#[test]
fn links_are_followed_inside_the_root_only() {
    let lab = lab();
    for path in [
        "lib/file",
        "/lib/file",
        "//usr/lib/file",
        "absolute/file",
        "../usr/lib/file",
    ] {
        let text = lab.root.read(p(path), Walk::InRoot, 100).unwrap();
        assert_eq!(text, b"inside", "{path}");
    }
    let out = [
        "up/secret",
        "usr/far/secret",
        "direct/secret",
        "../outside/secret",
    ];
    for path in out {
        for walk in [Walk::InRoot, Walk::NoLinks, Walk::NoLinksOneFilesystem] {
            assert!(lab.root.handle(p(path), walk).is_err(), "{path} {walk:?}");
            assert!(lab.root.file(p(path), walk).is_err(), "{path} {walk:?}");
            let made = lab
                .root
                .create_file(&p(path).with_file_name("new"), 0o600, walk);
            assert!(made.is_err(), "{path} {walk:?}");
        }
        assert!(!lab.root.exists(p(path), Walk::InRoot).unwrap(), "{path}");
    }
    assert_eq!(
        fs::read_dir(lab.dir.path().join("outside"))
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn without_links_means_without_any() {
    let lab = lab();
    let errno = |path| lab.root.handle(p(path), Walk::NoLinks).unwrap_err().errno;
    assert_eq!(errno("lib/file"), Errno::ELOOP);
    assert_eq!(errno("lib"), Errno::ELOOP);
    assert_eq!(errno("../outside"), Errno::EXDEV);
    assert!(lab.root.exists(p("/usr/lib/file"), Walk::NoLinks).unwrap());
    // The entry itself may be a link: it is not followed.
    assert_eq!(
        lab.root.read_link(p("lib"), Walk::NoLinks).unwrap(),
        "usr/lib"
    );
    assert_eq!(
        lab.root.read_link(p("/usr/far"), Walk::InRoot).unwrap(),
        "../../../../outside"
    );
    let mounted = Root::open(p("/")).unwrap();
    let crossing = mounted.handle(p("proc/self"), Walk::NoLinksOneFilesystem);
    assert_eq!(crossing.unwrap_err().errno, Errno::EXDEV);
    let magic = mounted.handle(p("proc/self/root/etc"), Walk::InRoot);
    assert_eq!(magic.unwrap_err().errno, Errno::ELOOP);
}

#[test]
fn only_regular_files_are_opened_and_no_fifo_waits() {
    let lab = lab();
    let fifo = lab.dir.path().join("root/fifo");
    nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
    let errno = |path| lab.root.file(p(path), Walk::InRoot).unwrap_err().errno;
    assert_eq!(errno("fifo"), Errno::EINVAL);
    assert_eq!(errno("usr"), Errno::EISDIR);
    assert_eq!(errno("circle"), Errno::ELOOP);
    let large = lab.root.read(p("lib/file"), Walk::InRoot, 5).unwrap_err();
    assert_eq!(large.errno, Errno::EFBIG);
    assert_eq!(
        lab.root.stat(p("lib"), Walk::InRoot).unwrap().st_mode & 0o170_000,
        0o040_000
    );
}

#[test]
fn what_is_made_has_exactly_its_mode_and_is_made_once() {
    let lab = lab();
    let at = |name: &str| lab.dir.path().join("root").join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
    lab.root
        .make_directories(p("/lib/a/b"), 0o2777, Walk::InRoot)
        .unwrap();
    lab.root
        .make_directories(p("/lib/a/b/c"), 0o700, Walk::InRoot)
        .unwrap();
    let modes = [
        mode("usr/lib/a"),
        mode("usr/lib/a/b"),
        mode("usr/lib/a/b/c"),
    ];
    assert_eq!(modes, [0o2777, 0o2777, 0o700]);
    let inode = fs::metadata(at("usr/lib")).unwrap().ino();
    let fd = lab
        .root
        .make_directories(p("absolute"), 0o700, Walk::InRoot)
        .unwrap();
    assert_eq!(fstat(fd).unwrap().st_ino, inode);

    let mut file = lab
        .root
        .create_file(p("lib/new"), 0o4666, Walk::InRoot)
        .unwrap();
    file.write_all(b"x").unwrap();
    let again = lab.root.create_file(p("lib/new"), 0o600, Walk::InRoot);
    assert_eq!(again.unwrap_err().errno, Errno::EEXIST);
    let dangling = lab.root.create_file(p("dangling"), 0o600, Walk::InRoot);
    assert_eq!(dangling.unwrap_err().errno, Errno::EEXIST);
    assert!(!at("nowhere").exists());

    let through = lab
        .root
        .make_directories(p("dangling/a"), 0o700, Walk::InRoot)
        .unwrap_err();
    assert_eq!(through.errno, Errno::ENOENT);
    let on_file = lab
        .root
        .make_directories(p("lib/file/a"), 0o700, Walk::InRoot)
        .unwrap_err();
    assert!(on_file.is_missing(), "{on_file}");
    let nothing = lab
        .root
        .make_directory(p("/"), 0o700, Walk::InRoot)
        .unwrap_err();
    assert_eq!(nothing.errno, Errno::EINVAL);
}

#[test]
fn a_failure_names_deed_path_and_root() {
    let lab = lab();
    let error = lab.root.file(p("/etc/fstab"), Walk::InRoot).unwrap_err();
    let failure = Failure::from(error);
    let text = crate::error::chain(&failure);
    assert!(
        text.starts_with("looking up \"/etc/fstab\" in \"/"),
        "{text}"
    );
    assert!(text.contains("ENOENT"), "{text}");
    assert!(Root::open(p("/nowhere")).is_err());
}

#[test]
fn what_moves_meanwhile_is_waited_for_and_not_for_ever() {
    let mut pauses = Vec::new();
    let mut left = 100;
    let answer = asked_again(
        || {
            left -= 1;
            match left {
                0 => Ok("found"),
                _ => Err(Errno::EAGAIN),
            }
        },
        |pause| pauses.push(pause),
    );
    assert_eq!(answer, Ok("found"));
    // The first question is repeated at once: mostly that suffices.
    assert_eq!(pauses.first(), Some(&Duration::ZERO));
    assert!(pauses.iter().sum::<Duration>() > Duration::from_secs(1));

    let mut asked = 0;
    let mut total = Duration::ZERO;
    let answer: nix::Result<()> = asked_again(
        || {
            asked += 1;
            Err(Errno::EAGAIN)
        },
        |pause| total += pause,
    );
    assert_eq!(answer, Err(Errno::EAGAIN));
    assert!(total < Duration::from_secs(3), "{asked} in {total:?}");
    assert_eq!(
        asked_again(|| Err::<(), _>(Errno::ENOENT), |_| panic!("asked again")),
        Err(Errno::ENOENT)
    );
}
