use std::{pin::pin, sync::Arc, time::Duration};

use async_nats::Subject;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::{
    AckKind, ErrorCode, Message as Incoming,
    consumer::{self, AckPolicy, DeliverPolicy, push},
    context::{ConsumerInfoError, ConsumerInfoErrorKind},
    stream::{RetentionPolicy, Stream},
};
use futures::{FutureExt, StreamExt};
use outrigger_component::{
    Error, Kind, Pairs, Result,
    pubsub::{DEAD_LETTER_HOPS, Feed, Message, Settlement},
};
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};

use super::{
    BrokerInner, LOG,
    prefetched::{Lost, Prefetched, read},
    progress::Progress,
    settings::renewal,
};

/// The server's error for a second consumer of a topic in a work queue.
const NOT_UNIQUE: &str = "consumer not unique";
/// Redelivery delay of a returned message without `ackWait`.
const REDELIVERY_DELAY: Duration = Duration::from_secs(1);
/// Interval of checking that the consumer still exists.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time for flushing acknowledgements when a subscription ends; less than the shutdown timeout. An
/// unreachable server redelivers the messages.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of queries about missing messages; all other work waits for them.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before the consumer is created again.
const PAUSE: Duration = Duration::from_secs(1);

/// A member of a deliver group, or the sole subscriber of a consumer.
pub(super) struct Consumer {
    shared: Arc<BrokerInner>,
    topic: Arc<str>,
    session: Option<Session>,
    /// Set after the first session, without `durableName`.
    resume: Option<Resume>,
}

/// Where the next consumer continues, and the creation time of the stream.
struct Resume {
    created: OffsetDateTime,
    sequence: u64,
}

/// A consumer on the server and its messages.
struct Session {
    stream: Stream,
    name: String,
    /// `None` while draining.
    messages: Option<push::Messages>,
    /// The server's prefetch limit for all members of a group; less than 1 for no limit.
    max_ack_pending: i64,
    /// Interval of in-progress notices.
    renewal: Duration,
    state: SessionState,
}

/// State needed for settlements.
struct SessionState {
    /// Maximum deliveries per message, from the server because the consumer may predate the settings. -1 for
    /// no limit.
    max_deliver: i64,
    /// With `ackPolicy` `all`, and without `durableName`.
    progress: Option<Progress>,
}

impl Consumer {
    pub(super) async fn join(shared: &Arc<BrokerInner>, topic: &str) -> Result<Self> {
        let mut consumer = Self {
            shared: Arc::clone(shared),
            topic: topic.into(),
            session: None,
            resume: None,
        };
        consumer.session = Some(consumer.bind().await?);
        Ok(consumer)
    }

    /// Finds or creates the consumer.
    async fn bind(&self) -> Result<Session> {
        let stream = self.shared.stream(&self.topic).await?;
        let settings = &self.shared.settings;
        let lost = |error: &dyn std::fmt::Display| {
            let text = format!("a consumer of {:?}: {error}", self.topic);
            Error::new(Kind::Unavailable, text)
        };
        let durable = settings.consumer.durable_name.as_deref();
        let found = match durable {
            Some(name) => self.found(&stream, name).await?,
            None => None,
        };
        let bound = match found {
            Some(found) => found,
            None => {
                let mut config = settings.consumer.clone();
                config.filter_subject = self.topic.to_string();
                if let Some(resume) = &self.resume {
                    config.deliver_policy = resume.policy(&stream).unwrap_or(config.deliver_policy);
                }
                // Deterministic, so that members starting together do not take messages from each other.
                config.deliver_subject = match durable {
                    Some(name) => format!("_INBOX.{}.{name}", stream.cached_info().config.name),
                    None => self.shared.client.new_inbox(),
                };
                let made = stream.create_consumer(config).await;
                made.map_err(|error| {
                    let mut text = format!("a consumer of {:?} cannot be made: {error}", self.topic);
                    if error.to_string().contains(NOT_UNIQUE) {
                        text += ": the stream is a work queue, whose topics have one consumer each; give those that share it the \
                                 same durableName and queueGroupName";
                    }
                    Error::new(Kind::Configuration, text)
                })?
            }
        };
        // As reported by the server: the consumer may predate the settings.
        let info = bound.cached_info();
        let (name, config) = (info.name.clone(), &info.config);
        let alone = config.ack_policy == AckPolicy::All || durable.is_none();
        let (max_ack_pending, renewal) = (config.max_ack_pending, renewal(config));
        let state = SessionState {
            max_deliver: config.max_deliver,
            progress: alone.then(|| Progress::of(info)),
        };
        let messages = bound.messages().await.map_err(|error| lost(&error))?;
        // The server must know of the subscription before further requests.
        self.shared.client.flush().await.map_err(|error| lost(&error))?;
        stream.consumer_info(&name).await.map_err(|error| lost(&error))?;
        Ok(Session {
            stream,
            name,
            messages: Some(messages),
            max_ack_pending,
            renewal,
            state,
        })
    }

    async fn found(&self, stream: &Stream, name: &str) -> Result<Option<consumer::Consumer<push::Config>>> {
        let info = match stream.consumer_info(name).await {
            Ok(info) => info,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => {
                let text = format!("the consumer {name:?}: {error}");
                return Err(Error::new(Kind::Unavailable, text));
            }
        };
        let wrong = |text: String| Error::new(Kind::Configuration, text);
        if info.config.filter_subject != *self.topic {
            return Err(wrong(format!(
                "the durable consumer {name:?} is for {:?}, not for {:?}: use a component with another durableName for \
                 each topic",
                info.config.filter_subject, self.topic
            )));
        }
        if let Some((property, set, has)) = self.shared.settings.differs(&info.config) {
            return Err(wrong(format!(
                "the durable consumer {name:?} has {property} {has}, and {set} is set: set {has}, use another durableName, or \
                 delete the consumer from the stream {:?}, which forgets what it has acknowledged",
                info.stream_name
            )));
        }
        if info.push_bound && info.config.deliver_group.is_none() {
            return Err(wrong(format!(
                "the durable consumer {name:?} has a subscriber: set queueGroupName for those that share it"
            )));
        }
        let found = stream.get_consumer::<push::Config>(name).await;
        found
            .map(Some)
            .map_err(|error| wrong(format!("the consumer {name:?}: {error}")))
    }

    pub(super) async fn run(mut self, mut feed: Feed<Incoming>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        loop {
            let session = match self.session.take() {
                Some(session) => Ok(session),
                None => tokio::select! {
                    bound = self.bind() => bound,
                    () = drain.cancelled() => return Ok(()),
                    () = closed.cancelled() => return Ok(()),
                },
            };
            let cause = match session {
                Ok(mut session) => match self.take(&mut session, &mut feed).await {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        self.resume = match self.shared.settings.consumer.durable_name {
                            // The server keeps the acknowledged position.
                            Some(_) => None,
                            None => session.resume(),
                        };
                        error
                    }
                },
                Err(error) => error,
            };
            tracing::warn!(
                target: LOG,
                "component {}: topic {}: {cause}; subscribing again", self.shared.component, self.topic
            );
            tokio::select! {
                () = drain.cancelled() => return Ok(()),
                () = closed.cancelled() => return Ok(()),
                () = sleep(PAUSE) => {}
            }
        }
    }

    /// Takes messages until draining ends. An error means that the consumer was deleted.
    async fn take(&self, session: &mut Session, feed: &mut Feed<Incoming>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        let Session {
            stream,
            name,
            messages,
            max_ack_pending,
            renewal,
            state,
        } = session;
        let (stream, name) = (&*stream, &**name);
        feed.set_window(self.window(*max_ack_pending));
        let mut prefetched = Prefetched::default();
        let (mut renewal, mut query_missing) = (every(*renewal), every(POLL_INTERVAL));
        let suspicion = Notify::new();
        // Concurrently, because an unreachable server delays each check by seconds.
        let mut gone = pin!(until_deleted(stream, name, &suspicion));
        loop {
            while feed.free_capacity() > 0
                && let Some(incoming) = prefetched.next(stream)
            {
                self.offer(incoming, state, feed);
            }
            if messages.is_none() && feed.is_settled() {
                break;
            }
            tokio::select! {
                () = closed.cancelled() => {
                    self.return_messages(feed, state).await;
                    break;
                }
                () = drain.cancelled(), if messages.is_some() => {
                    *messages = None;
                    self.release(&mut prefetched).await;
                }
                settled = feed.settled() => self.settle_all(settled, feed.draining(), state).await,
                read = prefetched.read_again() => {
                    if let Some(incoming) = self.read_again(read, state).await {
                        self.offer(incoming, state, feed);
                    }
                }
                incoming = next(messages), if !prefetched.is_full() => match incoming {
                    Some(Ok(incoming)) => {
                        if state.progress.as_mut().is_none_or(|progress| progress.came(&incoming)) {
                            prefetched.push(incoming, feed.free_bytes());
                        }
                    }
                    Some(Err(_)) => suspicion.notify_one(),
                    None => return Err(Error::new(Kind::Unavailable, "NATS: the subscription ended")),
                },
                _ = renewal.tick() => {
                    for reply in in_progress(feed, &prefetched, state) {
                        self.send_ack(&reply, AckKind::Progress).await;
                    }
                }
                _ = query_missing.tick(), if state.progress.is_some() => self.query_missing(stream, name, state).await,
                () = &mut gone => {
                    return Err(Error::new(Kind::Unavailable, format!("the consumer {name:?} is gone")));
                }
            }
        }
        self.release(&mut prefetched).await;
        // The server answers this after processing everything sent before.
        let _late = timeout(FLUSH_TIMEOUT, stream.consumer_info(name)).await;
        Ok(())
    }

    /// The prefetch window, if the server waits for acknowledgements.
    fn window(&self, max_ack_pending: i64) -> usize {
        let window = usize::try_from(max_ack_pending).unwrap_or(0);
        if window > 0 && self.shared.settings.acknowledges() {
            window
        } else {
            usize::MAX
        }
    }

    fn offer(&self, incoming: Incoming, state: &mut SessionState, feed: &mut Feed<Incoming>) {
        // Without acknowledgements the message is never redelivered.
        if !self.shared.settings.acknowledges()
            && let Some(progress) = &mut state.progress
        {
            progress.done(&incoming);
        }
        let message = self.message(&incoming);
        feed.offer(incoming, message);
    }

    /// Reports the state of the app's messages when the component closes.
    async fn return_messages(&self, feed: &mut Feed<Incoming>, state: &mut SessionState) {
        for settled in feed.settled().now_or_never().unwrap_or_default() {
            self.settle(settled, None, state).await;
        }
        for incoming in feed.unsettled() {
            self.refuse(incoming, None, state).await;
        }
    }

    /// A message whose payload was read again. If it is lost, the server is notified.
    async fn read_again(
        &self,
        read: std::result::Result<Incoming, (Incoming, Lost)>,
        state: &mut SessionState,
    ) -> Option<Incoming> {
        match read {
            Ok(incoming) => return Some(incoming),
            Err((incoming, Lost::Deleted)) => self.finish(&incoming, AckKind::Term, state).await,
            Err((incoming, Lost::Unread(error))) => {
                tracing::warn!(
                    target: LOG,
                    "component {}: topic {}: cannot read a message again: {error}; the server will redeliver it",
                    self.shared.component, self.topic
                );
                self.refuse(&incoming, Some(REDELIVERY_DELAY), state).await;
            }
        }
        None
    }

    /// Returns messages that the app never received.
    async fn release(&self, prefetched: &mut Prefetched) {
        for incoming in prefetched.messages() {
            self.say(incoming, AckKind::Nak(None)).await;
        }
        *prefetched = Prefetched::default();
    }

    /// Settles messages. Returned messages are redelivered after a delay, or at once to another member while
    /// draining.
    async fn settle_all(
        &self,
        settled: Vec<(Incoming, Settlement)>,
        draining: bool,
        state: &mut SessionState,
    ) {
        let ack_wait = self.shared.settings.consumer.ack_wait;
        let again = if ack_wait.is_zero() {
            REDELIVERY_DELAY
        } else {
            ack_wait
        };
        let pause = (!draining).then_some(again);
        for settled in settled {
            self.settle(settled, pause, state).await;
        }
    }

    async fn settle(
        &self,
        (incoming, settlement): (Incoming, Settlement),
        pause: Option<Duration>,
        state: &mut SessionState,
    ) {
        match settlement {
            Settlement::Acknowledge => self.finish(&incoming, AckKind::Ack, state).await,
            Settlement::Reject | Settlement::Release => self.refuse(&incoming, pause, state).await,
        }
    }

    /// Finishes a message. If an acknowledgement covers earlier messages too, the server gets it once those
    /// are done.
    async fn finish(&self, incoming: &Incoming, kind: AckKind, state: &mut SessionState) {
        let Some(progress) = &mut state.progress else {
            return self.say(incoming, kind).await;
        };
        let kind = if progress.all() { AckKind::Ack } else { kind };
        if let Some(reply) = progress.done(incoming) {
            self.send_ack(&reply, kind).await;
        }
    }

    /// Asks the server to redeliver a message after `pause`. At the delivery limit the server drops it
    /// silently, so this logs it.
    async fn refuse(&self, incoming: &Incoming, pause: Option<Duration>, state: &mut SessionState) {
        let max_deliver = state.max_deliver;
        let mut last = false;
        if self.shared.settings.acknowledges()
            && let Ok(info) = incoming.info()
            && max_deliver > 0
            && info.delivered >= max_deliver
        {
            last = true;
            let id = incoming.headers.as_ref();
            let id = id.and_then(|headers| headers.get(NATS_MESSAGE_ID));
            tracing::error!(
                target: LOG,
                "component {}: topic {}: message {} (sequence {} of the stream {}) was not handled in {} \
                 deliveries and will not be redelivered; it stays in the stream. Raise maxDeliver \
                 {max_deliver} of the consumer {}, or set a deadLetterTopic in the subscription",
                self.shared.component,
                incoming.subject,
                id.map_or("without an id", |id| id.as_str()),
                info.stream_sequence,
                info.stream,
                info.delivered,
                info.consumer
            );
        }
        match &mut state.progress {
            // Later messages must not wait for it forever.
            Some(progress) if last && progress.all() => {
                return self.finish(incoming, AckKind::Ack, state).await;
            }
            Some(progress) if last => drop(progress.done(incoming)),
            Some(progress) => progress.returned(incoming),
            None => {}
        }
        self.say(incoming, AckKind::Nak(pause)).await;
    }

    /// Queries the server about missing messages that block acknowledgements.
    async fn query_missing(&self, stream: &Stream, name: &str, state: &mut SessionState) {
        let Some(progress) = &mut state.progress else {
            return;
        };
        if progress.in_doubt()
            && let Ok(Ok(info)) = timeout(QUERY_TIMEOUT, stream.consumer_info(name)).await
        {
            progress.compare(info.num_ack_pending);
        }
        let passed = match progress.awaiting_redelivery() {
            // The server does not redeliver a deleted message.
            Some(sequence)
                if matches!(
                    timeout(QUERY_TIMEOUT, read(stream, sequence)).await,
                    Ok(Err(Lost::Deleted))
                ) =>
            {
                progress.finished(sequence)
            }
            _ => progress.passed(),
        };
        if let Some(reply) = passed {
            self.send_ack(&reply, AckKind::Ack).await;
        }
    }

    async fn say(&self, incoming: &Incoming, kind: AckKind) {
        if let Some(reply) = &incoming.reply {
            self.send_ack(reply, kind).await;
        }
    }

    /// Sends an acknowledgement. If it is lost, the server redelivers the message.
    async fn send_ack(&self, reply: &Subject, kind: AckKind) {
        if self.shared.settings.acknowledges()
            && let Err(error) = self.shared.client.publish(reply.clone(), kind.into()).await
        {
            tracing::debug!(target: LOG, "component {}: {error}", self.shared.component);
        }
    }

    fn message(&self, incoming: &Incoming) -> Message {
        let subject = incoming.subject.as_str();
        let before = incoming.info().ok().map(|info| info.delivered.saturating_sub(1));
        let mut metadata = Pairs::from([("Topic".to_owned(), subject.to_owned())]);
        let headers = incoming.headers.as_ref();
        if let Some(hops) = headers.and_then(|headers| headers.get(DEAD_LETTER_HOPS)) {
            metadata.insert(DEAD_LETTER_HOPS.to_owned(), hops.as_str().to_owned());
        }
        Message {
            topic: if *subject == *self.topic {
                Arc::clone(&self.topic)
            } else {
                subject.into()
            },
            data: incoming.payload.clone(),
            content_type: None,
            metadata,
            ordering_key: None,
            redelivered: before.and_then(|before| u32::try_from(before).ok()),
        }
    }
}

impl Session {
    fn resume(&self) -> Option<Resume> {
        let progress = self.state.progress.as_ref()?;
        Some(Resume {
            created: self.stream.cached_info().created,
            sequence: progress.resume(),
        })
    }
}

impl Resume {
    fn policy(&self, stream: &Stream) -> Option<DeliverPolicy> {
        let info = stream.cached_info();
        // A work queue contains only unacknowledged messages and can only be read from its start.
        (info.config.retention != RetentionPolicy::WorkQueue).then(|| DeliverPolicy::ByStartSequence {
            // A stream recreated under the same name is newer than the subscription.
            start_sequence: if info.created == self.created {
                self.sequence
            } else {
                1
            },
        })
    }
}

fn every(period: Duration) -> Interval {
    let mut every = interval(period);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    every
}

/// Reply subjects for in-progress notices: messages held here, and finished ones not yet acknowledged.
fn in_progress(feed: &Feed<Incoming>, prefetched: &Prefetched, state: &SessionState) -> Vec<Subject> {
    let here = feed.unsettled().chain(prefetched.messages());
    let here = here.filter_map(|incoming| incoming.reply.as_ref());
    let done = state.progress.iter().flat_map(Progress::waiting);
    here.chain(done).cloned().collect()
}

/// Checks periodically, and on suspicion, that the consumer exists; returns once it does not.
async fn until_deleted(stream: &Stream, name: &str, suspicion: &Notify) {
    loop {
        let _either = timeout(POLL_INTERVAL, suspicion.notified()).await;
        if let Err(error) = stream.consumer_info(name).await
            && is_gone(&error)
        {
            return;
        }
    }
}

fn is_gone(error: &ConsumerInfoError) -> bool {
    match error.kind() {
        ConsumerInfoErrorKind::NotFound => true,
        ConsumerInfoErrorKind::JetStream(error) => error.error_code() == ErrorCode::CONSUMER_NOT_FOUND,
        _ => false,
    }
}

async fn next(messages: &mut Option<push::Messages>) -> Option<Result<Incoming, push::MessagesError>> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}
