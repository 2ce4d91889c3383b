//! Preserved paths of installed systems, on real loop devices: made ready on partitions of the very disk, listed in
//! the installed fstab, the same over reinstalls and for a session from memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
#[path = "support/session.rs"]
mod session;
#[path = "support/installing.rs"]
mod support;

// What `session` expects beside itself.
use support::program;

use std::path::Path;

use serde_json::{Value, json};
use session::Lab;
use support::disk_image::{MIB, sha256};
use support::loop_device::{LoopDevice, tool};
use support::program::Config;
use support::systems::{Part, check, image, read, write};

const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
const UUID: &str = "11111111-2222-4333-8444-555555555555";
const FSTAB: &str = "UUID=11111111-2222-4333-8444-555555555555 / ext4 defaults 0 1\n";

/// A system of `version`: kubelet's directory has content, and the machine id waits for the first boot.
fn system(directory: &Path, version: &str, fstab: &str) -> Vec<u8> {
    let root = directory.join(version);
    write(&root, "etc/os-release", "ID=x\n");
    write(&root, "etc/fstab", fstab);
    write(&root, "etc/machine-id", "");
    write(
        &root,
        "etc/ssh/ssh_host_key",
        &format!("key of {version}\n"),
    );
    write(&root, "var/lib/kubelet/config", &format!("of {version}\n"));
    image(&[Part {
        number: 1,
        at: 1,
        size: 24,
        kind: ROOT,
        uuid: UUID,
        label: "root",
        tree: &root,
    }])
}

fn paths() -> Value {
    let source = json!({ "partlabel": "state" });
    json!([
        { "target": "/var/lib/kubelet", "source": source, "subdir": "kubelet", "seed": "FromImageOnce", "mode": "0750",
          "options": ["noatime"] },
        { "target": "/etc/ssh/ssh_host_key", "source": source, "subdir": "ssh_host_key", "kind": "file",
          "seed": "FromImageOnce", "claimBound": true },
        { "target": "/etc/machine-id", "source": source, "subdir": "machine-id", "kind": "file" },
        { "target": "/srv/upper", "source": source, "subdir": "srv", "method": "overlay", "required": false },
    ])
}

/// The name of the partition on `disk`: no other of this machine may have it, and other tests have disks as well.
fn label(disk: &LoopDevice) -> String {
    format!("state-{}-{}", disk.name(), std::process::id())
}

/// With that name for `state`.
fn named(preserve: &Value, disk: &LoopDevice) -> Value {
    let label = format!("\"{}\"", label(disk));
    serde_json::from_str(&preserve.to_string().replace("\"state\"", &label)).unwrap()
}

fn config(image: &[u8], disk: &LoopDevice, preserve: &Value) -> Config {
    let path = disk.directory().join("image");
    std::fs::write(&path, image).unwrap();
    Config::new(path.to_str().unwrap(), &sha256(image), disk)
        .with("/metadata", json!({ "claim": "tenant-a/one" }))
        .with("/disk/overwrite", json!("Always"))
        .with("/disk/keep", json!([label(disk)]))
        .with(
            "/disk/partitions",
            json!([{ "label": label(disk), "size": "Rest", "filesystem": "ext4" }]),
        )
        .with("/preserve", named(preserve, disk))
        .with("/wait", json!("0s"))
}

/// The partition `state` begins behind the image, whose last MiB is that of its backup table.
const AT: usize = 26;

#[track_caller]
fn bootable(disk: &LoopDevice, yes: bool) {
    assert_eq!(disk.bytes()[510..512] == [0x55, 0xaa], yes);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("/run/ironroot/"), "{mounts}");
}

/// What the first installation makes stays over a reinstall with another image, and a session finds it.
#[test]
fn paths_live_on_the_disk_over_reinstalls_and_for_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let disk = LoopDevice::patterned(96);
    let one = system(directory.path(), "one", FSTAB);
    config(&one, &disk, &paths()).install(&[]).succeeded();
    bootable(&disk, true);

    assert!(read(&disk, AT, "/kubelet/config").0.contains("of one\n"));
    assert!(read(&disk, AT, "/ssh_host_key").0.contains("key of one\n"));
    let id = read(&disk, AT, "/machine-id").0;
    let id = id.lines().find(|l| l.len() == 32).unwrap().to_owned();
    assert!(read(&disk, 1, "/etc/machine-id").0.contains(&id));
    let fstab = read(&disk, 1, "/etc/fstab").0;
    let info = tool("sgdisk", &["-i", "2", disk.arg()]);
    let partuuid = info
        .lines()
        .find_map(|l| l.strip_prefix("Partition unique GUID: "))
        .unwrap()
        .to_lowercase();
    let wanted = format!(
        "{FSTAB}# ironroot begin: preserved paths
tmpfs /run/ironroot/state tmpfs rw,nosuid,nodev,noexec,mode=0700,size=64k,x-mount.mkdir 0 0
PARTUUID={partuuid} /run/ironroot/state/0 ext4 rw,nosuid,nodev,errors=remount-ro,x-mount.mkdir 0 2
/run/ironroot/state/0/ssh_host_key /etc/ssh/ssh_host_key none bind,rw,nosuid,nodev,exec,relatime,x-systemd.requires-mounts-for=/run/ironroot/state/0 0 0
/run/ironroot/state/0/kubelet /var/lib/kubelet none bind,rw,nosuid,nodev,exec,noatime,x-systemd.requires-mounts-for=/run/ironroot/state/0 0 0
overlay /srv/upper overlay lowerdir=/srv/upper,upperdir=/run/ironroot/state/0/srv/upper,workdir=/run/ironroot/state/0/srv/work,index=off,metacopy=off,redirect_dir=off,xino=off,rw,nosuid,nodev,exec,relatime,x-systemd.requires-mounts-for=/run/ironroot/state/0,nofail,x-systemd.before=local-fs.target 0 0
# ironroot end
"
    );
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let lines: Vec<&str> = fstab
        .lines()
        .filter(|l| !l.starts_with("debugfs "))
        .collect();
    let fstab = lines.join("\n") + "\n";
    assert_eq!(sorted(&fstab), sorted(&wanted), "{fstab}");
    // mount(8) understands every line.
    let file = directory.path().join("fstab");
    std::fs::write(&file, &fstab).unwrap();
    let (_, text) = support::loop_device::try_tool(
        "findmnt",
        &["--verify", "--tab-file", file.to_str().unwrap()],
    );
    assert!(text.contains("0 parse errors"), "{text}");
    check(&disk, 1, 24);

    // Another image, the same paths: what is there stays, and the image's new content does not get in.
    let two = system(directory.path(), "two", FSTAB);
    let ended = config(&two, &disk, &paths()).install(&[]).succeeded();
    assert!(ended.stderr.contains("kept"), "{}", ended.stderr);
    bootable(&disk, true);
    assert!(read(&disk, AT, "/kubelet/config").0.contains("of one\n"));
    assert!(
        read(&disk, 1, "/var/lib/kubelet/config")
            .0
            .contains("of two\n")
    );
    assert!(read(&disk, 1, "/etc/machine-id").0.contains(&id));
    assert!(
        read(&disk, 1, "/etc/fstab")
            .0
            .contains(&format!("PARTUUID={partuuid} "))
    );

    // A session from memory over the same partition.
    let lab = Lab::new();
    let root = lab.system("root");
    write(&root, "etc/ssh/ssh_host_key", "key of the session\n");
    let squashfs = lab.squashfs(&root, "root.squashfs");
    let mut session = session::config(squashfs.to_str().unwrap());
    session["metadata"] = json!({ "claim": "tenant-a/one" });
    session["wait"] = json!("0s");
    session["preserve"] = named(&paths(), &disk);
    let seen = lab.play(
        &session,
        "[ $code = 0 ] || exit $code\necho config=$(cat $root/var/lib/kubelet/config)\necho key=$(cat $root/etc/ssh/ssh_host_key)\necho id=$(cat $root/etc/machine-id $root/var/lib/dbus/machine-id 2>/dev/null)",
    );
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("config"), "of one");
    assert_eq!(seen.fact("key"), "key of one");
    assert_eq!(seen.fact("id"), id);
    std::thread::sleep(std::time::Duration::from_millis(300));

    // Another claim gets neither the key nor the disk: the system that is there stays.
    let other = config(&two, &disk, &paths()).with("/metadata", json!({ "claim": "tenant-b" }));
    other
        .install(&[])
        .failed_with(16, &["/etc/ssh/ssh_host_key", "tenant-a/one"]);
    bootable(&disk, true);
    let blocks = disk.bytes();
    assert!(blocks[AT * MIB..].windows(7).any(|w| w == b"of one\n"));
}

#[test]
fn what_cannot_be_kept_is_said_before_or_leaves_a_disk_that_does_not_boot() {
    let directory = tempfile::tempdir().unwrap();
    let image = system(directory.path(), "one", FSTAB);
    let kubelet = |more: Value| {
        let mut entry = json!({ "target": "/var/lib/kubelet", "source": { "partlabel": "state" } });
        for (key, value) in more.as_object().unwrap() {
            entry[key] = value.clone();
        }
        json!([entry])
    };
    // Before the first write.
    let disk = LoopDevice::patterned(64);
    let elsewhere = kubelet(json!({ "source": { "partlabel": "nowhere" } }));
    config(&image, &disk, &elsewhere)
        .install(&[])
        .failed_with(16, &["partlabel=nowhere", "no device has that name"]);
    support::verdict::assert_pattern(&disk);
    let blank = config(&image, &disk, &kubelet(json!({}))).with(
        "/disk/partitions",
        json!([{ "label": label(&disk), "size": "Rest" }]),
    );
    blank
        .install(&[])
        .failed_with(16, &["the new partition \"state-"]);
    support::verdict::assert_pattern(&disk);

    // The image mounts something there itself.
    let rival = format!("{FSTAB}tmpfs /var/lib/kubelet tmpfs defaults 0 0\n");
    let image = system(directory.path(), "rival", &rival);
    config(&image, &disk, &kubelet(json!({})))
        .install(&[])
        .failed_with(
            16,
            &[
                "/var/lib/kubelet cannot be preserved",
                "/etc/fstab of the image",
            ],
        );
    bootable(&disk, false);
    let disk = LoopDevice::patterned(64);
    let ended = config(&image, &disk, &kubelet(json!({ "required": false })))
        .install(&[])
        .succeeded();
    assert!(
        ended.stderr.contains("/var/lib/kubelet is not preserved"),
        "{}",
        ended.stderr
    );
    let fstab = read(&disk, 1, "/etc/fstab").0;
    assert!(
        fstab.contains("tmpfs /var/lib/kubelet") && !fstab.contains("ironroot begin"),
        "{fstab}"
    );

    // The same place by another name: the image's line, or the path, goes through a link of the image. A unit
    // that is masked leaves our line without effect.
    let unit = "[Mount]\nWhat=tmpfs\nType=tmpfs\nWhere=/var/lib/kubelet\n";
    let mask: &[(&str, &str)] = &[("etc/systemd/system/var-lib-kubelet.mount", "/dev/null")];
    let linked: &[(&str, &str)] = &[("kubelet", "var/lib/kubelet")];
    for (name, lines, units, links, target, part) in [
        (
            "linked-line",
            "tmpfs /kubelet tmpfs defaults 0 0\n",
            &[][..],
            linked,
            "/var/lib/kubelet",
            "/etc/fstab of the image mounts something at /kubelet",
        ),
        (
            "linked-path",
            "tmpfs /var/lib/kubelet tmpfs defaults 0 0\n",
            &[],
            linked,
            "/kubelet",
            "/etc/fstab of the image mounts something at /var/lib/kubelet",
        ),
        (
            "unit",
            "",
            &[("usr/lib/systemd/system/var-lib-kubelet.mount", unit)],
            linked,
            "/kubelet",
            "/usr/lib/systemd/system/var-lib-kubelet.mount of the image mounts",
        ),
        (
            "masked",
            "",
            &[],
            mask,
            "/var/lib/kubelet",
            "keeps systemd from mounting anything at /var/lib/kubelet",
        ),
        (
            // What would fill the place is not what the running system has there.
            "seed",
            "",
            &[],
            &[("kubelet", "run/kubelet")],
            "/kubelet",
            "/kubelet leads to /run/kubelet",
        ),
    ] {
        let root = directory.path().join(name);
        for (path, text) in units {
            write(&root, path, text);
        }
        for (at, to) in links {
            let at = root.join(at);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, at).unwrap();
        }
        let image = system(directory.path(), name, &format!("{FSTAB}{lines}"));
        let disk = LoopDevice::patterned(64);
        let seed = if name == "seed" {
            "FromImageOnce"
        } else {
            "None"
        };
        let path = kubelet(json!({ "target": target, "seed": seed }));
        config(&image, &disk, &path)
            .install(&[])
            .failed_with(16, &[&format!("{target} cannot be preserved"), part]);
        bootable(&disk, false);
    }

    // A partition that the reinstallation would erase.
    let image = system(directory.path(), "two", FSTAB);
    let dropped = config(&image, &disk, &kubelet(json!({})))
        .with("/disk/keep", json!([]))
        .with("/disk/partitions", json!([]));
    let before = disk.bytes();
    dropped
        .install(&[])
        .failed_with(16, &["nothing keeps it", "disk.keep"]);
    assert!(before == disk.bytes());
}

/// A kept partition may hold a whole system (an old root, a copy of one): it is neither taken for the new one nor
/// changed.
#[test]
fn a_system_on_a_kept_partition_is_not_the_installed_one() {
    let directory = tempfile::tempdir().unwrap();
    let disk = LoopDevice::patterned(96);
    let source = json!([{ "target": "/var/lib/kubelet", "source": { "partlabel": "state" } }]);
    let one = system(directory.path(), "one", FSTAB);
    config(&one, &disk, &source).install(&[]).succeeded();
    let device = format!("{}?offset={}", disk.backing().display(), AT * MIB);
    for request in [
        "mkdir etc",
        "write /etc/os-release etc/os-release",
        "write /etc/os-release etc/fstab",
    ] {
        tool("debugfs", &["-w", "-R", request, &device]);
    }
    tool("sgdisk", &["--typecode=2:8304", disk.arg()]);
    let two = system(directory.path(), "two", FSTAB);
    let files = json!([{ "path": "/etc/new", "contents": "hello" }]);
    config(&two, &disk, &source)
        .with("/disk/files", files)
        .install(&[])
        .succeeded();
    bootable(&disk, true);
    assert!(read(&disk, 1, "/etc/new").0.contains("hello"));
    assert!(read(&disk, 1, "/etc/fstab").0.contains("ironroot begin"));
    assert!(!read(&disk, AT, "/etc/fstab").0.contains("ironroot"));
}

/// A partition that gets the name of another would show an empty path, and the next session would not know which of
/// the two is meant.
#[test]
fn no_second_partition_of_a_name_is_made_and_none_is_erased_that_holds_what_is_preserved() {
    let directory = tempfile::tempdir().unwrap();
    let image = system(directory.path(), "one", FSTAB);
    let paths = json!([{ "target": "/var/lib/kubelet", "source": { "partlabel": "state" } }]);
    // Another disk has it, whether the kernel knows of that or not.
    let disk = LoopDevice::patterned(64);
    let other = LoopDevice::patterned(40);
    let name = format!("-c1:{}", label(&disk));
    tool("sgdisk", &["-o", "-n1:2048:+20M", &name, other.arg()]);
    other.forget_partitions();
    for known in [false, true] {
        if known {
            tool("addpart", &[other.arg(), "1", "2048", "40960"]);
        }
        let before = other.bytes();
        config(&image, &disk, &paths)
            .install(&[])
            .failed_with(16, &[other.name(), "/var/lib/kubelet"]);
        support::verdict::assert_pattern(&disk);
        assert!(other.bytes() == before);
    }
    other.forget_partitions();
    tool("sgdisk", &["-Z", other.arg()]);

    // Without `keep` the first installation makes it, and the second would erase it.
    let forgetful = || config(&image, &disk, &paths).with("/disk/keep", json!([]));
    forgetful().install(&[]).succeeded();
    bootable(&disk, true);
    let before = disk.bytes();
    let two = system(directory.path(), "two", FSTAB);
    config(&two, &disk, &paths)
        .with("/disk/keep", json!([]))
        .install(&[])
        .failed_with(16, &["partition 2", "disk.keep", disk.name()]);
    assert!(disk.bytes() == before);
    config(&two, &disk, &paths).install(&[]).succeeded();
    // One that was cut off can be repeated, at any of its steps.
    let disk = LoopDevice::patterned(64);
    let forgetful = || config(&image, &disk, &paths).with("/disk/keep", json!([]));
    for steps in ["3", "5", "7", "9", "10"] {
        let stopped = forgetful().install(&["--stop-after", steps]);
        assert_ne!(stopped.code, Some(16), "{steps}: {}", stopped.stderr);
    }
    forgetful().install(&[]).succeeded();
    bootable(&disk, true);
}

/// mount(8) and `mount -a` take the lines as they stand: a child that came first would be hidden by its parent.
#[test]
fn parents_stand_before_their_children_in_the_installed_fstab() {
    let directory = tempfile::tempdir().unwrap();
    let image = system(directory.path(), "one", FSTAB);
    let source = json!({ "partlabel": "state" });
    let path = |target: &str, subdir: &str, more: Value| {
        let mut path = json!({ "target": target, "source": source, "subdir": subdir });
        path.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        path
    };
    let none = json!({});
    let given = [
        path("/srv/a/b/c", "deepest", none.clone()),
        path("/srv/a/b", "deep", json!({ "required": false })),
        path("/var/lib/kubelet/pods", "pods", none.clone()),
        path("/srv/a/b/c/file", "file", json!({ "kind": "file" })),
        path("/srv", "top", json!({ "method": "overlay" })),
        path("/var/lib/kubelet", "kubelet", none.clone()),
        path("/srv/ab", "beside", none.clone()),
        path("/var", "var", none),
    ];
    let mut backwards = given.to_vec();
    backwards.reverse();
    for paths in [given.to_vec(), backwards] {
        let disk = LoopDevice::patterned(64);
        config(&image, &disk, &json!(paths))
            .install(&[])
            .succeeded();
        let fstab = read(&disk, 1, "/etc/fstab").0;
        let (_, block) = fstab.split_once("# ironroot begin").unwrap();
        let (block, _) = block.split_once("# ironroot end").unwrap();
        let targets: Vec<&str> = block
            .lines()
            .skip(1)
            .map(|line| line.split(' ').nth(1).unwrap())
            .collect();
        // The source is mounted before all that lives on it.
        let first = ["/run/ironroot/state", "/run/ironroot/state/0"];
        assert_eq!(targets.get(..2), Some(&first[..]), "{fstab}");
        assert_eq!(targets.len(), 2 + paths.len(), "{fstab}");
        for (n, target) in targets.iter().enumerate() {
            let target = Path::new(target);
            let late = targets.iter().skip(n + 1).find(|t| target.starts_with(t));
            assert_eq!(late, None, "{} stands before it: {fstab}", target.display());
        }
        // Mounted in that order, each has at its place what it mounts.
        let made = directory.path().join("mounts");
        let script = r#"mount --make-rprivate /; mkdir -p "$2"; mount -t tmpfs t "$2"; cd "$2"; n=0
            while read -r what at rest; do n=$((n + 1)); mkdir -p "tree${at%/*}" x$n; echo "$at" >x$n/mark; echo "$at" >f$n
                case $at in */file) : >"tree$at"; mount --bind f$n "tree$at";; *) mkdir -p "tree$at"; mount --bind x$n "tree$at";; esac
            done <"$1"
            while read -r what at rest; do
                case $at in */file) seen=$(cat "tree$at");; *) seen=$(cat "tree$at/mark");; esac
                [ "$seen" = "$at" ] || echo "hidden: $at"
            done <"$1"; echo over"#;
        let lines = directory.path().join("lines");
        std::fs::write(&lines, block.split_once('\n').unwrap().1).unwrap();
        let text = tool(
            "unshare",
            &[
                "--mount",
                "sh",
                "-ec",
                script,
                "sh",
                lines.to_str().unwrap(),
                made.to_str().unwrap(),
            ],
        );
        assert_eq!(text, "over\n");
    }
}

/// A link of the image makes one place of two paths, and of two lines for it systemd takes the first.
#[test]
fn two_paths_that_are_one_place_in_the_image_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("linked");
    std::fs::create_dir_all(root.join("srv")).unwrap();
    std::os::unix::fs::symlink("srv", root.join("data")).unwrap();
    let image = system(directory.path(), "linked", FSTAB);
    let paths = |required: bool| {
        json!([
            { "target": "/data", "source": { "partlabel": "state" }, "subdir": "a" },
            { "target": "/srv", "source": { "partlabel": "state" }, "subdir": "b", "required": required },
        ])
    };
    let disk = LoopDevice::patterned(64);
    config(&image, &disk, &paths(true))
        .install(&[])
        .failed_with(16, &["/srv cannot be preserved", "the same place as /data"]);
    bootable(&disk, false);
    let ended = config(&image, &disk, &paths(false))
        .install(&[])
        .succeeded();
    assert!(
        ended.stderr.contains("/srv is not preserved"),
        "{}",
        ended.stderr
    );
    let fstab = read(&disk, 1, "/etc/fstab").0;
    assert!(fstab.contains("/a /data none"), "{fstab}");
    assert!(!fstab.contains(" /srv none"), "{fstab}");
}
