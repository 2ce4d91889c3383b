//! Probing real block devices: loop devices that carry what other people's tools made. Needs root.
//! libblkid is the oracle for signatures and labels.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ironroot::host::tables::Table;
use ironroot::host::{self, Disk, DiskKind, Holder, RecordFound, RecordIdentity};
use ironroot::image::record::{self, DiskIdentity, Record, State};
use ironroot::units::{Bytes, SectorSize};

/// Runs a shell script that must succeed, and answers what it printed.
fn sh(script: &str, env: &[(&str, &Path)]) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).stdin(Stdio::null());
    for (name, value) in env {
        command.env(name, value);
    }
    let out = command.output().unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&out.stdout).into_owned(),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{script}\n{stdout}{stderr}");
    stdout
}

/// A file attached as a loop device; detached when dropped, and only then.
struct Loop {
    device: PathBuf,
    file: PathBuf,
    dir: tempfile::TempDir,
}

impl Loop {
    /// A file of `mib` MiB on which `script` ran (`$F`), attached with `options` of losetup.
    fn made(mib: u64, script: &str, options: &str) -> Loop {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        std::fs::File::create(&file)
            .unwrap()
            .set_len(mib << 20)
            .unwrap();
        sh(script, &[("F", &file), ("D", dir.path())]);
        // Others on this machine may take the same free device between the question and the answer.
        let script = format!(
            "for i in 1 2 3 4 5; do losetup --find --show {options} \"$F\" && exit 0; sleep 0.2; done; exit 1"
        );
        let device = sh(&script, &[("F", &file)]);
        Loop {
            device: PathBuf::from(device.trim()),
            file,
            dir,
        }
    }

    fn name(&self) -> &str {
        self.device.file_name().unwrap().to_str().unwrap()
    }

    fn disk(&self) -> Disk {
        let facts = host::probe(Path::new("/")).unwrap();
        facts
            .disks
            .into_iter()
            .find(|d| d.name == self.name())
            .unwrap()
    }

    fn found(&self) -> Vec<String> {
        let disk = self.disk();
        assert_eq!(disk.unreadable, None);
        disk.contents
            .iter()
            .map(|c| c.to_string().replace(self.name(), "loop"))
            .collect()
    }

    /// Bytes that were read from the device since it was attached (Documentation/block/stat.rst, field 3).
    fn bytes_read(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/sys/block/{}/stat", self.name())).unwrap();
        stat.split_whitespace()
            .nth(2)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 512
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

#[test]
fn what_mkfs_makes_is_what_blkid_sees() {
    // Size in MiB, script, type as libblkid names it.
    let formats: &[(u64, &str, &str)] = &[
        (16, "mkfs.ext2 -qL two $F", "ext2"),
        (16, "mkfs.ext3 -qL three $F", "ext3"),
        (16, "mkfs.ext4 -qL four $F", "ext4"),
        (8, "mkfs.ext4 -q -O journal_dev $F", "jbd"),
        (2, "mkfs.vfat -F 12 -n TWELVE $F", "vfat"),
        (32, "mkfs.vfat -F 16 -n SIXTEEN $F", "vfat"),
        (64, "mkfs.vfat -F 32 -n 'THIRTY TWO' $F", "vfat"),
        (64, "mkfs.vfat -F 32 -S 4096 $F", "vfat"),
        (16, "mkfs.exfat -L 'ex fat' $F", "exfat"),
        (16, "mkfs.ntfs -qFf $F", "ntfs"),
        (320, "mkfs.xfs -qL eksefes $F", "xfs"),
        (128, "mkfs.btrfs -qL 'better fs' $F", "btrfs"),
        (64, "mkfs.f2fs -ql 'flash friendly' $F", "f2fs"),
        (8, "mkswap -L sweep $F", "swap"),
        (8, "mkswap -p 65536 $F", "swap"),
        (
            32,
            "echo k | cryptsetup -q luksFormat --type luks1 --pbkdf-force-iterations 1000 $F -",
            "crypto_LUKS",
        ),
        (
            32,
            "echo k | cryptsetup -q luksFormat --type luks2 --label secret --pbkdf pbkdf2 \
             --pbkdf-force-iterations 1000 $F -",
            "crypto_LUKS",
        ),
        (8, "make-bcache -B $F", "bcache"),
        (
            4,
            "mkdir $D/t; echo x >$D/t/x; mksquashfs $D/t $D/o -quiet -no-progress; cp $D/o $F",
            "squashfs",
        ),
        (
            4,
            "mkdir $D/t; echo x >$D/t/x; mkfs.erofs $D/o $D/t; cp $D/o $F; truncate -s 4M $F",
            "erofs",
        ),
        (
            4,
            "mkdir $D/t; echo x >$D/t/x; xorriso -as mkisofs -quiet -V DISC -o $D/o $D/t; cp $D/o $F",
            "iso9660",
        ),
    ];
    let loops: Vec<Loop> = formats
        .iter()
        .map(|(mib, script, _)| Loop::made(*mib, script, ""))
        .collect();
    let facts = host::probe(Path::new("/")).unwrap();
    for ((_, script, want), made) in formats.iter().zip(&loops) {
        let disk = facts.disks.iter().find(|d| d.name == made.name()).unwrap();
        assert_eq!(disk.unreadable, None, "{script}");
        let found: Vec<&str> = disk.contents.iter().map(|c| c.what.as_str()).collect();
        assert_eq!(found, [*want], "{script}");
        let ask = |tag: &str| {
            let script = format!("blkid -p -s {tag} -o value \"$F\" || true");
            sh(&script, &[("F", &made.device)])
                .trim_end_matches('\n')
                .to_owned()
        };
        assert_eq!(ask("TYPE"), *want, "{script}");
        let label = disk.contents[0].label.clone().unwrap_or_default();
        assert_eq!(label, ask("LABEL"), "{script}");
        // Formats whose UUID is not read give none, never another.
        let uuid = disk.contents[0].uuid.clone();
        let reads = [
            "ext",
            "vfat",
            "xfs",
            "btrfs",
            "f2fs",
            "swap",
            "crypto_LUKS",
            "erofs",
        ];
        if reads.iter().any(|kind| want.starts_with(kind)) {
            assert_eq!(uuid.unwrap_or_default(), ask("UUID"), "{script}");
        } else {
            assert!(uuid.is_none() || uuid == Some(ask("UUID")), "{script}");
        }
    }
}

#[test]
fn a_file_system_that_lost_both_ends_is_not_blank() {
    let formats = [
        (16, "mkfs.ext4 -q -b 1024 $F", "backup superblock of ext4"),
        (96, "mkfs.ext2 -q -b 2048 $F", "backup superblock of ext4"),
        (320, "mkfs.ext4 -q -b 4096 $F", "backup superblock of ext4"),
        (320, "mkfs.btrfs -q $F", "backup superblock of btrfs"),
        (320, "mkfs.xfs -q $F", "backup superblock of xfs"),
        (333, "mkfs.xfs -q $F", "backup superblock of xfs"),
    ];
    let ends = "dd if=/dev/zero of=$F bs=1M count=1 conv=notrunc status=none
                dd if=/dev/zero of=$F bs=1M count=1 seek=$(($(stat -c %s $F) / 1048576 - 1)) conv=notrunc status=none";
    for (mib, mkfs, expected) in formats {
        let disk = Loop::made(mib, &format!("{mkfs} >&2\n{ends}"), "");
        assert_eq!(disk.found(), [format!("{expected} on loop")], "{mkfs}");
    }
    // Where the copies have gone too, nothing brings it back.
    let erased =
        "mkfs.ext4 -q -b 4096 $F; dd if=/dev/zero of=$F bs=1M count=320 conv=notrunc status=none";
    assert_eq!(Loop::made(320, erased, "").found(), [""; 0]);
}

#[test]
fn a_gpt_that_the_kernel_does_not_read_is_read_with_its_partitions() {
    let made = Loop::made(
        64,
        "sgdisk -U 11111111-2222-3333-4444-555555555555 -n 1:2048:+8M -n 14:0:+8M -n 15:0:+20M $F
         mkfs.ext4 -qL root -E offset=1048576 $F 8M
         mkfs.vfat -F 16 -n ESP --offset 34816 $F 20480
         truncate -s 8M $D/swap
         mkswap -q $D/swap
         dd if=$D/swap of=$F bs=1M seek=9 conv=notrunc status=none",
        "",
    );
    assert_eq!(
        made.found(),
        [
            "gpt on loop",
            "ext4 on loopp1 (root)",
            "swap on loopp14",
            "vfat on loopp15 (ESP)"
        ]
    );
    let disk = made.disk();
    let Table::Gpt(gpt) = &disk.table else {
        panic!("{:?}", disk.table)
    };
    assert_eq!(gpt.disk_guid, "11111111-2222-3333-4444-555555555555");
    assert_eq!(disk.table.why_not_whole(SectorSize::S512), None);
    assert_eq!(
        gpt.partitions.iter().map(|p| p.number).collect::<Vec<_>>(),
        [1, 14, 15]
    );
}

#[test]
fn a_wiped_head_leaves_a_backup_gpt_and_wipefs_leaves_bytes() {
    let gpt = Loop::made(
        16,
        "sgdisk -n 1:0:+1M $F; dd if=/dev/zero of=$F bs=1M count=1 conv=notrunc",
        "",
    );
    assert_eq!(gpt.found(), ["gpt on loop"]);
    let wiped = Loop::made(16, "mkfs.ext4 -q $F; wipefs -qa $F", "");
    assert_eq!(wiped.found(), ["unknown data on loop"]);
    let zeroed = Loop::made(16, "true", "");
    assert_eq!(zeroed.found(), [""; 0]);
}

#[test]
fn sector_size_kind_size_and_file_of_a_loop_device() {
    let made = Loop::made(16, "true", "-r -b 4096");
    let disk = made.disk();
    assert_eq!(disk.sector, Some(SectorSize::S4096));
    assert_eq!(
        (disk.kind, disk.size, disk.read_only),
        (DiskKind::Loop, Bytes(16 << 20), true)
    );
    assert_eq!(disk.backing_file.as_deref(), Some(made.file.as_path()));
    assert_eq!(
        (disk.path.as_path(), disk.transport),
        (made.device.as_path(), None)
    );
    assert!(disk.holders.is_empty());
    let listing = host::listing::table(&host::probe(Path::new("/")).unwrap().disks, None);
    assert!(listing.contains(&format!(
        "{}  16.0 MiB  loop device\n",
        made.device.display()
    )));
    // Whether a loop device rotates depends on what its file is on.
    assert!(listing.contains("rotational, read-only\n") && listing.contains("  4096-byte sectors"));
}

#[test]
fn a_gpt_for_512_on_a_disk_with_4096_is_reported_and_not_whole() {
    let made = Loop::made(16, "sgdisk -n 1:0:+1M $F", "-b 4096");
    let disk = made.disk();
    assert_eq!(disk.contents[0].what, "gpt");
    let why = disk.table.why_not_whole(SectorSize::S4096).unwrap();
    assert!(why.contains("sectors of 512 bytes"), "{why}");
}

#[test]
fn a_mounted_disk_is_held() {
    let made = Loop::made(16, "mkfs.ext4 -q $F", "");
    let target = made.dir.path().join("a mount");
    std::fs::create_dir(&target).unwrap();
    sh(
        "mount \"$F\" \"$T\"",
        &[("F", &made.device), ("T", &target)],
    );
    let disk = made.disk();
    sh("umount \"$T\"", &[("T", &target)]);
    let want = Holder::Mount {
        device: made.name().to_owned(),
        target: target.display().to_string(),
    };
    assert_eq!(disk.holders, [want]);
    assert!(made.disk().holders.is_empty(), "and released");
}

#[test]
fn a_mount_in_another_namespace_holds_a_disk_too() {
    let made = Loop::made(16, "mkfs.ext4 -q $F", "");
    let target = made.dir.path().join("m");
    std::fs::create_dir(&target).unwrap();
    let mut other = Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .args(["sh", "-euc", "mount \"$F\" \"$T\"; echo up; read _ || true"])
        .env("F", &made.device)
        .env("T", &target)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(other.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let disk = made.disk();
    drop(other.stdin.take());
    let _ = other.wait();
    assert_eq!(line, "up\n");
    assert_eq!(disk.holders.len(), 1);
    let holder = disk.holders[0].to_string();
    assert!(holder.contains("another mount namespace"), "{holder}");
}

#[test]
fn active_swap_is_held() {
    let made = Loop::made(16, "mkswap -q $F", "");
    sh("swapon -p 0 \"$F\"", &[("F", &made.device)]);
    let disk = made.disk();
    sh("swapoff \"$F\"", &[("F", &made.device)]);
    assert_eq!(
        disk.holders,
        [Holder::Swap {
            device: made.name().to_owned()
        }]
    );
}

#[test]
fn a_loop_device_over_a_disk_holds_it() {
    let lower = Loop::made(16, "true", "");
    let upper = sh("losetup --find --show \"$F\"", &[("F", &lower.device)]);
    let disk = lower.disk();
    sh("losetup -d \"$F\"", &[("F", Path::new(upper.trim()))]);
    let [Holder::Device { holder, .. }] = disk.holders.as_slice() else {
        panic!("{:?}", disk.holders)
    };
    assert_eq!(format!("/dev/{holder}"), upper.trim());
}

#[test]
fn a_record_counts_only_with_its_table_and_sector_0() {
    let write = |made: &Loop, at: u64, bytes: &[u8]| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&made.device)
            .unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
        file.sync_all().unwrap();
    };
    let made = Loop::made(64, "sgdisk -n 1:2048:+8M $F", "");
    let identity = RecordIdentity {
        claim: "a/b".to_owned(),
        ..RecordIdentity::default()
    };
    let before = made.disk();
    let record = Record {
        state: State::Record,
        identity: identity.clone(),
        disk: DiskIdentity::of(&before).with_table(&before.table),
    };
    write(&made, record::OFFSET, &record::encode(&record).unwrap());
    assert_eq!(made.disk().record, RecordFound::Installed(identity.clone()));
    assert!(made.disk().contents.iter().any(|c| c.what == "gpt"));
    // A boot sector that something damaged.
    write(&made, 0, &[7; 512]);
    let found = made.disk().record;
    assert!(
        matches!(&found, RecordFound::Foreign { why, .. } if why.contains("sector 0")),
        "{found:?}"
    );
    // As between the record and LBA 0, when power fails: the installation is still under way.
    write(&made, 0, &[0; 512]);
    assert_eq!(made.disk().record, RecordFound::Mark(identity));
}

#[test]
fn probing_reads_little() {
    let blank = Loop::made(1024, "true", "");
    let full = Loop::made(
        1024,
        "sgdisk -n 1:0:+100M -n 2:0:+100M -n 3:0:+100M -n 4:0:+100M -n 5:0:+100M $F",
        "",
    );
    let before = [blank.bytes_read(), full.bytes_read()];
    let begin = std::time::Instant::now();
    let facts = host::probe(Path::new("/")).unwrap();
    let took = begin.elapsed();
    assert!(facts.disks.iter().any(|d| d.name == full.name()));
    let read = [
        blank.bytes_read() - before[0],
        full.bytes_read() - before[1],
    ];
    println!("read {read:?} bytes in {took:?}");
    assert!(read.iter().all(|r| *r > 0), "{read:?}");
    assert!(read[0] <= 4 << 20 && read[1] <= 8 << 20, "{read:?}");
    assert!(took.as_secs() < 20, "{took:?}");
}
