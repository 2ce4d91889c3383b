//! Trees on other file systems than ext4, and trees that are read back from the disk: one that loses data is found.
//! On real loop devices. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;
#[path = "tree_support/mod.rs"]
mod tree_support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::disk_image::sha256;
use support::fault_server::{Act, FaultServer, Serve, file};
use support::loop_device::{LoopDevice, tool, try_tool};
use support::program::Config;
use tree_support::{assert_same, shell, walk};

/// What stands at the beginning of a large file.
const MARKER: &[u8] = b"here begins what the disk loses";

const RIGHT: Serve<'static> = Serve {
    headers: &[],
    ranges: true,
    stop_after: None,
};

struct Case {
    directory: tempfile::TempDir,
    disk: LoopDevice,
}

impl Case {
    fn new(mib: u64) -> Case {
        let case = Case {
            directory: tempfile::tempdir().unwrap(),
            disk: LoopDevice::sparse(mib, &[]),
        };
        shell(
            r"mkdir -p tree/etc tree/a/b/c && cd tree
            echo text >a/b/file; ln a/b/file a/again; ln -s b/file a/link; mkfifo a/fifo; : >empty
            truncate -s 8M a/sparse; printf x | dd of=a/sparse bs=1 seek=4000000 conv=notrunc status=none
            chown 1:2 a/b; chmod 4711 a/b/file; setfattr -n user.test -v value etc
            head -c 12000000 /dev/urandom >a/random",
            case.directory.path(),
        );
        let large = [MARKER, &vec![b'x'; 2_000_000]].concat();
        fs::write(case.directory.path().join("tree/0-large"), large).unwrap();
        case
    }

    fn image(&self, make: &str) -> PathBuf {
        shell(make, self.directory.path());
        self.directory.path().join("image")
    }

    fn config(&self, image: &Path) -> Config {
        let bytes = fs::read(image).unwrap();
        Config::new(image.to_str().unwrap(), &sha256(&bytes), &self.disk)
            .with("/image/kind", json!("Tree"))
            .with("/image/verifyDisk", json!(true))
            .with("/disk/bootloader", json!("None"))
    }

    /// Place and length of the root in bytes.
    fn root(&self) -> (u64, u64) {
        let text = tool("sfdisk", &["--json", self.disk.arg()]);
        let table: Value = serde_json::from_str(&text).unwrap();
        let root = &table["partitiontable"]["partitions"][1];
        let number = |key: &str| root[key].as_u64().unwrap() * 512;
        (number("start"), number("size"))
    }

    /// The root as a device of its own.
    fn look<T>(&self, look: impl FnOnce(&str, &Path) -> T) -> T {
        let (start, size) = self.root();
        let (start, size) = (start.to_string(), size.to_string());
        let backing = self.disk.backing().to_str().unwrap();
        let args = [
            "--find",
            "--show",
            "--offset",
            &start,
            "--sizelimit",
            &size,
            backing,
        ];
        let device = tool("losetup", &args);
        let place = tempfile::tempdir().unwrap();
        let name = place.path().to_str().unwrap();
        tool("mount", &["-o", "ro", device.trim(), name]);
        let seen = look(device.trim(), place.path());
        tool("umount", &[name]);
        tool("losetup", &["--detach", device.trim()]);
        seen
    }
}

const TAR: &str = "tar -C tree --sort=name --format=pax --sparse --xattrs --xattrs-include='*' --numeric-owner -cf image .";

#[test]
fn what_was_unpacked_is_read_back_whatever_the_tree_came_in() {
    for make in [TAR, "mksquashfs tree image -quiet -no-progress -noappend"] {
        let case = Case::new(512);
        let ended = case.config(&case.image(make)).install(&[]).succeeded();
        assert!(
            ended.stderr.contains("read back 5 files of"),
            "{}",
            ended.stderr
        );
        case.look(|_, root| assert!(root.join("a/random").exists()));
    }
}

/// A disk that takes what is written and gives something else back.
#[test]
fn a_disk_that_loses_data_is_found_and_does_not_boot() {
    let case = Case::new(512);
    let image = case.image(TAR);
    let bytes = fs::read(&image).unwrap();
    // The server waits in the middle of the archive, when the large file has been unpacked.
    let data = bytes.clone();
    let server = FaultServer::start(move |request| {
        let mut acts = file(request, &data, RIGHT);
        let Some(Act::Send(body)) = acts.pop() else {
            panic!("no body")
        };
        let (first, rest) = body.split_at(body.len() - 100_000);
        acts.extend([
            Act::Send(first.to_vec()),
            Act::Sleep(Duration::from_secs(6)),
            Act::Send(rest.to_vec()),
        ]);
        acts
    });
    let config = Config::new(&server.url("/image.tar"), &sha256(&bytes), &case.disk)
        .with("/image/kind", json!("Tree"))
        .with("/image/verifyDisk", json!(true))
        .with("/disk/bootloader", json!("None"));
    let backing = case.disk.backing().to_owned();
    let spoil = std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
            nix::unistd::sync();
            let disk = fs::read(&backing).unwrap();
            let blocks = disk
                .chunks(1024)
                .position(|block| block.starts_with(MARKER));
            if let Some(block) = blocks {
                let disk = OpenOptions::new().write(true).open(&backing).unwrap();
                let at = u64::try_from(block).unwrap() * 1024 + 1_000_001;
                disk.write_all_at(b"?", at).unwrap();
                return true;
            }
        }
        false
    });
    let ended = config.install(&[]);
    assert!(spoil.join().unwrap(), "nothing to spoil: {}", ended.stderr);
    ended.failed_with(
        14,
        &[
            "does not hold the tree that was written",
            "the content of \"/0-large\" is not what was written",
            "replace it",
            "readBack",
        ],
    );
    assert!(case.disk.bytes()[..512].iter().all(|b| *b == 0));
    let (_, found) = try_tool("sfdisk", &["--dump", case.disk.arg()]);
    assert!(!found.contains("label:"), "{found}");
}

#[test]
fn a_root_can_be_on_xfs() {
    let case = Case::new(1024);
    let config = case.config(&case.image(TAR)).with(
        "/disk/partitions",
        json!([{ "label": "root", "size": "400MiB", "filesystem": "xfs" }]),
    );
    let ended = config.install(&[]).succeeded();
    assert!(
        ended.stderr.contains("made xfs \"root\""),
        "{}",
        ended.stderr
    );
    let said = tool("sgdisk", &["-v", case.disk.arg()]);
    assert!(said.contains("No problems found"), "{said}");
    let fstab = case.look(|device, root| {
        assert_eq!(
            tool("blkid", &["-p", "-s", "TYPE", "-o", "value", device]).trim(),
            "xfs"
        );
        let entries = |path: &Path| {
            let mut all = walk(path);
            all.retain(|path, entry| {
                // How a file is stored is the file system's business.
                entry.in_use = 0;
                let ours = ["", "etc", "etc/fstab", "etc/machine-id"];
                !ours.iter().any(|p| path == Path::new(p)) && !path.starts_with("boot")
            });
            all
        };
        assert_same(
            "the root",
            &entries(&case.directory.path().join("tree")),
            &entries(root),
        );
        fs::read_to_string(root.join("etc/fstab")).unwrap()
    });
    assert!(fstab.contains(" / xfs defaults 0 0\n"), "{fstab}");
    let (start, size) = case.root();
    assert_eq!(size, 400 << 20, "{start}");
}
