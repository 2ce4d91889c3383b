//! Virtual machines, as `qemu/run` and `qemu/scenario` make them.
#![allow(dead_code)] // each test program uses a part

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// An artifact of `scripts/lab`.
pub fn lab(name: &str) -> PathBuf {
    let path = project().join("target/lab").join(name);
    assert!(
        path.exists(),
        "{} is missing: run scripts/lab first",
        path.display()
    );
    path
}

/// The initramfs; another one than the lab's where a developer says so.
pub fn initramfs() -> PathBuf {
    std::env::var_os("IRONROOT_INITRAMFS").map_or_else(|| lab("initramfs.cpio.zst"), PathBuf::from)
}

/// The initramfs with `config` behind it, as /config.json, where the kernel looks for another archive. Made in
/// `folder`.
pub fn with_config(folder: &Path, config: &serde_json::Value) -> PathBuf {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let to = folder.join("config.cpio");
    let script = r#"cp "$1" "$2" && truncate -s %4 "$2" && echo config.json | cpio -o -H newc --quiet -R 0:0 >>"$2""#;
    let out = Command::new("sh")
        .current_dir(folder)
        .args(["-ec", script, "sh"])
        .arg(initramfs())
        .arg(&to)
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    to
}

/// What a booted system said on its console: the line `IRONROOT-FACT KEY …`.
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

/// One start of a machine: what its console said and how the watcher ended.
pub struct Boot {
    pub output: Output,
    pub console: String,
}

impl Boot {
    pub fn of(mut command: Command, log: &Path) -> Boot {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let console = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
        Boot { output, console }
    }

    /// The console, if every marker came.
    #[track_caller]
    pub fn good(self) -> String {
        assert!(
            self.output.status.success(),
            "{}\n--- errors\n{}\n--- console\n{}",
            self.output.status,
            String::from_utf8_lossy(&self.output.stderr),
            self.console
        );
        self.console
    }
}

/// A folder of qemu/, played by qemu/scenario.
pub struct Scenario {
    name: &'static str,
    options: Vec<String>,
}

impl Scenario {
    pub fn new(name: &'static str, options: &[&str]) -> Scenario {
        Scenario {
            name,
            options: options.iter().map(|o| (*o).to_owned()).collect(),
        }
    }

    /// A file of the last run.
    pub fn file(&self, name: &str) -> PathBuf {
        let work = self
            .options
            .iter()
            .position(|o| o == "--work")
            .and_then(|i| self.options.get(i + 1));
        project()
            .join("target/lab/scenario")
            .join(work.map_or(self.name, String::as_str))
            .join(name)
    }

    pub fn boot(&self, keep: bool, more: &[&str]) -> Boot {
        let mut command = Command::new(project().join("qemu/scenario"));
        command.arg(self.name).args(&self.options);
        command.arg("--initramfs").arg(initramfs());
        if keep {
            command.arg("--keep-disk");
        }
        command.args(["--", "--timeout=300", "--quiet"]).args(more);
        Boot::of(command, &self.file("console.log"))
    }

    pub fn reports(&self) -> String {
        fs::read_to_string(self.file("reports.jsonl")).unwrap()
    }
}

/// A kernel started directly, without firmware and network boot: the quick way to see PID 1 at work.
pub struct Direct {
    command: Command,
    log: PathBuf,
}

impl Direct {
    /// A machine with `disk` as /dev/vda and `words` on its kernel command line.
    pub fn new(disk: &Path, words: &str) -> Direct {
        Direct::of(&lab("kernel/vmlinuz"), &initramfs(), disk, words)
    }

    /// The same with another kernel and initrd.
    pub fn of(kernel: &Path, initrd: &Path, disk: &Path, words: &str) -> Direct {
        let log = disk.with_extension("log");
        let mut command = Command::new(project().join("qemu/run"));
        command
            .arg("--kernel")
            .arg(kernel)
            .arg("--initrd")
            .arg(initrd)
            .arg(format!("--append=console=ttyS0 quiet panic=10 {words}"))
            .arg(format!(
                "--disk={},bus=virtio,serial=direct-disk",
                disk.display()
            ))
            .arg(format!("--serial-log={}", log.display()))
            .args(["--smbios=uuid=deb1a000-aaaa-4bbb-8ccc-000000000006,serial=direct-machine"])
            .args(["--memory=512", "--timeout=200", "--quiet", "--no-reboot"]);
        Direct { command, log }
    }

    pub fn run(mut self, more: &[&str]) -> Boot {
        self.command
            .arg("--fail-on=Kernel panic|ironroot: parked")
            .args(more);
        Boot::of(self.command, &self.log)
    }
}

/// What is typed at a console, each once its console has shown something.
pub struct Typed<'a> {
    pub after: &'a str,
    pub text: &'a str,
}

impl Direct {
    /// As [`Direct::run`], with somebody at the console, who may be there because the machine is parked.
    pub fn typing(mut self, more: &[&str], lines: &[Typed<'_>]) -> Boot {
        let _ = fs::remove_file(&self.log);
        self.command
            .arg("--fail-on=Kernel panic")
            .args(more)
            .arg("--stdin");
        let mut machine = self
            .command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut keyboard = machine.stdin.take().unwrap();
        for line in lines {
            // The machine has a time limit of its own.
            while machine.try_wait().unwrap().is_none() {
                let seen = fs::read(&self.log).unwrap_or_default();
                if String::from_utf8_lossy(&seen).contains(line.after) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            let _ = keyboard.write_all(line.text.as_bytes());
            let _ = keyboard.flush();
        }
        let output = machine.wait_with_output().unwrap();
        let console =
            String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        Boot { output, console }
    }
}
