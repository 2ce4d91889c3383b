//! A file system image below an overlay: read-only itself, what is written goes to a tmpfs, or to a file system on a
//! disk that outlives the session.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::hold::Held;
use super::lower::{self, IMAGE};
use super::mounts::Mounts;
use super::selinux;
use crate::config::request::Verity;
use crate::error::{Class, Context as _, Failure, Result};
use crate::init::modules;
use crate::plan::memory_root::{Room, RootLayout};
use crate::plan::preserve::Upper;
use crate::report::Reporter;
use crate::run::preserve::layer::{self, Layer};
use crate::run::preserve::{place, source};
use crate::sys::beneath::{Root, Walk};
use crate::sys::detached::{Flags, Overlay, Tmpfs};
use crate::sys::mount;

/// The image, mounted.
pub const LOWER: &str = "/run/ironroot/lower";

/// What is written.
const UPPER: &str = "/run/ironroot/upper";

/// The two directories of an upper layer in memory.
pub(super) const DATA: &str = "data";
pub(super) const WORK: &str = "work";

/// How [`mount`] makes a root.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    /// What the image is.
    pub layout: &'a RootLayout,
    /// The limits.
    pub room: &'a Room,
    /// How the image is proven while it is read.
    pub verity: Option<&'a Verity>,
    /// Where what is written is kept; `None`: in memory.
    pub upper: Option<&'a Upper>,
}

/// Mounts `held` below an overlay at `place`.
pub fn mount(
    held: Held,
    place: &Path,
    making: Making<'_>,
    made: &mut Mounts,
    reporter: &Reporter,
) -> Result<()> {
    let Making {
        layout,
        room,
        verity,
        upper,
    } = making;
    let Held {
        tmpfs,
        file,
        length,
    } = held;
    made.attach(tmpfs, Path::new(IMAGE))?;
    // Nothing is added to it any more.
    mount::resize(Path::new(IMAGE), length)?;
    let lower = lower::mount(&file, length, verity, layout)?;
    made.attach(lower, Path::new(LOWER))?;
    modules::want("overlay");
    let label = selinux::root_context(Path::new(LOWER));
    let overlay = |upper: &Path, work: &Path| {
        Overlay {
            lower: Path::new(LOWER),
            upper,
            work,
            root_context: label.as_deref(),
            name: "ironroot",
        }
        .mount_with_label(Flags::ROOT)
    };
    let (root, labelled) = if let Some(upper) = upper {
        let Layer { upper, work } = on_disk(upper, made, reporter)?;
        // A descriptor cannot be led anywhere, and has no characters that mean something to the kernel here.
        let path = |fd: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        overlay(&path(&upper), &path(&work))?
    } else {
        in_memory(layout, room, made)?;
        let upper = Path::new(UPPER);
        overlay(&upper.join(DATA), &upper.join(WORK))?
    };
    // On a disk the directory has a label of its own.
    let unlabelled = label.is_some() && !labelled && upper.is_none();
    if unlabelled && selinux::is_enforcing(Path::new(LOWER), &crate::init::cmdline()) {
        reporter.warn(
            "the image enforces SELinux, and this kernel takes no label for the root before a policy is loaded: \
             `/` itself will have that of a tmpfs until something relabels it",
        );
    }
    made.attach(root, place)
}

/// Mode and owner of the image's root: an overlay's root has those of its upper layer.
fn model() -> Result<(u32, u32, u32)> {
    let model = std::fs::metadata(LOWER).context(Class::Media, || format!("looking at {LOWER}"))?;
    Ok((model.mode() & 0o7777, model.uid(), model.gid()))
}

fn in_memory(layout: &RootLayout, room: &Room, made: &mut Mounts) -> Result<()> {
    let tmpfs = Tmpfs {
        size: layout.size,
        inodes: room.inodes,
        mode: 0o700,
        interleave: room.interleave,
        name: "ironroot-upper".to_owned(),
    };
    made.attach(tmpfs.mount(Flags::ROOT)?, Path::new(UPPER))?;
    let top = Root::open(Path::new(UPPER))?;
    let data = top.make_directory(Path::new(DATA), 0o755, Walk::NoLinks)?;
    place::give(&data, model()?, Path::new(UPPER))?;
    selinux::label_like(Path::new(LOWER), &data);
    top.make_directory(Path::new(WORK), 0o700, Walk::NoLinks)?;
    Ok(())
}

/// What another session wrote is there again.
fn on_disk(wanted: &Upper, made: &mut Mounts, reporter: &Reporter) -> Result<Layer> {
    let attributes = model()?;
    let mut take = || -> Result<Layer> {
        let source = source::open(&wanted.source, made, reporter)?;
        let layer = layer::directories(&source, &wanted.subdir, &attributes.into())?;
        selinux::label_like(Path::new(LOWER), &layer.upper);
        Ok(layer)
    };
    take().map_err(|failure| {
        let hint = failure.next().to_owned();
        Failure::new(
            Class::Preserve,
            format!("what is written cannot be kept on {}", wanted.source),
        )
        .caused_by(failure)
        .hint(hint)
    })
}
