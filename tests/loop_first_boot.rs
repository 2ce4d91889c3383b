//! The machine id of installed systems: where the first boot looks for it, and that it stays a first boot until the
//! disk boots. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::path::Path;

use serde_json::{Value, json};
use support::disk_image::{MIB, sha256};
use support::loop_device::{LoopDevice, tool};
use support::program::Config;
use support::systems::{Part, image, read, write};

const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
const UUID: &str = "11111111-2222-4333-8444-555555555555";
const VAR: &str = "66666666-7777-4888-9999-aaaaaaaaaaaa";

/// Where /var of the image is, and where its root is.
const VAR_AT: usize = 13;
const ROOT_AT: usize = 1;
/// The partition of the machine id, behind the image.
const STATE_AT: usize = 26;

/// A system that asks for a first boot, with a /var of its own.
fn system(directory: &Path) -> Vec<u8> {
    let (root, var) = (directory.join("root"), directory.join("var"));
    write(&root, "etc/os-release", "ID=x\n");
    write(&root, "etc/machine-id", "uninitialized\n");
    write(
        &root,
        "etc/fstab",
        &format!("UUID={UUID} / ext4 defaults 0 1\nUUID={VAR} /var ext4 defaults 0 2\n"),
    );
    std::fs::create_dir_all(root.join("var")).unwrap();
    write(&var, "lib/dpkg/status", "");
    let part = |number, at, size, kind, uuid, tree| Part {
        number,
        at,
        size,
        kind,
        uuid,
        label: "x",
        tree,
    };
    image(&[
        part(1, ROOT_AT, 12, ROOT, UUID, &root),
        part(2, VAR_AT, 12, LINUX, VAR, &var),
    ])
}

fn config(image: &[u8], disk: &LoopDevice, generation: u32, more: &[Value]) -> Config {
    let path = disk.directory().join("image");
    std::fs::write(&path, image).unwrap();
    let label = format!("ids-{}-{}", disk.name(), std::process::id());
    let mut paths = vec![
        json!({ "target": "/etc/machine-id", "source": { "partlabel": label },
        "subdir": "machine-id", "kind": "file" }),
    ];
    for path in more {
        let mut path = path.clone();
        path["source"] = json!({ "partlabel": label });
        paths.push(path);
    }
    Config::new(path.to_str().unwrap(), &sha256(image), disk)
        .with(
            "/metadata",
            json!({ "claim": "a", "generation": generation }),
        )
        .with("/disk/overwrite", json!("Always"))
        .with("/disk/keep", json!([label]))
        .with(
            "/disk/partitions",
            json!([{ "label": label, "size": "Rest", "filesystem": "ext4" }]),
        )
        .with("/preserve", json!(paths))
        .with("/wait", json!("0s"))
}

/// The id in a file of the ext4 at `at` MiB of the disk; `None` where there is no such file.
fn id(disk: &LoopDevice, at: usize, path: &str) -> Option<String> {
    let device = format!("{}?offset={}", disk.backing().display(), at * MIB);
    let text = tool("debugfs", &["-R", &format!("cat {path}"), &device]);
    text.lines().find(|l| l.len() == 32).map(str::to_owned)
}

fn is_first_boot(disk: &LoopDevice) -> bool {
    read(disk, ROOT_AT, "/etc/machine-id")
        .0
        .contains("uninitialized")
}

/// systemd looks for the id before it mounts /var: it is in the root below, and for initrds that mount it in /var too.
#[test]
fn the_id_of_a_first_boot_is_where_it_is_looked_for() {
    let directory = tempfile::tempdir().unwrap();
    let image = system(directory.path());
    for more in [
        vec![],
        vec![json!({ "target": "/var/lib", "subdir": "lib" })],
    ] {
        let disk = LoopDevice::patterned(64);
        config(&image, &disk, 1, &more).install(&[]).succeeded();
        let kept = id(&disk, STATE_AT, "/machine-id");
        assert!(kept.is_some() && is_first_boot(&disk));
        assert_eq!(
            id(&disk, ROOT_AT, "/var/lib/dbus/machine-id"),
            kept,
            "{more:?}"
        );
        assert_eq!(id(&disk, VAR_AT, "/lib/dbus/machine-id"), kept, "{more:?}");
        tool("sgdisk", &["--verify", disk.arg()]);
    }
}

/// An installation that ends anywhere before its disk boots is made again, and its system sees a first boot, with the id
/// that is kept; the installation after one that boots is none.
#[test]
fn a_first_boot_is_over_when_the_disk_boots_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let image = system(directory.path());
    let (disk, state) = (LoopDevice::patterned(64), LoopDevice::blank(24));
    tool("mke2fs", &["-q", "-F", "-t", "ext4", state.arg()]);
    let installing = |generation: u32| {
        let id = json!({ "target": "/etc/machine-id", "source": { "disk": { "path": state.arg() } },
            "subdir": "machine-id", "kind": "file" });
        config(&image, &disk, generation, &[])
            .with("/disk/keep", json!([]))
            .with("/disk/partitions", json!([]))
            .with("/preserve", json!([id]))
    };
    let kept = || id(&state, 0, "/machine-id");
    let (mut first, mut stopped_with_id) = (None, 0);
    for step in 5.. {
        let ended = installing(1).install(&["--stop-after", &step.to_string()]);
        assert_eq!(ended.code, Some(70), "{}", ended.stderr);
        assert!(disk.bytes()[510..512] != [0x55, 0xaa], "after {step}");
        // Once it is there it never changes.
        assert!(first.is_none() || kept() == first, "after {step}");
        first = kept();
        stopped_with_id += usize::from(first.is_some());
        // With the paths, and with the partitions closed: the next step is the commit.
        if stopped_with_id == 2 {
            break;
        }
    }
    let ended = installing(1).install(&[]).succeeded();
    assert!(
        !ended.stderr.contains("first boot begins"),
        "{}",
        ended.stderr
    );
    assert!(is_first_boot(&disk), "made again before any boot");
    assert_eq!(id(&disk, ROOT_AT, "/var/lib/dbus/machine-id"), first);
    // Now it boots. The next generation is another installation, of a machine that has had its first boot.
    installing(2).install(&[]).succeeded();
    assert!(!is_first_boot(&disk));
    assert_eq!(id(&disk, ROOT_AT, "/etc/machine-id"), first);
    assert_eq!(kept(), first);
}
