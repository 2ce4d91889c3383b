//! What goes wrong inside the initrds that Debian's own builders make: ironroot's reason is on the console, then the
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

#[track_caller]
fn config_is_missing(initrd: Initrd, work: &'static str) {
    let scenario = initrd::scenario(work);
    let words =
        "ironroot.timeout=3s ironroot.config=http://boot.lab.example:8080/no.json".to_owned();
    let console = fails(initrd, &scenario, 11, &words, &[]);
    assert!(console.contains("404 Not Found"), "{console}");
    if initrd.has_systemd() {
        assert!(console.contains("Dependency failed for"), "{console}");
    }
}

/// One after the other, with the same files.
fn every(test: impl Fn(Initrd)) {
    for initrd in Initrd::ALL {
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

#[track_caller]
fn no_network(initrd: Initrd) {
    let scenario = initrd::scenario(if initrd.is_of_initramfs_tools() {
        "fails-network-tools"
    } else {
        "fails-network"
    });
    let words = format!("ironroot.timeout=3s {CONFIG}");
    fails(
        initrd,
        &scenario,
        11,
        &words,
        &["--net=none", "--timeout=600"],
    );
}

/// The network is the business of dracut's own scripts.
fn is_legacy(initrd: Initrd) -> bool {
    initrd.0.ends_with("legacy") || initrd.0.ends_with("no-systemd")
}

#[test]
fn matrix_no_network_in_every_initrd_of_dracut() {
    every(|initrd| {
        if !initrd.is_of_initramfs_tools() && !is_legacy(initrd) {
            no_network(initrd);
        }
    });
}

/// They wait for two minutes and more.
#[test]
fn matrix_no_network_where_dracuts_own_scripts_bring_it_up() {
    every(|initrd| {
        if is_legacy(initrd) {
            no_network(initrd);
        }
    });
}

/// initramfs-tools waits three minutes for a port to be there.
#[test]
fn matrix_no_network_in_every_initrd_of_initramfs_tools() {
    every(|initrd| {
        if initrd.is_of_initramfs_tools() {
            no_network(initrd);
        }
    });
}

/// Ends ironroot when it has made a mount and is at work, with the shell's own means: few programs are there.
const END: &str = r#"wait_for() { while ! "$@"; do sleep 1; done; }
at_work() { while read -r _ at _; do [ "$at" != /run/ironroot/image ] || return 0; done </proc/mounts; return 1; }
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

/// `systemctl stop`; in the other initrds the process gets the signal by its number.
fn stops_the_unit(initrd: Initrd) -> bool {
    initrd.0.ends_with("networkd")
}

/// The initrd with a part that ends ironroot at work; the kernel unpacks one archive after the other.
fn with_an_end(initrd: Initrd, folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    let put = |name: &str, content: &str| {
        let file = tree.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, content).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    put("lab/end", END);
    put("lab/left", LEFT);
    if initrd.is_of_initramfs_tools() {
        let script = "#!/bin/sh\n[ \"$1\" != prereqs ] || exit 0\nsh /lab/end kill </dev/null >/dev/console 2>&1 &\n";
        put("scripts/local-premount/lab", script);
        put(
            "scripts/local-premount/ORDER",
            "/scripts/local-premount/lab \"$@\"\n",
        );
    } else if initrd.has_systemd() {
        let how = if stops_the_unit(initrd) {
            "stop"
        } else {
            "kill-unit"
        };
        let unit = format!(
            "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh /lab/end {how}\nStandardOutput=journal+console\n"
        );
        put("etc/systemd/system/lab-end.service", &unit);
        put(
            "etc/systemd/system/ironroot.service.d/lab.conf",
            "[Unit]\nWants=lab-end.service\n[Service]\nExecStopPost=/bin/sh /lab/left\n",
        );
    } else {
        let hook = "sh /lab/end kill </dev/null >/dev/console 2>&1 &\n";
        put("lib/dracut/hooks/pre-mount/10-lab.sh", hook);
        put("lib/dracut/hooks/emergency/10-lab.sh", ". /lab/left\n");
    }
    let all = folder.join("initrd.img");
    let script = r#"cp "$1" "$2"; truncate -s %4 "$2"; cd "$3"
        # /lib is a link there, which a directory would replace.
        if [ -d lib ]; then mkdir usr; mv lib usr/lib; fi
        find . -mindepth 1 | cpio -o -H newc --quiet -R 0:0 >>"$2""#;
    let out = std::process::Command::new("sh")
        .args(["-euc", script, "sh"])
        .args([&initrd.file(), &all, &tree])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    all
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
