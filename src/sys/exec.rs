//! What a program finds when it is started, where the standard library or this program have changed it.

use nix::libc;

/// Gives every signal its default effect: the standard library ignores SIGPIPE, and what is ignored stays so in
/// the next program (signal(7)).
pub fn default_signals() {
    // struct sigaction of the kernel, at most 40 bytes: all zeros is SIG_DFL without flags and mask.
    let default = [0u64; 8];
    // By the system call, because the C library refuses the two that it keeps for itself (32, 33).
    for signal in 1..=64 {
        // SAFETY: the kernel reads a struct from `default`, which is longer and lives until the call returns;
        // SIG_DFL runs no code of ours. The size of a signal set is 8 bytes on every architecture but MIPS,
        // whose kernel refuses it.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null::<u64>(),
                8usize,
            );
        }
    }
}

/// Closes every descriptor from `first` on when the next program starts (close_range(2), Linux 5.11); until
/// then they stay good. On an older kernel those stay open that were not opened with O_CLOEXEC.
pub fn close_on_exec_from(first: u32) {
    // SAFETY: no descriptor is closed in this program; the arguments are numbers.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
    }
}
