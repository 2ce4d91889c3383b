//! Work that may take long and says nothing itself: the console learns now and then that it goes on.

use std::time::{Duration, Instant};

use crate::report::Reporter;
use crate::run::meanwhile;

/// What takes less is not worth a line.
const EVERY: Duration = Duration::from_secs(15);

/// Does `work`, and tells every 15 seconds that `what` goes on, with what `state` has to say of it.
pub fn telling<T>(
    what: &str,
    state: impl Fn() -> String + Sync,
    reporter: &Reporter,
    work: impl FnOnce() -> T,
) -> T {
    telling_every(EVERY, what, state, |line| reporter.info(line), work)
}

fn telling_every<T>(
    every: Duration,
    what: &str,
    state: impl Fn() -> String + Sync,
    say: impl Fn(String) + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let began = Instant::now();
    let tick = || {
        let seconds = began.elapsed().as_secs();
        say(format!("{what}: goes on for {seconds} s, {}", state()));
    };
    meanwhile::ticking(every, tick, work)
}

/// `state` of what is ended after `limit`.
pub fn at_most(limit: Duration) -> String {
    format!("at most {} min", limit.as_secs() / 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::thread;

    #[test]
    fn only_what_takes_long_is_told_of() {
        let lines = Mutex::new(Vec::new());
        let say = |line| lines.lock().unwrap().push(line);
        let state = || "at most a day".to_owned();
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(60));
        let began = Instant::now();
        assert_eq!(telling_every(long, "it", state, say, || 1), 1);
        // The end of the work is not waited for by the clock.
        assert!(lines.lock().unwrap().is_empty() && began.elapsed() < long);
        let work = || thread::sleep(Duration::from_millis(300));
        telling_every(short, "it", state, say, work);
        let lines = lines.lock().unwrap();
        assert!(lines.len() > 1, "{lines:?}");
        assert_eq!(lines[0], "it: goes on for 0 s, at most a day");
    }
}
