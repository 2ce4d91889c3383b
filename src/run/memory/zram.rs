//! Swap in compressed memory: pages of the session that nobody uses take a third of their room.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Class, Context as _, Failure, Result};
use crate::init::modules;
use crate::sys::clock::Deadline;
use crate::sys::swap;
use crate::units::Bytes;

/// devtmpfs makes the node at once, a udev that is asked first may take a moment.
const NODE: Duration = Duration::from_secs(5);

/// Before disks: swapped-out pages come back a hundred times faster.
const PRIORITY: u16 = 100;

/// Makes a zram device of `size` (kernel: Documentation/admin-guide/blockdev/zram.rst) and swaps to it. `root` is
/// where /sys is.
pub fn swap_on(root: &Path, size: Bytes) -> Result<()> {
    modules::want("zram");
    let number = free_device(root)?;
    let settings = root.join(format!("sys/block/zram{number}"));
    // The kernel's choice is good where it does not know this one.
    let _ = std::fs::write(settings.join("comp_algorithm"), "zstd");
    let disksize = settings.join("disksize");
    std::fs::write(&disksize, size.0.to_string())
        .context(Class::Config, || format!("writing {}", disksize.display()))
        .map_err(|f| f.hint("the kernel's log names the compressor that is missing: add its module to the initrd"))?;
    let node = PathBuf::from(format!("/dev/zram{number}"));
    let deadline = Deadline::after(NODE);
    while !node.exists() && !deadline.passed() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let device = File::options()
        .write(true)
        .open(&node)
        .context(Class::Media, || format!("opening {}", node.display()))?;
    let header = header(size, swap::page_size())
        .ok_or_else(|| Failure::new(Class::Config, format!("memory.zram: {size} is too small")))?;
    device
        .write_all_at(&header, 0)
        .and_then(|()| device.sync_all())
        .context(Class::Media, || {
            format!("writing the swap header of {}", node.display())
        })?;
    drop(device);
    swap::on(&node, PRIORITY).context(Class::Media, || format!("swapping to {}", node.display()))
}

/// The number of a device that nobody uses: the one that the module makes when it is loaded, else a new one.
fn free_device(root: &Path) -> Result<u32> {
    let first = std::fs::read_to_string(root.join("sys/block/zram0/disksize"));
    if first.is_ok_and(|size| size.trim() == "0") {
        return Ok(0);
    }
    let control = root.join("sys/class/zram-control/hot_add");
    std::fs::read_to_string(&control)
        .context(Class::Config, || format!("reading {}", control.display()))
        .map_err(|f| f.hint("add the module zram to the initrd, or leave `memory.zram` away"))?
        .trim()
        .parse()
        .context(Class::Media, || "reading the number of a new zram device")
}

/// The first page of a swap area (kernel: include/linux/swap.h, `union swap_header`, version 1).
fn header(size: Bytes, page: u64) -> Option<Vec<u8>> {
    let pages = size.0.checked_div(page)?;
    let last = u32::try_from(pages.checked_sub(1)?.min(u64::from(u32::MAX))).ok()?;
    if last < 10 {
        return None;
    }
    let length = usize::try_from(page).ok()?;
    let mut header = vec![0u8; length];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = header.get_mut(at..at.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    };
    put(1024, &1u32.to_ne_bytes());
    put(1028, &last.to_ne_bytes());
    put(1052, b"ironroot");
    put(length.checked_sub(10)?, b"SWAPSPACE2");
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blkid_reads_the_header() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = Bytes(4 << 20);
        file.as_file().set_len(size.0).unwrap();
        file.as_file()
            .write_all_at(&header(size, 4096).unwrap(), 0)
            .unwrap();
        let output = std::process::Command::new("blkid")
            .args(["-p", "-o", "value", "-s", "TYPE", "-s", "LABEL"])
            .arg(file.path())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ironroot\nswap\n");
        assert_eq!(header(Bytes(4096), 4096), None);
    }
}
