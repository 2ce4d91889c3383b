//! qcow2 images as qemu-img(1) makes them.

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs one of QEMU's tools, which must succeed.
pub fn qemu(program: &str, args: &[&str]) -> String {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

/// `raw` as qcow2, made with `args` of `qemu-img convert`.
pub fn qcow2(raw: &[u8], args: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("raw"), directory.path().join("qcow2"));
    std::fs::write(&from, raw).unwrap();
    let mut all = vec!["convert", "-f", "raw", "-O", "qcow2"];
    all.extend(args);
    all.extend([from.to_str().unwrap(), to.to_str().unwrap()]);
    qemu("qemu-img", &all);
    std::fs::read(&to).unwrap()
}

/// The content of the image at `path`, as QEMU reads it.
pub fn raw(path: &Path) -> Vec<u8> {
    let to = path.with_extension("raw-again");
    let args = ["convert", "-f", "qcow2", "-O", "raw"];
    let all = [&args[..], &[path.to_str().unwrap(), to.to_str().unwrap()]].concat();
    qemu("qemu-img", &all);
    std::fs::read(&to).unwrap()
}
