//! An installed Debian with preserved paths on the very disk: its systemd mounts them from its fstab at each boot,
//! unmounts them, and a reinstallation leaves them as they are.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/machine.rs"]
mod machine;

use std::path::Path;

use machine::{Direct, fact, lab};
use serde_json::{Value, json};

/// Counts boots on two of the paths, says how they are mounted, and switches off.
const COUNT: &str = r#"[Service]
ExecStart=
ExecStart=/bin/sh -c 'for p in /var/lib/kubelet /opt/upper; do n=$(cat $p/count 2>/dev/null || echo 0); echo $((n+1)) >$p/count; echo "IRONROOT-FACT count $p $((n+1)) $(findmnt -no FSTYPE,OPTIONS $p | tr -s " " | cut -d, -f1-4)"; done; echo "IRONROOT-FACT state $(stat -c %%a /run/ironroot/state) $(findmnt -no OPTIONS /run/ironroot/state/0)"; echo "IRONROOT-FACT id $(cat /etc/machine-id)"; echo "IRONROOT-FACT key $(cat /etc/ssh/ssh_host_key)"; echo "IRONROOT-FACT first $(systemctl is-active first-boot-complete.target)"; echo "IRONROOT-FACT failed [$(systemctl --failed --no-legend --plain)]"; echo IRONROOT-LASTING-END; systemctl --no-block poweroff'
"#;

fn config(generation: u32) -> Value {
    let sums = std::fs::read_to_string(lab("debian.raw.sha256")).unwrap();
    let digest = sums.split_whitespace().next().unwrap();
    let source = json!({ "partlabel": "state" });
    json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "metadata": { "claim": "a/1", "generation": generation },
        "image": { "url": "/dev/vda", "digest": format!("sha256:{digest}") },
        "disk": {
            "select": { "serial": "state" },
            "overwrite": "IfOurs",
            "keep": ["state"],
            "partitions": [{ "label": "state", "size": "Rest", "filesystem": "ext4" }],
            "files": [
                { "path": "/etc/systemd/system/ironroot-demo.service.d/count.conf", "contents": COUNT },
                { "path": "/etc/ssh/ssh_host_key", "contents": format!("key-{generation}\n"), "mode": "0600" },
            ],
        },
        "preserve": [
            { "target": "/var/lib/kubelet", "source": source, "subdir": "kubelet", "mode": "0750", "options": ["noexec"] },
            { "target": "/opt/upper", "source": source, "subdir": "upper", "method": "overlay" },
            { "target": "/etc/ssh/ssh_host_key", "source": source, "subdir": "key", "kind": "file", "seed": "FromImageOnce" },
            { "target": "/etc/machine-id", "source": source, "subdir": "id", "kind": "file" },
        ],
        "then": "Kexec",
    })
}

/// Boots the machine over the network, so to speak, until the installed system has switched it off.
fn boot(folder: &Path, generation: u32, marker: &str) -> String {
    let packed = machine::with_config(folder, &config(generation));
    let target = folder.join("state.raw");
    if !target.exists() {
        let disk = std::fs::File::create(&target).unwrap();
        disk.set_len(760 << 20).unwrap();
    }
    let image = folder.join("image.raw");
    if !image.exists() {
        std::fs::copy(lab("debian.raw"), &image).unwrap();
    }
    let disk = format!("--disk={},bus=virtio,serial=state", target.display());
    let until = format!("--until={marker}");
    let words = "ip=off ironroot.on-failure=poweroff ironroot.config=/config.json";
    Direct::of(&lab("kernel/vmlinuz"), &packed, &image, words)
        .run(&[
            &disk,
            "--memory=1024",
            "--net=none",
            &until,
            "--until=IRONROOT-LASTING-END",
            "--wait-end",
        ])
        .good()
}

#[test]
fn an_installed_debian_keeps_its_paths_over_boots_and_reinstallations() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = boot(folder, 1, "ironroot: installed: ");
    assert_eq!(
        fact(&first, "count /var/lib/kubelet"),
        "1 ext4 rw,nosuid,nodev,noexec"
    );
    assert!(
        fact(&first, "count /opt/upper").starts_with("1 overlay rw,nosuid,nodev"),
        "{first}"
    );
    assert_eq!(fact(&first, "failed"), "[]");
    let state = fact(&first, "state");
    assert!(
        state.starts_with("700 ") && state.contains("errors=remount-ro"),
        "{state}"
    );
    let id = fact(&first, "id").to_owned();
    assert_eq!(id.len(), 32);

    let second = boot(folder, 1, "already: boot it, write nothing");
    assert_eq!(
        fact(&second, "count /var/lib/kubelet"),
        "2 ext4 rw,nosuid,nodev,noexec"
    );
    assert!(fact(&second, "count /opt/upper").starts_with("2 "));
    assert_eq!(fact(&second, "id"), id);

    let third = boot(folder, 2, "ironroot: installed: ");
    assert!(
        third.contains("is kept as it is, not made again"),
        "{third}"
    );
    assert!(fact(&third, "count /var/lib/kubelet").starts_with("3 "));
    assert!(fact(&third, "count /opt/upper").starts_with("3 "));
    assert_eq!(fact(&third, "id"), id);
    assert_eq!(fact(&third, "key"), "key-1", "the first image's, for ever");
    assert_eq!(fact(&third, "failed"), "[]");

    // Unmounted in order.
    let state = folder.join("state.raw");
    let table = std::process::Command::new("sgdisk")
        .arg("-v")
        .arg(&state)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("No problems found"));
    let place = format!("{}?offset={}", state.display(), 576u64 << 20);
    let out = std::process::Command::new("dumpe2fs")
        .args(["-h", &place])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        text.contains("Filesystem state:         clean") && !text.contains("needs_recovery"),
        "{text}"
    );
}
