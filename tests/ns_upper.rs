//! Sessions from memory whose writes stay on a file system of a disk: several sessions over the same device, each in
//! a mount namespace of its own, asked for by a boot config and by Garden Linux's words. Needs root.
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

use loop_device::LoopDevice;
use serde_json::{Value, json};
use session::{Lab, Seen, tool};

fn with_file_system(mib: usize, program: &str, args: &[&str]) -> LoopDevice {
    let device = LoopDevice::blank(mib);
    let mut all = args.to_vec();
    all.push(device.arg());
    tool(program, &all);
    device
}

fn ext4(label: &str) -> LoopDevice {
    with_file_system(32, "mke2fs", &["-q", "-F", "-t", "ext4", "-L", label])
}

fn config(lab: &Lab, upper: &Value) -> Value {
    let root = lab.system("root");
    let image = lab.squashfs(&root, "a.squashfs");
    let mut config = session::config(image.to_str().unwrap());
    config["wait"] = json!("0s");
    config["memory"] = json!({ "upper": upper });
    config
}

fn node(device: &LoopDevice) -> Value {
    json!({ "disk": { "path": device.arg() } })
}

/// Looks only at what became a root: a script that writes would leave something where there is none.
#[track_caller]
fn good(lab: &Lab, config: &Value, look: &str) -> Seen {
    let seen = lab.play(config, &format!("[ $code = 0 ] || exit $code\n{look}"));
    // The last mount of a namespace goes a moment after its last process.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    seen
}

/// What the file system on a device holds, without a mount.
fn debugfs(device: &LoopDevice, command: &str) -> String {
    let text = loop_device::tool("debugfs", &["-R", command, device.arg()]);
    // It says its version, on the other channel.
    text.split("debugfs 1.")
        .next()
        .unwrap_or_default()
        .to_owned()
}

const WRITE: &str = r#"
    echo "flags=$(sed -n "s|^[0-9 :]* / $root \([^ ]*\) .*- \([a-z]*\) .*|\1 \2|p" /proc/self/mountinfo)"
    echo "mode=$(stat -c '%a %u %g' "$root")"
    echo "before=$(cat "$root/etc/count" 2>/dev/null) $(cat "$root/payload" 2>/dev/null | wc -c)"
    echo "boot=$(tr -d '\n' </run/ironroot/boot.json)"
    n=$(cat "$root/etc/count" 2>/dev/null || echo 0)
    echo $((n + 1)) >"$root/etc/count"
    rm -f "$root/payload"
    mknod "$root/null" c 1 3 2>/dev/null; echo x >"$root/null" && echo "device=works"
    chmod 0700 "$root"
    sync
"#;

#[test]
fn what_is_written_is_there_in_the_next_session_and_under_another_image() {
    let lab = Lab::new();
    let device = ext4("STATE");
    let mut config = config(
        &lab,
        &json!({ "source": node(&device), "subdir": "systems/one" }),
    );
    let seen = good(&lab, &config, WRITE);
    // Neither nosuid nor nodev, whatever the mount of the device has.
    assert!(
        seen.fact("flags").starts_with("rw,relatime overlay"),
        "{}",
        seen.text
    );
    assert_eq!(seen.fact("device"), "works");
    assert_eq!(seen.fact("mode"), "755 0 0");
    assert_eq!(seen.fact("before"), format!(" {}", 3 << 20));
    let boot: Value = serde_json::from_str(seen.fact("boot")).unwrap();
    assert_eq!(boot["upper"], device.arg());
    assert_eq!(boot["writableBytes"], Value::Null);
    // What the session before wrote, took away and changed.
    let seen = good(&lab, &config, WRITE);
    assert_eq!(seen.fact("before"), "1 0");
    assert_eq!(seen.fact("mode"), "700 0 0");
    let other = lab.erofs(&lab.system("other"), "b.erofs");
    config["image"] = session::config(other.to_str().unwrap())["image"].clone();
    assert_eq!(good(&lab, &config, WRITE).fact("before"), "2 0");
    assert_eq!(debugfs(&device, "cat /systems/one/upper/etc/count"), "3\n");
}

#[test]
fn every_file_system_that_can_be_an_upper_layer_is_one() {
    let lab = Lab::new();
    for (mib, program, args) in [
        (32, "mke2fs", &["-q", "-F", "-t", "ext4"][..]),
        (320, "mkfs.xfs", &["-q", "-f"]),
    ] {
        let device = with_file_system(mib, program, args);
        let config = config(&lab, &json!({ "source": node(&device) }));
        good(&lab, &config, WRITE);
        assert_eq!(good(&lab, &config, WRITE).fact("before"), "1 0");
    }
}

#[test]
fn what_cannot_take_the_writes_is_refused_and_left_as_it_is() {
    let lab = Lab::new();
    let refused = |config: &Value, parts: &[&str]| lab.play(config, "").failed_with(16, parts);

    let blank = LoopDevice::blank(32);
    let config = |source: Value| config(&lab, &json!({ "source": source }));
    refused(
        &config(node(&blank)),
        &["is blank", "make a file system", blank.name()],
    );
    assert!(blank.bytes().iter().all(|b| *b == 0));

    let vfat = with_file_system(32, "mkfs.vfat", &[]);
    let before = vfat.bytes();
    refused(&config(node(&vfat)), &["vfat", "upper layer"]);
    assert!(vfat.bytes() == before);

    refused(
        &config(json!({ "label": "NOBODY-HAS-THIS" })),
        &["no device has that name", "label=NOBODY-HAS-THIS"],
    );

    let (one, two) = (ext4("TWICE-HERE"), ext4("TWICE-HERE"));
    refused(
        &config(json!({ "label": "TWICE-HERE" })),
        &["2 devices have that name", one.name(), two.name()],
    );

    // Damaged beyond what is repaired without a decision: the root directory is no directory.
    let damaged = ext4("DAMAGED");
    loop_device::tool(
        "debugfs",
        &[
            "-w",
            "-R",
            "set_inode_field <2> mode 0100644",
            damaged.arg(),
        ],
    );
    loop_device::tool("debugfs", &["-w", "-R", "ssv state 2", damaged.arg()]);
    refused(&config(node(&damaged)), &["damaged", damaged.name()]);

    // A link on the way to the layer: whoever used the file system before may have made it.
    let linked = ext4("LINKED");
    loop_device::tool("debugfs", &["-w", "-R", "symlink upper /etc", linked.arg()]);
    refused(&config(node(&linked)), &["symbolic link"]);

    let mut both = config(node(&one));
    both["preserve"] = json!([{ "target": "/srv", "source": node(&one), "subdir": "srv" }]);
    refused(&both, &["/srv is preserved there too"]);

    let mut mounted = config(node(&two));
    let place = tempfile::tempdir().unwrap();
    tool("mount", &[two.arg(), place.path().to_str().unwrap()]);
    let seen = lab.play(&mounted, "");
    tool("umount", &[place.path().to_str().unwrap()]);
    seen.failed_with(16, &["in use"]);

    // What has no overlay.
    mounted["memory"]["method"] = json!("Extract");
    lab.play(&mounted, "")
        .failed_with(10, &["memory.upper", "Overlay"]);
    let root = lab.system("root");
    let archive = lab.path("a.tar");
    let (root, archive) = (root.to_str().unwrap(), archive.to_str().unwrap());
    tool("tar", &["-C", root, "-cf", archive, "."]);
    mounted["memory"]["method"] = json!("Auto");
    mounted["image"] = session::config(archive)["image"].clone();
    lab.play(&mounted, "")
        .failed_with(12, &["tar archive", "memory.upper"]);
}

/// `ironroot initrd` with these words as the kernel command line.
fn words(lab: &Lab, words: &str, look: &str) -> Seen {
    let cmdline = lab.path("cmdline");
    std::fs::write(&cmdline, format!("{words}\n")).unwrap();
    lab.play_words(&cmdline, &format!("[ $code = 0 ] || exit $code\n{look}"))
}

#[test]
fn garden_linuxs_words_keep_the_root_or_a_part_of_it() {
    let lab = Lab::new();
    let image = lab.squashfs(&lab.system("root"), "a.squashfs");
    let image = image.display();
    let device = ext4("GL STATE");
    let by_label = format!("gl.url={image} gl.live=1 gl.ovl=/:/dev/disk/by-label/GL\\x20STATE");
    let seen = words(&lab, &by_label, WRITE);
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let by_node = format!("gl.url={image} gl.ovl=/:{}", device.arg());
    let seen = words(&lab, &by_node, WRITE);
    assert_eq!(seen.fact("before"), "1 0", "{}", seen.ended.stderr);
    std::thread::sleep(std::time::Duration::from_millis(200));
    // As there: the two directories are in the root of the file system.
    assert_eq!(debugfs(&device, "cat /upper/etc/count"), "2\n");

    // A part of it that is not kept, with its content.
    let mixed = format!("{by_node},/etc:tmpfs,/srv/new:tmpfs");
    let look = r#"
        echo "etc=$(cat "$root/etc/count") $(stat -c %a "$root/etc") $(stat -fc %T "$root/srv/new")"
        echo 9 >"$root/etc/count"; echo kept >"$root/kept"; sync"#;
    for _ in 0..2 {
        let seen = words(&lab, &mixed, look);
        assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        assert_eq!(seen.fact("etc"), "2 755 overlayfs");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(debugfs(&device, "cat /upper/kept"), "kept\n");
    assert_eq!(debugfs(&device, "cat /upper/etc/count"), "2\n");

    let part = ext4("PART");
    let some = format!(
        "gl.url={image} gl.ovl=/:tmpfs,/home:tmpfs,/var/lib:{}",
        part.arg()
    );
    let look = r#"
        echo "before=$(cat "$root/var/lib/data/kept" "$root/lost" 2>/dev/null)"
        echo kept >"$root/var/lib/data/kept"; echo lost >"$root/lost"; sync"#;
    for before in ["", "kept"] {
        let seen = words(&lab, &some, look);
        assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
        assert_eq!(seen.fact("before"), before);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(debugfs(&part, "cat /upper/data/kept"), "kept\n");

    let blank = LoopDevice::blank(16);
    let on_blank = format!("gl.url={image} gl.ovl=/:{}", blank.arg());
    let nothing = words(&lab, &on_blank, "");
    nothing.failed_with(16, &["is blank"]);
    assert!(blank.bytes().iter().all(|b| *b == 0));
    for (ovl, why) in [
        ("/:/dev/vda,/:/dev/vdb", "second place"),
        ("/etc:/dev/vda", "the system itself"),
        ("/var:var", "only tmpfs and a device"),
    ] {
        let seen = words(&lab, &format!("gl.url={image} gl.ovl={ovl}"), "");
        seen.failed_with(10, &[why, "gl.ovl="]);
    }
}
