//! Whole installations on loop devices: every byte of the disk afterwards, what a second run does, and what
//! is told meanwhile. Needs root.

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

use ironroot::image::record::{self, State};
use serde_json::json;
use support::disk_image::{MIB, RECORD, compressed, gpt, gpt_4096, mbr, sha256};
use support::fault_server::{Act, FaultServer, Serve, file, head, ok};
use support::loop_device::{LoopDevice, PATTERN, tool};
use support::program::{Config, install, ironroot};
use support::verdict::{Untouched, assert_installed_gpt, assert_pattern, same};

const ALWAYS: &[&str] = &["--overwrite", "Always"];

#[test]
fn every_compression_gives_the_same_disk_to_the_last_byte() {
    let image = gpt(12);
    for program in ["cat", "gzip", "zstd", "xz"] {
        let download = match program {
            "cat" => image.clone(),
            other => compressed(other, &image),
        };
        let digest = sha256(&download);
        let server = FaultServer::start(move |_| ok(&download));
        let disk = LoopDevice::patterned(24);
        let ended = install(&server.url("/image"), &digest, &disk, ALWAYS).succeeded();
        assert_installed_gpt(&disk, &image, 512, PATTERN);
        let steps: Vec<_> = ended
            .events()
            .into_iter()
            .filter(|e| e["event"] == "stepDone")
            .map(|e| e["step"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            steps[..7],
            [
                "lockDisk",
                "openImage",
                "writeMark",
                "clearDisk",
                "writeBody",
                "commitHead",
                "rereadPartitions"
            ]
        );
    }
}

#[test]
fn the_content_digest_alone_is_proof_enough() {
    let image = gpt(8);
    let download = compressed("zstd", &image);
    let server = FaultServer::start(move |_| ok(&download));
    let disk = LoopDevice::patterned(10);
    let digest = sha256(&image);
    install(
        &server.url("/image"),
        "",
        &disk,
        &["--content-digest", &digest, "--overwrite", "Always"],
    )
    .succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
}

#[test]
fn disks_of_the_very_size_of_the_image_and_a_little_larger() {
    let image = gpt(8);
    for more in [0, 1, 20, 33, 40] {
        let mut content = vec![PATTERN; image.len()];
        content.resize(image.len() + more * 512, PATTERN);
        let disk = LoopDevice::holding(&content);
        let path = disk.directory().join("image");
        std::fs::write(&path, &image).unwrap();
        install(path.to_str().unwrap(), &sha256(&image), &disk, ALWAYS).succeeded();
        assert_installed_gpt(&disk, &image, 512, PATTERN);
    }
}

#[test]
fn sectors_of_4096_bytes() {
    let image = gpt_4096(12);
    let disk = LoopDevice::attached(&vec![PATTERN; 24 * MIB], &["--sector-size", "4096"]);
    let path = disk.directory().join("image");
    std::fs::write(&path, compressed("zstd", &image)).unwrap();
    install(path.to_str().unwrap(), "", &disk, ALWAYS).succeeded();
    assert_installed_gpt(&disk, &image, 4096, PATTERN);
}

#[test]
fn an_mbr_image_changes_nothing_but_gains_its_record() {
    let image = mbr(8, 7);
    let disk = LoopDevice::patterned(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    install(path.to_str().unwrap(), "", &disk, ALWAYS).succeeded();
    let now = disk.bytes();
    same(&now[..RECORD.start], &image[..RECORD.start], "head");
    same(&now[MIB..image.len()], &image[MIB..], "body");
    let untouched = &now[image.len()..14 * MIB];
    same(
        untouched,
        &vec![PATTERN; untouched.len()],
        "behind the image",
    );
    same(&now[14 * MIB..], &vec![0; 2 * MIB], "the old tail");
    let record = record::decode(&now[RECORD]).unwrap().unwrap();
    assert_eq!(
        (record.state, record.disk.mbr_signature.as_deref()),
        (State::Sealed, Some("12345678"))
    );
    assert_eq!(disk.partitions(), [1]);
}

#[test]
fn an_image_that_is_no_whole_number_of_sectors_is_filled_up_with_zeros() {
    let mut image = mbr(8, 7);
    image.truncate(7 * MIB + 1000);
    let disk = LoopDevice::patterned(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    install(path.to_str().unwrap(), "", &disk, ALWAYS).succeeded();
    let now = disk.bytes();
    same(&now[MIB..image.len()], &image[MIB..], "body");
    same(
        &now[image.len()..7 * MIB + 1024],
        &[0; 24],
        "the last sector",
    );
    assert_eq!(now[7 * MIB + 1024], PATTERN);
}

#[test]
fn what_an_old_system_left_is_gone_and_no_partition_of_it_stays() {
    let old = gpt(24);
    let disk = LoopDevice::holding(&old);
    tool("partx", &["--add", disk.arg()]);
    assert_eq!(disk.partitions(), [1, 14, 15]);
    // A superblock where only an old partition had one.
    tool(
        "mkfs.ext4",
        &["-q", "-L", "old", &format!("{}p1", disk.arg())],
    );
    let image = mbr(4, 3);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    install(path.to_str().unwrap(), "", &disk, ALWAYS).succeeded();
    assert_eq!(disk.partitions(), [1]);
    let found = tool("wipefs", &[disk.arg()]);
    assert!(!found.contains("gpt") && !found.contains("PMBR"), "{found}");
    let now = disk.bytes();
    let superblock = &now[4 * MIB..5 * MIB];
    same(
        superblock,
        &vec![0; MIB],
        "the start of the old partition 1",
    );
}

#[test]
fn a_download_that_breaks_again_and_again_is_resumed() {
    let image = gpt(12);
    let digest = sha256(&image);
    let data = image.clone();
    let server = FaultServer::start(move |request| {
        let serve = Serve {
            headers: &[("ETag", "\"v1\"")],
            ranges: true,
            stop_after: Some(5 * MIB),
        };
        let mut acts = file(request, &data, serve);
        if request.range_from().unwrap_or(0) + 5 * MIB < data.len() {
            acts.push(Act::Reset);
        }
        acts
    });
    let disk = LoopDevice::patterned(16);
    install(&server.url("/image"), &digest, &disk, ALWAYS).succeeded();
    assert_installed_gpt(&disk, &image, 512, PATTERN);
    assert!(server.requests().len() >= 3);
}

#[test]
fn a_second_run_of_the_same_installation_and_a_plan_write_nothing() {
    let image = gpt(8);
    let disk = LoopDevice::blank(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    let config = Config::new(path.to_str().unwrap(), &sha256(&image), &disk);
    let before = Untouched::of(&disk);
    let plan = config.plan().succeeded();
    assert!(
        plan.stdout.contains("This plan erases a disk"),
        "{}",
        plan.stdout
    );
    before.check();

    config.install(&[]).succeeded();
    assert_installed_gpt(&disk, &image, 512, 0);

    let before = Untouched::of(&disk);
    let plan = config.plan().succeeded();
    assert!(plan.stdout.contains("writes to no disk"), "{}", plan.stdout);
    let second = config.install(&[]).succeeded();
    assert!(second.stderr.contains("already"), "{}", second.stderr);
    // Another place of the same image is no other installation; nor is another `overwrite`.
    let moved = Config::new("http://127.0.0.1:9/gone", &sha256(&image), &disk)
        .with("/disk/overwrite", json!("Always"));
    moved.install(&[]).succeeded();
    before.check();
}

#[test]
fn a_higher_generation_installs_again_only_where_overwrite_allows_it() {
    let image = gpt(8);
    let disk = LoopDevice::blank(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    let config = Config::new(path.to_str().unwrap(), &sha256(&image), &disk)
        .with("/metadata/claim", json!("tenant/first"));
    config.install(&[]).succeeded();

    let before = Untouched::of(&disk);
    let raised = config.with("/metadata/generation", json!(2));
    raised
        .install(&[])
        .failed_with(13, &["not blank", "tenant/first", "IfOurs"]);
    before.check();

    let raised = raised.with("/disk/overwrite", json!("IfOurs"));
    raised.install(&[]).succeeded();
    assert_installed_gpt(&disk, &image, 512, 0);
    let before = Untouched::of(&disk);
    raised.install(&[]).succeeded();
    before.check();

    // NetworkBootAlways means IfOurs without being told so, and installs each time.
    let always = Config::new(path.to_str().unwrap(), &sha256(&image), &disk)
        .with("/bootPolicy", json!("NetworkBootAlways"));
    for _ in 0..2 {
        let ended = always.install(&[]).succeeded();
        assert!(ended.events().iter().any(|e| e["step"] == "commitHead"));
    }
}

#[test]
fn boot_policy_none_writes_to_no_disk() {
    let image = gpt(8);
    let disk = LoopDevice::patterned(16);
    let config = Config::new("http://127.0.0.1:9/none", &sha256(&image), &disk)
        .with("/bootPolicy", json!("None"))
        .with("/disk/overwrite", json!("Always"));
    let before = Untouched::of(&disk);
    config.install(&[]).succeeded();
    config.plan().succeeded();
    before.check();
}

#[test]
fn the_mark_of_another_installation_is_respected() {
    let image = gpt(8);
    let disk = LoopDevice::blank(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    let config = |claim: &str| {
        Config::new(path.to_str().unwrap(), &sha256(&image), &disk)
            .with("/metadata/claim", json!(claim))
    };
    // Stopped when the mark is written and LBA 0 is gone.
    config("first")
        .install(&["--stop-after", "4"])
        .failed_with(70, &[]);
    let before = Untouched::of(&disk);
    config("second")
        .install(&[])
        .failed_with(13, &["another installation was cut off here", "first"]);
    before.check();
    config("first").plan().succeeded();
    before.check();
    config("second")
        .with("/disk/overwrite", json!("IfOurs"))
        .install(&[])
        .succeeded();
    assert_installed_gpt(&disk, &image, 512, 0);
}

#[test]
fn a_record_counts_only_with_the_table_it_came_with() {
    let image = gpt(8);
    let disk = LoopDevice::blank(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    let config = |disk: &LoopDevice| Config::new(path.to_str().unwrap(), &sha256(&image), disk);
    config(&disk).install(&[]).succeeded();
    let installed = disk.bytes();

    // A disk that has grown since (a virtual one) still holds its installation.
    let mut grown = installed.clone();
    grown.resize(20 * MIB, 0);
    let grown = LoopDevice::holding(&grown);
    let before = Untouched::of(&grown);
    config(&grown).install(&[]).succeeded();
    before.check();

    // One that lost its end, and with it the backup GPT, does not.
    let shorter = LoopDevice::holding(&installed[..15 * MIB]);
    let before = Untouched::of(&shorter);
    config(&shorter)
        .install(&[])
        .failed_with(13, &["does not count", "GPT"]);
    before.check();

    // Who zeroes LBA 0 of a system that was complete does not get it installed again unasked.
    let mut headless = installed.clone();
    headless[..512].fill(0);
    {
        let headless = LoopDevice::holding(&headless);
        let before = Untouched::of(&headless);
        let refused = config(&headless).install(&[]);
        refused.failed_with(13, &["gpt on", "does not count here"]);
        before.check();
    }

    // LBA 0 commits the record: while it is cleared and the record is not sealed, the installation is not finished.
    headless[RECORD.start + 18..RECORD.start + 20].copy_from_slice(&[2, 0]);
    let headless = LoopDevice::holding(&headless);
    let other = config(&headless).with("/metadata/claim", json!("other"));
    other.install(&[]).failed_with(13, &["cut off here"]);
    config(&headless).install(&[]).succeeded();
    assert_installed_gpt(&headless, &image, 512, 0);

    // One that lost its signature is damaged, and so is what it held.
    let mut damaged = installed;
    damaged[510..512].fill(0);
    let damaged = LoopDevice::holding(&damaged);
    config(&damaged)
        .install(&[])
        .failed_with(13, &["does not count"]);

    // Another disk GUID is another disk.
    disk.forget_partitions();
    tool("sgdisk", &["--disk-guid=R", disk.arg()]);
    let before = Untouched::of(&disk);
    config(&disk)
        .install(&[])
        .failed_with(13, &["does not count", "disk GUID"]);
    before.check();
}

#[test]
fn an_image_with_data_in_the_records_place_needs_record_skip() {
    let mut image = gpt(8);
    image[RECORD].fill(0x77);
    let disk = LoopDevice::patterned(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    let config = Config::new(path.to_str().unwrap(), &sha256(&image), &disk)
        .with("/disk/overwrite", json!("Always"));
    config
        .install(&[])
        .failed_with(13, &["last 4 KiB before byte 1 MiB", "disk.record"]);
    assert_pattern(&disk);
    config
        .with("/disk/record", json!("Skip"))
        .install(&[])
        .succeeded();
    let now = disk.bytes();
    same(&now[RECORD], &image[RECORD], "the image's own data");
    assert_eq!(disk.partitions(), [1, 14, 15]);
}

#[test]
fn a_regular_file_is_a_disk_where_that_is_allowed() {
    let image = gpt(8);
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("image");
    std::fs::write(&source, compressed("gzip", &image)).unwrap();
    let target = directory.path().join("disk.raw");
    let size = 16 * MIB;
    std::fs::File::create(&target)
        .unwrap()
        .set_len(size as u64)
        .unwrap();
    let flags = |disk: &str| {
        ironroot(&[
            "--json",
            "install",
            "--image",
            source.to_str().unwrap(),
            "--allow-file",
            "--disk",
            disk,
        ])
    };
    flags(target.to_str().unwrap()).succeeded();
    // The same file through a loop device is a disk like any other.
    let disk = LoopDevice::holding(&std::fs::read(&target).unwrap());
    tool("partx", &["--add", disk.arg()]);
    assert_installed_gpt(&disk, &image, 512, 0);
    // A file that holds something is as well protected as a disk.
    let before = std::fs::read(&target).unwrap();
    std::fs::write(&source, compressed("gzip", &gpt(9))).unwrap();
    ironroot(&[
        "install",
        "--image",
        source.to_str().unwrap(),
        "--digest",
        &sha256(&std::fs::read(&source).unwrap()),
        "--allow-file",
        "--disk",
        target.to_str().unwrap(),
    ])
    .failed_with(13, &["not blank"]);
    same(&std::fs::read(&target).unwrap(), &before, "the file");
}

#[test]
fn secrets_are_in_no_output() {
    const SECRETS: [&str; 4] = ["pa55w0rd", "t0k3n", "h3ad3r", "r3p0rt"];
    let image = gpt(8);
    let digest = sha256(&image);
    let data = image.clone();
    let server = FaultServer::start(move |request| match request.target.as_str() {
        t if t.starts_with("/image") => ok(&data),
        t if t.starts_with("/report") => ok(b""),
        _ => vec![head("403 Forbidden", &[("Content-Length", "0")])],
    });
    let secret =
        |path: &str| server.url(path).replace("http://", "http://user:pa55w0rd@") + "?token=t0k3n";
    let disk = LoopDevice::blank(16);
    for (path, digest, code) in [
        ("/gone", &digest, 11),
        ("/image", &format!("sha256:{}", "0".repeat(64)), 12),
        ("/image", &digest, 0),
    ] {
        let config = Config::new(&secret(path), digest, &disk)
            .with("/image/headers", json!({ "X-Secret": "h3ad3r" }))
            .with("/image/mirrors", json!([secret("/mirror")]))
            .with("/disk/overwrite", json!("Always"))
            .with(
                "/report",
                json!({ "url": secret("/report"), "headers": { "Authorization": "r3p0rt" } }),
            );
        let file = config.file();
        let ended = ironroot(&[
            "--json",
            "--log-level",
            "trace",
            "install",
            "--retry-for",
            "1s",
            "--config",
            file.to_str().unwrap(),
        ])
        .failed_with(code, &[]);
        ended.events();
        let plan = std::fs::read_to_string("/run/ironroot/plan.json").unwrap();
        let record = disk.bytes()[RECORD].to_vec();
        let record = String::from_utf8_lossy(&record);
        for secret in SECRETS {
            for (what, text) in [
                ("stdout", ended.stdout.as_str()),
                ("stderr", &ended.stderr),
                ("plan.json", &plan),
                ("record", &record),
            ] {
                assert!(
                    !text.contains(secret),
                    "{secret} in {what} of {path}: {text}"
                );
            }
        }
    }
    // They did arrive where they were meant to.
    let requests = server.requests();
    let image = requests
        .iter()
        .find(|r| r.target.starts_with("/image"))
        .unwrap();
    assert!(image.target.contains("t0k3n"));
    assert_eq!(image.header("x-secret"), Some("h3ad3r"));
    assert_eq!(
        image.header("authorization").map(|h| &h[..6]),
        Some("Basic ")
    );
    let report = requests
        .iter()
        .rfind(|r| r.target.starts_with("/report"))
        .unwrap();
    assert_eq!(report.header("authorization"), Some("r3p0rt"));
    let body: serde_json::Value = serde_json::from_slice(&report.body).unwrap();
    assert_eq!(body["status"], "Success");
}

#[test]
fn a_report_that_cannot_be_delivered_does_not_undo_an_installation() {
    let image = gpt(8);
    let disk = LoopDevice::blank(16);
    let path = disk.directory().join("image");
    std::fs::write(&path, &image).unwrap();
    let server = FaultServer::start(|_| support::fault_server::status("403 Forbidden", &[]));
    let config = Config::new(path.to_str().unwrap(), &sha256(&image), &disk)
        .with("/report/url", json!(server.url("/report")));
    let begin = std::time::Instant::now();
    let ended = config.install(&[]).succeeded();
    assert!(
        ended.stderr.contains("the report was not delivered"),
        "{}",
        ended.stderr
    );
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_installed_gpt(&disk, &image, 512, 0);
}
