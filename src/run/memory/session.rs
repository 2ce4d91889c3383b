//! What a session needs beside its root, and what it is told.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::mounts::Mounts;
use super::selinux;
use crate::error::{Class, Context as _, Failure, Result};
use crate::init::switch_root;
use crate::plan::memory_root::{self, RootLayout};
use crate::report::Reporter;
use crate::stream::Verified;
use crate::units::Bytes;

/// What the new system can read about its own boot.
pub const BOOT: &str = "/run/ironroot/boot.json";

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
pub fn tell(told: &Told<'_>, proof: &Verified, layout: &RootLayout) -> Result<()> {
    let text = serde_json::json!({
        "format": 1,
        "ironroot": env!("CARGO_PKG_VERSION"),
        "mode": "memory",
        "method": if layout.overlay { "overlay" } else { "extract" },
        "name": told.name,
        "config": told.config,
        "image": told.image,
        "imageKind": layout.image.to_string(),
        "digest": proof.download_digest().map(ToString::to_string),
        "contentDigest": proof.content_digest().map(ToString::to_string),
        "proven": proof.is_proven(),
        "downloadBytes": proof.received().0,
        "contentBytes": proof.content_length().0,
        "writableBytes": layout.size.0,
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

/// A tmpfs at `path` of the root at `place`, with mode and owner of the directory that is there.
pub fn scratch(
    place: &Path,
    path: &Path,
    size: Bytes,
    inodes: u64,
    made: &mut Mounts,
) -> Result<()> {
    let _ = (place, path, size, inodes, made);
    Err(Failure::new(
        Class::Config,
        "memory.scratch is not supported in this version",
    ))
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
