//! Drives a connection from its own task, and from the tasks of its streams when many of them wait.
//!
//! Tasks run in the order they were woken. Where a burst of requests wakes a task each, the connection's own task
//! would run after all of them, and the next process sit idle meanwhile: the whole chain would work in turns. So
//! every few streams, whoever queued the last frame drives the connection itself.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::PingPong;

use super::{Ended, until_silent};

/// Streams whose frames may wait for the connection's own task.
const WAITING: usize = 4;

/// A connection that can be driven.
pub(crate) trait Drive: Sized {
    /// Reads and writes as far as possible without waiting; ready when the connection has ended.
    fn poll_drive(&mut self, driver: &Arc<Driver<Self>>, cx: &mut Context<'_>) -> Poll<Result<(), Ended>>;
}

/// Shares a connection between its task and those of its streams.
pub(crate) struct Driver<D> {
    state: Mutex<State<D>>,
    /// Streams that queued frames since the connection was last driven.
    waiting: AtomicUsize,
}

struct State<D> {
    /// `None` once it has ended.
    connection: Option<D>,
    /// That of the connection's own task: whatever the connection waits for wakes this one.
    waker: Option<Waker>,
    /// How the connection ended while another task drove it.
    ended: Option<Result<(), Ended>>,
}

impl<D: Drive> Driver<D> {
    /// Takes a connection; [`Self::run`] is its task.
    pub(crate) fn new(connection: D) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                connection: Some(connection),
                waker: None,
                ended: None,
            }),
            waiting: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the connection to its end.
    ///
    /// # Errors
    /// Why it ended early.
    pub(crate) async fn run(self: &Arc<Self>) -> Result<(), Ended> {
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if let Some(ended) = state.ended.take() {
                return Poll::Ready(ended);
            }
            if !state.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
            self.drive(&mut state, cx)
        })
        .await
    }

    /// As [`Self::run`]; also ends when the peer leaves a ping unanswered. `pings` come with their interval and the
    /// time to answer. The socket is closed in any case.
    ///
    /// # Errors
    /// Why it ended early.
    pub(crate) async fn run_watched(
        self: &Arc<Self>,
        pings: Option<(PingPong, (Duration, Duration))>,
    ) -> Result<(), Ended> {
        let Some((pings, (interval, patience))) = pings else {
            return self.run().await;
        };
        let silence = pin!(until_silent(pings, interval, patience));
        let ended = tokio::select! {
            ended = self.run() => ended,
            ended = silence => ended,
        };
        self.state().connection = None;
        ended
    }

    fn drive(self: &Arc<Self>, state: &mut State<D>, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        self.waiting.store(0, Ordering::Relaxed);
        let Some(connection) = &mut state.connection else {
            return Poll::Ready(Ok(()));
        };
        let result = connection.poll_drive(self, cx);
        if result.is_ready() {
            state.connection = None;
        }
        result
    }

    /// Tells that a stream has queued frames. Drives the connection when several have.
    pub(crate) fn queued(self: &Arc<Self>) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) + 1 < WAITING {
            return;
        }
        // Somebody else drives it, then: the library has told the connection's task about the new frames.
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        let Some(waker) = state.waker.clone() else { return };
        if let Poll::Ready(ended) = self.drive(&mut state, &mut Context::from_waker(&waker)) {
            state.ended = Some(ended);
            drop(state);
            waker.wake();
        }
    }

    /// Reaches the connection, if it has not ended.
    pub(crate) fn with(&self, act: impl FnOnce(&mut D)) {
        if let Some(connection) = &mut self.state().connection {
            act(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Counts how often it is driven; ends when told.
    struct Counting {
        driven: Arc<AtomicUsize>,
        end: Arc<AtomicBool>,
    }

    impl Drive for Counting {
        fn poll_drive(&mut self, _: &Arc<Driver<Self>>, _: &mut Context<'_>) -> Poll<Result<(), Ended>> {
            self.driven.fetch_add(1, Ordering::Relaxed);
            if self.end.load(Ordering::Relaxed) {
                Poll::Ready(Err(Ended::Silent(std::time::Duration::ZERO)))
            } else {
                Poll::Pending
            }
        }
    }

    #[tokio::test]
    async fn every_few_streams_somebody_drives_and_the_task_learns_of_the_end() {
        let (driven, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let driver = Driver::new(Counting {
            driven: Arc::clone(&driven),
            end: Arc::clone(&end),
        });
        let running = Arc::clone(&driver);
        let task = tokio::spawn(async move { running.run().await });
        tokio::task::yield_now().await;
        assert_eq!(driven.load(Ordering::Relaxed), 1);
        for _ in 0..WAITING * 3 {
            driver.queued();
        }
        assert_eq!(driven.load(Ordering::Relaxed), 4);
        end.store(true, Ordering::Relaxed);
        for _ in 0..WAITING {
            driver.queued();
        }
        assert!(matches!(task.await.unwrap(), Err(Ended::Silent(_))));
        driver.queued();
        assert_eq!(driven.load(Ordering::Relaxed), 5);
    }
}
