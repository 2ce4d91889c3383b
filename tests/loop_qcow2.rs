//! qcow2 images on loop devices: every byte of the disk afterwards, and what a failure in either pass leaves.
//! Needs root, qemu-utils and nginx.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use support::disk_image::{gpt, mbr, sha256};
use support::fault_server::{Act, FaultServer, Serve, file};
use support::loop_device::{LoopDevice, PATTERN};
use support::nginx::Nginx;
use support::program::{install, stored};
use support::qcow2::qcow2;
use support::verdict::{
    Untouched, assert_installed_gpt, assert_no_tail, assert_not_bootable, assert_pattern,
};

const ALWAYS: &[&str] = &["--overwrite", "Always", "--retry-for", "2s"];
const RIGHT: Serve<'static> = Serve {
    headers: &[("ETag", "\"v1\"")],
    ranges: true,
    stop_after: None,
};

#[test]
fn a_qcow2_image_gives_the_same_disk_as_the_raw_one() {
    let image = gpt(12);
    for args in [
        &["-c"][..],
        &["-c", "-o", "compression_type=zstd"],
        &["-o", "cluster_size=512"],
        &["-o", "compat=0.10", "-m", "8", "-W"],
    ] {
        let packed = qcow2(&image, args);
        let digest = sha256(&packed);
        let (_directory, path) = stored(&packed);
        let disk = LoopDevice::patterned(24);
        let mut flags = vec!["--content-digest", ""];
        let content = sha256(&image);
        flags[1] = &content;
        flags.extend(ALWAYS);
        let ended = install(&path, &digest, &disk, &flags).succeeded();
        assert_installed_gpt(&disk, &image, 512, PATTERN);
        assert!(
            ended.stderr.contains(": qcow2, 12.0 MiB"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("read twice"), "{}", ended.stderr);
    }
    // A source that is a block device is longer than the image in it.
    let mut packed = qcow2(&image, &["-c"]);
    packed.resize(packed.len().next_multiple_of(1 << 20), 0);
    let (source, disk) = (LoopDevice::holding(&packed), LoopDevice::patterned(24));
    install(source.arg(), &sha256(&packed), &disk, ALWAYS).succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
}

#[test]
fn nginx_and_a_server_that_resets_serve_both_passes() {
    let image = gpt(12);
    let packed = qcow2(&image, &["-m", "8", "-W"]);
    let digest = sha256(&packed);
    let nginx = Nginx::serving("image.qcow2", &packed);
    let disk = LoopDevice::patterned(24);
    install(&nginx.url("/image.qcow2"), &digest, &disk, ALWAYS).succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);

    let server = FaultServer::start(move |request| {
        let stop_after = Some(1_500_000);
        let mut acts = file(
            request,
            &packed,
            Serve {
                stop_after,
                ..RIGHT
            },
        );
        acts.push(Act::Reset);
        acts
    });
    let disk = LoopDevice::patterned(24);
    install(&server.url("/image"), &digest, &disk, ALWAYS).succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
}

#[test]
fn a_failure_of_the_first_pass_leaves_the_disk_as_it_was() {
    let packed = qcow2(&gpt(12), &[]);
    let digest = sha256(&packed);
    let wrong = format!("sha256:{}", "0".repeat(64));
    let disk = LoopDevice::patterned(16);
    let before = Untouched::of(&disk);
    let (_directory, path) = stored(&packed);
    install(&path, &wrong, &disk, ALWAYS).failed_with(12, &[&wrong, &digest, "in step openImage"]);
    before.check();

    let data = packed.clone();
    let server = FaultServer::start(move |request| {
        let ranges = false;
        file(request, &data, Serve { ranges, ..RIGHT })
    });
    let url = server.url("/image");
    install(&url, &digest, &disk, ALWAYS).failed_with(11, &["does not give parts", "Range"]);
    before.check();

    let too_large = qcow2(&mbr(24, 12), &["-c"]);
    let (_directory, path) = stored(&too_large);
    install(&path, "", &disk, ALWAYS).failed_with(13, &["too small", "24.0 MiB", "16.0 MiB"]);
    let (_directory, path) = stored(&packed[..packed.len() / 2]);
    // Its table is there, the rest is not.
    let ended = install(&path, "", &LoopDevice::patterned(16), ALWAYS);
    ended.failed_with(12, &["cut short"]);
    before.check();
    assert_pattern(&disk);
}

#[test]
fn a_failure_of_the_second_pass_leaves_nothing_that_boots() {
    let packed = qcow2(&gpt(12), &[]);
    let digest = sha256(&packed);
    for (what, code, part) in [
        ("changed", 12, "have changed since they were proven"),
        ("gone", 11, "404"),
        ("reset", 11, "attempts"),
    ] {
        println!("{what}");
        let data = packed.clone();
        let server = FaultServer::start(move |request| {
            // The first pass, the question for ranges, and the image's head go well.
            let stop_after = (request.number == 2).then_some(7 << 20);
            match (request.number, what) {
                (0..=2, _) => file(
                    request,
                    &data,
                    Serve {
                        stop_after,
                        ..RIGHT
                    },
                ),
                (_, "changed") => {
                    let mut other = data.clone();
                    other[8 << 20] ^= 1;
                    file(request, &other, RIGHT)
                }
                (_, "gone") => support::fault_server::status("404 Not Found", &[]),
                _ => vec![Act::Reset],
            }
        });
        let disk = LoopDevice::patterned(16);
        install(&server.url("/image"), &digest, &disk, ALWAYS).failed_with(code, &[part]);
        assert_not_bootable(&disk);
        assert_no_tail(&disk);
    }
    // The content's own digest is known last.
    let wrong = format!("sha256:{}", "0".repeat(64));
    let (_directory, path) = stored(&packed);
    let disk = LoopDevice::patterned(16);
    let mut flags = vec!["--content-digest", wrong.as_str()];
    flags.extend(ALWAYS);
    install(&path, &digest, &disk, &flags).failed_with(12, &["decoded content", &wrong]);
    assert_not_bootable(&disk);
}
