//! swapon(2).

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::libc;

/// Swaps to the swap area at `path`; areas with a higher `priority` (at most 32767) are used first.
pub fn on(path: &Path, priority: u16) -> io::Result<()> {
    // include/linux/swap.h: SWAP_FLAG_PREFER, and 15 bits of priority.
    const PREFER: i32 = 0x8000;
    let flags = PREFER | i32::from(priority & 0x7fff);
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a string that ends in NUL and lives until the call returns; the kernel writes nothing
    // to this process.
    let result = unsafe { libc::swapon(path.as_ptr(), flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The size of a page, in bytes.
pub fn page_size() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(4096)
}
