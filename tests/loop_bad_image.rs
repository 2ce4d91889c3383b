//! Images and downloads that are wrong, on loop devices: the exit code, what the message names, and that
//! nothing was written or that what was begun does not boot. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::time::Duration;

use support::disk_image::{MIB, compressed, gpt, gpt_4096, mbr, sha256};
use support::fault_server::{Act, FaultServer, head};
use support::loop_device::{LoopDevice, PATTERN, tool};
use support::program::{install, stored};
use support::verdict::{Untouched, assert_no_tail, assert_not_bootable, assert_pattern};

const ALWAYS: &[&str] = &["--overwrite", "Always"];

#[test]
fn a_wrong_digest_leaves_nothing_that_boots() {
    let image = gpt(16);
    let right = sha256(&image);
    let wrong = format!("sha256:{}", "0".repeat(64));
    let (_directory, path) = stored(&image);
    // The second disk has the image's very size: its backup GPT is where the disk's own would be.
    for mib in [24, 16] {
        let disk = LoopDevice::patterned(mib);
        install(&path, &wrong, &disk, ALWAYS)
            .failed_with(12, &[&right, &wrong, "in step writeBody"]);
        assert_not_bootable(&disk);
        assert_no_tail(&disk);
        // The same for the content, behind a good digest of the download.
        let disk = LoopDevice::patterned(mib);
        let mut flags = vec!["--content-digest", wrong.as_str()];
        flags.extend(ALWAYS);
        install(&path, &right, &disk, &flags).failed_with(12, &[&right, &wrong]);
        assert_not_bootable(&disk);
    }
}

/// How a server ends a body too early.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It announced the whole length and closes.
    Short,
    /// It announced the whole length and resets.
    Reset,
    /// It announced the length of what it sends.
    InOrder,
    /// It announced no length and closes.
    Close,
}

#[test]
fn a_download_that_is_cut_short_leaves_nothing_that_boots() {
    let image = gpt(12);
    for program in ["cat", "gzip", "zstd", "xz"] {
        let download = match program {
            "cat" => image.clone(),
            other => compressed(other, &image),
        };
        let cut = if program == "cat" {
            7 * MIB
        } else {
            download.len() / 2
        };
        let total = download.len().to_string();
        for end in [End::Short, End::Reset, End::InOrder, End::Close] {
            let part = download[..cut].to_vec();
            let length = total.clone();
            let server = FaultServer::start(move |_| {
                let part_length = part.len().to_string();
                let headers: &[(&str, &str)] = match end {
                    End::Short | End::Reset => &[("Content-Length", &length)],
                    End::InOrder => &[("Content-Length", &part_length)],
                    End::Close => &[],
                };
                let mut acts = vec![head("200 OK", headers), Act::Send(part.clone())];
                if end == End::Reset {
                    // A reset overtakes what the client has not read yet.
                    acts.push(Act::Sleep(Duration::from_millis(100)));
                    acts.push(Act::Reset);
                }
                acts
            });
            let disk = LoopDevice::patterned(16);
            // Without any digest: a proof that is missing must not matter.
            let mut flags = vec!["--insecure", "--retry-for", "100ms"];
            flags.extend(ALWAYS);
            let ended = install(&server.url("/image"), "", &disk, &flags);
            let got = cut.to_string();
            let parts: Vec<&str> = match end {
                End::Short => vec![&got, &total],
                // What was on its way is lost with the connection.
                End::Reset => vec!["bytes in", &total],
                End::InOrder => vec![&got, "cut short"],
                // Nothing proves the bytes, and nothing would show the cut: refused before the first write.
                End::Close => vec!["how long the file is"],
            };
            println!("{program} {end:?}");
            let broke = end != End::InOrder;
            ended.failed_with(if broke { 11 } else { 12 }, &parts);
            if program == "cat" && end == End::InOrder {
                // The image's own table told it before anything was written.
                assert_pattern(&disk);
            } else if disk.bytes()[0] != PATTERN {
                assert_not_bootable(&disk);
            } else {
                // So early that nothing was begun: lost on the way, or the decoder saw the cut in its first block.
                assert_pattern(&disk);
            }
        }
    }
}

#[test]
fn a_chunked_download_that_breaks_off_is_a_network_failure() {
    let image = gpt(12);
    let server = FaultServer::start(move |_| {
        let mut body = format!("{:x}\r\n", 7 * MIB).into_bytes();
        body.extend_from_slice(&image[..7 * MIB]);
        vec![
            head("200 OK", &[("Transfer-Encoding", "chunked")]),
            Act::Send(body),
        ]
    });
    let disk = LoopDevice::patterned(16);
    let mut flags = vec!["--insecure", "--retry-for", "100ms"];
    flags.extend(ALWAYS);
    install(&server.url("/image"), "", &disk, &flags)
        .failed_with(11, &["broke off after 7340032 bytes"]);
    assert_not_bootable(&disk);
}

#[test]
fn garbage_behind_the_stream_leaves_nothing_that_boots() {
    let image = gpt(12);
    for program in ["gzip", "zstd", "xz"] {
        let mut download = compressed(program, &image);
        download.extend_from_slice(b"and then something else");
        let (_directory, path) = stored(&download);
        let disk = LoopDevice::patterned(16);
        // Even where the digest says that the file was meant to be like that.
        install(&path, &sha256(&download), &disk, ALWAYS).failed_with(12, &[]);
        assert_not_bootable(&disk);
    }
}

#[test]
fn what_is_no_disk_image_is_refused_before_anything_is_written() {
    let disk = LoopDevice::patterned(16);
    let page = b"<!DOCTYPE html><title>Please log in</title>".repeat(80_000);
    let mut damaged = gpt(8);
    damaged[512 + 60] ^= 1;
    for (what, image, part) in [
        ("page", page, "no partition table"),
        ("short", gpt(8)[..MIB / 2].to_vec(), "524288 bytes"),
        ("damaged", damaged, "GPT"),
        ("zeros", vec![0; 4 * MIB], "no partition table"),
    ] {
        println!("{what}");
        let (_directory, path) = stored(&image);
        install(&path, "", &disk, ALWAYS).failed_with(12, &[part]);
        assert_pattern(&disk);
    }
    let (_directory, path) = stored(b"");
    install(&path, "", &disk, ALWAYS).failed_with(12, &["empty"]);
    assert_pattern(&disk);
}

#[test]
fn an_image_that_is_too_large_is_refused_before_the_first_write_where_that_can_be_known() {
    let (gpt, mbr) = (gpt(24), mbr(24, 12));
    let disk = LoopDevice::patterned(16);
    for (what, download, need) in [
        ("gpt, its length", gpt.clone(), "the image needs 24.0 MiB"),
        (
            "gpt, its table",
            compressed("xz", &gpt),
            "partition 1 of the image needs 23.0 MiB",
        ),
        ("mbr, its length", mbr.clone(), "the image needs 24.0 MiB"),
        (
            "mbr, a zstd header",
            compressed("zstd", &mbr),
            "the image needs 24.0 MiB",
        ),
    ] {
        println!("{what}");
        let before = Untouched::of(&disk);
        let (_directory, path) = stored(&download);
        // zstd writes the length of the content only where it reads from a file.
        if what.ends_with("header") {
            let source = disk.directory().join("mbr");
            std::fs::write(&source, &mbr).unwrap();
            tool(
                "zstd",
                &["-1", "-qf", source.to_str().unwrap(), "-o", &path],
            );
        }
        install(&path, "", &disk, ALWAYS).failed_with(13, &["too small", need, "16.0 MiB"]);
        before.check();
    }
}

#[test]
fn an_image_that_turns_out_too_large_does_not_boot() {
    // Its partitions fit, its data does not, and nothing says so before.
    let (_directory, path) = stored(&compressed("gzip", &mbr(24, 12)));
    let disk = LoopDevice::patterned(16);
    install(&path, "", &disk, ALWAYS).failed_with(14, &["larger than the disk"]);
    assert_not_bootable(&disk);
    // The same for a GPT image with something behind its end.
    let mut image = gpt(16);
    image.extend_from_slice(&[1; 4096]);
    let (_directory, path) = stored(&compressed("gzip", &image));
    let disk = LoopDevice::patterned(16);
    install(&path, "", &disk, ALWAYS).failed_with(14, &["larger than the disk"]);
    assert_not_bootable(&disk);
}

#[test]
fn sector_sizes_that_differ_are_refused() {
    let wide = LoopDevice::attached(&vec![PATTERN; 16 * MIB], &["--sector-size", "4096"]);
    let narrow = LoopDevice::patterned(16);
    for (image, disk) in [(gpt(8), &wide), (mbr(8, 7), &wide), (gpt_4096(8), &narrow)] {
        let before = Untouched::of(disk);
        let (_directory, path) = stored(&image);
        install(&path, "", disk, ALWAYS).failed_with(13, &["512 bytes", "4096 bytes", disk.name()]);
        before.check();
    }
}
