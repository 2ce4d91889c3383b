//! An image as a file in memory: on a tmpfs of its own, never in /run itself, which the next systemd limits.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::blocks::BlockReader;
use crate::error::{Class, Failure, Result};
use crate::plan::memory_root::{Room, RootImage, RootLayout};
use crate::run::zeros;
use crate::sys::detached::{Detached, Flags, Tmpfs};
use crate::units::Bytes;

/// An image in memory.
#[derive(Debug)]
pub struct Held {
    /// The tmpfs, which has no place yet: nobody can open what is not proven.
    pub tmpfs: Detached,
    /// The file.
    pub file: File,
    /// How long the file is.
    pub length: Bytes,
}

/// Name of the file in its tmpfs.
pub const NAME: &str = "root.img";

/// The file, its tmpfs and room for nothing else.
const INODES: u64 = 16;

/// Brings what `layout` keeps of the image into memory. Nothing of it has been proven yet.
pub fn hold(reader: &mut BlockReader<'_>, layout: &RootLayout, room: &Room) -> Result<Held> {
    let tmpfs = Tmpfs {
        size: layout.hold,
        inodes: INODES,
        mode: 0o700,
        interleave: room.interleave,
        name: "ironroot-image".to_owned(),
    }
    .mount(Flags {
        nosuid: true,
        nodev: true,
        noexec: true,
        read_only: false,
    })?;
    let file: File = openat(
        tmpfs.as_fd(),
        NAME,
        OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC,
        Mode::S_IRUSR | Mode::S_IWUSR,
    )
    .map_err(|e| write_failure(layout, room, e.into()))?
    .into();
    let (start, end) = match &layout.image {
        RootImage::Partition { start, size, .. } => (start.0, start.0.saturating_add(size.0)),
        RootImage::FileSystem(_) | RootImage::Tar => (0, u64::MAX),
    };
    let (mut at, mut length) = (0u64, 0u64);
    while let Some(block) = reader.next_block()? {
        let block_end = at.saturating_add(block.len() as u64);
        let (from, to) = (at.max(start), block_end.min(end));
        if from < to {
            let range = index(from, at)..index(to, at);
            let data = block.get(range).unwrap_or_default();
            write_data(&file, data, from.saturating_sub(start))
                .map_err(|e| write_failure(layout, room, e))?;
            length = to.saturating_sub(start);
        }
        at = block_end;
    }
    // Holes at the end are part of it.
    file.set_len(length)
        .map_err(|e| write_failure(layout, room, e))?;
    if at < layout.at_least.0 {
        return Err(Failure::new(
            Class::Integrity,
            format!(
                "the image is cut short: it has {at} bytes, {} needs {}",
                layout.image, layout.at_least.0
            ),
        )
        .hint("publish the image again"));
    }
    Ok(Held {
        tmpfs,
        file,
        length: Bytes(length),
    })
}

fn index(at: u64, base: u64) -> usize {
    usize::try_from(at.saturating_sub(base)).unwrap_or(usize::MAX)
}

/// Runs of zeros stay holes: they take no memory.
fn write_data(file: &File, data: &[u8], at: u64) -> std::io::Result<()> {
    for run in zeros::runs(data).into_iter().filter(|run| !run.zero) {
        let place = at.saturating_add(run.range.start as u64);
        file.write_all_at(data.get(run.range).unwrap_or_default(), place)?;
    }
    Ok(())
}

fn write_failure(layout: &RootLayout, room: &Room, error: std::io::Error) -> Failure {
    let full = matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::OutOfMemory
    );
    if full {
        return Failure::new(
            Class::Space,
            format!(
                "not enough memory: the image ({}) needs more than {}, which is what there is ({} in all)",
                layout.image,
                layout.hold.short(),
                room.total.short()
            ),
        )
        .hint("give the machine more memory, or use a smaller image");
    }
    Failure::new(Class::Media, "writing the image to memory").caused_by(error)
}
