//! Streams of changes, reopened whenever they end.

use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};

use super::pauses::Pauses;
use super::{Change, LOG, Opening, described};

/// A stream that stayed open this long counts as working, so the next pause is a short one.
const STABLE_AFTER: Duration = Duration::from_secs(30);
/// Pause before an operator that does not know the stream is asked again; it may have been upgraded.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(600);

/// An update from a stream.
pub(crate) enum Update {
    /// The stream was requested; earlier changes are only in a list.
    Opening,
    /// A resource changed.
    Change(Change),
}

/// A stream of changes that never ends.
pub(crate) struct Updates {
    /// The kind, for messages.
    what: &'static str,
    open: Box<dyn Fn() -> Opening + Send>,
    state: State,
    /// Time of the request.
    since: Instant,
    pauses: Pauses,
    /// Whether it was logged that the operator does not know the stream.
    is_unknown: bool,
}

enum State {
    /// Reopen at this time.
    Closed(Instant),
    /// Servers respond only with their first event, which may take days.
    Opening(Opening),
    Open(BoxStream<'static, Result<Change, Status>>),
}

impl Updates {
    pub(super) fn new(what: &'static str, open: impl Fn() -> Opening + Send + 'static) -> Self {
        let now = Instant::now();
        Self {
            what,
            open: Box::new(open),
            state: State::Closed(now),
            since: now,
            pauses: Pauses::new(),
            is_unknown: false,
        }
    }

    /// The next update. Cancel safe.
    pub(crate) async fn next(&mut self) -> Update {
        loop {
            match &mut self.state {
                State::Closed(until) => {
                    sleep_until(*until).await;
                    self.since = Instant::now();
                    let mut opening = (self.open)();
                    // Polled, so that the request is sent before the caller lists: no change is missed in
                    // between.
                    match futures::poll!(&mut opening) {
                        std::task::Poll::Pending => self.state = State::Opening(opening),
                        std::task::Poll::Ready(opened) => self.opened(opened),
                    }
                    return Update::Opening;
                }
                State::Opening(opening) => {
                    let opened = opening.await;
                    self.opened(opened);
                }
                State::Open(stream) => match stream.next().await {
                    Some(Ok(change)) => {
                        self.pauses.reset();
                        return Update::Change(change);
                    }
                    None => self.lost(None),
                    Some(Err(status)) => self.lost(Some(&status)),
                },
            }
        }
    }

    fn opened(&mut self, opened: Result<BoxStream<'static, Result<Change, Status>>, Status>) {
        match opened {
            Ok(stream) => self.state = State::Open(stream),
            Err(status) => self.lost(Some(&status)),
        }
    }

    fn lost(&mut self, status: Option<&Status>) {
        if self.since.elapsed() >= STABLE_AFTER {
            self.pauses.reset();
        }
        let what = self.what;
        if status.is_some_and(|status| status.code() == Code::Unimplemented) {
            if !std::mem::replace(&mut self.is_unknown, true) {
                tracing::warn!(
                    target: LOG,
                    "the operator does not stream changes of {what}: they are noticed late; upgrade the operator"
                );
            }
            self.state = State::Closed(Instant::now() + UNKNOWN_PAUSE);
            return;
        }
        let pause = self.pauses.next();
        match status {
            Some(status) => tracing::warn!(
                target: LOG,
                "lost the stream of changes of {what} from the operator: {}; reconnecting in {pause:?}",
                described(status)
            ),
            None => {
                tracing::debug!(
                    target: LOG,
                    "the operator ended the stream of changes of {what}; reconnecting in {pause:?}"
                )
            }
        }
        self.state = State::Closed(Instant::now() + pause);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    /// Times in milliseconds of the first attempts to reach an unavailable operator. Each attempt takes
    /// `long`.
    async fn tries(seed: u64, long: Duration) -> Vec<u128> {
        let (begun, asked) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let asking = Arc::clone(&asked);
        let mut updates = Updates::new("things", move || {
            asking.lock().unwrap().push(begun.elapsed().as_millis());
            async move {
                tokio::time::sleep(long).await;
                Err(Status::unavailable("away"))
            }
            .boxed()
        });
        updates.pauses = Pauses::seeded(seed);
        for _ in 0..6 {
            assert!(matches!(updates.next().await, Update::Opening));
        }
        let asked = asked.lock().unwrap();
        asked.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn reopens_streams_with_jitter() {
        let all = join_all((0..100).map(|seed| tries(seed, Duration::from_millis(1)))).await;
        for retry in 1..6 {
            let moments: BTreeSet<_> = all.iter().map(|times| times[retry]).collect();
            assert!(
                moments.len() > 50,
                "retry {retry}: {} moments of 100",
                moments.len()
            );
        }
        assert!(all.iter().all(|times| times[0] == 0 && times[1] < 1000));
    }

    #[tokio::test(start_paused = true)]
    async fn asks_older_operator_rarely() {
        let lines = outrigger_testing::log_lines::Lines::new();
        let asked = Arc::new(Mutex::new(0));
        let asking = Arc::clone(&asked);
        let mut updates = Updates::new("things", move || {
            *asking.lock().unwrap() += 1;
            async { Err(Status::unimplemented("unknown method")) }.boxed()
        });
        let following = async { while matches!(updates.next().await, Update::Opening) {} };
        let _end = tokio::time::timeout(2 * UNKNOWN_PAUSE, following).await;
        assert!(matches!(*asked.lock().unwrap(), 2 | 3));
        assert_eq!(lines.take(LOG, tracing::Level::WARN).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn reopens_stable_stream_at_once() {
        let times = tries(1, STABLE_AFTER).await;
        for pair in times.windows(2) {
            let pause = pair[1] - pair[0] - STABLE_AFTER.as_millis();
            assert!(pause < 1000, "{times:?}");
        }
    }
}
