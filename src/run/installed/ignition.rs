//! The Ignition config of the first boot, where images of this kind look for it on the disk: Fedora CoreOS and
//! RHEL CoreOS in `ignition/config.ign` of the boot partition, Flatcar in `config.ign` of its OEM partition.

use std::path::Path;

use super::replace::{Like, replace};
use super::{APART, FLAGS, Installed, make_place};
use crate::error::{Class, Failure, Result};
use crate::report::Reporter;
use crate::sys::beneath::{Root, Walk};

/// Only root reads it: it may hold secrets (mode of a new file).
const SECRET: Like = Like::New(0o600);

/// Puts `config` where the installed system's Ignition looks.
///
/// # Errors
/// Class media where the image has no such place.
pub fn place(system: &Installed, config: &[u8], reporter: &Reporter) -> Result<()> {
    let named = |name: &str| {
        system
            .volumes
            .iter()
            .find(|v| v.partlabel.as_deref() == Some(name) || v.label.as_deref() == Some(name))
    };
    if let Some(oem) = named("OEM") {
        let place = Path::new(APART).join("oem");
        make_place(&place)?;
        let guard = oem.attach(&place, FLAGS, "")?;
        let written = Root::open(&place)
            .map_err(Failure::from)
            .and_then(|root| replace(&root, Path::new("/config.ign"), config, SECRET));
        guard.unmount()?;
        written?;
        reporter.info("Ignition config: /config.ign of the OEM partition");
        return Ok(());
    }
    // ignition-ostree's mark that the system has not started yet.
    for root in system.roots() {
        for directory in ["/boot", "/"].map(Path::new) {
            let mark = directory.join("ignition.firstboot");
            if root.exists(&mark, Walk::InRoot)? {
                let path = directory.join("ignition/config.ign");
                replace(root, &path, config, SECRET)?;
                reporter.info(format!("Ignition config: {}", path.display()));
                return Ok(());
            }
        }
    }
    Err(Failure::new(
        Class::Media,
        "the image has no place on its disk where Ignition looks for a config: neither an OEM partition nor ignition.firstboot on its boot partition",
    )
    .hint("leave out `ignition` and give its URL to the system by kernel argument: `disk.kernelArguments.append`: [\"ignition.config.url=…\"]"))
}
