//! `ironroot initrd` in a mount namespace of its own: a session from memory without a machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::program::Ended;

/// A place for images and configs of one test.
pub struct Lab {
    pub directory: tempfile::TempDir,
}

/// A run, and what a script saw of the root afterwards.
#[derive(Debug)]
pub struct Seen {
    pub ended: Ended,
    pub text: String,
}

impl Seen {
    /// The value of the line `key=…`.
    #[track_caller]
    pub fn fact(&self, key: &str) -> &str {
        self.text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_else(|| panic!("no {key} in: {}\n{}", self.text, self.ended.stderr))
    }

    /// The run failed with `code` and all of `parts`, and left nothing behind.
    #[track_caller]
    pub fn failed_with(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.ended.code, Some(code), "{}", self.ended.stderr);
        for part in parts {
            let all = &self.ended.stderr;
            assert!(all.contains(part), "{part:?} in: {all}");
        }
        assert_eq!(self.fact("entries"), "0", "{}", self.text);
        assert_eq!(self.fact("mounts"), "", "{}", self.text);
    }
}

/// Runs a program that must work.
#[track_caller]
pub fn tool(program: &str, args: &[&str]) {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(
        out.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

impl Lab {
    pub fn new() -> Lab {
        Lab {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A small system: busybox as init, some files.
    pub fn system(&self, name: &str) -> PathBuf {
        let root = self.path(name);
        let _ = std::fs::remove_dir_all(&root);
        for directory in [
            "bin",
            "sbin",
            "proc",
            "sys",
            "dev",
            "run",
            "etc",
            "var/lib/data",
        ] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        std::os::unix::fs::symlink("/bin/busybox", root.join("sbin/init")).unwrap();
        std::fs::write(root.join("etc/os-release"), "ID=test\n").unwrap();
        std::fs::write(root.join("payload"), noise(3 << 20)).unwrap();
        tool("chown", &["-R", "0:0", root.to_str().unwrap()]);
        root
    }

    pub fn squashfs(&self, root: &Path, name: &str) -> PathBuf {
        let image = self.path(name);
        let (from, to) = (root.to_str().unwrap(), image.to_str().unwrap());
        tool(
            "mksquashfs",
            &[from, to, "-quiet", "-no-progress", "-noappend"],
        );
        image
    }

    pub fn erofs(&self, root: &Path, name: &str) -> PathBuf {
        let image = self.path(name);
        let (from, to) = (root.to_str().unwrap(), image.to_str().unwrap());
        tool("mkfs.erofs", &["--quiet", "-zlz4", to, from]);
        image
    }

    /// Plays `config`; `look` is a shell script that runs afterwards with `$root` as the sysroot.
    pub fn play(&self, config: &Value, look: &str) -> Seen {
        self.play_with(config, &[], look)
    }

    pub fn play_with(&self, config: &Value, flags: &[&str], look: &str) -> Seen {
        let file = self.path("config.json");
        std::fs::write(&file, serde_json::to_vec_pretty(config).unwrap()).unwrap();
        let mut all = vec!["--config", file.to_str().unwrap()];
        all.extend(flags);
        self.run(&all, None, "", look)
    }

    /// Plays `config` where the shell script `before` has changed something that only this session sees.
    pub fn play_where(&self, before: &str, config: &Value, look: &str) -> Seen {
        let file = self.path("config.json");
        std::fs::write(&file, serde_json::to_vec_pretty(config).unwrap()).unwrap();
        self.run(&["--config", file.to_str().unwrap()], None, before, look)
    }

    /// Plays what the words in the file `cmdline` ask for, which stands for the kernel's command line.
    pub fn play_words(&self, cmdline: &Path, look: &str) -> Seen {
        self.run(&[], Some(cmdline), "", look)
    }

    fn run(&self, flags: &[&str], cmdline: Option<&Path>, before: &str, look: &str) -> Seen {
        let sysroot = self.path("sysroot");
        std::fs::create_dir_all(&sysroot).unwrap();
        let facts = self.path("facts");
        let _ = std::fs::remove_file(&facts);
        // A /run of its own: nothing is left on this machine, and tests do not meet.
        let script = format!(
            r#"set -u
            mount --make-rprivate / && mount -t tmpfs -o mode=0755 run /run
            [ -z "$3" ] || mount --bind "$3" /proc/cmdline
            {before}
            "$1" --json initrd --sysroot "$2" $5; code=$?
            exec >"$4" 2>&1
            root=$2
            echo "entries=$(ls -A "$root" | wc -l)"
            echo "mounts=$(sed -n "s!^[0-9 :]* [^ ]* \($root[^ ]*\|/run/ironroot[^ ]*\) .*!\1!p" /proc/self/mountinfo | tr '\n' ' ')"
            {look}
            exit $code"#
        );
        let out = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script, "sh"])
            .arg(env!("CARGO_BIN_EXE_ironroot"))
            .arg(&sysroot)
            .arg(cmdline.unwrap_or(Path::new("")))
            .arg(&facts)
            .arg(flags.join(" "))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Seen {
            ended: out.into(),
            text: std::fs::read_to_string(&facts).unwrap_or_default(),
        }
    }
}

/// Bytes that do not compress, always the same.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
    .take(length)
    .collect()
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// A config for the image at `url`, with its digest where it is a file.
pub fn config(url: &str) -> Value {
    let mut image = json!({ "url": url });
    if let Ok(bytes) = std::fs::read(url) {
        image["digest"] = format!("sha256:{}", sha256(&bytes)).into();
    }
    json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        "image": image,
        "memory": {},
    })
}
