//! The switch of the root on a real kernel, from a real initramfs: what namespaces cannot show is that the
//! initramfs itself (whose root cannot be pivoted before Linux 7.0) is deleted, and what the kernel hands on.
//!
//! Needs root and the kernel of `scripts/lab` (`scripts/test` makes it).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/small_system.rs"]
mod small_system;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// What every initramfs here begins with.
const BEGIN: &str = r"#!/bin/sh
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t devtmpfs -o mode=0755,nosuid devtmpfs /dev
mount -t tmpfs -o mode=0755,nosuid,nodev run /run
mkdir -p /run/ironroot/root
NEW=/run/ironroot/root
mount -t tmpfs -o mode=0755 new $NEW
cp -a /new/. $NEW
echo
";

/// A kernel with an initramfs whose /init goes on with `script`; what its console said until `until`.
fn boot(words: &str, script: &str, until: &[&str], prepare: impl FnOnce(&Path)) -> String {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kernel = project.join("target/lab/kernel/vmlinuz");
    assert!(kernel.exists(), "run scripts/lab kernel first");
    let folder = tempfile::tempdir().unwrap();
    let initrd = folder.path().join("initrd");
    small_system::busybox(&initrd);
    small_system::busybox(&initrd.join("new"));
    small_system::ironroot(&initrd);
    small_system::script(&initrd.join("init"), &format!("{BEGIN}{script}"));
    prepare(&initrd.join("new"));
    let archive = folder.path().join("initrd.cpio");
    let packed = Command::new("sh")
        .args(["-c", "find . | cpio --quiet -o -H newc -R 0:0"])
        .current_dir(&initrd)
        .stdout(File::create(&archive).unwrap())
        .status()
        .unwrap();
    assert!(packed.success());
    let log = folder.path().join("console.log");
    let mut command = Command::new(project.join("qemu/run"));
    command
        .arg("--kernel")
        .arg(&kernel)
        .arg("--initrd")
        .arg(&archive)
        .arg(format!("--append=console=ttyS0 quiet panic=10 {words}"))
        .arg(format!("--serial-log={}", log.display()))
        .args(["--net=none", "--memory=512", "--timeout=200", "--quiet"])
        .args(["--no-reboot", "--fail-on=Kernel panic"])
        .args(until.iter().map(|u| format!("--until={u}")));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let console = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).replace('\r', "");
    assert!(
        output.status.success(),
        "{}\n{}\n{console}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    console
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines()
        .find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(": "))
        .unwrap_or_else(|| panic!("no line {name:?} in\n{text}"))
}

#[test]
fn the_initramfs_is_deleted_and_the_new_system_has_all_that_is_its_own() {
    // With root= the initramfs is a ramfs. The new init is a shell without a script of its own, whose
    // descriptors and arguments are what it was given.
    let script = r#"
dd if=/dev/zero of=/ballast bs=1M count=64 2>/dev/null
echo content >/run/kept
mkdir /config; mount -t tmpfs config /config
mount --make-rshared /
(trap '' TERM; sleep 1000) &
echo "before: $(awk '/MemFree/ { print $2 }' /proc/meminfo)"
exec /ironroot switch-root $NEW "" -c "$(cat $NEW/probe)" name "$@"
"#;
    let probe = r#"
echo "open:"
ls /proc/1/fd
echo ":open"
echo "console: $(for n in 0 1 2; do readlink /proc/1/fd/$n; done | tr '\n' ' ')"
echo "arguments: $0 $*"
echo "name: $(tr '\0' '\n' </proc/1/cmdline | head -n1)"
echo "environment: $(tr '\0' '\n' </proc/1/environ | sort | tr '\n' ' ')"
echo "root: $(stat -c '%a %u:%g' /) $(awk '$5 == "/" { print $6, $9 }' /proc/1/mountinfo)"
echo "mounts: $(awk '{ print $5 }' /proc/1/mountinfo | sort | tr '\n' ' ')"
echo "oom: $(cat /proc/1/oom_score_adj)"
echo "cad: $(cat /proc/sys/kernel/ctrl-alt-del) session: $(awk '{ print $6 }' /proc/1/stat)"
echo "kept: $(cat /run/kept)"
sleep 1
echo "after: $(awk '/MemFree/ { print $2 }' /proc/meminfo)"
echo "THE END"
sleep 1000
"#;
    let words = "root=/dev/sda1 foobar=2 foo.bar=1 init=/bin/sh single more -- -b";
    let console = boot(words, script, &["THE END"], |new| {
        fs::write(new.join("probe"), probe).unwrap();
    });
    assert!(console.contains("made for another kernel"), "{console}");
    // /bin/sh is what init= asks for, not what is left.
    assert!(!console.contains("has no init"), "{console}");
    // Without a redirection, for which the shell would open something itself.
    let open = console.split_once("open:").unwrap().1;
    let open = open.split_once(":open").unwrap().0;
    assert_eq!(
        open.split_whitespace().collect::<Vec<_>>(),
        ["0", "1", "2"],
        "{console}"
    );
    assert_eq!(
        line(&console, "console"),
        "/dev/console /dev/console /dev/console"
    );
    assert_eq!(line(&console, "arguments"), "name single more -b");
    assert_eq!(line(&console, "name"), "/bin/sh");
    assert_eq!(
        line(&console, "environment"),
        "HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=linux foobar=2"
    );
    let root = line(&console, "root");
    assert!(root.starts_with("755 0:0 rw,relatime"), "{root}");
    assert_eq!(line(&console, "mounts"), "/ /dev /proc /run /sys");
    assert_eq!(line(&console, "oom"), "0");
    // Ctrl-Alt-Del as the kernel has it at its start.
    assert_eq!(line(&console, "cad"), "1 session: 1");
    assert_eq!(line(&console, "kept"), "content");
    let free = |name| line(&console, name).parse::<u64>().unwrap();
    let grown = free("after").saturating_sub(free("before")) / 1024;
    // The ballast, ironroot, its libraries and two busyboxes.
    assert!(grown >= 95, "{grown} MiB became free\n{console}");
}

#[test]
fn refusals_leave_the_initrd_as_it_was_and_a_pid_1_that_cannot_go_on_stays() {
    // Without root= the initramfs is a tmpfs.
    let script = r#"
try() {
    what=$1; shift
    message=$(/ironroot switch-root --dry-run "$@" 2>&1)
    echo "$what: $? $(echo "$message" | head -n1)"
}
try good $NEW
try arch $NEW /foreign
try missing $NEW /no/such
try directory /new
rm $NEW/bin/sh
try none $NEW
ln -s busybox $NEW/bin/sh
rm -r $NEW/proc; ln -s /sys $NEW/proc
try link $NEW
rm $NEW/proc
mount -o remount,nosuid $NEW
try nosuid $NEW
mount -o remount,suid $NEW
try again $NEW
echo "intact: $(ls -d /ironroot /init /new/bin/busybox $NEW/bin/busybox | tr '\n' ' ')"
exec /ironroot switch-root $NEW /no/such
"#;
    let until = ["intact: ", "parked: init=/no/such"];
    let console = boot("", script, &until, |new| {
        // An ELF header for another machine; the kernel never sees it.
        let mut elf = vec![0u8; 120];
        elf.splice(..6, *b"\x7fELF\x02\x01");
        let foreign = if cfg!(target_arch = "aarch64") {
            62
        } else {
            183
        };
        for (at, value) in [(16, 2), (18, foreign), (32, 64), (54, 56), (56, 1), (64, 1)] {
            elf.splice(at..=at, [value]);
        }
        fs::write(new.join("foreign"), elf).unwrap();
        fs::set_permissions(new.join("foreign"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("/bin/sh", new.join("sbin/init")).unwrap();
    });
    for (name, wanted) in [
        ("good", "0 "),
        (
            "arch",
            "17 ironroot: /foreign in /run/ironroot/root cannot be started: /foreign is a program for",
        ),
        (
            "missing",
            "17 ironroot: init=/no/such in /run/ironroot/root: there is no such file",
        ),
        (
            "directory",
            "17 ironroot: the new root /new is not a mounted directory",
        ),
        ("none", "17 ironroot: no init in /run/ironroot/root"),
        (
            "link",
            "17 ironroot: /proc in /run/ironroot/root is a symbolic link",
        ),
        (
            "nosuid",
            "17 ironroot: the new root /run/ironroot/root is mounted nosuid",
        ),
        ("again", "0 "),
        (
            "intact",
            "/init /ironroot /new/bin/busybox /run/ironroot/root/bin/busybox",
        ),
    ] {
        let said = line(&console, name);
        assert!(said.starts_with(wanted), "{name}: {said}\n{console}");
    }
}

#[test]
fn where_no_init_starts_pid_1_stays_with_the_reason() {
    // Open for writing, all of them: no check can know.
    let script = r"
rm $NEW/bin/sh; cp /bin/busybox $NEW/bin/sh
exec 8>>$NEW/sbin/init 9>>$NEW/bin/sh
exec /ironroot switch-root $NEW
";
    let console = boot("", script, &["parked: no init of the new system"], |new| {
        small_system::script(&new.join("sbin/init"), "#!/bin/busybox sh\n");
    });
    assert!(console.contains("/sbin/init: Text file busy"), "{console}");
    assert!(console.contains("/bin/sh: Text file busy"), "{console}");
}
