//! Passes messages to the engine and makes the attempts that it requests.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_component::pubsub::{Message, Receipt, Subscription};
use outrigger_delivery::{Limits, Verdict};
use outrigger_policy::resiliency::Outcome;
use outrigger_runtime::delivery::{self, Consumer, Depth, Inbox, OnStop, Order, StopTokens};
use outrigger_runtime::resilience::Attempt;
use tokio_util::sync::CancellationToken;

use super::{LOG, Offered, Sink, Target};
use crate::subscriptions::incoming::{Incoming, prepared};
use crate::subscriptions::spec::Bulk;

/// Events of one subscription in flight to the app, unless the component sets a concurrency.
pub(super) const MAX_IN_FLIGHT: usize = 128;
/// Events in flight, queued or waiting for a retry.
pub(super) const MAX_UNSETTLED: usize = 1024;
/// Interval of updating the lag.
const LAG_INTERVAL: Duration = Duration::from_secs(1);

impl Target {
    /// Delivers messages until `stop`, or until the subscription ends by itself: then returns `false`.
    pub(super) async fn deliver(&self, subscription: Subscription, stop: &CancellationToken) -> bool {
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
        let metrics = self.resilience_metrics();
        let (inbox, engine) = delivery::engine(limits, None, metrics);
        let engine = engine.under(&self.policy);
        let engine = engine.showing(Depth::of_topic(metrics, &self.wanted.pubsub, &self.wanted.topic));
        let engine = match &self.collector {
            Some(collector) => engine.observed_by(Box::new(|in_flight, unsettled| {
                collector.observe(in_flight, unsettled)
            })),
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
        // Events of a key wait until the dead letter of a failed predecessor is published.
        let engine = match self.wanted.dead_letter {
            Some(_) => engine.pausing_keys(|verdict| *verdict != Verdict::Acknowledge),
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

    /// Updates the lag periodically, even without deliveries.
    async fn show_lag(&self) -> Infallible {
        let mut ticks = tokio::time::interval(LAG_INTERVAL);
        loop {
            ticks.tick().await;
            self.lag.show();
        }
    }

    /// Concurrent calls of the app, if limited.
    fn calls_at_once(&self) -> Option<usize> {
        match &self.sink {
            Sink::App(app) => app.max_concurrency(),
            Sink::Stream(_) => None,
        }
    }

    fn resilience_metrics(&self) -> &outrigger_runtime::metrics::SidecarMetrics {
        &self.dependencies().resilience.metrics
    }

    /// The ordering of a message. In bulks only a key orders: messages of a partition are delivered together.
    pub(super) fn order(&self, message: &Message) -> Option<Order> {
        let ordering_key = message.ordering_key.clone()?;
        if self.collector.is_some() && ordering_key.key.is_none() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            return Some(Order::alone(ordering_key, number));
        }
        Some(Order::after(ordering_key))
    }

    /// The app's name of a broker topic.
    pub(super) fn app_topic(&self, stored: &Arc<str>) -> Arc<str> {
        let prefix = self.broker.stored_topic("");
        match stored.strip_prefix(prefix.as_ref()) {
            Some(topic) if !prefix.is_empty() => topic.into(),
            _ => Arc::clone(stored),
        }
    }

    async fn attempt(
        &self,
        event: Arc<Incoming>,
        limit: Attempt,
        ending: &CancellationToken,
    ) -> (Verdict, Outcome) {
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
    type Outcome = Verdict;
    type Offered = Offered;

    async fn offer(&self, inbox: &Inbox<Order, Incoming, Verdict>, message: &Message) -> Offered {
        let topic = self.app_topic(&message.topic);
        if message.redelivered.is_some_and(|before| before > 0) {
            self.metrics().redelivered(&self.wanted.pubsub, &topic);
        }
        let incoming = prepared(&self.wanted, self.broker.name(), topic, message).await?;
        let in_lag = incoming.published.map(|published| self.lag.add(published));
        let pending = inbox.offer(self.order(message), *incoming).await;
        Ok((pending, in_lag))
    }

    async fn settle(&self, message: Message, offered: Offered, receipt: Receipt, tokens: StopTokens<'_>) {
        self.settle_message(message, offered, receipt, tokens).await;
    }
}

/// Limits of messages in flight: the component's concurrency, or enough for one bulk. At most `calls`, the
/// app's concurrency, so that no message in flight waits for the app.
pub(super) fn limits(concurrency: Option<NonZeroUsize>, bulk: Option<&Bulk>, calls: Option<usize>) -> Limits {
    let in_flight = match concurrency {
        Some(concurrency) => concurrency.get(),
        None => MAX_IN_FLIGHT.max(bulk.map_or(0, |bulk| bulk.count)),
    };
    let in_calls = calls.map_or(usize::MAX, |calls| {
        calls.saturating_mul(bulk.map_or(1, |bulk| bulk.count.max(1)))
    });
    Limits {
        in_flight: in_flight.min(in_calls).min(MAX_UNSETTLED),
        unsettled: MAX_UNSETTLED,
    }
}

/// An attempt that exceeded the timeout of its policy.
pub(in crate::subscriptions) fn timed_out() -> (Verdict, Outcome) {
    let text = "context deadline exceeded".to_owned();
    (Verdict::Reject(text), Outcome::TimedOut)
}
