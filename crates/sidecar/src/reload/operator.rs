//! Components as the operator of a cluster reports them.

use std::time::Duration;

use async_trait::async_trait;
use outrigger_resources::load::Kind;
use outrigger_wire::operator::v1::{ComponentUpdateEvent, ResourceEventType};
use tokio::time::{Instant, sleep_until};

use super::{Event, LOG, ListError, Listing, Source};
use crate::operator::{Operator, OperatorError, Update, Updates};

/// When a list that could not be had is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// The operator's components.
pub struct OperatorSource {
    operator: Operator,
    updates: Updates<ComponentUpdateEvent>,
    /// There is no list since the stream began.
    again: Option<Instant>,
}

impl OperatorSource {
    /// Asks nothing yet.
    pub fn new(operator: Operator) -> Self {
        let updates = operator.component_updates();
        Self {
            operator,
            updates,
            again: None,
        }
    }

    /// What an update means, if it can be read.
    fn event(&self, event: ComponentUpdateEvent) -> Option<Event> {
        let kind = event.r#type();
        let object = (Kind::Component, event.component);
        let component = match self.operator.read(std::iter::once(object)) {
            Ok(loaded) => loaded.components.into_iter().next()?,
            Err(error) => {
                tracing::error!(target: LOG, "{error}");
                return None;
            }
        };
        tracing::debug!(target: LOG, "received component update: {} {kind:?}", component.log_name());
        match kind {
            ResourceEventType::Deleted => Some(Event::Ended(component.name)),
            ResourceEventType::Created | ResourceEventType::Updated => Some(Event::Put(Box::new(component))),
            ResourceEventType::Unknown => Some(Event::Relist),
        }
    }
}

#[async_trait]
impl Source for OperatorSource {
    async fn begin(&mut self) -> bool {
        matches!(self.updates.next().await, Update::Began)
    }

    async fn list(&mut self) -> Result<Listing, ListError> {
        self.again = None;
        match self.operator.components().await {
            Ok(loaded) => Ok(Listing {
                components: loaded.components,
                broken: loaded.broken,
            }),
            Err(OperatorError::Content(text)) => {
                Err(ListError::Contradiction(format!("the operator: {text}")))
            }
            Err(error) => {
                self.again = Some(Instant::now() + AGAIN);
                Err(ListError::Unavailable(error.to_string()))
            }
        }
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
            let update = tokio::select! {
                () = again => {
                    self.again = None;
                    return Event::Relist;
                }
                update = self.updates.next() => update,
            };
            match update {
                Update::Began => return Event::Relist,
                Update::Said(event) => {
                    if let Some(event) = self.event(event) {
                        return event;
                    }
                }
            }
        }
    }
}
