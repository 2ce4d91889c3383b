//! The ways to a boot config other than `ironroot.config=` inside dracut's initrd, what else a config can ask for there,
//! and that nothing of its secrets is left in the system that was started.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/initrd.rs"]
mod initrd;
#[path = "support/machine.rs"]
mod machine;

use std::process::Command;

use initrd::{Initrd, fact, served};
use machine::{Scenario, lab};
use serde_json::{Value, json};

const DRACUT: Initrd = Initrd("bookworm-networkd");

#[test]
fn matrix_gl_url_runs_debian_in_dracut() {
    let scenario = initrd::scenario("initrd-gl");
    let words = "gl.url=http://boot.lab.example:8080/debian.squashfs gl.ovl=/:tmpfs gl.live=1";
    let console = DRACUT.runs(&scenario, words);
    assert!(
        console.contains("boot config from gl.url= on the kernel command line"),
        "{console}"
    );
    initrd::disk_is_untouched(&scenario);
}

/// Serves an Ignition config with `config` in it; gives the word that asks for it.
fn in_ignition(scenario: &Scenario, config: &Value) -> String {
    let text = config.to_string().replace('%', "%25").replace('#', "%23");
    let secret = format!("data:,{}-of-the-ignition", initrd::SECRET);
    let ignition = json!({
        "ignition": { "version": "3.4.0" },
        "storage": { "files": [
            { "path": "/etc/token", "contents": { "source": secret } },
            { "path": "/ironroot/config", "contents": { "source": format!("data:,{text}") } },
        ]},
    });
    std::fs::write(scenario.file("www/machine.ign"), ignition.to_string()).unwrap();
    "ignition.config.url=http://boot.lab.example:8080/machine.ign ignition.firstboot=1".to_owned()
}

/// In an Ignition config of other secrets, in headers and addresses, and the key of an encrypted source, which holds a
/// preserved path: `runs` looks for all of them in /run and what is mounted below, the journal and environments.
#[test]
fn matrix_an_ignition_config_in_dracut_leaves_no_secret_of_any_kind() {
    let scenario = initrd::scenario_with_blank_disk("initrd-ignition", 192 << 20);
    let folder = tempfile::tempdir().unwrap();
    let key = format!("{}-of-the-encrypted-source", initrd::SECRET);
    let file = DRACUT.with_files(folder.path(), &[("etc/keys/state", &key)]);
    let mut config = initrd::config();
    config["metadata"] = json!({ "claim": "a/1" });
    config["report"]["url"] = format!(
        "http://{0}-user:{0}-password@boot.lab.example:8080/report",
        initrd::SECRET
    )
    .into();
    config["preserve"] = json!([{
        "target": "/var/lib/systemd",
        "source": { "partlabel": "state", "disk": { "serial": "initrd-disk" } },
        "format": "IfBlank",
        "create": "160MiB",
        "luks": { "keyFile": "/etc/keys/state" },
    }]);
    let words = in_ignition(&scenario, &config);
    let console = DRACUT.runs_from(&file, &scenario, &words);
    assert!(
        console.contains("/ironroot/config of the Ignition config http://boot.lab.example"),
        "{console}"
    );
    assert_eq!(
        fact(&console, "preserved"),
        "[/var/lib/systemd ext4 rw writable]",
        "{console}"
    );
    // On the consoles neither.
    assert!(!console.contains(initrd::SECRET), "{console}");
    let disk = std::fs::read(scenario.file("disk.raw")).unwrap();
    let header = disk.windows(6).step_by(512);
    assert!(header.into_iter().any(|bytes| bytes == b"LUKS\xba\xbe"));
    let reports = scenario.reports();
    assert!(reports.contains(r#""status":"Success""#), "{reports}");
}

/// `veritysetup format`: the hash tree behind Debian's image, in the same file. Root hash and offset.
fn with_hash_tree(scenario: &Scenario) -> (String, u64) {
    let file = scenario.file("www/verity.squashfs");
    std::fs::copy(lab("debian.squashfs"), &file).unwrap();
    let offset = std::fs::metadata(&file).unwrap().len();
    let out = Command::new("veritysetup")
        .arg("format")
        .arg(format!("--hash-offset={offset}"))
        .arg(format!("--data-blocks={}", offset / 4096))
        .args([&file, &file])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let root = text.lines().find_map(|l| l.strip_prefix("Root hash:"));
    let root = root.unwrap_or_else(|| panic!("{out:?}"));
    (root.trim().to_owned(), offset)
}

#[test]
fn matrix_dm_verity_below_the_root_in_dracut() {
    let scenario = initrd::scenario("initrd-verity");
    let (root, offset) = with_hash_tree(&scenario);
    let mut config = initrd::config();
    config["image"] = json!({
        "url": "http://boot.lab.example:8080/verity.squashfs", "insecure": true,
    });
    config["memory"]["verity"] = json!({ "rootHash": root, "hashOffset": offset.to_string() });
    let words = served(&scenario, &config);
    let console = DRACUT.runs(&scenario, &words);
    assert!(
        console.contains("every block proven when it is read"),
        "{console}"
    );
    // The same with another root hash: nothing of the image can be read.
    config["memory"]["verity"]["rootHash"] = "0".repeat(64).into();
    let words = served(&scenario, &config);
    let emergency = DRACUT.emergency();
    let until = ["--until=FAILED .code 12.", emergency[0], emergency[1]];
    let console = DRACUT.boot(&scenario, &words, &until).good();
    assert!(!console.contains("MULTI-USER-REACHED"), "{console}");
    initrd::disk_is_untouched(&scenario);
}
