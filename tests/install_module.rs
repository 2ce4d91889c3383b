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

use debian_tree::{
    UNPACKED, holds, holds_the_modules, holds_the_tools, on_a_debian, runs_the_tools, with_both,
};

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

/// What lintian asks of a package, and what dracut's `inst_hook` and a person who runs the file expect.
#[test]
fn every_script_of_the_dracut_module_is_executable() {
    use std::os::unix::fs::PermissionsExt;
    let mut seen = 0;
    for entry in std::fs::read_dir(project().join("dracut-module/50ironroot")).unwrap() {
        let path = entry.unwrap().path();
        if !std::fs::read(&path).unwrap().starts_with(b"#!") {
            continue;
        }
        seen += 1;
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{}: mode {mode:o}", path.display());
    }
    assert!(seen >= 5, "only {seen} scripts were found");
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
    // Without --for what is there of any builder, also where the builder itself is not installed (any more).
    let away = ["--uninstall"];
    assert!(install_module(tree.path(), &away).status.success());
    assert_eq!(files(tree.path()), BTreeSet::new());
}

#[test]
fn what_one_builder_gives_up_stays_for_the_other_and_for_the_packages() {
    let tree = tempfile::tempdir().unwrap();
    let (dracut, tools) = (["--for", "dracut"], ["--for", "initramfs-tools"]);
    let away = |builder: [&str; 2], more: &[&str]| {
        let all = [&builder[..], &["--uninstall"], more].concat();
        assert!(install_module(tree.path(), &all).status.success());
        files(tree.path())
    };
    assert!(install_module(tree.path(), &dracut).status.success());
    assert!(install_module(tree.path(), &tools).status.success());
    let left = away(dracut, &["--no-config"]);
    let expected = [
        "usr/bin/ironroot 755",
        "usr/share/initramfs-tools/hooks/ironroot 755",
        "usr/share/initramfs-tools/scripts/ironroot 644",
        "usr/share/initramfs-tools/conf-hooks.d/ironroot 644",
    ];
    assert_eq!(left, expected.map(str::to_owned).into());
    // The packages have brought the program and one hook.
    let info = tree.path().join("var/lib/dpkg/info");
    fs::create_dir_all(&info).unwrap();
    let list = "/.\n/usr/bin/ironroot\n/usr/share/initramfs-tools/hooks/ironroot\n";
    fs::write(info.join("ironroot-initramfs-tools.list"), list).unwrap();
    let left = away(tools, &[]);
    assert!(
        left.contains(expected[0]) && left.contains(expected[1]),
        "{left:?}"
    );
    assert!(!left.contains(expected[2]), "{left:?}");
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

#[test]
fn the_lines_for_the_initramfs_make_one_with_ironroot_as_its_init() {
    let folder = tempfile::tempdir().unwrap();
    let lines = documented("initramfs");
    let script = format!(
        r#"VERSION=$(cat "$TREE/version")
# Compressed it is minutes of a machine that is busy.
{} --binary "$1" --compress none
cpio -tv --quiet <"$DIR/initramfs.cpio.zst""#,
        lines.trim_end()
    );
    let out = Command::new("sh")
        .args(["-euc", &script, "sh", env!("CARGO_BIN_EXE_ironroot")])
        .env("TREE", project().join("target/lab/kernel"))
        .env("DIR", folder.path())
        .current_dir(project())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    let listed = String::from_utf8(out.stdout).unwrap();
    let init = listed.lines().find(|line| line.ends_with(" init")).unwrap();
    assert!(init.starts_with("-rwxr-xr-x"), "{init}");
    holds(
        &listed,
        &[
            "usr/bin/ironroot -> ../../init",
            "virtio_blk.ko",
            "overlay.ko",
            "etc/ssl/certs/ca-certificates.crt",
        ],
    );
    assert!(listed.contains("bin/mke2fs"), "{listed}");
}

/// The initrd that the documented lines make.
fn initrd_of_the_docs(suite: &str, builder: &str, list: &str) -> String {
    let lines = documented(builder);
    let unpack = if list == "lsinitrd" {
        list
    } else {
        "unmkinitramfs"
    };
    let lines = format!(
        r#"mkdir -p "$TREE/etc/ironroot/keys"; echo key >"$TREE/etc/ironroot/keys/state"
echo '{{}}' >"$TREE/etc/ironroot/docker-config.json"
# A script in its place: libraries that the program of a test brings are none of the static one's.
mkdir "$TREE/lab"; cp "$IRONROOT_BINARY" "$TREE/lab/ironroot"
printf '#!/bin/sh\nexec /lab/ironroot "$@"\n' >"$TREE/lab/script"; chmod 755 "$TREE/lab/script"
export IRONROOT_BINARY="$TREE/lab/script"
{{ {lines} }} >&2
INITRD=/boot/initrd-ironroot.img UNPACK={unpack}
stat -c 'mode %a' "$TREE$INITRD"
chroot "$TREE" {list} "$INITRD"
{UNPACKED}"#
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
            "etc/ironroot/docker-config.json",
            // Only root reads an initrd that has keys in it.
            "mode 600",
        ],
    );
    holds_the_tools(&listed);
    runs_the_tools(&listed);
    holds_the_modules("bookworm", &listed);
}

/// Nothing by itself, as MODULES=dep has nothing but what the building machine needs, and yet it is for another machine.
#[test]
fn an_initrd_of_initramfs_tools_that_is_made_for_one_machine_holds_the_drivers_of_others() {
    let lines = r#"echo MODULES=list >"$TREE/etc/initramfs-tools/conf.d/lab"
chroot "$TREE" mkinitramfs -o /boot/lab.img "$VERSION" >&2
chroot "$TREE" lsinitramfs /boot/lab.img"#;
    let listed = with_both("bookworm", lines);
    let drivers = [
        "ahci.ko",
        "nvme.ko",
        "virtio_blk.ko",
        "virtio_scsi.ko",
        "virtio_net.ko",
        "megaraid_sas.ko",
        "mpt3sas.ko",
        "bonding.ko",
        "8021q.ko",
        "e1000e.ko",
    ];
    let made = with_both("bookworm", r#"find "$TREE/lib/modules" -name '*.ko'"#);
    for driver in drivers {
        // The lab's kernel is one for virtual machines.
        assert!(
            listed.contains(driver) || !made.contains(driver),
            "{driver} in {listed}"
        );
    }
    holds_the_modules("bookworm", &listed);
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
                "etc/ironroot/docker-config.json",
                "mode 600",
            ],
        );
        holds_the_tools(&listed);
        runs_the_tools(&listed);
        holds_the_modules(suite, &listed);
        // Nobody asked for another network program.
        holds(&listed, &["systemd-networkd.service"]);
        assert!(!listed.contains("bin/NetworkManager"), "{listed}");
    }
}

/// dracut's busybox module of Debian 12 comes first and makes links to busybox of what it does not see in the initrd.
#[test]
fn a_busybox_that_is_there_already_stays_as_it_is() {
    let script = r#"
mkdir -p "$TREE/lab/initrd/usr/bin" "$TREE/lab/initrd/usr/sbin"
chroot "$TREE" bash -euc '
find_binary() { command -v "$1"; }
inst_multiple() { local one; for one; do [ -L "$initdir$(command -v "$one")" ] || echo "takes $one"; done; }
inst_libdir_file() { :; }
initdir=/lab/initrd
echo "the program" >$initdir/usr/bin/busybox
for name in poweroff reboot halt mke2fs; do ln -s ../bin/busybox "$initdir$(command -v $name)"; done
. /usr/lib/dracut/modules.d/50ironroot/module-setup.sh
install_power
install_tools
cat $initdir/usr/bin/busybox
for name in poweroff reboot halt; do cat "$initdir$(command -v $name)"; done
'"#;
    let said = with_both("bookworm", script);
    assert!(said.contains("\nthe program\n"), "{said}");
    assert!(said.contains("takes mke2fs\n"), "{said}");
    for name in ["poweroff", "reboot", "halt"] {
        let ours = format!("#!/bin/sh\nexec systemctl --force --force {name}\n");
        assert!(said.contains(&ours), "{said}");
    }
}

/// The same by dracut itself: an initrd without systemd whose shell is busybox.
#[test]
fn matrix_dracut_makes_an_initrd_of_busybox_without_systemd() {
    for suite in ["bookworm", "trixie"] {
        let script = r#"
cp "$(command -v busybox)" "$TREE/usr/bin/busybox"
INITRD=/boot/lab.img UNPACK=lsinitrd
chroot "$TREE" dracut --quiet --force --no-hostonly --no-kernel --zstd --omit "systemd systemd-initrd dracut-systemd \
    systemd-networkd systemd-udevd systemd-modules-load systemd-sysctl systemd-sysusers systemd-tmpfiles \
    systemd-journald systemd-cryptsetup systemd-emergency systemd-battery-check crypt" \
    --add "ironroot network-legacy busybox" --kver "$VERSION" "$INITRD" >&2
"#;
        let looked = r#"
cmp "$TREE/usr/bin/busybox" "$root/usr/bin/busybox"
chroot "$root" busybox true
cat "$root$(chroot "$TREE" sh -c 'command -v poweroff')""#;
        let said = with_both(suite, &format!("{script}{UNPACKED}{looked}"));
        runs_the_tools(&said);
        assert!(
            said.ends_with("exec systemctl --force --force poweroff\n"),
            "{said}"
        );
    }
}
