//! A broker and the rules around it.

use std::borrow::Cow;
use std::sync::Arc;

use outrigger_component::PubSub;
use outrigger_component::pubsub::Features;
use outrigger_policy::resiliency::ComponentKind;

use super::Topics;
use crate::blocks::outbound::Outbound;
use crate::resilience::Resilience;

/// A broker and the rules around it.
pub struct Broker {
    name: Arc<str>,
    component: Arc<dyn PubSub>,
    features: Features,
    topics: Topics,
    /// What the broker's topics begin with, before the name that apps use.
    prefix: String,
    pub(super) outbound: Outbound,
}

impl Broker {
    pub(super) fn new(
        name: &str,
        component: Arc<dyn PubSub>,
        topics: Topics,
        prefix: String,
        resilience: &Resilience,
    ) -> Self {
        Self {
            name: name.into(),
            features: component.features(),
            component,
            topics,
            prefix,
            outbound: Outbound::new(name, ComponentKind::Pubsub, resilience),
        }
    }

    /// The component's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The broker itself, without any rules.
    pub fn component(&self) -> &Arc<dyn PubSub> {
        &self.component
    }

    /// What it can do.
    pub fn features(&self) -> Features {
        self.features
    }

    /// What this app may publish and subscribe to.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// The broker's own name of a topic. A component with `{namespace}` in its properties has topics of the namespace.
    pub fn stored_topic<'t>(&self, topic: &'t str) -> Cow<'t, str> {
        match self.prefix.as_str() {
            "" => Cow::Borrowed(topic),
            prefix => Cow::Owned(format!("{prefix}{topic}")),
        }
    }
}
