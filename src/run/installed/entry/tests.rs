//! What is started of a disk, whose file systems are directories here.

use std::io::Read as _;

use super::*;
use crate::image::boot::addon;
use crate::image::boot::uki::tests::pe;

const STUB: &[u8] = b"#### LoaderInfo: systemd-stub 257.9 ####\0";
const OLD_STUB: &[u8] = b"#### LoaderInfo: systemd-stub 252.39 ####\0";
const SYSTEMD_BOOT: &[u8] = b"#### LoaderInfo: systemd-boot 257.9 ####\0";

/// A disk of several file systems.
struct Files {
    directories: Vec<tempfile::TempDir>,
    root_by_type: RootByType,
    subvolumes: Vec<(PathBuf, PathBuf)>,
}

impl Files {
    fn new(count: usize) -> Files {
        Files {
            directories: (0..count).map(|_| tempfile::tempdir().unwrap()).collect(),
            root_by_type: RootByType::None,
            subvolumes: Vec::new(),
        }
    }

    fn on(&self, number: usize, path: &str, content: impl AsRef<[u8]>) -> &Files {
        let path = self.directories[number].path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Files {
        self.on(0, path, content)
    }

    /// An entry whose kernel says its name.
    fn entry(&self, number: usize, name: &str, more: &str) -> &Files {
        let text = format!("linux /kernel\noptions root=x name={name}\n{more}\n");
        self.on(number, &format!("loader/entries/{name}"), text)
            .on(number, "kernel", "kernel")
    }

    fn choose(&self) -> Result<Bootable> {
        let roots: Vec<Root> = self
            .directories
            .iter()
            .map(|d| Root::open(d.path()).unwrap())
            .collect();
        choose(&Disk {
            roots: roots.iter().collect(),
            root_by_type: &self.root_by_type,
            arch: "x86_64",
            subvolumes: self.subvolumes.clone(),
        })
    }

    #[track_caller]
    fn words(&self) -> String {
        self.choose().unwrap().options
    }

    #[track_caller]
    fn refused(&self, why: &str) {
        let said = crate::error::chain(&self.choose().unwrap_err());
        assert!(said.contains(why), "{said}");
    }
}

/// A unified kernel image of systemd-stub 257.
fn image(words: &str, more: &[(&str, &[u8])]) -> Vec<u8> {
    image_by(STUB, words, more)
}

fn image_by(stub: &[u8], words: &str, more: &[(&str, &[u8])]) -> Vec<u8> {
    let mut parts: Vec<(&str, &[u8])> = vec![
        (".sdmagic", stub),
        (".linux", b"kernel"),
        (".initrd", b"initrd"),
        (".cmdline", words.as_bytes()),
    ];
    parts.extend(more);
    pe(&parts)
}

fn content(part: &mut Part) -> String {
    let mut text = String::new();
    part.reader().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn words_of_addons_follow_those_of_the_image_in_the_order_of_its_stub() {
    let files = Files::new(1);
    let own = |words| addon::addon(0x8664, words).unwrap();
    files
        .put(
            "EFI/Linux/os+2-1.efi",
            image("root=x own=1\0", &[(".uname", b"6.1")]),
        )
        .put("EFI/Linux/os.efi.extra.d/b.addon.efi", own("local=b"))
        .put("EFI/Linux/os.efi.extra.d/A.ADDON.EFI", own("local=a"))
        .put("loader/addons/z.addon.efi", own("all=z"))
        .put("loader/addons/y.addon.efi", own(" all=y\n"))
        // None of these counts.
        .put("loader/addons/readme.txt", "x")
        .put("loader/addons/broken.addon.efi", "x")
        .put("loader/addons/kernel.addon.efi", image("bad=1", &[]))
        .put(
            "loader/addons/for-another.addon.efi",
            pe(&[(".cmdline", b"bad=2"), (".uname", b"6.2")]),
        )
        .put("EFI/Linux/other.efi.extra.d/a.addon.efi", own("bad=3"))
        .put(
            "loader/addons/for-this.addon.efi",
            pe(&[(".cmdline", b"this=1"), (".uname", b"6.1\0")]),
        );
    assert_eq!(
        files.words(),
        "root=x own=1 this=1 all=y all=z local=a local=b"
    );
    // A stub that is too old, and one of others, reads none.
    for stub in [OLD_STUB, b"#### LoaderInfo: other 300 ####"] {
        files.put("EFI/Linux/os+2-1.efi", image_by(stub, "root=x old=1", &[]));
        assert_eq!(files.words(), "root=x old=1");
    }
}

#[test]
fn initrds_of_addons_come_where_the_stub_puts_them() {
    let files = Files::new(1);
    let own = |name: &str| {
        let (ucode, initrd) = (format!("ucode-{name}"), format!("initrd-{name}"));
        pe(&[(".ucode", ucode.as_bytes()), (".initrd", initrd.as_bytes())])
    };
    files
        .put("EFI/Linux/os.efi", image("root=x", &[(".ucode", b"ucode")]))
        .put("loader/addons/a.addon.efi", own("a"))
        .put("loader/addons/b.addon.efi", own("b"));
    let mut bootable = files.choose().unwrap();
    let parts: Vec<String> = bootable.initrds.iter_mut().map(content).collect();
    assert_eq!(
        parts,
        [
            "ucode-b", "ucode-a", "ucode", "initrd", "initrd-a", "initrd-b"
        ]
    );
    assert_eq!(content(&mut bootable.kernel), "kernel");
}

#[test]
fn what_only_the_stub_hands_over_keeps_an_image_from_being_started_here() {
    for path in [
        "EFI/Linux/os.efi.extra.d/x.cred",
        "EFI/Linux/os.efi.extra.d/x.sysext.raw",
        "loader/credentials/x.cred",
        "loader/extensions/X.RAW",
    ] {
        let files = Files::new(1);
        files
            .put("EFI/Linux/os.efi", image("root=x", &[]))
            .put("EFI/Linux/a-1.efi", image("root=x", &[]));
        files.put(path, "");
        let name = path.rsplit('/').next().unwrap();
        files.refused(name);
    }
}

#[test]
fn a_root_that_is_found_by_its_type_is_named_or_not_guessed() {
    let mut files = Files::new(1);
    files.put("EFI/Linux/os.efi", image("rw quiet", &[]));
    // No partition has the type: the firmware's start finds none either.
    assert_eq!(files.words(), "rw quiet");
    files.root_by_type = RootByType::One("x-y".to_owned());
    assert_eq!(files.words(), "rw quiet root=PARTUUID=x-y");
    files.put("EFI/Linux/os.efi", image("root=gpt-auto rw", &[]));
    assert_eq!(files.words(), "rw root=PARTUUID=x-y");
    files.put("EFI/Linux/os.efi", image("root=UUID=1", &[]));
    assert_eq!(files.words(), "root=UUID=1");
    files.root_by_type = RootByType::Unclear("partitions 2, 3".to_owned());
    assert_eq!(files.words(), "root=UUID=1");
    files.put("EFI/Linux/os.efi", image("quiet", &[]));
    files.refused(
        "names no root, and which one its initrd would find is not known here: partitions 2, 3",
    );
    // An addon may name it.
    files.put(
        "loader/addons/a.addon.efi",
        addon::addon(0x8664, "root=LABEL=x").unwrap(),
    );
    assert_eq!(files.words(), "quiet root=LABEL=x");

    // systemd-boot tells it as well, GRUB does not.
    let mut files = Files::new(1);
    files
        .put("loader/entries/a.conf", "linux /kernel\noptions quiet\n")
        .put("kernel", "");
    files.root_by_type = RootByType::One("x-y".to_owned());
    assert_eq!(files.words(), "quiet");
    files.put("EFI/BOOT/BOOTX64.EFI", pe(&[(".sdmagic", SYSTEMD_BOOT)]));
    assert_eq!(files.words(), "quiet root=PARTUUID=x-y");
}

#[test]
fn images_and_entries_of_both_partitions_are_one_menu() {
    let files = Files::new(3);
    let release = |version: &str| format!("ID=debian\nVERSION_ID={version}\n");
    files
        .on(1, "EFI/BOOT/bootx64.efi", "")
        .on(
            1,
            "EFI/Linux/os-2.efi",
            image("root=x name=os-2", &[(".osrel", release("2").as_bytes())]),
        )
        .entry(2, "b-3.conf", "sort-key debian\nversion 3")
        .entry(2, "c-9.conf", "")
        .entry(2, "d+0-3.conf", "sort-key aaa")
        .entry(2, "arm.conf", "sort-key aaa\narchitecture aa64");
    files.on(1, "EFI/BOOT/BOOTX64.EFI", pe(&[(".sdmagic", SYSTEMD_BOOT)]));
    assert_eq!(files.words(), "root=x name=b-3.conf");
    // The configuration is on the other partition.
    for (default, name) in [
        ("c-*", "c-9.conf"),
        ("OS-?.efi", "os-2"),
        ("os-*", "os-2"),
        ("d.conf", "d+0-3.conf"),
        ("none*", "b-3.conf"),
        ("@saved", "b-3.conf"),
    ] {
        files.on(
            1,
            "loader/loader.conf",
            format!("timeout 1\ndefault {default}\n"),
        );
        assert_eq!(files.words(), format!("root=x name={name}"), "{default}");
    }
    // An entry may name an image, with words of its own.
    files.on(
        1,
        "loader/entries/uki.conf",
        "uki /EFI/Linux/os-2.efi\noptions root=y other=words\n",
    );
    files.on(1, "loader/loader.conf", "default uki.conf\n");
    assert_eq!(files.words(), "root=y other=words");
}

#[test]
fn an_image_that_the_firmware_starts_itself_asks_no_configuration() {
    let files = Files::new(1);
    files
        .put(
            "boot/efi/EFI/BOOT/BOOTX64.EFI",
            image("root=x name=first", &[]),
        )
        .put(
            "boot/efi/EFI/Linux/os-9.efi",
            image("root=x name=os-9", &[]),
        )
        .put(
            "boot/efi/loader/entries/a.conf",
            "linux /k\noptions root=x\n",
        )
        .put("boot/efi/k", "");
    assert_eq!(files.words(), "root=x name=first");
    // Another machine's program is none of this one's.
    std::fs::rename(
        files.directories[0]
            .path()
            .join("boot/efi/EFI/BOOT/BOOTX64.EFI"),
        files.directories[0]
            .path()
            .join("boot/efi/EFI/BOOT/BOOTAA64.EFI"),
    )
    .unwrap();
    assert_eq!(files.words(), "root=x");
}

const GRUB: &str = "set default=\"${saved_entry}\"\nmenuentry 'A' {\n\tlinux /kernel root=x name=grub-a\n}\nsubmenu 'More' {\n\tmenuentry 'B' {\n\t\tlinux /kernel root=x name=grub-b\n\t}\n}\n";

#[test]
fn grub_has_entries_in_other_files_only_where_it_says_so() {
    let files = Files::new(1);
    files
        .put("grub2/grub.cfg", GRUB)
        .entry(0, "f-1.conf", "")
        .entry(0, "f-2.conf", "")
        // GRUB looks at names alone.
        .entry(0, "a-3.conf", "sort-key a\nversion 9");
    assert_eq!(files.words(), "root=x name=grub-a");
    files.put("grub2/grubenv", "saved_entry=1>0\n");
    assert_eq!(files.words(), "root=x name=grub-b");
    files.put(
        "grub2/grub.cfg",
        "set default=\"${saved_entry}\"\ninsmod blscfg\nblscfg\n",
    );
    for (saved, name) in [
        ("f-1", "f-1.conf"),
        ("f-2", "f-2.conf"),
        ("1", "f-1.conf"),
        ("2", "a-3.conf"),
        ("gone", "f-2.conf"),
    ] {
        files.put("grub2/grubenv", format!("saved_entry={saved}\n"));
        assert_eq!(files.words(), format!("root=x name={name}"), "{saved}");
    }
}

#[test]
fn the_nearest_file_system_has_the_kernel() {
    let files = Files::new(1);
    files
        .put("boot/kernel", "of /boot")
        .put("boot/efi/kernel", "of the ESP")
        .put(
            "boot/efi/loader/entries/a.conf",
            "linux kernel\noptions root=x\n",
        );
    let mut bootable = files.choose().unwrap();
    assert_eq!(content(&mut bootable.kernel), "of the ESP");
}

#[test]
fn grub_counts_paths_from_the_top_of_a_btrfs() {
    let mut files = Files::new(1);
    files
        .put(
            "boot/grub/grub.cfg",
            "menuentry 'A' {\n\tlinux /@/boot/vmlinuz-1 root=x\n\tinitrd /@/boot/initrd-1\n}\n",
        )
        .put("boot/vmlinuz-1", "kernel")
        .put("boot/initrd-1", "initrd");
    files.refused("vmlinuz-1");
    files.subvolumes = vec![(files.directories[0].path().to_owned(), "/@".into())];
    assert_eq!(files.words(), "root=x");
    // And a /boot of its own.
    files.put(
        "boot/grub/grub.cfg",
        "menuentry 'A' {\n\tlinux /@boot/vmlinuz-1 root=y\n}\n",
    );
    files.refused("vmlinuz-1");
    files
        .subvolumes
        .push((files.directories[0].path().join("boot"), "/@boot".into()));
    assert_eq!(files.words(), "root=y");
}

#[test]
fn a_disk_without_anything_says_what_was_looked_for() {
    Files::new(2).refused("no boot loader entry, grub.cfg, extlinux.conf or unified kernel image");
}
