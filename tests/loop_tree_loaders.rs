//! What starts a tree's kernel, and what its disk has beside it, on real loop devices: the tree's own GRUB for BIOS,
//! its own script, a data partition that outlives a reinstallation. Needs root.
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
use support::disk_image::sha256;
use support::loop_device::{LoopDevice, tool, try_tool};
use support::program::{Config, Ended};
use tree_support::shell;

const MIB: usize = 1 << 20;
const SCRIPT: &str = "usr/lib/ironroot/install-bootloader";

/// A tree and a disk for it.
struct Case {
    directory: tempfile::TempDir,
    disk: LoopDevice,
}

impl Case {
    fn new(mib: usize) -> Case {
        Case::on(LoopDevice::blank(mib))
    }

    fn on(disk: LoopDevice) -> Case {
        let case = Case {
            directory: tempfile::tempdir().unwrap(),
            disk,
        };
        case.shell(
            r#"mkdir -p boot etc/default usr/lib/modules/6.1.0 usr/bin usr/lib/ironroot
            head -c 500001 /dev/urandom >boot/vmlinuz-6.1.0; head -c 300000 /dev/urandom >boot/initrd.img-6.1.0
            printf 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12"\n' >etc/os-release
            printf 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="console=ttyS0"\n' >etc/default/grub
            cp "$(command -v busybox)" usr/bin/busybox"#,
        );
        case
    }

    fn tree(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    /// Runs a script in the tree.
    fn shell(&self, script: &str) {
        fs::create_dir_all(self.tree()).unwrap();
        shell(script, &self.tree());
    }

    /// GRUB for BIOS as Debian's grub-pc-bin and grub-common have it, with the libraries of its program.
    fn with_grub(self) -> Case {
        self.shell(
            r#"mkdir -p usr/lib/grub && cp -a /usr/lib/grub/i386-pc usr/lib/grub/
            cp -L "$(command -v grub-mkimage)" usr/bin/grub-mkimage
            ldd usr/bin/grub-mkimage | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" ".$lib"; done"#,
        );
        self
    }

    fn with_script(self, script: &str) -> Case {
        let path = self.tree().join(SCRIPT);
        fs::write(&path, format!("#!/usr/bin/busybox sh\n{script}")).unwrap();
        tool("chmod", &["755", path.to_str().unwrap()]);
        self
    }

    fn config(&self, bootloader: &str) -> Config {
        self.config_of("tar -C tree --numeric-owner -cf image .", bootloader)
    }

    /// With an image that a script makes of the tree.
    fn config_of(&self, make: &str, bootloader: &str) -> Config {
        shell(make, self.directory.path());
        let image = self.directory.path().join("image");
        let bytes = fs::read(&image).unwrap();
        Config::new(image.to_str().unwrap(), &sha256(&bytes), &self.disk)
            .with("/image/kind", json!("Tree"))
            .with("/disk/bootloader", json!(bootloader))
    }

    fn table(&self) -> Vec<Value> {
        let said = tool("sgdisk", &["-v", self.disk.arg()]);
        assert!(said.contains("No problems found"), "{said}");
        let text = tool("sfdisk", &["--json", self.disk.arg()]);
        let table: Value = serde_json::from_str(&text).unwrap();
        table["partitiontable"]["partitions"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// The partition with this label.
    fn partition(&self, label: &str) -> Value {
        let mut all = self.table();
        all.retain(|p| p["name"] == label);
        assert_eq!(all.len(), 1, "{label}: {all:?}");
        all.remove(0)
    }

    /// Where it is, in bytes.
    fn place(&self, label: &str) -> (usize, usize) {
        let partition = self.partition(label);
        let number = |key: &str| usize::try_from(partition[key].as_u64().unwrap()).unwrap() * 512;
        (number("start"), number("size"))
    }

    /// Mounts the partition and looks, or changes it.
    fn look<T>(&self, label: &str, look: impl FnOnce(&Path) -> T) -> T {
        let (start, size) = self.place(label);
        let place = tempfile::tempdir().unwrap();
        let name = place.path().to_str().unwrap();
        let device = tool(
            "losetup",
            &[
                "--find",
                "--show",
                "--offset",
                &start.to_string(),
                "--sizelimit",
                &size.to_string(),
                self.disk.backing().to_str().unwrap(),
            ],
        );
        let device = device.trim();
        tool("mount", &[device, name]);
        let seen = look(place.path());
        tool("umount", &[name]);
        tool("losetup", &["--detach", device]);
        seen
    }

    /// No table, no boot code: nothing boots.
    #[track_caller]
    fn does_not_boot(&self) {
        assert!(self.disk.bytes()[..512].iter().all(|b| *b == 0));
        let (_, found) = try_tool("sfdisk", &["--dump", self.disk.arg()]);
        assert!(!found.contains("label:"), "{found}");
    }
}

#[test]
fn the_image_of_every_file_system_becomes_a_root() {
    for (what, make) in [
        ("erofs", "mkfs.erofs --quiet image tree"),
        ("ext4", "mke2fs -q -t ext4 -d tree image 64M"),
        (
            "btrfs",
            "truncate -s 200M image; mkfs.btrfs -q --rootdir tree image",
        ),
        // It needs 300 MiB, and a mount to be filled.
        (
            "xfs",
            "truncate -s 320M image; mkfs.xfs -q image; mkdir at; mount -o loop image at; cp -a tree/. at; umount at",
        ),
    ] {
        let case = Case::on(LoopDevice::sparse(1024, &[]));
        case.shell("ln usr/bin/busybox usr/bin/again; chown -h 12:34 usr/bin/busybox; chmod 4711 usr/bin/busybox");
        case.shell("setfattr -n user.test -v value etc/os-release; ln -s ../usr/bin etc/link");
        let ended = case.config_of(make, "None").install(&[]).succeeded();
        case.look("root", |found| {
            use std::os::unix::fs::MetadataExt as _;
            let names = ["usr/bin/busybox", "usr/bin/again"];
            let [one, other] = names.map(|name| fs::metadata(found.join(name)).unwrap());
            assert_eq!(
                (one.uid(), one.gid(), one.mode()),
                (12, 34, 0o104_711),
                "{what}"
            );
            assert_eq!(one.ino(), other.ino(), "{what}");
            let kernel = |tree: &Path| fs::read(tree.join("boot/vmlinuz-6.1.0")).unwrap();
            assert!(kernel(found) == kernel(&case.tree()), "{what}");
            assert_eq!(
                fs::read_link(found.join("etc/link")).unwrap(),
                Path::new("../usr/bin")
            );
            let name = found.join("etc/os-release");
            let said = tool("getfattr", &["-n", "user.test", name.to_str().unwrap()]);
            assert!(said.contains("user.test=\"value\""), "{what}: {said}");
        });
        assert!(ended.stderr.contains(what), "{what}: {}", ended.stderr);
    }
}

#[test]
fn the_trees_own_grub_boots_by_bios() {
    let case = Case::new(512).with_grub();
    let config = case.config("Grub").with(
        "/disk/kernelArguments",
        json!({ "append": ["a=b"], "remove": ["quiet"] }),
    );
    let ended = config.install(&[]).succeeded();
    assert!(
        ended.stderr.contains("boots by GRUB for i386-pc"),
        "{}",
        ended.stderr
    );

    let names: Vec<(String, u64)> = case
        .table()
        .iter()
        .map(|p| {
            (
                p["name"].as_str().unwrap().to_owned(),
                p["start"].as_u64().unwrap(),
            )
        })
        .collect();
    let rows = [
        ("ESP", 4096),
        ("root", 4096 + 64 * 2048),
        ("BIOS boot", 2048),
    ];
    assert_eq!(names, rows.map(|(name, at)| (name.to_owned(), at)));
    assert_eq!(
        case.partition("BIOS boot")["type"],
        "21686148-6449-6E6F-744E-656564454649"
    );
    // The code is GRUB's, but for what says where the core is; behind it stands the table's protective MBR.
    let bytes = case.disk.bytes();
    let mut boot = fs::read("/usr/lib/grub/i386-pc/boot.img").unwrap();
    boot[0x5c..0x64].copy_from_slice(&2048u64.to_le_bytes());
    boot[0x66..0x68].copy_from_slice(&[0x90, 0x90]);
    assert!(bytes[..440] == boot[..440]);
    assert_eq!(bytes[446 + 4], 0xee);
    // The core's first sector names the next one, and how many there are to its end.
    let list = &bytes[MIB + 500..MIB + 512];
    assert_eq!(list[..8], 2049u64.to_le_bytes());
    let sectors = usize::from(u16::from_le_bytes([list[8], list[9]]));
    let end = MIB + 512 * (1 + sectors);
    assert!(bytes[end - 512..end].iter().any(|b| *b != 0), "{sectors}");
    assert!(bytes[end..2 * MIB].iter().all(|b| *b == 0), "{sectors}");

    let root = case.partition("root")["uuid"]
        .as_str()
        .unwrap()
        .to_lowercase();
    case.look("root", |found| {
        let text = fs::read_to_string(found.join("boot/grub/grub.cfg")).unwrap();
        let line = format!(
            "\tlinux /boot/vmlinuz-6.1.0 root=PARTUUID={root} ro console=ttyS0 a=b ironroot.skip\n\tinitrd /boot/initrd.img-6.1.0\n"
        );
        assert!(text.contains(&line), "{text}");
        assert!(text.contains("menuentry 'Debian GNU/Linux 12' {"), "{text}");
        assert!(found.join("boot/grub/i386-pc/ext2.mod").is_file());
        // What update-grub makes of the next kernel has the same words.
        let defaults = fs::read_to_string(found.join("etc/default/grub")).unwrap();
        assert_eq!(
            defaults,
            "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"\"\nGRUB_CMDLINE_LINUX=\"console=ttyS0 a=b ironroot.skip\"\n"
        );
        // Nothing is left of what was there for its programs.
        for place in ["dev", "proc", "sys", "run"] {
            assert_eq!(fs::read_dir(found.join(place)).unwrap().count(), 0, "{place}");
        }
    });
    let again = config.plan().succeeded();
    assert!(again.stdout.contains("already"), "{}", again.stdout);
}

#[test]
fn a_tree_without_a_grub_that_works_does_not_boot() {
    let case = Case::new(512);
    case.config("Auto")
        .install(&[])
        .failed_with(12, &["no GRUB for i386-pc", "/usr/bin/grub-mkimage"]);
    case.does_not_boot();

    let case = Case::new(512).with_grub();
    case.shell("rm usr/lib/grub/i386-pc/linux.mod");
    case.config("Grub")
        .install(&[])
        .failed_with(12, &["no module linux"]);
    case.does_not_boot();

    let case = Case::new(512).with_grub();
    case.shell(
        "printf '#!/usr/bin/busybox sh\\necho it is broken >&2; exit 3\\n' >usr/bin/grub-mkimage",
    );
    case.config("Grub").install(&[]).failed_with(
        14,
        &["/usr/bin/grub-mkimage of the tree failed", "it is broken"],
    );
    case.does_not_boot();
}

#[test]
fn the_trees_own_script_installs_its_boot_loader_without_the_disk() {
    let case = Case::new(512).with_script(
        r#"set -eu
        b=/usr/bin/busybox
        exec >/etc/script-said
        set | $b grep ^IRONROOT_ | $b sort
        $b mount | $b awk '{ print $3 }' | $b sort | $b uniq
        for n in /dev/*; do [ ! -b "$n" ] || echo "block $n"; done
        $b printf 'CODE' >"$IRONROOT_BOOT_CODE"
        $b printf 'CORE' | $b dd of="$IRONROOT_BIOS_BOOT" conv=notrunc 2>/dev/null
        # A mount that is left, and what runs on: neither holds the disk.
        $b sleep 600 &
        ($b setsid $b sh -c 'echo $$ >/etc/daemon; cd /etc; exec 9>/etc/held; while :; do $b sleep 1; done' &) &
        while [ ! -s /etc/daemon ]; do $b sleep 0.1; done
        [ "$(echo piped | $b cat /dev/stdin)" = piped ]
        [ -d /proc/self/fd ] && [ -r /proc/$$/stat ]
        $b mount -t tmpfs none /mnt || { $b mkdir -p /mnt; $b mount -t tmpfs none /mnt; }
        $b touch /mnt/in-memory
        echo "said on the console" >&2"#,
    );
    let config = case
        .config("ImageScript")
        .with("/disk/kernelArguments", json!({ "append": ["a=b"] }));
    let ended = config.install(&[]).succeeded();
    assert!(
        ended.stderr.contains("said on the console"),
        "{}",
        ended.stderr
    );
    let bytes = case.disk.bytes();
    assert_eq!(bytes[..8], *b"CODE\0\0\0\0");
    assert_eq!(bytes[MIB..MIB + 4], *b"CORE");
    let uuid = |label: &str| {
        case.partition(label)["uuid"]
            .as_str()
            .unwrap()
            .to_lowercase()
    };
    let (root, esp, disk) = (uuid("root"), uuid("ESP"), case.disk.name());
    case.look("root", |found| {
        let said = fs::read_to_string(found.join("etc/script-said")).unwrap();
        assert_eq!(
            said,
            format!(
                "IRONROOT_BIOS_BOOT='/dev/{disk}p14'\nIRONROOT_BIOS_BOOT_SECTOR='2048'\n\
                 IRONROOT_BOOT_CODE='/run/ironroot/boot-code'\n\
                 IRONROOT_CMDLINE='root=PARTUUID={root} ro console=ttyS0 quiet a=b ironroot.skip'\n\
                 IRONROOT_ESP='/dev/{disk}p1'\nIRONROOT_ESP_PARTUUID='{esp}'\nIRONROOT_FIRMWARE='bios'\n\
                 IRONROOT_ROOT='/dev/{disk}p2'\nIRONROOT_ROOT_PARTUUID='{root}'\n\
                 /\n/dev\n/proc\n/run\n/sys\n\
                 block /dev/{disk}p1\nblock /dev/{disk}p14\nblock /dev/{disk}p2\n"
            )
        );
        assert!(!found.join("mnt/in-memory").exists());
        assert!(found.join("etc/held").is_file());
    });
}

#[test]
fn a_script_that_fails_leaves_a_disk_that_does_not_boot() {
    let case = Case::new(512)
        .with_script("echo one; echo two >&2; printf CODE >\"$IRONROOT_BOOT_CODE\"; exit 7");
    case.config("ImageScript").install(&[]).failed_with(
        14,
        &["install-bootloader of the tree failed (exit status: 7): one; two"],
    );
    case.does_not_boot();
    let case = Case::new(512)
        .with_script("/usr/bin/busybox head -c 441 /dev/zero >\"$IRONROOT_BOOT_CODE\"");
    case.config("ImageScript")
        .install(&[])
        .failed_with(14, &["at most 440 bytes"]);
    case.does_not_boot();
    let case = Case::new(512);
    case.config("ImageScript")
        .install(&[])
        .failed_with(12, &["/usr/lib/ironroot/install-bootloader"]);
    case.does_not_boot();
}

/// What a script leaves running would hold the disk: without PID namespaces none is run, and nothing is written.
#[test]
fn without_pid_namespaces_the_programs_of_a_tree_are_refused_before_anything_is_written() {
    let case = Case::new(512).with_script("true");
    for (bootloader, reason, limit) in [
        (
            "ImageScript",
            "No space left on device",
            "echo 0 >/proc/sys/user/max_pid_namespaces; exec \"$@\"",
        ),
        (
            "Grub",
            "Operation not permitted",
            "exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$@\"",
        ),
    ] {
        let config = case.config(bootloader);
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "sh", "-ec", limit, "sh"])
            .arg(env!("CARGO_BIN_EXE_ironroot"))
            .args(["install", "--config"])
            .arg(config.file());
        Ended::from(command.output().unwrap()).failed_with(
            14,
            &[
                "the kernel makes no PID namespace",
                reason,
                "disk.bootloader",
            ],
        );
        assert!(case.disk.bytes().iter().all(|b| *b == 0), "{bootloader}");
    }
    // The same where they are.
    case.config("ImageScript")
        .install(&[])
        .failed_with(12, &["nothing bootable was found"]);
}

#[test]
fn a_script_that_leaves_nothing_bootable_is_refused() {
    // These machines of the test have no EFI: what a BIOS boots is the code of LBA 0.
    for script in [
        "true",
        "/usr/bin/busybox head -c 440 /dev/zero >\"$IRONROOT_BOOT_CODE\"",
    ] {
        let case = Case::new(512).with_script(script);
        case.config("ImageScript")
            .install(&[])
            .failed_with(12, &["nothing bootable was found", "no code for LBA 0"]);
        case.does_not_boot();
    }
}

#[test]
fn a_data_partition_beside_the_root_outlives_a_reinstallation() {
    let case = Case::new(768);
    let config = case.config("None").with(
        "/disk/partitions",
        json!([
            { "label": "root", "size": "256MiB" },
            { "label": "data", "size": "Rest", "filesystem": "ext4" },
        ]),
    );
    let config = config.with("/disk/keep", json!(["data"]));
    config.install(&[]).succeeded();
    assert_eq!(case.place("root").1, 256 * MIB);
    let before = case.partition("data");
    let (start, size) = case.place("data");
    assert_eq!(start, case.place("root").0 + 256 * MIB);
    assert_eq!(start + size, 767 * MIB);
    case.look("data", |place| {
        fs::write(place.join("precious"), "data").unwrap();
    });
    let bytes = case.disk.bytes();

    // Another generation, from a tree with more in it.
    case.shell("head -c 3000000 /dev/urandom >usr/more");
    let again = case
        .config("None")
        .with("/metadata/generation", json!(2))
        .with("/disk/overwrite", json!("IfOurs"))
        .with("/disk/wipe", json!("Zero"))
        .with(
            "/disk/partitions",
            config.value["disk"]["partitions"].clone(),
        )
        .with("/disk/keep", json!(["data"]));
    let ended = again.install(&[]).succeeded();
    assert!(
        ended.stderr.contains("is kept as it is, not made again"),
        "{}",
        ended.stderr
    );
    assert_eq!(case.partition("data"), before);
    assert!(case.disk.bytes()[start..start + size] == bytes[start..start + size]);
    case.look("data", |place| {
        assert_eq!(fs::read(place.join("precious")).unwrap(), b"data");
    });
    case.look("root", |place| assert!(place.join("usr/more").exists()));

    // A root that would reach into it is refused before anything changes.
    let bytes = case.disk.bytes();
    let larger = case
        .config("None")
        .with("/metadata/generation", json!(3))
        .with("/disk/overwrite", json!("IfOurs"))
        .with(
            "/disk/partitions",
            json!([{ "label": "root", "size": "300MiB" }]),
        )
        .with("/disk/keep", json!(["data"]));
    larger
        .install(&[])
        .failed_with(13, &["the root has no room", "which is to be kept"]);
    assert!(case.disk.bytes() == bytes);
}
