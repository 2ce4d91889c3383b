//! Installations at the same time on one machine, as where images are made: each has its mounts to itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use serde_json::json;
use support::disk_image::sha256;
use support::loop_device::LoopDevice;
use support::program::Config;
use support::systems::{Part, image, read, write};

#[test]
fn two_installations_at_once_change_each_its_own_system() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    write(&root, "etc/os-release", "ID=x\n");
    let image = image(&[Part {
        number: 1,
        at: 1,
        size: 16,
        kind: "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
        uuid: "11111111-2222-4333-8444-555555555555",
        label: "root",
        tree: &root,
    }]);
    let file = directory.path().join("image");
    std::fs::write(&file, &image).unwrap();
    let (file, digest) = (file.to_str().unwrap(), sha256(&image));
    let disks = [LoopDevice::patterned(40), LoopDevice::patterned(40)];
    for _ in 0..4 {
        std::thread::scope(|scope| {
            let all: Vec<_> = disks
                .iter()
                .map(|disk| {
                    let name = format!("{}-{}", disk.name(), std::process::id());
                    let entry = json!({ "target": "/srv", "source": { "partlabel": name } });
                    let added = json!({ "label": name, "size": "Rest", "filesystem": "ext4" });
                    let config = Config::new(file, &digest, disk)
                        .with("/disk/overwrite", json!("Always"))
                        .with(
                            "/disk/files",
                            json!([{ "path": "/etc/me", "contents": name }]),
                        )
                        .with("/disk/partitions", json!([added]))
                        .with("/disk/keep", json!([name]))
                        .with("/preserve", json!([entry]))
                        .with("/wait", json!("0s"));
                    scope.spawn(move || {
                        config.install(&[]).succeeded();
                        assert!(read(disk, 1, "/etc/me").0.contains(&name));
                        assert!(read(disk, 1, "/etc/fstab").0.contains("ironroot begin"));
                    })
                })
                .collect();
            for one in all {
                one.join().unwrap();
            }
        });
    }
}
