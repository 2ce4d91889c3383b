//! Control nodes of drivers: misc devices with fixed numbers (Documentation/admin-guide/devices.txt, char 10).

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::error::{Class, Failure, Result};

/// Major number of misc devices.
const MISC: u64 = 10;

/// Opens the control node at `path`. Where it is missing it is made: opening it makes the kernel ask for `module`.
/// It goes again where that is in vain.
pub fn open(path: &Path, minor: u64, module: &str) -> Result<File> {
    let open = || File::options().read(true).write(true).open(path);
    let opened = open().or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        mknod(path, SFlag::S_IFCHR, mode, makedev(MISC, minor))?;
        open().inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
    });
    opened.map_err(|error| {
        Failure::new(Class::Media, format!("opening {}", path.display()))
            .caused_by(error)
            .hint(format!(
                "the kernel needs its module `{module}`: add it to the initrd"
            ))
    })
}
