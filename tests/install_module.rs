//! `scripts/install-module`, and the lines of docs/image-builders.md that use it.
//!
//! Needs root; `matrix_*` the trees of `scripts/images/initrds` as well.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/debian_tree.rs"]
mod debian_tree;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use debian_tree::{holds, holds_the_tools, on_a_debian};

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
        "usr/share/initramfs-tools/conf-hooks.d/ironroot 644",
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

/// The initrd that the documented lines make.
fn initrd_of_the_docs(suite: &str, builder: &str, list: &str) -> String {
    let lines = documented(builder);
    let lines = format!(
        "mkdir -p \"$TREE/etc/ironroot/keys\"; echo key >\"$TREE/etc/ironroot/keys/state\"; {{ {lines} }} >&2; stat -c 'mode %a' \"$TREE/boot/initrd-ironroot.img\"; chroot \"$TREE\" {list} /boot/initrd-ironroot.img"
    );
    on_a_debian(suite, &lines)
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
            "etc/ironroot/keys/state",
            // Only root reads an initrd that has keys in it.
            "mode 600",
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
                "etc/ironroot/keys/state",
                "mode 600",
            ],
        );
        holds_the_tools(&listed);
    }
}
