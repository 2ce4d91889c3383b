//! What a program finds when it is started, where the standard library or this program have changed it.

use nix::libc;

/// Gives every signal its default effect: the standard library ignores SIGPIPE, and what is ignored stays so in
/// the next program (signal(7)).
pub fn default_signals() {
    // SIGRTMAX is 64; the C library keeps some below SIGRTMIN for itself and refuses those.
    for signal in 1..=64 {
        // SAFETY: SIG_DFL runs no code of ours.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
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
