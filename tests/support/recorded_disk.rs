//! A loop device whose writes and flushes are recorded, in their order: the file behind it is served by QEMU's storage
//! daemon, with a log which [`WriteLog`] reads.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::write_log::WriteLog;

/// The device. Nothing is recorded before it is made.
pub struct RecordedDisk {
    directory: tempfile::TempDir,
    daemon: Child,
    device: Option<PathBuf>,
    before: Vec<u8>,
}

/// What reached the device.
pub struct Recording {
    before: Vec<u8>,
    log: WriteLog,
}

impl RecordedDisk {
    /// A device of `mib` MiB, made ready by a program that gets its file as the last argument.
    pub fn new(mib: usize, program: &str, args: &[&str]) -> RecordedDisk {
        RecordedDisk::of(&vec![0u8; mib << 20], program, args)
    }

    /// A device with this content.
    pub fn holding(content: &[u8]) -> RecordedDisk {
        RecordedDisk::of(content, "true", &[])
    }

    fn of(content: &[u8], program: &str, args: &[&str]) -> RecordedDisk {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(path("disk"), content).unwrap();
        for name in ["log", "served"] {
            std::fs::write(path(name), "").unwrap();
        }
        let disk = path("disk");
        let args: Vec<&str> = args.iter().copied().chain([disk.as_str()]).collect();
        super::loop_device::tool(program, &args);
        let before = std::fs::read(path("disk")).unwrap();
        let daemon = Command::new("qemu-storage-daemon")
            .args([
                "--blockdev",
                &format!("driver=file,node-name=disk,filename={}", path("disk")),
            ])
            .args([
                "--blockdev",
                &format!("driver=file,node-name=log,filename={}", path("log")),
            ])
            .args([
                "--blockdev",
                "driver=blklogwrites,node-name=both,file=disk,log=log,log-sector-size=512",
            ])
            .args([
                "--export",
                &format!(
                    "type=fuse,id=e,node-name=both,mountpoint={},writable=on,allow-other=off",
                    path("served")
                ),
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut this = RecordedDisk {
            directory,
            daemon,
            device: None,
            before,
        };
        this.device = Some(this.attached());
        this
    }

    /// The loop device over what is served, once it is served.
    fn attached(&self) -> PathBuf {
        let served = self.directory.path().join("served");
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(50));
            if std::fs::metadata(&served).unwrap().len() != self.before.len() as u64 {
                continue;
            }
            let args = ["--find", "--show", served.to_str().unwrap()];
            if let (true, text) = super::loop_device::try_tool("losetup", &args) {
                return PathBuf::from(text.trim());
            }
        }
        panic!("nothing is served");
    }

    /// The path as an argument.
    pub fn arg(&self) -> &str {
        self.device.as_ref().unwrap().to_str().unwrap()
    }

    /// Ends the recording.
    pub fn finish(mut self) -> Recording {
        self.detach();
        Recording {
            before: std::mem::take(&mut self.before),
            log: WriteLog::read(&self.directory.path().join("log")),
        }
    }

    fn detach(&mut self) {
        if let Some(device) = self.device.take() {
            // They would outlive the device's content.
            for number in 1..=4 {
                let number = number.to_string();
                let _ =
                    super::loop_device::try_tool("delpart", &[device.to_str().unwrap(), &number]);
            }
            let _ =
                super::loop_device::try_tool("losetup", &["--detach", device.to_str().unwrap()]);
        }
        // Its end unmounts what it serves; SIGTERM lets it write its log to the end.
        let pid = self.daemon.id().to_string();
        let _ = super::loop_device::try_tool("kill", &["-TERM", &pid]);
        let _ = self.daemon.wait();
    }
}

impl Drop for RecordedDisk {
    fn drop(&mut self) {
        self.detach();
    }
}

impl Recording {
    /// How many flushes there are.
    pub fn epochs(&self) -> usize {
        self.log.flushes()
    }

    /// The device after a power cut ([`WriteLog::cut`]).
    pub fn cut(&self, epoch: usize, part: usize) -> Vec<u8> {
        self.log.cut(&self.before, epoch, part)
    }
}
