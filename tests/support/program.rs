//! Runs ironroot as an operator does.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::loop_device::LoopDevice;

/// The binary under test, with machine-readable events.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironroot"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(out: Output) -> Ended {
        Ended {
            code: out.status.code(),
            stdout: String::from_utf8(out.stdout).unwrap(),
            stderr: String::from_utf8(out.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// The run succeeded.
    #[track_caller]
    pub fn succeeded(self) -> Ended {
        self.failed_with(0, &[])
    }

    /// The run ended with `code`, and its text for people has all of `parts`.
    #[track_caller]
    pub fn failed_with(self, code: i32, parts: &[&str]) -> Ended {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} in: {}", self.stderr);
        }
        self
    }

    /// The events on stdout; every line is one.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| {
                let event: Value =
                    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
                assert!(
                    event["event"].is_string() && event["time"].is_f64(),
                    "{line}"
                );
                event
            })
            .collect()
    }
}

/// Runs ironroot to its end.
pub fn ironroot(args: &[&str]) -> Ended {
    command(args).output().unwrap().into()
}

/// `ironroot --json install`, with the flags of a one-off.
pub fn install(image: &str, digest: &str, disk: &LoopDevice, more: &[&str]) -> Ended {
    let mut args = vec!["--json", "install", "--image", image];
    if !digest.is_empty() {
        args.extend(["--digest", digest]);
    }
    args.extend(["--disk", disk.arg()]);
    args.extend(more);
    ironroot(&args)
}

/// A boot config in a file of its own.
pub struct Config {
    pub value: Value,
    directory: tempfile::TempDir,
}

impl Config {
    /// The image at `url` for `disk`.
    pub fn new(url: &str, digest: &str, disk: &LoopDevice) -> Config {
        Config {
            value: json!({
                "apiVersion": "ironroot.dev/v1alpha1",
                "kind": "BootConfig",
                "image": { "url": url, "digest": digest },
                "disk": { "select": { "path": disk.arg() } },
            }),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Sets the value at a JSON pointer; objects on the way are made.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: Value) -> Config {
        let mut at = &mut self.value;
        for key in pointer.trim_start_matches('/').split('/') {
            at = &mut at[key];
        }
        *at = value;
        self
    }

    /// Writes it down.
    pub fn file(&self) -> PathBuf {
        let path = self.directory.path().join("config.json");
        std::fs::write(&path, serde_json::to_vec_pretty(&self.value).unwrap()).unwrap();
        path
    }

    /// `ironroot --json install --config`.
    pub fn install(&self, more: &[&str]) -> Ended {
        let file = self.file();
        let mut args = vec!["--json", "install", "--config", file.to_str().unwrap()];
        args.extend(more);
        ironroot(&args)
    }

    /// `ironroot plan --config`.
    pub fn plan(&self) -> Ended {
        ironroot(&["plan", "--config", self.file().to_str().unwrap()])
    }
}

/// `image` in a file, which goes with the directory.
pub fn stored(image: &[u8]) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, image).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}
