//! Resources as the operator of a cluster reports them.

use async_trait::async_trait;
use bytes::Bytes;
use outrigger_resources::Loaded;
use outrigger_resources::load::Kind;
use outrigger_wire::operator::v1::{
    ComponentUpdateEvent, HttpEndpointUpdateEvent, ResourceEventType, SubscriptionUpdateEvent,
};
use tokio::time::{Instant, sleep_until};

use super::{Event, LOG, ListError, Source};
use crate::operator::{Operator, OperatorError, Pauses, Update, Updates};

/// One kind of the operator's resources. Each has a source of its own: a list that is late holds up no other kind.
pub struct OperatorSource {
    operator: Operator,
    kind: Kind,
    updates: Followed,
    /// When a list that could not be had is asked for again.
    again: Option<Instant>,
    pauses: Pauses,
}

enum Followed {
    Components(Updates<ComponentUpdateEvent>),
    Endpoints(Updates<HttpEndpointUpdateEvent>),
    Subscriptions(Updates<SubscriptionUpdateEvent>),
    /// The protocol has no stream of them: they are only listed again.
    Listed,
}

impl OperatorSource {
    /// Its resources of a kind. Asks nothing yet.
    pub fn new(operator: Operator, kind: Kind) -> Self {
        let updates = match kind {
            Kind::Component => Followed::Components(operator.component_updates()),
            Kind::HttpEndpoint => Followed::Endpoints(operator.endpoint_updates()),
            Kind::Subscription => Followed::Subscriptions(operator.subscription_updates()),
            Kind::Resiliency => Followed::Listed,
        };
        Self {
            operator,
            kind,
            updates,
            again: None,
            pauses: Pauses::new(),
        }
    }

    /// What an update of a subscription means, if it can be read.
    fn subscription_event(&self, event: SubscriptionUpdateEvent) -> Option<Event> {
        let kind = event.r#type();
        let loaded = self.read(Kind::Subscription, event.subscription)?;
        let name = loaded.subscriptions.first()?.name.clone();
        tracing::debug!(target: LOG, "received subscription update: {name} {kind:?}");
        match kind {
            ResourceEventType::Deleted => Some(Event::Ended(Kind::Subscription, name)),
            ResourceEventType::Created | ResourceEventType::Updated => Some(Event::Changed(Box::new(loaded))),
            ResourceEventType::Unknown => Some(Event::Relist),
        }
    }

    /// What an update of a component means, if it can be read.
    fn component_event(&self, event: ComponentUpdateEvent) -> Option<Event> {
        let kind = event.r#type();
        let loaded = self.read(Kind::Component, event.component)?;
        let component = loaded.components.first()?;
        tracing::debug!(target: LOG, "received component update: {} {kind:?}", component.log_name());
        match kind {
            ResourceEventType::Deleted => Some(Event::Ended(Kind::Component, component.name.clone())),
            ResourceEventType::Created | ResourceEventType::Updated => Some(Event::Changed(Box::new(loaded))),
            ResourceEventType::Unknown => Some(Event::Relist),
        }
    }

    fn read(&self, kind: Kind, json: Bytes) -> Option<Loaded> {
        match self.operator.read(std::iter::once((kind, json))) {
            Ok(loaded) => Some(loaded),
            Err(error) => {
                tracing::error!(target: LOG, "{error}");
                None
            }
        }
    }
}

#[async_trait]
impl Source for OperatorSource {
    async fn begin(&mut self) -> bool {
        match &mut self.updates {
            Followed::Components(updates) => matches!(updates.next().await, Update::Began),
            Followed::Subscriptions(updates) => matches!(updates.next().await, Update::Began),
            // The first list comes when the stream begins.
            Followed::Endpoints(_) => false,
            Followed::Listed => true,
        }
    }

    async fn list(&mut self) -> Result<Loaded, ListError> {
        self.again = None;
        let listed = self.operator.list(self.kind).await;
        let listed = listed.map_err(|error| match error {
            // Components may not contradict each other; nothing else is worth the end of the process.
            OperatorError::Content(text) if self.kind == Kind::Component => {
                ListError::Contradiction(format!("the operator: {text}"))
            }
            error => ListError::Unavailable(error.to_string()),
        });
        if matches!(listed, Err(ListError::Unavailable(_))) {
            self.again = Some(Instant::now() + self.pauses.next());
        } else {
            self.pauses.reset();
        }
        listed
    }

    async fn next(&mut self) -> Event {
        loop {
            let again = self.again;
            let again = async {
                match again {
                    Some(moment) => sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            let update = async {
                match &mut self.updates {
                    Followed::Components(updates) => match updates.next().await {
                        Update::Began => None,
                        Update::Said(event) => Some(WatchEvent::Component(event)),
                    },
                    Followed::Endpoints(updates) => match updates.next().await {
                        Update::Began => None,
                        Update::Said(event) => Some(WatchEvent::Endpoint(event)),
                    },
                    Followed::Subscriptions(updates) => match updates.next().await {
                        Update::Began => None,
                        Update::Said(event) => Some(WatchEvent::Subscription(event)),
                    },
                    Followed::Listed => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                () = again => {
                    self.again = None;
                    Some(Event::Relist)
                }
                said = update => match said {
                    None => Some(Event::Relist),
                    Some(WatchEvent::Component(event)) => self.component_event(event),
                    Some(WatchEvent::Subscription(event)) => self.subscription_event(event),
                    Some(WatchEvent::Endpoint(event)) => self
                        .read(Kind::HttpEndpoint, event.http_endpoints)
                        .map(|loaded| Event::Changed(Box::new(loaded))),
                },
            };
            if let Some(event) = event {
                return event;
            }
        }
    }
}

/// What a stream told.
enum WatchEvent {
    Component(ComponentUpdateEvent),
    Endpoint(HttpEndpointUpdateEvent),
    Subscription(SubscriptionUpdateEvent),
}
