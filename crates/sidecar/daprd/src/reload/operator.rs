//! The operator of a cluster as a source of resources.

use async_trait::async_trait;
use outrigger_resources::Loaded;
use outrigger_resources::load::Kind;
use outrigger_wire::operator::v1::ResourceEventType;
use tokio::time::{Instant, sleep_until};

use super::{Event, LOG, ListError, Shown, Source};
use crate::operator::{Change, Operator, OperatorError, OperatorKind, Pauses, Update, Updates};

/// One kind of the operator's resources. Each kind has its own source, so that a slow list delays no other
/// kind.
pub struct OperatorSource {
    operator: Operator,
    kind: OperatorKind,
    updates: Updates,
    /// Time of the next attempt after a failed list.
    retry_at: Option<Instant>,
    pauses: Pauses,
    shown: Shown,
}

impl OperatorSource {
    /// The operator's resources of a kind. Makes no request yet.
    pub fn new(operator: Operator, kind: Kind) -> Self {
        let kind = OperatorKind::of(kind);
        Self {
            updates: operator.updates(kind),
            operator,
            kind,
            retry_at: None,
            pauses: Pauses::new(),
            shown: Shown::default(),
        }
    }

    /// The event of a change, if its resource can be read.
    fn event(&self, change: Change) -> Option<Event> {
        let (kind, event) = (self.kind.kind, change.event);
        let loaded = match self.operator.read(std::iter::once((kind, change.json))) {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::error!(target: LOG, "{error}");
                return None;
            }
        };
        crate::log_problems!(LOG, &loaded.warnings);
        let (name, log_name) = (self.kind.first)(&loaded)?;
        let kind_name = kind.name().to_ascii_lowercase();
        tracing::debug!(target: LOG, "received {kind_name} update: {log_name} {event:?}");
        Some(match event {
            ResourceEventType::Deleted => Event::Ended(kind, name),
            ResourceEventType::Created | ResourceEventType::Updated => Event::Changed(Box::new(loaded)),
            ResourceEventType::Unknown => Event::Relist,
        })
    }
}

#[async_trait]
impl Source for OperatorSource {
    async fn begin(&mut self) -> bool {
        // The first update reports that the stream was requested.
        self.updates.next().await;
        true
    }

    async fn list(&mut self) -> Result<Loaded, ListError> {
        self.retry_at = None;
        let listed = self.operator.list(self.kind.kind).await;
        let listed = match listed {
            Ok(listed) => listed.ok_or(ListError::Unknown),
            // Only contradicting components end the process.
            Err(OperatorError::Content(text)) if self.kind.kind == Kind::Component => {
                Err(ListError::Contradiction(format!("the operator: {text}")))
            }
            Err(error) => Err(ListError::Unavailable(error.to_string())),
        };
        if let Ok(listed) = &listed {
            self.shown.show(&listed.warnings);
        }
        if matches!(listed, Err(ListError::Unavailable(_))) {
            self.retry_at = Some(Instant::now() + self.pauses.next());
        } else {
            self.pauses.reset();
        }
        listed
    }

    async fn next(&mut self) -> Event {
        loop {
            let retry_at = self.retry_at;
            let retry = async {
                match retry_at {
                    Some(moment) => sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                () = retry => {
                    self.retry_at = None;
                    Some(Event::Relist)
                }
                update = self.updates.next() => match update {
                    Update::Opening => Some(Event::Relist),
                    Update::Change(change) => self.event(change),
                },
            };
            if let Some(event) = event {
                return event;
            }
        }
    }
}
