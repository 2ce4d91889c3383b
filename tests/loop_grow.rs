//! Partitions that grow with their file systems, and partitions that are added, on real loop devices: judged by the
//! file systems' own checkers, sgdisk and sfdisk, and a mount.

// A test that cannot go on fails by panicking, in its helpers too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/installing.rs"]
mod support;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ironroot::host::tables::{self, Gpt, Table};
use ironroot::units::{Bytes, MIB, SectorSize};
use serde_json::{Value, json};
use support::loop_device::{LoopDevice, tool, try_tool};
use support::program::{Config, Ended};
use support::traced::{self, Call};

const ESP: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";
const LINUX: &str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";

/// An image of `mib` MiB in a sparse file: an ESP without content, and a root with a file system that fills it.
struct Image {
    path: PathBuf,
    digest: String,
    directory: tempfile::TempDir,
}

impl Image {
    fn new(mib: u64, sector: u64, filesystem: Option<&[&str]>) -> Image {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        {
            let size = sector.to_string();
            let disk = LoopDevice::sparse(mib, &["--sector-size", &size]);
            table(disk.path(), mib, sector);
            disk.forget_partitions();
            let root = directory.path().join("root");
            File::create(&root)
                .unwrap()
                .set_len((mib - 5) * MIB)
                .unwrap();
            if let Some([program, args @ ..]) = filesystem {
                let args = [args, &[root.to_str().unwrap()]].concat();
                tool(program, &args);
                let place = directory.path().join("mounted");
                std::fs::create_dir(&place).unwrap();
                let place = place.to_str().unwrap();
                tool("mount", &["-o", "loop", root.to_str().unwrap(), place]);
                std::fs::write(Path::new(place).join("marker"), "here").unwrap();
                tool("umount", &[place]);
            }
            let to = OpenOptions::new().write(true).open(disk.path()).unwrap();
            copy(&root, &to, 4 * MIB);
            to.sync_all().unwrap();
            tool(
                "cp",
                &[
                    "--sparse=always",
                    disk.backing().to_str().unwrap(),
                    path.to_str().unwrap(),
                ],
            );
        }
        let sum = tool("sha256sum", &[path.to_str().unwrap()]);
        Image {
            path,
            digest: format!("sha256:{}", sum.split(' ').next().unwrap()),
            directory,
        }
    }

    fn ext4(mib: u64, sector: u64) -> Image {
        Image::new(mib, sector, Some(&["mkfs.ext4", "-q", "-b", "4096"]))
    }

    fn config(&self, disk: &LoopDevice, keys: &Value) -> Config {
        let mut config = Config::new(self.path.to_str().unwrap(), &self.digest, disk);
        for (key, value) in keys.as_object().unwrap() {
            config = config.with(&format!("/disk/{key}"), value.clone());
        }
        config
    }
}

/// Copies what is not zero.
fn copy(from: &Path, to: &File, at: u64) {
    let mut from = File::open(from).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut place = at;
    loop {
        let n = from.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        if buffer[..n].iter().any(|b| *b != 0) {
            to.write_all_at(&buffer[..n], place).unwrap();
        }
        place += n as u64;
    }
}

fn table(place: &Path, mib: u64, sector: u64) {
    let per_mib = MIB / sector;
    let part = |number: u64, from: u64, to: u64, kind: &str, name: &str| {
        format!(
            "p{number} : start={}, size={}, type={kind}, uuid=7E2A9A5B-62B0-4A1D-9A42-{number:012}, name=\"{name}\"\n",
            from * per_mib,
            (to - from) * per_mib
        )
    };
    let script = [
        "label: gpt\nlabel-id: 7E2A9A5B-62B0-4A1D-9A42-AAAAAAAAAAAA\n".to_owned(),
        part(15, 1, 4, ESP, "esp"),
        part(1, 4, mib - 1, LINUX, "root"),
    ];
    let mut child = Command::new("sfdisk")
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(place)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to_child = child.stdin.take().unwrap();
    to_child.write_all(script.concat().as_bytes()).unwrap();
    drop(to_child);
    assert!(child.wait().unwrap().success());
}

fn gpt(disk: &LoopDevice) -> Gpt {
    let mut file = File::open(disk.path()).unwrap();
    let size = file.seek(SeekFrom::End(0)).unwrap();
    let sector: u32 = tool("blockdev", &["--getss", disk.arg()])
        .trim()
        .parse()
        .unwrap();
    let table = tables::read(&mut file, Bytes(size), SectorSize::new(sector).unwrap());
    let Table::Gpt(gpt) = table else {
        panic!("{table:?}")
    };
    assert!(gpt.protective && gpt.copies_agree && gpt.backup_at_end && gpt.flaws.is_empty());
    let text = tool("sgdisk", &["--verify", disk.arg()]);
    assert!(text.contains("No problems found"), "{text}");
    let text = tool("sfdisk", &["--verify", disk.arg()]);
    assert!(text.contains("No errors detected"), "{text}");
    gpt
}

/// Number, first and last MiB, label of each partition.
fn places(gpt: &Gpt) -> Vec<(u32, u64, u64, String)> {
    let all = gpt.partitions.iter();
    all.map(|p| {
        let end = p.start.0 + p.size.0;
        assert_eq!((p.start.0 % MIB, end % MIB), (0, 0));
        (
            p.number,
            p.start.0 / MIB,
            end / MIB,
            p.name.clone().unwrap_or_default(),
        )
    })
    .collect()
}

fn partition(disk: &LoopDevice, number: u32) -> String {
    format!("{}p{number}", disk.arg())
}

/// Mounts a partition, and answers the size of its file system in bytes, and what its marker says.
fn mounted(device: &str) -> (u64, String) {
    let place = tempfile::tempdir().unwrap();
    let at = place.path().to_str().unwrap();
    tool("mount", &[device, at]);
    let marker = std::fs::read_to_string(place.path().join("marker")).unwrap_or_default();
    let size = tool("findmnt", &["-nbo", "SIZE", "--target", at]);
    tool("umount", &[at]);
    (size.trim().parse().unwrap(), marker)
}

fn warnings(ended: &Ended) -> String {
    let events = ended.events();
    let warned = events.iter().filter(|e| e["event"] == "warning");
    warned.map(Value::to_string).collect()
}

#[test]
fn ext4_grows_to_the_end_of_the_disk() {
    for sector in [512, 4096] {
        let image = Image::ext4(24, sector);
        let size = sector.to_string();
        let disk = LoopDevice::sparse(96, &["--sector-size", &size]);
        let ended = image
            .config(&disk, &json!({ "grow": "root" }))
            .install(&[])
            .succeeded();
        assert_eq!(warnings(&ended), "");
        assert_eq!(places(&gpt(&disk))[0], (1, 4, 95, "root".to_owned()));
        let device = partition(&disk, 1);
        tool("e2fsck", &["-fn", &device]);
        let (size, marker) = mounted(&device);
        assert_eq!(marker, "here");
        assert!(size > 80 * MIB, "{size}");
        let header = tool("dumpe2fs", &["-h", &device]);
        assert!(
            header.contains(&format!("Block count:              {}", 91 * MIB / 4096)),
            "{header}"
        );
    }
}

#[test]
fn xfs_and_btrfs_grow_by_the_kernel() {
    let cases: [(u64, &[&str], &[&str]); 2] = [
        (330, &["mkfs.xfs", "-q"], &["xfs_repair", "-n"]),
        (
            140,
            &["mkfs.btrfs", "-q"],
            &["btrfs", "check", "--readonly"],
        ),
    ];
    for (mib, make, check) in cases {
        println!("{make:?}");
        let image = Image::new(mib, 512, Some(make));
        let disk = LoopDevice::sparse(mib + 200, &[]);
        let ended = image
            .config(&disk, &json!({ "grow": "1" }))
            .install(&[])
            .succeeded();
        assert_eq!(warnings(&ended), "");
        assert_eq!(places(&gpt(&disk))[0].2, mib + 199);
        let device = partition(&disk, 1);
        tool(check[0], &[&check[1..], &[device.as_str()]].concat());
        let (size, marker) = mounted(&device);
        assert_eq!(marker, "here");
        // xfs leaves its log out of that.
        assert!(size > (mib + 100) * MIB, "{size}");
    }
}

#[test]
fn what_cannot_be_grown_is_a_warning_and_the_partition_has_grown() {
    let image = Image::new(24, 512, None);
    let disk = LoopDevice::sparse(64, &[]);
    let ended = image
        .config(&disk, &json!({ "grow": "root" }))
        .install(&[])
        .succeeded();
    let warned = warnings(&ended);
    assert!(
        warned.contains("partition 1 has grown, its file system has not"),
        "{warned}"
    );
    assert_eq!(places(&gpt(&disk))[0].2, 63);

    // Without resize2fs: nothing of the file system changes.
    let image = Image::ext4(24, 512);
    let disk = LoopDevice::sparse(64, &[]);
    let config = image.config(&disk, &json!({ "grow": "root" }));
    let script = format!(
        "mount --make-rprivate / && mount --bind /dev/null /usr/sbin/resize2fs && exec {} --json install --config {}",
        env!("CARGO_BIN_EXE_ironroot"),
        config.file().display()
    );
    let (good, text) = try_tool("unshare", &["--mount", "sh", "-c", &script]);
    assert!(good, "{text}");
    assert!(
        text.contains("resize2fs is needed and not installed"),
        "{text}"
    );
    assert_eq!(places(&gpt(&disk))[0].2, 63);
    tool("e2fsck", &["-fn", &partition(&disk, 1)]);
    let (size, marker) = mounted(&partition(&disk, 1));
    assert!(size < 19 * MIB && marker == "here", "{size}");

    // Damaged in the image already, beyond what is repaired unasked: as it is without growing.
    let damaged = Image::ext4(24, 512);
    let file = OpenOptions::new().write(true).open(&damaged.path).unwrap();
    file.write_all_at(&[0xff; 64], 4 * MIB + 4096).unwrap();
    let digest = tool("sha256sum", &[damaged.path.to_str().unwrap()]);
    let digest = format!("sha256:{}", digest.split(' ').next().unwrap());
    let disk = LoopDevice::sparse(64, &[]);
    let config = damaged
        .config(&disk, &json!({ "grow": "root" }))
        .with("/image/digest", json!(digest));
    let warned = warnings(&config.install(&[]).succeeded());
    assert!(
        warned.contains("has not") && warned.contains("e2fsck"),
        "{warned}"
    );
    assert_eq!(places(&gpt(&disk))[0].2, 63);

    // No room: the image is as large as the disk.
    let disk = LoopDevice::sparse(24, &[]);
    let ended = image
        .config(&disk, &json!({ "grow": "root" }))
        .install(&[])
        .succeeded();
    assert!(
        warnings(&ended).contains("did not grow"),
        "{}",
        warnings(&ended)
    );
}

#[test]
fn partitions_are_added_made_once_and_kept() {
    for sector in [512, 4096] {
        let image = Image::ext4(24, sector);
        let size = sector.to_string();
        let disk = LoopDevice::sparse(900, &["--sector-size", &size]);
        // An old file system where one of them will be, which must not come back.
        let file = OpenOptions::new().write(true).open(disk.path()).unwrap();
        let keys = json!({
            "overwrite": "Always",
            "grow": "root",
            "keep": ["data"],
            "partitions": [
                { "label": "data", "size": "64MiB", "filesystem": "ext4" },
                { "label": "var", "size": "50%", "type": "var", "filesystem": "xfs" },
                { "label": "boot files", "size": "70MB", "filesystem": "vfat" },
                { "label": "swap", "size": "8MiB", "type": "swap" },
            ]
        });
        file.write_all_at(&[0x53, 0xef], (892 - 1) * MIB + 1080)
            .unwrap();
        file.sync_all().unwrap();
        let ended = image.config(&disk, &keys).install(&[]).succeeded();
        assert!(
            warnings(&ended).contains("nothing is kept"),
            "{}",
            warnings(&ended)
        );
        let table = gpt(&disk);
        let now = places(&table);
        let of = |label: &str| now.iter().find(|p| p.3 == label).unwrap().clone();
        // 50% of (899 - 23) MiB; 70 MB are 67 MiB; all of it at the end, root before it.
        assert_eq!(of("swap"), (5, 891, 899, "swap".to_owned()));
        assert_eq!(of("boot files"), (4, 824, 891, "boot files".to_owned()));
        assert_eq!(of("var"), (3, 386, 824, "var".to_owned()));
        assert_eq!(of("data"), (2, 322, 386, "data".to_owned()));
        assert_eq!(of("root"), (1, 4, 322, "root".to_owned()));
        let kind =
            |n: usize| serde_json::to_value(&table.partitions[n].kind).unwrap()["guid"].clone();
        assert_eq!(kind(2), "4d21b016-b534-45c2-a9fb-5c16e091fd2d");
        tool("e2fsck", &["-fn", &partition(&disk, 1)]);
        tool("e2fsck", &["-fn", &partition(&disk, 2)]);
        tool("xfs_repair", &["-n", &partition(&disk, 3)]);
        tool("fsck.vfat", &["-n", &partition(&disk, 4)]);
        assert_eq!(tool("wipefs", &[&partition(&disk, 5)]), "");
        let label = tool(
            "blkid",
            &["-p", "-o", "value", "-s", "LABEL", &partition(&disk, 3)],
        );
        assert_eq!(label.trim(), "var");

        // Another installation: what is kept is not made again, the others are.
        let place = tempfile::tempdir().unwrap();
        let at = place.path().to_str().unwrap();
        for number in [2, 3] {
            tool("mount", &[&partition(&disk, number), at]);
            std::fs::write(place.path().join("marker"), "mine").unwrap();
            tool("umount", &[at]);
        }
        let before = gpt(&disk);
        let again = image
            .config(&disk, &keys)
            .with("/metadata/generation", json!(2));
        let ended = again.install(&[]).succeeded();
        assert!(
            warnings(&ended).contains("is kept as it is"),
            "{}",
            warnings(&ended)
        );
        let after = gpt(&disk);
        assert_eq!(after.partitions[1], before.partitions[1]);
        assert_ne!(after.partitions[2].partuuid, before.partitions[2].partuuid);
        assert_eq!(mounted(&partition(&disk, 2)).1, "mine");
        tool("e2fsck", &["-fn", &partition(&disk, 2)]);
        tool("e2fsck", &["-fn", &partition(&disk, 1)]);
        let var = after
            .partitions
            .iter()
            .find(|p| p.name.as_deref() == Some("var"))
            .unwrap();
        assert_eq!(mounted(&partition(&disk, var.number)).1, "");
    }
}

#[test]
fn the_rest_goes_to_the_one_that_wants_it_and_a_file_serves_too() {
    let image = Image::ext4(24, 512);
    let directory = image.directory.path();
    let target = directory.join("target");
    File::create(&target).unwrap().set_len(128 * MIB).unwrap();
    let disk = LoopDevice::sparse(1, &[]);
    let config = image
        .config(
            &disk,
            &json!({
                "guids": "New",
                "partitions": [
                    { "label": "srv", "size": "Rest", "type": "srv", "filesystem": "ext4" },
                    { "label": "a", "size": "3MiB" },
                ]
            }),
        )
        .with("/disk/select", json!({ "path": target.to_str().unwrap() }));
    config.install(&["--allow-file"]).succeeded();
    drop(disk);
    let disk = LoopDevice::holding(&std::fs::read(&target).unwrap());
    let table = gpt(&disk);
    let now = places(&table);
    assert_eq!(now[1], (2, 27, 127, "srv".to_owned()));
    assert_eq!(now[2], (3, 24, 27, "a".to_owned()));
    assert_ne!(table.disk_guid, "7e2a9a5b-62b0-4a1d-9a42-aaaaaaaaaaaa");
    assert!(
        table
            .partitions
            .iter()
            .all(|p| !p.partuuid.starts_with("7e2a9a5b"))
    );
    tool("partx", &["--add", disk.arg()]);
    tool("e2fsck", &["-fn", &partition(&disk, 2)]);
    assert_eq!(mounted(&partition(&disk, 1)).1, "here");
    // The record names the new disk GUID: the disk counts as installed.
    disk.forget_partitions();
    let said = image.config(&disk, &json!({})).plan();
    assert!(
        said.stdout.contains("is on") && said.stdout.contains("already"),
        "{said:?}"
    );
}

/// The second header of an encrypted volume is far behind the first, and no table names its partition any more.
#[test]
fn nothing_of_what_lay_there_shows_in_an_added_partition() {
    let image = Image::ext4(24, 512);
    let disk = LoopDevice::blank(96);
    let volume = image.directory.path().join("volume");
    let file = File::create(&volume).unwrap();
    file.set_len(40 * MIB).unwrap();
    let key = image.directory.path().join("key");
    std::fs::write(&key, "secret").unwrap();
    let options = "-q luksFormat --type luks2 --luks2-metadata-size 4m --pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    let places = [
        "--key-file",
        key.to_str().unwrap(),
        volume.to_str().unwrap(),
    ];
    let all: Vec<&str> = options.split(' ').chain(places).collect();
    tool("cryptsetup", &all);
    let at = format!("of={}", disk.arg());
    let from = format!("if={}", volume.display());
    // Without the first header.
    tool(
        "dd",
        &[
            &from,
            &at,
            "bs=1M",
            "skip=1",
            "seek=25",
            "conv=notrunc,fsync",
            "status=none",
        ],
    );
    let probe = || {
        let probed = std::process::Command::new("blkid")
            .args(["-p", "-O", "25165824", "-S", "41943040", disk.arg()])
            .output()
            .unwrap();
        String::from_utf8(probed.stdout).unwrap()
    };
    assert!(probe().contains("crypto_LUKS"), "{}", probe());
    let keys = json!({ "overwrite": "Always", "partitions": [{ "label": "a", "size": "40MiB" }] });
    image.config(&disk, &keys).install(&[]).succeeded();
    assert_eq!(places_of(&disk)[1], (2, 24, 64, "a".to_owned()));
    assert_eq!(probe(), "");
}

fn places_of(disk: &LoopDevice) -> Vec<(u32, u64, u64, String)> {
    places(&gpt(disk))
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_write() {
    let image = Image::ext4(24, 512);
    let disk = LoopDevice::sparse(64, &[]);
    for (keys, parts) in [
        (
            json!({ "grow": "home" }),
            &["`disk.grow` names \"home\"", "1 \"root\""][..],
        ),
        (
            json!({ "partitions": [{ "label": "data", "size": "1GiB" }] }),
            &["no room", "\"data\"", "the largest free range is 39.0 MiB"],
        ),
        (
            json!({ "partitions": [{ "label": "root", "size": "1MiB" }] }),
            &["the image has a partition with this label"],
        ),
    ] {
        let untouched = support::verdict::Untouched::of(&disk);
        image
            .config(&disk, &keys)
            .install(&[])
            .failed_with(13, parts);
        untouched.check();
    }
    // Without the program that makes it.
    let untouched = support::verdict::Untouched::of(&disk);
    let keys = json!({ "partitions": [{ "label": "data", "size": "2MiB", "filesystem": "ext4" }] });
    let config = image.config(&disk, &keys);
    let script = format!(
        "mount --make-rprivate / && mount --bind /dev/null /usr/sbin/mke2fs && exec {} install --config {}",
        env!("CARGO_BIN_EXE_ironroot"),
        config.file().display()
    );
    let (good, text) = try_tool("unshare", &["--mount", "sh", "-c", &script]);
    assert!(
        !good && text.contains("mke2fs is needed and not installed"),
        "{text}"
    );
    untouched.check();
}

#[test]
fn stopped_after_any_step_of_the_work_on_partitions() {
    let image = Image::ext4(24, 512);
    let keys = json!({
        "grow": "root",
        "partitions": [{ "label": "data", "size": "16MiB", "filesystem": "ext4" }]
    });
    for step in 5..=9 {
        println!("after {step} steps");
        let disk = LoopDevice::sparse(96, &[]);
        let config = image.config(&disk, &keys);
        config
            .install(&["--stop-after", &step.to_string()])
            .failed_with(70, &[]);
        assert_eq!(disk.partitions(), [] as [u32; 0]);
        let mut lba0 = [0; 512];
        File::open(disk.path())
            .unwrap()
            .read_exact(&mut lba0)
            .unwrap();
        assert_eq!(lba0, [0; 512]);
        config.install(&[]).succeeded();
        assert_eq!(places(&gpt(&disk))[0].2, 79);
        tool("e2fsck", &["-fn", &partition(&disk, 1)]);
        tool("e2fsck", &["-fn", &partition(&disk, 2)]);
        assert_eq!(mounted(&partition(&disk, 1)).1, "here");
    }
}

#[test]
fn the_images_own_backup_table_goes_before_anything_is_made_in_its_place() {
    use Call::{Flush, Write};
    let image = Image::ext4(24, 512);
    let disk = LoopDevice::sparse(96, &[]);
    let config = image.config(&disk, &json!({ "grow": "root" }));
    let calls = traced::install(&config, &disk, None);
    let mib = usize::try_from(MIB).unwrap();
    let table = 33 * 512;
    let end = [
        Write(96 * mib - table, table),
        Flush,
        Write(512, mib - 512 - 4096),
        Write(mib - 4096, 512),
        Flush,
        Write(mib - 4096 + 512, 4096 - 512),
        Flush,
        Write(mib - 4096, 512),
        Flush,
        Write(0, 512),
        Flush,
        Write(mib - 4096, 4096),
        Flush,
    ];
    assert!(calls.ends_with(&end), "{calls:?}");
    let stale = Write(24 * mib - table, table);
    assert_eq!(calls.iter().filter(|c| **c == stale).count(), 1);
    // resize2fs writes near the start of the partition, which has a cache of its own.
    let gone = calls.iter().position(|c| *c == stale).unwrap();
    let grown = calls.iter().rposition(|c| matches!(c, Write(8192, _)));
    assert!(grown.is_some_and(|at| at > gone), "{calls:?}");
}
