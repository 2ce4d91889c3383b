//! Archives against GNU tar: what it extracts and what ironroot unpacks must be the same tree, attribute by
//! attribute; and what leads out of a tree must not. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ironroot::error::{Class, Failure};
use ironroot::image::tree::{Census, Limits, Options, unpack};
use ironroot::sys::beneath::Root;

/// Runs a shell script in `directory`.
#[track_caller]
fn shell(directory: &Path, script: &str) -> String {
    let out = Command::new("bash")
        .args(["-euc", script])
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn unpacked(archive: &[u8], into: &Path, options: &Options) -> Result<Census, Failure> {
    std::fs::create_dir_all(into).unwrap();
    let root = Root::open(into).unwrap();
    unpack(&mut &archive[..], &root, options)
}

/// Everything about every entry below `root`, in words.
fn look(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let inside = path.strip_prefix(root).unwrap().to_owned();
        let kind = meta.file_type();
        let mut text = format!(
            "{:o} {}:{} {}.{:09}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        if kind.is_dir() {
            for entry in std::fs::read_dir(&path).unwrap() {
                waiting.push(entry.unwrap().path());
            }
        } else if kind.is_symlink() {
            text += &format!(" -> {}", std::fs::read_link(&path).unwrap().display());
        } else if kind.is_char_device() || kind.is_block_device() {
            text += &format!(" device {:x}", meta.rdev());
        } else if kind.is_file() {
            use sha2::Digest as _;
            let sum = sha2::Sha256::digest(std::fs::read(&path).unwrap());
            text += &format!(" {} bytes {sum:x?}", meta.len());
        }
        if meta.nlink() > 1 && !kind.is_dir() {
            // The first name of each, whatever order this walk has.
            let first = names
                .entry((meta.dev(), meta.ino()))
                .or_insert(inside.clone());
            if inside < *first {
                first.clone_from(&inside);
            }
            text += &format!(" {} names", meta.nlink());
        }
        all.insert(inside, text);
    }
    let dump = shell(
        root,
        "getfattr -R -h -d -m - -e hex . 2>/dev/null | sed 's/^# file: //' | LC_ALL=C sort; getfacl -R -p -n . 2>/dev/null | LC_ALL=C sort",
    );
    all.insert("xattrs and ACLs".into(), dump);
    all
}

#[track_caller]
fn same(ours: &Path, theirs: &Path) {
    let (ours, theirs) = (look(ours), look(theirs));
    for (path, text) in &theirs {
        assert_eq!(ours.get(path), Some(text), "{}", path.display());
    }
    assert_eq!(ours.len(), theirs.len());
}

/// A tree with everything that a tree can have.
const TORTURE: &str = r#"
    mkdir -p source && cd source
    mkdir -p usr/bin usr/lib etc deep/a/b/c empty sticky
    ln -s usr/lib lib
    printf hello >usr/bin/tool && chmod 4755 usr/bin/tool
    printf x >usr/bin/ping && setcap cap_net_raw+ep usr/bin/ping
    printf y >etc/owned && chown 1234:5678 etc/owned && chmod 0640 etc/owned
    printf z >etc/setgid && chown 0:42 etc/setgid && chmod 2755 etc/setgid
    chmod 1777 sticky
    ln etc/owned deep/hard
    ln -s ../etc/owned deep/soft && ln deep/soft deep/hardsoft
    ln -s /absolute/nowhere deep/dangling
    mknod deep/char c 1 3 && mknod deep/block b 7 300 && mkfifo -m 0600 deep/fifo
    truncate -s 10M deep/sparse && printf middle | dd of=deep/sparse bs=1 seek=5000000 conv=notrunc status=none
    truncate -s 3M deep/hole
    setfattr -n user.colour -v blue etc/owned && setfattr -n user.on -v dir deep
    setfattr -n security.ima -v 0x0102 usr/bin/tool
    setfacl -m u:54321:rwx,g:54322:r-x etc/owned && setfacl -d -m u:54323:rx empty
    printf n >"$(printf 'name\xff\xfe')"; printf n >$'new\nline'; printf n >' blank '
    printf long >deep/$(printf 'n%.0s' $(seq 200))
    mkdir -p $(printf 'directory-%.0s/' $(seq 12)) && printf far >$(printf 'directory-%.0s/' $(seq 12))file
    touch -h -d '2001-02-03 04:05:06.123456789' deep/soft etc/owned
    touch -d '1969-12-31 23:59:58.5' etc/setgid
    chmod 0444 deep/a/b && touch -d '2011-01-01 01:01:01.111111111' deep/a/b deep empty .
"#;

#[test]
fn every_format_of_gnu_tar_gives_the_tree_that_gnu_tar_extracts() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    shell(here, TORTURE);
    for (name, options) in [
        ("pax", "--format=pax --xattrs --xattrs-include=* --acls"),
        (
            "pax-sparse",
            "--format=pax --sparse --xattrs --xattrs-include=* --acls",
        ),
        (
            "pax-sparse-0.0",
            "--format=pax --sparse --sparse-version=0.0",
        ),
        (
            "pax-sparse-0.1",
            "--format=pax --sparse --sparse-version=0.1",
        ),
        ("gnu", "--format=gnu --sparse"),
        ("numeric", "--format=pax --numeric-owner --acls --xattrs"),
    ] {
        shell(here, &format!("tar -C source {options} -cf {name}.tar ."));
        let theirs = here.join(format!("{name}.theirs"));
        shell(
            here,
            &format!(
                "mkdir {name}.theirs; tar -C {name}.theirs --xattrs --xattrs-include='*' --acls --numeric-owner -xpf {name}.tar"
            ),
        );
        let ours = here.join(format!("{name}.ours"));
        let archive = std::fs::read(here.join(format!("{name}.tar"))).unwrap();
        let census = unpacked(&archive, &ours, &Options::default()).unwrap();
        same(&ours, &theirs);
        assert!(census.notes().is_empty(), "{:?}", census.notes());
        // Holes are holes again.
        if name.contains("sparse") || name == "gnu" {
            let blocks = std::fs::metadata(ours.join("deep/sparse"))
                .unwrap()
                .blocks();
            assert!(blocks < 200, "{name}: {blocks} blocks");
        }
    }
}

#[test]
fn attributes_that_must_not_be_or_cannot_be_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    shell(
        here,
        "mkdir source && touch source/a && setfattr -n trusted.overlay.opaque -v y source && setfattr -n user.a -v b source/a
         tar -C source --xattrs --xattrs-include='*' -cf a.tar .",
    );
    let archive = std::fs::read(here.join("a.tar")).unwrap();
    let census = unpacked(&archive, &here.join("ours"), &Options::default()).unwrap();
    assert_eq!(census.dropped_trusted, 1);
    let said = shell(here, "getfattr -m - ours");
    assert!(!said.contains("trusted"), "{said}");
    // A ramfs takes no attribute at all.
    shell(here, "mkdir ram && mount -t ramfs ram ram");
    let census = unpacked(&archive, &here.join("ram"), &Options::default());
    shell(here, "umount ram");
    assert_eq!(census.unwrap().refused_xattrs.get("user.a"), Some(&1));
}

/// Layers over each other: replaced, changed in kind, taken away.
#[test]
fn layers_take_away_what_their_whiteouts_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    shell(
        here,
        r"mkdir -p one/{keep,gone,opaque/old,kind} two/{opaque/new,kind.d}
        echo 1 >one/keep/a; echo 1 >one/gone/b; echo 1 >one/opaque/old/c; echo 1 >one/opaque/d; echo 1 >one/file
        ln -s keep one/link; echo 1 >one/kind/inside; echo 1 >one/both
        echo 2 >two/keep-new; touch two/.wh.gone two/.wh.file two/opaque/.wh..wh..opq; echo 2 >two/opaque/new/e
        mkdir two/link; echo 2 >two/link/f; echo 2 >two/kind; touch two/.wh.both; echo 2 >two/both; touch two/.wh.never
        tar -C one -cf one.tar . && tar -C two --sort=name -cf two.tar . && tar -C two --sort=none -cf other.tar $(ls -A two | sort -r)",
    );
    let layer = Options {
        whiteouts: true,
        ..Options::default()
    };
    for second in ["two.tar", "other.tar"] {
        let ours = here.join(format!("ours-{second}"));
        for name in ["one.tar", second] {
            unpacked(&std::fs::read(here.join(name)).unwrap(), &ours, &layer).unwrap();
        }
        let found = shell(&ours, "find . | LC_ALL=C sort; cat both kind link/f");
        assert_eq!(
            found.split_whitespace().collect::<Vec<_>>(),
            [
                ".",
                "./both",
                "./keep",
                "./keep-new",
                "./keep/a",
                "./kind",
                "./kind.d",
                "./link",
                "./link/f",
                "./opaque",
                "./opaque/new",
                "./opaque/new/e",
                "2",
                "2",
                "2"
            ],
            "{second}"
        );
    }
}

/// An archive made by Python's tarfile, which writes whatever it is told.
fn hostile(here: &Path, script: &str) -> Vec<u8> {
    let python = format!(
        "import io, tarfile\nt = tarfile.open('x.tar', 'w', format=tarfile.PAX_FORMAT)\n\
         def add(name, kind=tarfile.REGTYPE, link='', data=b''):\n\
         \ti = tarfile.TarInfo(name); i.type = kind; i.linkname = link; i.size = len(data); i.mode = 0o755\n\
         \tt.addfile(i, io.BytesIO(data))\n{script}\nt.close()\n"
    );
    let out = Command::new("python3")
        .args(["-c", &python])
        .current_dir(here)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    std::fs::read(here.join("x.tar")).unwrap()
}

#[test]
fn nothing_leads_out_of_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::create_dir(here.join("canary")).unwrap();
    std::fs::write(here.join("canary/file"), "safe").unwrap();
    let before = look(&here.join("canary"));
    let canary = here.join("canary").display().to_string();
    let (sym, hard) = ("tarfile.SYMTYPE", "tarfile.LNKTYPE");
    for (i, (script, good)) in [
        ("add('../canary/evil', data=b'x')".to_owned(), false),
        ("add('a/../../canary/evil', data=b'x')".to_owned(), false),
        (format!("add('l', {sym}, '../canary')\nadd('l/evil', data=b'x')"), false),
        (format!("add('l', {sym}, '{canary}')\nadd('l/evil', data=b'x')"), false),
        (format!("add('l', {sym}, '../canary/file')\nadd('l', data=b'x')"), true),
        (format!("add('h', {hard}, '../canary/file')"), false),
        (format!("add('h', {hard}, '{canary}/file')\nadd('h', data=b'x')"), false),
        (format!("add('l', {sym}, '../canary')\nadd('h', {hard}, 'l/file')"), false),
        (format!("add('l', {sym}, '../canary')\nadd('l', tarfile.DIRTYPE)\nadd('l/evil', data=b'x')"), true),
        ("add('/etc/absolute', data=b'x')".to_owned(), true),
        (format!("add('d', tarfile.DIRTYPE)\nadd('h', {hard}, 'd')"), false),
        ("add('f', data=b'x')\nadd('f/below', data=b'x')".to_owned(), false),
        ("add('n' * 300, data=b'x')".to_owned(), false),
        ("add('d/' * 300 + 'x', data=b'x')".to_owned(), false),
        ("add('f', data=b'1')\nadd('f', data=b'22')\nadd('f', tarfile.DIRTYPE)\nadd('f/x', data=b'3')".to_owned(), true),
    ]
    .iter()
    .enumerate()
    {
        let archive = hostile(here, script);
        let ours = here.join(format!("ours-{i}"));
        let result = unpacked(&archive, &ours, &Options::default());
        match result {
            Ok(_) => assert!(good, "{script}"),
            Err(failure) => {
                assert!(!good, "{script}: {failure}");
                assert_eq!(failure.class(), Class::Integrity, "{script}: {failure}");
            }
        }
        assert_eq!(look(&here.join("canary")), before, "{script}");
    }
    assert!(here.join("ours-9/etc/absolute").exists());
    assert!(!Path::new("/etc/absolute").exists());
}

#[test]
fn an_archive_has_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let archive = hostile(
        here,
        "for n in range(2000): add(f'dev{n}', tarfile.CHRTYPE)",
    );
    let few = Options {
        limits: Limits {
            entries: 1000,
            ..Limits::default()
        },
        ..Options::default()
    };
    let failure = unpacked(&archive, &here.join("ours"), &few).unwrap_err();
    assert!(
        failure.to_string().contains("more than 1000 entries"),
        "{failure}"
    );
    // A full file system says what it has.
    shell(
        here,
        "mkdir full && mount -t tmpfs -o size=1m,nr_inodes=1000 full full",
    );
    let big = hostile(here, "add('big', data=b'x' * 2000000)");
    let failure = unpacked(&big, &here.join("full"), &Options::default()).unwrap_err();
    let many = unpacked(&archive, &here.join("full"), &Options::default()).unwrap_err();
    shell(here, "umount full");
    assert_eq!(failure.class(), Class::Space, "{failure}");
    assert!(failure.to_string().contains("1.0 MiB"), "{failure}");
    assert_eq!(many.class(), Class::Space, "{many}");
    assert!(many.to_string().contains("of 1000 inodes free"), "{many}");
}

#[test]
fn names_are_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let archive = hostile(here, r"add('caf\udce9', data=b'x')");
    let ours = here.join("ours");
    unpacked(&archive, &ours, &Options::default()).unwrap();
    assert!(ours.join(OsStr::from_bytes(b"caf\xe9")).exists());
}
