//! The documentation against the program: what it shows has to be true.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn ironroot(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ironroot"))
        .args(args)
        .output()
        .unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = ironroot(args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The fenced blocks of a kind in a document.
fn blocks<'a>(text: &'a str, kind: &str) -> Vec<&'a str> {
    text.split(&format!("```{kind}\n"))
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

#[test]
fn the_boot_configs_that_are_shown_are_good() {
    let folder = tempfile::tempdir().unwrap();
    let documents = ["README.md", "docs/memory.md"].map(read);
    for text in documents.iter().flat_map(|document| {
        let shown = blocks(document, "json");
        assert!(!shown.is_empty());
        shown
    }) {
        let file = folder.path().join("config.json");
        fs::write(&file, text).unwrap();
        let said = stdout(&["check", file.to_str().unwrap()]);
        assert!(said.ends_with(": good\n"), "{said}");
    }
}

/// The keys of the schema as the table writes them, `image.url`.
fn keys(schema: &Value, part: &Value, path: &str, out: &mut BTreeSet<String>) {
    let part = match part.get("$ref").and_then(Value::as_str) {
        Some(name) => schema.pointer(name.trim_start_matches('#')).unwrap(),
        None => part,
    };
    for option in part
        .get("anyOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        keys(schema, option, path, out);
    }
    if let Some(item) = part.get("items") {
        keys(schema, item, path, out);
    }
    for (name, inner) in part
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        keys(schema, inner, &path, out);
        // A section is its keys.
        if !out.iter().any(|key| key.starts_with(&format!("{path}."))) {
            out.insert(path);
        }
    }
}

#[test]
fn the_boot_config_with_preserved_paths_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let docs = read("docs/preserve.md");
    let shown = blocks(&docs, "json");
    let file = folder.path().join("config.json");
    fs::write(&file, shown[0]).unwrap();
    let said = stdout(&["check", file.to_str().unwrap()]);
    assert!(said.ends_with(": good\n"), "{said}");
    // A single entry, as it stands in the list.
    for entry in &shown[1..] {
        // A whole config of its own.
        if entry.contains("apiVersion") {
            fs::write(&file, entry).unwrap();
            assert!(stdout(&["check", file.to_str().unwrap()]).ends_with(": good\n"));
            continue;
        }
        let mut config: Value = serde_json::from_str(shown[0]).unwrap();
        config["preserve"] = Value::Array(vec![serde_json::from_str(entry).unwrap()]);
        fs::write(&file, config.to_string()).unwrap();
        assert!(stdout(&["check", file.to_str().unwrap()]).ends_with(": good\n"));
    }
}

#[test]
fn every_key_of_the_schema_is_in_the_docs() {
    let schema: Value = serde_json::from_str(&stdout(&["schema"])).unwrap();
    let mut all = BTreeSet::new();
    keys(&schema, &schema, "", &mut all);
    assert!(
        all.contains("image.url") && all.contains("disk.select.serial"),
        "{all:?}"
    );
    // Keys of the entries of a list stand there as `list[].key`.
    let docs = read("docs/boot-config.md").replace("[]", "");
    let missing: Vec<&String> = all
        .iter()
        // A whole section that is refused by name stands there with its own name only.
        .filter(|key| {
            let mut prefix = key.as_str();
            loop {
                let last = prefix.rsplit('.').next().unwrap();
                let forms = [
                    format!("`{prefix}`"),
                    format!("`{last}`"),
                    format!("`.{last}`"),
                ];
                if forms.iter().any(|form| docs.contains(form)) {
                    return false;
                }
                match prefix.rsplit_once('.') {
                    // `disk`, `image`, `metadata` alone say nothing of their keys.
                    Some((parent, _))
                        if !["disk", "image", "metadata", "report"].contains(&parent) =>
                    {
                        prefix = parent;
                    }
                    _ => return true,
                }
            }
        })
        .collect();
    assert!(
        missing.is_empty(),
        "docs/boot-config.md does not name {missing:?}"
    );
}

#[test]
fn the_exit_codes_of_the_docs_are_those_of_the_program() {
    let docs = read("docs/operators.md");
    for class in ironroot::error::Class::ALL {
        assert!(
            docs.contains(&format!("| {} |", class.exit_code())),
            "{class:?}"
        );
    }
}

#[test]
fn the_initramfs_packs_exactly_the_programs_that_ironroot_may_run() {
    let listed = read("initramfs/tools.list");
    let packed: BTreeSet<&str> = listed
        .lines()
        .map(|line| line.split('#').next().unwrap().trim())
        // An absolute path is a plain file that a program reads.
        .filter(|line| !line.is_empty() && !line.starts_with('/'))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let said = stdout(&["tools"]);
    let wanted: BTreeSet<&str> = said
        .lines()
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    for tool in &wanted {
        assert!(
            packed.contains(tool),
            "{tool} is missing in initramfs/tools.list: {packed:?}"
        );
    }
    let json: Value = serde_json::from_str(&stdout(&["tools", "--json"])).unwrap();
    let names: BTreeSet<&str> = json
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|tool| tool["names"].as_array().unwrap())
        .map(|name| name.as_str().unwrap())
        .collect();
    for program in &packed {
        assert!(
            names.contains(program),
            "nothing runs {program} of initramfs/tools.list"
        );
    }
}

#[test]
fn the_disks_are_listed_for_people_and_for_machines() {
    let listed: Value = serde_json::from_str(&stdout(&["disks", "--json"])).unwrap();
    let text = stdout(&["disks"]);
    // Other tests attach and detach loop devices meanwhile.
    for disk in listed
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["kind"] == "disk")
    {
        assert!(text.contains(disk["path"].as_str().unwrap()), "{text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let status = Command::new("bash")
        .args([
            "-c",
            "set -o pipefail; \"$1\" schema | head -c 1 >/dev/null",
            "bash",
        ])
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn wrong_words_are_a_usage_error() {
    for args in [
        &["frobnicate"][..],
        &["install", "--no-such-flag"],
        &["boot"],
        &["install", "--overwrite", "always", "--image", "/x"],
    ] {
        assert_eq!(ironroot(args).status.code(), Some(2), "{args:?}");
    }
}

/// What docs/troubleshooting.md quotes of ironroot, and where that is said; `{…}` stands for what differs.
#[test]
fn the_messages_that_troubleshooting_quotes_are_said() {
    let quoted = read("docs/troubleshooting.md");
    let script = "initramfs/tools-hook/script";
    let hook = "dracut-module/50ironroot/network-ironroot.sh";
    for (message, place) in [
        ("the network did not come up", script),
        ("ironroot failed; its reason is above", script),
        (
            "ironroot failed; its reason is above",
            "dracut-module/50ironroot/mount-ironroot.sh",
        ),
        ("no port has an address yet", hook),
        (
            "nothing on the kernel command line asks for it",
            "src/cli/initrd.rs",
        ),
        ("ended by ", "src/cli/ended.rs"),
        ("while at work", "src/cli/ended.rs"),
        ("the initrd's PID 1 ended it", "src/cli/ended.rs"),
        ("trying again in ", "src/report/console.rs"),
        (
            "names are asked for at ",
            "src/init/network/name_servers.rs",
        ),
    ] {
        assert!(quoted.contains(message), "{message} is not quoted");
        assert!(
            read(place).contains(message),
            "{place} does not say {message}"
        );
    }
}
