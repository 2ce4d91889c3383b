//! Clocks: time since boot, and the wall clock's floor.

use std::time::Duration;

use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};

/// Time since the kernel started (clock_gettime(2), `CLOCK_BOOTTIME`).
pub fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .ok()
        .and_then(|t| u64::try_from(t.num_nanoseconds()).ok())
        .map_or(Duration::ZERO, Duration::from_nanos)
}
