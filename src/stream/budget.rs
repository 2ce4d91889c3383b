//! How long to go on without progress, and how long to wait between two attempts.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::{Duration, Instant};

/// A retry budget: the time that may pass without a single new byte. Bytes that arrive renew it, so a
/// slow download of any size goes on, and a server that gives nothing ends it.
#[derive(Clone, Debug)]
pub struct Budget {
    retry_for: Duration,
    since: Instant,
}

impl Budget {
    /// A budget that starts now. With [`Duration::ZERO`] each thing is tried once.
    pub fn new(retry_for: Duration) -> Budget {
        Budget {
            retry_for,
            since: Instant::now(),
        }
    }

    /// The budget starts again, because something arrived.
    pub fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// What is left.
    pub fn remaining(&self) -> Duration {
        self.retry_for.saturating_sub(self.since.elapsed())
    }

    /// Whether no further attempt may begin.
    pub fn is_used_up(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The whole budget.
    pub fn retry_for(&self) -> Duration {
        self.retry_for
    }
}

/// Waits between attempts: doubling from `first` up to `longest`, with jitter, so that a rack that booted
/// together does not ask together.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Before the first repetition.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// The wait before repetition `round` (0 is the first).
    pub(super) fn delay(self, round: u32) -> Duration {
        // The standard library's seed for hash maps is random for each of them: enough for jitter, and no
        // crate is needed.
        let random = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        self.delay_with(round, random)
    }

    /// Between half of the full wait and all of it.
    fn delay_with(self, round: u32, random: u64) -> Duration {
        let factor = 1u32.checked_shl(round).unwrap_or(u32::MAX);
        let full = self.first.saturating_mul(factor).min(self.longest);
        let half = full / 2;
        let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(random % spread.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_renew_the_budget() {
        let mut budget = Budget::new(Duration::from_secs(3600));
        budget.since = Instant::now()
            .checked_sub(Duration::from_secs(3000))
            .unwrap();
        assert!(budget.remaining() <= Duration::from_secs(600));
        budget.renew();
        assert!(budget.remaining() > Duration::from_secs(3500));
        assert!(Budget::new(Duration::ZERO).is_used_up());
    }

    proptest! {
        #[test]
        fn waits_grow_are_jittered_and_capped(round in 0u32..100, random: u64) {
            let backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(30) };
            let full = Duration::from_millis(500u64.saturating_mul(1 << round.min(20))).min(backoff.longest);
            let delay = backoff.delay_with(round, random);
            prop_assert!(delay >= full / 2 && delay <= full);
        }
    }
}
