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

use debian_tree::{holds, holds_the_modules, holds_the_tools, on_a_debian};

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
    let mut away = both.to_vec();
    away.push("--uninstall");
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

/// `lines` in a Debian of the lab in which both builders know ironroot; `$TREE/usr/bin/ironroot` is that of the test.
fn with_both(suite: &str, lines: &str) -> String {
    let install =
        r#"scripts/install-module --destdir "$TREE" --for dracut --for initramfs-tools >&2"#;
    on_a_debian(suite, &format!("{install}\n{lines}"))
}

/// The boot script within initramfs-tools' own: what init calls, with a network that has an answer at the third question,
/// and an ironroot that fails at first.
const INIT: &str = r#"
ln -s /usr/share/initramfs-tools/scripts "$TREE/scripts"
ln -s /usr/share/initramfs-tools/scripts/ironroot "$TREE/scripts/ironroot" 2>/dev/null || :
mkdir -p "$TREE/lab"
echo "quiet boot=ironroot $WORDS" >"$TREE/lab/cmdline"
mount --bind "$TREE/lab/cmdline" "$TREE/proc/cmdline"
mount -t tmpfs run "$TREE/run"
mv "$TREE/usr/bin/ironroot" "$TREE/usr/bin/ironroot.real"
cat >"$TREE/usr/bin/ironroot" <<'END'
#!/bin/sh
[ "$2" != --is-wanted ] || exec /usr/bin/ironroot.real "$@"
echo "HELPER $*"
# An answer that comes later is seen while it is at work.
round=0
while [ ! -e /run/net-eth0.conf ] && [ $round -lt 300 ]; do sleep 0.1; round=$((round + 1)); done
[ -e /run/net-eth0.conf ] && echo "HELPER has an address"
[ -e /lab/mended ]
END
cat >"$TREE/usr/bin/ipconfig" <<'END'
#!/bin/sh
echo asked >>/lab/asked
[ "$(wc -l </lab/asked)" -lt 13 ] || echo DEVICE=eth0 >/run/net-eth0.conf
END
cat >"$TREE/lab/init" <<'END'
. /scripts/functions
quiet=y rootmnt=/root IP='' DEVICE='' BOOTIF='' starttime=0
run_scripts() { echo "RUN $1"; }
wait_for_udev() { :; }
_usable_netdev_exists() { true; }
netinfo_to_resolv_conf() { :; }
sleep() { command sleep 0.1; }
panic() {
    echo "PANIC $*"
    [ ! -e /lab/mended ] || exit 1
    : >/lab/mended
}
. /scripts/local
. /scripts/nfs
. /scripts/ironroot
mount_top
mount_premount
mountroot
mount_bottom
nfs_bottom
local_bottom
echo "SEEN asked=$(wc -l </lab/asked)"
END
chmod +x "$TREE/usr/bin/ironroot" "$TREE/usr/bin/ipconfig"
timeout 60 chroot "$TREE" dash /lab/init 2>&1
"#;

#[test]
fn initramfs_tools_asks_on_for_an_address_and_runs_each_script_once() {
    for suite in ["bookworm", "trixie"] {
        if !project()
            .join(format!("target/lab/initrd/{suite}.tree"))
            .exists()
            && suite == "trixie"
        {
            // Only `scripts/test --all` makes it.
            continue;
        }
        let words = "WORDS=ironroot.config=http://h/";
        let said = with_both(suite, &format!("{words}\n{INIT}"));
        for folder in ["local-top", "local-premount", "local-bottom"] {
            let count = said.matches(&format!("RUN /scripts/{folder}\n")).count();
            assert_eq!(count, 1, "{folder} of {suite}: {said}");
        }
        assert!(
            said.contains("ironroot: the network did not come up"),
            "{said}"
        );
        assert_eq!(
            said.matches("HELPER initrd --sysroot /root").count(),
            2,
            "{said}"
        );
        assert!(said.contains("HELPER has an address"), "{said}");
        assert!(
            said.contains("PANIC ironroot failed; its reason is above"),
            "{said}"
        );
        assert!(said.contains("SEEN asked=13"), "{said}");
    }
}

#[test]
fn initramfs_tools_says_which_words_do_not_go_together() {
    let words = "WORDS='ironroot.config=http://h/ ironroot.skip'";
    let said = with_both("bookworm", &format!("{words}\n{INIT}"));
    assert!(
        said.contains("PANIC boot=ironroot and ironroot.skip"),
        "{said}"
    );
}

/// What the generator has networkd do, and whether it waits for the network.
fn generated(line: &str) -> (String, bool) {
    let script = format!(
        r#"
mkdir -p "$TREE/lab/out"
echo '{line}' >"$TREE/lab/cmdline"
mount --bind "$TREE/lab/cmdline" "$TREE/proc/cmdline"
mount -t tmpfs run "$TREE/run"
mkdir -p "$TREE/usr/lib/ironroot"
cp dracut-module/50ironroot/wait-online.conf "$TREE/usr/lib/ironroot/"
chroot "$TREE" /usr/lib/dracut/modules.d/50ironroot/ironroot-generator /lab/out
cat "$TREE/run/systemd/network/zz-ironroot.network" || :
ls "$TREE/lab/out"
# The new root finds nothing of it.
mkdir -p "$TREE/tmp"
chroot "$TREE" sh -euc '. /usr/lib/dracut/modules.d/50ironroot/cleanup-ironroot.sh'
[ ! -e "$TREE/run/systemd/network/zz-ironroot.network" ]"#
    );
    let said = with_both("bookworm", &script);
    let waits = said.contains("ironroot.service.wants");
    (said, waits)
}

#[test]
fn networkd_asks_on_the_port_that_the_command_line_makes() {
    let wanted = "ironroot.config=http://h/";
    for (words, matched) in [
        ("quiet", "Kind=!*\nType=ether\n"),
        ("vlan=vlan7:eth0", "Name=vlan7\n"),
        ("bond=bond0:eth0,eth1:mode=active-backup", "Name=bond0\n"),
        (
            "bond=bond0:eth0,eth1 vlan=v7:bond0 vlan=v8:eth2",
            "Name=v7 v8\n",
        ),
        ("bond", "Name=bond0\n"),
    ] {
        let (said, waits) = generated(&format!("{words} {wanted}"));
        assert!(
            said.contains(&format!("[Match]\n{matched}\n[Network]\nDHCP=yes\n")),
            "{words}: {said}"
        );
        assert!(waits, "{said}");
    }
    for (words, waits) in [
        ("ip=eth0:dhcp", true),
        ("ip=off", false),
        ("ironroot.skip", false),
    ] {
        let (said, does) = generated(&format!("{words} {wanted}"));
        assert!(!said.contains("[Match]"), "{words}: {said}");
        assert_eq!(does, waits, "{words}: {said}");
    }
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
    holds_the_modules(&listed);
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
    holds_the_modules(&listed);
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
        holds_the_modules(&listed);
        // Nobody asked for another network program.
        holds(&listed, &["systemd-networkd.service"]);
        assert!(!listed.contains("bin/NetworkManager"), "{listed}");
    }
}
