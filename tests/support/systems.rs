//! Disk images with real file systems in their partitions, and how the installed ones are read: by debugfs and
//! e2fsck, without a mount.

use std::path::Path;
use std::process::Command;

use super::disk_image::MIB;
use super::loop_device::{LoopDevice, tool};

/// A partition: number, first MiB, MiB, type, and its file system.
pub struct Part<'a> {
    pub number: u32,
    pub at: usize,
    pub size: usize,
    pub kind: &'a str,
    pub uuid: &'a str,
    pub label: &'a str,
    pub tree: &'a Path,
}

/// A GPT image with these partitions, each an ext4 filled with a tree.
pub fn image(parts: &[Part<'_>]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    let end = parts.iter().map(|p| p.at + p.size).max().unwrap();
    let mut bytes = vec![0u8; (end + 1) * MIB];
    std::fs::write(&file, &bytes).unwrap();
    let mut script = "label: gpt\n".to_owned();
    for part in parts {
        script += &format!(
            "p{} : start={}, size={}, type={}\n",
            part.number,
            part.at * 2048,
            part.size * 2048,
            part.kind
        );
    }
    let script_file = directory.path().join("script");
    std::fs::write(&script_file, script).unwrap();
    let out = Command::new("sfdisk")
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(&file)
        .stdin(std::fs::File::open(&script_file).unwrap())
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    let table = std::fs::read(&file).unwrap();
    bytes.copy_from_slice(&table);
    for part in parts {
        let fs = directory.path().join("fs");
        std::fs::write(&fs, vec![0u8; part.size * MIB]).unwrap();
        tool(
            "mke2fs",
            &[
                "-q",
                "-F",
                "-t",
                "ext4",
                "-U",
                part.uuid,
                "-L",
                part.label,
                "-d",
                part.tree.to_str().unwrap(),
                fs.to_str().unwrap(),
            ],
        );
        let content = std::fs::read(&fs).unwrap();
        bytes[part.at * MIB..][..content.len()].copy_from_slice(&content);
    }
    bytes
}

pub fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A file of the ext4 at `at` MiB of the disk, and its mode.
pub fn read(disk: &LoopDevice, at: usize, path: &str) -> (String, String) {
    let device = format!("{}?offset={}", disk.backing().display(), at * MIB);
    let text = tool("debugfs", &["-R", &format!("cat {path}"), &device]);
    let stat = tool("debugfs", &["-R", &format!("stat {path}"), &device]);
    let mode = stat
        .split("Mode:")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap();
    (text, mode.to_owned())
}

pub fn check(disk: &LoopDevice, at: usize, size: usize) {
    let copy = disk.directory().join("fs");
    std::fs::write(&copy, &disk.bytes()[at * MIB..][..size * MIB]).unwrap();
    tool("e2fsck", &["-fn", copy.to_str().unwrap()]);
}
