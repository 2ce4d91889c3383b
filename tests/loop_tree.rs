//! Trees on disk file systems, by loop devices: a whole Debian, and ext4 as the target of a copy.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod tree_support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;

use ironroot::error::chain;
use ironroot::image::tree::{Options, copy, unpack};
use ironroot::sys::beneath::Root;
use tree_support::{
    Entry, assert_same, directory, isolated, shell, torture, walk, without_trusted,
};

/// The root file system of the lab's Debian: scripts/images/debian.d/layout.sfdisk says where it is.
const DEBIAN_ROOT: &str = "ro,noload,offset=68157440,sizelimit=534773760";

/// Blocks of another size take another number of bytes for every file.
fn without_blocks(mut tree: BTreeMap<PathBuf, Entry>) -> BTreeMap<PathBuf, Entry> {
    for entry in tree.values_mut() {
        entry.in_use = 0;
    }
    tree
}

#[test]
fn a_whole_debian_is_the_same_after_unpacking_and_after_copying() {
    isolated("mode=0755,size=2g", |place| {
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/lab/debian.raw");
        assert!(
            image.exists(),
            "{} is missing: scripts/lab makes it",
            image.display()
        );
        let script = format!(
            "mkdir disk; mount -o loop,{DEBIAN_ROOT} {} disk",
            image.display()
        );
        shell(&script, place);
        let disk = Root::open(&place.join("disk")).unwrap();
        let wanted = without_blocks(without_trusted(walk(disk.name())));
        assert!(wanted.len() > 5000, "{}", wanted.len());

        let mut tar = Command::new("tar")
            .args([
                "--format=pax",
                "--xattrs",
                "--xattrs-include=*",
                "--acls",
                "-S",
            ])
            .args(["-C", "disk", "-cf", "-", "."])
            .current_dir(place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (top, root) = directory(place, "unpacked");
        let census = unpack(tar.stdout.as_mut().unwrap(), &root, &Options::default());
        let census = census.unwrap_or_else(|failure| panic!("{}", chain(&failure)));
        assert!(tar.wait().unwrap().success());
        assert_same("unpacked", &wanted, &without_blocks(walk(&top)));
        assert_eq!(census.entries, wanted.len() as u64);
        assert!(census.notes().is_empty(), "{:?}", census.notes());

        let all = Path::new("/");
        let copied = copy(&disk, all, &root, Path::new("copied"), &AtomicU64::new(0));
        let copied = copied.unwrap_or_else(|failure| panic!("{}", chain(&failure)));
        assert_same(
            "copied",
            &wanted,
            &without_blocks(walk(&top.join("copied"))),
        );
        assert_eq!(copied.entries, census.entries);
        drop(disk);
        shell("umount disk", place);
    });
}

#[test]
fn from_tmpfs_to_ext4_nothing_is_lost() {
    isolated("mode=0755,size=1g", |place| {
        shell(
            "truncate -s 400M disk; mkfs.ext4 -q -O ^has_journal disk; mkdir to; mount -o loop disk to",
            place,
        );
        let top = place.join("to");
        // Its timestamps end in 2446.
        let to = Root::open(&top).unwrap();
        let (source, from) = directory(place, "source");
        torture::make(&source);
        shell("touch -d '2400-01-01 00:00:00.999999999' large", &source);
        copy(
            &from,
            Path::new("/"),
            &to,
            Path::new("seed"),
            &AtomicU64::new(0),
        )
        .unwrap();
        let mut wanted = without_trusted(walk(&source));
        let mut got = walk(&top.join("seed"));
        for entry in wanted.values_mut().chain(got.values_mut()) {
            // Metadata in blocks of its own counts there; that holes are holes shows in steps of 64 KiB.
            entry.in_use &= !1;
        }
        assert_same("the source", &wanted, &got);
        drop(to);
        shell("umount to", place);
    });
}
