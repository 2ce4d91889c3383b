//! Trees that become bootable disks, on real loop devices: a tar archive, a squashfs, layers of a registry. What the
//! root holds is compared with what went in; table and EFI system partition are judged by other programs. Needs root.
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

use serde_json::{Value, json};
use support::disk_image::sha256;
use support::fault_server::{FaultServer, Serve, file, status};
use support::loop_device::{LoopDevice, tool, try_tool};
use support::program::{Config, Ended};
use tree_support::{assert_same, shell, walk};

const VERSION: &str = "6.1.0-49-test";

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
        case.make_tree();
        case
    }

    fn tree(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    /// A system with a kernel, an initrd and systemd-boot, and entries of every kind.
    fn make_tree(&self) {
        let script = format!(
            r#"mkdir -p tree && cd tree
            mkdir -p boot etc/kernel usr/lib/modules/{VERSION} usr/lib/systemd/boot/efi var/lib/dbus proc dev bin lost+found
            chmod 700 lost+found
            head -c 5000001 /dev/urandom >boot/vmlinuz-{VERSION}
            head -c 3000000 /dev/urandom >boot/initrd.img-{VERSION}
            echo old >boot/vmlinuz-5.10.0-1-test; echo old >boot/initrd.img-5.10.0-1-test
            echo loader >usr/lib/systemd/boot/efi/systemd-bootx64.efi
            echo aarch64 >usr/lib/systemd/boot/efi/systemd-bootaa64.efi
            printf 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12"\n' >etc/os-release
            echo 'root=UUID=1 quiet console=ttyS0 rw' >etc/kernel/cmdline
            echo 0123456789abcdef0123456789abcdef >etc/machine-id
            cp etc/machine-id var/lib/dbus/machine-id
            printf 'UUID=1 / xfs defaults 0 1\ntmpfs /tmp tmpfs nosuid 0 0\n' >etc/fstab
            echo text >bin/tool; ln bin/tool bin/again; ln -s ../bin/tool etc/link
            chown 1000:1001 bin/tool; chmod 4755 bin/tool
            setcap cap_net_raw+ep bin/tool || setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 bin/tool
            setfattr -n user.test -v value etc/os-release; setfacl -m u:1234:r etc/os-release
            truncate -s 8M var/sparse; printf x | dd of=var/sparse bs=1 seek=4000000 conv=notrunc status=none
            mknod dev/null0 c 1 3; mkfifo dev/fifo; touch -d @1700000000.123456789 etc/link bin/tool"#
        );
        shell(&script, self.directory.path());
    }

    fn tar(&self, name: &str) -> PathBuf {
        let script = format!(
            "tar -C tree --format=pax --sparse --xattrs --xattrs-include='*' --acls --numeric-owner -caf {name} ."
        );
        shell(&script, self.directory.path());
        self.directory.path().join(name)
    }

    fn squashfs(&self) -> PathBuf {
        let script = "mksquashfs tree a.squashfs -quiet -no-progress -noappend";
        shell(script, self.directory.path());
        self.directory.path().join("a.squashfs")
    }

    fn config(&self, image: &Path) -> Config {
        let bytes = fs::read(image).unwrap();
        Config::new(image.to_str().unwrap(), &sha256(&bytes), &self.disk)
            .with("/image/kind", json!("Tree"))
            // This machine boots by BIOS, or by nothing.
            .with("/disk/bootloader", json!("SystemdBoot"))
    }

    /// The partitions as their own loop devices, and what sfdisk says of them.
    fn partitions(&self) -> [Partition; 2] {
        let text = tool("sfdisk", &["--json", self.disk.arg()]);
        let table: Value = serde_json::from_str(&text).unwrap();
        let table = &table["partitiontable"];
        let sector = table["sectorsize"].as_u64().unwrap_or(512);
        let all = table["partitions"].as_array().unwrap();
        assert_eq!(all.len(), 2, "{text}");
        [0, 1].map(|i| {
            let number = |key: &str| all[i][key].as_u64().unwrap() * sector;
            Partition::of(
                self.disk.backing(),
                number("start"),
                number("size"),
                &all[i],
            )
        })
    }

    /// The disk is as it should be: table, EFI system partition, root.
    fn is_installed(&self) -> [Partition; 2] {
        let said = tool("sgdisk", &["-v", self.disk.arg()]);
        assert!(said.contains("No problems found"), "{said}");
        let [esp, root] = self.partitions();
        assert_eq!(esp.json["type"], "C12A7328-F81F-11D2-BA4B-00A0C93EC93B");
        assert_eq!(root.json["type"], "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709");
        assert_eq!(
            (esp.json["name"].as_str(), root.json["name"].as_str()),
            (Some("ESP"), Some("root"))
        );
        tool("fsck.vfat", &["-n", esp.path()]);
        tool("e2fsck", &["-fn", root.path()]);
        [esp, root]
    }

    /// No table, no boot code: nothing boots.
    #[track_caller]
    fn has_no_table(&self) {
        let bytes = self.disk.bytes();
        assert!(bytes[..512].iter().all(|b| *b == 0));
        let (_, found) = try_tool("sfdisk", &["--dump", self.disk.arg()]);
        assert!(!found.contains("label:"), "{found}");
    }
}

/// A partition as a device of its own: the kernel here may know no table.
struct Partition {
    device: PathBuf,
    json: Value,
}

impl Partition {
    fn of(disk: &Path, start: u64, size: u64, json: &Value) -> Partition {
        let (start, size) = (start.to_string(), size.to_string());
        let args = [
            "--find",
            "--show",
            "--read-only",
            "--offset",
            &start,
            "--sizelimit",
            &size,
            disk.to_str().unwrap(),
        ];
        Partition {
            device: tool("losetup", &args).trim().into(),
            json: json.clone(),
        }
    }

    fn path(&self) -> &str {
        self.device.to_str().unwrap()
    }

    fn uuid(&self) -> String {
        self.json["uuid"].as_str().unwrap().to_lowercase()
    }

    /// A file of a FAT.
    fn file(&self, name: &str) -> Vec<u8> {
        let out = std::process::Command::new("mtype")
            .args(["-i", self.path(), &format!("::{name}")])
            .output()
            .unwrap();
        assert!(out.status.success(), "{name}");
        out.stdout
    }

    /// What is in an ext4.
    fn look<T>(&self, look: impl FnOnce(&Path) -> T) -> T {
        let place = tempfile::tempdir().unwrap();
        let name = place.path().to_str().unwrap();
        tool("mount", &["-o", "ro,noload", self.path(), name]);
        let seen = look(place.path());
        tool("umount", &[name]);
        seen
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = try_tool("losetup", &["--detach", self.path()]);
    }
}

/// Everything that the two trees have, but for what an installation changes. A squashfs has whole seconds and no
/// ACLs, and knows nothing of holes.
fn same_but_for_what_is_changed(wanted: &Path, found: &Path, squashfs: bool) {
    let entries = |path: &Path| {
        let mut all = walk(path);
        for changed in [
            "etc/fstab",
            "etc/kernel/cmdline",
            "etc/machine-id",
            "var/lib/dbus/machine-id",
            "boot",
            "",
        ] {
            all.remove(Path::new(changed));
        }
        all.retain(|path, _| !path.starts_with("boot/efi") && !path.starts_with("lost+found"));
        for entry in all.values_mut().filter(|_| squashfs) {
            entry.mtime.1 = 0;
            entry.in_use = 0;
            entry.xattrs.retain(|name, _| !name.contains("posix_acl"));
        }
        all
    };
    assert_same("the root", &entries(wanted), &entries(found));
}

#[track_caller]
fn boots_by_systemd_boot(case: &Case, ended: &Ended, more: &str, squashfs: bool) {
    assert!(
        ended.stderr.contains("boots by systemd-boot"),
        "{}",
        ended.stderr
    );
    let [esp, root] = case.is_installed();
    let tree = case.tree();
    let read = |name: String| fs::read(tree.join(name)).unwrap();
    assert!(
        esp.file(&format!("debian/{VERSION}/linux")) == read(format!("boot/vmlinuz-{VERSION}"))
    );
    assert!(
        esp.file(&format!("debian/{VERSION}/initrd")) == read(format!("boot/initrd.img-{VERSION}"))
    );
    for name in ["EFI/BOOT/BOOTX64.EFI", "EFI/systemd/systemd-bootx64.efi"] {
        assert_eq!(esp.file(name), b"loader\n");
    }
    let entry =
        String::from_utf8(esp.file(&format!("loader/entries/debian-{VERSION}.conf"))).unwrap();
    assert_eq!(
        entry,
        format!(
            "title Debian GNU/Linux 12\nversion {VERSION}\nlinux /debian/{VERSION}/linux\ninitrd /debian/{VERSION}/initrd\noptions root=PARTUUID={} ro {more}ironroot.skip\n",
            root.uuid()
        )
    );
    root.look(|found| {
        same_but_for_what_is_changed(&tree, found, squashfs);
        let fstab = fs::read_to_string(found.join("etc/fstab")).unwrap();
        assert_eq!(
            fstab,
            format!(
                "# UUID=1 / xfs defaults 0 1\ntmpfs /tmp tmpfs nosuid 0 0\n# ironroot begin\nPARTUUID={} / ext4 defaults 0 1\nPARTUUID={} /boot/efi vfat umask=0077,nofail 0 2\n# ironroot end\n",
                root.uuid(),
                esp.uuid()
            )
        );
        // Where the next kernel's words come from.
        let words = fs::read_to_string(found.join("etc/kernel/cmdline")).unwrap();
        assert_eq!(
            words,
            format!("root=PARTUUID={} ro {more}ironroot.skip\n", root.uuid())
        );
        for id in ["etc/machine-id", "var/lib/dbus/machine-id"] {
            assert_eq!(fs::read(found.join(id)).unwrap(), b"");
        }
        assert!(found.join("boot/efi").is_dir() && found.join("lost+found").is_dir());
    });
    assert!(
        ended.stderr.contains("commented out UUID=1 / xfs"),
        "{}",
        ended.stderr
    );
}

#[test]
fn an_archive_becomes_a_disk_that_boots_by_systemd_boot() {
    for name in ["a.tar", "a.tar.zst"] {
        let case = Case::new(256);
        let ended = case.config(&case.tar(name)).install(&[]).succeeded();
        boots_by_systemd_boot(&case, &ended, "quiet console=ttyS0 ", false);
        // It is installed, and found to be.
        let again = case
            .config(&case.directory.path().join(name))
            .plan()
            .succeeded();
        assert!(again.stdout.contains("already"), "{}", again.stdout);
    }
}

#[test]
fn a_squashfs_becomes_a_disk_with_the_words_of_the_config() {
    let case = Case::new(256);
    let config = case.config(&case.squashfs()).with(
        "/disk/kernelArguments",
        json!({ "append": ["console=tty0", "a=b"], "remove": ["quiet"] }),
    );
    let ended = config.install(&[]).succeeded();
    boots_by_systemd_boot(&case, &ended, "console=ttyS0 console=tty0 a=b ", true);
    let root = &case.partitions()[1];
    // Nothing of the image stays beside the root.
    let usage = root.look(|path| tool("du", &["-sxm", path.to_str().unwrap()]));
    let used: u64 = usage.split_whitespace().next().unwrap().parse().unwrap();
    assert!(used < 20, "{usage}");
}

#[test]
fn what_is_found_to_be_a_tree_is_planned_again_as_one() {
    let case = Case::new(256);
    for image in [case.tar("a.tar.zst"), case.squashfs()] {
        let mut config = Config::new(
            image.to_str().unwrap(),
            &sha256(&fs::read(&image).unwrap()),
            &case.disk,
        );
        config.value["disk"]["overwrite"] = json!("Always");
        let ended = config.install(&[]);
        assert!(ended.stderr.contains("planning again"), "{}", ended.stderr);
        if Path::new("/sys/firmware/efi").exists() {
            ended.succeeded();
            case.is_installed();
        } else {
            // By BIOS it is GRUB that starts it, and this tree has none.
            ended.failed_with(12, &["no GRUB for i386-pc"]);
            case.has_no_table();
        }
        // Who says that it is a disk is told.
        let code = if image.ends_with("a.squashfs") {
            10
        } else {
            12
        };
        config
            .with("/image/kind", json!("Disk"))
            .install(&[])
            .failed_with(code, &["openImage"]);
    }
}

#[test]
fn a_disk_of_4096_byte_sectors_gets_a_table_and_a_fat_of_its_own() {
    let disk = LoopDevice::attached(&vec![0; 512 << 20], &["--sector-size", "4096"]);
    let case = Case::on(disk);
    let ended = case.config(&case.tar("a.tar")).install(&[]).succeeded();
    assert!(ended.stderr.contains("boots by systemd-boot"));
    let said = tool("sgdisk", &["-v", case.disk.arg()]);
    assert!(said.contains("No problems found"), "{said}");
    let [esp, root] = case.partitions();
    tool("fsck.vfat", &["-n", esp.path()]);
    tool("e2fsck", &["-fn", root.path()]);
}

#[test]
fn a_bad_digest_is_code_12_and_the_disk_has_no_table() {
    let case = Case::new(256);
    for image in [case.tar("a.tar"), case.squashfs()] {
        case.config(&image)
            .with("/image/digest", json!(format!("sha256:{}", "0".repeat(64))))
            .with("/disk/overwrite", json!("Always"))
            .install(&[])
            .failed_with(12, &["has the digest", "unpackTree"]);
        case.has_no_table();
        assert!(case.disk.partitions().is_empty());
    }
    // The same disk takes the right one: the mark is of the same installation.
    case.config(&case.tar("a.tar"))
        .with("/disk/overwrite", json!("Always"))
        .install(&[])
        .succeeded();
    case.is_installed();
}

#[test]
fn stopped_after_any_step_nothing_boots_or_all_of_it_is_complete() {
    let case = Case::new(256);
    let image = case.tar("a.tar");
    for step in 0..=12 {
        let config = case.config(&image).with("/disk/overwrite", json!("Always"));
        // Another installation each time: the one before may be complete.
        let config = config.with("/metadata/generation", json!(step + 1));
        let ended = config.install(&["--stop-after", &step.to_string()]);
        println!("after {step} steps: {:?}", ended.code);
        assert_eq!(
            case.disk.partitions().is_empty(),
            step < 12,
            "after {step} steps"
        );
        if step <= 10 {
            ended.failed_with(70, &["stopped before step"]);
            case.has_no_table();
        } else {
            case.is_installed();
            case.disk.forget_partitions();
        }
    }
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_written() {
    let case = Case::new(256);
    let tar = case.tar("a.tar");
    let config = |more: Value| case.config(&tar).with("/disk/bootloader", more);
    case.config(&tar)
        .with("/disk/grow", json!("3"))
        .install(&[])
        .failed_with(10, &["disk.grow", "only the root"]);
    case.config(&tar)
        .with("/image/kind", json!("Disk"))
        .install(&[])
        .failed_with(10, &["disk.bootloader", "image.kind"]);
    config(json!("Uki"))
        .with("/disk/kernelArguments", json!({ "remove": ["x"] }))
        .install(&[])
        .failed_with(10, &["command line"]);
    // What is for the boot loader alone, whether a tree was announced or found.
    for kind in ["Tree", "Auto"] {
        let code = if kind == "Tree" { 10 } else { 12 };
        config(json!("Auto"))
            .with("/image/kind", json!(kind))
            .with("/disk/grow", json!("data"))
            .install(&[])
            .failed_with(code, &["only the root takes the rest"]);
        config(json!("Uki"))
            .with("/image/kind", json!(kind))
            .with("/disk/bootloader", json!("Auto"))
            .with(
                "/disk/files",
                json!([{ "path": "/boot/efi/x", "contents": "x" }]),
            )
            .install(&[])
            .failed_with(code, &["is its boot loader's"]);
    }
    // No tree, and one that does not fit.
    let page = case.directory.path().join("page");
    fs::write(&page, "<html>404</html>").unwrap();
    case.config(&page)
        .install(&[])
        .failed_with(12, &["cannot become the root of a disk", "openTree"]);
    case.config(&case.tar("a.tar.zst"))
        .with("/image/contentSize", json!("1TiB"))
        .install(&[])
        .failed_with(13, &["too small", "needs 1.0 TiB"]);
    assert!(
        case.disk.bytes().iter().all(|b| *b == 0),
        "nothing was written"
    );
}

#[test]
fn a_tree_without_what_boots_it_is_refused_by_name_and_leaves_no_table() {
    let case = Case::new(256);
    fs::remove_dir_all(case.tree().join("usr/lib/systemd")).unwrap();
    let config = case
        .config(&case.tar("a.tar"))
        .with("/disk/overwrite", json!("Always"));
    config.install(&[]).failed_with(
        12,
        &[
            "no systemd-boot",
            "/usr/lib/systemd/boot/efi/systemd-bootx64.efi",
            "installBootloader",
        ],
    );
    case.has_no_table();
    let config = config.with("/disk/bootloader", json!("Uki"));
    config
        .install(&[])
        .failed_with(12, &["no unified kernel image", "/boot/efi/EFI/Linux"]);
    case.has_no_table();
    // None is what it says: a disk without a boot program.
    let ended = config
        .with("/disk/bootloader", json!("None"))
        .install(&[])
        .succeeded();
    assert!(ended.stderr.contains("no boot loader was installed"));
    case.is_installed();
}

#[test]
fn a_tree_that_is_larger_than_the_disk_is_code_15_and_leaves_no_table() {
    let case = Case::new(256);
    shell(
        "head -c 300M /dev/zero | tr '\\0' x >tree/large",
        case.directory.path(),
    );
    case.config(&case.tar("a.tar.zst"))
        .install(&[])
        .failed_with(15, &["large", "unpackTree"]);
    case.has_no_table();
    assert!(case.disk.partitions().is_empty());
}

/// A PE file with a command line and a kernel, of systemd-stub of this version.
fn uki(cmdline: &str, stub: u32) -> Vec<u8> {
    let magic = format!("#### LoaderInfo: systemd-stub {stub}.1-test ####\0");
    let mut bytes = vec![0; 1024];
    bytes[..2].copy_from_slice(b"MZ");
    bytes[0x3c] = 0x80;
    bytes[0x80..0x84].copy_from_slice(b"PE\0\0");
    bytes[0x84..0x86].copy_from_slice(&[0x64, 0x86]);
    bytes[0x86] = 3;
    let sections = [
        (".cmdline", cmdline.as_bytes()),
        (".sdmagic", magic.as_bytes()),
        (".linux", b"kernel"),
    ];
    for (i, (name, content)) in sections.into_iter().enumerate() {
        let at = 0x80 + 24 + i * 40;
        let (start, length) = (
            u32::try_from(bytes.len()).unwrap(),
            u32::try_from(content.len()).unwrap(),
        );
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        bytes[at + 8..at + 12].copy_from_slice(&length.to_le_bytes());
        bytes[at + 16..at + 20].copy_from_slice(&512u32.to_le_bytes());
        bytes[at + 20..at + 24].copy_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

#[test]
fn a_unified_kernel_image_is_what_firmware_finds() {
    let case = Case::new(256);
    let place = case.tree().join("boot/efi/EFI/Linux");
    fs::create_dir_all(&place).unwrap();
    for (cmdline, warned) in [("root=LABEL=other quiet", true), ("quiet", false)] {
        let bytes = uki(cmdline, 252);
        fs::write(place.join("os-6.1.efi"), &bytes).unwrap();
        let config = case
            .config(&case.tar("a.tar"))
            .with("/disk/bootloader", json!("Uki"))
            .with("/disk/overwrite", json!("Always"));
        let ended = config.install(&[]).succeeded();
        assert_eq!(
            ended.stderr.contains("root=LABEL=other"),
            warned,
            "{}",
            ended.stderr
        );
        let [esp, _] = case.is_installed();
        assert!(
            esp.file("EFI/Linux/os-6.1.efi") == bytes && esp.file("EFI/BOOT/BOOTX64.EFI") == bytes
        );
    }
}

#[test]
fn words_are_added_to_a_unified_kernel_image_by_an_addon() {
    let case = Case::new(256);
    let place = case.tree().join("boot/efi/EFI/Linux");
    fs::create_dir_all(&place).unwrap();
    for stub in [254, 252] {
        fs::write(place.join("os-6.1.efi"), uki("quiet", stub)).unwrap();
        let config = case
            .config(&case.tar("a.tar"))
            .with("/disk/overwrite", json!("Always"))
            .with("/disk/bootloader", json!("Uki"))
            .with(
                "/disk/kernelArguments",
                json!({ "append": ["console=ttyS0"] }),
            );
        let ended = config.install(&[]);
        if stub < 254 {
            ended.failed_with(12, &["os-6.1.efi", "systemd-stub 252", "installBootloader"]);
            case.has_no_table();
            continue;
        }
        let ended = ended.succeeded();
        let said = "with console=ttyS0 ironroot.skip in an addon";
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
        let [esp, _] = case.is_installed();
        let addon = esp.file("loader/addons/ironroot.addon.efi");
        let words = b"console=ttyS0 ironroot.skip\0";
        assert!(addon.windows(words.len()).any(|w| w == words));
    }
}

/// A registry of one image over plain HTTP: its layers by media type. The reference is pinned.
fn registry(layers: &[(&str, Vec<u8>)]) -> (FaultServer, String) {
    let entries: Vec<Value> = layers
        .iter()
        .map(|(kind, bytes)| json!({ "mediaType": kind, "digest": sha256(bytes), "size": bytes.len() }))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": sha256(b"{}"), "size": 2 },
        "layers": entries,
    });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let digest = sha256(&manifest);
    let blobs: Vec<(String, Vec<u8>)> = layers
        .iter()
        .map(|(_, bytes)| (format!("/v2/os/blobs/{}", sha256(bytes)), bytes.clone()))
        .chain([(format!("/v2/os/manifests/{digest}"), manifest)])
        .collect();
    let server = FaultServer::start(move |request| {
        let right = Serve {
            headers: &[],
            ranges: true,
            stop_after: None,
        };
        match blobs.iter().find(|(path, _)| *path == request.target) {
            Some((_, bytes)) => file(request, bytes, right),
            None => status("404 Not Found", &[]),
        }
    });
    let reference = format!("oci://127.0.0.1:{}/os@{digest}", server.port());
    (server, reference)
}

fn from_registry(case: &Case, reference: &str) -> Config {
    let mut config = Config::new(reference, "", &case.disk)
        .with("/image/kind", json!("Tree"))
        .with("/image/plainHttp", json!(true))
        .with("/disk/bootloader", json!("SystemdBoot"));
    config.value["image"]
        .as_object_mut()
        .unwrap()
        .remove("digest");
    config
}

#[test]
fn the_layers_of_a_container_image_become_one_root() {
    let case = Case::new(256);
    let first = fs::read(case.tar("a.tar.gz")).unwrap();
    // The second layer adds, replaces and takes away.
    shell(
        "mkdir -p second/etc second/var && echo new >second/etc/added && : >second/var/.wh.sparse && tar -C second -cf second.tar .
         rm tree/var/sparse && cp second/etc/added tree/etc/added",
        case.directory.path(),
    );
    let second = fs::read(case.directory.path().join("second.tar")).unwrap();
    let layer = "application/vnd.oci.image.layer.v1.tar";
    let gzip = format!("{layer}+gzip");
    let (_server, reference) = registry(&[(&gzip, first.clone()), (layer, second)]);
    from_registry(&case, &reference).install(&[]).succeeded();
    let [_, root] = case.is_installed();
    root.look(|found| {
        assert_eq!(fs::read(found.join("etc/added")).unwrap(), b"new\n");
        assert!(!found.join("var/sparse").exists() && !found.join("var/.wh.sparse").exists());
        assert!(found.join("bin/tool").exists());
    });

    // A blob that is not what the manifest names: nothing boots.
    let (_server, reference) = registry(&[(&gzip, first), (layer, b"no archive".to_vec())]);
    from_registry(&case, &reference)
        .with("/disk/overwrite", json!("Always"))
        .install(&[])
        .failed_with(12, &["archive", "unpackTree"]);
    case.has_no_table();
}

#[test]
fn kernel_and_initramfs_layers_complete_a_squashfs_without_them() {
    let case = Case::new(256);
    let boot = case.tree().join("boot");
    let kernel = fs::read(boot.join(format!("vmlinuz-{VERSION}"))).unwrap();
    // Compressed: it stays so.
    let initrd = support::disk_image::compressed(
        "gzip",
        &fs::read(boot.join(format!("initrd.img-{VERSION}"))).unwrap(),
    );
    fs::remove_dir_all(&boot).unwrap();
    let squashfs = fs::read(case.squashfs()).unwrap();
    let kind = |name: &str| format!("application/vnd.ironcore.image.{name}");
    let (_server, reference) = registry(&[
        (&kind("kernel"), kernel.clone()),
        (&kind("initramfs"), initrd.clone()),
        (&kind("squashfs"), squashfs),
    ]);
    let ended = from_registry(&case, &reference).install(&[]).succeeded();
    assert!(
        ended.stderr.contains("comes from a layer of its own"),
        "{}",
        ended.stderr
    );
    let [esp, root] = case.is_installed();
    assert!(esp.file(&format!("debian/{VERSION}/linux")) == kernel);
    assert!(esp.file(&format!("debian/{VERSION}/initrd")) == initrd);
    root.look(|found| {
        assert!(fs::read(found.join(format!("boot/initrd.img-{VERSION}"))).unwrap() == initrd);
    });
}
