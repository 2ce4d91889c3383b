//! Directories that are an initrd or a root: busybox, and this very ironroot with its libraries.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

/// Makes `root` a system of busybox (static), without any init.
pub fn busybox(root: &Path) {
    for name in ["bin", "sbin", "etc", "dev", "proc", "sys", "run", "tmp"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in [
        "sh", "cat", "echo", "ls", "mount", "umount", "mkdir", "cp", "ln", "rm", "sleep", "stat",
        "tr", "grep", "awk", "dd", "chmod", "test", "poweroff", "sync", "sort", "readlink", "mv",
        "head", "true",
    ] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A file that can be executed.
pub fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Puts the ironroot that is tested at `/ironroot`, and the libraries that it was linked with.
pub fn ironroot(root: &Path) {
    let binary = env!("CARGO_BIN_EXE_ironroot");
    fs::copy(binary, root.join("ironroot")).unwrap();
    let output = Command::new("ldd").arg(binary).output().unwrap();
    // `name => /path (address)`, or `/path (address)`; nothing for a static program.
    let text = String::from_utf8(output.stdout).unwrap();
    for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(library, to).unwrap();
    }
}
