//! The actors that purge instances which have ended, when their time is over.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use prost_types::Any;
use tonic::Status;

use crate::actors::{ActorCall, ActorError, InternalActors};
use crate::workflow::engine::{Engine, RETENTION_CALL, metadata, methods, retry_later};
use crate::workflow::{is_stalled, is_unknown};

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
                // Gone, begun anew, or unable to end: in none of these is it time to purge it.
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
