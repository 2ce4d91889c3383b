//! Handing one module file to the kernel: finit_module(2), compressed or not.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module, init_module};

/// `MODULE_INIT_COMPRESSED_FILE` of linux/module.h, since Linux 5.17 (`CONFIG_MODULE_DECOMPRESS`).
const COMPRESSED: ModuleInitFlags = ModuleInitFlags::from_bits_retain(4);

/// The largest module that is unpacked here; amdgpu has 30 MiB.
const LARGEST: u64 = 128 << 20;

/// How a module file is compressed, by its name: what depmod and the kernel's build call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    fn of(path: &Path) -> Packing {
        match path.extension().and_then(|e| e.to_str()) {
            Some("gz") => Packing::Gzip,
            Some("xz") => Packing::Xz,
            Some("zst") => Packing::Zstd,
            _ => Packing::None,
        }
    }
}

/// Loads one module. `Ok(false)`: it was loaded already.
///
/// # Errors
/// The kernel's, or those of reading and unpacking the file.
pub fn insert(path: &Path, parameters: &str) -> io::Result<bool> {
    let parameters = CString::new(parameters).map_err(|_| io::ErrorKind::InvalidInput)?;
    let file = File::open(path)?;
    let packing = Packing::of(path);
    let flags = match packing {
        Packing::None => ModuleInitFlags::empty(),
        Packing::Gzip | Packing::Xz | Packing::Zstd => COMPRESSED,
    };
    let result = match finit_module(&file, &parameters, flags) {
        // A kernel that does not unpack (EINVAL: no such flag, EOPNOTSUPP), or not this format (ENOEXEC).
        Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOEXEC) if packing != Packing::None => {
            init_module(&unpack(File::open(path)?, packing)?, &parameters)
        }
        other => other,
    };
    match result {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn unpack(file: impl Read, packing: Packing) -> io::Result<Vec<u8>> {
    let reader: Box<dyn Read> = match packing {
        Packing::None => Box::new(file),
        Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Packing::Xz => Box::new(liblzma::read::XzDecoder::new_multi_decoder(file)),
        Packing::Zstd => Box::new(zstd::Decoder::new(file)?),
    };
    let mut image = Vec::new();
    reader
        .take(LARGEST.saturating_add(1))
        .read_to_end(&mut image)?;
    if u64::try_from(image.len()).unwrap_or(u64::MAX) > LARGEST {
        return Err(io::Error::other("larger than any module"));
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn packing_is_told_by_the_name() {
        assert_eq!(Packing::of(Path::new("a/b.ko")), Packing::None);
        assert_eq!(Packing::of(Path::new("a/b.ko.zst")), Packing::Zstd);
        assert_eq!(Packing::of(Path::new("a/b.ko.xz")), Packing::Xz);
        assert_eq!(Packing::of(Path::new("a/b.ko.gz")), Packing::Gzip);
    }

    #[test]
    fn what_depmod_may_pack_is_unpacked() {
        let text = b"\x7fELF module".repeat(1000);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&text).unwrap();
        let gz = gz.finish().unwrap();
        assert_eq!(unpack(gz.as_slice(), Packing::Gzip).unwrap(), text);
        let zst = zstd::encode_all(text.as_slice(), 1).unwrap();
        assert_eq!(unpack(zst.as_slice(), Packing::Zstd).unwrap(), text);
        assert!(unpack(&zst[..zst.len() - 2], Packing::Zstd).is_err());
        let mut xz = std::process::Command::new("xz")
            .args(["--check=crc32", "-c"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("xz (Debian: xz-utils) is needed for this test");
        xz.stdin.take().unwrap().write_all(&text).unwrap();
        let xz = xz.wait_with_output().unwrap().stdout;
        assert_eq!(unpack(xz.as_slice(), Packing::Xz).unwrap(), text);
    }

    #[test]
    fn a_missing_file_is_an_error_of_the_file() {
        let error = insert(Path::new("/nonexistent/x.ko"), "").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
