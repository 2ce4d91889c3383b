//! Stopping a download from another thread, at once, wherever it waits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{Class, Context as _, Failure, Result};

/// Told once, heard by everybody who waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancel(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    given: AtomicBool,
    notify: Notify,
}

impl Cancel {
    pub(super) fn cancel(&self) {
        self.0.given.store(true, Ordering::SeqCst);
        self.0.notify.notify_waiters();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.given.load(Ordering::SeqCst)
    }

    async fn cancelled(&self) {
        loop {
            // Made before the flag is read: a signal between the two still wakes it.
            let notified = self.0.notify.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}

/// Why a wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The limit was reached.
    TimedOut,
    /// Nobody wants the result any more.
    Cancelled,
}

/// Runs network operations on the calling thread, each with a limit. One for each download: its sockets
/// are driven only while somebody wants bytes, without a hop between threads, and every wait can be cancelled.
#[derive(Debug)]
pub(super) struct Driver {
    runtime: Option<tokio::runtime::Runtime>,
    cancel: Cancel,
}

impl Driver {
    pub(super) fn new(cancel: Cancel) -> Result<Driver> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context(Class::Space, || "preparing network input (epoll)")?;
        Ok(Driver {
            runtime: Some(runtime),
            cancel,
        })
    }

    /// The result of `work`, if it comes within `limit`.
    pub(super) fn wait<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Stopped> {
        let Some(runtime) = &self.runtime else {
            return Err(Stopped::Cancelled);
        };
        runtime.block_on(async {
            let mut work = pin!(work);
            let mut cancelled = pin!(self.cancel.cancelled());
            let raced = poll_fn(|cx| {
                if let Poll::Ready(done) = work.as_mut().poll(cx) {
                    return Poll::Ready(Ok(done));
                }
                cancelled
                    .as_mut()
                    .poll(cx)
                    .map(|()| Err(Stopped::Cancelled))
            });
            match tokio::time::timeout(limit, raced).await {
                Ok(result) => result,
                Err(_) => Err(Stopped::TimedOut),
            }
        })
    }

    /// Sleeps for `delay`, unless cancelled.
    pub(super) fn sleep(&self, delay: Duration) -> Result<()> {
        match self.wait(delay, std::future::pending::<()>()) {
            Err(Stopped::Cancelled) => Err(cancelled()),
            Ok(()) | Err(Stopped::TimedOut) => Ok(()),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A name look-up that still runs in the C library must not hold us up.
            runtime.shutdown_background();
        }
    }
}

/// What a cancelled operation returns. Whoever cancelled does not look at it.
pub(super) fn cancelled() -> Failure {
    Failure::new(Class::Bug, "the stream was dropped before its end").permanent()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wait_ends_at_its_limit_and_at_once_when_cancelled() {
        let cancel = Cancel::default();
        let driver = Driver::new(cancel.clone()).unwrap();
        let forever = || std::future::pending::<()>();
        assert_eq!(
            driver.wait(Duration::from_millis(5), forever()),
            Err(Stopped::TimedOut)
        );
        let started = Instant::now();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            cancel.cancel();
        });
        assert_eq!(
            driver.wait(Duration::from_secs(60), forever()),
            Err(Stopped::Cancelled)
        );
        assert!(driver.sleep(Duration::from_secs(60)).is_err());
        assert!(started.elapsed() < Duration::from_secs(10));
        other.join().unwrap();
    }
}
