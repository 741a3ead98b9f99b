//! The actors that purge ended instances after their retention time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_resources::configuration::Retention;
use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_workflow::names;
use prost_types::{Any, Timestamp};
use tonic::Status;

use crate::actors::{ActorCall, ActorError, InternalActors};
use crate::workflow::engine::Engine;
use crate::workflow::error::{is_stalled, is_unknown, retry_later};
use crate::workflow::protocol::{RETENTION_CALL, metadata, methods, now};

pub(crate) struct Retentioners {
    engine: Arc<Engine>,
}

impl Retentioners {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

impl InternalActors for Retentioners {
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move { Err(Status::unimplemented(format!("no such method: {}", call.method))) })
    }

    fn remind<'a>(
        &'a self,
        id: &'a str,
        _name: &'a str,
        _data: Option<&'a Any>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let engine = &self.engine;
            let kind = &engine.types.workflow;
            let by_retention = metadata(RETENTION_CALL, "true");
            let purged = engine
                .call(kind, id, methods::PURGE, by_retention, Bytes::new())
                .await;
            match purged {
                // Gone, restarted, or stalled: not to be purged now.
                Err(error) if !is_unknown(&error) && !is_stalled(&error) && !is_early(&error) => {
                    Err(retry_later(error))
                }
                _ => Ok(()),
            }
        })
    }

    fn halt<'a>(&'a self, _id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {})
    }

    fn is_kept(&self, _id: &str) -> bool {
        false
    }
}

fn is_early(error: &ActorError) -> bool {
    error.to_string().ends_with("orchestration has not yet completed")
}

impl Engine {
    /// Schedules the purge of an ended instance.
    pub(crate) async fn retain(
        &self,
        id: &str,
        status: OrchestrationStatus,
        ended: Option<Timestamp>,
    ) -> Result<(), Status> {
        let Some(keep) = self.retention.and_then(|retention| time(&retention, status)) else {
            return Ok(());
        };
        let mut due = ended.unwrap_or_else(now);
        due.seconds = due
            .seconds
            .saturating_add(i64::try_from(keep.as_secs()).unwrap_or(i64::MAX));
        due.nanos += i32::try_from(keep.subsec_nanos()).unwrap_or_default();
        due.normalize();
        self.remind(&self.types.retentioner, id, names::RETENTION, Some(due), None)
            .await
    }
}

/// The retention time of a status.
fn time(retention: &Retention, status: OrchestrationStatus) -> Option<Duration> {
    let own = match status {
        OrchestrationStatus::Completed => retention.completed,
        OrchestrationStatus::Failed => retention.failed,
        OrchestrationStatus::Terminated => retention.terminated,
        _ => None,
    };
    own.or(retention.any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specific_status_overrides_any() {
        let retention = Retention {
            any: Some(Duration::from_secs(9)),
            failed: Some(Duration::ZERO),
            ..Retention::default()
        };
        assert_eq!(
            time(&retention, OrchestrationStatus::Failed),
            Some(Duration::ZERO)
        );
        assert_eq!(
            time(&retention, OrchestrationStatus::Completed),
            Some(Duration::from_secs(9))
        );
        assert_eq!(time(&Retention::default(), OrchestrationStatus::Completed), None);
    }
}
