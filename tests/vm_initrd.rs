//! ironroot as the helper inside the initrds that Debian's own builders make: dracut with each of its network programs,
//! dracut without systemd, initramfs-tools. Machines boot from memory without `root=`, with a boot config at a name
//! that only the lease's DNS server knows; failures reach the initrd's own emergency handling.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them; those of `matrix_*` with --all).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/machine.rs"]
mod machine;

use machine::{Boot, Direct, Scenario, lab};

const CONFIG: &str = "ironroot.config=http://boot.lab.example:8080/config.json";

/// What dracut does after a failure, where nobody is there to use a shell.
const EMERGENCY: &str = "rd.shell=0 rd.emergency=poweroff";

/// A machine without disk content whose kernel and initrd are given directly; the first part of the initrd's
/// name is its suite.
fn boot(scenario: &Scenario, initrd: &str, words: &str, more: &[&str]) -> Boot {
    let suite = initrd.split('-').next().unwrap();
    let line = format!("console=ttyS0 quiet panic=10 systemd.show_status=1 demo.poweroff {words}");
    let kernel = lab(&format!("initrd/{suite}.vmlinuz"));
    let initrd = lab(&format!("initrd/{initrd}.img"));
    let mut options = vec![
        "--kernel",
        kernel.to_str().unwrap(),
        "--initrd",
        initrd.to_str().unwrap(),
        "--append",
        &line,
        "--wait-end",
    ];
    options.extend(more);
    scenario.boot(false, &options)
}

fn scenario(work: &'static str) -> Scenario {
    Scenario::new("memory-initrd", &["--disk-size", "64M", "--work", work])
}

#[track_caller]
fn disk_is_untouched(scenario: &Scenario) {
    let disk = std::fs::read(scenario.file("disk.raw")).unwrap();
    assert_eq!(disk.len(), 64 << 20);
    assert!(disk.iter().all(|b| *b == 0), "the disk was written to");
}

/// Debian runs from memory, and finds itself as it should.
#[track_caller]
fn runs(initrd: &'static str, words: &str) {
    let scenario = scenario(initrd);
    let reached = "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=";
    let console = boot(&scenario, initrd, words, &[reached]).good();
    assert!(console.contains("failed=[]"), "{console}");
    assert!(
        console.contains("IRONROOT-FACT root 755 0 0 rw,relatime overlay"),
        "{console}"
    );
    assert!(
        console.contains("IRONROOT-FACT run 755 rw,nosuid,nodev"),
        "{console}"
    );
    assert!(
        console.contains("IRONROOT-FACT method overlay"),
        "{console}"
    );
    assert!(console.contains("IRONROOT-FACT programs 0"), "{console}");
    assert!(
        console.contains("IRONROOT-FACT signals SigIgn: 0000000000001000"),
        "{console}"
    );
    let reports = scenario.reports();
    assert!(reports.contains(r#""handoff":"sysroot""#), "{reports}");
    assert!(reports.contains(r#""status":"Success""#), "{reports}");
    disk_is_untouched(&scenario);
}

/// A failure: our reason on the console, then what the initrd itself does about it.
#[track_caller]
fn fails(initrd: &str, work: &'static str, words: &str, markers: &[&str]) -> String {
    let scenario = scenario(work);
    let console = boot(&scenario, initrd, words, markers).good();
    assert!(!console.contains("MULTI-USER-REACHED"), "{console}");
    assert!(console.contains("next:"), "{console}");
    disk_is_untouched(&scenario);
    console
}

#[test]
fn dracut_with_networkd_runs_debian_by_a_name_of_the_lease() {
    runs("bookworm-networkd", &format!("{CONFIG} {EMERGENCY}"));
}

/// A path on the disk, which is blank at first, in an initrd that systemd runs: the system that it starts writes to it,
/// and unmounts it.
#[test]
fn dracut_keeps_a_preserved_path_mounted_into_debian() {
    let sum = std::fs::read_to_string(lab("debian.squashfs.sha256")).unwrap();
    let config = serde_json::json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": {
            "url": "http://10.0.2.2:8080/debian.squashfs",
            "digest": format!("sha256:{}", sum.split_whitespace().next().unwrap()),
        },
        "memory": {},
        "preserve": [{
            "target": "/var/lib/systemd",
            "source": { "disk": { "serial": "initrd-disk" } },
            "subdir": "state",
            "format": "IfBlank",
        }],
    });
    let config = config.to_string().replace('"', "%22");
    let words = format!("ironroot.config=data:,{config} {EMERGENCY}");
    let scenario = scenario("initrd-preserve");
    let reached = "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=";
    let console = boot(&scenario, "bookworm-networkd", &words, &[reached]).good();
    assert!(console.contains("failed=[]"), "{console}");
    let disk = scenario.file("disk.raw");
    let disk = disk.to_str().unwrap();
    let tool = |program: &str, args: &[&str]| {
        let out = std::process::Command::new(program)
            .args(args)
            .output()
            .unwrap();
        String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
    };
    // What systemd saves when the machine goes down.
    let seed = tool("debugfs", &["-R", "stat /state/random-seed", disk]);
    assert!(seed.contains("Type: regular"), "{seed}");
    let header = tool("dumpe2fs", &["-h", disk]);
    assert!(
        header.contains("Filesystem state:         clean") && !header.contains("needs_recovery"),
        "{header}"
    );
}

#[test]
fn initramfs_tools_panics_with_the_reason_and_restarts() {
    let words =
        "boot=ironroot ironroot.timeout=3s ironroot.config=http://boot.lab.example:8080/no.json";
    let console = fails(
        "bookworm-tools",
        "tools-404",
        words,
        &[
            "--until=FAILED .code 11.",
            "--until=Rebooting automatically",
        ],
    );
    assert!(console.contains("404 Not Found"), "{console}");
    assert!(
        console.contains("ironroot failed; its reason is above"),
        "{console}"
    );
}

#[test]
fn matrix_initramfs_tools_runs_debian() {
    for initrd in ["bookworm-tools", "trixie-tools"] {
        runs(initrd, &format!("boot=ironroot {CONFIG}"));
    }
}

#[test]
fn matrix_dracut_106_runs_debian() {
    runs("trixie-networkd", &format!("{CONFIG} {EMERGENCY}"));
}

#[test]
fn matrix_every_network_program_of_dracut() {
    for initrd in ["bookworm-network-manager", "bookworm-network-legacy"] {
        runs(initrd, &format!("{CONFIG} {EMERGENCY}"));
    }
}

#[test]
fn matrix_dracut_without_systemd_runs_debian() {
    runs("bookworm-no-systemd", &format!("{CONFIG} {EMERGENCY}"));
}

/// Our reason first, then the unit, then the machine going off.
#[track_caller]
fn config_is_missing(initrd: &str, work: &'static str) {
    let words = format!(
        "ironroot.timeout=3s ironroot.config=http://boot.lab.example:8080/no.json {EMERGENCY}"
    );
    let markers = [
        "--until=FAILED .code 11.",
        "--until=Failed.*to start.*ironroot",
        "--until=Power down",
    ];
    let console = fails(initrd, work, &words, &markers);
    assert!(console.contains("404 Not Found"), "{console}");
    assert!(console.contains("Dependency failed for"), "{console}");
}

#[test]
fn a_config_that_is_not_there_reaches_dracuts_emergency_handling() {
    config_is_missing("bookworm-networkd", "dracut-404");
}

#[test]
fn matrix_a_config_that_is_not_there_reaches_the_emergency_handling_of_dracut_106() {
    config_is_missing("trixie-networkd", "dracut-106-404");
}

#[test]
fn matrix_a_wrong_digest_reaches_the_emergency_handling_at_once() {
    let scenario = "digest";
    let config = r#"{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{"url":"http://10.0.2.2:8080/debian.squashfs","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"},"memory":{}}"#;
    let words = format!(
        "ironroot.config=data:,{} {EMERGENCY}",
        config.replace('"', "%22")
    );
    let markers = ["--until=FAILED .code 12.", "--until=Power down"];
    let console = fails("bookworm-networkd", scenario, &words, &markers);
    assert!(!console.contains("trying again"), "{console}");
}

#[test]
fn matrix_no_network_ends_with_the_reason_and_the_emergency_handling() {
    let words = format!("ironroot.timeout=3s {CONFIG} {EMERGENCY}");
    let markers = [
        "--net=none",
        "--until=FAILED .code 11.",
        "--until=Power down",
    ];
    fails("bookworm-networkd", "no-network", &words, &markers);
}

/// The lab's Debian disk, started with an initrd that has ironroot in it and a command line that does not ask for it.
#[test]
fn matrix_an_installed_system_boots_without_waiting_for_a_network() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.raw");
    std::fs::copy(lab("debian.raw"), &disk).unwrap();
    let words =
        "root=PARTUUID=deb1a000-0000-4000-8000-0000000000a2 rw systemd.show_status=1 demo.poweroff";
    // No network card: whoever waits for the network waits until the time limit.
    let console = Direct::of(
        &lab("initrd/bookworm.vmlinuz"),
        &lab("initrd/bookworm-networkd.img"),
        &disk,
        words,
    )
    .run(&[
        "--net=none",
        "--memory=1024",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED .*failed=",
        "--wait-end",
    ])
    .good();
    assert!(
        console.contains("nothing on the kernel command line asks for it"),
        "{console}"
    );
    assert!(console.contains("root=/dev/vda2"), "{console}");
    assert!(!console.contains("Wait for Network"), "{console}");
}

/// The helper installs, and restarts the machine as `then` says.
#[test]
fn matrix_dracut_installs_a_disk_and_restarts() {
    let markers = [
        "--until=done: the machine restarts now",
        "--until=reboot: Restarting system",
    ];
    installs_and("Reboot", "dracut-disk", &markers);
}

/// The helper loads the installed system's own kernel, and it runs.
#[test]
fn matrix_dracut_installs_a_disk_and_starts_its_kernel() {
    let markers = [
        "--until=loaded .*BOOTX64.EFI",
        "--until=the installed system's own kernel starts now",
        "--until=IRONROOT-TINY-BOOTED.*payload=ok",
    ];
    installs_and("Kexec", "dracut-kexec", &markers);
}

/// The installed root has no modules for dracut's kernel: its own kernel is started, said so.
#[test]
fn matrix_dracut_installs_a_disk_whose_root_does_not_fit_this_kernel() {
    let markers = [
        "--until=its own kernel is started instead",
        "--until=the installed system's own kernel starts now",
        "--until=IRONROOT-TINY-BOOTED.*payload=ok",
    ];
    installs_and("Boot", "dracut-boot", &markers);
}

/// Installs the small system by the helper in dracut.
fn installs_and(then: &str, work: &'static str, markers: &[&str]) {
    let digest = std::fs::read_to_string(lab("tiny.raw.zst.sha256")).unwrap();
    let digest = digest.split(' ').next().unwrap();
    let config = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{{"url":"http://10.0.2.2:8080/tiny.raw.zst","digest":"sha256:{digest}"}},"disk":{{"select":{{"serial":"initrd-disk"}}}},"then":"{then}"}}"#
    );
    let words = format!(
        "ironroot.config=data:,{} {EMERGENCY}",
        config.replace('"', "%22")
    );
    let scenario = Scenario::new(
        "memory-initrd",
        &[
            "--disk-size",
            "256M",
            "--work",
            work,
            "--image",
            "tiny.raw.zst",
        ],
    );
    let console = boot(&scenario, "bookworm-networkd", &words, markers).good();
    assert!(!console.contains("FAILED"), "{console}");
    let disk = std::fs::read(scenario.file("disk.raw")).unwrap();
    let image = std::fs::read(lab("tiny.raw")).unwrap();
    // The partitions; the tables are the disk's own.
    let (from, to) = (1 << 20, 95 << 20);
    assert!(
        disk[from..to] == image[from..to],
        "the disk is not the image"
    );
    assert_eq!(disk[..446], image[..446], "the boot code");
}
