//! The file system of a partition that has grown. It was complete before, so hardly anything here is a failure of
//! the installation: at worst the first boot has to grow it. Only one that is broken now must not boot.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use super::install::Working;
use super::partitions::Node;
use crate::error::{Class, Context as _, Failure, Result, describe};
use crate::image::superblock;
use crate::init::modules;
use crate::plan::layout::Layout;
use crate::report::Reporter;
use crate::sys::mount::{Flags, Guard};
use crate::sys::tool::{self, Tool};
use crate::sys::{block, resize};

/// Where it is mounted meanwhile.
const PLACE: &str = "/run/ironroot/grow";

/// A full check reads all metadata, and growing writes some for each 128 MiB.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// Grows the file system of the partition that the layout has grown.
pub fn file_system(working: &Working, reporter: &Reporter) -> Result<()> {
    let layout = working.layout();
    let Some(number) = layout.grown else {
        return Err(Failure::new(Class::Bug, "no partition has grown"));
    };
    if !has_grown(layout, number) {
        reporter.warn(format!(
            "partition {number} did not grow: there is no free space behind it"
        ));
        return Ok(());
    }
    let node = working.shared().node(number)?;
    let read = || format!("reading the superblock of partition {number}");
    let file = File::open(&node.path).context(Class::Media, read)?;
    let mut head = vec![0u8; superblock::HEAD];
    file.read_exact_at(&mut head, 0)
        .context(Class::Media, read)?;
    drop(file);
    let kind = superblock::of(&head).map(|fs| fs.name());
    let done = match kind {
        Some("ext4") => ext4(node)?,
        Some("xfs") => mounted(node, "xfs", "nouuid", |root| xfs(root, node, &head)),
        Some("btrfs") => mounted(node, "btrfs", "", |root| {
            resize::btrfs(root).context(Class::Media, || "growing btrfs")
        }),
        Some(other) => Err(Failure::new(Class::Media, format!("{other} does not grow"))),
        None => Err(Failure::new(
            Class::Media,
            "no file system that can be grown here is in it",
        )),
    };
    match done {
        Ok(()) => reporter.info(format!(
            "partition {number} and its {} have grown to {}",
            kind.unwrap_or_default(),
            node.place.size
        )),
        Err(failure) => {
            let failure = Failure::new(
                Class::Media,
                format!("partition {number} has grown, its file system has not"),
            )
            .caused_by(failure)
            .hint("the first boot has to grow it (systemd-growfs, cloud-init)");
            reporter.warn(describe(&failure));
        }
    }
    Ok(())
}

fn has_grown(layout: &Layout, number: u32) -> bool {
    let size = |table: &crate::host::tables::Table| {
        let found = table.partitions().iter().find(|p| p.number == number);
        found.map(|p| p.size)
    };
    size(&layout.image) != size(&layout.table)
}

/// Grows ext4. What the outer result has is a file system that must not boot: xfs and btrfs have a journal while they
/// grow, ext4 that is not mounted has none.
fn ext4(node: &Node) -> Result<Result<()>> {
    let path = node.path.to_string_lossy();
    // e2fsck(8): 1 errors corrected, 2 corrected and a mounted one needs a reboot. resize2fs wants a check that is
    // newer than the last mount.
    let check = || tool::run_expecting(Tool::E2fsck, &["-f", "-p", &path], PATIENCE, &[0, 1, 2]);
    let ready = Tool::Resize2fs.require().and_then(|_| check());
    if let Err(failure) = ready {
        return Ok(Err(failure));
    }
    let Err(failure) = tool::run(Tool::Resize2fs, &[&path], PATIENCE) else {
        return Ok(Ok(()));
    };
    match check() {
        Ok(_) => Ok(Err(failure)),
        Err(damage) => Err(Failure::new(
            Class::Media,
            format!(
                "growing the ext4 on partition {} ended in between ({}) and left it damaged",
                node.place.number,
                describe(&failure)
            ),
        )
        .caused_by(damage)
        .hint("the disk does not boot; check the image (e2fsck -fn), or leave `disk.grow` out")),
    }
}

/// Mounts it, does `work` on its root, and unmounts it: the kernel grows these two only while they are mounted.
fn mounted(
    node: &Node,
    kind: &str,
    options: &str,
    work: impl FnOnce(&File) -> Result<()>,
) -> Result<()> {
    modules::want(kind);
    let place = Path::new(PLACE);
    std::fs::create_dir_all(place).context(Class::Media, || format!("making {PLACE}"))?;
    let flags = Flags::MS_NOSUID | Flags::MS_NODEV | Flags::MS_NOEXEC;
    let guard = Guard::attach(&node.path, place, kind, flags, options)?;
    let root = File::open(place).context(Class::Media, || format!("opening {PLACE}"))?;
    let worked = work(&root);
    drop(root);
    // Whatever became of the work, it must be unmounted, or the disk cannot be claimed again.
    let unmounted = guard.unmount();
    worked.and(unmounted)
}

/// Big-endian fields of the superblock (Linux: fs/xfs/libxfs/xfs_format.h, struct xfs_dsb).
fn xfs(root: &File, node: &Node, head: &[u8]) -> Result<()> {
    const BLOCK_SIZE: usize = 4;
    const INODE_PERCENT: usize = 127;
    let field = head.get(BLOCK_SIZE..BLOCK_SIZE + 4);
    let block_size = field
        .and_then(|f| f.try_into().ok())
        .map(u32::from_be_bytes)
        .filter(|size| size.is_power_of_two());
    let (Some(block_size), Some(percent)) = (block_size, head.get(INODE_PERCENT)) else {
        return Err(Failure::new(Class::Media, "its superblock makes no sense"));
    };
    let device = File::open(&node.path).context(Class::Media, || "opening the partition")?;
    let size = block::size(&device).context(Class::Media, || "asking for the partition's size")?;
    resize::xfs(root, size.0 / u64::from(block_size), u32::from(*percent))
        .context(Class::Media, || "growing xfs")
}
