//! One subscription at work: takes messages of a broker, delivers them, and tells the broker what came of each.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use outrigger_component::pubsub::{Message, Publish, Receipt, Subscribe, Subscription};
use outrigger_delivery::Limits;
use outrigger_policy::resiliency::{ComponentKind, Direction, Outcome};
use outrigger_runtime::app::AppChannel;
use outrigger_runtime::delivery::{
    self, Consumer, Depth, Hold, Inbox, OnStop, Order, Pending, StopTokens, Undelivered,
};
use outrigger_runtime::resilience::{Attempt, ComponentPolicy};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::attempt::Handled;
use super::bulk::Collector;
use super::hops::{self, MAX_HOPS};
use super::incoming::{CONTENT_TYPE, Dropped, Incoming, PUBSUB_NAME, Prepared, prepared};
use super::metrics::{IngressMetrics, Lag, Status, Unhandled};
use super::spec::{AppSubscription, Bulk, SubscriptionType};
use super::stream::Stream;
use super::{Dependencies, LOG, LastFailure, Subscriptions};
use crate::pubsub::{Broker, Protocol};

/// Events of one subscription that the app is handling, unless the component says how many.
const MAX_IN_FLIGHT: usize = 128;
/// The same, with those that wait for their turn or their next attempt.
const MAX_HELD: usize = 1024;
/// How often it is looked how old the oldest event is that the app is not done with.
const LAG_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses before a broker is asked again for a subscription.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Who gets the events.
pub(super) enum Sink {
    App(Arc<AppChannel>),
    Stream(Arc<Stream>),
}

/// A subscription with its broker.
pub(super) struct Target {
    subscriptions: Arc<Subscriptions>,
    pub(super) wanted: Arc<AppSubscription>,
    broker: Arc<Broker>,
    sink: Sink,
    policy: ComponentPolicy,
    collector: Option<Collector>,
    /// Of messages that wait for no other.
    next: AtomicU64,
    /// Whether the broker keeps the order of what it delivers again.
    keeps_order: AtomicBool,
    /// Whether the broker keeps messages only while somebody consumes: then a pause does not end the subscription.
    needs_consumer: Arc<AtomicBool>,
    failure: LastFailure,
    lag: Arc<Lag>,
}

/// What is left to do with a message.
pub(super) enum Disposition {
    /// The engine has it.
    Pending(Pending<Handled>, Option<Unhandled>),
    /// It does not go to the app.
    Dropped(Dropped),
    /// It cannot be understood.
    Unreadable(String),
    /// Nothing is taken any more.
    Stopped,
}

impl Target {
    pub(super) fn new(
        subscriptions: Arc<Subscriptions>,
        wanted: Arc<AppSubscription>,
        broker: Arc<Broker>,
        sink: Sink,
    ) -> Self {
        let policies = &subscriptions.dependencies.resilience.policies;
        let collector = match sink {
            Sink::App(_) => wanted.bulk.map(Collector::new),
            Sink::Stream(_) => None,
        };
        Self {
            policy: policies.component(&wanted.pubsub, ComponentKind::Pubsub, Direction::Inbound),
            collector,
            next: AtomicU64::new(0),
            keeps_order: AtomicBool::new(false),
            needs_consumer: Arc::default(),
            failure: Arc::default(),
            lag: subscriptions.metrics.lag(&wanted.pubsub, &wanted.topic),
            wanted,
            broker,
            sink,
            subscriptions,
        }
    }

    pub(super) fn needs_consumer(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.needs_consumer)
    }

    pub(super) fn failure(&self) -> LastFailure {
        Arc::clone(&self.failure)
    }

    /// Keeps how the last attempt to subscribe went, for the status.
    fn note(&self, failure: Option<&String>) {
        let mut last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *last = failure.cloned();
    }

    pub(super) fn dependencies(&self) -> &Dependencies {
        &self.subscriptions.dependencies
    }

    pub(super) fn metrics(&self) -> &IngressMetrics {
        &self.subscriptions.metrics
    }

    /// Takes and delivers until `stop`; when it returns, the broker knows what became of every message. The first attempt
    /// to subscribe is over when `asked` is cancelled; `first` hears how it went, and then there is no second one.
    pub(super) async fn run(
        &self,
        stop: &CancellationToken,
        asked: &CancellationToken,
        mut first: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        let mut pause = PAUSES.0;
        let mut failed = false;
        loop {
            let subscribed = tokio::select! {
                () = stop.cancelled() => return,
                subscribed = self.subscribe() => subscribed,
            };
            self.note(subscribed.as_ref().err());
            asked.cancel();
            match subscribed {
                Ok(subscription) => {
                    self.begun(failed);
                    if let Some(first) = first.take() {
                        // Whoever asked may be gone: then `stop` follows.
                        let _gone = first.send(Ok(()));
                    }
                    if self.deliver(subscription, stop).await {
                        return;
                    }
                    pause = PAUSES.0;
                }
                Err(error) => {
                    if let Some(first) = first.take() {
                        let _gone = first.send(Err(error));
                        return;
                    }
                    tracing::error!(
                        target: LOG,
                        "Failed to start subscription for pubsub {}, topic {}: {error}",
                        self.wanted.pubsub,
                        self.wanted.topic
                    );
                    failed = true;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = pause.mul_f64(1.5).min(PAUSES.1);
        }
    }

    fn begun(&self, failed_before: bool) {
        if failed_before {
            tracing::info!(
                target: LOG,
                "Successfully started subscription after retry for pubsub {}, topic {}",
                self.wanted.pubsub,
                self.wanted.topic
            );
        }
    }

    async fn subscribe(&self) -> Result<Subscription, String> {
        let (pubsub, topic) = (&self.wanted.pubsub, &self.wanted.topic);
        if !self.broker.topics().may_subscribe(topic) {
            return Err(format!(
                "subscription to topic '{topic}' on pubsub '{pubsub}' is not allowed"
            ));
        }
        let request = Subscribe {
            topic: self.broker.stored_topic(topic).into_owned(),
            metadata: self.wanted.metadata.clone(),
            in_flight: NonZeroUsize::new(MAX_HELD).unwrap_or(NonZeroUsize::MIN),
        };
        let subscribed = self.broker.component().subscribe(request).await;
        subscribed.map_err(|error| {
            let error = self.broker.cleared(error);
            format!("failed to subscribe to topic {topic}: {error}")
        })
    }

    /// Delivers what comes until `stop`, or until the subscription ends by itself: then `false`.
    async fn deliver(&self, subscription: Subscription, stop: &CancellationToken) -> bool {
        let limits = limits(
            subscription.concurrency(),
            self.wanted.bulk.as_ref(),
            self.calls_at_once(),
        );
        if let Some(collector) = &self.collector {
            collector.limit(limits.in_flight, subscription.window());
        }
        let keeps_order = subscription.keeps_order();
        let needs_consumer = subscription.needs_consumer();
        self.needs_consumer.store(needs_consumer, Ordering::Relaxed);
        self.keeps_order.store(keeps_order, Ordering::Relaxed);
        let metrics = self.resilience_metrics();
        let (inbox, engine) = delivery::engine(limits, None, metrics);
        let engine = engine.under(&self.policy);
        let engine = engine.showing(Depth::of_topic(metrics, &self.wanted.pubsub, &self.wanted.topic));
        let engine = match &self.collector {
            Some(collector) => {
                engine.observed_by(Box::new(|in_flight, held| collector.observe(in_flight, held)))
            }
            None => engine,
        };
        let engine = match &self.sink {
            Sink::App(app) => engine
                .while_healthy(app.health().clone())
                .returning_while_unhealthy(needs_consumer),
            Sink::Stream(_) => engine,
        };
        let engine = match keeps_order {
            true => engine.in_order(Order::is_after),
            false => engine,
        };
        // Those behind one that failed go on when its dead letter is published, and not before that is known.
        let engine = match self.wanted.dead_letter {
            Some(_) => engine.holding(|handled| !matches!(handled, Handled::Done)),
            None => engine,
        };
        let ending = CancellationToken::new();
        let tokens = StopTokens {
            stop,
            ending: &ending,
        };
        let taking = delivery::take(self, subscription, inbox, tokens);
        let delivering = engine.run(&ending, OnStop::FinishAttempts, |event, limit| {
            self.attempt(event, limit, &ending)
        });
        let working = async { tokio::join!(taking, delivering).0 };
        let (stopped, ended) = tokio::select! {
            ended = working => ended,
            never = self.show_lag() => match never {},
        };
        self.lag.show();
        if let Err(error) = ended {
            tracing::error!(
                target: LOG,
                "the subscription to topic {} of {} ended: {error}",
                self.wanted.topic,
                self.wanted.pubsub
            );
        }
        stopped
    }

    /// Shows the lag as time goes by, also where nothing begins.
    async fn show_lag(&self) -> Infallible {
        let mut ticks = tokio::time::interval(LAG_INTERVAL);
        loop {
            ticks.tick().await;
            self.lag.show();
        }
    }

    /// Calls that the app is given at once, where that is bounded.
    fn calls_at_once(&self) -> Option<usize> {
        match &self.sink {
            Sink::App(app) => app.max_concurrency(),
            Sink::Stream(_) => None,
        }
    }

    /// What the app fails while it is unhealthy is nobody's verdict on the event.
    fn is_app_unhealthy(&self) -> bool {
        matches!(&self.sink, Sink::App(app) if !app.health().is_healthy())
    }

    fn resilience_metrics(&self) -> &outrigger_runtime::metrics::SidecarMetrics {
        &self.dependencies().resilience.metrics
    }

    /// What orders a message. In bulks that is a key alone: the messages of a partition go to the app together.
    fn order(&self, message: &Message) -> Option<Order> {
        let lane = message.lane.clone()?;
        if self.collector.is_some() && lane.key.is_none() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            return Some(Order::alone(lane, number));
        }
        Some(Order::after(lane))
    }

    /// Whether the messages behind one that fails wait until that one has come again.
    fn is_in_order(&self, message: &Message) -> bool {
        self.keeps_order.load(Ordering::Relaxed)
            && matches!(&message.lane, Some(lane) if lane.key.is_some() || self.collector.is_none())
    }

    /// The name that apps use for a topic of the broker.
    fn app_topic(&self, stored: &Arc<str>) -> Arc<str> {
        let prefix = self.broker.stored_topic("");
        match stored.strip_prefix(prefix.as_ref()) {
            Some(topic) if !prefix.is_empty() => topic.into(),
            _ => Arc::clone(stored),
        }
    }

    /// Publishes a message to the dead-letter topic, where there is one: as the app would, with its rights and under the
    /// policy of the component.
    async fn dead_letter(&self, message: &Message, why: &str) -> DeadLettering {
        let Some(topic) = &self.wanted.dead_letter else {
            return DeadLettering::NoTopic;
        };
        let Some((data, mut metadata)) = hops::next(message, self.wanted.raw).await else {
            tracing::error!(
                target: LOG,
                "dropped a message of topic {} of {}: it became a dead letter {MAX_HOPS} times, so dead-letter topics lead back \
                 to each other; its next one is {topic}, because {why}",
                message.topic,
                self.wanted.pubsub
            );
            return DeadLettering::Looped;
        };
        metadata.insert(PUBSUB_NAME.to_owned(), self.wanted.pubsub.clone());
        if let Some(content_type) = &message.content_type {
            metadata.insert(CONTENT_TYPE.to_owned(), content_type.clone());
        }
        let copy = Publish {
            topic: self.broker.stored_topic(topic).into_owned(),
            data,
            content_type: message.content_type.clone(),
            declared: message.content_type.clone(),
            metadata,
        };
        let allowed = self.broker.check_allowed(topic, &self.dependencies().app_id);
        let published = match allowed {
            Ok(()) => {
                let sent = self.broker.send(&copy, Protocol::Grpc).await;
                sent.map_err(|cause| cause.to_string())
            }
            Err(forbidden) => Err(forbidden.to_string()),
        };
        let origin = &message.topic;
        self.metrics()
            .dead_letter(&self.wanted.pubsub, &self.wanted.topic, published.is_ok());
        match published {
            Ok(()) => {
                tracing::warn!(
                    target: LOG,
                    "a message of topic {origin} of {} went to the dead-letter topic {topic}: {why}",
                    self.wanted.pubsub
                );
                DeadLettering::Published
            }
            Err(error) => {
                tracing::error!(
                    target: LOG,
                    "error sending message to dead letter, origin topic: {origin} dead letter topic {topic} err: \
                     {error}; it should go there because {why}"
                );
                DeadLettering::Failed
            }
        }
    }

    /// Nobody could do anything with a message: the broker has it again.
    async fn return_to_broker(&self, topic: &str, why: &str, lane: LaneReturn, receipt: Receipt) {
        self.metrics()
            .event(&self.wanted.pubsub, topic, Status::Retry, false, Duration::ZERO);
        tracing::warn!(
            target: LOG,
            "a message of topic {topic} of {} is returned to the broker: {why}",
            self.wanted.pubsub
        );
        lane.give_back(receipt).await;
    }

    async fn attempt(
        &self,
        event: Arc<Incoming>,
        limit: Attempt,
        ending: &CancellationToken,
    ) -> (Handled, Outcome) {
        if limit.number == 1 {
            self.lag.show();
        }
        let attempted = match (&self.sink, &self.collector) {
            (Sink::App(app), Some(collector)) => {
                return collector.attempt(self, app, event, limit, ending).await;
            }
            (Sink::App(app), None) if app.is_grpc() => limit.within(pin!(self.over_grpc(app, &event))).await,
            (Sink::App(app), None) => limit.within(pin!(self.over_http(app, &event))).await,
            (Sink::Stream(stream), _) => limit.within(pin!(stream.deliver(self, &event, ending))).await,
        };
        attempted.unwrap_or_else(timed_out)
    }
}

impl Consumer for Target {
    type Event = Incoming;
    type Outcome = Handled;
    type Disposition = Disposition;

    async fn offer(&self, inbox: &Inbox<Order, Incoming, Handled>, message: &Message) -> Disposition {
        let topic = self.app_topic(&message.topic);
        if message.redelivered.is_some_and(|before| before > 0) {
            self.metrics().redelivered(&self.wanted.pubsub, &topic);
        }
        match prepared(&self.wanted, self.broker.name(), topic, message).await {
            Prepared::Ready(incoming) => {
                let unhandled = incoming.published.map(|published| self.lag.hold(published));
                match inbox.offer(self.order(message), *incoming).await {
                    Ok(pending) => Disposition::Pending(pending, unhandled),
                    Err(_) => Disposition::Stopped,
                }
            }
            Prepared::Dropped(why) => Disposition::Dropped(why),
            Prepared::Unreadable(why) => Disposition::Unreadable(why),
        }
    }

    async fn settle(&self, message: Message, rest: Disposition, receipt: Receipt, tokens: StopTokens<'_>) {
        let topic = self.app_topic(&message.topic);
        let counted = |status, by_app| {
            let metrics = self.metrics();
            metrics.event(&self.wanted.pubsub, &topic, status, by_app, Duration::ZERO);
        };
        let mut lane = LaneReturn::NONE;
        // Counts in the lag until the broker is told: its dead letter may take long.
        let _until_settled;
        let failed = match rest {
            Disposition::Stopped => return receipt.release(false),
            Disposition::Dropped(why) => {
                let (why, by_app) = match why {
                    Dropped::Expired => ("it has expired", false),
                    Dropped::NoRoute => ("no route matches it", true),
                };
                match self.dead_letter(&message, why).await {
                    DeadLettering::Failed => return self.return_to_broker(&topic, why, lane, receipt).await,
                    DeadLettering::Published | DeadLettering::Looped | DeadLettering::NoTopic => {
                        counted(Status::Drop, by_app);
                        return receipt.acknowledge();
                    }
                }
            }
            Disposition::Unreadable(why) => {
                tracing::error!(
                    target: LOG,
                    "error deserializing cloud event in pubsub {} and topic {topic}: {why}",
                    self.wanted.pubsub
                );
                // No app sees it: there is nothing to wait for.
                why
            }
            Disposition::Pending(pending, unhandled) => {
                _until_settled = unhandled;
                let (handled, hold) = pending.decided().await;
                lane = LaneReturn {
                    with_lane: self.is_in_order(&message),
                    hold,
                };
                match handled {
                    Ok(Handled::Done) => return receipt.acknowledge(),
                    Ok(Handled::Dropped(why)) => {
                        return match self.dead_letter(&message, why).await {
                            DeadLettering::Failed => lane.give_back(receipt).await,
                            DeadLettering::Published | DeadLettering::Looped | DeadLettering::NoTopic => {
                                receipt.acknowledge();
                            }
                        };
                    }
                    // Its retries were cut short, or its app or client is gone: somebody else gets it.
                    Ok(Handled::Failed(_)) if tokens.any_cancelled() || self.is_app_unhealthy() => {
                        return lane.release(receipt).await;
                    }
                    Err(Undelivered::Stopped | Undelivered::Revoked) => return receipt.release(false),
                    Err(Undelivered::Blocked) => return receipt.release(true),
                    Ok(Handled::Failed(why)) => why,
                    Err(refused @ Undelivered::Refused(_)) => refused.to_string(),
                }
            }
        };
        match self.dead_letter(&message, &failed).await {
            DeadLettering::Published | DeadLettering::Looped => {
                counted(Status::Drop, false);
                receipt.acknowledge();
            }
            DeadLettering::Failed | DeadLettering::NoTopic => {
                self.return_to_broker(&topic, &failed, lane, receipt).await;
            }
        }
    }
}

/// How a message goes back to the broker: alone, or with those behind it in its lane.
struct LaneReturn {
    with_lane: bool,
    /// While there is a dead-letter topic: they wait until it is known whether it takes the message.
    hold: Hold,
}

impl LaneReturn {
    const NONE: Self = Self {
        with_lane: false,
        hold: Hold::NONE,
    };

    async fn give_back(self, receipt: Receipt) {
        match self.with_lane {
            // The engine has to know first: it attempts none of the lane until the broker has all of it.
            true if self.hold.return_lane().await => receipt.give_back_lane(),
            true => receipt.release(false),
            false => receipt.give_back(),
        }
    }

    /// The same for a message that nobody failed.
    async fn release(self, receipt: Receipt) {
        let with_lane = self.with_lane && self.hold.return_lane().await;
        receipt.release(with_lane);
    }
}

/// How many messages are taken at once: what the component says, else enough for one bulk at least; no more than the app takes
/// in `calls`, so that none waits for the app as one that is being handled.
fn limits(concurrency: Option<NonZeroUsize>, bulk: Option<&Bulk>, calls: Option<usize>) -> Limits {
    let in_flight = match concurrency {
        Some(concurrency) => concurrency.get(),
        None => MAX_IN_FLIGHT.max(bulk.map_or(0, |bulk| bulk.count)),
    };
    let in_calls = calls.map_or(usize::MAX, |calls| {
        calls.saturating_mul(bulk.map_or(1, |bulk| bulk.count.max(1)))
    });
    Limits {
        in_flight: in_flight.min(in_calls).min(MAX_HELD),
        held: MAX_HELD,
    }
}

/// An attempt that took longer than its policy lets it.
pub(super) fn timed_out() -> (Handled, Outcome) {
    let text = "context deadline exceeded".to_owned();
    (Handled::Failed(text), Outcome::TimedOut)
}

/// What became of a message that the app does not handle.
enum DeadLettering {
    /// It is in the dead-letter topic.
    Published,
    /// It should be there and is not.
    Failed,
    /// It was one too often.
    Looped,
    /// There is no dead-letter topic.
    NoTopic,
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.wanted.origin == SubscriptionType::Streaming {
            tracing::info!(
                target: LOG,
                "Unsubscribed from pubsub '{}' topic '{}'",
                self.wanted.pubsub,
                self.wanted.topic
            );
        }
    }
}

#[cfg(test)]
mod tests;
