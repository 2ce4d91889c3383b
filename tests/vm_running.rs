//! A Debian that runs from memory on a UEFI machine installs itself: `ironroot install` copies its root to a disk,
//! and firmware boots that. Needs root and the artifacts of `scripts/lab`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/machine.rs"]
mod machine;

use std::fs;
use std::path::Path;
use std::process::Command;

use machine::{Boot, lab, project, with_config};
use serde_json::json;
use sha2::{Digest as _, Sha256};

fn sh(script: &str, args: &[&Path]) -> String {
    let out = Command::new("sh")
        .args(["-euc", script, "sh"])
        .args(args)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{script}: {errors}");
    String::from_utf8(out.stdout).unwrap()
}

/// What the session does once it is up, and what the installed system does not.
const UNIT: &str = "[Unit]
ConditionKernelCommandLine=live.install
After=multi-user.target
[Service]
Type=oneshot
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/console
ExecStart=/bin/sh -euc 'mount -t tmpfs other /srv; echo other >/srv/other; echo kept >/etc/made-in-the-session; ironroot install --config /etc/live.json; echo LIVE-INSTALLED; systemctl --no-block poweroff'
";

/// The lab's Debian for disks with the ironroot that is tested in it.
fn image(folder: &Path) {
    let config = json!({
        "apiVersion": "ironroot.dev/v1alpha1", "kind": "BootConfig",
        "image": { "url": "live:", "verifyDisk": true },
        "disk": {
            "select": { "serial": "live-disk" },
            "kernelArguments": { "append": ["console=ttyS0", "quiet", "systemd.show_status=1"] },
        },
    });
    fs::write(folder.join("live.json"), config.to_string()).unwrap();
    fs::write(folder.join("live.service"), UNIT).unwrap();
    sh(
        r#"cd "$1"; unsquashfs -q -n -d tree "$2" >/dev/null
        strip -o tree/usr/bin/ironroot "$3"; cp live.json tree/etc/
        cp live.service tree/etc/systemd/system/
        ln -s ../live.service tree/etc/systemd/system/multi-user.target.wants/
        mksquashfs tree image.squashfs -quiet -no-progress -comp zstd -Xcompression-level 1 >/dev/null
        truncate -s %1M image.squashfs; rm -rf tree"#,
        &[
            folder,
            &lab("debian-tree.squashfs"),
            Path::new(env!("CARGO_BIN_EXE_ironroot")),
        ],
    );
}

fn machine(folder: &Path, options: &[&str]) -> String {
    let log = folder.join("console.log");
    let mut command = Command::new(project().join("qemu/run"));
    command
        .args(["--firmware=uefi", "--net=none", "--memory=1024", "--quiet"])
        .arg(format!("--vars={}", folder.join("vars.fd").display()))
        .arg(format!("--serial-log={}", log.display()))
        .arg("--fail-on=Kernel panic|ironroot: parked|FAILED .code")
        .args(options);
    Boot::of(command, &log).good().replace('\r', "")
}

#[test]
fn matrix_a_session_from_memory_installs_itself() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    image(place);
    let disk = place.join("disk.raw");
    fs::File::create(&disk).unwrap().set_len(2 << 30).unwrap();
    let bytes = fs::read(place.join("image.squashfs")).unwrap();
    let digest = ironroot::units::hex(&Sha256::digest(&bytes));
    let session = json!({
        "apiVersion": "ironroot.dev/v1alpha1", "kind": "BootConfig",
        "image": { "url": "/dev/disk/by-id/virtio-live-image", "digest": format!("sha256:{digest}") },
        "memory": {},
    });
    let initrd = with_config(place, &session);
    let on_disk = format!("--disk={},bus=virtio,serial=live-disk", disk.display());
    let console = machine(
        place,
        &[
            &format!("--kernel={}", lab("kernel/vmlinuz").display()),
            &format!("--initrd={}", initrd.display()),
            "--append=console=ttyS0 quiet panic=10 ironroot.config=/config.json live.install",
            &on_disk,
            &format!(
                "--disk={},bus=virtio,serial=live-image",
                place.join("image.squashfs").display()
            ),
            "--no-reboot",
            "--timeout=500",
            "--until=other file systems are mounted in the root that is running.*/srv",
            "--until=boots by systemd-boot: kernel 6",
            "--until=LIVE-INSTALLED",
            "--until=Power down",
        ],
    );
    assert!(console.contains("nothing can prove it"), "{console}");
    let said = sh(r#"sgdisk -v "$1""#, &[&disk]);
    assert!(said.contains("No problems found"), "{said}");
    let said = sh(
        r#"at=$(sfdisk --json "$1" | grep -o '"start": *[0-9]*' | grep -o '[0-9]*' | sed -n 2p); mkdir "$2/root"
        mount -o "ro,noload,loop,offset=$((at * 512))" "$1" "$2/root"
        cd "$2/root"; cat etc/made-in-the-session; ls -A srv run tmp dev | wc -w; stat -c %s etc/machine-id
        test ! -e var/lib/systemd/random-seed; cd /; umount "$2/root""#,
        &[&disk, place],
    );
    // The four names that ls says, and nothing in them.
    assert_eq!(said, "kept\n4\n0\n");

    let console = machine(
        place,
        &[
            "--boot=disk",
            &on_disk,
            "--timeout=400",
            "--until=IRONROOT-DEMO-MULTI-USER-REACHED.*root=/dev/vda2.*failed=..",
        ],
    );
    assert!(!console.contains("ironroot: starting"), "{console}");
}
