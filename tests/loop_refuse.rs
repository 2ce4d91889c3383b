//! What ironroot refuses, on loop devices: the exit code, what the message names, and that nothing was
//! written or that what was begun does not boot. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use nix::libc;
use serde_json::json;
use support::disk_image::{MIB, compressed, gpt, gpt_4096, mbr, sha256};
use support::fault_server::{Act, FaultServer, head, ok, status};
use support::loop_device::{LoopDevice, PATTERN, tool};
use support::program::{Config, install, ironroot};
use support::verdict::{Untouched, assert_no_tail, assert_not_bootable, assert_pattern};

const ALWAYS: &[&str] = &["--overwrite", "Always"];

/// An image in a file.
fn stored(image: &[u8]) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, image).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

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
                End::InOrder | End::Close => vec![&got, "cut short"],
            };
            println!("{program} {end:?}");
            let broke = matches!(end, End::Short | End::Reset);
            ended.failed_with(if broke { 11 } else { 12 }, &parts);
            if program == "cat" && end == End::InOrder {
                // The image's own table told it before anything was written.
                assert_pattern(&disk);
            } else if end != End::Reset || disk.bytes()[0] != PATTERN {
                assert_not_bootable(&disk);
            } else {
                // So early that nothing was begun.
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

#[test]
fn a_mounted_disk_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::blank(16);
    tool("mkfs.ext4", &["-q", disk.arg()]);
    let place = disk.directory().join("with a blank");
    std::fs::create_dir(&place).unwrap();
    tool("mount", &[disk.arg(), place.to_str().unwrap()]);
    let before = disk.bytes();
    let ended = install(&path, "", &disk, ALWAYS);
    let after = disk.bytes();
    tool("umount", &[place.to_str().unwrap()]);
    ended.failed_with(13, &["in use", "mounted", place.to_str().unwrap()]);
    assert!(before == after);
}

#[test]
fn a_disk_whose_partition_is_mounted_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::holding(&gpt(16));
    tool("partx", &["--add", disk.arg()]);
    let partition = format!("{}p1", disk.arg());
    tool("mkfs.ext4", &["-q", &partition]);
    let place = disk.directory().join("m");
    std::fs::create_dir(&place).unwrap();
    tool("mount", &[&partition, place.to_str().unwrap()]);
    let ended = install(&path, "", &disk, ALWAYS);
    tool("umount", &[place.to_str().unwrap()]);
    ended.failed_with(
        13,
        &[
            "in use",
            &format!("{}p1", disk.name()),
            place.to_str().unwrap(),
        ],
    );
    let text = tool("sgdisk", &["--verify", disk.arg()]);
    assert!(text.contains("No problems found"), "{text}");
}

#[test]
fn a_disk_used_as_swap_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::blank(16);
    tool("mkswap", &[disk.arg()]);
    tool("swapon", &[disk.arg()]);
    let before = disk.bytes();
    let ended = install(&path, "", &disk, ALWAYS);
    let after = disk.bytes();
    tool("swapoff", &[disk.arg()]);
    ended.failed_with(13, &["in use", "swap"]);
    assert!(before == after);
}

#[test]
fn a_disk_below_another_device_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::patterned(16);
    let upper = tool("losetup", &["--find", "--show", disk.arg()]);
    let upper = upper.trim();
    let ended = install(&path, "", &disk, ALWAYS);
    tool("losetup", &["--detach", upper]);
    ended.failed_with(13, &["in use", upper.trim_start_matches("/dev/")]);
    assert_pattern(&disk);
}

#[test]
fn a_disk_that_appears_late_is_waited_for_and_no_longer_than_asked() {
    let (directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::blank(16);
    let link = directory.path().join("by-path");
    let begin = Instant::now();
    let run = |wait: &str| {
        let link = link.to_str().unwrap();
        let flags = [
            "--json", "install", "--wait", wait, "--image", &path, "--disk", link,
        ];
        ironroot(&flags)
    };
    let ended = run("1s").failed_with(13, &["waiting for disk", "does not exist"]);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert!(begin.elapsed() < Duration::from_secs(8));
    assert_eq!(
        ended
            .events()
            .iter()
            .filter(|e| e["event"] == "waiting")
            .count(),
        1
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            std::os::unix::fs::symlink(disk.path(), &link).unwrap();
        });
        run("20s").succeeded();
    });
    assert_eq!(disk.partitions(), [1]);
}

#[test]
fn a_partition_is_no_target() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::holding(&gpt(16));
    tool("partx", &["--add", disk.arg()]);
    let before = Untouched::of(&disk);
    ironroot(&[
        "install",
        "--image",
        &path,
        "--overwrite",
        "Always",
        "--disk",
        &format!("{}p1", disk.arg()),
    ])
    .failed_with(
        13,
        &[&format!("partition 1 of {}", disk.name()), disk.arg()],
    );
    before.check();
}

#[test]
fn what_is_no_disk_is_refused_and_nothing_is_created() {
    let (directory, path) = stored(&mbr(4, 3));
    let target = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(target("file"), vec![PATTERN; 8 * MIB]).unwrap();
    std::os::unix::fs::symlink(target("nowhere"), target("link")).unwrap();
    for (disk, part) in [
        (target("missing"), "does not exist"),
        (target("link"), "does not exist"),
        (target("file"), "is a regular file"),
        (target("."), "is a directory"),
        ("/dev/null".to_owned(), "not a disk"),
    ] {
        let flags = [
            "install",
            "--image",
            &path,
            "--overwrite",
            "Always",
            "--disk",
            &disk,
        ];
        ironroot(&flags).failed_with(13, &[&disk, part]);
        if !disk.ends_with("file") {
            let mut flags = flags.to_vec();
            flags.push("--allow-file");
            ironroot(&flags).failed_with(13, &[&disk, part]);
        }
    }
    let mut names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["file", "image", "link"]);
    let file = std::fs::read(target("file")).unwrap();
    assert!(file == vec![PATTERN; 8 * MIB]);
}

#[test]
fn a_read_only_disk_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::attached(&vec![0; 16 * MIB], &["--read-only"]);
    install(&path, "", &disk, ALWAYS).failed_with(13, &[disk.name(), "read-only"]);
}

#[test]
fn a_disk_that_another_program_has_locked_or_claimed_is_refused() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::patterned(16);
    let open = |flags| {
        std::fs::File::options()
            .read(true)
            .custom_flags(flags)
            .open(disk.path())
            .unwrap()
    };
    let claimed = open(libc::O_EXCL);
    install(&path, "", &disk, ALWAYS).failed_with(13, &[disk.arg(), "in use"]);
    drop(claimed);
    let locked = open(0);
    let locked = nix::fcntl::Flock::lock(locked, nix::fcntl::FlockArg::LockShared).unwrap();
    install(&path, "", &disk, ALWAYS).failed_with(13, &[disk.arg(), "locked by another program"]);
    drop(locked);
    assert_pattern(&disk);
}

#[test]
fn no_match_shows_every_disk_and_why_it_does_not_serve() {
    let (_directory, path) = stored(&mbr(4, 3));
    let disk = LoopDevice::patterned(16);
    let flags = [
        "install",
        "--image",
        &path,
        "--overwrite",
        "Always",
        "--disk",
    ];
    let run = |selector: &str| ironroot(&[&flags[..], &[selector]].concat());
    // A loop device is taken only when its very path is given, not by what it happens to match.
    run("size=16MiB").failed_with(
        13,
        &[
            "no disk matches size=",
            disk.name(),
            "only when named by path",
        ],
    );
    run("size=16MiB,serial=none-has-this").failed_with(13, &["none-has-this", "does not match"]);
    run("path=/dev/disk/by-id/nothing-*").failed_with(13, &["no disk matches", disk.name()]);
    // The path is right and the rest is not.
    run(&format!("path={},size=>=1TiB", disk.arg()))
        .failed_with(13, &[disk.name(), "the path matches, the rest does not"]);
    assert_pattern(&disk);
}

#[test]
fn a_disk_that_holds_data_is_refused_unless_overwrite_says_so() {
    let image = mbr(4, 3);
    let (_directory, path) = stored(&image);
    for (script, found) in [
        (&["mkfs.ext4", "-q", "-L", "precious"][..], "precious"),
        (&["mkfs.vfat", "-n", "STICK"], "vfat"),
        (&["mkswap"], "swap"),
        (&["sgdisk", "--new=1:2048:4096"], "gpt"),
    ] {
        let disk = LoopDevice::blank(16);
        let args = [&script[1..], &[disk.arg()]].concat();
        tool(script[0], &args);
        let before = Untouched::of(&disk);
        for more in [&[][..], &["--overwrite", "IfOurs"]] {
            install(&path, "", &disk, more).failed_with(13, &["not blank", found, "Always"]);
        }
        ironroot(&["plan", "--image", &path, "--disk", disk.arg()])
            .failed_with(13, &["not blank", found]);
        before.check();
    }
    // A lone backup GPT at the end is data as well.
    let mut content = vec![0; 16 * MIB];
    let at = content.len() - 33 * 512;
    content[at..].copy_from_slice(&gpt(16)[at..]);
    let disk = LoopDevice::holding(&content);
    let before = Untouched::of(&disk);
    install(&path, "", &disk, &[]).failed_with(13, &["not blank"]);
    before.check();
}

#[test]
fn an_unknown_selector_key_names_the_known_ones() {
    let disk = LoopDevice::patterned(16);
    let flags = ["install", "--image", "/nowhere", "--disk", "serail=x"];
    ironroot(&flags).failed_with(2, &["serail", "serial", "wwn", "hctl"]);
    let config = Config::new("/nowhere", &format!("sha256:{}", "0".repeat(64)), &disk)
        .with("/disk/select/serail", json!("x"));
    let parts = ["disk.select.serail", "`serial`", "`wwn`", "`hctl`", "line "];
    config.install(&[]).failed_with(10, &parts);
    for wrong in ["--overwrite=Sometimes", "--digest=md5:00", "--pick=Any"] {
        ironroot(&[
            "install",
            "--image",
            "/nowhere",
            "--disk",
            disk.arg(),
            wrong,
        ])
        .failed_with(2, &[wrong.split('=').next().unwrap()]);
    }
    assert_pattern(&disk);
}

#[test]
fn a_wrong_config_is_told_with_path_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.json");
    let file = file.to_str().unwrap();
    let good = r#"{
  "apiVersion": "ironroot.dev/v1alpha1",
  "kind": "BootConfig",
  "image": {
    "url": "/nowhere"
  },
  "disk": {
    "select": { "path": "/dev/nowhere" }
  }
}"#;
    for (text, line, parts) in [
        ("<html>".to_owned(), 1, &["not JSON"][..]),
        (good[..40].to_owned(), 2, &["not JSON"]),
        (
            good.replace("\"url\"", "\"urll\""),
            5,
            &["image.urll", "unknown field", "`url`"],
        ),
        (
            good.replace("{ \"path\": \"/dev/nowhere\" }", "\n7"),
            9,
            &["disk.select", "invalid type"],
        ),
        (
            good.replace("\"disk\"", "\"memory\": {},\n  \"disk\""),
            7,
            &["memory", "both `disk` and `memory`"],
        ),
        (
            good.replace("v1alpha1", "v7"),
            2,
            &["apiVersion", "ironroot.dev/v7"],
        ),
        (
            good.replace("BootConfig", "Ignition"),
            3,
            &["kind", "Ignition"],
        ),
        (
            good.replace("\"select\"", "\"grow\": \"root\",\n    \"select\""),
            8,
            &["disk.grow", "not supported in this version"],
        ),
    ] {
        std::fs::write(file, &text).unwrap();
        let line = format!("line {line}: ");
        let parts = [parts, &[&line]].concat();
        let mut ended = ironroot(&["check", file]);
        // `check` shows what it found; nothing failed but the config.
        std::mem::swap(&mut ended.stdout, &mut ended.stderr);
        ended.failed_with(10, &parts);
        ironroot(&["install", "--config", file]).failed_with(10, &parts);
        ironroot(&["plan", "--config", file]).failed_with(10, &parts);
        let ended = ironroot(&["--json", "check", file]);
        let document: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let path = parts[0];
        if path != "not JSON" {
            assert_eq!(document[0]["problems"][0]["path"], path);
        }
    }
    std::fs::write(file, good).unwrap();
    assert_eq!(ironroot(&["check", file]).code, Some(0));
    ironroot(&["install", "--config", "/nowhere.json"]).failed_with(11, &["/nowhere.json"]);
}

/// A server of boot configs that needs some patience; how it ended, how long it took.
fn config_from(server: &FaultServer, disk: &LoopDevice) -> (support::program::Ended, Duration) {
    let before = Untouched::of(disk);
    let begin = Instant::now();
    let url = server.url("/config.json");
    let ended = ironroot(&[
        "--json",
        "install",
        "--retry-for",
        "1500ms",
        "--config",
        &url,
    ]);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}: {}", ended.stderr);
    if ended.code != Some(0) {
        before.check();
    }
    (ended, took)
}

#[test]
fn a_config_server_that_heals_is_waited_for() {
    let image = gpt(8);
    let (_directory, path) = stored(&image);
    for broken in [
        "500 Internal Server Error",
        "404 Not Found",
        "503 Service Unavailable",
    ] {
        let disk = LoopDevice::blank(16);
        let config = Config::new(&path, &sha256(&image), &disk).value.to_string();
        let server = FaultServer::start(move |request| {
            if request.number < 2 {
                status(broken, &[])
            } else {
                ok(config.as_bytes())
            }
        });
        let (ended, _) = config_from(&server, &disk);
        let ended = ended.succeeded();
        let retries = ended.events();
        let retries: Vec<_> = retries.iter().filter(|e| e["event"] == "retry").collect();
        assert_eq!(retries.len(), 2);
        assert!(retries[0]["error"].as_str().unwrap().contains(&broken[..3]));
    }
}

#[test]
fn a_config_server_that_does_not_heal_ends_the_run_in_time() {
    let disk = LoopDevice::blank(16);
    let server = FaultServer::start(|_| status("404 Not Found", &[]));
    config_from(&server, &disk).0.failed_with(11, &["404"]);
    assert!(server.requests().len() > 1);

    let server = FaultServer::start(|_| status("500 Oh", &[]));
    config_from(&server, &disk).0.failed_with(11, &["500"]);
    assert!(server.requests().len() > 1);

    let server = FaultServer::start(|_| status("302 Found", &[("Location", "/config.json")]));
    let (ended, _) = config_from(&server, &disk);
    ended.failed_with(11, &["redirects"]);

    // Half of an answer, again and again.
    let server = FaultServer::start(|_| {
        vec![
            head("200 OK", &[("Content-Length", "9")]),
            Act::Send(b"{".to_vec()),
        ]
    });
    config_from(&server, &disk)
        .0
        .failed_with(11, &["1 of 9 bytes"]);

    // Nobody listens there any more.
    let gone = FaultServer::start(|_| vec![]);
    let url = gone.url("/config.json");
    drop(gone);
    let begin = Instant::now();
    ironroot(&["install", "--retry-for", "1500ms", "--config", &url])
        .failed_with(11, &["/config.json"]);
    assert!(begin.elapsed() > Duration::from_secs(1));
    assert!(begin.elapsed() < Duration::from_secs(8));
}

#[test]
fn a_config_server_that_hangs_ends_the_run_in_time() {
    let disk = LoopDevice::blank(16);
    let server = FaultServer::start(|_| vec![Act::Silence]);
    config_from(&server, &disk)
        .0
        .failed_with(11, &["config.json"]);
    let server = FaultServer::start(|_| {
        vec![
            head("200 OK", &[("Content-Length", "900")]),
            Act::Send(b"{".to_vec()),
            Act::Silence,
        ]
    });
    config_from(&server, &disk)
        .0
        .failed_with(11, &["config.json"]);
}
