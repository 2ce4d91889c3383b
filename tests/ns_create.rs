//! Partitions that a session makes for what it preserves, on loop devices: a table on a blank disk, one more entry in
//! a table that is there, found again by the next session, and refused wherever something could be lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
#[path = "support/loop_device.rs"]
mod loop_device;
#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;
#[allow(dead_code)]
#[path = "support/session.rs"]
mod session;

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use loop_device::LoopDevice;
use serde_json::{Value, json};
use session::{Lab, Seen};

const MIB: usize = 1 << 20;

struct Bench {
    lab: Lab,
    image: PathBuf,
    /// Other tests run on this machine, and a label is looked for on all of its disks.
    label: String,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let lab = Lab::new();
        let root = lab.system("root");
        let image = lab.squashfs(&root, "image.squashfs");
        let label = format!("{name}-{}", std::process::id());
        Bench { lab, image, label }
    }

    fn config(&self, disk: &LoopDevice, more: Value) -> Value {
        let mut entry = json!({
            "target": "/srv/x",
            "source": { "partlabel": self.label, "disk": { "path": disk.arg() } },
            "format": "IfBlank",
            "create": "20MiB",
        });
        if let Value::Object(more) = more {
            entry.as_object_mut().unwrap().extend(more);
        }
        let mut config = session::config(self.image.to_str().unwrap());
        config["wait"] = json!("0s");
        config["preserve"] = json!([entry]);
        config
    }

    fn play(&self, disk: &LoopDevice, more: Value) -> Seen {
        let look = r#"[ $code = 0 ] || exit $code
            n=$(cat "$root/srv/x/n" 2>/dev/null || echo 0); echo $((n + 1)) >"$root/srv/x/n"
            echo "n=$(cat "$root/srv/x/n")""#;
        let seen = self.lab.play(&self.config(disk, more), look);
        std::thread::sleep(std::time::Duration::from_millis(200));
        seen
    }

    /// A session in which the preserved file has been counted up to `n`.
    #[track_caller]
    fn counts(&self, disk: &LoopDevice, n: &str) -> String {
        let seen = self.play(disk, json!({}));
        assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        assert_eq!(seen.fact("n"), n);
        seen.ended.stderr
    }

    /// A session that is refused, and writes nothing.
    #[track_caller]
    fn refused(&self, disk: &LoopDevice, more: Value, parts: &[&str]) {
        let before = disk.bytes();
        self.play(disk, more).failed_with(16, parts);
        assert!(before == disk.bytes(), "the disk has changed");
    }
}

fn sgdisk(disk: &LoopDevice, args: &[&str]) -> String {
    let mut all = args.to_vec();
    all.push(disk.arg());
    loop_device::tool("sgdisk", &all)
}

#[track_caller]
fn verified(disk: &LoopDevice) {
    let text = sgdisk(disk, &["--verify"]);
    assert!(text.contains("No problems found"), "{text}");
}

fn put(disk: &LoopDevice, at: usize, bytes: &[u8]) {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(disk.path())
        .unwrap();
    file.seek(SeekFrom::Start(at as u64)).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

fn tell_kernel(disk: &LoopDevice, number: &str, start_mib: usize, size_mib: usize) {
    let (start, size) = (
        (start_mib * 2048).to_string(),
        (size_mib * 2048).to_string(),
    );
    let _ = loop_device::try_tool("addpart", &[disk.arg(), number, &start, &size]);
    assert!(disk.partitions().contains(&number.parse().unwrap()));
}

#[test]
fn a_blank_disk_gets_a_table_once() {
    let bench = Bench::new("blank");
    let disk = LoopDevice::blank(48);
    // A look at the plan, and a policy that writes nothing, leave it blank.
    let config = bench.lab.path("plan.json");
    std::fs::write(&config, bench.config(&disk, json!({})).to_string()).unwrap();
    let plan = std::process::Command::new(env!("CARGO_BIN_EXE_ironroot"))
        .args(["plan", "--config", config.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&plan.stdout).into_owned();
    let wanted = format!(
        "make partition 1 {:?} (20.0 MiB) on {}",
        bench.label,
        disk.arg()
    );
    assert!(
        text.contains(&wanted) && text.contains("gets a partition table"),
        "{text}"
    );
    assert!(disk.bytes().iter().all(|b| *b == 0));

    let said = bench.counts(&disk, "1");
    assert!(said.contains("made partition 1"), "{said}");
    verified(&disk);
    let info = sgdisk(&disk, &["-i", "1"]);
    assert!(
        info.contains(&bench.label) && info.contains("Linux filesystem"),
        "{info}"
    );
    let table = disk.bytes()[..MIB].to_vec();
    for n in ["2", "3"] {
        let said = bench.counts(&disk, n);
        assert!(
            !said.contains("made partition") && !said.contains("ERASE"),
            "{said}"
        );
    }
    assert!(table == disk.bytes()[..MIB], "the table has changed");
    assert_eq!(disk.partitions(), [1]);
}

#[test]
fn a_table_that_is_there_gets_one_entry_more() {
    let bench = Bench::new("entry");
    let disk = LoopDevice::blank(64);
    sgdisk(
        &disk,
        &[
            "-n1:2048:+10M",
            "-c1:first",
            "-n3:40M:+10M",
            "-c3:third",
            "-t3:8300",
        ],
    );
    tell_kernel(&disk, "1", 1, 10);
    for at in (MIB..11 * MIB).step_by(MIB) {
        put(&disk, at, &vec![0x5a; MIB]);
    }
    // An old file system lies where the new partition will be: 11 MiB to 40 MiB are free, and 50 MiB to the end.
    let old = LoopDevice::blank(20);
    loop_device::tool(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-L", "old", old.arg()],
    );
    put(&disk, 11 * MIB, &old.bytes());
    let before = disk.bytes();
    let guids = |text: String| -> Vec<String> {
        let lines = text.lines().filter(|l| l.contains("GUID"));
        lines.map(str::to_owned).collect()
    };
    let entries = || {
        [
            guids(sgdisk(&disk, &["-i", "1"])),
            guids(sgdisk(&disk, &["-i", "3"])),
        ]
    };
    let old_entries = entries();
    let said = bench.counts(&disk, "1");
    assert!(said.contains("made partition 2"), "{said}");
    verified(&disk);
    assert_eq!(entries(), old_entries);
    let info = sgdisk(&disk, &["-i", "2"]);
    assert!(
        info.contains("First sector: 22528 ") && info.contains("Last sector: 63487 "),
        "{info}"
    );
    // Nothing else has changed: LBA 0, the first partition, what follows the new one.
    let after = disk.bytes();
    assert!(after[..512] == before[..512]);
    assert!(after[17 * 1024..11 * MIB] == before[17 * 1024..11 * MIB]);
    assert!(after[31 * MIB..63 * MIB] == before[31 * MIB..63 * MIB]);
    bench.counts(&disk, "2");
    verified(&disk);
}

#[test]
fn what_was_cut_off_goes_on() {
    // A new table whose protective MBR, which is written last, is missing.
    let bench = Bench::new("cut");
    let disk = LoopDevice::blank(48);
    let label = format!("-c1:{}", bench.label);
    sgdisk(&disk, &["-n1:2048:+20M", &label]);
    put(&disk, 0, &[0; 512]);
    disk.forget_partitions();
    // Data where the partition would be says that this is something else.
    put(&disk, 3 * MIB, b"data");
    bench.refused(&disk, json!({}), &["was cut off there, and has data"]);
    put(&disk, 3 * MIB, &[0; 4]);
    bench.counts(&disk, "1");
    verified(&disk);
    bench.counts(&disk, "2");

    // A table that is there, whose backup alone has the new entry.
    let bench = Bench::new("cut2");
    let disk = LoopDevice::blank(48);
    sgdisk(&disk, &["-n1:2048:+8M", "-c1:first"]);
    let old = disk.bytes();
    let label = format!("-c2:{}", bench.label);
    sgdisk(&disk, &["-n2:9M:+20M", &label]);
    put(&disk, 0, &old[..MIB]);
    disk.forget_partitions();
    // Of another size it is none that this would have made.
    bench.refused(
        &disk,
        json!({ "create": "21MiB" }),
        &["the two copies of the GPT differ"],
    );
    bench.counts(&disk, "1");
    verified(&disk);
    assert!(sgdisk(&disk, &["-i", "1"]).contains("first"));
}

#[test]
fn what_could_lose_something_is_refused() {
    let bench = Bench::new("no");
    let none = || json!({});
    let disk = LoopDevice::blank(32);
    bench.refused(
        &disk,
        json!({ "create": "40MiB" }),
        &["there is no room on", "40.0 MiB"],
    );
    loop_device::tool(
        "sh",
        &[
            "-c",
            &format!("echo ,10M | sfdisk -q --no-reread {}", disk.arg()),
        ],
    );
    disk.forget_partitions();
    bench.refused(&disk, none(), &["it has an MBR"]);

    let disk = LoopDevice::blank(48);
    loop_device::tool("mke2fs", &["-q", "-F", "-t", "ext4", disk.arg()]);
    bench.refused(&disk, none(), &["ext4 on"]);

    let disk = LoopDevice::patterned(48);
    bench.refused(&disk, none(), &["unknown data"]);

    let disk = LoopDevice::blank(48);
    sgdisk(&disk, &["-n1:2048:+8M", "-c1:first"]);
    disk.forget_partitions();
    let whole = disk.bytes();
    for (at, what) in [
        (520, "the primary GPT is damaged"),
        (48 * MIB - 500, "the backup GPT is damaged"),
    ] {
        put(&disk, at, &[0xff; 4]);
        bench.refused(&disk, none(), &[what, "sgdisk --verify"]);
        put(&disk, at, &whole[at..at + 4]);
    }
    // The kernel does not know a partition that the table lists.
    let label = format!("-c2:{}", bench.label);
    sgdisk(&disk, &["-n2:9M:+20M", &label]);
    disk.forget_partitions();
    bench.refused(&disk, none(), &["which the kernel does not know"]);

    drop(disk);

    // Something of the disk is in use.
    let disk = LoopDevice::blank(64);
    sgdisk(&disk, &["-n1:2048:+8M", "-c1:first"]);
    tell_kernel(&disk, "1", 1, 8);
    let part = format!("{}p1", disk.arg());
    loop_device::tool("mke2fs", &["-q", "-F", "-t", "ext4", &part]);
    let directory = tempfile::tempdir().unwrap();
    // In a namespace of its own: a session of another test that began now would keep the mount for a while.
    let mount = format!(
        "mount -o ro {part} {} && echo up && read end",
        directory.path().display()
    );
    let mut holder = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", &mount])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    holder
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0; 3])
        .unwrap();
    bench.refused(&disk, none(), &["is mounted on"]);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    bench.counts(&disk, "1");
    verified(&disk);

    // An optional path goes without.
    let disk = LoopDevice::patterned(48);
    let seen = bench.play(&disk, json!({ "required": false, "source": { "partlabel": format!("{}x", bench.label), "disk": { "path": disk.arg() } } }));
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert!(
        seen.ended.stderr.contains("shows the image's content"),
        "{}",
        seen.ended.stderr
    );
    assert!(disk.bytes().iter().all(|b| *b == loop_device::PATTERN));
}

#[test]
fn a_key_that_is_missing_is_said_before_anything_is_fetched() {
    let bench = Bench::new("key");
    let disk = LoopDevice::blank(32);
    let key = bench.lab.path("key");
    std::fs::write(&key, "some key").unwrap();
    loop_device::tool(
        "cryptsetup",
        &[
            "luksFormat",
            "--batch-mode",
            "--pbkdf=pbkdf2",
            "--pbkdf-force-iterations=1000",
            "--key-file",
            key.to_str().unwrap(),
            disk.arg(),
        ],
    );
    let source = json!({ "disk": { "path": disk.arg() } });
    let entry =
        |luks: Value| json!({ "source": source, "create": null, "format": "Never", "luks": luks });
    bench.refused(
        &disk,
        entry(Value::Null),
        &["it is encrypted: crypto_LUKS", "luks.keyFile"],
    );
    let seen = bench.play(&disk, entry(json!({ "keyFile": "/nowhere/key" })));
    seen.failed_with(16, &["the key file /nowhere/key cannot be read"]);
    assert!(!seen.ended.stderr.contains("[1/"), "{}", seen.ended.stderr);

    // An optional path goes without, and no partition is made that nothing could be put into.
    let disk = LoopDevice::blank(48);
    let luks = json!({ "luks": { "keyFile": "/nowhere/key" }, "required": false });
    let seen = bench.play(&disk, luks);
    let stderr = &seen.ended.stderr;
    assert_eq!(seen.ended.code, Some(0), "{stderr}");
    for part in [
        "is not made on",
        "/nowhere/key cannot be read",
        "shows the image's content",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert!(disk.bytes().iter().all(|b| *b == 0), "something was made");
}
