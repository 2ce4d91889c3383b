//! Entries that meet others: layers of an image one after the other, and archives that name things twice.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod tree_support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tree_support::{Made, directory, isolated, layered, unpacked, walk, xattrs};

/// The paths below `top`, the root itself left out.
fn paths(top: &Path) -> Vec<String> {
    let paths = walk(top)
        .into_keys()
        .map(|path| path.to_str().unwrap().to_owned());
    paths.filter(|path| !path.is_empty()).collect()
}

#[test]
fn a_later_layer_replaces_changes_types_and_removes() {
    isolated("mode=0755", |place| {
        let (top, root) = directory(place, "root");
        let lower = Made::new()
            .dir("etc")
            .file("etc/keep", "lower")
            .file("etc/change", "lower")
            .file("etc/gone", "lower")
            .dir("etc/d")
            .dir("etc/d/sub")
            .file("etc/d/sub/x", "lower")
            .symlink("bin", "usr/bin")
            .dir("usr/bin")
            .file("file-to-dir", "lower")
            .dir("dir-to-file")
            .file("dir-to-file/x", "lower")
            .dir("dir-to-link/a/b")
            .end();
        layered(&lower, &root);
        let before = fs::metadata(top.join("etc")).unwrap().ino();
        let upper = Made::new()
            .dir("etc")
            .file("etc/change", "upper")
            .file("etc/.wh.gone", "")
            .file("etc/.wh.never-was", "")
            .file("etc/.wh.d", "")
            .file("nowhere/.wh.x", "")
            .file("etc/.wh..wh.aufs", "")
            .file("bin/tool", "upper")
            .dir("file-to-dir")
            .file("file-to-dir/x", "upper")
            .file("dir-to-file", "upper")
            .symlink("dir-to-link", "etc")
            .hard("etc/again", "etc/keep")
            .end();
        let census = layered(&upper, &root);
        assert_eq!(
            paths(&top),
            [
                "bin",
                "dir-to-file",
                "dir-to-link",
                "etc",
                "etc/again",
                "etc/change",
                "etc/keep",
                "file-to-dir",
                "file-to-dir/x",
                "usr",
                "usr/bin",
                "usr/bin/tool",
            ]
        );
        assert_eq!(fs::read(top.join("etc/change")).unwrap(), b"upper");
        assert_eq!(fs::read(top.join("etc/keep")).unwrap(), b"lower");
        assert_eq!(fs::metadata(top.join("etc/again")).unwrap().nlink(), 2);
        assert_eq!(fs::metadata(top.join("etc")).unwrap().ino(), before);
        assert_eq!(
            fs::metadata(top.join("etc")).unwrap().mtime(),
            1_600_000_000
        );
        assert_eq!((census.whiteouts, census.replaced), (2, 4), "{census:?}");
    });
}

#[test]
fn whiteouts_hide_lower_layers_and_never_their_own_in_whatever_order() {
    let lower = Made::new()
        .dir("d")
        .file("d/old", "")
        .file("d/same", "lower")
        .dir("d/sub")
        .file("d/sub/old", "")
        .dir("d/sub/implied")
        .file("d/sub/implied/old", "")
        .dir("e")
        .file("e/old", "")
        .end();
    let opaque = |made: Made| made.file("d/.wh..wh..opq", "").file(".wh.e", "");
    let own = |made: Made| {
        made.dir("d")
            .file("d/same", "upper")
            .file("d/new", "")
            .dir("d/sub")
            .file("d/sub/new", "")
            // No entry names the directory that this one is in.
            .file("d/sub/implied/new", "")
            .dir("e")
            .file("e/new", "")
    };
    for first in [true, false] {
        let upper = if first {
            own(opaque(Made::new()))
        } else {
            opaque(own(Made::new()))
        }
        .end();
        let lower = lower.clone();
        isolated("mode=0755", move |place| {
            let (top, root) = directory(place, "root");
            layered(&lower, &root);
            let census = layered(&upper, &root);
            assert_eq!(
                paths(&top),
                [
                    "d",
                    "d/new",
                    "d/same",
                    "d/sub",
                    "d/sub/implied",
                    "d/sub/implied/new",
                    "d/sub/new",
                    "e",
                    "e/new"
                ],
                "{first}"
            );
            assert_eq!(fs::read(top.join("d/same")).unwrap(), b"upper");
            assert_eq!(census.whiteouts, 2);
        });
    }
}

#[test]
fn without_the_option_a_whiteout_is_a_file() {
    isolated("mode=0755", |place| {
        let (top, root) = directory(place, "root");
        unpacked(
            &Made::new()
                .file("a", "")
                .file(".wh.a", "")
                .file(".wh..wh..opq", "")
                .end(),
            &root,
        );
        assert_eq!(paths(&top), [".wh..wh..opq", ".wh.a", "a"]);
    });
}

#[test]
fn what_is_named_twice_is_made_anew_and_a_directory_stays() {
    isolated("mode=0755", |place| {
        let (top, root) = directory(place, "root");
        let value: &[u8] = b"1";
        let bytes = Made::new()
            .pax(&[("SCHILY.xattr.user.first", value), ("mtime", b"5.5")])
            .dir("d")
            .file("d/f", "first")
            .hard("d/other", "d/f")
            .file("d/f", "second")
            .hard("d/other", "d/other")
            .hard("d/other", "./d//other")
            .pax(&[("SCHILY.xattr.user.second", value), ("mtime", b"7.25")])
            .dir("d")
            .end();
        let census = unpacked(&bytes, &root);
        assert_eq!(fs::read(top.join("d/f")).unwrap(), b"second");
        assert_eq!(fs::read(top.join("d/other")).unwrap(), b"first");
        assert_eq!(fs::metadata(top.join("d/other")).unwrap().nlink(), 1);
        let names: Vec<String> = xattrs(&top.join("d")).into_keys().collect();
        assert_eq!(names, ["user.second"]);
        let metadata = fs::metadata(top.join("d")).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (7, 250_000_000));
        assert_eq!((census.replaced, census.hard_links), (1, 3));
    });
}

#[test]
fn parents_that_nobody_named_are_made_and_links_inside_the_root_are_followed() {
    isolated("mode=0755", |place| {
        let (top, root) = directory(place, "root");
        let bytes = Made::new()
            .file("a/b/c", "x")
            .dir("usr/lib")
            .symlink("lib", "/usr/lib")
            .symlink("lib64", "../../../lib")
            .file("lib64/ld.so", "y")
            .hard("ld", "lib/ld.so")
            .hard("lib-again", "lib")
            .end();
        let census = unpacked(&bytes, &root);
        assert_eq!(fs::read(top.join("usr/lib/ld.so")).unwrap(), b"y");
        assert_eq!(fs::metadata(top.join("ld")).unwrap().nlink(), 2);
        assert_eq!(
            fs::read_link(top.join("lib-again")).unwrap(),
            Path::new("/usr/lib")
        );
        assert_eq!(
            fs::metadata(top.join("a/b")).unwrap().mode() & 0o7777,
            0o755
        );
        assert_eq!(census.implied_directories, 2, "a/b, usr");
    });
}

#[test]
fn a_link_that_is_replaced_is_followed_no_longer() {
    isolated("mode=0755", |place| {
        let (top, root) = directory(place, "root");
        let bytes = Made::new()
            .dir("one")
            .dir("two")
            .symlink("link", "one")
            .file("link/a", "")
            .symlink("link", "two")
            .file("link/b", "")
            .dir("link")
            .file("link/c", "")
            .end();
        unpacked(&bytes, &root);
        assert_eq!(
            paths(&top),
            ["link", "link/c", "one", "one/a", "two", "two/b"]
        );
    });
}
