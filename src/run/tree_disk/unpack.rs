//! The tree goes into the root partition. An archive is unpacked while it comes; the image of a file system is kept
//! as a nameless file of the root, proven, and only then mounted and copied.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::read_back::Remembered;
use super::rooted::{self, Rooted};
use super::{Incoming, Origin, kernels};
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::superblock::FileSystem;
use crate::image::tree::{self, Content, Ledger};
use crate::init::modules;
use crate::plan::tree_root::TreeImage;
use crate::report::Reporter;
use crate::run::image_source::{self, Parts};
use crate::run::memory::blocks::BlockReader;
use crate::run::partitions::Node;
use crate::run::zeros;
use crate::stream::{Block, ImageStream, Verified};
use crate::sys::beneath::{Root, Walk};
use crate::sys::detached;
use crate::sys::loopdev::{LoopDevice, Range};
use crate::units::{Bytes, SectorSize};

const STEP: &str = "unpackTree";

/// What mke2fs makes, and e2fsck again where it needs it.
const LOST_AND_FOUND: &str = "lost+found";

/// Unpacks what comes from `origin` into `node`, and gives the verdict. With `remember`, what was written can be compared with what
/// is read back.
pub(super) fn unpack(
    origin: Origin,
    node: &Node,
    remember: bool,
    reporter: &Reporter,
) -> Result<(Verified, Option<Remembered>)> {
    let mut ledger = remember.then(Ledger::default);
    let rooted = Rooted::mount(node)?;
    // A tree that was made from a disk has one of its own.
    remove_lost_and_found(rooted.root())?;
    let proof = match origin {
        Origin::Image(incoming) => image(*incoming, &rooted, ledger.as_mut(), reporter)?,
        Origin::Running(running) => running.copy((&rooted, ledger.as_mut()), reporter)?,
    };
    let remembered = ledger
        .map(|ledger| Remembered::of(ledger, rooted.root()))
        .transpose()?;
    rooted.finish()?;
    Ok((proof, remembered))
}

fn image(
    incoming: Incoming,
    rooted: &Rooted,
    mut ledger: Option<&mut Ledger>,
    reporter: &Reporter,
) -> Result<Verified> {
    let Incoming {
        stream,
        first,
        mut parts,
        layered,
        image,
        at_least,
    } = incoming;
    match image {
        TreeImage::Tar => layers(
            (stream, first),
            &mut parts,
            layered,
            (rooted, ledger),
            reporter,
        ),
        TreeImage::FileSystem(fs) => {
            let (file, length, proof) = hold(stream, first, rooted, at_least, reporter)?;
            let into = (rooted, ledger.as_deref_mut());
            copy(&fs, (&file, length), into, reporter)?;
            drop(file);
            boot_files(&mut parts, (rooted.root(), ledger), reporter)?;
            Ok(proof)
        }
    }
}

fn remove_lost_and_found(root: &Root) -> Result<()> {
    let top = root.directory(Path::new(""), Walk::NoLinks)?;
    match unlinkat(&top, LOST_AND_FOUND, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno).context(Class::Media, || "removing lost+found"),
    }
}

/// Unpacks every layer over those before it. The last verdict stands for all: each was asked for.
fn layers(
    (stream, first): (ImageStream, Block),
    parts: &mut Parts,
    layered: bool,
    (rooted, mut ledger): (&Rooted, Option<&mut Ledger>),
    reporter: &Reporter,
) -> Result<Verified> {
    let options = tree::Options {
        whiteouts: layered,
        ..tree::Options::default()
    };
    let (mut stream, mut first) = (stream, first);
    let mut done = 0usize;
    loop {
        let mut reader = BlockReader::in_step(STEP, &mut stream, first, reporter);
        let ledger = ledger.as_deref_mut();
        let census = tree::unpack_remembering(&mut reader, rooted.root(), &options, ledger)?;
        for note in census.notes() {
            reporter.warn(note);
        }
        reporter.info(census.summary());
        let proof = finish(stream, reporter)?;
        done = done.saturating_add(1);
        let Some(mut next) = parts.next_stream()? else {
            debug_assert_eq!(done, parts.count());
            return Ok(proof);
        };
        let empty = || Failure::new(Class::Integrity, "a layer of the image is empty");
        first = next.next_block()?.ok_or_else(empty)?;
        stream = next;
    }
}

/// Keeps the image as a file of the root that has no name, and gives the verdict on it.
fn hold(
    mut stream: ImageStream,
    first: Block,
    rooted: &Rooted,
    at_least: Bytes,
    reporter: &Reporter,
) -> Result<(File, Bytes, Verified)> {
    let keeping = || "keeping the image beside the root";
    // It goes with its last user, also after a crash (open(2)).
    let file: File = openat(
        rooted.mount_fd(),
        ".",
        OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC,
        Mode::S_IRUSR | Mode::S_IWUSR,
    )
    .context(Class::Media, keeping)?
    .into();
    let mut at = 0u64;
    let mut reader = BlockReader::in_step(STEP, &mut stream, first, reporter);
    while let Some(block) = reader.next_block()? {
        for run in zeros::runs(&block).into_iter().filter(|run| !run.zero) {
            let place = at.saturating_add(run.range.start as u64);
            file.write_all_at(block.get(run.range).unwrap_or_default(), place)
                .map_err(|e| rooted::space_or_media(keeping(), e))?;
        }
        at = at.saturating_add(block.len() as u64);
    }
    // Holes at the end are part of it.
    file.set_len(at)
        .map_err(|e| rooted::space_or_media(keeping(), e))?;
    if at < at_least.0 {
        return Err(Failure::new(
            Class::Integrity,
            format!(
                "the image is cut short: it has {at} bytes and needs {}",
                at_least.0
            ),
        )
        .hint("publish the image again"));
    }
    let proof = finish(stream, reporter)?;
    Ok((file, Bytes(at), proof))
}

/// Copies what is in the file system image `file`, which is proven, into the root.
fn copy(
    fs: &FileSystem,
    (file, length): (&File, Bytes),
    (rooted, ledger): (&Rooted, Option<&mut Ledger>),
    reporter: &Reporter,
) -> Result<()> {
    modules::want("loop");
    modules::want(fs.name());
    // What a file system says of itself is a multiple of its blocks; a file may have a few bytes more.
    let whole = length.0 / SectorSize::S512.get() * SectorSize::S512.get();
    let range = Range {
        length: Some(Bytes(whole)),
        ..Range::WHOLE
    };
    let device = LoopDevice::attach(file, Path::new("ironroot-tree"), range)?;
    let options: Vec<(&str, Option<&str>)> =
        fs.read_only_options().iter().map(|o| (*o, None)).collect();
    let mount = detached::read_only(fs.name(), device.path(), &options).map_err(|failure| {
        Failure::new(
            Class::Integrity,
            format!("the image cannot be mounted as {fs}"),
        )
        .caused_by(failure)
        .hint(format!(
            "the image is damaged, or this kernel lacks {fs}: an initrd needs its module"
        ))
    })?;
    let from = Root::of(&mount.as_fd(), "the image")?;
    reporter.info(format!("copying the tree out of the {fs}"));
    let none = Path::new("");
    let (progress, to) = (AtomicU64::new(0), rooted.root());
    let census = tree::copy_remembering(&from, none, to, none, (&progress, ledger))?;
    for note in census.notes() {
        reporter.warn(note);
    }
    reporter.info(census.summary());
    drop(from);
    drop(mount);
    drop(device);
    Ok(())
}

/// The kernel and the initrd that an image in a registry has beside its root, where the root has no kernel.
fn boot_files(
    parts: &mut Parts,
    (root, mut ledger): (&Root, Option<&mut Ledger>),
    reporter: &Reporter,
) -> Result<()> {
    if !kernels::find(root)?.is_empty() {
        return Ok(());
    }
    for prefix in ["vmlinuz-", "initrd.img-"] {
        let Some(mut stream) = parts.next_file()? else {
            return Ok(());
        };
        let name = format!("{prefix}{}", kernels::modules_version(root)?);
        let path = Path::new("boot").join(&name);
        let writing = || format!("writing {} of the root", path.display());
        root.make_directories(Path::new("boot"), 0o755, Walk::InRoot)?;
        let file = root.create_file(&path, 0o600, Walk::InRoot)?;
        let mut at = 0u64;
        let mut sum = Content::default();
        while let Some(block) = stream.next_block()? {
            sum.put(at, &block);
            file.write_all_at(&block, at)
                .map_err(|e| rooted::space_or_media(&writing(), e))?;
            at = at.saturating_add(block.len() as u64);
        }
        finish(stream, reporter)?;
        if let Some(ledger) = ledger.as_deref_mut() {
            let stat = nix::sys::stat::fstat(&file).context(Class::Media, writing)?;
            ledger.remember(stat.st_ino, sum.finish(at))?;
        }
        reporter.info(format!("/boot/{name} comes from a layer of its own"));
    }
    Ok(())
}

/// The verdict on one part.
fn finish(stream: ImageStream, reporter: &Reporter) -> Result<Verified> {
    let proof = stream.finish()?;
    image_source::tell(&proof, reporter);
    Ok(proof)
}
