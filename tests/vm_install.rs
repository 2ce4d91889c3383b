//! The whole chain in virtual machines: firmware, iPXE, kernel, ironroot as PID 1, the installed disk. Each test
//! is one path; what a machine costs here is counted in tens of seconds.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/machine.rs"]
mod machine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use machine::{Boot, Scenario, initramfs, lab, project};
use sha2::{Digest as _, Sha256};

fn disk_hash(scenario: &Scenario) -> Vec<u8> {
    let mut file = fs::File::open(scenario.file("disk.raw")).unwrap();
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut HashWriter(&mut hash)).unwrap();
    hash.finalize().to_vec()
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn table_is_sound(disk: &Path) {
    let output = Command::new("sgdisk").arg("-v").arg(disk).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("No problems found"), "{text}");
}

fn uefi_installs_once(scenario: &Scenario) {
    let installed = [
        "--until=ironroot: installed: ",
        "--until=IRONROOT-TINY-BOOTED.*firmware=uefi payload=ok",
    ];
    let console = scenario.boot(false, &installed).good();
    assert!(console.contains("next to boot"), "{console}");
    table_is_sound(&scenario.file("disk.raw"));
    let reports = scenario.reports();
    assert!(reports.contains(r#""status":"Success""#), "{reports}");
    assert!(
        reports.contains("deb1a000-aaaa-4bbb-8ccc-000000000003"),
        "{reports}"
    );

    // The firmware asks the network first again: the record is found and not a byte is written.
    let before = disk_hash(scenario);
    let again = [
        "--until=already: boot it, write nothing",
        "--until=done: the machine restarts now",
    ];
    let console = scenario.boot(true, &again).good();
    assert!(!console.contains("ERASE"), "{console}");
    assert_eq!(
        disk_hash(scenario),
        before,
        "the second network boot wrote to the disk"
    );
    assert!(
        scenario.reports().contains(r#""status":"Success""#),
        "the second boot reports again"
    );

    // What it left is BootNext: the next start is from the disk, whatever the boot order says.
    let console = scenario
        .boot(
            true,
            &["--until=IRONROOT-TINY-BOOTED.*firmware=uefi payload=ok"],
        )
        .good();
    assert!(!console.contains("ironroot: starting"), "{console}");
}

#[test]
fn uefi_nvme_installs_once_and_boots_the_disk() {
    uefi_installs_once(&Scenario::new(
        "tiny-uefi",
        &["--bus", "nvme", "--disk-size", "512M"],
    ));
}

#[test]
fn bios_installs_and_starts_the_installed_system_at_the_next_network_boot() {
    let scenario = Scenario::new("install-bios", &["--disk-size", "512M"]);
    // One run over two network boots: the machine restarts by itself in between. No firmware of this kind can be
    // told to boot the disk, so that its kernel is started from here.
    let markers = [
        "--until=ironroot: installed: ",
        "--until=already: boot it, write nothing",
        "--until=loaded .*BOOTX64.EFI",
        // The words of the unified kernel image, which is what was started.
        "--until=IRONROOT-TINY-BOOTED.*firmware=uefi payload=ok",
    ];
    scenario.boot(false, &markers).good();
    table_is_sound(&scenario.file("disk.raw"));
    let console = scenario
        .boot(
            true,
            &[
                "--boot=disk",
                "--until=IRONROOT-TINY-BOOTED.*firmware=bios payload=ok",
            ],
        )
        .good();
    assert!(!console.contains("ironroot: starting"), "{console}");
}

/// A kernel started directly, without firmware and network boot: the quick way to see PID 1 at work.
fn direct(disk: &Path, words: &str, more: &[&str]) -> Boot {
    let log = disk.with_extension("log");
    let mut command = Command::new(project().join("qemu/run"));
    command
        .arg("--kernel")
        .arg(lab("kernel/vmlinuz"))
        .arg("--initrd")
        .arg(initramfs())
        .arg(format!("--append=console=ttyS0 quiet panic=10 {words}"))
        .arg(format!(
            "--disk={},bus=scsi,serial=direct-disk",
            disk.display()
        ))
        .arg(format!("--serial-log={}", log.display()))
        .args(["--smbios=uuid=deb1a000-aaaa-4bbb-8ccc-000000000004,serial=direct-machine"])
        .args([
            "--memory=512",
            "--timeout=200",
            "--quiet",
            "--no-reboot",
            "--fail-on=Kernel panic",
        ])
        .args(more);
    Boot::of(command, &log)
}

fn blank_disk(folder: &Path) -> PathBuf {
    let disk = folder.join("disk.raw");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    disk
}

fn is_blank(disk: &Path) -> bool {
    fs::read(disk).unwrap().iter().all(|b| *b == 0)
}

#[test]
fn plan_mode_shows_the_plan_on_a_scsi_disk_and_touches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = blank_disk(folder.path());
    // No network: the config is in the command line, the image is never opened.
    let config = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{{"url":"/image.raw","digest":"sha256:{}"}},"disk":{{"select":{{"serial":"direct-disk","transport":"virtio"}}}}}}"#,
        "0".repeat(64)
    );
    let words = format!(
        "ironroot.mode=plan ip=off ironroot.config=data:,{}",
        config.replace('"', "%22")
    );
    let console = direct(
        &disk,
        &words,
        &[
            "--net=none",
            "--until=ERASE begins",
            "--until=nothing was touched",
        ],
    )
    .good();
    assert!(
        console.contains("/dev/sda") && console.contains("serial direct-disk"),
        "{console}"
    );
    assert!(is_blank(&disk));
}

#[test]
fn a_config_server_that_never_answers_ends_in_code_11_and_on_failure() {
    let folder = tempfile::tempdir().unwrap();
    let disk = blank_disk(folder.path());
    // The last console has no driver in the kernel itself: PID 1 starts without any standard stream.
    let words = "console=hvc0 ironroot.config=http://10.0.2.2:9/${uuid} ironroot.timeout=3s ironroot.on-failure=poweroff";
    // --wait-end: the machine has to switch itself off.
    let console = direct(
        &disk,
        words,
        &["--net=user", "--until=FAILED .code 11.", "--wait-end"],
    )
    .good();
    assert!(console.contains("next:"), "{console}");
    assert!(is_blank(&disk));
}

/// The machine that was installed under one policy is told by another to leave its disk alone, and boots from it.
#[test]
fn matrix_policy_none_restarts_into_the_installed_disk_and_writes_nothing() {
    let work = ["--work", "policy-none", "--disk-size", "512M"];
    let booted = "--until=IRONROOT-TINY-BOOTED.*firmware=uefi payload=ok";
    let install = Scenario::new("tiny-uefi", &work);
    install.boot(false, &[booted]).good();
    let before = disk_hash(&install);
    // The network stands first in the boot order.
    let none = Scenario::new("none-uefi", &work);
    let markers = [
        "--until=bootPolicy is None",
        "--until=next, once",
        "--until=done: the machine restarts now",
    ];
    let console = none.boot(true, &markers).good();
    assert!(!console.contains("ERASE"), "{console}");
    assert_eq!(disk_hash(&install), before);
    // The small system, which writes to its root.
    let console = none.boot(true, &[booted]).good();
    assert!(!console.contains("ironroot: starting"), "{console}");
}

/// The second network boot of an installed machine under `NetworkBootAlways` installs again.
#[test]
fn matrix_policy_always_installs_again_at_the_second_network_boot() {
    let scenario = Scenario::new("always-uefi", &["--disk-size", "512M"]);
    let installed = [
        "--until=ironroot: installed: ",
        "--until=IRONROOT-TINY-BOOTED.*firmware=uefi payload=ok",
    ];
    for keep in [false, true] {
        let console = scenario.boot(keep, &installed).good();
        assert!(!console.contains("already: boot it"), "{console}");
        table_is_sound(&scenario.file("disk.raw"));
        // With the disk next: a restart does not go round for ever.
        assert!(console.contains("next to boot"), "{console}");
        assert_eq!(console.matches("ironroot: starting (").count(), 1);
    }
}

/// Every bus with every compression: run by scripts/test --all.
#[test]
fn matrix_uefi_every_bus_and_format() {
    for (bus, image) in [
        ("virtio", "tiny.raw.xz"),
        ("scsi", "tiny.raw.gz"),
        ("nvme", "tiny.raw"),
    ] {
        let options = [
            "--work",
            "matrix-uefi",
            "--bus",
            bus,
            "--image",
            image,
            "--disk-size",
            "512M",
        ];
        uefi_installs_once(&Scenario::new("tiny-uefi", &options));
    }
}

/// Installs an image that is a disk of the machine, and starts it without a restart.
fn started_from_here(image: &str, files: &str, target: &Path, markers: &[&str]) -> String {
    installed_then("Boot", "", image, files, target, markers)
}

/// Installs an image that is a disk of the machine, with more words on the kernel's command line.
fn installed_then(
    then: &str,
    more_words: &str,
    image: &str,
    files: &str,
    target: &Path,
    markers: &[&str],
) -> String {
    fs::File::create(target)
        .unwrap()
        .set_len(640 << 20)
        .unwrap();
    let sums = fs::read_to_string(lab(&format!("{image}.sha256"))).unwrap();
    let digest = sums.split_whitespace().next().unwrap();
    let config = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{{"url":"/dev/vda","digest":"sha256:{digest}"}},"disk":{{"select":{{"serial":"direct-disk"}},"files":[{files}]}},"then":"{then}"}}"#
    );
    let words = format!(
        "ip=off {more_words} ironroot.config=data:,{}",
        config.replace('"', "%22").replace(' ', "%20")
    );
    let source = format!(
        "--disk={},bus=virtio,serial=source,readonly",
        lab(image).display()
    );
    let mut more = vec![
        &*source,
        "--net=none",
        "--memory=1024",
        "--until=ironroot: installed: ",
    ];
    more.extend(markers);
    let console = direct(target, &words, &more).good();
    assert_eq!(
        console.matches("ironroot: starting (").count(),
        1,
        "{console}"
    );
    table_is_sound(target);
    console
}

#[test]
fn debian_is_installed_and_its_own_kernel_starts_without_the_firmware() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("disk.raw");
    // Its modules are those of another kernel than the lab's.
    let markers = [
        "--until=its own kernel is started instead",
        "--until=loaded .*root=PARTUUID=deb1a000-0000-4000-8000-0000000000a2",
        "--until=IRONROOT-DEMO-MULTI-USER-REACHED.*failed=..$",
    ];
    let file = r#"{"path":"/etc/issue","contents":"changed"}"#;
    started_from_here("debian.raw", file, &target, &markers);
    let place = format!("{}?offset={}", target.display(), 65 << 20);
    let issue = Command::new("debugfs")
        .args(["-R", "cat /etc/issue", &place])
        .output()
        .unwrap();
    assert_eq!(issue.stdout, b"changed", "{issue:?}");
}

#[test]
fn a_root_with_modules_for_this_kernel_runs_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let version = fs::read_to_string(lab("kernel/version")).unwrap();
    let file = format!(
        r#"{{"path":"/lib/modules/{}/modules.dep","contents":""}}"#,
        version.trim()
    );
    let markers = [
        "--until=the root of the installed system, partition 3 of /dev/sda",
        "--until=IRONROOT-TINY-BOOTED root= firmware= payload=ok",
    ];
    let target = folder.path().join("disk.raw");
    started_from_here("tiny.raw", &file, &target, &markers);
}

/// What cannot be loaded is no reason to stay: the machine restarts, and its firmware starts the disk.
fn restarts_instead(words: &str, image: &str, files: &str, marker: &str) {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("disk.raw");
    let markers = [
        marker,
        "--until=the run goes on without it",
        "--until=done: the machine restarts now",
        "--wait-end",
    ];
    installed_then("Kexec", words, image, files, &target, &markers);
}

#[test]
fn a_file_that_is_no_kernel_is_not_started_and_the_machine_restarts() {
    let files = r#"{"path":"/boot/loader/entries/a.conf","contents":"linux /no-kernel%5Cn"},{"path":"/no-kernel","contents":"x"}"#;
    let marker = "--until=loading /no-kernel of /boot/loader/entries/a.conf: .*";
    // Without its unified kernel image, which would be started before any entry.
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("tiny.raw");
    fs::copy(lab("tiny.raw"), &image).unwrap();
    let esp = format!("{}@@2M", image.display());
    let removed = Command::new("mdel")
        .args(["-i", &esp, "::/EFI/BOOT/BOOTX64.EFI"])
        .output()
        .unwrap();
    assert!(removed.status.success(), "{removed:?}");
    let sum: [u8; 32] = Sha256::digest(fs::read(&image).unwrap()).into();
    let sum = sum
        .iter()
        .fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
    fs::write(folder.path().join("tiny.raw.sha256"), sum).unwrap();
    restarts_instead("", image.to_str().unwrap(), files, marker);
}

#[test]
fn matrix_a_locked_down_kernel_loads_no_other_and_the_machine_restarts() {
    let marker = "--until=loading .*BOOTX64.EFI.*: Operation not permitted";
    restarts_instead("lockdown=integrity", "tiny.raw", "", marker);
}
