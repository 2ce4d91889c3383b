//! Disks with an MBR, on real loop devices: a tree's, for BIOS, and an image's to which partitions are added. Needs
//! root.
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
use std::path::Path;

use ironroot::image::record::{self, State};
use serde_json::{Value, json};
use support::disk_image::{MIB, RECORD, mbr, sha256};
use support::loop_device::{LoopDevice, tool, try_tool};
use support::program::Config;
use tree_support::shell;

/// A tree with GRUB for BIOS, as an archive.
fn tree(at: &Path) -> Vec<u8> {
    fs::create_dir_all(at.join("tree")).unwrap();
    shell(
        r#"mkdir -p boot etc/default usr/lib/modules/6.1.0 usr/bin usr/lib/grub usr/lib/ironroot
        head -c 500001 /dev/urandom >boot/vmlinuz-6.1.0; head -c 300000 /dev/urandom >boot/initrd.img-6.1.0
        printf 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12"\n' >etc/os-release
        printf 'GRUB_CMDLINE_LINUX="console=ttyS0"\n' >etc/default/grub
        cp "$(command -v busybox)" usr/bin/busybox
        cp -a /usr/lib/grub/i386-pc usr/lib/grub/
        cp -L "$(command -v grub-mkimage)" usr/bin/grub-mkimage
        ldd usr/bin/grub-mkimage | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" ".$lib"; done
        printf '#!/usr/bin/busybox sh\nenv | busybox grep IRONROOT_ >/etc/env\nbusybox printf "%%440s" | busybox tr " " x >"$IRONROOT_BOOT_CODE"\n' >usr/lib/ironroot/install-bootloader
        chmod 755 usr/lib/ironroot/install-bootloader"#,
        &at.join("tree"),
    );
    shell("tar -C tree --numeric-owner -cf image .", at);
    fs::read(at.join("image")).unwrap()
}

fn config(disk: &LoopDevice, bootloader: &str) -> Config {
    let digest = sha256(&tree(disk.directory()));
    let image = disk.directory().join("image");
    Config::new(image.to_str().unwrap(), &digest, disk)
        .with("/image/kind", json!("Tree"))
        .with("/disk/table", json!("mbr"))
        .with("/disk/bootloader", json!(bootloader))
}

/// Number, type, start and size in MiB, active; and what sfdisk says against it, which is nothing.
fn table(disk: &LoopDevice) -> (String, Vec<(String, u64, u64, bool)>) {
    let (good, said) = try_tool("sfdisk", &["--verify", disk.arg()]);
    assert!(good && !said.contains("overlap"), "{said}");
    let text = tool("sfdisk", &["--json", disk.arg()]);
    let json: Value = serde_json::from_str(&text).unwrap();
    let table = &json["partitiontable"];
    assert_eq!(table["label"], "dos");
    let rows = table["partitions"].as_array().unwrap().iter().map(|p| {
        let mib = |key: &str| {
            let sectors = p[key].as_u64().unwrap();
            assert_eq!(sectors % 2048, 0, "{text}");
            sectors / 2048
        };
        let kind = p["type"].as_str().unwrap().to_owned();
        (kind, mib("start"), mib("size"), p["bootable"] == true)
    });
    (
        table["id"].as_str().unwrap()[2..].to_owned(),
        rows.collect(),
    )
}

fn row(kind: &str, start: u64, size: u64, active: bool) -> (String, u64, u64, bool) {
    (kind.to_owned(), start, size, active)
}

/// Looks into the file system at MiB `at`.
fn look<T>(disk: &LoopDevice, at: u64, size: u64, look: impl FnOnce(&Path) -> T) -> T {
    let place = tempfile::tempdir().unwrap();
    let name = place.path().to_str().unwrap();
    let backing = disk.backing().to_str().unwrap();
    let (offset, limit) = ((at << 20).to_string(), (size << 20).to_string());
    let range = ["--offset", &offset, "--sizelimit", &limit];
    let device = tool(
        "losetup",
        &[&["--find", "--show", "--read-only"], &range[..], &[backing]].concat(),
    );
    let device = device.trim();
    tool("mount", &["-o", "ro,noload", device, name]);
    let seen = look(place.path());
    tool("umount", &[name]);
    tool("losetup", &["--detach", device]);
    seen
}

#[test]
fn a_tree_gets_an_mbr_and_its_own_grub_in_front_of_the_root() {
    let disk = LoopDevice::sparse(512, &[]);
    let config = config(&disk, "Grub").with(
        "/disk/partitions",
        json!([
            { "label": "root", "size": "300MiB" },
            { "label": "swap", "size": "16MiB", "type": "swap" },
            { "label": "data", "size": "Rest", "filesystem": "ext4" },
        ]),
    );
    let ended = config.install(&[]).succeeded();
    assert!(
        ended.stderr.contains("boots by GRUB for i386-pc"),
        "{}",
        ended.stderr
    );
    let (signature, rows) = table(&disk);
    let wanted = [
        row("83", 1, 300, true),
        row("82", 301, 16, false),
        row("83", 317, 512 - 317, false),
    ];
    assert_eq!(rows, wanted);
    let bytes = disk.bytes();
    let mut boot = fs::read("/usr/lib/grub/i386-pc/boot.img").unwrap();
    boot[0x5c..0x64].copy_from_slice(&1u64.to_le_bytes());
    boot[0x66..0x68].copy_from_slice(&[0x90, 0x90]);
    assert!(bytes[..440] == boot[..440]);
    // The core begins behind LBA 0, and ends in front of the record.
    let list = &bytes[512 + 500..512 + 512];
    assert_eq!(list[..8], 2u64.to_le_bytes());
    let end = 512 * (2 + usize::from(u16::from_le_bytes([list[8], list[9]])));
    assert!(end < RECORD.start && bytes[end - 512..end].iter().any(|b| *b != 0));
    assert!(bytes[end..RECORD.start].iter().all(|b| *b == 0));
    let record = record::decode(&bytes[RECORD]).unwrap().unwrap();
    assert_eq!(record.state, State::Sealed);
    assert_eq!(record.disk.mbr_signature, Some(signature.clone()));
    look(&disk, 1, 300, |root| {
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap();
        let fstab = text("etc/fstab");
        assert!(
            fstab.contains(&format!("PARTUUID={signature}-01 / ext4 defaults 0 1")),
            "{fstab}"
        );
        assert!(!fstab.contains("vfat"), "{fstab}");
        let menu = text("boot/grub/grub.cfg");
        assert!(
            menu.contains(&format!("root=PARTUUID={signature}-01 ro console=ttyS0")),
            "{menu}"
        );
    });
    look(&disk, 317, 512 - 317, |data| {
        assert!(data.join("lost+found").is_dir());
    });
    let again = config.plan().succeeded();
    assert!(again.stdout.contains("already"), "{}", again.stdout);
}

#[test]
fn the_trees_own_script_leaves_code_for_the_active_partition() {
    let disk = LoopDevice::sparse(512, &[]);
    let ended = config(&disk, "ImageScript").install(&[]).succeeded();
    assert!(ended.stderr.contains("its own script"), "{}", ended.stderr);
    let (signature, rows) = table(&disk);
    assert_eq!(rows, [row("83", 1, 511, true)]);
    assert!(disk.bytes()[..440].iter().all(|b| *b == b'x'));
    look(&disk, 1, 511, |root| {
        let said = fs::read_to_string(root.join("etc/env")).unwrap();
        for wanted in [
            "IRONROOT_FIRMWARE=bios",
            &format!("IRONROOT_ROOT_PARTUUID={signature}-01"),
        ] {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        assert!(
            !said.contains("ESP") && !said.contains("BIOS_BOOT"),
            "{said}"
        );
    });
}

#[test]
fn stopped_after_any_step_there_is_no_mbr_or_all_of_it() {
    let disk = LoopDevice::sparse(512, &[]);
    let config = config(&disk, "Grub").with("/disk/overwrite", json!("Always"));
    let mut complete = 0;
    for step in [3, 5, 9, 10, 11, 12] {
        let config = Config::new(
            config.value["image"]["url"].as_str().unwrap(),
            config.value["image"]["digest"].as_str().unwrap(),
            &disk,
        )
        .with("/image/kind", json!("Tree"))
        .with("/disk", config.value["disk"].clone())
        // Another installation each time.
        .with("/metadata/generation", json!(step));
        config.install(&["--stop-after", &step.to_string()]);
        let bytes = disk.bytes();
        if bytes[510..512] == [0x55, 0xaa] {
            table(&disk);
            assert!(record::decode(&bytes[RECORD]).unwrap().is_some());
            complete += 1;
        } else {
            assert!(bytes[..RECORD.start].iter().all(|b| *b == 0), "{step}");
        }
    }
    // The commit, and what comes after it.
    assert!((1..=2).contains(&complete), "{complete}");
}

#[test]
fn partitions_are_added_to_an_images_mbr() {
    let disk = LoopDevice::sparse(256, &[]);
    let image = mbr(8, 7);
    let path = disk.directory().join("image");
    fs::write(&path, &image).unwrap();
    let config = Config::new(path.to_str().unwrap(), &sha256(&image), &disk).with(
        "/disk/partitions",
        json!([
            { "label": "data", "size": "64MiB", "filesystem": "ext4" },
            { "label": "more", "size": "Rest", "type": "lvm" },
        ]),
    );
    config.install(&[]).succeeded();
    let (signature, rows) = table(&disk);
    assert_eq!(signature, "12345678");
    let wanted = [
        row("83", 1, 6, true),
        row("83", 8, 64, false),
        row("8e", 72, 256 - 72, false),
    ];
    assert_eq!(rows, wanted);
    let bytes = disk.bytes();
    // The image's own, but for the two entries and the record.
    assert!(bytes[..462] == image[..462]);
    assert!(bytes[510..RECORD.start] == image[510..RECORD.start]);
    assert!(bytes[MIB..7 * MIB] == image[MIB..7 * MIB]);
    look(&disk, 8, 64, |data| {
        assert!(data.join("lost+found").is_dir());
    });

    let three = json!(["a", "b", "c", "d"].map(|l| json!({ "label": l, "size": "1MiB" })));
    let before = disk.written();
    config
        .with("/disk/partitions", three)
        .with("/disk/overwrite", json!("Always"))
        .with("/metadata/generation", json!(2))
        .install(&[])
        .failed_with(13, &["room for 4 partitions, and none is left for \"d\""]);
    assert_eq!(disk.written(), before);
}

#[test]
fn a_partition_of_an_images_mbr_grows_with_its_file_system() {
    let disk = LoopDevice::sparse(256, &[]);
    let mut image = mbr(32, 31);
    let file = disk.directory().join("root.img");
    fs::File::create(&file).unwrap().set_len(30 << 20).unwrap();
    tool("mke2fs", &["-q", "-t", "ext4", file.to_str().unwrap()]);
    image[MIB..31 * MIB].copy_from_slice(&fs::read(&file).unwrap());
    let path = disk.directory().join("image");
    fs::write(&path, &image).unwrap();
    Config::new(path.to_str().unwrap(), &sha256(&image), &disk)
        .with("/disk/grow", json!("1"))
        .install(&[])
        .succeeded();
    assert_eq!(table(&disk).1, [row("83", 1, 255, true)]);
    let said = look(&disk, 1, 255, |root| {
        tool("df", &["-BM", "--output=size", root.to_str().unwrap()])
    });
    let size: u64 = said
        .split_whitespace()
        .last()
        .unwrap()
        .trim_end_matches('M')
        .parse()
        .unwrap();
    assert!(size > 200, "{said}");
}
