//! Boot configs that are wrong, and servers of boot configs that are broken. Needs root.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::disk_image::{gpt, sha256};
use support::fault_server::{Act, FaultServer, head, ok, status};
use support::loop_device::LoopDevice;
use support::program::{Config, Ended, ironroot, stored};
use support::verdict::{Untouched, assert_pattern};

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
            good.replace("\"disk\"", "\"network\": {},\n  \"disk\""),
            7,
            &["network", "not supported in this version"],
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
fn config_from(server: &FaultServer, disk: &LoopDevice) -> (Ended, Duration) {
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
