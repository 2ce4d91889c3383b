//! Runs of zeros are left to the device, and the disk has every byte of the image all the same.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use serde_json::json;
use support::disk_image::{MIB, gpt, sha256};
use support::loop_device::{LoopDevice, PATTERN};
use support::program::{Config, stored};
use support::verdict::assert_installed_gpt;

/// An image with zero runs of every kind: whole blocks, parts of blocks, shorter than the grain, at odd places.
fn holey() -> Vec<u8> {
    let mut image = gpt(20);
    for (from, to) in [
        (2 * MIB, 3 * MIB),
        (4 * MIB - 4096, 13 * MIB + 512),
        (14 * MIB + 1, 14 * MIB + 70_000),
        (15 * MIB, 15 * MIB + 4096),
        (16 * MIB + 65_536, 16 * MIB + 131_072),
    ] {
        image[from..to].fill(0);
    }
    image
}

#[test]
fn zeros_reach_a_disk_that_was_full_of_something_else() {
    let image = holey();
    let (_folder, path) = stored(&image);
    let disk = LoopDevice::patterned(24);
    let config =
        Config::new(&path, &sha256(&image), &disk).with("/disk/overwrite", json!("Always"));
    config.install(&[]).succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
}

#[test]
fn what_was_written_is_read_back_where_the_config_asks_for_it() {
    let image = holey();
    let (_folder, path) = stored(&image);
    let disk = LoopDevice::patterned(24);
    let config = Config::new(&path, &sha256(&image), &disk)
        .with("/disk/overwrite", json!("Always"))
        .with("/image/verifyDisk", json!(true));
    let ended = config.install(&[]).succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
    let steps: Vec<_> = ended
        .events()
        .into_iter()
        .filter(|e| e["event"] == "stepDone")
        .map(|e| e["step"].clone())
        .collect();
    let place = |step: &str| steps.iter().position(|s| s == step).unwrap();
    assert!(place("writeBody") < place("readBack") && place("readBack") < place("commitHead"));
}
