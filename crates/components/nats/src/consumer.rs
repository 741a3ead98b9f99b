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

/// What the server says of a second consumer of a topic where the stream is a work queue.
const NOT_UNIQUE: &str = "consumer not unique";
/// Before a message that was returned comes again, without `ackWait`.
const REDELIVERY_DELAY: Duration = Duration::from_secs(1);
/// How often it is looked whether the server still has the consumer.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// What was said has to leave within this time when a subscription ends; shorter than a shutdown may take. A server that is
/// away sends the messages again.
const FLUSH: Duration = Duration::from_secs(1);
/// How long all else waits for what the server says of messages that have not come.
const ANSWER: Duration = Duration::from_secs(1);
/// Before the consumer is made again.
const PAUSE: Duration = Duration::from_secs(1);

/// A member of a deliver group, or the only one of its consumer.
pub(super) struct Consumer {
    shared: Arc<BrokerInner>,
    topic: Arc<str>,
    session: Option<Session>,
    /// Without `durableName`, after the first session.
    resume: Option<Resume>,
}

/// Where the next consumer goes on, in the stream that was made at a time.
struct Resume {
    created: OffsetDateTime,
    sequence: u64,
}

/// A consumer of the server, and what it sends here.
struct Session {
    stream: Stream,
    name: String,
    /// `None`: no more are wanted.
    messages: Option<push::Messages>,
    /// What the server sends ahead, to all members of a group together; less than 1: any number.
    max_ack_pending: i64,
    /// How often the server is told that messages are in progress.
    renewal: Duration,
    state: SessionState,
}

/// What settlements go by.
struct SessionState {
    /// Deliveries of one message that the server makes; the consumer may be older than the settings. -1: any number.
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

    /// Finds the durable consumer, or makes one.
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
                // The same for all that make it at once: none takes the messages away from another.
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
        // The server's say: the consumer may be older than the settings.
        let info = bound.cached_info();
        let (name, config) = (info.name.clone(), &info.config);
        let alone = config.ack_policy == AckPolicy::All || durable.is_none();
        let (max_ack_pending, renewal) = (config.max_ack_pending, renewal(config));
        let state = SessionState {
            max_deliver: config.max_deliver,
            progress: alone.then(|| Progress::of(info)),
        };
        let messages = bound.messages().await.map_err(|error| lost(&error))?;
        // The server knows of the subscription before it is asked anything else.
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
                            // The server keeps what was acknowledged.
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

    /// Takes messages until nothing more is wanted. An error: the server does not have the consumer any more.
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
        let (mut renewal, mut look) = (every(*renewal), every(POLL_INTERVAL));
        let suspicion = Notify::new();
        // Beside everything else: a server that is away takes seconds not to answer.
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
                    self.give_back(feed, state).await;
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
                        self.tell(&reply, AckKind::Progress).await;
                    }
                }
                _ = look.tick(), if state.progress.is_some() => self.look(stream, name, state).await,
                () = &mut gone => {
                    return Err(Error::new(Kind::Unavailable, format!("the consumer {name:?} is gone")));
                }
            }
        }
        self.release(&mut prefetched).await;
        // An answer to this comes after what was said before.
        let _late = timeout(FLUSH, stream.consumer_info(name)).await;
        Ok(())
    }

    /// Messages that the server sends ahead, as far as it waits for acknowledgements.
    fn window(&self, max_ack_pending: i64) -> usize {
        let window = usize::try_from(max_ack_pending).unwrap_or(0);
        if window > 0 && self.shared.settings.acknowledges() {
            window
        } else {
            usize::MAX
        }
    }

    fn offer(&self, incoming: Incoming, state: &mut SessionState, feed: &mut Feed<Incoming>) {
        // Without acknowledgements it does not come again, whatever becomes of it.
        if !self.shared.settings.acknowledges()
            && let Some(progress) = &mut state.progress
        {
            progress.done(&incoming);
        }
        let message = self.message(&incoming);
        feed.offer(incoming, message);
    }

    /// Says what became of the messages that the app had, at the end of the component.
    async fn give_back(&self, feed: &mut Feed<Incoming>, state: &mut SessionState) {
        for settled in feed.settled().now_or_never().unwrap_or_default() {
            self.settle(settled, None, state).await;
        }
        for incoming in feed.unsettled() {
            self.refuse(incoming, None, state).await;
        }
    }

    /// A message whose payload was read again, unless it is lost: then the server is told.
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
                    "component {}: topic {}: a message cannot be read again: {error}; the server sends it again",
                    self.shared.component, self.topic
                );
                self.refuse(&incoming, Some(REDELIVERY_DELAY), state).await;
            }
        }
        None
    }

    /// Gives back what the app never had.
    async fn release(&self, prefetched: &mut Prefetched) {
        for incoming in prefetched.messages() {
            self.say(incoming, AckKind::Nak(None)).await;
        }
        *prefetched = Prefetched::default();
    }

    /// What the app returned comes again after a pause, unless no more are wanted here: then at once, to another one.
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

    /// A message is not to come again. Where that would count for those before it too, the server hears of it when they are done.
    async fn finish(&self, incoming: &Incoming, kind: AckKind, state: &mut SessionState) {
        let Some(progress) = &mut state.progress else {
            return self.say(incoming, kind).await;
        };
        let kind = if progress.all() { AckKind::Ack } else { kind };
        if let Some(reply) = progress.done(incoming) {
            self.tell(&reply, kind).await;
        }
    }

    /// Has the server send a message again, after `pause`. When it has done so as often as it may, the server tells nobody.
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
                "component {}: topic {}: message {} (sequence {} of the stream {}) was not handled in {} deliveries, and \
                 the server does not deliver it again: it stays in the stream. Set maxDeliver {max_deliver} of the consumer \
                 {} higher, or a deadLetterTopic in the subscription",
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
            // What comes after it is not to wait for ever.
            Some(progress) if last && progress.all() => {
                return self.finish(incoming, AckKind::Ack, state).await;
            }
            Some(progress) if last => drop(progress.done(incoming)),
            Some(progress) => progress.returned(incoming),
            None => {}
        }
        self.say(incoming, AckKind::Nak(pause)).await;
    }

    /// Asks about messages that hold up acknowledgements and have not come.
    async fn look(&self, stream: &Stream, name: &str, state: &mut SessionState) {
        let Some(progress) = &mut state.progress else {
            return;
        };
        if progress.in_doubt()
            && let Ok(Ok(info)) = timeout(ANSWER, stream.consumer_info(name)).await
        {
            progress.compare(info.num_ack_pending);
        }
        let passed = match progress.awaited() {
            // The server does not send again what is not in the stream any more.
            Some(sequence)
                if matches!(
                    timeout(ANSWER, read(stream, sequence)).await,
                    Ok(Err(Lost::Deleted))
                ) =>
            {
                progress.finished(sequence)
            }
            _ => progress.passed(),
        };
        if let Some(reply) = passed {
            self.tell(&reply, AckKind::Ack).await;
        }
    }

    async fn say(&self, incoming: &Incoming, kind: AckKind) {
        if let Some(reply) = &incoming.reply {
            self.tell(reply, kind).await;
        }
    }

    /// Tells the server about a message. Where that is lost, the server sends the message again.
    async fn tell(&self, reply: &Subject, kind: AckKind) {
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
        // A work queue has what is not acknowledged and nothing else, and gives it from its beginning alone.
        (info.config.retention != RetentionPolicy::WorkQueue).then(|| DeliverPolicy::ByStartSequence {
            // Another stream of the name: it was made after the subscription began.
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

/// Whom to tell that messages are in progress: those here, and those that are done and not acknowledged yet.
fn in_progress(feed: &Feed<Incoming>, prefetched: &Prefetched, state: &SessionState) -> Vec<Subject> {
    let here = feed.unsettled().chain(prefetched.messages());
    let here = here.filter_map(|incoming| incoming.reply.as_ref());
    let done = state.progress.iter().flat_map(Progress::waiting);
    here.chain(done).cloned().collect()
}

/// Looks now and then, and on suspicion, whether the server still has a consumer; ends when it has not.
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
