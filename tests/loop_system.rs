//! Changes in the installed system, on real loop devices: files, kernel arguments and the Ignition config are in
//! the file systems of the installed disk, and a failure leaves a disk that does not boot.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};
use support::disk_image::sha256;
use support::fault_server::{FaultServer, ok};
use support::loop_device::{LoopDevice, tool};
use support::program::{Config, Ended};
use support::systems::{Part, check, image, read, write};

const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
const ROOT_UUID: &str = "11111111-2222-4333-8444-555555555555";
const BOOT_UUID: &str = "11111111-2222-4333-8444-666666666666";

const ESP: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";

const GRUB: &str = "set default=0\nmenuentry 'A' {\n\tlinux /vmlinuz-6.1 root=UUID=x ro quiet\n\tinitrd /initrd.img-6.1\n}\n";

/// A root with /boot on a partition of its own, as Debian's installer makes it.
fn debian(directory: &Path) -> Vec<u8> {
    let (root, boot) = (directory.join("root"), directory.join("boot"));
    write(&root, "etc/os-release", "ID=debian\n");
    write(
        &root,
        "etc/fstab",
        &format!(
            "UUID={ROOT_UUID} / ext4 defaults 0 1\nUUID={BOOT_UUID} /boot ext4 defaults 0 2\n"
        ),
    );
    write(
        &root,
        "etc/default/grub",
        "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"\"\n",
    );
    write(&root, "etc/secret", "old\n");
    std::fs::set_permissions(root.join("etc/secret"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::create_dir_all(root.join("boot")).unwrap();
    std::fs::create_dir_all(root.join("run")).unwrap();
    // A link that leads outside of any root.
    symlink("/../../../etc", root.join("etc-link")).unwrap();
    write(&boot, "grub/grub.cfg", GRUB);
    image(&[
        Part {
            number: 1,
            at: 1,
            size: 24,
            kind: ROOT,
            uuid: ROOT_UUID,
            label: "root",
            tree: &root,
        },
        Part {
            number: 2,
            at: 25,
            size: 12,
            kind: LINUX,
            uuid: BOOT_UUID,
            label: "",
            tree: &boot,
        },
    ])
}

/// Installs `image` with these keys of `disk`, and `more` at the top.
fn install(image: &[u8], disk: &LoopDevice, keys: &Value, more: &[(&str, Value)]) -> Ended {
    let path = disk.directory().join("image");
    std::fs::write(&path, image).unwrap();
    let mut config = Config::new(path.to_str().unwrap(), &sha256(image), disk)
        .with("/disk/overwrite", json!("Always"));
    for (key, value) in keys.as_object().unwrap() {
        config = config.with(&format!("/disk/{key}"), value.clone());
    }
    for (key, value) in more {
        config = config.with(key, value.clone());
    }
    config.install(&[])
}

#[test]
fn files_and_arguments_are_in_the_installed_system_before_it_can_boot() {
    let directory = tempfile::tempdir().unwrap();
    let image = debian(directory.path());
    let disk = LoopDevice::patterned(48);
    let keys = json!({
        "kernelArguments": { "append": ["console=ttyS0", "x=a&b"], "remove": ["quiet"] },
        "files": [
            { "path": "/etc/secret", "mode": "0600", "contents": "new secret\n" },
            { "path": "/etc/new/deep/file", "contents": "hello" },
            { "path": "/boot/note", "contents": "on the boot partition" },
            { "path": "/etc-link/through-a-link", "contents": "inside" },
        ],
    });
    let ended = install(&image, &disk, &keys, &[]).succeeded();
    assert!(!ended.stdout.contains("new secret") && !ended.stderr.contains("new secret"));
    assert!(read(&disk, 1, "/etc/secret").0.contains("new secret\n"));
    assert_eq!(read(&disk, 1, "/etc/secret").1, "0600");
    assert!(read(&disk, 1, "/etc/new/deep/file").0.contains("hello"));
    assert_eq!(read(&disk, 1, "/etc/new/deep/file").1, "0644");
    assert!(read(&disk, 1, "/etc/through-a-link").0.contains("inside"));
    assert!(!Path::new("/etc/through-a-link").exists());
    assert!(read(&disk, 25, "/note").0.contains("on the boot partition"));
    let grub = read(&disk, 25, "/grub/grub.cfg").0;
    assert!(
        grub.contains(
            "\tlinux /vmlinuz-6.1 root=UUID=x ro console=ttyS0 x=\"a&b\" ironroot.skip\n"
        ),
        "{grub}"
    );
    let defaults = read(&disk, 1, "/etc/default/grub").0;
    assert!(
        defaults.contains("GRUB_CMDLINE_LINUX_DEFAULT=\"\"\n"),
        "{defaults}"
    );
    assert!(
        defaults.contains("GRUB_CMDLINE_LINUX=\"console=ttyS0 x=\\\"a&b\\\" ironroot.skip\"\n"),
        "{defaults}"
    );
    check(&disk, 1, 24);
    check(&disk, 25, 12);
    // The table is whole, and the record says what is installed.
    tool("sgdisk", &["-v", disk.arg()]);
    assert_eq!(disk.bytes()[510..512], [0x55, 0xaa]);
    let listed = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !listed.contains("/run/ironroot/installed"),
        "nothing stays mounted"
    );
}

/// After a failure: code, text, and a disk without LBA 0.
#[track_caller]
fn fails(image: &[u8], keys: &Value, more: &[(&str, Value)], code: i32, parts: &[&str]) {
    let disk = LoopDevice::patterned(48);
    install(image, &disk, keys, more).failed_with(code, parts);
    assert!(disk.bytes()[..512].iter().all(|b| *b == 0), "LBA 0");
    let listed = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !listed.contains("/run/ironroot/installed"),
        "nothing stays mounted"
    );
}

#[test]
fn what_cannot_be_changed_leaves_a_disk_that_does_not_boot() {
    let directory = tempfile::tempdir().unwrap();
    let append = json!({ "kernelArguments": { "append": ["a"] } });
    let root = directory.path().join("root");
    write(&root, "etc/os-release", "ID=x\n");
    std::fs::create_dir_all(root.join("srv")).unwrap();
    let part = |number, at| Part {
        number,
        at,
        size: 16,
        kind: ROOT,
        uuid: ROOT_UUID,
        label: "root",
        tree: &root,
    };
    let one = image(&[part(1, 1)]);
    fails(
        &one,
        &append,
        &[],
        14,
        &["no boot loader entries", "leave out `disk.kernelArguments`"],
    );
    let two = image(&[part(1, 1), part(2, 18)]);
    fails(
        &two,
        &append,
        &[],
        14,
        &["partitions 1 and 2 both hold a system"],
    );
    let files = json!({ "files": [{ "path": "/srv", "contents": "x" }] });
    fails(&one, &files, &[], 14, &["it is no file"]);
    let empty = directory.path().join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let none = image(&[Part {
        tree: &empty,
        ..part(1, 1)
    }]);
    fails(
        &none,
        &files,
        &[],
        14,
        &["root was not found", "partition 1 holds no system"],
    );
    let too_much = json!({ "files": [{ "path": "/big", "contents": "x".repeat(3 << 20) }] });
    let full = image(&[Part {
        size: 2,
        ..part(1, 1)
    }]);
    fails(&full, &too_much, &[], 14, &["/big", "No space left"]);
}

#[test]
fn an_ignition_config_is_where_coreos_looks_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let (root, boot) = (directory.path().join("root"), directory.path().join("boot"));
    std::fs::create_dir_all(root.join("ostree/deploy")).unwrap();
    write(&boot, "ignition.firstboot", "");
    write(
        &boot,
        "loader.1/entries/ostree-1.conf",
        "title A\nversion 1\noptions root=UUID=x ignition.platform.id=metal\nlinux /v\n",
    );
    symlink("loader.1", boot.join("loader")).unwrap();
    let image = image(&[
        Part {
            number: 3,
            at: 1,
            size: 12,
            kind: LINUX,
            uuid: BOOT_UUID,
            label: "boot",
            tree: &boot,
        },
        Part {
            number: 4,
            at: 13,
            size: 16,
            kind: ROOT,
            uuid: ROOT_UUID,
            label: "root",
            tree: &root,
        },
    ]);
    let config = r#"{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"core"}]}}"#;
    let server = FaultServer::start(move |request| {
        ok(if request.target.contains("bad") {
            b"variant: fcos".as_slice()
        } else {
            config.as_bytes()
        })
    });
    let keys = json!({ "kernelArguments": { "append": ["console=ttyS0"] } });
    let disk = LoopDevice::patterned(40);
    let ignition = |path: &str| [("/ignition", json!({ "url": server.url(path) }))];
    install(&image, &disk, &keys, &ignition("/good.ign")).succeeded();
    let (text, mode) = read(&disk, 1, "/ignition/config.ign");
    assert!(text.contains(config), "{text}");
    assert_eq!(mode, "0600");
    let entry = read(&disk, 1, "/loader.1/entries/ostree-1.conf").0;
    assert!(
        entry.contains(
            "options root=UUID=x ignition.platform.id=metal console=ttyS0 ironroot.skip\n"
        ),
        "{entry}"
    );
    check(&disk, 1, 12);

    // Nothing has been written when the config turns out to be none.
    let disk = LoopDevice::patterned(40);
    install(&image, &disk, &json!({}), &ignition("/bad.ign"))
        .failed_with(10, &["no Ignition config", "butane"]);
    support::verdict::assert_pattern(&disk);
    // An image without a place for it.
    let plain = debian(&directory.path().join("debian"));
    fails(
        &plain,
        &json!({}),
        &ignition("/good.ign"),
        14,
        &["no place on its disk where Ignition looks"],
    );
}

/// What would be hidden in the running system, because something is mounted over it there, is refused.
#[test]
fn a_file_below_what_is_mounted_at_boot_from_elsewhere_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    write(&root, "etc/os-release", "ID=x\n");
    let fstab = "LABEL=elsewhere /srv ext4 defaults 0 2\n/dev/vdz1 /data ext4 nofail 0 2\ntmpfs /opt/x tmpfs\nLABEL=x /mnt ext4 noauto\n/dev/vda9 none swap\n";
    write(&root, "etc/fstab", fstab);
    let one = image(&[Part {
        number: 1,
        at: 1,
        size: 16,
        kind: ROOT,
        uuid: ROOT_UUID,
        label: "root",
        tree: &root,
    }]);
    for (path, at) in [
        ("/srv/a/b", "/srv"),
        ("/data/a", "/data"),
        ("/opt/x/a", "/opt/x"),
    ] {
        let files = json!({ "files": [{ "path": path, "contents": "x" }] });
        fails(&one, &files, &[], 14, &[&format!("{path} lies below {at}")]);
    }
    let disk = LoopDevice::patterned(48);
    let files = json!({ "files": [{ "path": "/mnt/a", "contents": "x" }, { "path": "/srvx", "contents": "x" }] });
    install(&one, &disk, &files, &[]).succeeded();
}

/// Links are followed as the running system follows them, and mount units count as lines of fstab do.
#[test]
fn what_a_link_or_a_mount_unit_hides_is_refused_and_the_rest_is_where_it_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let (root, data) = (directory.path().join("root"), directory.path().join("data"));
    write(&root, "etc/os-release", "ID=x\n");
    let fstab = "LABEL=elsewhere /srv ext4 defaults 0 2\nLABEL=elsewhere /by-name ext4 nofail\n";
    write(&root, "etc/fstab", fstab);
    for (link, to) in [
        ("var-run", "run"),
        ("out", "/../../run/x"),
        ("www", "srv/www"),
        ("by-name", "/var/named"),
        ("round", "/round"),
        ("etc/resolv.conf", "../run/resolv.conf"),
    ] {
        symlink(to, root.join(link)).unwrap();
    }
    std::fs::create_dir_all(root.join("var/named")).unwrap();
    let units = "usr/lib/systemd/system";
    let unit = |name: &str, text: &str| write(&root, &format!("{units}/{name}"), text);
    let tmpfs = |at: &str| format!("[Mount]\nWhat=tmpfs\nType=tmpfs\nWhere={at}\n");
    unit("opt-x.mount", &tmpfs("/opt/x"));
    unit("opt-off.mount", &tmpfs("/opt/off"));
    unit(
        "opt-late.mount",
        &format!("[Unit]\nConditionPathExists=/none\n{}", tmpfs("/opt/late")),
    );
    let on_disk = format!("[Mount]\nWhat=/dev/disk/by-uuid/{BOOT_UUID}\nWhere=/data\n");
    write(&root, "etc/systemd/system/data.mount", &on_disk);
    std::fs::create_dir_all(root.join("data")).unwrap();
    let wants = root.join(units).join("local-fs.target.wants");
    std::fs::create_dir_all(&wants).unwrap();
    for name in ["opt-x.mount", "opt-late.mount", "data.mount"] {
        symlink(format!("../{name}"), wants.join(name)).unwrap();
    }
    write(&data, "there", "");
    let part = |number, at, size, kind, uuid, tree| Part {
        number,
        at,
        size,
        kind,
        uuid,
        label: "",
        tree,
    };
    let image = image(&[
        part(1, 1, 16, ROOT, ROOT_UUID, &root),
        part(2, 17, 8, LINUX, BOOT_UUID, &data),
    ]);
    for (path, why) in [
        (
            "/var-run/a",
            "/var-run/a leads to /run/a, and what is in /run",
        ),
        ("/out/a", "leads to /run/x/a"),
        ("/www/index", "/www/index lies below /srv"),
        ("/var/named/a", "/var/named/a lies below /by-name"),
        ("/opt/x/a", "/opt/x/a lies below /opt/x"),
        ("/round/a", "ELOOP"),
    ] {
        let files = json!({ "files": [{ "path": path, "contents": "x" }] });
        fails(&image, &files, &[], 14, &[why]);
    }
    let disk = LoopDevice::patterned(48);
    let seen = [
        "/opt/off/a",
        "/opt/late/a",
        "/data/a",
        // The link itself is replaced.
        "/etc/resolv.conf",
    ];
    let files: Vec<Value> = seen
        .iter()
        .map(|path| json!({ "path": path, "contents": format!("in {path}\n") }))
        .collect();
    install(&image, &disk, &json!({ "files": files }), &[]).succeeded();
    for (at, path, text) in [
        (1, "/opt/off/a", "in /opt/off/a\n"),
        (1, "/opt/late/a", "in /opt/late/a\n"),
        (1, "/etc/resolv.conf", "in /etc/resolv.conf\n"),
        // On the partition that the unit mounts there.
        (17, "/a", "in /data/a\n"),
    ] {
        assert!(read(&disk, at, path).0.contains(text), "{path}");
    }
    check(&disk, 1, 16);
    check(&disk, 17, 8);
}

/// A btrfs whose root and /var are subvolumes: a file goes to the one in which the running system looks.
#[test]
fn files_are_in_the_subvolume_that_is_mounted_there() {
    let directory = tempfile::tempdir().unwrap();
    // mkfs.btrfs and the kernel take no UUID twice.
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    let uuid = uuid.trim();
    let empty = directory.path().join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let mut bytes = image(&[Part {
        number: 1,
        at: 1,
        size: 64,
        kind: ROOT,
        uuid: BOOT_UUID,
        label: "x",
        tree: &empty,
    }]);
    let fs = directory.path().join("fs");
    std::fs::write(&fs, vec![0u8; 64 << 20]).unwrap();
    let fs = fs.to_str().unwrap();
    tool("mkfs.btrfs", &["-q", "--mixed", "-U", uuid, fs]);
    let place = directory.path().join("place");
    std::fs::create_dir_all(&place).unwrap();
    let at = place.to_str().unwrap();
    tool("mount", &["-o", "loop", fs, at]);
    for name in ["@", "@var"] {
        tool(
            "btrfs",
            &["subvolume", "create", place.join(name).to_str().unwrap()],
        );
    }
    write(&place, "@/etc/os-release", "ID=x\n");
    write(
        &place,
        "@/etc/fstab",
        &format!("UUID={uuid} / btrfs subvol=@ 0 0\nUUID={uuid} /var btrfs subvol=@var 0 0\n"),
    );
    std::fs::create_dir_all(place.join("@/var")).unwrap();
    tool("umount", &[at]);
    bytes[1 << 20..][..64 << 20].copy_from_slice(&std::fs::read(fs).unwrap());

    let disk = LoopDevice::patterned(80);
    let files = json!({ "files": [{ "path": "/var/lib/x", "contents": "hello" }] });
    install(&bytes, &disk, &files, &[]).succeeded();
    std::fs::write(fs, &disk.bytes()[1 << 20..][..64 << 20]).unwrap();
    tool("mount", &["-o", "loop,ro", fs, at]);
    let (right, wrong) = (
        std::fs::read_to_string(place.join("@var/lib/x")),
        place.join("@/var/lib/x").exists(),
    );
    tool("umount", &[at]);
    assert_eq!(right.unwrap(), "hello");
    assert!(!wrong);
}

#[test]
fn a_word_of_the_environment_block_is_taken_away_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    write(&root, "etc/os-release", "ID=rhel\n");
    write(
        &root,
        "boot/loader/entries/one.conf",
        "title R\nversion 1\nlinux /boot/vmlinuz\noptions $kernelopts $tuned_params\n",
    );
    write(
        &root,
        "boot/grub2/grubenv",
        "# GRUB Environment Block\nkernelopts=root=UUID=x ro quiet \n####",
    );
    let image = image(&[Part {
        number: 1,
        at: 1,
        size: 24,
        kind: ROOT,
        uuid: ROOT_UUID,
        label: "root",
        tree: &root,
    }]);
    let disk = LoopDevice::patterned(40);
    let keys = json!({ "kernelArguments": { "append": ["console=ttyS0"], "remove": ["quiet"] } });
    install(&image, &disk, &keys, &[]).succeeded();
    let entry = read(&disk, 1, "/boot/loader/entries/one.conf").0;
    assert!(
        entry.contains("options root=UUID=x ro $tuned_params console=ttyS0 ironroot.skip\n"),
        "{entry}"
    );
}

/// A unified kernel image: the section table of a PE file, and sections.
fn unified(stub: &str, words: &str) -> Vec<u8> {
    let parts = [
        (".sdmagic", stub),
        (".linux", "kernel"),
        (".cmdline", words),
    ];
    let mut file = vec![0u8; 64];
    file[..2].copy_from_slice(b"MZ");
    file[60..].copy_from_slice(&64u32.to_le_bytes());
    file.extend(b"PE\0\0\x64\x86");
    file.extend(u16::try_from(parts.len()).unwrap().to_le_bytes());
    file.extend([0; 16]);
    let mut at = file.len() + parts.len() * 40;
    for (name, content) in parts {
        let mut entry = [0u8; 40];
        entry[..name.len()].copy_from_slice(name.as_bytes());
        for (place, number) in [(8, content.len()), (16, content.len()), (20, at)] {
            let number = u32::try_from(number).unwrap();
            entry[place..place + 4].copy_from_slice(&number.to_le_bytes());
        }
        file.extend(entry);
        at += content.len();
    }
    for (_, content) in parts {
        file.extend(content.as_bytes());
    }
    file
}

/// A system that a unified kernel image of `stub` starts. This machine's kernel has no FAT.
fn by_image(directory: &Path, stub: &str, entry: Option<&str>) -> Vec<u8> {
    let (root, esp) = (directory.join("root"), directory.join("esp"));
    write(&root, "etc/os-release", "ID=x\n");
    write(&root, "etc/kernel/cmdline", "quiet\n");
    std::fs::create_dir_all(esp.join("EFI/Linux")).unwrap();
    std::fs::write(esp.join("EFI/Linux/os.efi"), unified(stub, "own=1")).unwrap();
    if let Some(entry) = entry {
        write(&esp, "loader/entries/a.conf", entry);
    }
    let part = |number, at, kind, uuid, label, tree| Part {
        number,
        at,
        size: 16,
        kind,
        uuid,
        label,
        tree,
    };
    image(&[
        part(1, 1, ESP, BOOT_UUID, "esp", &esp),
        part(2, 18, ROOT, ROOT_UUID, "root", &root),
    ])
}

const STUB: &str = "#### LoaderInfo: systemd-stub 257.9 ####";

#[test]
fn a_unified_kernel_image_gets_the_words_in_an_addon() {
    const ADDON: &str = "/loader/addons/ironroot.addon.efi";
    let directory = tempfile::tempdir().unwrap();
    let image = by_image(directory.path(), STUB, None);
    let append = json!({ "kernelArguments": { "append": ["console=ttyS0"] } });
    let disk = LoopDevice::patterned(48);
    let ended = install(&image, &disk, &append, &[]).succeeded();
    assert!(
        ended.stderr.contains("ironroot.addon.efi"),
        "{}",
        ended.stderr
    );
    let words = read(&disk, 1, ADDON).0;
    assert!(words.contains("console=ttyS0 ironroot.skip"), "{words}");
    assert!(read(&disk, 1, "/EFI/Linux/os.efi").0.contains("own=1"));
    // For the next kernel's image.
    let defaults = read(&disk, 18, "/etc/kernel/cmdline").0;
    assert!(
        defaults.contains("quiet console=ttyS0 ironroot.skip"),
        "{defaults}"
    );
    check(&disk, 1, 16);

    // Beside entries, which are edited; one that names the image keeps having no words of its own.
    let entry = "uki /EFI/Linux/os.efi\n";
    let image = by_image(directory.path(), STUB, Some(entry));
    let disk = LoopDevice::patterned(48);
    install(&image, &disk, &append, &[]).succeeded();
    assert!(
        !read(&disk, 1, "/loader/entries/a.conf")
            .0
            .contains("options")
    );
    assert!(read(&disk, 1, ADDON).0.contains("console=ttyS0"));

    let remove = json!({ "kernelArguments": { "remove": ["own"] } });
    fails(
        &image,
        &remove,
        &[],
        14,
        &["nothing takes away the arguments in it"],
    );
    let other = tempfile::tempdir().unwrap();
    let old = STUB.replace("257", "252");
    let image = by_image(other.path(), &old, None);
    fails(
        &image,
        &append,
        &[],
        14,
        &["os.efi", "systemd-stub 252 reads no addons"],
    );
    let image = by_image(other.path(), "another stub", None);
    fails(&image, &append, &[], 14, &["it is not of systemd-stub"]);
    // Where entries carry words too, the rest warns.
    let entry = "linux /k\noptions root=x\n";
    let image = by_image(other.path(), &old, Some(entry));
    let disk = LoopDevice::patterned(48);
    let ended = install(&image, &disk, &append, &[]).succeeded();
    assert!(
        ended.stderr.contains("keep their own arguments"),
        "{}",
        ended.stderr
    );
    assert!(
        read(&disk, 1, "/loader/entries/a.conf")
            .0
            .contains("root=x console=ttyS0")
    );
}
