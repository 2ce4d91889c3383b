//! What goes wrong inside the initrds that Debian's and Ubuntu's builders make: ironroot's reason is on the console, then the
//! initrd's own emergency handling acts, and no disk is written.
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

use std::path::{Path, PathBuf};

use initrd::{CONFIG, Initrd, served};
use machine::{Scenario, lab};

/// The failure `code`, then what the initrd itself does about it.
#[track_caller]
fn fails(initrd: Initrd, scenario: &Scenario, code: u8, words: &str, more: &[&str]) -> String {
    let emergency = initrd.emergency();
    fails_from(
        &initrd.file(),
        initrd,
        emergency,
        scenario,
        code,
        words,
        more,
    )
}

#[track_caller]
fn fails_from(
    file: &Path,
    initrd: Initrd,
    emergency: [&str; 2],
    scenario: &Scenario,
    code: u8,
    words: &str,
    more: &[&str],
) -> String {
    let failed = format!("--until=FAILED .code {code}.");
    let mut options = vec![failed.as_str()];
    options.extend(emergency);
    options.extend(more);
    let console = initrd.boot_with(scenario, file, words, &options).good();
    assert!(!console.contains("MULTI-USER-REACHED"), "{console}");
    assert!(console.contains("next:"), "{console}");
    // The reason comes before what is done about it.
    let place = |text: &str| {
        let found = console.find(text);
        found.unwrap_or_else(|| panic!("no {text}: {console}"))
    };
    let last = emergency[1].trim_start_matches("--until=");
    assert!(place("FAILED (code") < place(last), "{console}");
    initrd::disk_is_untouched(scenario);
    console
}

/// Long enough for an answer on a machine that is emulated and has much else to do.
const MISSING: &str = "ironroot.timeout=10s ironroot.config=http://boot.lab.example:8080/no.json";

#[track_caller]
fn config_is_missing(initrd: Initrd, work: &'static str) {
    let scenario = initrd::scenario(work);
    let console = fails(initrd, &scenario, 11, MISSING, &[]);
    assert!(console.contains("404 Not Found"), "{console}");
    if initrd.has_systemd() {
        assert!(console.contains("Dependency failed for"), "{console}");
    }
}

/// One after the other, with the same files; only some where a developer says so.
fn every(test: impl Fn(Initrd)) {
    let some = std::env::var("IRONROOT_TEST_INITRDS").ok();
    let is_asked = |initrd: &Initrd| {
        let names = some.as_deref();
        names.is_none_or(|names| names.split(',').any(|name| name == initrd.0))
    };
    for initrd in Initrd::ALL.into_iter().filter(is_asked) {
        println!("{}", initrd.0);
        test(initrd);
    }
}

#[test]
fn a_config_that_is_not_there_reaches_dracuts_emergency_handling() {
    config_is_missing(Initrd("bookworm-networkd"), "dracut-404");
}

#[test]
fn initramfs_tools_panics_with_the_reason_and_restarts() {
    config_is_missing(Initrd("bookworm-tools"), "tools-404");
}

#[test]
fn matrix_a_config_that_is_not_there_in_every_initrd() {
    every(|initrd| config_is_missing(initrd, "fails-404"));
}

/// `rd.emergency=reboot`, where the consoles are two: each has the reason, whichever is the last, which is the kernel's
/// /dev/console. The watcher looks at ttyS0.
#[track_caller]
fn on_two_consoles(initrd: Initrd, words: &str, until: &[&str]) {
    for consoles in ["console=ttyS1", "console=ttyS1 console=ttyS0"] {
        let scenario = initrd::scenario("fails-consoles");
        let second = scenario.file("second.log");
        let line = format!("--qemu=file:{}", second.display());
        let words = format!("{words} {MISSING} {consoles}");
        let mut options = vec![
            "--until=FAILED .code 11.",
            "--until=next: check the URL",
            "--qemu=-serial",
            line.as_str(),
        ];
        options.extend(until);
        let console = initrd.boot(&scenario, &words, &options).good();
        let second = std::fs::read(second).unwrap();
        let second = String::from_utf8_lossy(&second);
        for console in [console.as_str(), &second] {
            for said in [
                "404 Not Found; trying again",
                "FAILED (code 11)",
                "next: check the URL",
            ] {
                assert!(console.contains(said), "{consoles}, {said}: {console}");
            }
            let count = console.matches("FAILED (code 11)").count();
            assert_eq!(count, 1, "{consoles}: {console}");
        }
        initrd::disk_is_untouched(&scenario);
    }
}

#[test]
fn matrix_each_of_two_consoles_has_the_reason_and_rd_emergency_restarts() {
    let words = "rd.shell=0 rd.emergency=reboot";
    for initrd in ["bookworm-networkd", "bookworm-no-systemd"] {
        on_two_consoles(Initrd(initrd), words, &["--until=Restarting system"]);
    }
    on_two_consoles(Initrd("bookworm-tools"), "", &["--until=Restarting system"]);
}

/// A byte of the image is another one than when its digest was made.
#[test]
fn matrix_a_damaged_image_in_every_initrd() {
    every(|initrd| {
        let scenario = initrd::scenario("fails-image");
        let mut image = std::fs::read(lab("tiny.squashfs")).unwrap();
        let middle = image.len() / 2;
        image[middle] ^= 1;
        std::fs::write(scenario.file("www/damaged.squashfs"), image).unwrap();
        let mut config = initrd::config();
        config["image"]["url"] = "http://boot.lab.example:8080/damaged.squashfs".into();
        config["image"]["digest"] = initrd::digest("tiny.squashfs").into();
        let words = served(&scenario, &config);
        let console = fails(initrd, &scenario, 12, &words, &[]);
        assert!(!console.contains("trying again"), "{console}");
    });
}

/// A squashfs with `file` in it and nothing else.
fn small_image(scenario: &Scenario, file: &str) {
    let tree = tempfile::tempdir().unwrap();
    let file = tree.path().join(file);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "hello").unwrap();
    let out = std::process::Command::new("mksquashfs")
        .arg(tree.path())
        .arg(scenario.file("www/small.squashfs"))
        .args(["-quiet", "-no-progress", "-noappend"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
}

/// The root cannot be one: the image is whole, and no system is in it.
#[test]
fn matrix_an_image_without_a_system_in_every_initrd() {
    every(|initrd| {
        let scenario = initrd::scenario("fails-root");
        small_image(&scenario, "srv/data");
        let mut config = initrd::config();
        config["image"] = serde_json::json!({
            "url": "http://boot.lab.example:8080/small.squashfs", "insecure": true,
        });
        let words = served(&scenario, &config);
        let console = fails(initrd, &scenario, 17, &words, &[]);
        assert!(console.contains("no init in"), "{console}");
    });
}

/// Nor can it be one whose required path has no source; before a byte of the image is fetched.
#[test]
fn matrix_a_preserved_path_without_its_source() {
    for initrd in ["bookworm-networkd", "bookworm-no-systemd", "bookworm-tools"] {
        let scenario = initrd::scenario("fails-preserve");
        let mut config = initrd::config();
        config["wait"] = "1s".into();
        config["preserve"] = serde_json::json!([{
            "target": "/var/lib/kubelet", "source": { "partlabel": "state" },
        }]);
        let words = served(&scenario, &config);
        let console = fails(Initrd(initrd), &scenario, 16, &words, &[]);
        assert!(console.contains("/var/lib/kubelet"), "{console}");
    }
}

/// Also where dracut itself would wait for a lease, and end the boot without a word of ironroot. How long it all takes is
/// not looked at: on a machine that has much else to do an emulated boot alone is minutes.
#[track_caller]
fn no_network(initrd: Initrd, network: &str) -> String {
    let scenario = initrd::scenario(if initrd.is_of_initramfs_tools() {
        "fails-network-tools"
    } else {
        "fails-network"
    });
    let words = format!("ironroot.timeout=3s {CONFIG}");
    fails(initrd, &scenario, 11, &words, &[network])
}

#[test]
fn matrix_no_network_in_every_initrd_of_dracut() {
    every(|initrd| {
        if !initrd.is_of_initramfs_tools() {
            no_network(initrd, "--net=none");
        }
    });
}

#[test]
fn matrix_a_network_without_an_answer_in_dracut_with_network_legacy() {
    let console = no_network(Initrd("bookworm-network-legacy"), "--net=silent");
    assert!(console.contains("no port has an address yet"), "{console}");
}

/// dracut 106 has a unit of its own that waits two minutes for a network which the operator switched off.
#[test]
fn matrix_a_network_that_is_off_is_waited_for_by_nobody() {
    for name in ["trixie-networkd", "bookworm-networkd"] {
        let scenario = initrd::scenario("fails-network-off");
        let words = format!("ip=off ironroot.timeout=3s {CONFIG}");
        let console = fails(Initrd(name), &scenario, 11, &words, &[]);
        assert!(!console.contains("Wait for Network"), "{name}: {console}");
    }
}

/// An installation that is refused, and one whose image is damaged.
#[test]
fn matrix_a_disk_that_is_not_installed_in_dracut() {
    let initrd = Initrd("bookworm-networkd");
    let scenario = initrd::scenario("fails-disk");
    let mut image = std::fs::read(lab("tiny.raw.zst")).unwrap();
    let middle = image.len() / 2;
    image[middle] ^= 1;
    std::fs::write(scenario.file("www/damaged.raw.zst"), image).unwrap();
    let mut config = initrd::config();
    config.as_object_mut().unwrap().remove("memory");
    config["image"]["url"] = "http://boot.lab.example:8080/damaged.raw.zst".into();
    config["image"]["digest"] = initrd::digest("tiny.raw.zst").into();
    config["disk"] = serde_json::json!({ "select": { "serial": "initrd-disk" } });
    let words = served(&scenario, &config);
    // The disk has something on it, and nobody said that it may go.
    fails(initrd, &scenario, 13, &words, &[]);

    let disk = std::fs::File::create(scenario.file("disk.raw")).unwrap();
    disk.set_len(256 << 20).unwrap();
    let emergency = initrd.emergency();
    let failed = "--until=FAILED .code 12.";
    let options = [failed, emergency[0], emergency[1]];
    initrd.boot(&scenario, &words, &options).good();
    has_a_mark_and_no_table(&scenario);
}

/// No boot code and no table, neither here nor at the end; the mark says whose unfinished work it is.
#[track_caller]
fn has_a_mark_and_no_table(scenario: &Scenario) {
    let disk = std::fs::read(scenario.file("disk.raw")).unwrap();
    let zeros = |range: std::ops::Range<usize>| disk[range].iter().all(|byte| *byte == 0);
    assert!(zeros(0..(1 << 20) - 4096));
    assert!(!zeros((1 << 20) - 4096..1 << 20));
    assert!(zeros(disk.len() - 33 * 512..disk.len()));
}

/// initramfs-tools waits three minutes for a port to be there.
#[test]
fn matrix_no_network_in_every_initrd_of_initramfs_tools() {
    every(|initrd| {
        if initrd.is_of_initramfs_tools() {
            no_network(initrd, "--net=none");
        }
    });
}

/// Ends ironroot when the image is on its way, which takes minutes from a server that is slow, with the shell's own means:
/// few programs are there.
const END: &str = r#"wait_for() { while ! "$@"; do sleep 1; done; }
at_work() {
    [ -e /run/ironroot/events.jsonl ] || return 1
    while read -r event; do case $event in *'"event":"progress"'*) return 0 ;; esac; done </run/ironroot/events.jsonl
    return 1
}
running() {
    for process in /proc/[0-9]*; do
        if read -r name <"$process/comm" && [ "$name" = ironroot ]; then echo "${process#/proc/}"; fi
    done 2>/dev/null
}
gone() { [ -z "$(running)" ]; }
wait_for at_work
sleep 2
echo LAB-ENDS-IT
if [ "$1" = stop ]; then
    systemctl --no-block stop ironroot.service
else
    kill -TERM $(running)
    [ "$1" = kill ] || exit 0
    wait_for gone
    . /lab/left
fi
"#;

/// What is left of it then.
const LEFT: &str = r#"mounts='' loops='' files=''
while read -r _ at _; do
    case $at in /sysroot* | /root* | /run/ironroot*) mounts="$mounts $at" ;; esac
done </proc/mounts
for file in /sys/block/loop*/loop/backing_file; do [ ! -e "$file" ] || loops="$loops $file"; done
for file in /sysroot/* /root/*; do [ ! -e "$file" ] || files="$files $file"; done
echo "LAB-LEFT mounts=[$mounts] loops=[$loops] files=[$files]"
"#;

/// What starts it below systemd: for a signal, for `systemctl stop`.
const END_UNIT: [&str; 2] = [
    "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh /lab/end kill-unit\nStandardOutput=journal+console\n",
    "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh /lab/end stop\nStandardOutput=journal+console\n",
];

/// `systemctl stop`; in the other initrds the process gets the signal by its number.
fn stops_the_unit(initrd: Initrd) -> bool {
    initrd.0.ends_with("networkd")
}

/// The initrd with a part that ends ironroot at work.
fn with_an_end(initrd: Initrd, folder: &Path) -> PathBuf {
    let mut files = vec![("lab/end", END), ("lab/left", LEFT)];
    if initrd.is_of_initramfs_tools() {
        files.extend([
            (
                "scripts/local-premount/lab",
                "#!/bin/sh\n[ \"$1\" != prereqs ] || exit 0\nsh /lab/end kill </dev/null >/dev/console 2>&1 &\n",
            ),
            (
                "scripts/local-premount/ORDER",
                "/scripts/local-premount/lab \"$@\"\n",
            ),
        ]);
    } else if initrd.has_systemd() {
        files.extend([
            (
                "etc/systemd/system/lab-end.service",
                END_UNIT[usize::from(stops_the_unit(initrd))],
            ),
            (
                "etc/systemd/system/ironroot.service.d/lab.conf",
                "[Unit]\nWants=lab-end.service\n[Service]\nExecStopPost=/bin/sh /lab/left\n",
            ),
        ]);
    } else {
        files.extend([
            (
                "lib/dracut/hooks/pre-mount/10-lab.sh",
                "sh /lab/end kill </dev/null >/dev/console 2>&1 &\n",
            ),
            ("lib/dracut/hooks/emergency/10-lab.sh", ". /lab/left\n"),
        ]);
    }
    initrd.with_files(folder, &files)
}

#[track_caller]
fn ended_while_at_work(initrd: Initrd) {
    let folder = tempfile::tempdir().unwrap();
    let file = with_an_end(initrd, folder.path());
    let scenario = initrd::scenario("fails-ended");
    let mut config = initrd::config();
    config["image"]["url"] = "http://boot.lab.example:8080/slow/debian.squashfs".into();
    let words = served(&scenario, &config);
    let more = ["--until=LAB-ENDS-IT", "--until=LAB-LEFT .*files=.*\\]"];
    let mut emergency = initrd.emergency();
    if stops_the_unit(initrd) {
        // A unit that is stopped has not failed to start, although it has failed.
        emergency[0] = "--until=Started.*emergency.service";
    }
    let console = fails_from(&file, initrd, emergency, &scenario, 17, &words, &more);
    assert!(
        console.contains("ended by SIGTERM while at work"),
        "{console}"
    );
    assert!(
        console.contains("LAB-LEFT mounts=[] loops=[] files=[]"),
        "{console}"
    );
}

#[test]
fn matrix_ended_while_at_work_in_every_initrd() {
    every(ended_while_at_work);
}

/// The same while a disk is written: it does not boot, and says whose work was not finished.
#[track_caller]
fn ended_while_a_disk_is_written(initrd: Initrd) {
    let folder = tempfile::tempdir().unwrap();
    let file = with_an_end(initrd, folder.path());
    let scenario = Scenario::new(
        "memory-initrd",
        &["--work", "fails-writing", "--image", "debian.raw.zst"],
    );
    let _ = std::fs::remove_dir_all(scenario.file(""));
    std::fs::create_dir_all(scenario.file("www")).unwrap();
    let disk = std::fs::File::create(scenario.file("disk.raw")).unwrap();
    disk.set_len(760 << 20).unwrap();
    let config = serde_json::json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": {
            "url": "http://boot.lab.example:8080/slow/debian.raw.zst",
            "digest": initrd::digest("debian.raw.zst"),
        },
        "disk": { "select": { "serial": "initrd-disk" } },
    });
    let words = served(&scenario, &config);
    let emergency = initrd.emergency();
    let first = if stops_the_unit(initrd) {
        "--until=Started.*emergency.service"
    } else {
        emergency[0]
    };
    let options = [
        "--until=FAILED .code 17.",
        "--until=LAB-ENDS-IT",
        "--until=LAB-LEFT .*files=.*\\]",
        first,
        emergency[1],
    ];
    let console = initrd.boot_with(&scenario, &file, &words, &options).good();
    assert!(
        console.contains("ended by SIGTERM while at work"),
        "{console}"
    );
    assert!(
        console.contains("LAB-LEFT mounts=[] loops=[] files=[]"),
        "{console}"
    );
    has_a_mark_and_no_table(&scenario);
}

#[test]
fn matrix_ended_while_a_disk_is_written() {
    for name in ["bookworm-networkd", "bookworm-no-systemd", "bookworm-tools"] {
        ended_while_a_disk_is_written(Initrd(name));
    }
}
