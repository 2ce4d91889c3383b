//! Archives of real programs, unpacked and compared with what was packed, and with what GNU tar makes of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod tree_support;

use std::path::Path;

use ironroot::image::tree::Census;
use tree_support::{
    assert_same, directory, isolated, run, shell, torture, unpacked, walk, without_trusted,
};

/// Makes the torture tree, packs it, and unpacks it with both programs into `ours` and `theirs`.
fn pack_and_unpack(place: &Path, packer: &str) -> Census {
    std::fs::create_dir(place.join("source")).unwrap();
    torture::make(&place.join("source"));
    shell(packer, place);
    let (_, root) = directory(place, "ours");
    let bytes = std::fs::read(place.join("archive.tar")).unwrap();
    let census = unpacked(&bytes, &root);
    let theirs = "mkdir theirs; tar -C theirs --xattrs --xattrs-include='*' --acls \
                  --numeric-owner -xpf archive.tar";
    shell(theirs, place);
    census
}

/// The torture tree in pax format, by every version of its sparse files.
fn pax(sparse_version: &'static str) {
    isolated("mode=0755,size=1g", move |place| {
        let packer = format!(
            "tar --format=pax -S --sparse-version={sparse_version} --xattrs \
             --xattrs-include='*' --acls -C source -cf archive.tar ."
        );
        let census = pack_and_unpack(place, &packer);
        let ours = walk(&place.join("ours"));
        let wanted = without_trusted(walk(&place.join("source")));
        assert_same("what was packed", &wanted, &ours);
        assert_same(
            "GNU tar",
            &without_trusted(walk(&place.join("theirs"))),
            &ours,
        );
        assert_eq!(census.dropped_trusted, 2, "{census:?}");
        assert_eq!(census.entries, wanted.len() as u64);
        assert_eq!(
            (census.devices, census.fifos, census.replaced),
            (5, 1, 0),
            "{census:?}"
        );
        assert!(census.refused_xattrs.is_empty(), "{census:?}");
        assert_eq!(census.notes().len(), 1, "{:?}", census.notes());
    });
}

#[test]
fn gnu_tar_pax_with_sparse_format_0_0() {
    pax("0.0");
}

#[test]
fn gnu_tar_pax_with_sparse_format_0_1() {
    pax("0.1");
}

#[test]
fn gnu_tar_pax_with_sparse_format_1_0() {
    pax("1.0");
}

#[test]
fn gnu_tar_in_its_own_format() {
    isolated("mode=0755,size=1g", |place| {
        pack_and_unpack(place, "tar --format=gnu -S -C source -cf archive.tar .");
        let [ours, theirs] = ["ours", "theirs"].map(|name| walk(&place.join(name)));
        assert_same("GNU tar", &theirs, &ours);
    });
}

#[test]
fn libarchive_pax() {
    isolated("mode=0755,size=1g", |place| {
        // It finds holes itself, and writes attributes in two ways.
        let packer = "bsdtar --format pax --xattrs --acls -C source -cf archive.tar . && \
                      grep -aq LIBARCHIVE.xattr.user.binary archive.tar";
        pack_and_unpack(place, packer);
        let [ours, theirs] = ["ours", "theirs"].map(|name| walk(&place.join(name)));
        let mut source = without_trusted(walk(&place.join("source")));
        for (path, entry) in &mut source {
            // It reads no attributes of links and special files, and writes no inodes for devices.
            // It writes a time before 1970 with a fraction a second too early; GNU tar reads what it wrote.
            if entry.mtime.0 < 0 && entry.mtime.1 > 0 {
                assert_eq!(ours[path].mtime, theirs[path].mtime);
                entry.mtime = ours[path].mtime;
            }
            if ours[path].xattrs != entry.xattrs {
                assert!(entry.content.is_none(), "{path:?}");
                entry.xattrs.clone_from(&ours[path].xattrs);
            }
        }
        assert_same("what was packed", &source, &ours);
        let [file, other] = ["large", "zero"].map(|name| &ours[Path::new(name)].xattrs);
        assert_eq!(file["user.binary"], b"\n=%\n\0\xff\n");
        assert_eq!(other["user.a=b%3Dc%d"], b"odd");
        assert_eq!(theirs.len(), ours.len());
    });
}

#[test]
fn acls_by_name_are_those_of_the_images_own_accounts_wherever_it_has_them() {
    isolated("mode=0755", |place| {
        // GNU tar writes names; daemon is 1 and adm is 4 here, 77 and 78 in the image.
        shell(
            "mkdir -p source/var/log/journal source/zz/etc
             setfacl -m u:daemon:rw-,g:adm:r-x -d -m g:adm:r-x source/var/log/journal
             echo x >source/file; setfacl -m u:daemon:r,u:nobody:rwx,u:4242:x,g::- source/file
             echo 'daemon:x:77:1::/:/bin/sh' >source/zz/etc/passwd
             echo 'adm:x:78:' >source/zz/etc/group
             ln -s zz/etc source/etc
             tar --format=pax --acls -C source -cf archive.tar file var etc zz
             grep -aq user:daemon: archive.tar",
            place,
        );
        let (path, root) = directory(place, "ours");
        let census = unpacked(&std::fs::read(place.join("archive.tar")).unwrap(), &root);
        let acl = |file: &str| {
            let arguments = ["-cnp".as_ref(), file.as_ref()];
            String::from_utf8(run("getfacl", &arguments, &path)).unwrap()
        };
        assert_eq!(
            acl("file").trim(),
            "user::rw-\nuser:77:r--\nuser:4242:--x\ngroup::---\nmask::rwx\nother::r--"
        );
        let journal = acl("var/log/journal");
        assert!(journal.contains("user:77:rw-\n"), "{journal}");
        assert!(journal.contains("default:group:78:r-x\n"), "{journal}");
        assert_eq!(census.unknown_acl_names, 1, "nobody");
        assert!(census.notes()[0].contains("ACLs"), "{:?}", census.notes());
    });
}

#[test]
fn attributes_that_the_file_system_does_not_take_are_counted_and_not_fatal() {
    isolated("mode=0755", |place| {
        shell("mkdir source ram; mount -t ramfs none ram", place);
        torture::make(&place.join("source"));
        let packer =
            "tar --format=pax --xattrs --xattrs-include='*' --acls -S -C source -cf a.tar .";
        shell(packer, place);
        let root = ironroot::sys::beneath::Root::open(&place.join("ram")).unwrap();
        let census = unpacked(&std::fs::read(place.join("a.tar")).unwrap(), &root);
        let count = |name: &str| census.refused_xattrs.get(name).copied();
        assert_eq!(count("user.binary"), Some(1), "{census:?}");
        assert_eq!(count("security.ironroot"), Some(3), "{census:?}");
        assert_eq!(count("system.posix_acl_access"), Some(4), "{census:?}");
        assert_eq!(count("trusted.overlay.opaque"), None);
        assert!(
            census
                .notes()
                .iter()
                .any(|note| note.contains("security.capability"))
        );
        let mut wanted = walk(&place.join("source"));
        let mut got = walk(&place.join("ram"));
        for entry in wanted.values_mut().chain(got.values_mut()) {
            entry.xattrs.clear();
            // ramfs counts no blocks.
            entry.in_use = 0;
        }
        assert_same("what was packed", &wanted, &got);
    });
}
