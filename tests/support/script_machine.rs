//! A machine whose initrd is busybox, this very ironroot, a few programs and a script: to see what ironroot does with
//! devices that the kernel of the test's own machine does not have.
#![allow(
    dead_code, // each test program uses a part
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::small_system;

/// What each script begins with; the modules are loaded there.
const BEGIN: &str = r#"#!/bin/sh
export PATH=/sbin:/bin DM_DISABLE_UDEV=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs run /run
fail() { cat /log; echo "STUCK: $1"; poweroff -f; sleep 100; }
try() { "$@" >/log 2>&1 </dev/null || fail "$*"; }
"#;

const END: &str = "
echo \"THE END\"
poweroff -f
sleep 100
";

pub fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

fn lab() -> PathBuf {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/lab");
    assert!(
        lab.join("kernel/vmlinuz").exists(),
        "run scripts/lab kernel first"
    );
    lab
}

/// The kernel's modules by name, with `_` for `-`.
fn module_files(at: &Path, found: &mut Vec<(String, PathBuf)>) {
    for entry in fs::read_dir(at).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            module_files(&entry, found);
        } else if let Some(name) = entry
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .strip_suffix(".ko")
        {
            found.push((name.replace('-', "_"), entry.clone()));
        }
    }
}

fn add_module(name: &str, files: &[(String, PathBuf)], order: &mut Vec<PathBuf>) {
    let name = name.replace('-', "_");
    // What is not there is built in.
    let Some((_, file)) = files.iter().find(|(n, _)| *n == name) else {
        return;
    };
    if order.contains(file) {
        return;
    }
    for needed in run("modinfo", &["-F", "depends", file.to_str().unwrap()]).split([',', '\n']) {
        add_module(needed.trim(), files, order);
    }
    order.push(file.clone());
}

/// A program of this machine with its libraries.
fn program(root: &Path, name: &str) {
    let path = ["/usr/sbin", "/sbin", "/usr/bin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|p| p.exists())
        .unwrap_or_else(|| panic!("{name} is not installed"));
    fs::copy(&path, root.join("sbin").join(name)).unwrap();
    for library in run("ldd", &[path.to_str().unwrap()])
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let to = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(library, to).unwrap();
    }
}

/// The initrd while it is made.
pub struct Initrd {
    folder: PathBuf,
    modules: String,
}

impl Initrd {
    /// With these modules, each preceded by what it depends on, and these programs of the test's own machine.
    pub fn new(folder: &Path, modules: &[&str], programs: &[&str]) -> Initrd {
        let root = folder.join("initrd");
        fs::create_dir_all(&root).unwrap();
        small_system::busybox(&root);
        small_system::ironroot(&root);
        for name in programs {
            program(&root, name);
        }
        let mut files = Vec::new();
        module_files(&lab().join("kernel/lib/modules"), &mut files);
        let mut order = Vec::new();
        for name in modules {
            add_module(name, &files, &mut order);
        }
        fs::create_dir_all(root.join("modules")).unwrap();
        let mut load = String::new();
        for (n, file) in order.iter().enumerate() {
            fs::copy(file, root.join(format!("modules/{n}.ko"))).unwrap();
            load.push_str(&format!("busybox insmod /modules/{n}.ko\n"));
        }
        Initrd {
            folder: folder.to_owned(),
            modules: load,
        }
    }

    /// Where its files go.
    pub fn root(&self) -> PathBuf {
        self.folder.join("initrd")
    }

    pub fn file(&self, name: &str, content: &[u8]) {
        fs::write(self.root().join(name), content).unwrap();
    }

    /// The archive of an initrd that runs `script`.
    pub fn archive(&self, script: &str) -> PathBuf {
        let script = format!("{BEGIN}{}{script}{END}", self.modules);
        small_system::script(&self.root().join("init"), &script);
        let archive = self.folder.join("initrd.cpio");
        let packed = Command::new("sh")
            .args(["-c", "find . | cpio --quiet -o -H newc -R 0:0"])
            .current_dir(self.root())
            .stdout(File::create(&archive).unwrap())
            .status()
            .unwrap();
        assert!(packed.success());
        archive
    }

    /// Boots a machine that runs `script`; what the console said.
    pub fn boot(&self, script: &str, more: &[String]) -> String {
        let archive = self.archive(script);
        let log = self.folder.join("console.log");
        let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu/run"))
            .arg("--kernel")
            .arg(lab().join("kernel/vmlinuz"))
            .arg("--initrd")
            .arg(&archive)
            // Where the machine below is busy, the kernel's check of its emulated timer fails and it panics.
            .arg("--append=console=ttyS0 quiet panic=10 no_timer_check")
            .arg(format!("--serial-log={}", log.display()))
            .args(["--net=none", "--memory=768", "--timeout=280", "--quiet"])
            .args(["--no-reboot", "--fail-on=Kernel panic|STUCK"])
            .args(["--until=THE END", "--wait-end"])
            .args(more)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let console =
            String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).replace('\r', "");
        println!("{console}");
        assert!(
            output.status.success(),
            "{}\n{}\n{console}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        console
    }
}

/// What the console said between a line `== name` and the next such line.
#[track_caller]
pub fn part<'a>(console: &'a str, name: &str) -> &'a str {
    let (_, rest) = console
        .split_once(&format!("== {name}\n"))
        .unwrap_or_else(|| panic!("no part {name}: {console}"));
    rest.split_once("\n== ").map_or(rest, |(part, _)| part)
}

/// A sparse file for a disk.
pub fn blank(folder: &Path, name: &str, mib: u64) -> PathBuf {
    let path = folder.join(name);
    File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path
}
