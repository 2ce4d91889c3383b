//! Trees copied between two mounted file systems, and removed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod tree_support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ironroot::error::{Class, chain};
use ironroot::image::tree::{Census, Removed, copy, remove_children};
use ironroot::sys::beneath::Root;
use tree_support::{assert_same, isolated, shell, torture, walk, without_trusted, xattrs};

/// Mounts of these kinds below a place, as roots.
fn mounted(place: &Path, names: &[&str]) -> Vec<(PathBuf, Root)> {
    let mount = |name: &&str| {
        shell(
            &format!("mkdir {name}; mount -t tmpfs -o mode=0755 {name} {name}"),
            place,
        );
        let path = place.join(name);
        let root = Root::open(&path).unwrap();
        (path, root)
    };
    names.iter().map(mount).collect()
}

fn copied(from: &Root, source: &str, to: &Root, target: &str) -> Census {
    let progress = AtomicU64::new(0);
    match copy(from, Path::new(source), to, Path::new(target), &progress) {
        Ok(census) => {
            assert_eq!(progress.load(Ordering::Relaxed), census.bytes);
            census
        }
        Err(failure) => panic!("{}", chain(&failure)),
    }
}

fn not_copied(from: &Root, source: &str, to: &Root, target: &str) -> (Class, String) {
    let (source, target) = (Path::new(source), Path::new(target));
    let failure = copy(from, source, to, target, &AtomicU64::new(0)).expect_err("a failure");
    (failure.class(), chain(&failure))
}

#[test]
fn from_tmpfs_to_tmpfs_nothing_is_lost() {
    isolated("mode=0755", |place| {
        let (top, to) = &mounted(place, &["to"])[0];
        let source = &mounted(place, &["source"])[0];
        torture::make(&source.0);
        let census = copied(&source.1, "/", to, "seed");
        let wanted = without_trusted(walk(&source.0));
        assert_same("the source", &wanted, &walk(&top.join("seed")));
        assert_eq!(census.entries, wanted.len() as u64);
        assert_eq!(
            (census.dropped_trusted, census.devices, census.fifos),
            (2, 5, 1)
        );
        assert_eq!((census.hard_links, census.symlinks), (3, 5));
    });
}

#[test]
fn one_file_by_a_link_inside_its_root() {
    isolated("mode=0755", |place| {
        let mounts = mounted(place, &["from", "to"]);
        let [(from, source), (to, target)] = &mounts[..] else {
            unreachable!()
        };
        shell(
            "mkdir -p usr/lib; echo text >usr/lib/id; chown 5:6 usr/lib/id; chmod 4710 usr/lib/id
             setfattr -n user.x -v y usr/lib/id; ln -s /usr/lib/id id; touch -d @5.5 usr/lib/id",
            from,
        );
        let census = copied(source, "/id", target, "machine-id");
        assert_eq!((census.files, census.bytes), (1, 5));
        let wanted = &walk(from)[Path::new("usr/lib/id")];
        assert_eq!(&walk(to)[Path::new("machine-id")], wanted);
        let again = not_copied(source, "id", target, "machine-id");
        assert!(again.1.contains("EEXIST"), "{again:?}");
        let device = not_copied(
            &Root::open(Path::new("/dev")).unwrap(),
            "null",
            target,
            "null",
        );
        assert!(device.1.contains("neither"), "{device:?}");
        let missing = not_copied(source, "nothing", target, "x");
        assert!(missing.1.contains("ENOENT"), "{missing:?}");
    });
}

#[test]
fn an_existing_directory_is_filled_and_takes_over_the_attributes() {
    isolated("mode=0755", |place| {
        let mounts = mounted(place, &["from", "to"]);
        let [(from, source), (to, target)] = &mounts[..] else {
            unreachable!()
        };
        shell(
            "mkdir d d/s; echo x >d/f; chmod 0700 d; chown 3:4 d; touch -d @7.25 d",
            from,
        );
        shell(
            "mkdir d; setfacl -d -m u:4242:rwx d; setfattr -n user.old -v x d",
            to,
        );
        copied(source, "d", target, "d");
        assert_same("the source", &walk(&from.join("d")), &walk(&to.join("d")));
        // A second time would replace what is there: it does not.
        let (class, text) = not_copied(source, "d", target, "d");
        assert_eq!(class, Class::Media);
        assert!(text.contains("EEXIST"), "{text}");
    });
}

#[test]
fn no_link_of_the_target_is_followed() {
    isolated("mode=0755", |place| {
        let mounts = mounted(place, &["from", "to"]);
        let [(from, source), (to, target)] = &mounts[..] else {
            unreachable!()
        };
        shell("mkdir -p d/s canary; echo x >d/s/f", from);
        shell(
            "mkdir real ../canary; ln -s real link; ln -s ../canary out",
            to,
        );
        for name in ["link", "out", "link/x", "out/x", "../canary/x"] {
            let (_, text) = not_copied(source, "d", target, name);
            assert!(text.contains("ELOOP") || text.contains("EXDEV"), "{text}");
        }
        assert_eq!(fs::read_dir(place.join("canary")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(to.join("real")).unwrap().count(), 0);
    });
}

#[test]
fn mount_points_are_not_entered_and_not_removed() {
    isolated("mode=0755", |place| {
        let mounts = mounted(place, &["from", "to"]);
        let [(from, source), (to, target)] = &mounts[..] else {
            unreachable!()
        };
        shell(
            "mkdir -p d/other d/bound/x d/keeps/sub keep; echo in >keep/in; echo f >keep/f; : >d/file
             mount -t tmpfs -o mode=0700 other d/other; echo x >d/other/x
             # Of the same file system: st_dev does not tell.
             mount --bind keep d/bound; mount --bind keep/f d/file; mount --bind keep d/keeps/sub
             python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"d/socket\")'",
            from,
        );
        let census = copied(source, "d", target, "d");
        assert_eq!((census.mount_points, census.sockets), (4, 1), "{census:?}");
        assert_eq!(census.notes().len(), 2, "{:?}", census.notes());
        let paths: Vec<PathBuf> = walk(&to.join("d")).into_keys().collect();
        let wanted = ["", "bound", "file", "keeps", "keeps/sub", "other"].map(PathBuf::from);
        assert_eq!(paths, wanted);
        assert_eq!(
            fs::metadata(to.join("d/other")).unwrap().mode() & 0o7777,
            0o700
        );
        assert_eq!(fs::read(to.join("d/file")).unwrap(), b"");

        let directory = fs::File::open(from.join("d")).unwrap();
        let removed = remove_children(&directory, &from.join("d")).unwrap();
        assert_eq!(
            removed,
            Removed {
                removed: 1,
                mount_points: 4
            }
        );
        assert_eq!(fs::read(from.join("keep/in")).unwrap(), b"in\n");
        assert_eq!(fs::read(from.join("d/other/x")).unwrap(), b"x\n");
        shell("umount d/other d/bound d/file d/keeps/sub", from);
        let removed = remove_children(&directory, &from.join("d")).unwrap();
        assert_eq!(removed.mount_points, 0);
        assert_eq!(fs::read_dir(from.join("d")).unwrap().count(), 0);
        assert_eq!(fs::read(from.join("keep/in")).unwrap(), b"in\n");
    });
}

#[test]
fn a_full_target_says_what_was_needed() {
    isolated("mode=0755", |place| {
        let source = &mounted(place, &["from"])[0];
        shell(
            "mkdir to; mount -t tmpfs -o size=1m to to; head -c 3M /dev/urandom >from/large",
            place,
        );
        let target = Root::open(&place.join("to")).unwrap();
        let (class, text) = not_copied(&source.1, "/", &target, "x");
        assert_eq!(class, Class::Space);
        assert!(
            text.contains("3.0 MiB") && text.contains("1.0 MiB has 0 bytes"),
            "{text}"
        );
    });
}

#[test]
fn a_large_directory_is_removed_and_no_link_in_it_followed() {
    isolated("mode=0755,nr_inodes=0", |place| {
        let script =
            "mkdir d; cd d; seq 20000 | xargs touch; mkdir $(seq 30001 30500); ln -s .. up";
        shell(script, place);
        let directory = fs::File::open(place.join("d")).unwrap();
        let removed = remove_children(&directory, &place.join("d")).unwrap();
        assert_eq!(removed.removed, 20_501);
        assert!(
            place.join("d").is_dir(),
            "the directory itself stays, and so does what is above it"
        );
    });
}

#[test]
fn an_overlay_is_read_as_one_tree() {
    isolated("mode=0755", |place| {
        let target = &mounted(place, &["to"])[0];
        shell(
            "mkdir lower upper work merged; echo low >lower/low; ln lower/low lower/low-2
             mkdir lower/d; setfattr -n user.x -v y lower/d
             mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged
             echo high >merged/high; rm merged/d -r; mkdir merged/d; echo x >merged/d/x",
            place,
        );
        let source = Root::open(&place.join("merged")).unwrap();
        let census = copied(&source, "/", &target.1, "seed");
        let wanted = walk(&place.join("merged"));
        assert_same("the overlay", &wanted, &walk(&target.0.join("seed")));
        assert_eq!(
            (census.files, census.hard_links, census.mount_points),
            (3, 1, 0)
        );
        assert!(xattrs(&target.0.join("seed/d")).is_empty());
    });
}
