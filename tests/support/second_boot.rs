//! A disk that an installation is on already, and a UEFI machine that has it: each start of the machine is a network
//! boot, since its firmware is given kernel and initrd and asks nobody else. What the firmware remembers stays.
#![allow(
    dead_code, // each test program uses a part
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::machine::{Boot, initramfs, lab, project};
use super::script_machine::{self, Initrd};

/// The EFI system partition of the small system begins there.
const ESP_AT: &str = "2M";

/// What it says when it runs, started by its own words.
pub const BOOTED: &str = "--until=IRONROOT-TINY-BOOTED root=.* firmware=uefi payload=ok";

/// A machine.
pub struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// With the small system on its disk.
    pub fn installed() -> Machine {
        let machine = Machine {
            folder: tempfile::tempdir().unwrap(),
        };
        script_machine::blank(machine.folder.path(), "disk.raw", 256);
        let config = machine.file("config.json");
        let mut wanted = config_of("Reboot");
        wanted["image"]["url"] = lab("tiny.raw").to_str().unwrap().into();
        wanted["disk"]["select"] = serde_json::json!({ "path": machine.disk() });
        fs::write(&config, wanted.to_string()).unwrap();
        let program = env!("CARGO_BIN_EXE_ironroot");
        let config = config.to_str().unwrap();
        script_machine::run(program, &["install", "--allow-file", "--config", config]);
        machine
    }

    pub fn disk(&self) -> PathBuf {
        self.file("disk.raw")
    }

    /// What is on its disk.
    pub fn hash(&self) -> String {
        script_machine::run("sha256sum", &[self.disk().to_str().unwrap()])
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Seconds at which the markers of the last start came, in the order in which they were given.
    pub fn times(&self) -> Vec<f64> {
        let text = fs::read_to_string(self.file("times")).unwrap();
        let second = |line: &str| line.split('\t').next().unwrap().parse().unwrap();
        text.lines().map(second).collect()
    }

    /// The same machine again: its disk and what its firmware remembers.
    pub fn copy(&self) -> Machine {
        let machine = Machine {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["disk.raw", "vars.fd"] {
            let from = self.file(name);
            if from.exists() {
                let (from, to) = (from.to_str().unwrap(), machine.file(name));
                script_machine::run("cp", &["--sparse=always", from, to.to_str().unwrap()]);
            }
        }
        machine
    }

    /// A network boot under a config that ends with `then`, with more words on the kernel's command line.
    pub fn start(&self, then: &str, words: &str, markers: &[&str]) -> Boot {
        let config = config_of(then).to_string();
        let words = format!(
            "console=ttyS0 quiet panic=10 ip=off {words} ironroot.config=data:,{}",
            config.replace('"', "%22")
        );
        let mut command = Command::new(project().join("qemu/run"));
        command
            .arg("--kernel")
            .arg(lab("kernel/vmlinuz"))
            .arg("--initrd")
            .arg(initramfs())
            .arg(format!("--append={words}"))
            .args(self.options())
            .arg(format!("--serial-log={}", self.file("log").display()))
            .arg(format!("--times={}", self.file("times").display()))
            .args(["--memory=768", "--timeout=200", "--quiet", "--no-reboot"])
            .arg("--fail-on=Kernel panic")
            .args(markers);
        Boot::of(command, &self.file("log"))
    }

    fn options(&self) -> [String; 4] {
        [
            "--firmware=uefi".to_owned(),
            "--net=none".to_owned(),
            format!("--vars={}", self.file("vars.fd").display()),
            format!(
                "--disk={},bus=scsi,serial=direct-disk",
                self.disk().display()
            ),
        ]
    }

    /// Runs `script` on the machine, with the firmware's variables at /efi; what its console said.
    pub fn script(&self, script: &str) -> String {
        let folder = tempfile::tempdir_in(self.folder.path()).unwrap();
        let initrd = Initrd::new(
            folder.path(),
            &["efivarfs", "virtio_pci", "virtio_scsi", "sd_mod"],
            &["chattr"],
        );
        let mount = "mkdir -p /efi\ntry mount -t efivarfs efivarfs /efi\n";
        initrd.boot(&format!("{mount}{script}"), &self.options())
    }

    /// Replaces a file of the EFI system partition.
    pub fn put(&self, name: &str, content: &[u8]) {
        let from = self.file("content");
        fs::write(&from, content).unwrap();
        let place = self.esp();
        for folder in [
            "/EFI/Linux",
            "/loader",
            "/loader/addons",
            "/loader/credentials",
            "/loader/entries",
            "/grub",
        ] {
            let _ = Command::new("mmd")
                .args(["-D", "s", "-i", &place, &format!("::{folder}")])
                .output();
        }
        script_machine::run(
            "mcopy",
            &[
                "-o",
                "-i",
                &place,
                from.to_str().unwrap(),
                &format!("::{name}"),
            ],
        );
    }

    /// A file of the EFI system partition.
    pub fn get(&self, name: &str) -> Vec<u8> {
        let to = self.file("content");
        script_machine::run(
            "mcopy",
            &[
                "-n",
                "-o",
                "-i",
                &self.esp(),
                &format!("::{name}"),
                to.to_str().unwrap(),
            ],
        );
        fs::read(to).unwrap()
    }

    fn esp(&self) -> String {
        format!("{}@@{ESP_AT}", self.disk().display())
    }
}

fn config_of(then: &str) -> serde_json::Value {
    let sums = fs::read_to_string(Path::new(&lab("tiny.raw.sha256"))).unwrap();
    let digest = sums.split_whitespace().next().unwrap();
    serde_json::json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": { "url": "/tiny.raw", "digest": format!("sha256:{digest}") },
        "disk": { "select": { "serial": "direct-disk" } },
        "then": then,
    })
}
