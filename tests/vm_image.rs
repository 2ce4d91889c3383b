//! The image of `scripts/build-image`, published in a registry: its own kernel and initrd, which carries ironroot, are
//! network-booted from there by iPXE, and run its squashfs from memory or install its disk.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them; those of `matrix_*` with --all).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/layout.rs"]
mod layout;
#[path = "support/machine.rs"]
mod machine;

use std::process::Command;

use machine::{Scenario, lab};

const REACHED: &str = "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=";

/// A machine that boots kernel and initrd of the image of `suite` from the registry.
fn scenario(name: &'static str, suite: &str, size: &str) -> Scenario {
    let image = format!("image-{suite}.oci");
    let manifest = layout::manifest(&lab(&image), "amd64");
    let blob = |name: &str, kind: &str| format!("{name}={}", layout::layer(&manifest, kind));
    let (kernel, initrd) = (blob("KERNEL", "kernel"), blob("INITRAMFS", "initramfs"));
    let work = format!("{name}-{suite}");
    let options = [
        "--work",
        &work,
        "--image",
        &image,
        "--disk-size",
        size,
        "--set",
        &kernel,
        "--set",
        &initrd,
    ];
    Scenario::new(name, &options)
}

/// The system found itself as it should, and nobody wrote to the machine's disk.
fn runs_from_memory(suite: &str) {
    let scenario = scenario("image-memory", suite, "64M");
    let console = scenario.boot(false, &[REACHED, "--wait-end"]).good();
    assert!(console.contains("failed=[]"), "{console}");
    let root = "IRONROOT-FACT root 755 0 0 rw,relatime overlay";
    assert!(console.contains(root), "{console}");
    assert!(
        console.contains("IRONROOT-FACT method overlay"),
        "{console}"
    );
    assert!(console.contains("IRONROOT-FACT programs 0"), "{console}");
    let reports = scenario.reports();
    assert!(reports.contains(r#""handoff":"sysroot""#), "{reports}");
    assert!(reports.contains(r#""status":"Success""#), "{reports}");
    let disk = std::fs::read(scenario.file("disk.raw")).unwrap();
    assert!(disk.len() == 64 << 20 && disk.iter().all(|b| *b == 0));
}

/// The firmware boots the disk: its program with the image's own kernel arguments, its root as large as the disk allows.
fn is_installed_and_boots(suite: &str) {
    let scenario = scenario("image-disk", suite, "3G");
    let console = scenario.boot(false, &["--timeout=500", "--until=installed: ", REACHED]);
    let console = console.good();
    assert!(console.contains("failed=[]"), "{console}");
    // Nothing of a session from memory is told there.
    assert!(!console.contains("IRONROOT-FACT"), "{console}");
    let reports = scenario.reports();
    assert!(reports.contains(r#""status":"Success""#), "{reports}");
    let disk = scenario.file("disk.raw");
    let tool = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).output().unwrap();
        String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
    };
    let disk = disk.to_str().unwrap();
    let verified = tool("sgdisk", &["-v", disk]);
    assert!(verified.contains("No problems found"), "{verified}");
    let parts = tool("sfdisk", &["--json", disk]);
    let parts: serde_json::Value = serde_json::from_str(&parts).unwrap();
    let root = &parts["partitiontable"]["partitions"][1];
    assert_eq!(root["name"], "root", "{parts}");
    assert!(root["size"].as_u64().unwrap() > (2 << 30) / 512, "{parts}");
}

#[test]
fn the_published_image_runs_from_memory_by_its_own_kernel_and_initrd() {
    runs_from_memory("bookworm");
}

#[test]
fn matrix_the_published_image_of_trixie_runs_from_memory() {
    runs_from_memory("trixie");
}

#[test]
fn matrix_the_published_image_is_installed_by_its_own_initrd_and_boots() {
    for suite in ["bookworm", "trixie"] {
        is_installed_and_boots(suite);
    }
}
