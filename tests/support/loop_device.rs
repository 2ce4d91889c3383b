//! A loop device that a test has to itself.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a program that must succeed, and answers what it printed.
pub fn tool(program: &str, args: &[&str]) -> String {
    let (good, text) = try_tool(program, args);
    assert!(good, "{program} {args:?}: {text}");
    text
}

/// Runs a program; whether it succeeded, and what it printed on both channels.
pub fn try_tool(program: &str, args: &[&str]) -> (bool, String) {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = [out.stdout, out.stderr].concat();
    (
        out.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// A file attached as a loop device; detached when dropped, and only then.
pub struct LoopDevice {
    path: PathBuf,
    backing: PathBuf,
    directory: tempfile::TempDir,
}

impl LoopDevice {
    /// A disk of zeros.
    pub fn blank(mib: usize) -> LoopDevice {
        LoopDevice::holding(&vec![0; mib << 20])
    }

    /// A disk on which every byte shows whether it was written.
    pub fn patterned(mib: usize) -> LoopDevice {
        LoopDevice::holding(&vec![PATTERN; mib << 20])
    }

    /// A disk with this content.
    pub fn holding(content: &[u8]) -> LoopDevice {
        LoopDevice::attached(content, &[])
    }

    /// A disk of zeros that takes no room, attached with `options` of losetup(8).
    pub fn sparse(mib: u64, options: &[&str]) -> LoopDevice {
        LoopDevice::made(options, |backing| {
            File::create(backing).unwrap().set_len(mib << 20).unwrap();
        })
    }

    /// A disk with this content, attached with `options` of losetup(8).
    pub fn attached(content: &[u8], options: &[&str]) -> LoopDevice {
        LoopDevice::made(options, |backing| std::fs::write(backing, content).unwrap())
    }

    fn made(options: &[&str], make: impl FnOnce(&Path)) -> LoopDevice {
        let directory = tempfile::tempdir().unwrap();
        let backing = directory.path().join("disk");
        make(&backing);
        let mut args = vec!["--find", "--show"];
        args.extend(options);
        args.push(backing.to_str().unwrap());
        // Another program on this machine may take the free device between the question and the answer.
        let path = (0..10)
            .find_map(|_| {
                let (good, text) = try_tool("losetup", &args);
                if !good {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
                good.then(|| PathBuf::from(text.trim()))
            })
            .expect("a loop device");
        let device = LoopDevice {
            path,
            backing,
            directory,
        };
        // Whoever had this device before may have left partitions to it.
        device.forget_partitions();
        assert_eq!(device.partitions(), Vec::<u32>::new(), "{}", device.arg());
        device
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path as an argument.
    pub fn arg(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub fn name(&self) -> &str {
        self.path.file_name().unwrap().to_str().unwrap()
    }

    /// The file behind it.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// A directory that lives as long as the device.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Everything on the disk, from the medium.
    pub fn bytes(&self) -> Vec<u8> {
        tool("blockdev", &["--flushbufs", self.arg()]);
        let mut bytes = Vec::new();
        File::open(&self.path)
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    }

    /// Writes and discards that the kernel has sent to the device (Documentation/block/stat.rst, fields 5,
    /// 7 and 12).
    pub fn written(&self) -> Vec<u64> {
        tool("blockdev", &["--flushbufs", self.arg()]);
        let stat = std::fs::read_to_string(self.sys().join("stat")).unwrap();
        let all: Vec<u64> = stat
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        vec![all[4], all[6], all[11]]
    }

    fn sys(&self) -> PathBuf {
        Path::new("/sys/block").join(self.name())
    }

    /// The partitions that the kernel lists.
    pub fn partitions(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = std::fs::read_dir(self.sys())
            .unwrap()
            .filter_map(|entry| {
                let text = std::fs::read_to_string(entry.unwrap().path().join("partition")).ok()?;
                Some(text.trim().parse().unwrap())
            })
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Makes the kernel forget the partitions; they would outlive the content of a loop device.
    pub fn forget_partitions(&self) {
        if !self.partitions().is_empty() {
            let _ = try_tool("partx", &["--delete", self.arg()]);
        }
        // partx looks into the table for what it deletes; what is left has no table any more.
        for number in self.partitions() {
            let number = number.to_string();
            let _ = try_tool("delpart", &[self.arg(), &number]);
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.forget_partitions();
        let _ = try_tool("losetup", &["--detach", self.arg()]);
    }
}

/// What a patterned disk consists of. Its first sector does not end in a boot signature.
pub const PATTERN: u8 = 0xa5;
