//! A machine as a directory, for tests: sysfs with its relative links, procfs, and plain files as disks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The root of a made-up machine; removed when dropped.
pub(super) struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        let fixture = Fixture {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir_all(fixture.root().join("sys/block")).unwrap();
        fs::create_dir_all(fixture.root().join("dev")).unwrap();
        fixture
    }

    pub(super) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Fixture {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Several attributes of the directory `dir`.
    pub(super) fn attributes(&self, dir: &str, attributes: &[(&str, &str)]) -> &Fixture {
        for (name, value) in attributes {
            self.file(&format!("{dir}/{name}"), format!("{value}\n"));
        }
        self
    }

    /// A link at `path` to `target`, both below the root, written relative as sysfs does.
    pub(super) fn link(&self, path: &str, target: &str) -> &Fixture {
        let up = "../".repeat(path.matches('/').count());
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(format!("{up}{target}"), path).unwrap();
        self
    }

    /// A disk `name` whose SCSI, NVMe or virtio device is at `device` below sys/devices, in `block` below
    /// it; answers the disk's own directory.
    pub(super) fn disk(&self, name: &str, device: &str, dev: &str, sectors: u64) -> String {
        let dir = if device.is_empty() {
            format!("sys/devices/virtual/block/{name}")
        } else if name.starts_with("nvme") {
            format!("sys/devices/{device}/{name}")
        } else {
            format!("sys/devices/{device}/block/{name}")
        };
        self.attributes(
            &dir,
            &[("dev", dev), ("size", &sectors.to_string()), ("ro", "0")],
        );
        self.attributes(
            &dir,
            &[("removable", "0"), ("queue/logical_block_size", "512")],
        );
        self.attributes(&dir, &[("queue/rotational", "0")]);
        fs::create_dir_all(self.root().join(&dir).join("holders")).unwrap();
        self.link(&format!("sys/block/{name}"), &dir);
        if !device.is_empty() {
            self.link(&format!("{dir}/device"), &format!("sys/devices/{device}"));
        }
        let node = fs::File::create(self.root().join("dev").join(name)).unwrap();
        node.set_len(sectors * 512).unwrap();
        dir
    }

    /// Partition `number` of a disk whose directory is `dir`; in sectors of 512 bytes.
    pub(super) fn partition(
        &self,
        dir: &str,
        number: u32,
        dev: &str,
        start: u64,
        size: u64,
    ) -> String {
        let disk = dir.rsplit('/').next().unwrap();
        let name = super::signatures::partition_name(disk, number);
        let (number, start, size) = (number.to_string(), start.to_string(), size.to_string());
        let dir = format!("{dir}/{name}");
        self.attributes(
            &dir,
            &[
                ("partition", &number),
                ("dev", dev),
                ("start", &start),
                ("size", &size),
            ],
        );
        fs::create_dir_all(self.root().join(&dir).join("holders")).unwrap();
        dir
    }

    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.root().join("dev").join(name)
    }
}
