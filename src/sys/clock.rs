//! Clocks: time since boot, deadlines, and the wall clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::time::{TimeSpec, TimeValLike as _};
use nix::time::{ClockId, clock_gettime, clock_settime};

/// Time since the kernel started (clock_gettime(2), `CLOCK_BOOTTIME`).
pub fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .ok()
        .and_then(|t| u64::try_from(t.num_nanoseconds()).ok())
        .map_or(Duration::ZERO, Duration::from_nanos)
}

/// Seconds since 1970 by the wall clock; 0 for a clock that stands before 1970.
pub fn wall_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// Sets the wall clock (clock_settime(2), `CLOCK_REALTIME`); needs `CAP_SYS_TIME`.
pub fn set_wall_seconds(seconds: u64) -> std::io::Result<()> {
    let seconds = i64::try_from(seconds).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::seconds(seconds)).map_err(Into::into)
}

/// The end of a wait: every wait has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Some years from now at the latest, so that no duration overflows.
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

    /// `wait` from now.
    pub fn after(wait: Duration) -> Deadline {
        let now = Instant::now();
        Deadline(now.checked_add(wait.min(Self::LONGEST)).unwrap_or(now))
    }

    /// What is left; zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether nothing is left.
    pub fn passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// The earlier one.
    #[must_use]
    pub fn or_sooner(self, other: Deadline) -> Deadline {
        self.min(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_any_length_can_be_made_and_passes() {
        assert!(Deadline::after(Duration::ZERO).passed());
        let long = Deadline::after(Duration::MAX);
        assert!(!long.passed());
        assert!(long.or_sooner(Deadline::after(Duration::ZERO)).passed());
    }
}
