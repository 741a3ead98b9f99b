//! One subscription: consumes messages of a broker, delivers them and settles each.

mod dispatch;
mod settle;
mod subscribe;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use outrigger_delivery::Verdict;
use outrigger_policy::resiliency::{ComponentKind, Direction};
use outrigger_runtime::app::AppChannel;
use outrigger_runtime::delivery::Pending;
use outrigger_runtime::resilience::ComponentPolicy;

use super::bulk::Collector;
use super::metrics::{IngressMetrics, Lag, LagEntry};
use super::spec::{AppSubscription, SubscriptionType};
use super::stream::Stream;
use super::{Dependencies, LOG, LastFailure, Subscriptions};
use crate::pubsub::Broker;

pub(super) use dispatch::timed_out;

/// The receiver of events.
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
    /// The next key of a message without ordering.
    next: AtomicU64,
    /// Whether the broker keeps messages only while there is a consumer. If so, a pause does not end the
    /// subscription.
    needs_consumer: Arc<AtomicBool>,
    failure: LastFailure,
    lag: Arc<Lag>,
}

/// A message in the engine with its lag entry, or the verdict on a message that is not delivered.
type Offered = Result<(Pending<Verdict>, Option<LagEntry>), Verdict>;

impl Target {
    pub(super) fn new(
        subscriptions: Arc<Subscriptions>,
        wanted: Arc<AppSubscription>,
        broker: Arc<Broker>,
        sink: Sink,
    ) -> Self {
        let policies = &subscriptions.dependencies.resilience.policies;
        let collector = match sink {
            Sink::App(_) => wanted
                .bulk
                .map(|bulk| Collector::new(bulk, broker.is_bulk_immediate())),
            Sink::Stream(_) => None,
        };
        Self {
            policy: policies.component(&wanted.pubsub, ComponentKind::Pubsub, Direction::Inbound),
            collector,
            next: AtomicU64::new(0),
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

    pub(super) fn dependencies(&self) -> &Dependencies {
        &self.subscriptions.dependencies
    }

    pub(super) fn metrics(&self) -> &IngressMetrics {
        &self.subscriptions.metrics
    }
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
