//! Sessions that preserve paths on loop devices.
#![allow(dead_code)] // each test program uses a part

use std::path::PathBuf;

use serde_json::{Value, json};

use super::loop_device::{self, LoopDevice};
use super::session::{self, Lab, Seen, tool};

/// A lab with an image, and what every config has.
pub struct Bench {
    pub lab: Lab,
    pub image: PathBuf,
}

impl Bench {
    /// With an image of a small system, changed by a shell script in its root.
    pub fn new(script: &str) -> Bench {
        let lab = Lab::new();
        let image = build(&lab, "image", script);
        Bench { lab, image }
    }

    pub fn config(&self, preserve: Value) -> Value {
        let mut config = session::config(self.image.to_str().unwrap());
        config["metadata"] = json!({ "claim": "tenant-a/one" });
        // What is there is found at once; the rest is a test of waiting.
        config["wait"] = json!("0s");
        config["preserve"] = preserve;
        config
    }

    pub fn play(&self, preserve: Value, look: &str) -> Seen {
        self.play_config(&self.config(preserve), look)
    }

    /// Looks only at what became a root: a script that writes would leave something where there is none.
    pub fn play_config(&self, config: &Value, look: &str) -> Seen {
        let look = format!("[ $code = 0 ] || exit $code\n{look}");
        let seen = self.lab.play(config, &look);
        settle();
        seen
    }

    #[track_caller]
    pub fn good(&self, preserve: Value, look: &str) -> Seen {
        let seen = self.play(preserve, look);
        assert_eq!(
            seen.ended.code,
            Some(0),
            "{}\n{}",
            seen.ended.stderr,
            seen.text
        );
        seen
    }
}

pub fn build(lab: &Lab, name: &str, script: &str) -> PathBuf {
    let root = lab.system(&format!("{name}-root"));
    tool("sh", &["-ec", &format!("cd {}\n{script}", root.display())]);
    let image = lab.squashfs(&root, &format!("{name}.squashfs"));
    std::fs::remove_dir_all(root).unwrap();
    image
}

/// The last mount of a namespace goes a moment after its last process.
pub fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// A device with an ext4, made with more options.
pub fn ext4(mib: usize, options: &[&str]) -> LoopDevice {
    let device = LoopDevice::blank(mib);
    let mut args = vec!["-q", "-F", "-t", "ext4"];
    args.extend(options);
    args.push(device.arg());
    tool("mke2fs", &args);
    device
}

/// Runs a script with the device mounted at $m.
pub fn inside(device: &LoopDevice, script: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let all = format!(
        "m={}; mount --make-rprivate /; mount {} $m || exit 9; {script}\numount $m",
        directory.path().display(),
        device.arg()
    );
    let text = loop_device::tool("unshare", &["--mount", "sh", "-ec", &all]);
    settle();
    text
}

/// Runs a session that is killed at the `n`th of the calls that `filter` names; whether it was.
pub fn killed(bench: &Bench, preserve: Value, call: &str, n: usize) -> bool {
    let config = bench.lab.path("kill.json");
    std::fs::write(&config, bench.config(preserve).to_string()).unwrap();
    let sysroot = bench.lab.path("kill-root");
    std::fs::create_dir_all(&sysroot).unwrap();
    let script = format!(
        "mount --make-rprivate /; mount -t tmpfs run /run
        strace -f -qq -o /dev/null -e trace={call} -e signal=none -e inject={call}:signal=SIGKILL:when={n} {} initrd --sysroot {} --config {} >/dev/null 2>&1
        [ $? = 137 ] && echo killed || echo ended",
        env!("CARGO_BIN_EXE_ironroot"),
        sysroot.display(),
        config.display()
    );
    let text = loop_device::tool("unshare", &["--mount", "sh", "-c", &script]);
    settle();
    text == "killed\n"
}

pub fn node(device: &LoopDevice) -> Value {
    json!({ "disk": { "path": device.arg() } })
}

pub fn entry(target: &str, device: &LoopDevice, more: Value) -> Value {
    let mut entry = json!({ "target": target, "source": node(device) });
    if let Value::Object(more) = more {
        entry.as_object_mut().unwrap().extend(more);
    }
    entry
}

/// Adds one to the number in a file.
pub const COUNT: &str =
    r#"count() { n=$(cat "$1" 2>/dev/null || echo 0); echo $((n + 1)) >"$1"; cat "$1"; }"#;
