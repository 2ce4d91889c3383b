//! The Debians of `scripts/images/initrds`, to install something in.
#![allow(dead_code)] // each test program uses a part

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `lines` as a user of `$TREE`, a Debian of the lab, which stays as it is, and gives what they print.
pub fn on_a_debian(suite: &str, lines: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let tree =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/lab/initrd/{suite}.tree"));
    assert!(tree.exists(), "{}: run scripts/lab first", tree.display());
    let binary: PathBuf = folder.path().join("ironroot");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&binary)
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .status();
    assert!(stripped.unwrap().success());
    let script = r#"
        work=$1 lower=$2 lines=$3
        mkdir "$work/over"; mount -t tmpfs over "$work/over"; mkdir "$work/over/upper" "$work/over/work" "$work/tree"
        mount -t overlay -o "lowerdir=$lower,upperdir=$work/over/upper,workdir=$work/over/work" tree "$work/tree"
        export TREE="$work/tree"
        mount -t proc proc "$TREE/proc"; mount --rbind /dev "$TREE/dev"; mount -t tmpfs tmp "$TREE/tmp"
        VERSION=$(ls "$TREE/lib/modules"); export VERSION
        # What the lab itself installed there is none of this test's.
        scripts/install-module --destdir "$TREE" --uninstall 2>/dev/null
        sh -euc "$lines""#;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", script])
        .arg("sh")
        .arg(folder.path())
        .arg(&tree)
        .arg(lines)
        .env("IRONROOT_BINARY", &binary)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `lines` in a Debian of the lab in which both builders know ironroot; `$TREE/usr/bin/ironroot` is that of the test.
pub fn with_both(suite: &str, lines: &str) -> String {
    let install =
        r#"scripts/install-module --destdir "$TREE" --for dracut --for initramfs-tools >&2"#;
    on_a_debian(suite, &format!("{install}\n{lines}"))
}

#[track_caller]
pub fn holds(listed: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(listed.contains(wanted), "{wanted} in {listed}");
    }
}

/// The programs that the binary names are all in the Debian of the lab, so they have to be in the initrd too.
#[track_caller]
pub fn holds_the_tools(listed: &str) {
    let said = Command::new(env!("CARGO_BIN_EXE_ironroot"))
        .arg("tools")
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let names: Vec<&str> = said.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(names.contains(&"mke2fs"), "{names:?}");
    for name in names {
        assert!(
            listed.lines().any(|line| {
                let path = line.split(" -> ").next().unwrap();
                path.ends_with(&format!("bin/{name}"))
            }),
            "{name} in {listed}"
        );
    }
}

/// What the binary asks of the kernel, as a module where the lab's kernel has it as one.
#[track_caller]
pub fn holds_the_modules(suite: &str, listed: &str) {
    let said = Command::new(env!("CARGO_BIN_EXE_ironroot"))
        .args(["tools", "--modules"])
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("dm_verity"), "{said}");
    let tree =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/lab/initrd/{suite}.tree"));
    let found = Command::new("find")
        .arg(tree.join("usr/lib/modules"))
        .args(["-name", "*.ko*", "-printf", "%f\n"])
        .output()
        .unwrap();
    let of_the_kernel = String::from_utf8(found.stdout).unwrap().replace('-', "_");
    assert!(of_the_kernel.contains("dm_verity.ko"), "{of_the_kernel}");
    let listed = listed.replace('-', "_");
    for name in said.lines() {
        let file = format!("{}.ko", name.replace('-', "_"));
        let there = of_the_kernel.lines().any(|line| line.starts_with(&file));
        assert!(
            !there || listed.contains(&format!("/{file}")),
            "{file} in {listed}"
        );
    }
}

/// Lines that unpack `$INITRD`, of `$TREE`, with `$UNPACK` and run in it what ironroot runs: each program says that it is
/// there, and cryptsetup makes a LUKS2 header, whose key it derives in threads.
pub const UNPACKED: &str = r#"
mkdir -p "$TREE/tmp/unpacked"
case $UNPACK in
    lsinitrd) chroot "$TREE" sh -euc "cd /tmp/unpacked; lsinitrd --unpack $INITRD" >&2 ;;
    *) chroot "$TREE" unmkinitramfs "$INITRD" /tmp/unpacked >&2 ;;
esac
root=$TREE/tmp/unpacked
[ ! -d "$root/main" ] || root=$root/main
mkdir -p "$root/proc" "$root/dev" "$root/run" "$root/tmp"
mount --bind "$TREE/proc" "$root/proc"; mount --rbind "$TREE/dev" "$root/dev"; mount -t tmpfs run "$root/run"
for name in $(chroot "$TREE" ironroot tools | cut -d ' ' -f 1); do
    # Some have neither of the words, and say so in their own.
    code=0; said=$(chroot "$root" "$name" -V </dev/null 2>&1) || code=$?
    echo "RUNS $name $code $said" | tr '\n' ' '; echo
done
truncate -s 32M "$root/tmp/luks"; echo secret >"$root/tmp/key"
code=0
chroot "$root" cryptsetup luksFormat --type luks2 --pbkdf-memory 65536 --pbkdf-force-iterations 4 --pbkdf-parallel 2 \
    --batch-mode --key-file /tmp/key /tmp/luks >&2 || code=$?
echo "LUKS format $code"
code=0; chroot "$root" cryptsetup open --test-passphrase --key-file /tmp/key /tmp/luks >&2 || code=$?
echo "LUKS open $code"
"#;

/// What the lines of `UNPACKED` told.
#[track_caller]
pub fn runs_the_tools(said: &str) {
    let ran: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("RUNS "))
        .collect();
    assert!(
        ran.iter().any(|line| line.starts_with("mke2fs 0 ")),
        "{ran:?}"
    );
    for line in ran {
        let code = line.split(' ').nth(1).unwrap().parse::<u8>().unwrap();
        assert!(
            code < 126 && !line.contains("shared libraries"),
            "{line} in {said}"
        );
    }
    assert!(said.contains("LUKS format 0"), "{said}");
    assert!(said.contains("LUKS open 0"), "{said}");
}
