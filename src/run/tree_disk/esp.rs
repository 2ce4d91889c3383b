//! The FAT of an EFI system partition, made and filled without the kernel: not every kernel has vfat.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::libc;

use super::rooted::space_or_media;
use crate::error::{Class, Context as _, Result};
use crate::image::fat::{FatWriter, Volume};
use crate::run::partitions::Node;
use crate::units::SectorSize;

/// Its label.
const LABEL: &str = "ESP";

/// Opens the partition for writing.
pub fn open(node: &Node) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(&node.path)
        .context(Class::Media, || format!("opening {}", node.path.display()))
}

/// A file system that is being made and filled. There is none until [`Esp::finish`].
#[derive(Debug)]
pub struct Esp<'f> {
    fat: FatWriter<'f>,
    what: String,
}

impl<'f> Esp<'f> {
    /// Begins a new one on `file`, which is `node`. The volume's number is the beginning of `uuid`.
    pub fn new(file: &'f File, node: &Node, sector: SectorSize, uuid: &str) -> Result<Esp<'f>> {
        let what = format!("the EFI system partition {}", node.path.display());
        let number = uuid
            .get(..8)
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let volume = Volume {
            size: node.place.size,
            start: node.place.start,
            sector,
            label: LABEL,
            number: number.unwrap_or_default(),
        };
        let fat = FatWriter::new(file, volume)
            .map_err(|e| space_or_media(&format!("making a FAT on {what}"), e))?;
        Ok(Esp { fat, what })
    }

    /// Adds a file; `path` has slashes, and missing directories are made. Answers how many bytes it has.
    pub fn add(&mut self, path: &str, content: &mut dyn Read) -> Result<u64> {
        self.fat
            .add(path, content)
            .map_err(|e| space_or_media(&format!("writing {path} to {}", self.what), e))
    }

    /// Makes it a file system, on the medium.
    pub fn finish(self) -> Result<()> {
        self.fat
            .finish()
            .map_err(|e| space_or_media(&format!("writing {}", self.what), e))
    }
}
