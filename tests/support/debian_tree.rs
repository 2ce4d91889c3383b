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
pub fn holds_the_modules(listed: &str) {
    let said = Command::new(env!("CARGO_BIN_EXE_ironroot"))
        .args(["tools", "--modules"])
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("dm_verity"), "{said}");
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/lab/initrd/bookworm.tree");
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
