//! Publish/subscribe: the brokers of this sidecar, and what an app may publish to them and have of them.

mod broker;
mod category;
mod codes;
mod envelope;
mod error;
mod publish;
mod topics;

use std::sync::Arc;

use outrigger_component::PubSub;
use outrigger_redact::Secrets;
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::Resilience;
use outrigger_telemetry::trace::Tracer;
use tokio::sync::watch;

pub use broker::Broker;
pub(crate) use envelope::apply_overrides;
pub use envelope::{Payload, event_time};
pub use error::PublishError;
pub use publish::{BulkPayload, Protocol, RequestContext, Target};
pub use topics::Topics;

/// Every broker of the sidecar.
pub struct PubSubs {
    app_id: Arc<str>,
    brokers: Registry<Broker>,
    resilience: Arc<Resilience>,
    /// Told whenever a broker comes or goes.
    changes: Arc<watch::Sender<()>>,
    tracer: Tracer,
}

impl PubSubs {
    /// Without brokers; those to come are called under the policies and metrics of `resilience`.
    pub fn new(app_id: Arc<str>, resilience: Arc<Resilience>, tracer: Tracer) -> Self {
        Self {
            app_id,
            brokers: Registry::default(),
            resilience,
            changes: Arc::default(),
            tracer,
        }
    }

    /// The app that the sidecar serves.
    pub fn app_id(&self) -> &str {
        &self.app_id
    }

    /// The broker of this name.
    pub fn broker(&self, name: &str) -> Option<Arc<Broker>> {
        self.brokers.get(name)
    }

    /// The names of all brokers, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.brokers.names()
    }

    /// Whether there is no broker at all.
    pub fn is_empty(&self) -> bool {
        self.brokers.is_empty()
    }

    /// Tells when a broker came, was replaced or went.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Adds a broker, in the place of one with its name.
    pub(crate) fn insert(
        &self,
        name: &str,
        component: Arc<dyn PubSub>,
        topics: Topics,
        prefix: String,
        hidden: Secrets,
    ) -> Registration {
        let broker = Broker::new(name, component, topics, prefix, &self.resilience, hidden);
        let registration = self.brokers.insert(name, broker);
        self.changes.send_replace(());
        let changes = Arc::clone(&self.changes);
        registration.then(move || {
            changes.send_replace(());
        })
    }
}
