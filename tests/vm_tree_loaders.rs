//! What a tree's boot loader starts, on UEFI firmware: its own GRUB, which reads a root on xfs, and a unified kernel
//! image with the words of an addon. The trees are small: their initrd says what it was started with. Needs root.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/installing.rs"]
mod support;

#[path = "support/script_machine.rs"]
mod script_machine;

#[path = "support/small_system.rs"]
mod small_system;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use script_machine::{Initrd, part, run};
use serde_json::{Value, json};
use support::disk_image::sha256;
use support::loop_device::{LoopDevice, tool};
use support::program::Config;

const SAYS: &str = r#"
echo "== cmdline"
cat /proc/cmdline
echo "== root"
try mount -o ro -t KIND /dev/nvme0n1p2 /tmp
cat /tmp/etc/fstab
echo "== end"
"#;

fn lab(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/lab")
        .join(name)
}

fn bash(script: &str, at: &Path) {
    let out = Command::new("bash")
        .args(["-euc", script])
        .current_dir(at)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{script}: {text}");
}

struct Case {
    folder: tempfile::TempDir,
    disk: LoopDevice,
}

impl Case {
    /// A tree with the lab's kernel, and an initrd that tells its words and what is in the root.
    fn new(kind: &str, modules: &[&str]) -> Case {
        Case::with_root_on("nvme0n1p2", kind, modules)
    }

    fn with_root_on(partition: &str, kind: &str, modules: &[&str]) -> Case {
        let case = Case {
            folder: tempfile::tempdir().unwrap(),
            disk: LoopDevice::sparse(1024, &[]),
        };
        let initrd = Initrd::new(case.path(), modules, &[]);
        fs::remove_file(initrd.root().join("ironroot")).unwrap();
        let archive = initrd.archive(&SAYS.replace("KIND", kind).replace("nvme0n1p2", partition));
        for name in ["etc", "boot", "usr/bin", "usr/lib"] {
            fs::create_dir_all(case.path().join("tree").join(name)).unwrap();
        }
        let boot = case.path().join("tree/boot");
        fs::copy(lab("kernel/vmlinuz"), boot.join("vmlinuz-6.1.0")).unwrap();
        fs::copy(archive, boot.join("initrd.img-6.1.0")).unwrap();
        case
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn config(&self, bootloader: &str) -> Config {
        bash("tar -C tree --numeric-owner -cf image .", self.path());
        let image = self.path().join("image");
        let bytes = fs::read(&image).unwrap();
        Config::new(image.to_str().unwrap(), &sha256(&bytes), &self.disk)
            .with("/image/kind", json!("Tree"))
            .with("/disk/bootloader", json!(bootloader))
    }

    /// Installs as on a machine that UEFI firmware started, whatever started this one.
    fn install(config: &Config) -> String {
        let script = "mount -t tmpfs efi /sys/firmware && mkdir /sys/firmware/efi && exec \"$@\"";
        let out = Command::new("unshare")
            .args([
                "-m",
                "sh",
                "-c",
                script,
                "sh",
                env!("CARGO_BIN_EXE_ironroot"),
            ])
            .args(["install", "--config"])
            .arg(config.file())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{text}");
        text
    }

    /// PARTUUID of the root.
    fn root(&self) -> String {
        let said = tool("sgdisk", &["-v", self.disk.arg()]);
        assert!(said.contains("No problems found"), "{said}");
        let text = tool("sfdisk", &["--json", self.disk.arg()]);
        let table: Value = serde_json::from_str(&text).unwrap();
        let uuid = &table["partitiontable"]["partitions"][1]["uuid"];
        uuid.as_str().unwrap().to_lowercase()
    }

    /// What the console says when firmware without any entry starts the disk.
    fn boot(&self) -> String {
        self.boot_by("uefi")
    }

    fn boot_by(&self, firmware: &str) -> String {
        let log = self.path().join("console.log");
        let disk = self.disk.backing().display();
        let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu/run"))
            .arg(format!("--firmware={firmware}"))
            .args(["--boot=disk", "--net=none", "--memory=512"])
            .arg(format!("--disk={disk},bus=nvme,serial=x"))
            .arg(format!("--serial-log={}", log.display()))
            .args(["--timeout=120", "--quiet", "--no-reboot"])
            .args(["--fail-on=Kernel panic|STUCK", "--until=THE END"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let console = String::from_utf8_lossy(&fs::read(&log).unwrap()).replace('\r', "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{console}");
        console
    }
}

#[test]
fn grub_for_uefi_starts_a_tree_on_xfs() {
    let case = Case::new("xfs", &["xfs"]);
    bash(
        r#"mkdir -p usr/lib/grub && cp -a /usr/lib/grub/x86_64-efi usr/lib/grub/
        cp -L "$(command -v grub-mkimage)" usr/bin/grub-mkimage
        ldd usr/bin/grub-mkimage | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" ".$lib"; done"#,
        &case.path().join("tree"),
    );
    let config = case
        .config("Grub")
        .with(
            "/disk/kernelArguments",
            json!({ "append": ["console=ttyS0", "quiet", "two=words"] }),
        )
        .with(
            "/disk/partitions",
            json!([{ "label": "root", "size": "Rest", "filesystem": "xfs" }]),
        );
    let said = Case::install(&config);
    assert!(said.contains("boots by GRUB for x86_64-efi"), "{said}");
    let console = case.boot();
    let words = part(&console, "cmdline");
    let root = case.root();
    assert!(words.contains(&format!("root=PARTUUID={root} ")), "{words}");
    assert!(words.contains("two=words ironroot.skip"), "{words}");
    let fstab = part(&console, "root");
    assert!(
        fstab.contains(&format!("PARTUUID={root} / xfs ")),
        "{fstab}"
    );
}

#[test]
fn matrix_grub_for_bios_starts_a_tree_from_an_mbr() {
    let case = Case::with_root_on("nvme0n1p1", "ext4", &[]);
    bash(
        r#"mkdir -p usr/lib/grub && cp -a /usr/lib/grub/i386-pc usr/lib/grub/
        cp -L "$(command -v grub-mkimage)" usr/bin/grub-mkimage
        ldd usr/bin/grub-mkimage | grep -o '/[^ ]*' | while read -r lib; do install -D "$lib" ".$lib"; done"#,
        &case.path().join("tree"),
    );
    let words = json!({ "append": ["console=ttyS0", "quiet", "two=words"] });
    let config = case
        .config("Grub")
        .with("/disk/table", json!("mbr"))
        .with("/disk/kernelArguments", words);
    // This machine boots by BIOS, or by nothing.
    config.install(&[]).succeeded();
    let console = case.boot_by("bios");
    let words = part(&console, "cmdline");
    let signature = tool("sfdisk", &["--disk-id", case.disk.arg()]);
    let root = format!("PARTUUID={}-01", signature.trim().trim_start_matches("0x"));
    assert!(words.contains(&format!("root={root} ")), "{words}");
    assert!(words.contains("two=words ironroot.skip"), "{words}");
    let fstab = part(&console, "root");
    assert!(fstab.contains(&format!("{root} / ext4 ")), "{fstab}");
}

// Of the images that CI makes none has a systemd-stub that reads addons.
#[test]
fn matrix_a_unified_kernel_image_gets_the_words_of_an_addon() {
    let case = Case::new("ext4", &[]);
    let tree = case.path().join("tree");
    fs::create_dir_all(tree.join("boot/efi/EFI/Linux")).unwrap();
    // systemd-stub 257, out of an image that has one.
    let stub = case.path().join("stub.efi");
    let gone = [".linux", ".initrd", ".cmdline", ".osrel"].map(|s| format!("--remove-section={s}"));
    let image = lab("image-trixie/uki.efi");
    let names = [image.to_str().unwrap(), stub.to_str().unwrap()];
    let args: Vec<&str> = gone.iter().map(String::as_str).chain(names).collect();
    run("objcopy", &args);
    bash(
        &format!(
            "die() {{ echo \"$*\" >&2; exit 1; }}; . {}/scripts/lib/disk-image.sh
            UKI_STUB=../stub.efi make_uki boot/efi/EFI/Linux/small.efi boot/vmlinuz-6.1.0 boot/initrd.img-6.1.0 'console=ttyS0 quiet own=word'
            rm boot/vmlinuz-* boot/initrd*",
            env!("CARGO_MANIFEST_DIR")
        ),
        &tree,
    );
    let config = case
        .config("Uki")
        .with("/disk/kernelArguments", json!({ "append": ["two=words"] }));
    let said = Case::install(&config);
    assert!(
        said.contains("with two=words ironroot.skip in an addon"),
        "{said}"
    );
    let console = case.boot();
    let words = part(&console, "cmdline").trim().to_owned();
    assert_eq!(
        words,
        "console=ttyS0 quiet own=word two=words ironroot.skip"
    );
}
