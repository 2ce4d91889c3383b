//! ironroot as the helper inside the initrds that Debian's and Ubuntu's builders make: dracut with each of its network programs,
//! dracut without systemd, initramfs-tools. Machines boot from memory without `root=`, with a boot config at a name
//! that only the lease's DNS server knows, or install a disk. tests/vm_initrd_fails.rs has what goes wrong.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them; those of `matrix_*` with --all).
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

use initrd::{Initrd, fact, served};
use machine::{Direct, Scenario, lab};
use serde_json::{Value, json};

/// Debian runs from memory, reports, and leaves the disk alone.
#[track_caller]
fn runs(name: &'static str) {
    let scenario = initrd::scenario(name);
    let words = served(&scenario, &initrd::config());
    Initrd(name).runs(&scenario, &words);
    let reports = scenario.reports();
    assert!(reports.contains(r#""handoff":"sysroot""#), "{reports}");
    assert!(reports.contains(r#""status":"Success""#), "{reports}");
    initrd::disk_is_untouched(&scenario);
}

fn tool(program: &str, args: &[&str]) -> String {
    let out = std::process::Command::new(program)
        .args(args)
        .output()
        .unwrap();
    String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
}

/// A path on the disk, which is blank at first: the system that is started writes to it, and unmounts it.
#[track_caller]
fn keeps_a_preserved_path(name: &'static str, work: &'static str) {
    let scenario = initrd::scenario_with_blank_disk(work, 64 << 20);
    let mut config = initrd::config();
    config["preserve"] = json!([{
        "target": "/var/lib/systemd",
        "source": { "disk": { "serial": "initrd-disk" } },
        "subdir": "state",
        "format": "IfBlank",
    }]);
    // A word about the network that says nothing of DHCP: the lease is asked for all the same.
    let words = format!("{} nameserver=10.0.2.3", served(&scenario, &config));
    let console = Initrd(name).runs(&scenario, &words);
    let preserved = fact(&console, "preserved");
    assert_eq!(
        preserved, "[/var/lib/systemd ext4 rw writable]",
        "{console}"
    );
    let disk = scenario.file("disk.raw");
    let disk = disk.to_str().unwrap();
    // What systemd saves when the machine goes down, and what the system wrote.
    for file in ["random-seed", "lab"] {
        let seen = tool("debugfs", &["-R", &format!("stat /state/{file}"), disk]);
        assert!(seen.contains("Type: regular"), "{file}: {seen}");
    }
    let header = tool("dumpe2fs", &["-h", disk]);
    assert!(
        header.contains("Filesystem state:         clean") && !header.contains("needs_recovery"),
        "{header}"
    );
}

#[test]
fn dracut_with_networkd_runs_debian_by_a_name_of_the_lease() {
    runs("bookworm-networkd");
}

#[test]
fn dracut_keeps_a_preserved_path_mounted_into_debian() {
    keeps_a_preserved_path("bookworm-networkd", "initrd-preserve");
}

#[test]
fn matrix_initramfs_tools_runs_debian() {
    runs("bookworm-tools");
    keeps_a_preserved_path("trixie-tools", "trixie-tools");
}

#[test]
fn matrix_dracut_106_runs_debian() {
    keeps_a_preserved_path("trixie-networkd", "trixie-networkd");
}

/// dracut 060 of Ubuntu 24.04, 110 of Ubuntu 26.04 and 112 of Debian 14, with their kernels and systemds.
#[test]
fn matrix_dracuts_of_other_distributions_keep_a_preserved_path() {
    keeps_a_preserved_path("noble-networkd", "noble-networkd");
    keeps_a_preserved_path("resolute-networkd", "resolute-networkd");
    keeps_a_preserved_path("forky-networkd", "forky-networkd");
}

/// initramfs-tools of Ubuntu 24.04 and Debian 14.
#[test]
fn matrix_initramfs_tools_of_other_distributions_keeps_a_preserved_path() {
    keeps_a_preserved_path("noble-tools", "noble-tools");
    keeps_a_preserved_path("forky-tools", "forky-tools");
}

#[test]
fn matrix_every_network_program_of_dracut() {
    runs("bookworm-network-legacy");
    keeps_a_preserved_path("bookworm-network-manager", "bookworm-network-manager");
}

#[test]
fn matrix_dracut_without_systemd_runs_debian() {
    keeps_a_preserved_path("bookworm-no-systemd", "bookworm-no-systemd");
}

/// Around the program in its unit: how long the machine is up.
const CLOCK: &str = "[Service]
ExecStartPre=/bin/sh -c 'read -r up _ </proc/uptime; echo LAB-CLOCK begins $$up'
ExecStartPost=/bin/sh -c 'read -r up _ </proc/uptime; echo LAB-CLOCK ends $$up'
";

/// Seconds between the two.
#[track_caller]
fn unit_took(console: &str) -> f64 {
    let at = |word: &str| -> f64 {
        let found = console.split_once(&format!("LAB-CLOCK {word} "));
        let (_, rest) = found.unwrap_or_else(|| panic!("no {word}: {console}"));
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    at("ends") - at("begins")
}

/// The lab's Debian disk, started with an initrd that has ironroot in it and a command line that does not ask for it.
#[test]
fn matrix_an_installed_system_boots_without_waiting_for_a_network() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.raw");
    std::fs::copy(lab("debian.raw"), &disk).unwrap();
    let words =
        "root=PARTUUID=deb1a000-0000-4000-8000-0000000000a2 rw systemd.show_status=1 demo.poweroff";
    let clock = ("etc/systemd/system/ironroot.service.d/lab.conf", CLOCK);
    let file = Initrd("bookworm-networkd").with_files(folder.path(), &[clock]);
    // No network card: whoever waits for the network waits until the time limit.
    let console = Direct::of(&lab("initrd/bookworm.vmlinuz"), &file, &disk, words)
        .run(&["--net=none", "--memory=1024", initrd::REACHED, "--wait-end"])
        .good();
    assert!(
        console.contains("nothing on the kernel command line asks for it"),
        "{console}"
    );
    assert!(console.contains("root=/dev/vda2"), "{console}");
    assert!(!console.contains("Wait for Network"), "{console}");
    // Two shells and the program, on an emulated machine that shares its processors; a wait would be a minute.
    let seconds = unit_took(&console);
    assert!(seconds < 15.0, "{seconds} s: {console}");
}

const DRACUT: Initrd = Initrd("bookworm-networkd");
const TOOLS: Initrd = Initrd("bookworm-tools");

/// What is seen when the installed system's own kernel starts.
const STARTS_ITS_KERNEL: [&str; 3] = [
    "--until=loaded .*BOOTX64.EFI",
    "--until=the installed system's own kernel starts now",
    "--until=IRONROOT-TINY-BOOTED.*payload=ok",
];

/// What is seen when the machine restarts.
const RESTARTS: [&str; 2] = [
    "--until=done: the machine restarts now",
    "--until=reboot: Restarting system",
];

/// The helper installs, and restarts the machine as `then` says.
#[test]
fn matrix_dracut_installs_a_disk_and_restarts() {
    installs_and(DRACUT, "Reboot", "dracut-disk", &RESTARTS);
}

#[test]
fn matrix_initramfs_tools_installs_a_disk_and_restarts() {
    installs_and(TOOLS, "Reboot", "tools-disk", &RESTARTS);
}

#[test]
fn matrix_initramfs_tools_installs_a_disk_and_starts_its_kernel() {
    installs_and(TOOLS, "Kexec", "tools-kexec", &STARTS_ITS_KERNEL);
}

/// The helper loads the installed system's own kernel, and it runs.
#[test]
fn matrix_dracut_installs_a_disk_and_starts_its_kernel() {
    installs_and(DRACUT, "Kexec", "dracut-kexec", &STARTS_ITS_KERNEL);
}

/// The installed root has no modules for dracut's kernel: its own kernel is started, said so.
#[test]
fn matrix_dracut_installs_a_disk_whose_root_does_not_fit_this_kernel() {
    let markers = [
        "--until=its own kernel is started instead",
        "--until=the installed system's own kernel starts now",
        "--until=IRONROOT-TINY-BOOTED.*payload=ok",
    ];
    installs_and(DRACUT, "Boot", "dracut-boot", &markers);
}

/// Installs the small system by the helper in that initrd.
#[track_caller]
fn installs_and(initrd: Initrd, then: &str, work: &'static str, markers: &[&str]) {
    let scenario = with_a_disk_for("tiny.raw.zst", work, 256 << 20);
    let mut config = installation("tiny.raw.zst");
    config["then"] = then.into();
    let words = served(&scenario, &config);
    installs(initrd, &scenario, &words, markers);
    let disk = std::fs::read(scenario.file("disk.raw")).unwrap();
    let image = std::fs::read(lab("tiny.raw")).unwrap();
    // The partitions; the tables are the disk's own. A system that was started has written to its root, the last of
    // them, whose content it has looked at itself.
    let (from, to) = (1 << 20, if then == "Reboot" { 95 << 20 } else { 34 << 20 });
    assert!(
        disk[from..to] == image[from..to],
        "the disk is not the image"
    );
    assert_eq!(disk[..446], image[..446], "the boot code");
}

/// A machine with a blank disk of `size` bytes, and `image` on its server.
fn with_a_disk_for(image: &str, work: &'static str, size: u64) -> Scenario {
    let scenario = Scenario::new("memory-initrd", &["--work", work, "--image", image]);
    let _ = std::fs::remove_dir_all(scenario.file(""));
    std::fs::create_dir_all(scenario.file("www")).unwrap();
    let disk = std::fs::File::create(scenario.file("disk.raw")).unwrap();
    disk.set_len(size).unwrap();
    scenario
}

fn installation(image: &str) -> Value {
    json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": { "url": format!("http://10.0.2.2:8080/{image}"), "digest": initrd::digest(image) },
        "disk": { "select": { "serial": "initrd-disk" } },
    })
}

/// Installs until `markers` were seen; the console.
#[track_caller]
fn installs(initrd: Initrd, scenario: &Scenario, words: &str, markers: &[&str]) -> String {
    let console = initrd.boot(scenario, words, markers).good();
    assert!(!console.contains("FAILED"), "{console}");
    console
}

/// Counts boots on the preserved path and switches off.
const COUNT: &str = r#"[Service]
ExecStart=
ExecStart=/bin/sh -c 'p=/var/lib/kubelet; n=$(cat $p/count 2>/dev/null || echo 0); echo $((n+1)) >$p/count; echo "IRONROOT-FACT count $((n+1)) $(findmnt -no FSTYPE,OPTIONS $p | tr -s " " | cut -d, -f1-4)"; echo "IRONROOT-FACT failed [$(systemctl --failed --no-legend --plain)]"; echo IRONROOT-LASTING-END; systemctl --no-block poweroff'
"#;

/// Debian is installed with a preserved path beside it, boots from the disk by the firmware, and keeps the path over
/// an installation of the next generation.
#[track_caller]
fn installs_debian_with_a_preserved_path(name: &'static str, work: &'static str) {
    let initrd = Initrd(name);
    let scenario = with_a_disk_for("debian.raw.zst", work, 760 << 20);
    for generation in [1, 2] {
        let mut config = installation("debian.raw.zst");
        config["metadata"] = json!({ "claim": "a/1", "generation": generation });
        config["disk"]["overwrite"] = "IfOurs".into();
        config["disk"]["keep"] = json!(["state"]);
        config["disk"]["partitions"] =
            json!([{ "label": "state", "size": "Rest", "filesystem": "ext4" }]);
        config["disk"]["files"] = json!([{
            "path": "/etc/systemd/system/ironroot-demo.service.d/count.conf", "contents": COUNT,
        }]);
        config["preserve"] = json!([{
            "target": "/var/lib/kubelet", "source": { "partlabel": "state" },
            "subdir": "kubelet", "options": ["noexec"],
        }]);
        let words = served(&scenario, &config);
        installs(initrd, &scenario, &words, &RESTARTS);
        let more = [
            "--firmware=uefi",
            "--net=none",
            "--until=IRONROOT-LASTING-END",
            "--wait-end",
        ];
        let console = scenario.boot(true, &more).good();
        assert_eq!(
            fact(&console, "count"),
            format!("{generation} ext4 rw,nosuid,nodev,noexec"),
            "{console}"
        );
        assert_eq!(fact(&console, "failed"), "[]", "{console}");
    }
}

#[test]
fn matrix_dracut_installs_debian_with_a_preserved_path() {
    installs_debian_with_a_preserved_path("bookworm-networkd", "dracut-lasting");
}

#[test]
fn matrix_dracut_106_installs_debian_with_a_preserved_path() {
    installs_debian_with_a_preserved_path("trixie-networkd", "dracut-106-lasting");
}

#[test]
fn matrix_initramfs_tools_installs_debian_with_a_preserved_path() {
    installs_debian_with_a_preserved_path("bookworm-tools", "tools-lasting");
}
