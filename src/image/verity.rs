//! dm-verity: the superblock that `veritysetup format` writes before its hash tree, and the parameters for the
//! kernel (cryptsetup: lib/verity/verity.c, `struct verity_sb`; kernel: Documentation/admin-guide/device-mapper/
//! verity.rst). Pure.

use std::fmt::Write as _;
use std::path::Path;

use crate::units::Bytes;

/// How long a superblock is.
pub const SUPERBLOCK: usize = 512;

/// What a superblock says of data and hash tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    hash_type: u32,
    algorithm: String,
    data_block: u32,
    hash_block: u32,
    data_blocks: u64,
    salt: Vec<u8>,
}

/// Reads a superblock; the error says what it lacks.
pub fn read(bytes: &[u8]) -> Result<Superblock, &'static str> {
    let field = |at: usize, length: usize| bytes.get(at..at.saturating_add(length));
    let word =
        |at: usize| -> Option<u32> { Some(u32::from_le_bytes(field(at, 4)?.try_into().ok()?)) };
    let short = "its superblock is cut short";
    if bytes.len() < SUPERBLOCK {
        return Err(short);
    }
    if field(0, 8) != Some(b"verity\0\0") {
        return Err("no superblock of dm-verity is there");
    }
    if word(8) != Some(1) {
        return Err("its superblock has another version than 1");
    }
    let salt_size = field(80, 2).and_then(|b| Some(u16::from_le_bytes(b.try_into().ok()?)));
    let algorithm: Vec<u8> = field(32, 32)
        .ok_or(short)?
        .iter()
        .copied()
        .take_while(|b| *b != 0)
        .collect();
    let data_blocks = field(72, 8).and_then(|b| Some(u64::from_le_bytes(b.try_into().ok()?)));
    let found = Superblock {
        hash_type: word(12).ok_or(short)?,
        // It becomes a word of a line.
        algorithm: String::from_utf8(algorithm)
            .ok()
            .filter(|a| {
                !a.is_empty()
                    && a.bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"-_()".contains(&b))
            })
            .ok_or("its hash algorithm makes no sense")?,
        data_block: word(64).ok_or(short)?,
        hash_block: word(68).ok_or(short)?,
        data_blocks: data_blocks.ok_or(short)?,
        salt: field(88, usize::from(salt_size.ok_or(short)?).min(256))
            .ok_or(short)?
            .to_vec(),
    };
    let is_block = |size: u32| size.is_power_of_two() && (512..=65536).contains(&size);
    if !is_block(found.data_block) || !is_block(found.hash_block) || found.hash_type > 1 {
        return Err("its block sizes make no sense");
    }
    if found.data_length().is_none() {
        return Err("its length makes no sense");
    }
    Ok(found)
}

impl Superblock {
    /// Length of what is proven.
    pub fn data_length(&self) -> Option<Bytes> {
        self.data_blocks
            .checked_mul(u64::from(self.data_block))
            .filter(|length| *length > 0)
            .map(Bytes)
    }

    /// The target's parameters for data and hash tree on `device`, the superblock at `hash_offset`. `None` where
    /// the offset cannot be.
    pub fn parameters(&self, device: &Path, hash_offset: Bytes, root_hash: &str) -> Option<String> {
        let block = u64::from(self.hash_block);
        if !hash_offset.0.is_multiple_of(block) {
            return None;
        }
        let first = (hash_offset.0 / block).checked_add(1)?;
        let mut salt = String::new();
        for byte in &self.salt {
            write!(salt, "{byte:02x}").ok()?;
        }
        if salt.is_empty() {
            salt.push('-');
        }
        let device = device.display();
        Some(format!(
            "{} {device} {device} {} {} {} {first} {} {root_hash} {salt}",
            self.hash_type, self.data_block, self.hash_block, self.data_blocks, self.algorithm
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `veritysetup format` on a file of 64 KiB, with its tree behind the data.
    fn formatted() -> (Vec<u8>, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(65536).unwrap();
        let path = file.path().to_str().unwrap();
        let out = std::process::Command::new("veritysetup")
            .args([
                "format",
                "--hash-offset=65536",
                "--data-blocks=16",
                "--salt=abcd",
                path,
                path,
            ])
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let text = String::from_utf8(out.stdout).unwrap();
        let root = text
            .lines()
            .find_map(|l| l.strip_prefix("Root hash:"))
            .unwrap()
            .trim()
            .to_owned();
        (std::fs::read(file.path()).unwrap(), root)
    }

    #[test]
    fn what_veritysetup_wrote_becomes_the_kernels_parameters() {
        let (image, root) = formatted();
        let superblock = read(&image[65536..]).unwrap();
        assert_eq!(superblock.data_length(), Some(Bytes(65536)));
        let parameters = superblock.parameters(Path::new("/dev/loop0"), Bytes(65536), &root);
        assert_eq!(
            parameters.unwrap(),
            format!("1 /dev/loop0 /dev/loop0 4096 4096 16 17 sha256 {root} abcd")
        );
        assert_eq!(
            superblock.parameters(Path::new("/dev/loop0"), Bytes(65536 + 512), &root),
            None
        );
        assert!(read(&image[..SUPERBLOCK]).is_err());
        assert!(read(&image[65536..65536 + 500]).is_err());
    }

    proptest! {
        #[test]
        fn any_superblock_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
            let mut with_magic = b"verity\0\0\x01\0\0\0".to_vec();
            with_magic.extend(&bytes);
            if let Ok(found) = read(&with_magic) {
                let _ = found.parameters(Path::new("/dev/loop0"), Bytes(1 << 20), "00");
            }
        }
    }
}
