//! `scripts/install-module`, and the lines of docs/image-builders.md that use it.
//!
//! Needs root; `matrix_*` the trees of `scripts/images/initrds` as well.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn install_module(tree: &Path, more: &[&str]) -> Output {
    Command::new(project().join("scripts/install-module"))
        .args(["--binary", env!("CARGO_BIN_EXE_ironroot"), "--destdir"])
        .arg(tree)
        .args(more)
        .output()
        .unwrap()
}

/// The files below a directory, relative to it.
fn files(directory: &Path) -> BTreeSet<String> {
    let found = Command::new("find")
        .arg(directory)
        .args(["-type", "f", "-printf", "%P %m\n"])
        .output()
        .unwrap();
    let text = String::from_utf8(found.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn what_is_installed_is_taken_away_again() {
    let tree = tempfile::tempdir().unwrap();
    let both = ["--for", "dracut", "--for", "initramfs-tools"];
    assert!(install_module(tree.path(), &both).status.success());
    let installed = files(tree.path());
    for wanted in [
        "usr/bin/ironroot 755",
        "usr/lib/dracut/dracut.conf.d/50-ironroot.conf 644",
        "usr/lib/dracut/modules.d/50ironroot/module-setup.sh 755",
        "usr/lib/dracut/modules.d/50ironroot/ironroot.service 644",
        "usr/lib/dracut/modules.d/50ironroot/ironroot-generator 755",
        "usr/share/initramfs-tools/hooks/ironroot 755",
        "usr/share/initramfs-tools/scripts/ironroot 644",
    ] {
        assert!(installed.contains(wanted), "{wanted} in {installed:?}");
    }
    let mut away = both.to_vec();
    away.push("--uninstall");
    assert!(install_module(tree.path(), &away).status.success());
    assert_eq!(files(tree.path()), BTreeSet::new());
}

#[test]
fn it_takes_the_builder_that_is_there_and_refuses_a_system_without_one() {
    let tree = tempfile::tempdir().unwrap();
    let refused = install_module(tree.path(), &[]);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("neither dracut nor initramfs-tools"),
        "{said}"
    );
    assert_eq!(files(tree.path()), BTreeSet::new());
    fs::create_dir_all(tree.path().join("usr/share/initramfs-tools")).unwrap();
    assert!(install_module(tree.path(), &[]).status.success());
    let installed = files(tree.path());
    assert!(installed.contains("usr/share/initramfs-tools/hooks/ironroot 755"));
    assert!(
        !installed.iter().any(|file| file.contains("dracut")),
        "{installed:?}"
    );
}

/// The block of docs/image-builders.md for `builder`, without the line that needs the release build.
fn documented(builder: &str) -> String {
    let docs = fs::read_to_string(project().join("docs/image-builders.md")).unwrap();
    let block = docs
        .split_once(&format!("```sh {builder}\n"))
        .and_then(|(_, rest)| rest.split_once("```"))
        .unwrap_or_else(|| panic!("docs/image-builders.md has no block for {builder}"))
        .0;
    let (first, rest) = block.split_once('\n').unwrap();
    assert_eq!(first, "scripts/build-static");
    rest.to_owned()
}

/// Runs `lines` as a user of `$TREE`, a Debian of the lab, which stays as it is, and gives what they print.
fn on_a_debian(suite: &str, lines: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let tree = project().join(format!("target/lab/initrd/{suite}.tree"));
    assert!(tree.exists(), "{}: run scripts/lab first", tree.display());
    let binary: PathBuf = folder.path().join("ironroot");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&binary)
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .status();
    assert!(stripped.unwrap().success());
    let script = r#"
        work=$1 lower=$2 lines=$3
        mkdir "$work/over"; mount -t tmpfs over "$work/over"; mkdir "$work/over/upper" "$work/over/work" "$work/tree"
        mount -t overlay -o "lowerdir=$lower,upperdir=$work/over/upper,workdir=$work/over/work" tree "$work/tree"
        export TREE="$work/tree"
        mount -t proc proc "$TREE/proc"; mount --rbind /dev "$TREE/dev"; mount -t tmpfs tmp "$TREE/tmp"
        VERSION=$(ls "$TREE/lib/modules"); export VERSION
        # What the lab itself installed there is none of this test's.
        scripts/install-module --destdir "$TREE" --uninstall 2>/dev/null
        sh -euc "$lines""#;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", script])
        .arg("sh")
        .arg(folder.path())
        .arg(&tree)
        .arg(lines)
        .env("IRONROOT_BINARY", &binary)
        .current_dir(project())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The initrd that the documented lines make.
fn initrd_of_the_docs(suite: &str, builder: &str, list: &str) -> String {
    let lines = documented(builder);
    let lines = format!("{{ {lines} }} >&2; chroot \"$TREE\" {list} /boot/initrd-ironroot.img");
    on_a_debian(suite, &lines)
}

#[track_caller]
fn holds(listed: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(listed.contains(wanted), "{wanted} in {listed}");
    }
}

/// The programs that the binary names are all in the Debian of the lab, so they have to be in the initrd too.
#[track_caller]
fn holds_the_tools(listed: &str) {
    let said = Command::new(env!("CARGO_BIN_EXE_ironroot"))
        .arg("tools")
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let names: Vec<&str> = said.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(names.contains(&"mke2fs"), "{names:?}");
    for name in names {
        assert!(
            listed.lines().any(|line| {
                let path = line.split(" -> ").next().unwrap();
                path.ends_with(&format!("bin/{name}"))
            }),
            "{name} in {listed}"
        );
    }
}

#[test]
fn the_lines_for_initramfs_tools_make_an_initrd_with_ironroot_in_it() {
    let listed = initrd_of_the_docs("bookworm", "initramfs-tools", "lsinitramfs");
    holds(
        &listed,
        &[
            "usr/bin/ironroot",
            "scripts/ironroot",
            "etc/initrd-release",
            "overlay.ko",
            "squashfs.ko",
        ],
    );
    holds_the_tools(&listed);
}

#[test]
fn matrix_the_lines_for_dracut_make_an_initrd_with_ironroot_in_it() {
    for suite in ["bookworm", "trixie"] {
        let listed = initrd_of_the_docs(suite, "dracut", "lsinitrd");
        holds(
            &listed,
            &[
                "usr/bin/ironroot",
                "initrd-root-fs.target.requires/ironroot.service",
                "system-generators/ironroot-generator",
                "cmdline/30-parse-ironroot.sh",
                "overlay.ko",
                "squashfs.ko",
            ],
        );
        holds_the_tools(&listed);
    }
}

#[test]
fn matrix_with_the_packages_installed_the_next_initrd_has_ironroot_in_it() {
    let packages = project().join("target/packages");
    assert!(packages.exists(), "run scripts/packages first");
    for suite in ["bookworm", "trixie"] {
        let lines = format!(
            r#"cp {}/*.deb "$TREE/tmp/"
            {{ chroot "$TREE" sh -euc 'dpkg -i /tmp/ironroot*.deb'; ironroot=$(chroot "$TREE" ironroot --version)
            chroot "$TREE" dracut --force --no-hostonly --add systemd-networkd /boot/by-dracut.img "$VERSION"; }} >&2
            echo "$ironroot"; chroot "$TREE" lsinitramfs "/boot/initrd.img-$VERSION"
            echo @@next; chroot "$TREE" lsinitrd /boot/by-dracut.img
            chroot "$TREE" dpkg --purge ironroot ironroot-dracut ironroot-initramfs-tools >&2
            echo @@next; chroot "$TREE" lsinitramfs "/boot/initrd.img-$VERSION""#,
            packages.display()
        );
        let said = on_a_debian(suite, &lines);
        let mut parts = said.split("@@next\n");
        let by_tools = parts.next().unwrap();
        assert!(by_tools.starts_with("ironroot "), "{by_tools}");
        holds(by_tools, &["usr/bin/ironroot", "scripts/ironroot"]);
        holds_the_tools(by_tools);
        let by_dracut = parts.next().unwrap();
        holds(
            by_dracut,
            &[
                "usr/bin/ironroot",
                "initrd-root-fs.target.requires/ironroot.service",
            ],
        );
        let purged = parts.next().unwrap();
        assert!(
            purged.contains("squashfs.ko") || purged.contains("bin/"),
            "{purged}"
        );
        assert!(!purged.contains("ironroot"), "{purged}");
    }
}
