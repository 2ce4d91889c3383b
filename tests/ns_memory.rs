//! Sessions from memory as the helper of another initrd makes them, each in a mount namespace of its own: what
//! becomes a root, what is refused, and that nothing is left of what failed. Needs root.
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

use serde_json::{Value, json};
use session::{Lab, tool};

const LOOK: &str = r#"
    sum() { sha256sum <"$root/payload" | cut -c1-64; }
    echo "mode=$(stat -c '%a %u %g' "$root")"
    echo "flags=$(sed -n "s|^[0-9 :]* / $root \([^ ]*\) .*- \([a-z]*\) .*|\1 \2|p" /proc/self/mountinfo)"
    echo "sum=$(sum)"
    echo "written=$(echo hello >"$root/etc/new" && cat "$root/etc/new")"
    echo "boot=$(tr -d '\n' </run/ironroot/boot.json)"
    echo "private=$(stat -c %a /run/ironroot /run/ironroot/boot.json /run/ironroot/events.jsonl /run/ironroot/plan.json | tr '\n' ' ')"
"#;

fn payload_sum() -> String {
    session::sha256(&session::noise(3 << 20))
}

#[track_caller]
fn is_a_root(seen: &session::Seen, kind: &str) -> Value {
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("mode"), "755 0 0");
    assert_eq!(seen.fact("sum"), payload_sum());
    assert_eq!(seen.fact("written"), "hello");
    assert_eq!(seen.fact("private"), "700 600 600 600 ");
    // Neither nosuid nor nodev: sudo and device nodes work.
    let flags = seen.fact("flags");
    assert!(flags.starts_with("rw,relatime "), "{flags}");
    let boot: Value = serde_json::from_str(seen.fact("boot")).unwrap();
    assert_eq!(boot["imageKind"], kind);
    assert_eq!(boot["proven"], true);
    boot
}

#[test]
fn squashfs_and_erofs_become_roots() {
    let lab = Lab::new();
    let root = lab.system("root");
    for (image, kind) in [
        (lab.squashfs(&root, "a.squashfs"), "squashfs"),
        (lab.erofs(&root, "a.erofs"), "erofs"),
    ] {
        let config = session::config(image.to_str().unwrap());
        let boot = is_a_root(&lab.play(&config, LOOK), kind);
        assert_eq!(boot["method"], "overlay");
        assert_eq!(
            boot["downloadBytes"],
            std::fs::metadata(&image).unwrap().len()
        );
    }
}

#[test]
fn a_compressed_squashfs_is_decoded_first() {
    let lab = Lab::new();
    let image = lab.squashfs(&lab.system("root"), "a.squashfs");
    tool("zstd", &["-q", image.to_str().unwrap()]);
    let config = session::config(&format!("{}.zst", image.display()));
    is_a_root(&lab.play(&config, LOOK), "squashfs");
}

/// A disk with an ext4 root behind another partition.
fn disk(lab: &Lab, kinds: &[&str]) -> String {
    let root = lab.system("disk-root");
    let (disk, part) = (lab.path("disk.raw"), lab.path("part.ext4"));
    let [disk_name, part_name] = [&disk, &part].map(|p| p.to_str().unwrap().to_owned());
    std::fs::File::create(&part)
        .unwrap()
        .set_len(24 << 20)
        .unwrap();
    tool(
        "mke2fs",
        &["-q", "-t", "ext4", "-d", root.to_str().unwrap(), &part_name],
    );
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let mut args = vec!["-n1:2048:+8M".to_owned(), "-t1:ef00".to_owned()];
    for (i, kind) in kinds.iter().enumerate() {
        let number = i + 2;
        args.push(format!("-n{number}:{}:+24M", 20480 + i * 24 * 2048));
        args.push(format!("-t{number}:{kind}"));
    }
    let mut words: Vec<&str> = args.iter().map(String::as_str).collect();
    words.push(&disk_name);
    tool("sgdisk", &words);
    let (from, to) = (format!("if={part_name}"), format!("of={disk_name}"));
    tool(
        "dd",
        &[
            &from,
            &to,
            "bs=1M",
            "seek=10",
            "conv=notrunc",
            "status=none",
        ],
    );
    disk_name
}

#[test]
fn of_a_disk_image_only_the_root_is_kept() {
    let lab = Lab::new();
    // 8304: root for x86-64; 8300: Linux data.
    for (kinds, good) in [
        (&["8304"][..], true),
        (&["8300"], true),
        (&["8304", "8300"], true),
        (&["8300", "8300"], false),
        (&["8200"], false),
    ] {
        let image = disk(&lab, kinds);
        let seen = lab.play(
            &session::config(&image),
            &format!("{LOOK}\necho \"held=$(stat -c '%s %b' /run/ironroot/image/root.img)\""),
        );
        if !good {
            seen.failed_with(12, &["cannot be the root of a session", "root"]);
            continue;
        }
        is_a_root(&seen, "a disk, its root in partition 2");
        let held: Vec<u64> = seen
            .fact("held")
            .split(' ')
            .map(|n| n.parse().unwrap())
            .collect();
        assert_eq!(held[0], 24 << 20);
        // Most of the file system is empty, and empty parts take no memory.
        assert!(held[1] * 512 < 12 << 20, "{held:?}");
    }
}

/// An archive of `root`, made by GNU tar.
fn archive(lab: &Lab, root: &std::path::Path, name: &str) -> String {
    let path = lab.path(name).to_str().unwrap().to_owned();
    tool(
        "tar",
        &["-C", root.to_str().unwrap(), "--xattrs", "-caf", &path, "."],
    );
    path
}

#[test]
fn an_archive_is_unpacked_while_it_comes() {
    let lab = Lab::new();
    let root = lab.system("root");
    for name in ["a.tar", "a.tar.gz", "a.tar.zst", "a.tar.xz"] {
        let image = archive(&lab, &root, name);
        let boot = is_a_root(&lab.play(&session::config(&image), LOOK), "a tar archive");
        assert_eq!(boot["method"], "extract");
    }
}

#[test]
fn an_archive_that_is_not_good_to_its_end_leaves_nothing() {
    let lab = Lab::new();
    let root = lab.system("root");
    let image = archive(&lab, &root, "a.tar");
    let good = std::fs::read(&image).unwrap();
    let play = |bytes: &[u8], memory: Value| {
        std::fs::write(&image, bytes).unwrap();
        let mut config = session::config(&image);
        config["memory"] = memory;
        lab.play(&config, "")
    };
    // Everything fits but the digest, which is known at the end.
    let mut config = session::config(&image);
    config["image"]["digest"] = format!("sha256:{}", "0".repeat(64)).into();
    lab.play(&config, "").failed_with(12, &["has the digest"]);
    // Cut at the border of an entry, where a lenient reader sees an end.
    play(&good[..512 * 8], json!({})).failed_with(12, &["loadRoot"]);
    // More than may be written.
    play(&good, json!({ "size": "2MiB" })).failed_with(15, &["16.0 MiB"]);
    let full = play(&good, json!({ "size": "16MiB", "inodes": 10 }));
    full.failed_with(15, &["inodes", "loadRoot"]);
    // A way out of the root.
    tool(
        "tar",
        &[
            "-C",
            root.to_str().unwrap(),
            "--transform=s,^./payload,../../payload,",
            "-cPf",
            &image,
            ".",
        ],
    );
    let bytes = std::fs::read(&image).unwrap();
    play(&bytes, json!({})).failed_with(12, &["..", "loadRoot"]);
    // An archive is not mounted.
    play(&good, json!({ "method": "Overlay" })).failed_with(12, &["tar archive"]);
}

#[test]
fn an_unpacked_image_that_enforces_selinux_is_refused() {
    let lab = Lab::new();
    let root = lab.system("root");
    std::fs::create_dir(root.join("etc/selinux")).unwrap();
    std::fs::write(root.join("etc/selinux/config"), "SELINUX=enforcing\n").unwrap();
    let image = archive(&lab, &root, "a.tar");
    lab.play(&session::config(&image), "")
        .failed_with(17, &["SELinux", "squashfs"]);
    let image = lab.squashfs(&root, "a.squashfs");
    let mut config = session::config(image.to_str().unwrap());
    is_a_root(&lab.play(&config, LOOK), "squashfs");
    config["memory"] = json!({ "method": "Extract" });
    lab.play(&config, "").failed_with(17, &["SELinux"]);
}

#[test]
fn a_file_system_is_unpacked_when_asked_and_nothing_of_the_image_stays() {
    let lab = Lab::new();
    let root = lab.system("root");
    tool(
        "setcap",
        &["cap_net_raw+ep", root.join("bin/busybox").to_str().unwrap()],
    );
    let look = format!(
        r#"{LOOK}
        echo "kind=$(stat -fc %T "$root") $(ls /run/ironroot | tr '\n' ' ')"
        echo "caps=$(getcap "$root/bin/busybox")"
        echo "used=$(df -k --output=used "$root" | tail -1)""#
    );
    for (image, kind) in [
        (lab.squashfs(&root, "a.squashfs"), "squashfs"),
        (lab.erofs(&root, "a.erofs"), "erofs"),
        (
            disk(&lab, &["8304"]).into(),
            "a disk, its root in partition 2",
        ),
    ] {
        let mut config = session::config(image.to_str().unwrap());
        config["memory"] = json!({ "method": "Extract", "size": "64MiB" });
        let seen = lab.play(&config, &look);
        let boot = is_a_root(&seen, kind);
        assert_eq!(boot["method"], "extract");
        // Neither the image nor a mount of it.
        assert_eq!(seen.fact("kind"), "tmpfs boot.json events.jsonl plan.json ");
        if kind != "a disk, its root in partition 2" {
            assert!(seen.fact("caps").contains("cap_net_raw"), "{}", seen.text);
        }
        let used: u64 = seen.fact("used").trim().parse().unwrap();
        assert!((3 << 10..16 << 10).contains(&used), "{used} KiB");
    }
}

#[test]
fn a_tree_that_does_not_fit_is_refused_before_it_is_unpacked() {
    let lab = Lab::new();
    let root = lab.system("root");
    // Compressed it is nothing.
    let text = "all work and no play\n".repeat(1 << 20);
    std::fs::write(root.join("text"), text).unwrap();
    let image = lab.squashfs(&root, "a.squashfs");
    let mut config = session::config(image.to_str().unwrap());
    config["memory"] = json!({ "method": "Extract", "size": "16MiB" });
    let seen = lab.play(&config, "");
    seen.failed_with(
        15,
        &[
            "the unpacked image needs 2",
            "there are 16.0 MiB",
            "memory.size",
        ],
    );
    assert!(
        !seen.ended.stderr.contains("unpacking"),
        "{}",
        seen.ended.stderr
    );
    config["memory"] = json!({ "method": "Extract", "size": "64MiB", "inodes": 10 });
    lab.play(&config, "")
        .failed_with(15, &["inodes", "loadRoot"]);
    // Damaged content shows when it is read.
    let mut bad = std::fs::read(&image).unwrap();
    for byte in &mut bad[200..2000] {
        *byte ^= 0x5a;
    }
    std::fs::write(&image, &bad).unwrap();
    let mut config = session::config(image.to_str().unwrap());
    config["memory"] = json!({ "method": "Extract" });
    lab.play(&config, "")
        .failed_with(12, &["cannot be unpacked", "loadRoot"]);
}

#[test]
fn an_image_that_is_damaged_or_not_the_declared_one_leaves_nothing() {
    let lab = Lab::new();
    let root = lab.system("root");
    let image = lab.squashfs(&root, "a.squashfs");
    let good = std::fs::read(&image).unwrap();
    let (name, look) = (image.to_str().unwrap(), "");
    let config = session::config(name);

    // A flipped bit: the declared digest is another.
    let mut bad = good.clone();
    bad[1 << 20] ^= 1;
    std::fs::write(&image, &bad).unwrap();
    lab.play(&config, look)
        .failed_with(12, &["has the digest", "loadRoot"]);

    // Cut short, and the digest is right: the superblock knows better, before anything is loaded.
    std::fs::write(&image, &good[..good.len() / 2]).unwrap();
    lab.play(&session::config(name), look)
        .failed_with(12, &["cut short", "openRoot"]);

    // The same, compressed: it shows at the end.
    tool("zstd", &["-q", "-f", name]);
    let compressed = format!("{name}.zst");
    lab.play(&session::config(&compressed), look)
        .failed_with(12, &["cut short", "loadRoot"]);

    // Damaged metadata with a digest that fits: the kernel refuses it.
    let mut bad = good.clone();
    bad[8..60].fill(0xa5);
    bad[40..48].copy_from_slice(&(good.len() as u64).to_le_bytes());
    std::fs::write(&image, &bad).unwrap();
    lab.play(&session::config(name), look)
        .failed_with(12, &["cannot be mounted as squashfs", "mountRoot"]);

    std::fs::write(&image, b"<html>404</html>").unwrap();
    lab.play(&session::config(name), look)
        .failed_with(12, &["cannot be the root of a session"]);
}

#[test]
fn a_root_that_cannot_be_started_is_refused_while_the_initrd_is_intact() {
    let lab = Lab::new();
    let judge = |change: &dyn Fn(&std::path::Path), parts: &[&str]| {
        let root = lab.system("root");
        change(&root);
        let image = lab.squashfs(&root, "a.squashfs");
        lab.play(&session::config(image.to_str().unwrap()), "")
            .failed_with(17, parts);
        std::fs::remove_dir_all(&root).unwrap();
    };
    judge(
        &|root| {
            std::fs::remove_file(root.join("sbin/init")).unwrap();
            std::fs::remove_file(root.join("bin/busybox")).unwrap();
        },
        &["no init", "/sbin/init"],
    );
    judge(
        &|root| {
            std::fs::remove_dir(root.join("proc")).unwrap();
            std::os::unix::fs::symlink("/etc", root.join("proc")).unwrap();
        },
        &["proc"],
    );
    judge(
        &|root| {
            // The machine in an ELF header: another one.
            let mut program = std::fs::read(root.join("bin/busybox")).unwrap();
            program[18..20].copy_from_slice(&0xf3u16.to_le_bytes());
            std::fs::write(root.join("bin/busybox"), program).unwrap();
        },
        &["/sbin/init is a program for riscv64"],
    );
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_loaded() {
    let lab = Lab::new();
    let image = lab.squashfs(&lab.system("root"), "a.squashfs");
    let name = image.to_str().unwrap();
    let mut config = session::config(name);
    config["image"]["contentSize"] = json!("900TiB");
    lab.play(&config, "")
        .failed_with(15, &["not enough memory", "needs 900.0 TiB"]);
    // The superblock of a squashfs that claims to be huge, in a file that is not.
    let mut bad = std::fs::read(&image).unwrap();
    bad[40..48].copy_from_slice(&(1u64 << 50).to_le_bytes());
    std::fs::write(&image, bad).unwrap();
    lab.play(&session::config(name), "")
        .failed_with(12, &["cut short"]);
}

#[test]
fn scratch_paths_are_a_tmpfs_each() {
    let lab = Lab::new();
    let root = lab.system("root");
    tool(
        "chmod",
        &["0711", root.join("var/lib/data").to_str().unwrap()],
    );
    tool(
        "chown",
        &["7:8", root.join("var/lib/data").to_str().unwrap()],
    );
    // Links lead only to what is in the root.
    std::os::unix::fs::symlink("/var/lib/data", root.join("data")).unwrap();
    let image = lab.squashfs(&root, "a.squashfs");
    let mut config = session::config(image.to_str().unwrap());
    config["memory"] = json!({ "size": "64MiB", "scratch": ["/data", "/srv/new/place"] });
    let seen = lab.play(
        &config,
        r#"for place in var/lib/data srv/new/place; do
            echo "$place=$(stat -fc %T "$root/$place") $(stat -c '%a %u %g' "$root/$place") $(df -m --output=size "$root/$place" | tail -1 | tr -d ' ')"
        done
        echo "host=$(ls -d /var/lib/data /srv/new 2>/dev/null)""#,
    );
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("var/lib/data"), "tmpfs 711 7 8 64");
    assert_eq!(seen.fact("srv/new/place"), "tmpfs 755 0 0 64");
    assert_eq!(seen.fact("host"), "");
}

#[test]
fn no_secret_is_left_for_the_new_system_to_find() {
    let lab = Lab::new();
    let image = lab.squashfs(&lab.system("root"), "a.squashfs");
    let mut config = session::config(image.to_str().unwrap());
    // Nobody listens there, and the next place has it.
    config["image"]["url"] = json!("http://user:s3cr3t@127.0.0.1:9/a?token=s3cr3t");
    config["image"]["mirrors"] = json!([image.to_str().unwrap()]);
    config["image"]["headers"] = json!({ "Authorization": "Bearer s3cr3t" });
    let seen = lab.play(
        &config,
        r#"echo "found=$(grep -rl s3cr3t /run "$root" | tr '\n' ' ')"
        echo "names=$(grep -o 127.0.0.1:9 /run/ironroot/events.jsonl | head -n1)""#,
    );
    assert_eq!(seen.ended.code, Some(0), "{}", seen.ended.stderr);
    assert_eq!(seen.fact("found"), "");
    // The place itself is named: what was looked at are the right files.
    assert_eq!(seen.fact("names"), "127.0.0.1:9");
    assert!(
        !seen.ended.stderr.contains("s3cr3t"),
        "{}",
        seen.ended.stderr
    );
}

#[test]
fn nothing_on_the_command_line_asks_for_the_helper() {
    let ended = program::ironroot(&["initrd", "--sysroot", "/nonexistent"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("nothing on the kernel command line"));
}
