//! Loading the next kernel (kexec_file_load(2)); [`super::power::go`] starts it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::libc;

/// linux/kexec.h: there is no initrd.
const KEXEC_FILE_NO_INITRAMFS: libc::c_ulong = 0x4;

/// Loads `kernel` with `initrd` and this command line into memory. Nothing is started yet, and a later call
/// replaces it.
///
/// # Errors
/// `EPERM` without `CAP_SYS_BOOT` or under lockdown, `ENOEXEC` or `EINVAL` for what is no kernel, `EKEYREJECTED`
/// and its like for an unsigned one under Secure Boot, `ENOSYS` for a kernel without it.
#[cfg(target_pointer_width = "64")]
pub fn load(kernel: &File, initrd: Option<&File>, command_line: &str) -> io::Result<()> {
    let text = CString::new(command_line)?;
    let length = text.as_bytes_with_nul().len();
    let (initrd, flags) = match initrd {
        Some(file) => (file.as_raw_fd(), 0),
        None => (-1, KEXEC_FILE_NO_INITRAMFS),
    };
    // SAFETY: both descriptors are open and the text lives until the call returns; its length includes the zero
    // at its end, as the call demands.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd,
            length,
            text.as_ptr(),
            flags,
        )
    };
    Errno::result(answer)?;
    Ok(())
}

/// Whether a kernel is loaded (Documentation/ABI/testing/sysfs-kernel-kexec).
pub fn is_loaded() -> bool {
    std::fs::read_to_string("/sys/kernel/kexec_loaded").is_ok_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_kernel_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(load(&file, None, "quiet").is_err());
        assert!(!is_loaded());
        assert!(load(&file, None, "a\0b").is_err());
    }
}
