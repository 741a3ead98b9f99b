//! Streams of changes, opened again whenever they end.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until};
use tonic::{Response, Status, Streaming};

use super::{LOG, described};

/// Pauses before a stream is opened again; each is twice the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

type Opening<M> = BoxFuture<'static, Result<Response<Streaming<M>>, Status>>;

/// What a stream reports.
pub(crate) enum Update<M> {
    /// It was opened: only a list tells what came before.
    Began,
    /// It said something.
    Said(M),
}

/// A stream that has no end.
pub(crate) struct Updates<M> {
    /// What changes.
    what: &'static str,
    open: Box<dyn Fn() -> Opening<M> + Send>,
    state: State<M>,
    pause: Duration,
}

enum State<M> {
    /// Until this moment.
    Closed(Instant),
    /// Servers answer with their first event: this may take days.
    Opening(Opening<M>),
    Open(Box<Streaming<M>>),
}

impl<M> Updates<M> {
    pub(super) fn new(what: &'static str, open: impl Fn() -> Opening<M> + Send + 'static) -> Self {
        Self {
            what,
            open: Box::new(open),
            state: State::Closed(Instant::now()),
            pause: PAUSES.0,
        }
    }

    /// Waits for the next update. May be dropped while it waits.
    pub(crate) async fn next(&mut self) -> Update<M> {
        loop {
            match &mut self.state {
                State::Closed(until) => {
                    sleep_until(*until).await;
                    let mut opening = (self.open)();
                    // The request is on its way before anybody lists: nothing comes between.
                    match futures::poll!(&mut opening) {
                        std::task::Poll::Pending => self.state = State::Opening(opening),
                        std::task::Poll::Ready(opened) => self.opened(opened),
                    }
                    return Update::Began;
                }
                State::Opening(opening) => {
                    let opened = opening.await;
                    self.opened(opened);
                }
                State::Open(stream) => match stream.message().await {
                    Ok(Some(said)) => {
                        self.pause = PAUSES.0;
                        return Update::Said(said);
                    }
                    Ok(None) => self.lost(None),
                    Err(status) => self.lost(Some(&status)),
                },
            }
        }
    }

    fn opened(&mut self, opened: Result<Response<Streaming<M>>, Status>) {
        match opened {
            Ok(stream) => self.state = State::Open(Box::new(stream.into_inner())),
            Err(status) => self.lost(Some(&status)),
        }
    }

    fn lost(&mut self, status: Option<&Status>) {
        let (what, pause) = (self.what, self.pause);
        match status {
            Some(status) => tracing::warn!(
                target: LOG,
                "the operator does not report changes of {what} any more: {}; asking again in {pause:?}",
                described(status)
            ),
            None => {
                tracing::debug!(target: LOG, "the operator ended its report on {what}; asking again in {pause:?}")
            }
        }
        self.state = State::Closed(Instant::now() + pause);
        self.pause = (pause * 2).min(PAUSES.1);
    }
}
