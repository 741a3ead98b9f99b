//! The actors that purge instances which have ended, when their time is over.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use prost_types::Any;
use tonic::Status;

use super::engine::{Engine, RETENTION_CALL, again, metadata, methods};
use super::{is_stalled, is_unknown};
use crate::actors::{ActorCall, ActorError, InternalActors};

pub(super) struct Retentioners {
    engine: Arc<Engine>,
}

impl Retentioners {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

#[async_trait]
impl InternalActors for Retentioners {
    async fn invoke(&self, call: &ActorCall) -> Result<Bytes, Status> {
        Err(Status::unimplemented(format!("no such method: {}", call.method)))
    }

    async fn remind(&self, id: &str, _name: &str, _data: Option<&Any>) -> Result<(), Status> {
        let engine = &self.engine;
        let kind = &engine.types.workflow;
        let by_retention = metadata(RETENTION_CALL, "true");
        let purged = engine
            .call(kind, id, methods::PURGE, by_retention, Bytes::new())
            .await;
        match purged {
            // Gone, begun anew, or unable to end: in none of these is it time to purge it.
            Err(error) if !is_unknown(&error) && !is_stalled(&error) && !is_early(&error) => {
                Err(again(error))
            }
            _ => Ok(()),
        }
    }

    async fn halt(&self, _id: &str) {}

    fn is_kept(&self, _id: &str) -> bool {
        false
    }
}

fn is_early(error: &ActorError) -> bool {
    error.to_string().ends_with("orchestration has not yet completed")
}
