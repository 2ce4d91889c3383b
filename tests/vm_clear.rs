//! Stacks that are in use by the kernel, taken down for an installation: a machine whose target carries bcache, one
//! half of an md array, and LVM on LUKS, all of them assembled, beside a disk with the other half and a volume group
//! of its own.
//!
//! Needs root and the kernel of `scripts/lab` (`scripts/test` makes it).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/script_machine.rs"]
mod script_machine;
#[path = "support/small_system.rs"]
mod small_system;
#[path = "support/installing.rs"]
mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use script_machine::{Initrd, run};
use support::disk_image;

/// In the order of their dependencies, each preceded by its own.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "dm-mod",
    "dm-crypt",
    "raid1",
    "bcache",
    "algif_skcipher",
    "loop",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "efivarfs",
];

/// First MiB and length in MiB of the target's old partitions; the image covers none of them.
const OLD: [(usize, usize); 4] = [(16, 16), (32, 32), (64, 48), (112, 96)];

fn initrd(folder: &Path) -> Initrd {
    let initrd = Initrd::new(
        folder,
        MODULES,
        &["mdadm", "lvm", "cryptsetup", "make-bcache"],
    );
    fs::create_dir_all(initrd.root().join("etc/lvm")).unwrap();
    let settings = "activation { udev_sync = 0 udev_rules = 0 verify_udev_operations = 1 }\n\
                    devices { obtain_device_list_from_udev = 0 external_device_info_source = \"none\" }\n\
                    backup { backup = 0 archive = 0 }\n";
    initrd.file("etc/lvm/lvm.conf", settings.as_bytes());
    initrd.file("image.raw", &disk_image::gpt(8));
    esp_image(&initrd.root().join("loader.raw"), true);
    esp_image(&initrd.root().join("bare.raw"), false);
    initrd
}

/// An image whose only partition is an ESP, with the loader that firmware looks for or without.
fn esp_image(path: &Path, loader: bool) {
    File::create(path).unwrap().set_len(12 << 20).unwrap();
    let name = path.to_str().unwrap();
    run("sgdisk", &["--new=1:1M:+8M", "--typecode=1:ef00", name]);
    let esp = path.with_extension("esp");
    File::create(&esp).unwrap().set_len(8 << 20).unwrap();
    let esp = esp.to_str().unwrap();
    run("mkfs.vfat", &[esp]);
    run("mmd", &["-i", esp, "::/efi", "::/efi/boot"]);
    if loader {
        run(
            "mcopy",
            &["-i", esp, "/etc/hostname", "::/efi/boot/bootx64.efi"],
        );
    }
    let mut bytes = fs::read(path).unwrap();
    bytes[1 << 20..9 << 20].copy_from_slice(&fs::read(esp).unwrap());
    fs::write(path, bytes).unwrap();
    fs::remove_file(esp).unwrap();
}

fn disk(folder: &Path, name: &str, mib: usize, partitions: &[(usize, usize)]) -> PathBuf {
    let path = folder.join(name);
    File::create(&path)
        .unwrap()
        .set_len((mib as u64) << 20)
        .unwrap();
    for (i, (start, length)) in partitions.iter().enumerate() {
        let place = format!("{}:{}M:{}M", i + 1, start, start + length - 1);
        run("sgdisk", &["--new", &place, path.to_str().unwrap()]);
    }
    path
}

const SCRIPT: &str = r#"
for n in 1 2 3 4 5 6 7 8 9 10; do test -b /dev/vdb2 && break; sleep 1; done

echo "a key" >/key
try mdadm --create /dev/md0 --run --assume-clean --homehost=any --level=1 --raid-devices=2 /dev/vda2 /dev/vdb1
echo "kept on the array" | dd of=/dev/md0 bs=4096 conv=sync 2>/dev/null
try cryptsetup -q luksFormat --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --cipher aes-cbc-plain64 --key-size 128 /dev/vda3 /key
try cryptsetup open --key-file /key /dev/vda3 secret
try lvm vgcreate vg0 /dev/mapper/secret
try lvm lvcreate -y -an -n root -L 8M vg0
try lvm lvcreate -y -an -n swap -L 8M vg0
try lvm vgchange -ay vg0
try lvm vgcreate other /dev/vdb2
try lvm lvcreate -y -Wn -Zn -n keep -L 8M other
echo "kept in the volume" | dd of=/dev/mapper/other-keep bs=4096 conv=sync 2>/dev/null
try make-bcache --bucket 64k -B /dev/vda1 -C /dev/vda4
for part in vda1 vda4; do echo /dev/$part >/sys/fs/bcache/register; done
for n in 1 2 3 4 5 6 7 8 9 10; do test -b /dev/bcache0 && test -e /sys/block/vda/vda4/holders/bcache0 && break; sleep 1; done
sync

install() {
    echo "install $*:"
    /ironroot install --insecure --disk serial=target --image "$@" 2>&1
    echo "exit $?"
}
echo "== disks"
/ironroot disks
echo "== without permission"
install /image.raw
echo "== with swap"
try busybox mkswap /dev/mapper/vg0-swap
try busybox swapon /dev/mapper/vg0-swap
install /image.raw --overwrite Always
busybox swapoff /dev/mapper/vg0-swap
echo "== held open"
sleep 1000 </dev/mapper/vg0-root &
install /image.raw --overwrite Always
echo "still there: $(ls /sys/block | tr '\n' ' ')"
kill $!
echo "== with permission"
install /image.raw --overwrite Always
echo "== afterwards"
echo "blocks: $(ls /sys/block | tr '\n' ' ')"
echo "sets: $(ls /sys/fs/bcache | tr '\n' ' ')"
echo "partitions: $(ls -d /sys/block/vda/vda* | tr '\n' ' ')"
echo "volume: $(head -c 18 /dev/mapper/other-keep)"
mdadm --assemble --run /dev/md1 /dev/vdb1 2>&1
echo "array: $(head -c 17 /dev/md1)"
# A firmware whose memory is full.
mount -t tmpfs -o nr_inodes=4 firmware /sys/firmware
mkdir -p /sys/firmware/efi/efivars
echo -n 1234 >/sys/firmware/efi/efivars/BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c
echo "== a loader and no room"
install /loader.raw --overwrite Always
echo "== no loader and no room"
install /bare.raw --overwrite Always
"#;

#[test]
fn what_nobody_uses_is_taken_down_and_the_other_disk_keeps_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let target = disk(folder.path(), "target.raw", 224, &OLD);
    let other = disk(folder.path(), "other.raw", 96, &[(4, 32), (40, 32)]);
    let console = initrd(folder.path()).boot(
        SCRIPT,
        &[
            format!("--disk={},bus=virtio,serial=target", target.display()),
            format!("--disk={},bus=virtio,serial=other", other.display()),
        ],
    );
    let part = |name: &str| -> &str {
        let (_, rest) = console
            .split_once(&format!("== {name}\n"))
            .unwrap_or_else(|| panic!("no part {name}: {console}"));
        rest.split_once("\n== ").map_or(rest, |(part, _)| part)
    };
    let tree = [
        "bcache device bcache0",
        "md array md0",
        "encrypted volume secret",
        "  LVM volume vg0-root",
        "  LVM volume vg0-swap",
    ];
    let has = |name: &str, wanted: &[&str]| {
        for text in wanted {
            assert!(
                part(name).contains(text),
                "{name}: {text:?}\n{}",
                part(name)
            );
        }
    };
    has("disks", &tree);
    has("disks", &["serial=target", "LVM volume other-keep"]);
    has("without permission", &tree);
    has(
        "without permission",
        &["exit 13", "set `overwrite` to Always"],
    );
    has("with swap", &["exit 13", "active swap", "unmount"]);
    has(
        "held open",
        &[
            "exit 13",
            "somebody uses it",
            "LVM volume vg0-root",
            "nothing was written",
        ],
    );
    // Nothing has gone by then.
    has("held open", &["bcache0", "dm-0", "dm-1", "dm-2", "md0"]);
    has(
        "with permission",
        &["exit 0", "md0 (md0) stands on vdb too", "installed:"],
    );
    assert!(!part("with permission").contains("other-keep"), "{console}");

    let end = part("afterwards");
    let line = |name: &str| {
        end.lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
            .unwrap_or_else(|| panic!("{name}: {console}"))
    };
    assert!(!line("blocks").contains("bcache") && !line("blocks").contains("md0"));
    assert_eq!(
        line("blocks").matches("dm-").count(),
        1,
        "the other disk's volume: {console}"
    );
    assert!(!line("sets").contains('-'), "{console}");
    assert_eq!(line("volume"), "kept in the volume");
    assert_eq!(line("array"), "kept on the array");

    // A boot entry that cannot be made undoes nothing; the warning says whether one is needed.
    let found = "the disk has \\EFI\\BOOT\\BOOTX64.EFI, which firmware finds by itself";
    has(
        "a loader and no room",
        &["exit 0", "warning: ", "No space left", found],
    );
    has(
        "no loader and no room",
        &["exit 0", "No space left", "the disk has no \\EFI\\BOOT"],
    );

    let path = target.to_str().unwrap();
    let text = run("blkid", &["--probe", "--output", "export", path]);
    assert!(
        text.contains("PTTYPE=gpt") && !text.contains("\nTYPE="),
        "{text}"
    );
    let text = run(
        "wipefs",
        &["--no-act", "--noheadings", "--output", "TYPE", path],
    );
    let mut types: Vec<&str> = text.split_whitespace().collect();
    types.dedup();
    assert_eq!(types, ["gpt", "PMBR"]);
    for (start, length) in OLD {
        let bytes = fs::read(&target).unwrap();
        let old = folder.path().join("old");
        fs::write(&old, &bytes[start << 20..(start + length) << 20]).unwrap();
        assert_eq!(
            run("wipefs", &["--no-act", old.to_str().unwrap()]),
            "",
            "{start}"
        );
    }
}

const FIRMWARE: &str = r#"
VARS=/sys/firmware/efi/efivars
GLOBAL=8be4df61-93ca-11d2-aa0d-00e098032b8c
mount -t efivarfs efivarfs $VARS
for name in Boot0A01 Boot0A02 Boot0A03 BootOrder; do
    cat /variables/$name >$VARS/$name-$GLOBAL
done
echo "== on a running Linux"
/ironroot install --config /none.json 2>&1
echo "noted: $(ls $VARS | grep Ironroot)"
for round in first second third fourth fifth; do
    echo "== $round"
    /ironroot initrd --config /none.json 2>&1
    echo "exit $?"
    echo "next: $(busybox od -An -tx1 $VARS/BootNext-$GLOBAL)"
    echo "noted: $(ls $VARS | grep Ironroot)"
done
"#;

#[test]
fn policy_none_tells_real_firmware_to_boot_the_disk_and_not_for_ever() {
    use ironroot::host::load_option::{EspLocation, encode};
    let folder = tempfile::tempdir().unwrap();
    let variables = folder.path().join("initrd/variables");
    fs::create_dir_all(&variables).unwrap();
    let variable = |name: &str, value: &[u8]| {
        fs::write(variables.join(name), [&[7, 0, 0, 0], value].concat()).unwrap();
    };
    // The network's entry goes first: a network interface by its MAC address.
    let mut network = vec![1, 0, 0, 0, 41, 0, b'N', 0, 0, 0, 3, 11, 37, 0];
    network.extend([0; 33]);
    network.extend([0x7f, 0xff, 4, 0]);
    variable("Boot0A01", &network);
    for (name, description) in [("Boot0A02", "debian"), ("Boot0A03", "another")] {
        let esp = EspLocation {
            partition_number: 1,
            start_lba: 2048,
            size_lba: 4096,
            partuuid: "00000000-0000-0000-0000-0000000000aa".to_owned(),
        };
        let option = encode(&esp, description, "\\EFI\\BOOT\\BOOTX64.EFI").unwrap();
        variable(name, &option);
    }
    variable("BootOrder", &[1, 0x0a, 2, 0x0a, 3, 0x0a]);
    let config =
        r#"{ "apiVersion": "ironroot.dev/v1alpha1", "kind": "BootConfig", "bootPolicy": "None" }"#;
    fs::write(folder.path().join("initrd/none.json"), config).unwrap();
    let vars = folder.path().join("vars.fd");
    let more = [
        "--firmware=uefi".to_owned(),
        format!("--vars={}", vars.display()),
    ];
    let console = initrd(folder.path()).boot(FIRMWARE, &more);
    let round = |name: &str| {
        let (_, rest) = console.split_once(&format!("== {name}\n")).unwrap();
        rest.split_once("\n== ").map_or(rest, |(part, _)| part)
    };
    let text = round("on a running Linux");
    assert!(
        text.contains("park") && text.ends_with("noted: "),
        "{console}"
    );
    for name in ["first", "second", "third", "fifth"] {
        let text = round(name);
        for wanted in [
            "Boot0A02 \"debian\" next, once",
            "exit 0",
            // Attributes, then the number.
            "next:  07 00 00 00 02 0a",
            "noted: IronrootDiskTried-fb29877e-e25b-4497-8ab6-85504c45f96a",
        ] {
            assert!(text.contains(wanted), "{name}: {wanted:?}\n{console}");
        }
    }
    let text = round("fourth");
    assert!(
        text.contains("park") && text.contains("exit 0"),
        "{console}"
    );
    assert!(text.ends_with("noted: "), "{console}");
}
