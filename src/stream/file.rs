//! Bytes from a local file or block device.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

use crate::error::{Class, Context as _, Failure, Result, printable};

/// Opens `path` for reading from `offset` to its end, and says how long it is.
pub(super) fn open(path: &Path, offset: u64) -> Result<(File, u64)> {
    let name = || printable(&path.to_string_lossy());
    let about = |what: &str| format!("{what} {}", name());
    // Looked at before it is opened: opening a FIFO would wait for a writer.
    let kind = std::fs::metadata(path)
        .context(Class::Network, || about("finding"))
        .map_err(Failure::permanent)?
        .file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::new(
            Class::Config,
            format!("{} is neither a regular file nor a block device", name()),
        ));
    }
    let mut file = File::options()
        .read(true)
        .custom_flags((OFlag::O_NOCTTY | OFlag::O_NONBLOCK).bits())
        .open(path)
        .context(Class::Network, || about("opening"))
        .map_err(Failure::permanent)?;
    // The only way that gives the size of a file and of a block device alike.
    let len = file
        .seek(SeekFrom::End(0))
        .and_then(|len| file.seek(SeekFrom::Start(offset)).map(|_| len))
        .context(Class::Media, || about("measuring"))?;
    // A wish: reading works without it.
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
    Ok((file, len))
}

/// Fills the start of `out`; 0 at the end of the file.
pub(super) fn read(file: &mut File, out: &mut [u8]) -> Result<usize> {
    loop {
        match file.read(out) {
            Ok(count) => return Ok(count),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Failure::new(Class::Media, "reading").caused_by(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_knows_its_length_and_starts_where_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"0123456789").unwrap();
        let (mut file, len) = open(&path, 7).unwrap();
        let mut out = [0; 8];
        assert_eq!((len, read(&mut file, &mut out).unwrap()), (10, 3));
        assert_eq!(&out[..3], b"789");
        assert_eq!(read(&mut file, &mut out).unwrap(), 0);
    }

    #[test]
    fn what_is_not_a_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (path, class) in [
            (fifo.as_path(), Class::Config),
            (dir.path(), Class::Config),
            (Path::new("/dev/null"), Class::Config),
            (&dir.path().join("missing"), Class::Network),
        ] {
            let failure = open(path, 0).unwrap_err();
            assert_eq!(failure.class(), class, "{failure}");
            assert!(!failure.is_transient());
        }
    }
}
