//! Publish/subscribe: the brokers of this sidecar, and the topics that an app may publish and subscribe to.

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

/// All brokers of the sidecar.
pub struct PubSubs {
    app_id: Arc<str>,
    brokers: Registry<Broker>,
    resilience: Arc<Resilience>,
    /// Notified when a broker is added, replaced or removed.
    changes: Arc<watch::Sender<()>>,
    tracer: Tracer,
}

impl PubSubs {
    /// No brokers yet; later ones are called under the policies and metrics of `resilience`.
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

    /// The broker with this name.
    pub fn broker(&self, name: &str) -> Option<Arc<Broker>> {
        self.brokers.get(name)
    }

    /// The names of all brokers, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.brokers.names()
    }

    /// Whether there is no broker.
    pub fn is_empty(&self) -> bool {
        self.brokers.is_empty()
    }

    /// Notifications about added, replaced or removed brokers.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Adds or replaces a broker.
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
