//! A broker with its topics, policy and metrics.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use outrigger_component::pubsub::Features;
use outrigger_component::{Error, PubSub};
use outrigger_policy::resiliency::ComponentKind;
use outrigger_redact::Secrets;
use outrigger_runtime::resilience::Resilience;
use outrigger_telemetry::metrics::{Registry, Remembered};

use super::Topics;
use crate::outbound::{FamilyNames, Operation, Outbound};

const PUBLISHED: FamilyNames = FamilyNames {
    count: "component_pubsub_egress_count",
    latencies: "component_pubsub_egress_latencies",
};
const PUBLISHED_BULK: FamilyNames = FamilyNames {
    count: "component_pubsub_egress_bulk_count",
    latencies: "component_pubsub_egress_bulk_latencies",
};

/// A broker with its topics, policy and metrics.
pub struct Broker {
    name: Arc<str>,
    component: Arc<dyn PubSub>,
    features: Features,
    topics: Topics,
    /// Prefix of the broker's topics, which apps do not see.
    prefix: String,
    pub(super) outbound: Outbound,
    registry: Registry,
    published: Remembered<Operation>,
    published_bulk: Remembered<Operation>,
}

impl Broker {
    /// Whether bulk subscriptions deliver each message at once.
    pub(crate) fn is_bulk_immediate(&self) -> bool {
        self.component.is_bulk_immediate()
    }

    pub(super) fn new(
        name: &str,
        component: Arc<dyn PubSub>,
        topics: Topics,
        prefix: String,
        resilience: &Resilience,
        hidden: Secrets,
    ) -> Self {
        Self {
            name: name.into(),
            features: component.features(),
            component,
            topics,
            prefix,
            outbound: Outbound::new(name, ComponentKind::Pubsub, resilience, hidden),
            registry: resilience.metrics.all().registry.clone(),
            published: Remembered::default(),
            published_bulk: Remembered::default(),
        }
    }

    /// The component's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The broker component, without rules.
    pub fn component(&self) -> &Arc<dyn PubSub> {
        &self.component
    }

    /// An error of the broker without secrets.
    pub fn cleared(&self, error: Error) -> Error {
        self.outbound.cleared(error)
    }

    /// The optional features that the broker supports.
    pub fn features(&self) -> Features {
        self.features
    }

    /// The topics that this app may publish and subscribe to.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// The broker's name of a topic. A component with `{namespace}` in its properties has topics of the
    /// namespace.
    pub fn stored_topic<'t>(&self, topic: &'t str) -> Cow<'t, str> {
        match self.prefix.as_str() {
            "" => Cow::Borrowed(topic),
            prefix => Cow::Owned(format!("{prefix}{topic}")),
        }
    }

    /// Counts a publish call.
    pub(super) fn published(&self, topic: &str, success: bool, elapsed: Duration) {
        self.count(&self.published, PUBLISHED, topic, success, elapsed);
    }

    /// Counts a bulk publish call.
    pub(super) fn published_bulk(&self, topic: &str, success: bool, elapsed: Duration) {
        self.count(&self.published_bulk, PUBLISHED_BULK, topic, success, elapsed);
    }

    fn count(
        &self,
        topics: &Remembered<Operation>,
        families: FamilyNames,
        topic: &str,
        success: bool,
        elapsed: Duration,
    ) {
        let resolve = || Operation::of_topic(&self.registry, families, &self.name, topic);
        topics.with(topic, resolve, |operation| operation.completed(success, elapsed));
    }
}
