//! What the tests of trees share: a place of their own, everything that an entry is, and archives made by hand.
#![allow(
    dead_code, // each test program uses a part
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unnecessary_debug_formatting // names have bytes that are no text
)]

pub mod torture;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ironroot::error::{Class, chain};
use ironroot::image::tree::{Census, Options, unpack};
use ironroot::sys::beneath::Root;
use ironroot::sys::mount::{self, Flags};
use ironroot::sys::xattr::{self, Of};
use nix::sched::{CloneFlags, unshare};
use sha2::{Digest as _, Sha256};

/// Runs `test` in a thread whose mounts nobody else sees, with an empty tmpfs. Needs root.
pub fn isolated(options: &'static str, test: impl FnOnce(&Path) + Send + 'static) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_owned();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)
            .expect("a mount namespace of its own (these tests need root)");
        mount::make_private(Path::new("/")).unwrap();
        // It goes with the namespace.
        mount::attach(Path::new("test"), &path, "tmpfs", Flags::empty(), options).unwrap();
        test(&path);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// An empty directory of this name, as a root.
pub fn directory(place: &Path, name: &str) -> (PathBuf, Root) {
    let path = place.join(name);
    std::fs::create_dir(&path).unwrap();
    let root = Root::open(&path).unwrap();
    (path, root)
}

/// Unpacks bytes into a root.
pub fn unpacked(bytes: &[u8], root: &Root) -> Census {
    let mut source = bytes;
    match unpack(&mut source, root, &Options::default()) {
        Ok(census) => census,
        Err(failure) => panic!("{}", chain(&failure)),
    }
}

/// Unpacks bytes into a root, as a layer.
pub fn layered(bytes: &[u8], root: &Root) -> Census {
    let mut source = bytes;
    let options = Options {
        whiteouts: true,
        ..Options::default()
    };
    match unpack(&mut source, root, &options) {
        Ok(census) => census,
        Err(failure) => panic!("{}", chain(&failure)),
    }
}

/// Class and text of what unpacking these bytes fails with.
pub fn refused(bytes: &[u8], root: &Root) -> (Class, String) {
    let mut source = bytes;
    let failure = unpack(&mut source, root, &Options::default()).expect_err("a refusal");
    (failure.class(), chain(&failure))
}

/// Runs a program; its output.
pub fn run(program: &str, arguments: &[&OsStr], directory: &Path) -> Vec<u8> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e} (scripts/test installs it)"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    output.stdout
}

/// A shell script with `set -eu`.
pub fn shell(script: &str, directory: &Path) -> Vec<u8> {
    let script = format!("set -eu\n{script}");
    run("bash", &["-c".as_ref(), script.as_ref()], directory)
}

/// Everything that an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    /// Of everything but directories.
    pub size: u64,
    pub device: u64,
    pub link: Option<PathBuf>,
    pub content: Option<String>,
    /// The first path of the same file, where it has several.
    pub first: Option<PathBuf>,
    pub names: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Kilobytes in use, in steps of 64, so that a few blocks more or less do not count.
    pub in_use: u64,
}

/// All entries below a directory, itself included, by their paths.
pub fn walk(top: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    let mut paths = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
            paths.push(entry.path());
        }
    }
    paths.sort();
    for path in paths {
        let relative = path.strip_prefix(top).unwrap().to_owned();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        let entry = entry(&path, &relative, &metadata, &mut firsts);
        found.insert(relative, entry);
    }
    found
}

fn entry(
    path: &Path,
    relative: &Path,
    metadata: &Metadata,
    firsts: &mut BTreeMap<u64, PathBuf>,
) -> Entry {
    let kind = metadata.file_type();
    let is_node = kind.is_char_device() || kind.is_block_device();
    let several = !kind.is_dir() && metadata.nlink() > 1;
    let first = several.then(|| {
        let first = firsts.entry(metadata.ino());
        first.or_insert_with(|| relative.to_owned()).clone()
    });
    Entry {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        mtime: (metadata.mtime(), metadata.mtime_nsec()),
        size: if kind.is_dir() { 0 } else { metadata.size() },
        device: if is_node { metadata.rdev() } else { 0 },
        link: kind.is_symlink().then(|| std::fs::read_link(path).unwrap()),
        content: kind.is_file().then(|| hash(path)),
        first,
        names: if kind.is_dir() { 0 } else { metadata.nlink() },
        xattrs: xattrs(path),
        in_use: if kind.is_file() {
            metadata.blocks() / 2 / 64
        } else {
            0
        },
    }
}

fn hash(path: &Path) -> String {
    let mut hash = Sha256::new();
    // A file of gigabytes that is a hole would take minutes; its data lies in front and behind.
    let file = std::fs::File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let got = file.read_at(&mut buffer, at).unwrap();
        hash.update(&buffer[..got]);
        at += got as u64;
        if size > 1 << 30 && at >= 1 << 24 && at < size - (1 << 24) {
            at = size - (1 << 24);
        }
    }
    hash.finalize()
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Attributes, ACLs among them, of whatever kind of entry.
pub fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let (parent, name) = match path.file_name() {
        Some(name) => (path.parent().unwrap(), name),
        None => (path, OsStr::new(".")),
    };
    let parent = std::fs::File::open(parent).unwrap();
    let of = Of::Entry(parent.as_fd(), name);
    let names = xattr::list(of).unwrap().into_iter();
    names
        .map(|name| {
            let value = xattr::get(of, &name).unwrap().unwrap();
            (String::from_utf8(name).unwrap(), value)
        })
        .collect()
}

/// Fails with every difference between two trees.
pub fn assert_same(what: &str, wanted: &BTreeMap<PathBuf, Entry>, got: &BTreeMap<PathBuf, Entry>) {
    let mut differences = String::new();
    for (path, entry) in wanted {
        match got.get(path) {
            None => differences.push_str(&format!("{path:?}: missing\n")),
            Some(other) if other != entry => {
                differences.push_str(&format!(
                    "{path:?}:\n  wanted {entry:?}\n  got    {other:?}\n"
                ));
            }
            Some(_) => {}
        }
    }
    for path in got.keys().filter(|path| !wanted.contains_key(*path)) {
        differences.push_str(&format!("{path:?}: nobody wants it\n"));
    }
    assert!(differences.is_empty(), "{what}:\n{differences}");
}

/// Without the attributes that are never set.
pub fn without_trusted(mut tree: BTreeMap<PathBuf, Entry>) -> BTreeMap<PathBuf, Entry> {
    for entry in tree.values_mut() {
        entry.xattrs.retain(|name, _| !name.starts_with("trusted."));
    }
    tree
}

/// An archive made by hand.
#[derive(Clone, Default)]
pub struct Made(pub Vec<u8>);

impl Made {
    pub fn new() -> Made {
        Made::default()
    }

    /// An entry of this kind; `link` is what links point to.
    pub fn entry(mut self, kind: u8, name: &[u8], link: &[u8], content: &[u8]) -> Made {
        if link.len() > 100 {
            self = self.pax(&[("path", name), ("linkpath", link)]);
        } else if name.len() > 100 {
            self = self.pax(&[("path", name)]);
        }
        let link = &link[..link.len().min(100)];
        let mut header = tar::Header::new_gnu();
        let old = header.as_old_mut();
        let short = &name[..name.len().min(100)];
        old.name[..short.len()].copy_from_slice(short);
        old.linkname[..link.len()].copy_from_slice(link);
        old.linkflag = [kind];
        header.set_size(content.len() as u64);
        header.set_mode(if kind == b'5' { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        if matches!(kind, b'3' | b'4') {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, name: &str, content: &str) -> Made {
        self.entry(b'0', name.as_bytes(), b"", content.as_bytes())
    }

    pub fn dir(self, name: &str) -> Made {
        self.entry(b'5', name.as_bytes(), b"", b"")
    }

    pub fn symlink(self, name: &str, text: &str) -> Made {
        self.entry(b'2', name.as_bytes(), text.as_bytes(), b"")
    }

    pub fn hard(self, name: &str, target: &str) -> Made {
        self.entry(b'1', name.as_bytes(), target.as_bytes(), b"")
    }

    /// An extended header for the next entry.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Made {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = 3 + key.len() + value.len();
            let mut length = rest + 1;
            while length.to_string().len() + rest != length {
                length += 1;
            }
            text.extend_from_slice(format!("{length} {key}=").as_bytes());
            text.extend_from_slice(value);
            text.push(b'\n');
        }
        self.entry(b'x', b"header", b"", &text)
    }

    /// With its end mark.
    pub fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}
