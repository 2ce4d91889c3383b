//! `ironroot install` of the root that is running, in a root of its own: an overlay with other file systems mounted
//! in it, on real loop devices. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;
#[path = "tree_support/mod.rs"]
mod tree_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::loop_device::{LoopDevice, tool};
use support::program::Ended;
use tree_support::shell;

const VERSION: &str = "6.1.0-1-test";

/// A system in a directory, with all that ironroot needs.
struct Live {
    directory: tempfile::TempDir,
}

impl Live {
    fn new() -> Live {
        let live = Live {
            directory: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(live.lower()).unwrap();
        let script = format!(
            r#"mkdir -p boot etc usr/bin usr/sbin usr/lib/modules/{VERSION} usr/lib/systemd/boot/efi
            mkdir -p var/lib/systemd proc sys dev run tmp srv/data home srv/hidden
            ln -s usr/sbin sbin; ln -s usr/bin bin
            head -c 500001 /dev/urandom >boot/vmlinuz-{VERSION}; head -c 300000 /dev/urandom >boot/initrd.img-{VERSION}
            echo loader >usr/lib/systemd/boot/efi/systemd-bootx64.efi
            printf 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12"\n' >etc/os-release
            echo 0123456789abcdef0123456789abcdef >etc/machine-id
            echo below >etc/below; echo removed >etc/removed; echo seed >var/lib/systemd/random-seed
            echo beneath >srv/hidden/beneath
            for program in mke2fs busybox {}; do
                to=$(basename "$program"); cp -L "$(command -v "$program")" "usr/bin/$to"
                {{ ldd "usr/bin/$to" || true; }} | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" ".$lib"; done
            done
            cp -a /etc/mke2fs.conf etc/ 2>/dev/null || true
            mv usr/bin/mke2fs usr/sbin/mke2fs; ln -s mke2fs usr/sbin/mkfs.ext4
            ln -s busybox usr/bin/sh; ln -s ../bin/busybox usr/sbin/init"#,
            env!("CARGO_BIN_EXE_ironroot")
        );
        shell(&script, &live.lower());
        live
    }

    fn lower(&self) -> PathBuf {
        self.directory.path().join("lower")
    }

    /// Runs `script` with a shell of busybox in the overlay over that system, after `outside`, which runs in the
    /// directory of the new root before it is the root.
    fn run(&self, outside: &str, script: &str) -> Ended {
        let all = format!(
            r#"mount --make-rprivate /; mount -t tmpfs upper "$1/upper"; mkdir "$1/upper/u" "$1/upper/w"
            mount -t overlay -o "lowerdir=$1/lower,upperdir=$1/upper/u,workdir=$1/upper/w" overlay "$1/root"
            cd "$1/root"
            for place in proc sys dev; do mount --rbind "/$place" "$place"; done
            mount -t tmpfs run run; mkdir run/old
            {outside}
            pivot_root . run/old
            exec /bin/busybox chroot . /bin/busybox sh -euc "umount -l /run/old; $2"
            "#
        );
        for name in ["upper", "root"] {
            fs::create_dir_all(self.directory.path().join(name)).unwrap();
        }
        Command::new("unshare")
            .args(["--mount", "sh", "-euc", &all, "sh"])
            .arg(self.directory.path())
            .arg(format!("export PATH=/usr/sbin:/usr/bin\n{script}"))
            .output()
            .unwrap()
            .into()
    }
}

fn config(disk: &str, more: &[(&str, Value)]) -> String {
    let mut config = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": { "url": "live:", "verifyDisk": true },
        // This machine boots by BIOS, or by nothing.
        "disk": { "select": { "path": disk }, "bootloader": "SystemdBoot" },
    });
    for (pointer, value) in more {
        *config.pointer_mut(pointer).unwrap() = value.clone();
    }
    config.to_string()
}

fn install(disk: &LoopDevice) -> String {
    format!(
        "cat >/tmp/config.json <<'END'\n{}\nEND\nironroot --json install --config /tmp/config.json",
        config(disk.arg(), &[])
    )
}

/// Looks into the root of a disk.
fn look<T>(disk: &Path, look: impl FnOnce(&Path) -> T) -> T {
    let text = tool("sfdisk", &["--json", disk.to_str().unwrap()]);
    let table: Value = serde_json::from_str(&text).unwrap();
    let root = table["partitiontable"]["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|p| p["name"] == "root")
        .unwrap()
        .clone();
    let bytes = |key: &str| root[key].as_u64().unwrap() * 512;
    let place = tempfile::tempdir().unwrap();
    let name = place.path().to_str().unwrap();
    let options = format!(
        "ro,noload,loop,offset={},sizelimit={}",
        bytes("start"),
        bytes("size")
    );
    tool("mount", &["-o", &options, disk.to_str().unwrap(), name]);
    let seen = look(place.path());
    tool("umount", &[name]);
    seen
}

#[test]
fn the_root_that_is_running_is_copied_without_what_is_mounted_in_it() {
    let live = Live::new();
    let disk = LoopDevice::sparse(768, &[]);
    let outside = "mount -t tmpfs data srv/data; echo other >srv/data/other; chmod 711 srv/data
        mount -t tmpfs hidden srv/hidden; echo x >srv/hidden/above
        echo file >tmp/session";
    let script = format!(
        "rm /etc/removed; echo above >/etc/above; echo more >>/etc/below; mkdir /etc/made; chmod 750 /etc/made
        ln /etc/above /etc/again; echo session >/tmp/x; chown 12:34 /etc/above\n{}",
        install(&disk)
    );
    let ended = live.run(outside, &script).failed_with(
        0,
        &[
            "nothing can prove it",
            "other file systems are mounted in the root that is running",
            "/srv/data, /srv/hidden",
            "read back",
        ],
    );
    assert!(!ended.stderr.contains("/proc/"), "{}", ended.stderr);
    let said = tool("sgdisk", &["-v", disk.arg()]);
    assert!(said.contains("No problems found"), "{said}");
    look(disk.path(), |root| {
        use std::os::unix::fs::MetadataExt as _;
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(text("etc/above"), "above\n");
        assert_eq!(text("etc/below"), "below\nmore\n");
        assert!(!root.join("etc/removed").exists());
        let [above, again, made] = ["etc/above", "etc/again", "etc/made"]
            .map(|name| fs::metadata(root.join(name)).unwrap());
        assert_eq!(
            (above.uid(), above.gid(), above.ino()),
            (12, 34, again.ino())
        );
        assert_eq!(made.mode() & 0o7777, 0o750);
        // The place, as it is below the mount; what is below another is part of the tree.
        let data = fs::metadata(root.join("srv/data")).unwrap();
        assert_eq!(data.mode() & 0o7777, 0o755);
        for empty in ["srv/data", "proc", "sys", "dev", "run", "tmp"] {
            let inside = fs::read_dir(root.join(empty)).unwrap().count();
            assert_eq!(inside, 0, "{empty}");
        }
        assert_eq!(text("srv/hidden/beneath"), "beneath\n");
        assert!(!root.join("srv/hidden/above").exists());
        assert!(!root.join("var/lib/systemd/random-seed").exists());
        assert_eq!(text("etc/machine-id"), "");
        assert!(
            text("etc/fstab").contains("PARTUUID="),
            "{}",
            text("etc/fstab")
        );
        let kernel = |root: &Path| fs::read(root.join(format!("boot/vmlinuz-{VERSION}"))).unwrap();
        assert!(kernel(root) == kernel(&live.lower()));
    });
}

#[test]
fn a_root_that_never_rests_is_copied_and_said_to_have_changed() {
    let live = Live::new();
    let disk = LoopDevice::sparse(768, &[]);
    let script = format!(
        "mkdir /var/busy
        (while :; do for n in 1 2 3 4 5 6 7 8 9; do
            echo x >>/var/busy/log; mkdir -p /var/busy/$n/deep; echo y >/var/busy/$n/deep/z; rm -rf /var/busy/$n
        done; done) & busy=$!
        code=0; ({}) || code=$?
        kill $busy; exit $code",
        install(&disk)
    );
    live.run("", &script).succeeded();
    let said = tool("sgdisk", &["-v", disk.arg()]);
    assert!(said.contains("No problems found"), "{said}");
}

#[test]
fn the_file_that_is_written_is_no_part_of_the_copy() {
    let live = Live::new();
    let outside =
        r#"truncate -s 600M "$1/outside.img"; mkdir -p var/lib; truncate -s 600M var/lib/disk.img"#;
    let script = format!(
        "cat >/tmp/config.json <<'END'\n{}\nEND\nironroot --json install --allow-file --config /tmp/config.json",
        config("/var/lib/disk.img", &[("/image/verifyDisk", json!(false))])
    );
    let script = format!("{script}; cp /var/lib/disk.img /srv/hidden/out.img");
    let outside = format!("{outside}; mount --bind \"$1\" srv/hidden");
    live.run(&outside, &script).succeeded();
    let image = live.directory.path().join("out.img");
    look(&image, |root| {
        assert!(!root.join("var/lib/disk.img").exists());
        assert!(root.join("var/lib/systemd").exists());
    });
}

#[test]
fn what_is_no_system_of_its_own_is_refused_before_anything_is_written() {
    let cases = [
        // Only the place of /usr would be copied.
        (
            "mkdir run/usr; mount -t tmpfs usr run/usr; cp -a usr/. run/usr; rm -r usr/*; mount --move run/usr usr",
            "no /sbin/init of its own; other file systems are mounted at /usr",
        ),
        (
            "mount --bind boot boot; mkdir run/b; mv boot/vmlinuz-* run/b",
            "no kernel of its own",
        ),
        ("touch etc/initrd-release", "that of an initrd"),
        (
            "mkdir opt; head -c 200M /dev/urandom >opt/big; head -c 200M /dev/urandom >opt/more; head -c 400M /dev/urandom >opt/most",
            "is too small: the root, copied from the one that is running",
        ),
    ];
    for (outside, why) in cases {
        let live = Live::new();
        let disk = LoopDevice::sparse(768, &[]);
        let before = disk.written();
        live.run(outside, &install(&disk)).failed_with(13, &[why]);
        assert_eq!(disk.written(), before, "{why}");
    }
}

#[test]
fn the_disk_that_holds_the_root_is_refused() {
    let live = Live::new();
    // Large enough for both; its file system is the root.
    let disk = LoopDevice::sparse(768, &[]);
    tool(
        "mke2fs",
        &[
            "-q",
            "-t",
            "ext4",
            "-d",
            live.lower().to_str().unwrap(),
            disk.arg(),
        ],
    );
    let outside = format!("cd /; umount -R \"$1/root\"; mount {} \"$1/root\"; cd \"$1/root\"
        for place in proc sys dev; do mount --rbind \"/$place\" \"$place\"; done; mount -t tmpfs run run; mkdir run/old; mount -t tmpfs t tmp", disk.arg());
    let script = install(&disk).replace(
        "\"SystemdBoot\"",
        "\"SystemdBoot\",\"overwrite\":\"Always\"",
    );
    live.run(&outside, &script).failed_with(13, &["is in use"]);
}
