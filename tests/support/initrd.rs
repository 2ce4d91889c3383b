//! Machines that boot the initrds of `scripts/images/initrds`, and what a Debian that they started says of itself.
#![allow(dead_code)] // each test program uses a part

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::machine::{Boot, Scenario, lab};

pub const CONFIG: &str = "ironroot.config=http://boot.lab.example:8080/config.json";

/// What dracut does after a failure, where nobody is there to use a shell.
pub const EMERGENCY: &str = "rd.shell=0 rd.emergency=poweroff";

/// Comes once in a boot, from the system that was started.
pub const REACHED: &str = "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=";

/// What has to stay in the config. The lab's Debian looks for how it begins, `lab-secret`.
pub const SECRET: &str = "lab-secret-of-the-config";

/// An initrd in target/lab/initrd and how its PID 1 has ironroot at work and acts after a failure; the first
/// part of the name is its suite.
#[derive(Clone, Copy)]
pub struct Initrd(pub &'static str);

impl Initrd {
    /// Every one of them.
    pub const ALL: [Initrd; 12] = [
        Initrd("bookworm-networkd"),
        Initrd("bookworm-network-manager"),
        Initrd("bookworm-network-legacy"),
        Initrd("bookworm-no-systemd"),
        Initrd("bookworm-tools"),
        Initrd("trixie-networkd"),
        Initrd("trixie-tools"),
        Initrd("forky-networkd"),
        Initrd("forky-tools"),
        Initrd("noble-networkd"),
        Initrd("noble-tools"),
        Initrd("resolute-networkd"),
    ];

    pub fn is_of_initramfs_tools(self) -> bool {
        self.0.ends_with("-tools")
    }

    pub fn has_systemd(self) -> bool {
        !self.is_of_initramfs_tools() && !self.0.ends_with("no-systemd")
    }

    /// What it needs on the kernel command line.
    pub fn words(self) -> &'static str {
        if self.is_of_initramfs_tools() {
            "boot=ironroot panic=10"
        } else {
            EMERGENCY
        }
    }

    /// The lines that end a boot after a failure of ironroot, in no order.
    pub fn emergency(self) -> [&'static str; 2] {
        match (self.is_of_initramfs_tools(), self.has_systemd()) {
            (true, _) => [
                "--until=ironroot failed; its reason is above",
                "--until=Rebooting automatically",
            ],
            (_, true) => ["--until=Failed.*to start.*ironroot", "--until=Power down"],
            _ => [
                "--until=ironroot failed; its reason is above",
                "--until=Power down",
            ],
        }
    }

    pub fn file(self) -> PathBuf {
        lab(&format!("initrd/{}.img", self.0))
    }

    /// A copy with further files, in `folder`: the kernel unpacks one archive after the other.
    pub fn with_files(self, folder: &Path, files: &[(&str, &str)]) -> PathBuf {
        let tree = folder.join("tree");
        for (name, content) in files {
            let file = tree.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, content).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&file, mode).unwrap();
        }
        let all = folder.join("initrd.img");
        let script = r#"cp "$1" "$2"; truncate -s %4 "$2"; cd "$3"
            # /lib is a link there, which a directory would replace.
            if [ -d lib ]; then mkdir usr; mv lib usr/lib; fi
            find . -mindepth 1 | cpio -o -H newc --quiet -R 0:0 >>"$2""#;
        let out = std::process::Command::new("sh")
            .args(["-euc", script, "sh"])
            .args([&self.file(), &all, &tree])
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        all
    }

    /// Boots it in a machine of `scenario`, with the disk as it is.
    pub fn boot(self, scenario: &Scenario, words: &str, more: &[&str]) -> Boot {
        self.boot_with(scenario, &self.file(), words, more)
    }

    /// The same from another file.
    pub fn boot_with(self, scenario: &Scenario, initrd: &Path, words: &str, more: &[&str]) -> Boot {
        let suite = self.0.split('-').next().unwrap();
        let own = if words.contains("rd.emergency=") {
            ""
        } else {
            self.words()
        };
        let line = format!(
            "console=ttyS0 quiet panic=10 systemd.show_status=1 demo.poweroff demo.thorough {own} {words}"
        );
        let kernel = lab(&format!("initrd/{suite}.vmlinuz"));
        let mut options = vec![
            "--kernel",
            kernel.to_str().unwrap(),
            "--initrd",
            initrd.to_str().unwrap(),
            "--append",
            &line,
            "--wait-end",
            // Below that of .config/nextest.toml; four times what it takes on a machine with nothing else to do.
            "--timeout=600",
        ];
        options.extend(more);
        scenario.boot(true, &options)
    }

    /// Debian runs from memory and finds itself as it should; its console.
    #[track_caller]
    pub fn runs(self, scenario: &Scenario, words: &str) -> String {
        self.runs_from(&self.file(), scenario, words)
    }

    /// The same from another file.
    #[track_caller]
    pub fn runs_from(self, file: &Path, scenario: &Scenario, words: &str) -> String {
        let console = self.boot_with(scenario, file, words, &[REACHED]).good();
        assert!(console.contains("failed=[]"), "{console}");
        let is = |key: &str, value: &str| assert_eq!(fact(&console, key), value, "{console}");
        // Neither nosuid nor nodev.
        is("root", "755 0 0 rw,relatime overlay");
        is("method", "overlay");
        // As the initrd's own PID 1 mounts it for every system, with nothing on it.
        let run = fact(&console, "run");
        assert!(run.starts_with("755 rw,nosuid,nodev"), "{run}");
        assert!(run.ends_with(" tmpfs"), "{run}");
        assert_eq!(run.contains("noexec"), !self.has_systemd(), "{run}");
        is("runs", "1 /");
        // PID 1 has made SIGPIPE its own business; what it starts begins without anything blocked or ignored.
        is("signals", "SigIgn: 0000000000001000");
        is("own signals", "0000000000000000 0000000000000000");
        is("programs", "0");
        is("strays", "[]");
        is("descriptors", "[]");
        is("secrets", "[]");
        // networkd of the new root does not do what the initrd's was told.
        is("networks", "[]");
        console
    }
}

/// The value of a fact that the lab's Debian told.
#[track_caller]
pub fn fact<'a>(console: &'a str, key: &str) -> &'a str {
    let found = console.lines().find_map(|line| {
        line.split_once("IRONROOT-FACT ")?
            .1
            .strip_prefix(key)?
            .strip_prefix(' ')
    });
    found
        .unwrap_or_else(|| panic!("no {key} in: {console}"))
        .trim()
}

/// A machine whose disk of 64 MiB has something on it.
pub fn scenario(work: &'static str) -> Scenario {
    let scenario = Scenario::new("memory-initrd", &["--work", work]);
    let _ = std::fs::remove_dir_all(scenario.file(""));
    std::fs::create_dir_all(scenario.file("www")).unwrap();
    std::fs::write(scenario.file("disk.raw"), content()).unwrap();
    scenario
}

/// The same with a disk of `size` bytes that has nothing on it.
pub fn scenario_with_blank_disk(work: &'static str, size: u64) -> Scenario {
    let scenario = scenario(work);
    let disk = std::fs::File::create(scenario.file("disk.raw")).unwrap();
    disk.set_len(size).unwrap();
    scenario
}

fn content() -> Vec<u8> {
    b"something that somebody needs.. ".repeat(2 << 20)
}

#[track_caller]
pub fn disk_is_untouched(scenario: &Scenario) {
    let disk = std::fs::read(scenario.file("disk.raw")).unwrap();
    assert!(disk == content(), "the disk was written to");
}

/// The digest of an artifact, as a boot config has it.
pub fn digest(artifact: &str) -> String {
    let sum = std::fs::read_to_string(lab(&format!("{artifact}.sha256"))).unwrap();
    format!("sha256:{}", sum.split_whitespace().next().unwrap())
}

/// A session of the lab's Debian, with secrets that belong to the download and the report.
pub fn config() -> Value {
    let secret = json!({ "x-lab": SECRET });
    json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": {
            "url": format!("http://boot.lab.example:8080/debian.squashfs?signature={SECRET}"),
            "digest": digest("debian.squashfs"),
            "headers": secret,
        },
        "memory": {},
        "report": { "url": "http://boot.lab.example:8080/report", "headers": secret },
    })
}

/// Serves `config` in `scenario`; gives the word that asks for it.
pub fn served(scenario: &Scenario, config: &Value) -> String {
    std::fs::write(scenario.file("www/own.json"), config.to_string()).unwrap();
    CONFIG.replace("config.json", "own.json")
}
