//! Resources as the operator of a cluster reports them.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use outrigger_resources::Loaded;
use outrigger_resources::load::Kind;
use outrigger_wire::operator::v1::{ComponentUpdateEvent, HttpEndpointUpdateEvent, ResourceEventType};
use tokio::time::{Instant, sleep_until};

use super::{Event, LOG, ListError, Source};
use crate::operator::{Operator, OperatorError, Update, Updates};

/// When a list that could not be had is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// The operator's HTTP endpoints and, where they are followed too, its components.
pub struct OperatorSource {
    operator: Operator,
    components: Option<Updates<ComponentUpdateEvent>>,
    endpoints: Updates<HttpEndpointUpdateEvent>,
    /// There is no list since a stream began.
    again: Option<Instant>,
}

impl OperatorSource {
    /// Asks nothing yet. `components`: whether they are followed too.
    pub fn new(operator: Operator, components: bool) -> Self {
        Self {
            components: components.then(|| operator.component_updates()),
            endpoints: operator.endpoint_updates(),
            operator,
            again: None,
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

/// What the operator has; its components only where they are followed.
async fn list(operator: &Operator, components: bool) -> Result<Loaded, ListError> {
    let mut loaded = if components {
        operator.components().await.map_err(list_error)?
    } else {
        Loaded::default()
    };
    // No endpoint is worth the end of the process.
    let endpoints = operator.endpoints().await;
    let endpoints = endpoints.map_err(|error| ListError::Unavailable(error.to_string()))?;
    loaded.http_endpoints = endpoints.http_endpoints;
    Ok(loaded)
}

fn list_error(error: OperatorError) -> ListError {
    match error {
        OperatorError::Content(text) => ListError::Contradiction(format!("the operator: {text}")),
        error => ListError::Unavailable(error.to_string()),
    }
}

#[async_trait]
impl Source for OperatorSource {
    async fn begin(&mut self) -> bool {
        match &mut self.components {
            Some(components) => matches!(components.next().await, Update::Began),
            // The first list comes when the stream of endpoints begins.
            None => false,
        }
    }

    async fn list(&mut self) -> Result<Loaded, ListError> {
        self.again = None;
        let listed = list(&self.operator, self.components.is_some()).await;
        if matches!(listed, Err(ListError::Unavailable(_))) {
            self.again = Some(Instant::now() + AGAIN);
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
            let components = async {
                match &mut self.components {
                    Some(components) => components.next().await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                () = again => {
                    self.again = None;
                    return Event::Relist;
                }
                update = components => match update {
                    Update::Began => Some(Event::Relist),
                    Update::Said(event) => self.component_event(event),
                },
                update = self.endpoints.next() => match update {
                    Update::Began => Some(Event::Relist),
                    Update::Said(event) => self
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
