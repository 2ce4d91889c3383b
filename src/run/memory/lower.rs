//! The image in memory as a mounted file system, which is only read.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::hold;
use crate::config::request::Verity;
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::superblock::{self, FileSystem};
use crate::image::verity;
use crate::init::modules;
use crate::plan::memory_root::{RootImage, RootLayout};
use crate::sys::detached::{self, Detached};
use crate::sys::dm::{Mapped, Target};
use crate::sys::loopdev::{LoopDevice, Range};
use crate::units::{Bytes, SectorSize};

/// The tmpfs with the image, which takes the memory that the image needs.
pub const IMAGE: &str = "/run/ironroot/image";

/// Name of the device that proves the image.
const VERITY: &str = "ironroot-root";

/// Mounts the image in `file`, of `length` bytes, without a place. The mount holds all that it needs.
pub fn mount(
    file: &std::fs::File,
    length: Bytes,
    verity: Option<&Verity>,
    layout: &RootLayout,
) -> Result<Detached> {
    let fs = file_system(file, layout)?;
    modules::want("loop");
    // What a file system says of itself is a multiple of its blocks; a file may have a few bytes more.
    let whole = length.0 / SectorSize::S512.get() * SectorSize::S512.get();
    let device = LoopDevice::attach(
        file,
        &Path::new(IMAGE).join(hold::NAME),
        Range {
            length: Some(Bytes(whole)),
            ..Range::WHOLE
        },
    )?;
    let proven = verity
        .map(|verity| verified(file, length, &device, verity))
        .transpose()?;
    let node = proven.as_ref().map_or(device.path(), Mapped::path);
    let options: Vec<(&str, Option<&str>)> =
        fs.read_only_options().iter().map(|o| (*o, None)).collect();
    detached::read_only(fs.name(), node, &options).map_err(|failure| damaged(&fs, failure))
}

/// The device through which every block is proven when it is read.
fn verified(
    file: &std::fs::File,
    length: Bytes,
    device: &LoopDevice,
    wanted: &Verity,
) -> Result<Mapped> {
    let refuse = |why: &str| {
        Failure::new(
            Class::Integrity,
            format!(
                "dm-verity of the image at byte {}: {why}",
                wanted.hash_offset.0
            ),
        )
        .hint("give the offset at which `veritysetup format --hash-offset` put the hash tree")
    };
    let mut superblock = vec![0; verity::SUPERBLOCK];
    file.read_exact_at(&mut superblock, wanted.hash_offset.0)
        .map_err(|_| refuse("the image is shorter"))?;
    let superblock = verity::read(&superblock).map_err(refuse)?;
    let data = superblock
        .data_length()
        .filter(|data| *data <= length && *data <= wanted.hash_offset)
        .ok_or_else(|| refuse("its data reaches beyond it"))?;
    let parameters = superblock
        .parameters(device.path(), wanted.hash_offset, &wanted.root_hash)
        .ok_or_else(|| refuse("the offset is not a multiple of its block size"))?;
    modules::want("dm_mod");
    modules::want("dm_verity");
    Mapped::read_only(
        VERITY,
        &Target {
            kind: "verity",
            parameters: &parameters,
            length: data,
        },
    )
}

/// Which file system the image is: known already, but for a partition of a disk image.
fn file_system(file: &std::fs::File, layout: &RootLayout) -> Result<FileSystem> {
    match &layout.image {
        RootImage::FileSystem(fs) => Ok(fs.clone()),
        RootImage::Tar => Err(Failure::new(Class::Bug, "a tar archive cannot be mounted")),
        RootImage::Partition { number, .. } => {
            let mut head = vec![0; superblock::HEAD];
            let mut filled = 0usize;
            while let Some(space) = head.get_mut(filled..).filter(|s| !s.is_empty()) {
                let count = file
                    .read_at(space, filled as u64)
                    .context(Class::Media, || "reading the image in memory")?;
                if count == 0 {
                    break;
                }
                filled = filled.saturating_add(count);
            }
            superblock::of(&head).ok_or_else(|| {
                Failure::new(
                    Class::Integrity,
                    format!("partition {number} of the image holds no file system that is known"),
                )
                .hint("squashfs, erofs, ext4, xfs and btrfs are known")
            })
        }
    }
}

fn damaged(fs: &FileSystem, failure: Failure) -> Failure {
    Failure::new(Class::Integrity, format!("the image cannot be mounted as {fs}"))
        .caused_by(failure)
        .hint(format!(
            "the image is damaged, or this kernel lacks {fs} (the kernel's log says which): an initrd needs its module"
        ))
}
