//! What follows a failed attempt: the same place again, the next one, or the end.

use std::fmt::Write as _;
use std::time::Duration;

use super::super::http::Attempt;
use super::{Download, What};
use crate::error::{Failure, Result, chain};
use crate::report::Event;

impl Download {
    /// Decides what follows a failed attempt, and waits where it must.
    pub(super) fn recover(&mut self, attempt: Attempt) -> Result<()> {
        let Attempt {
            failure,
            retry_after,
        } = attempt;
        self.body = None;
        let progressed = self.fresh;
        self.fresh = false;
        if !progressed {
            self.fruitless = self.fruitless.saturating_add(1);
        }
        if let Some(place) = self.places.get_mut(self.current) {
            place.last = Some(chain(&failure));
            place.dead |= !failure.is_transient();
        }
        let next = if progressed && self.is_usable(self.current) {
            Some(self.current)
        } else {
            self.next_place()
        };
        let Some(next) = next.filter(|_| !self.budget.is_used_up()) else {
            return Err(self.give_up(failure));
        };
        let backoff = self.fetcher.options().backoff;
        let usable = (0..self.places.len())
            .filter(|i| self.is_usable(*i))
            .count();
        let usable = u32::try_from(usable).unwrap_or(u32::MAX).max(1);
        let delay = if progressed {
            backoff.delay(0)
        } else if next > self.current {
            // Nobody has said anything about the next place in this round.
            Duration::ZERO
        } else {
            backoff.delay((self.fruitless / usable).saturating_sub(1))
        };
        let asked = retry_after.filter(|_| next == self.current);
        let delay = delay
            .max(asked.unwrap_or_default())
            .min(self.budget.remaining());
        let mut error = chain(&failure);
        if next != self.current
            && let Some(place) = self.places.get(next)
        {
            let _ = write!(error, "; next is {}", place.location);
            // Another server's validator means nothing there.
            self.validator = None;
        }
        self.fetcher.reporter().emit(Event::Retry {
            error,
            in_milliseconds: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        });
        self.current = next;
        self.driver.sleep(delay)
    }

    /// Whether a place may still give what is missing.
    pub(super) fn is_usable(&self, index: usize) -> bool {
        // Two servers may hold two versions; only a digest shows it.
        let may_continue = self.position == 0 || self.policy.anchored || index == self.current;
        may_continue && self.places.get(index).is_some_and(|place| !place.dead)
    }

    /// The next usable place after the current one, in turn; perhaps the current one.
    fn next_place(&self) -> Option<usize> {
        let count = self.places.len();
        (1..=count)
            .map(|step| (self.current + step) % count)
            .find(|index| self.is_usable(*index))
    }

    /// A body that broke off: where, and why.
    pub(super) fn broken(&self, cause: Failure) -> Failure {
        let place = self.places.get(self.current).map(|p| &p.location);
        let text = format!(
            "{} broke off after {}",
            place.map(ToString::to_string).unwrap_or_default(),
            self.progress()
        );
        let whole = Failure::new(cause.class(), text);
        let whole = if cause.is_transient() {
            whole
        } else {
            whole.permanent()
        };
        whole.caused_by(cause)
    }

    fn progress(&self) -> String {
        match self.total {
            Some(total) => format!("{} of {total} bytes", self.position),
            None => format!("{} bytes", self.position),
        }
    }

    /// The failure that ends the download.
    fn give_up(&self, failure: Failure) -> Failure {
        if self.attempts <= 1 && self.position == 0 && self.places.len() == 1 {
            return failure;
        }
        let got = if self.policy.what == What::Parts {
            format!("nothing right from byte {} on", self.position)
        } else {
            format!("got {}", self.progress())
        };
        let (class, transient) = (failure.class(), failure.is_transient());
        let why = if transient {
            format!("nothing new came for {:?}", self.budget.retry_for())
        } else {
            "trying again cannot help".to_owned()
        };
        let place = |index: usize| self.places.get(index).map(|p| &p.location);
        let mut text = format!(
            "fetching {}: {got} in {} attempts; {why}",
            place(self.current)
                .map(ToString::to_string)
                .unwrap_or_default(),
            self.attempts,
        );
        for (index, other) in self.places.iter().enumerate() {
            if let Some(last) = other.last.as_ref().filter(|_| index != self.current) {
                let _ = write!(text, "; {}: {last}", other.location);
            }
        }
        let next = failure.next().to_owned();
        let whole = Failure::new(class, text).hint(next).caused_by(failure);
        if transient { whole } else { whole.permanent() }
    }
}
