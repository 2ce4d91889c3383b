//! Roots of other kinds in virtual machines, with ironroot as PID 1: an image that is part of the initrd, one whose writes
//! stay on a disk, and systems that OpenRC starts.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/machine.rs"]
mod machine;

use std::path::{Path, PathBuf};
use std::process::Command;

use machine::{Direct, initramfs, lab};

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(
        out.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn sh(folder: &Path, script: &str) -> String {
    run(
        "sh",
        &["-ec", &format!("cd {}\n{script}", folder.display())],
    )
}

/// A copy of an artifact as a disk.
fn disk_with(folder: &Path, artifact: &str) -> PathBuf {
    let disk = folder.join("image.raw");
    std::fs::copy(lab(artifact), &disk).unwrap();
    let file = std::fs::OpenOptions::new()
        .append(true)
        .open(&disk)
        .unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.next_multiple_of(1 << 20)).unwrap();
    disk
}

const UP: [&str; 2] = ["--until=IRONROOT-TINY-BOOTED.*payload=ok", "--wait-end"];

/// KiB of tmpfs pages, as the new system counted them.
#[track_caller]
fn shmem(console: &str) -> u64 {
    let (_, rest) = console.split_once("IRONROOT-FACT memory ").expect(console);
    let mut words = rest.split_whitespace();
    words.find(|w| *w == "Shmem:").expect(console);
    words.next().unwrap().parse().unwrap()
}

/// The initramfs with the tiny image in it, as an image builder appends it, and `sum` beside it.
fn initrd_with_image(folder: &Path, sum: &str) -> PathBuf {
    std::fs::create_dir_all(folder.join("more")).unwrap();
    std::fs::copy(lab("tiny.squashfs"), folder.join("more/root.squashfs")).unwrap();
    std::fs::write(
        folder.join("more/root.squashfs.sha256sum"),
        format!("{sum}  root.squashfs\n"),
    )
    .unwrap();
    // An archive begins at a multiple of four.
    let script = format!(
        "cp {} initrd; size=$(stat -c %s initrd); truncate -s $(((size + 3) / 4 * 4)) initrd
        (cd more && find . -type f | cpio --quiet -o -H newc -R 0:0) >>initrd",
        initramfs().display()
    );
    sh(folder, &script);
    folder.join("initrd")
}

#[test]
fn an_image_in_the_initrd_is_the_root_and_in_memory_once() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(lab("tiny.squashfs.sha256")).unwrap();
    let sum = text.split_whitespace().next().unwrap();
    let initrd = initrd_with_image(folder.path(), sum);
    let disk = folder.path().join("disk.raw");
    std::fs::write(&disk, vec![0x5a; 1 << 20]).unwrap();
    let boot = |words: &str| {
        Direct::of(&lab("kernel/vmlinuz"), &initrd, &disk, words)
            .run(&UP)
            .good()
    };
    let console = boot("gl.live=1 gl.ovl=/:tmpfs ip=off");
    assert!(console.contains(&format!("sha256:{sum}")), "{console}");
    // The initramfs, and the image in it, are gone.
    let image = std::fs::metadata(lab("tiny.squashfs")).unwrap().len() / 1024;
    let held = shmem(&console);
    assert!((image..image + 2048).contains(&held), "{held}, {image}");

    let config = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","image":{{"url":"file:///root.squashfs","digest":"sha256:{sum}"}},"memory":{{}}}}"#
    );
    boot(&format!(
        "ip=off ironroot.config=data:,{}",
        config.replace('"', "%22")
    ));

    // Another sum: nothing of it is mounted.
    let other = tempfile::tempdir().unwrap();
    let initrd = initrd_with_image(other.path(), &"0".repeat(64));
    let words = "gl.live=1 gl.ovl=/:tmpfs ip=off ironroot.on-failure=poweroff";
    let console = Direct::of(&lab("kernel/vmlinuz"), &initrd, &disk, words)
        .run(&["--until=FAILED .code 12.", "--wait-end"])
        .good();
    assert!(!console.contains("IRONROOT-TINY-BOOTED"), "{console}");
    assert!(
        std::fs::read(&disk).unwrap().iter().all(|b| *b == 0x5a),
        "the disk was written to"
    );
}

#[test]
fn gl_words_keep_what_is_written_on_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let image = disk_with(folder.path(), "tiny.squashfs");
    let state = folder.path().join("state.raw");
    std::fs::File::create(&state)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let state = state.to_str().unwrap();
    run("mke2fs", &["-q", "-t", "ext4", "-L", "GLSTATE", state]);
    let disk = format!("--disk={state},bus=virtio,serial=state");
    let boot = |words: &str, until: &str| {
        let words = format!("gl.url=/dev/disk/by-id/virtio-direct-disk gl.live=1 ip=off {words}");
        Direct::new(&image, &words)
            .run(&[&disk, until, "--wait-end"])
            .good()
    };
    let by_label = "gl.ovl=/:/dev/disk/by-label/GLSTATE";
    let console = boot(by_label, UP[0]);
    assert!(
        console.contains("IRONROOT-FACT root 755 0 0 rw,relatime overlay"),
        "{console}"
    );
    assert_eq!(
        run("debugfs", &["-R", "cat /upper/written", state]),
        "hello\n"
    );
    // The next session finds it, by another name of the disk. Its init is what the command line says.
    let by_id = r#"gl.ovl=/:/dev/disk/by-id/virtio-state init=/bin/sh -- -c "/bin/busybox echo FOUND-$(/bin/busybox cat /written); /bin/busybox sync; /bin/busybox poweroff -f""#;
    boot(by_id, "--until=FOUND-hello");
    // Not as another disk.
    let before = std::fs::read(state).unwrap();
    let missing = "gl.ovl=/:/dev/disk/by-id/virtio-other ironroot.on-failure=poweroff";
    let console = boot(missing, "--until=FAILED .code 16.");
    assert!(console.contains("no device has that name"), "{console}");
    assert!(std::fs::read(state).unwrap() == before);
}

#[test]
fn openrc_starts_as_init_itself_and_below_busybox() {
    for (words, init) in [
        ("", "/bin/busybox"),
        ("init=/sbin/openrc-init", "/sbin/openrc-init"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk_with(folder.path(), "openrc.squashfs");
        let words = format!("gl.url=/dev/vda gl.live=1 gl.ovl=/:tmpfs ip=off {words}");
        // It reaches its default runlevel, and the machine ends because it switches itself off in order.
        let console = Direct::new(&disk, &words)
            .run(&[
                &format!("--until=IRONROOT-OPENRC-REACHED init={init} "),
                "--wait-end",
            ])
            .good();
        assert!(console.contains("crashed=[]"), "{console}");
    }
}

/// A machine with two NUMA nodes, and a kernel with SELinux that has no policy yet, as it is when the new system starts.
#[test]
fn pages_come_from_all_numa_nodes_and_a_kernel_with_selinux_starts_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let image = lab("tiny.squashfs");
    let script = format!(
        "unsquashfs -quiet -no-progress -dest root {}
        mkdir -p root/etc/selinux; echo SELINUX=enforcing >root/etc/selinux/config
        mksquashfs root image.raw -quiet -no-progress; truncate -s %1M image.raw",
        image.display()
    );
    sh(folder.path(), &script);
    let words = r#"security=selinux selinux=1 gl.url=/dev/vda gl.live=1 ip=off init=/bin/sh -- -c "/bin/busybox cat /proc/self/mountinfo; /bin/busybox echo MOUNTS-SHOWN; /bin/busybox poweroff -f""#;
    let console = Direct::new(&folder.path().join("image.raw"), words)
        .run(&[
            "--until=MOUNTS-SHOWN",
            "--wait-end",
            "--cpus=2",
            "--qemu=-object",
            "--qemu=memory-backend-ram,id=m0,size=256M",
            "--qemu=-object",
            "--qemu=memory-backend-ram,id=m1,size=256M",
            "--qemu=-numa",
            "--qemu=node,nodeid=0,cpus=0,memdev=m0",
            "--qemu=-numa",
            "--qemu=node,nodeid=1,cpus=1,memdev=m1",
        ])
        .good();
    for place in ["image", "upper"] {
        let place = format!(" /run/ironroot/{place} ");
        let line = console.lines().find(|line| line.contains(&place));
        let line = line.expect(&console);
        assert!(line.contains("mpol=interleave:0-1"), "{line}");
    }
    // Such a kernel refuses labels as mount options until it has a policy.
    assert!(
        console.contains("this kernel takes no label for the root"),
        "{console}"
    );
}
