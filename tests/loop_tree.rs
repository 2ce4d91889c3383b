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
use ironroot::image::tree::{Options, copy, measure, unpack};
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
        let census = unpack(
            &mut std::io::BufReader::new(tar.stdout.as_mut().unwrap()),
            &root,
            &Options::default(),
        );
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

/// The image at `image`, mounted and copied, and as unsquashfs takes it apart.
fn as_unsquashfs(place: &Path, image: &Path) -> u64 {
    let script = format!(
        "mkdir mounted; mount -o loop,ro -t squashfs {0} mounted
        unsquashfs -quiet -no-progress -dest wanted {0}",
        image.display()
    );
    shell(&script, place);
    let wanted = walk(&place.join("wanted"));
    let from = Root::open(&place.join("mounted")).unwrap();
    let (top, to) = directory(place, "copied");
    let everything = measure(&from, u64::MAX).unwrap();
    let before = in_use(place);
    let census = copy(
        &from,
        Path::new("/"),
        &to,
        Path::new(""),
        &AtomicU64::new(0),
    );
    let census = census.unwrap_or_else(|failure| panic!("{}", chain(&failure)));
    // No more than was foretold, and little less: squashfs has holes in blocks, and a copy in pages.
    let (taken, foretold) = (in_use(place) - before, everything.bytes.0);
    assert!(
        taken <= foretold && foretold - taken < 1 << 20,
        "{taken}, {foretold}"
    );
    let (wanted, got) = (without_trusted(wanted), walk(&top));
    for (path, entry) in &wanted {
        let copied = got.get(path).map_or(0, |copied| copied.in_use);
        assert!(copied <= entry.in_use, "{}: {copied}", path.display());
    }
    assert_same("copied", &without_blocks(wanted), &without_blocks(got));
    assert_eq!(
        census.entries - census.hard_links,
        everything.inodes,
        "{census:?}"
    );
    drop(from);
    shell("umount mounted", place);
    census.entries
}

/// Bytes of the tmpfs that files take.
fn in_use(place: &Path) -> u64 {
    let stat = nix::sys::statvfs::statvfs(place).unwrap();
    (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
}

#[test]
fn a_squashfs_is_copied_as_unsquashfs_takes_it_apart() {
    isolated("mode=0755,size=2g", |place| {
        let (source, _) = directory(place, "source");
        torture::make(&source);
        // What squashfs has no room for: other seconds than those of 32 bits, other devices than of 12 and 20.
        shell("touch -d '2020-01-01' suid large; rm -f high", &source);
        shell(
            "mksquashfs source torture.squashfs -quiet -no-progress -xattrs 2>/dev/null",
            place,
        );
        assert!(as_unsquashfs(place, &place.join("torture.squashfs")) > 40);
        let got = walk(&place.join("copied"));
        let of = |name: &str| &got[Path::new(name)];
        // The image had them, so that the comparison was about something.
        assert!(of("suid").xattrs.contains_key("security.capability"));
        assert_eq!(of("large").names, 3);
        assert!(of("sparse-9-gigabytes").in_use < 16);
        assert_eq!(of("null").device, nix::sys::stat::makedev(1, 3));
    });
}

#[test]
fn a_debian_squashfs_is_copied_as_unsquashfs_takes_it_apart() {
    isolated("mode=0755,size=2g", |place| {
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/lab/debian.squashfs");
        assert!(
            image.exists(),
            "{} is missing: scripts/lab makes it",
            image.display()
        );
        let entries = as_unsquashfs(place, &image);
        assert!(entries > 5000, "{entries}");
    });
}

#[test]
fn an_erofs_is_copied_with_its_holes() {
    isolated("mode=0755,size=1g", |place| {
        let (source, _) = directory(place, "source");
        shell(
            r"mkdir -p a/b acl; head -c 3000000 /dev/urandom >a/noise; yes | head -c 5000000 >a/text; ln a/text a/b/text
            truncate -s 3M hole; cp hole behind; printf x | dd of=behind conv=notrunc status=none
            ln -s text a/link; mkfifo fifo; mknod null c 1 3; chown 5:6 null; chmod 6755 a/text
            setfattr -n user.plain -v text a/noise; setfattr -h -n security.ironroot -v on-a-link a/link
            setcap cap_net_raw+ep a/noise; setfacl -m u:4242:rwx acl; setfacl -d -m u:4242:rwx,g:4243:--- acl
            touch -d '2001-02-03 04:05:06' a/text a",
            &source,
        );
        shell(
            "mkfs.erofs --quiet -zlz4 torture.erofs source >/dev/null 2>&1
            mkdir mounted; mount -o loop,ro -t erofs torture.erofs mounted",
            place,
        );
        let wanted = without_trusted(walk(&place.join("mounted")));
        let from = Root::open(&place.join("mounted")).unwrap();
        let (top, to) = directory(place, "copied");
        copy(
            &from,
            Path::new("/"),
            &to,
            Path::new(""),
            &AtomicU64::new(0),
        )
        .unwrap();
        let got = walk(&top);
        assert_same(
            "copied",
            &without_blocks(wanted),
            &without_blocks(got.clone()),
        );
        assert_eq!(
            got[Path::new("hole")].in_use + got[Path::new("behind")].in_use,
            0
        );
        assert_eq!(got[Path::new("acl")].xattrs.len(), 2);
        assert_eq!(got[Path::new("a/noise")].xattrs.len(), 2);
        drop(from);
        shell("umount mounted", place);
    });
}
