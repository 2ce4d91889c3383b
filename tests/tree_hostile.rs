//! Archives that want out, want too much, or are not what they say. Beside each root lies a canary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod tree_support;

use std::fs;
use std::io::{Read, repeat};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ironroot::error::{Class, chain};
use ironroot::image::tree::{Limits, Options, remove_children, unpack};
use ironroot::sys::beneath::Root;
use proptest::prelude::*;
use tree_support::{Made, assert_same, directory, isolated, layered, refused, unpacked, walk};

/// A canary and a root beside it; `test` gets the root, and the canary must be as it was.
fn beside_a_canary(place: &Path, test: impl FnOnce(&Path, &Root)) {
    let canary = place.join("canary");
    fs::create_dir_all(canary.join("dir")).unwrap();
    fs::write(canary.join("file"), "alive").unwrap();
    let before = walk(&canary);
    let (top, root) = directory(place, "root");
    test(&top, &root);
    assert_same("the canary", &before, &walk(&canary));
    let mut names: Vec<_> = fs::read_dir(place)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["canary", "root"], "nothing new beside the root");
    remove_children(&root, &top).unwrap();
    fs::remove_dir(&top).unwrap();
    fs::remove_dir_all(&canary).unwrap();
}

#[test]
fn names_that_lead_out_are_refused() {
    isolated("mode=0755", |place| {
        let long = [b"../canary/".to_vec(), vec![b'x'; 200]].concat();
        for bytes in [
            Made::new().file("../canary/file", "dead"),
            Made::new().file("a/../../canary/file", "dead"),
            Made::new().file("./../canary/new", ""),
            Made::new().dir(".."),
            Made::new().dir("../canary/"),
            Made::new().symlink("../canary/link", "x"),
            Made::new()
                .pax(&[("path", b"../canary/file")])
                .file("x", "dead"),
            Made::new()
                .entry(b'L', b"l", b"", b"../canary/file\0")
                .file("x", "dead"),
            Made::new().entry(b'0', &long, b"", b"dead"),
            Made::new().hard("x", "../canary/file").file("x", "dead"),
            Made::new().file("x", "").hard("../canary/new", "x"),
        ] {
            beside_a_canary(place, |_, root| {
                let (class, text) = refused(&bytes.end(), root);
                assert_eq!(class, Class::Integrity, "{text}");
                assert!(text.contains("leads out"), "{text}");
            });
        }
    });
}

#[test]
fn links_that_lead_out_lead_nowhere() {
    isolated("mode=0755", |place| {
        let absolute = place.join("canary");
        let absolute = absolute.to_str().unwrap();
        let out = || {
            Made::new()
                .symlink("out", absolute)
                .symlink("up", "../canary")
        };
        for bytes in [
            out().file("out/file", "dead"),
            out().file("up/new", "dead"),
            out().dir("up/dir"),
            out().symlink("up/link", "x"),
            out().hard("x", "up/file"),
            out().hard("x", "out/file"),
            Made::new().hard("x", &format!("{absolute}/file")),
            out().file("y", "").hard("up/new", "y"),
            out().entry(b'6', b"out/fifo", b"", b""),
            Made::new()
                .dir("d")
                .symlink("d/l", "../../canary")
                .file("d/l/file", "dead"),
            Made::new()
                .symlink("a", "b")
                .symlink("b", "a")
                .file("a/x", ""),
            Made::new().file("f", "").file("f/x", ""),
            Made::new()
                .entry(b'3', b"null", b"", b"")
                .file("null/x", ""),
        ] {
            beside_a_canary(place, |_, root| {
                let (class, text) = refused(&bytes.end(), root);
                assert_eq!(class, Class::Integrity, "{text}");
            });
        }
        // What replaces a link replaces the link, and a directory's attributes go to the directory.
        beside_a_canary(place, |top, root| {
            let bytes = out()
                .hard("again", "up")
                .file("up", "inside")
                .dir("out")
                .pax(&[("SCHILY.xattr.user.x", b"y")])
                .file("again", "inside");
            unpacked(&bytes.end(), root);
            assert_eq!(fs::read(top.join("up")).unwrap(), b"inside");
            assert!(top.join("out").symlink_metadata().unwrap().is_dir());
        });
        // A name that is absolute is meant inside, also where such a thing exists outside.
        beside_a_canary(place, |top, root| {
            unpacked(
                &Made::new()
                    .file(&format!("{absolute}/file"), "inside")
                    .end(),
                root,
            );
            let inside = top.join(absolute.trim_start_matches('/')).join("file");
            assert_eq!(fs::read(inside).unwrap(), b"inside");
        });
    });
}

#[test]
fn what_waits_or_acts_when_it_is_opened_is_replaced_unopened() {
    isolated("mode=0755", |place| {
        beside_a_canary(place, |top, root| {
            let bytes = Made::new()
                .entry(b'6', b"fifo", b"", b"")
                .entry(b'3', b"null", b"", b"")
                .file("fifo", "a file")
                .file("null", "a file");
            unpacked(&bytes.end(), root);
            for name in ["fifo", "null"] {
                assert_eq!(fs::read(top.join(name)).unwrap(), b"a file");
            }
        });
    });
}

#[test]
fn names_and_links_that_cannot_be() {
    isolated("mode=0755", |place| {
        let deep = "d/".repeat(300);
        let long = "n".repeat(256);
        for (bytes, what) in [
            (Made::new().pax(&[("path", b"a\0b")]).file("x", ""), "NUL"),
            (
                Made::new().pax(&[("path", b"")]).file("", ""),
                "without a name",
            ),
            (Made::new().file(&long, ""), "256 bytes"),
            (Made::new().file(&deep, ""), "300 directories deep"),
            (Made::new().symlink(".", "x"), "no directory"),
            (Made::new().symlink("x", ""), "to nothing"),
            (Made::new().hard("x", "y"), "not in the tree"),
            (Made::new().hard("x", "no/where"), "not in the tree"),
            (Made::new().hard("x", "/"), "root of the tree"),
            (Made::new().dir("d").hard("x", "d"), "is a directory"),
            (
                Made::new().pax(&[("uid", b"4294967295")]).file("x", ""),
                "user id",
            ),
            (
                Made::new()
                    .pax(&[("SCHILY.acl.access", b"nonsense")])
                    .file("x", ""),
                "ACL",
            ),
            (
                Made::new()
                    .pax(&[("SCHILY.acl.access", b"u::rwx")])
                    .file("x", ""),
                "ACL",
            ),
            (
                Made::new()
                    .pax(&[("SCHILY.xattr.security.capability", b"bad")])
                    .file("x", ""),
                "capabilities of \"x\"",
            ),
        ] {
            beside_a_canary(place, |_, root| {
                let (class, text) = refused(&bytes.end(), root);
                assert_eq!(class, Class::Integrity, "{text}");
                assert!(text.contains(what), "{what}: {text}");
            });
        }
        for name in [".wh.", ".wh..", ".wh..."] {
            beside_a_canary(place, |_, root| {
                let bytes = Made::new().file(name, "").end();
                let options = Options {
                    whiteouts: true,
                    ..Options::default()
                };
                let failure = unpack(&mut &bytes[..], root, &options).unwrap_err();
                assert!(failure.to_string().contains("names no entry"), "{failure}");
            });
        }
    });
}

#[test]
fn whiteouts_stay_inside() {
    isolated("mode=0755", |place| {
        beside_a_canary(place, |_, root| {
            let out = Made::new().symlink("up", "../canary").symlink("d", "..");
            layered(&out.end(), root);
            let upper = Made::new()
                .file("up/.wh.file", "")
                .file("up/.wh..wh..opq", "")
                .file("d/.wh.canary", "")
                .file("d/.wh.up", "");
            layered(&upper.end(), root);
        });
    });
}

/// Endless copies of a block.
struct Endless(Vec<u8>);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(self.0.len());
        buffer[..length].copy_from_slice(&self.0[..length]);
        self.0.rotate_left(length);
        Ok(length)
    }
}

#[test]
fn archives_without_an_end_end_at_the_limits() {
    isolated("mode=0755", |place| {
        let limits = Limits {
            entries: 1000,
            bytes: 1 << 20,
            ..Limits::default()
        };
        let options = Options {
            limits,
            ..Options::default()
        };
        for (entry, what) in [
            (
                Made::new().entry(b'3', b"bomb", b"", b"").0,
                "more than 1000 entries",
            ),
            (Made::new().dir("./").0, "more than 1000 entries"),
            (Made::new().file("f", &"x".repeat(100_000)).0, "1.0 MiB"),
        ] {
            beside_a_canary(place, |_, root| {
                let failure = unpack(&mut std::io::BufReader::new(Endless(entry)), root, &options)
                    .unwrap_err();
                assert_eq!(failure.class(), Class::Integrity);
                assert!(failure.to_string().contains(what), "{failure}");
            });
        }
    });
}

#[test]
fn sizes_that_lie_are_cut_off_and_hold_no_memory() {
    isolated("mode=0755,size=16m", |place| {
        let claims = |size: &[u8]| Made::new().pax(&[("size", size)]).file("f", "short").0;
        beside_a_canary(place, |_, root| {
            let (class, text) = refused(&claims(b"10000"), root);
            assert_eq!(class, Class::Integrity);
            assert!(text.contains("cut off within the content"), "{text}");
        });
        beside_a_canary(place, |_, root| {
            let (_, text) = refused(&claims(b"9223372036854775807"), root);
            assert!(text.contains("of content"), "{text}");
        });
        // It says how much it is, and is it: the place is too small, and both numbers are told.
        beside_a_canary(place, |_, root| {
            let bytes = claims(b"1073741824");
            let mut source = (&bytes[..]).chain(std::io::BufReader::new(repeat(1)));
            let failure = unpack(&mut source, root, &Options::default()).unwrap_err();
            let text = chain(&failure);
            assert_eq!(failure.class(), Class::Space, "{text}");
            assert!(
                text.contains("1.0 GiB") && text.contains("16.0 MiB"),
                "{text}"
            );
            assert!(text.contains("ENOSPC"), "{text}");
        });
        for map in [
            "0,5,3,2",
            "0,9223372036854775807",
            "0,4,4,9",
            "100,5",
            "0,5,1,",
        ] {
            beside_a_canary(place, |_, root| {
                let records = [
                    ("GNU.sparse.map", map.as_bytes()),
                    ("GNU.sparse.size", b"50"),
                ];
                let (class, text) =
                    refused(&Made::new().pax(&records).file("f", "12345").end(), root);
                assert_eq!(class, Class::Integrity, "{text}");
            });
        }
    });
}

#[test]
fn a_file_system_without_inodes_left_is_full() {
    isolated("mode=0755,nr_inodes=40", |place| {
        beside_a_canary(place, |_, root| {
            let mut made = Made::new();
            for n in 0..100 {
                made = made.file(&n.to_string(), "");
            }
            let (class, text) = refused(&made.end(), root);
            assert_eq!(class, Class::Space);
            assert!(text.contains("0 of 40 inodes free"), "{text}");
        });
    });
}

#[test]
fn what_is_too_deep_to_be_held_open_is_removed_as_well() {
    isolated("mode=0755", |place| {
        beside_a_canary(place, |top, root| {
            // Links let an archive go deeper than any path.
            let step = "d/".repeat(200);
            let mut made = Made::new();
            for level in 0..6 {
                let here = if level == 0 {
                    String::new()
                } else {
                    format!("link{}/", level - 1)
                };
                made = made
                    .dir(&format!("{here}{step}"))
                    .symlink(&format!("link{level}"), &format!("{here}{step}"));
            }
            unpacked(&made.file("link5/file", "deep down").end(), root);
            let removed = remove_children(root, top).unwrap();
            assert_eq!(removed.removed, 1 + 6 + 1200);
            assert_eq!(fs::read_dir(top).unwrap().count(), 0);
        });
    });
}

#[test]
fn progress_counts_what_is_written() {
    isolated("mode=0755", |place| {
        let (_, root) = directory(place, "root");
        let options = Options::default();
        let bytes = Made::new().file("a", "12345").file("b", "678").end();
        let census = unpack(&mut &bytes[..], &root, &options).unwrap();
        assert_eq!(
            (census.bytes, options.progress.load(Ordering::Relaxed)),
            (8, 8)
        );
    });
}

/// An archive with some of everything, for mutations.
fn everything() -> Vec<u8> {
    Made::new()
        .dir("./")
        .dir("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("out", "../canary")
        .file("lib/a", "content of a")
        .hard("b", "lib/a")
        .hard("c", "out")
        .entry(b'6', b"fifo", b"", b"")
        .entry(b'3', b"null", b"", b"")
        .entry(
            b'L',
            b"l",
            b"",
            &[b"x/".repeat(60), b"\0".to_vec()].concat(),
        )
        .dir("x")
        .pax(&[
            ("path", b"lib/pax"),
            ("mtime", b"5.5"),
            ("SCHILY.xattr.user.x", b"y\n"),
            ("SCHILY.acl.access", b"u::rw-,u:5:r--,g::r--,m::r--,o::---"),
        ])
        .file("short", "content")
        .pax(&[
            ("GNU.sparse.map", b"0,2,1000,3"),
            ("GNU.sparse.size", b"5000"),
        ])
        .file("sparse", "12345")
        .file("lib/.wh.a", "")
        .file("usr/.wh..wh..opq", "")
        .end()
}

/// Puts the right checksum on every header that an unchanged archive has one at, so that changes get further
/// than to the first check.
fn with_checksums(mut bytes: Vec<u8>, original: &[u8]) -> Vec<u8> {
    for at in (0..original.len()).step_by(512) {
        let is_header = original[at..].len() >= 512 && &original[at + 257..at + 262] == b"ustar";
        if is_header && at + 512 <= bytes.len() {
            let mut header = tar::Header::new_old();
            header.as_mut_bytes().copy_from_slice(&bytes[at..at + 512]);
            header.set_cksum();
            bytes[at..at + 512].copy_from_slice(header.as_bytes());
        }
    }
    bytes
}

#[test]
fn changed_archives_neither_panic_nor_escape() {
    isolated("mode=0755,size=64m", |place| {
        let place = PathBuf::from(place);
        let original = everything();
        let change = (0..original.len(), any::<u8>());
        let piece = proptest::sample::select(vec![
            &b"../canary/file\0"[..],
            b"/canary\0",
            b"out/file\0",
            b"\0",
            b"\xff\xff\xff\xff",
            b"./..\0",
            b"77777777777\0",
        ]);
        let splice = (
            0..original.len() / 512,
            proptest::sample::select(vec![0, 100, 124, 157]),
            piece,
        );
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 600,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let strategy = (
            proptest::collection::vec(change, 0..4),
            proptest::collection::vec(splice, 0..3),
            any::<bool>(),
            0..=original.len(),
            any::<bool>(),
        );
        let unpacked = std::cell::Cell::new(0);
        runner
            .run(&strategy, |(changes, splices, fix, length, whole)| {
                let mut bytes = original.clone();
                for (at, byte) in changes {
                    bytes[at] = byte;
                }
                for (block, field, piece) in splices {
                    bytes[block * 512 + field..][..piece.len()].copy_from_slice(piece);
                }
                if fix {
                    bytes = with_checksums(bytes, &original);
                }
                if !whole {
                    bytes.truncate(length);
                }
                beside_a_canary(&place, |_, root| {
                    let options = Options {
                        whiteouts: true,
                        ..Options::default()
                    };
                    match unpack(&mut &bytes[..], root, &options) {
                        Ok(_) => unpacked.set(unpacked.get() + 1),
                        Err(failure) => assert_ne!(failure.class(), Class::Bug),
                    }
                });
                Ok(())
            })
            .unwrap();
        assert!(
            unpacked.get() > 20,
            "most of them fail at once: {}",
            unpacked.get()
        );
    });
}

proptest! {
    #[test]
    fn any_bytes_neither_panic_nor_escape(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let place = tempfile::tempdir().unwrap();
        beside_a_canary(place.path(), |_, root| {
            assert!(unpack(&mut &bytes[..], root, &Options::default()).is_err());
        });
    }
}
