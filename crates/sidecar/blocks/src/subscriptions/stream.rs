//! Streaming subscriptions opened by the app.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use outrigger_delivery::Verdict;
use outrigger_policy::resiliency::Outcome;
use outrigger_wire::runtime::v1::TopicEventRequest;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::attempt::{self, failed};
use super::incoming::Incoming;
use super::metrics::RETRY;
use super::target::Target;
use super::{AppSubscription, LOG, Subscriptions, message};

/// Most concurrent streams of a sidecar.
const MAX_STREAMS: usize = 1000;
/// Events buffered for the client; further ones wait in the engine.
const MAX_UNREAD: usize = 16;

/// Why a stream cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The component does not exist.
    #[error("pubsub {0} is not found")]
    NotFound(String),
    /// The broker refuses the subscription, or the component's rules forbid it.
    #[error("failed to create subscription for {pubsub}: {cause}")]
    Refused {
        /// Name of the pub/sub component.
        pubsub: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The limit of streams is reached.
    #[error("there are {MAX_STREAMS} streaming subscriptions: end one first")]
    TooMany,
    /// The sidecar is shutting down.
    #[error("the sidecar is shutting down")]
    Stopped,
}

/// A streaming subscription and its client.
pub struct Stream {
    pub(super) id: u64,
    pub(super) wanted: Arc<AppSubscription>,
    events: mpsc::Sender<TopicEventRequest>,
    /// Pending responses by event id, in the order of sending.
    answers: Mutex<HashMap<String, VecDeque<oneshot::Sender<i32>>>>,
    first: Mutex<Option<oneshot::Sender<Result<(), String>>>>,
    /// Cancelled when the client is gone.
    gone: CancellationToken,
}

impl Stream {
    pub(super) fn take_first(&self) -> Option<oneshot::Sender<Result<(), String>>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<String, VecDeque<oneshot::Sender<i32>>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the client's response to an event.
    pub fn answered(&self, id: &str, status: i32) {
        let mut answers = self.answers();
        // A closed sender belongs to a cancelled attempt.
        let waiting = answers.get_mut(id).and_then(|waiting| {
            waiting.retain(|waiting| !waiting.is_closed());
            waiting.pop_front()
        });
        if answers.get(id).is_some_and(VecDeque::is_empty) {
            answers.remove(id);
        }
        drop(answers);
        let heard = waiting.is_some_and(|waiting| waiting.send(status).is_ok());
        if !heard {
            tracing::warn!(
                target: LOG,
                "client of the stream for topic {} responded to event {id}, for which no response is pending",
                self.wanted.topic
            );
        }
    }

    pub(super) async fn deliver(
        &self,
        target: &Target,
        event: &Arc<Incoming>,
        ending: &CancellationToken,
    ) -> (Verdict, Outcome) {
        let mut span = target.span(event);
        let request = match message::written(event, &self.wanted.pubsub).await {
            Ok(request) => request,
            Err(text) => return failed(format!("event {}: {text}", event.id), None),
        };
        let started = Instant::now();
        let (answer, answered) = oneshot::channel();
        // Reserve a slot first: the event is sent as soon as it is in the map.
        let permit = tokio::select! {
            biased;
            () = self.gone.cancelled() => None,
            () = ending.cancelled() => None,
            permit = self.events.reserve() => permit.ok(),
        };
        let Some(permit) = permit else {
            return failed("stream closed", None);
        };
        let mut attempt = Attempt::new(self, &event.id, answer, answered);
        permit.send(request);
        let status = tokio::select! {
            biased;
            status = &mut attempt.answered => status.ok(),
            () = self.gone.cancelled() => None,
        };
        match status {
            Some(status) => {
                let (verdict, outcome) = target.read_status(event, status, started);
                attempt::note(&mut span, &verdict);
                (verdict, outcome)
            }
            None => {
                span.grpc_failed("stream closed");
                target.count(event, RETRY, started);
                failed("stream closed", None)
            }
        }
    }
}

/// An event that waits for its response. Dropping it, for example after a timeout, removes it from the map.
struct Attempt<'a> {
    stream: &'a Stream,
    id: &'a str,
    answered: oneshot::Receiver<i32>,
}

impl<'a> Attempt<'a> {
    fn new(
        stream: &'a Stream,
        id: &'a str,
        answer: oneshot::Sender<i32>,
        answered: oneshot::Receiver<i32>,
    ) -> Self {
        stream
            .answers()
            .entry(id.to_owned())
            .or_default()
            .push_back(answer);
        Self { stream, id, answered }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.answered.close();
        let mut answers = self.stream.answers();
        if let Some(waiting) = answers.get_mut(self.id) {
            waiting.retain(|waiting| !waiting.is_closed());
            if waiting.is_empty() {
                answers.remove(self.id);
            }
        }
    }
}

/// An opened stream, for the client's side.
pub struct Opened {
    /// The stream that takes the client's responses.
    pub stream: Arc<Stream>,
    /// The events for the client.
    pub events: mpsc::Receiver<TopicEventRequest>,
}

impl Subscriptions {
    /// Opens a stream. Returns once the broker has accepted the subscription.
    ///
    /// # Errors
    /// [`StreamError`].
    pub async fn open_stream(self: &Arc<Self>, wanted: AppSubscription) -> Result<Opened, StreamError> {
        let pubsub = wanted.pubsub.clone();
        if self.dependencies.pubsubs.broker(&pubsub).is_none() {
            return Err(StreamError::NotFound(pubsub));
        }
        let (events, received) = mpsc::channel(MAX_UNREAD);
        let (first, began) = oneshot::channel();
        let stream = {
            let mut state = self.state();
            if self.ended.is_cancelled() {
                return Err(StreamError::Stopped);
            }
            if state.streams.len() >= MAX_STREAMS {
                return Err(StreamError::TooMany);
            }
            state.next_stream += 1;
            let stream = Arc::new(Stream {
                id: state.next_stream,
                wanted: Arc::new(wanted),
                events,
                answers: Mutex::default(),
                first: Mutex::new(Some(first)),
                gone: CancellationToken::new(),
            });
            state.streams.push(Arc::clone(&stream));
            stream
        };
        tracing::info!(
            target: LOG,
            "Subscribing to pubsub '{pubsub}' topic '{}'",
            stream.wanted.topic
        );
        let guard = OpeningGuard {
            subscriptions: self,
            stream: &stream,
            kept: false,
        };
        self.reconcile();
        match began.await {
            Ok(Ok(())) => guard.keep(),
            Ok(Err(cause)) => return Err(StreamError::Refused { pubsub, cause }),
            Err(_) => return Err(StreamError::Stopped),
        }
        Ok(Opened {
            stream,
            events: received,
        })
    }

    /// Closes a stream whose client is gone: unacknowledged events return to the broker.
    pub fn close_stream(self: &Arc<Self>, stream: &Stream) {
        self.state().streams.retain(|known| known.id != stream.id);
        self.reconcile();
        stream.gone.cancel();
        stream.answers().clear();
    }

    /// Waits until streams stop consuming, and the client of `stream` has responded to all its events.
    pub async fn stream_ended(&self, stream: &Stream) {
        self.ended.cancelled().await;
        let ended = {
            let state = self.state();
            let running = state.running.get(&super::Slot::Stream(stream.id));
            running.map(|running| running.ended.clone())
        };
        if let Some(ended) = ended {
            ended.cancelled().await;
        }
    }

    /// Waits until consumption stops.
    pub async fn until_ended(&self) {
        self.ended.cancelled().await;
    }
}

/// Closes the stream if opening it fails or is cancelled.
struct OpeningGuard<'s> {
    subscriptions: &'s Arc<Subscriptions>,
    stream: &'s Arc<Stream>,
    kept: bool,
}

impl OpeningGuard<'_> {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.subscriptions.close_stream(self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_policy::routing::Routes;

    use super::*;
    use crate::subscriptions::spec::SubscriptionType;

    fn stream() -> Stream {
        let wanted = AppSubscription {
            origin: SubscriptionType::Streaming,
            name: String::new(),
            pubsub: "broker".to_owned(),
            topic: "orders".to_owned(),
            routes: Routes::always("events"),
            dead_letter: None,
            metadata: Default::default(),
            bulk: None,
            raw: false,
        };
        Stream {
            id: 1,
            wanted: Arc::new(wanted),
            events: mpsc::channel(1).0,
            answers: Mutex::default(),
            first: Mutex::default(),
            gone: CancellationToken::new(),
        }
    }

    fn attempt<'a>(stream: &'a Stream, id: &'a str) -> Attempt<'a> {
        let (answer, answered) = oneshot::channel();
        Attempt::new(stream, id, answer, answered)
    }

    #[test]
    fn cancelled_attempt_leaves_nothing() {
        let stream = stream();
        drop(attempt(&stream, "e"));
        assert!(stream.answers().is_empty());
        let late = attempt(&stream, "e");
        let mut next = attempt(&stream, "e");
        drop(late);
        stream.answered("e", 2);
        assert_eq!(next.answered.try_recv(), Ok(2));
        assert!(stream.answers().is_empty());
    }
}
