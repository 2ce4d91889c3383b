//! What a session needs beside its root, and what it is told.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::AtFlags;
use nix::sys::stat::fstat;
use nix::unistd::{Gid, Uid, fchownat};

use super::mounts::Mounts;
use super::overlay::{DATA, WORK};
use super::selinux;
use crate::error::{Class, Context as _, Result};
use crate::init::switch_root;
use crate::plan::memory_root::{self, RootLayout};
use crate::report::Reporter;
use crate::run::preserve::place;
use crate::stream::Verified;
use crate::sys::beneath::{Root, Walk};
use crate::sys::detached::{Flags, Overlay, Tmpfs};
use crate::units::{Bytes, Digest};

/// What the new system can read about its own boot.
pub const BOOT: &str = "/run/ironroot/boot.json";

/// Where what is written below volatile paths goes.
const VOLATILE: &str = "/run/ironroot/volatile";

/// What [`tell`] is given beside the image.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The image's name: its digest, else its URL without secrets.
    pub image: &'a str,
    /// Where the boot config came from, without secrets.
    pub config: &'a str,
    /// `metadata.name`.
    pub name: Option<&'a str>,
}

/// Writes [`BOOT`]. It holds no secrets, and only root reads it.
///
/// `upper` is the device that takes what is written; `None`: memory.
pub fn tell(
    told: &Told<'_>,
    proofs: &[Verified],
    layout: &RootLayout,
    upper: Option<&Path>,
) -> Result<()> {
    let sum = |bytes: fn(&Verified) -> Bytes| {
        proofs
            .iter()
            .fold(0u64, |sum, proof| sum.saturating_add(bytes(proof).0))
    };
    let digests = |of: fn(&Verified) -> Option<&Digest>| -> Vec<String> {
        proofs
            .iter()
            .filter_map(of)
            .map(ToString::to_string)
            .collect()
    };
    let text = serde_json::json!({
        "format": 1,
        "ironroot": env!("CARGO_PKG_VERSION"),
        "mode": "memory",
        "method": if layout.overlay { "overlay" } else { "extract" },
        "name": told.name,
        "config": told.config,
        "image": told.image,
        "imageKind": layout.image.to_string(),
        // One for each layer.
        "digests": digests(Verified::download_digest),
        "contentDigests": digests(Verified::content_digest),
        "proven": proofs.iter().all(Verified::is_proven),
        "downloadBytes": sum(Verified::received),
        "contentBytes": sum(Verified::content_length),
        // What memory takes.
        "writableBytes": upper.is_none().then_some(layout.size.0),
        "upper": upper,
    });
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(BOOT)?;
        serde_json::to_writer_pretty(&mut file, &text)?;
        std::io::Write::write_all(&mut file, b"\n")
    };
    write().context(Class::Handover, || format!("writing {BOOT}"))
}

/// A tmpfs at `path` of the root at `place`, with mode and owner of the directory that is there; one that is
/// missing is made.
pub fn scratch(
    place: &Path,
    path: &Path,
    size: Bytes,
    inodes: u64,
    made: &mut Mounts,
) -> Result<()> {
    // A link of the image leads to what is in the image, whatever it says.
    let target = Root::open(place)?.make_directories(path, 0o755, Walk::InRoot)?;
    let stat = fstat(&target).context(Class::Media, || {
        format!("looking at {} of the root", path.display())
    })?;
    let tmpfs = Tmpfs {
        size,
        inodes,
        mode: stat.st_mode & 0o7777,
        interleave: false,
        name: "ironroot-scratch".to_owned(),
    }
    .mount(Flags::ROOT)?;
    // The descriptor of a mount is one that stands for a place only, which fchown(2) does not take.
    fchownat(
        &tmpfs,
        "",
        Some(Uid::from_raw(stat.st_uid)),
        Some(Gid::from_raw(stat.st_gid)),
        AtFlags::AT_EMPTY_PATH,
    )
    .context(Class::Media, || {
        format!("setting the owner of the tmpfs at {}", path.display())
    })?;
    made.attach_to(
        tmpfs,
        target.as_fd(),
        &place.join(path.strip_prefix("/").unwrap_or(path)),
    )
}

/// An overlay at `path` of the root at `place`: what the root has there, and a tmpfs that takes what is written.
/// `number` tells it from others.
pub fn volatile(
    place: &Path,
    path: &Path,
    number: usize,
    (size, inodes): (Bytes, u64),
    made: &mut Mounts,
) -> Result<()> {
    let target = Root::open(place)?.make_directories(path, 0o755, Walk::InRoot)?;
    let stat = fstat(&target).context(Class::Media, || {
        format!("looking at {} of the root", path.display())
    })?;
    let top = Path::new(VOLATILE).join(number.to_string());
    let tmpfs = Tmpfs {
        size,
        inodes,
        mode: 0o700,
        interleave: false,
        name: "ironroot-volatile".to_owned(),
    };
    made.attach(tmpfs.mount(Flags::ROOT)?, &top)?;
    let layer = Root::open(&top)?;
    let data = layer.make_directory(Path::new(DATA), 0o755, Walk::NoLinks)?;
    place::give(
        &data,
        (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid),
        path,
    )?;
    layer.make_directory(Path::new(WORK), 0o700, Walk::NoLinks)?;
    // A descriptor cannot be led anywhere, and has no characters that mean something to the kernel here.
    let lower = format!("/proc/self/fd/{}", target.as_raw_fd());
    let overlay = Overlay {
        lower: Path::new(&lower),
        upper: &top.join(DATA),
        work: &top.join(WORK),
        root_context: None,
        name: "ironroot-volatile",
    };
    made.attach_to(
        overlay.mount(Flags::ROOT)?,
        target.as_fd(),
        &place.join(path.strip_prefix("/").unwrap_or(path)),
    )
}

/// Checks that the root at `place` can be started.
pub fn check(place: &Path, init: Option<&str>, overlay: bool, reporter: &Reporter) -> Result<()> {
    let found = switch_root::find_init(place, init)?;
    switch_root::check_directories(place)?;
    let mut warnings = found.warnings;
    if let Ok(names) = nix::sys::utsname::uname() {
        let release = names.release().to_string_lossy();
        warnings.extend(switch_root::check_modules(place, &release));
    }
    // Our own PID 1 looks again before it switches, and says it then.
    if place != Path::new(memory_root::ROOT) {
        for warning in warnings {
            reporter.warn(warning);
        }
    }
    if !overlay {
        selinux::must_not_enforce(place, &crate::init::cmdline())?;
    }
    Ok(())
}
