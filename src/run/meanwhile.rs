//! Looks at the clock while something works that says nothing itself.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Does `work`, and calls `tick` each time that `every` has passed meanwhile. The end of the work waits for no clock.
pub fn ticking<T>(every: Duration, mut tick: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let clock = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                tick();
            }
        };
        // Without a thread it is done in silence.
        let _clock = thread::Builder::new().spawn_scoped(scope, clock);
        let done = work();
        drop(end);
        done
    })
}
