//! Clustered deployments: workers whose answers reach any sidecar of the app, whichever sent the work. Whoever waits for an
//! answer waits at home and at the executor of the piece of work; an answer that nobody waits for at home is brought there.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use outrigger_backoff::Backoff;
use outrigger_wire::durabletask::{ActivityRequest, ActivityResponse, OrchestratorResponse};
use outrigger_workflow::names;
use prost::{DecodeError, Message};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::queue::Cancelled;
use crate::actors::internal::PROTOBUF;
use crate::actors::{ActorCall, ActorError};
use crate::workflow::engine::{Engine, methods};
use crate::workflow::{LOG, WATCH_PAUSE, Workflows};

/// How long an answer is offered that nobody takes: who waits for it may be about to watch its executor, or to look where
/// that has moved.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Before an answer is offered a second time, and the longest time between two offers.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));

impl Engine {
    /// Has a worker run a turn of an instance: an `OrchestratorRequest`, encoded, in pieces.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn orchestrate(
        &self,
        instance: &str,
        request: Vec<Bytes>,
    ) -> Result<OrchestratorResponse, Cancelled> {
        let remote = self.remote_answer(instance.to_owned(), |answer| {
            let response = OrchestratorResponse::decode(answer)?;
            Ok(response.instance_id == instance && self.queue.turn_done(response).is_none())
        });
        let losses = self.instance_failures.losses_of(instance);
        // What may be what ends the app is alone with it, as activities are.
        let _isolated = self.activity_failures.isolate_after(losses).await;
        self.queue
            .orchestrate(instance, request, losses, Box::pin(remote))
            .await
    }

    /// Has a worker run an activity.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn execute(&self, request: ActivityRequest) -> Result<ActivityResponse, Cancelled> {
        let instance = request.orchestration_instance.as_ref();
        let instance = instance.map_or_else(String::new, |instance| instance.instance_id.clone());
        let task = request.task_id;
        let remote = self.remote_answer(names::execution_id(&instance, task), move |answer| {
            let response = ActivityResponse::decode(answer)?;
            let is_this = (&response.instance_id, response.task_id) == (&instance, task);
            Ok(is_this && self.queue.activity_done(response).is_none())
        });
        self.queue.execute(request, Box::pin(remote)).await
    }

    /// Takes what other sidecars bring to an executor, until it is dropped. It ends where an answer may have got lost.
    async fn remote_answer(
        &self,
        id: String,
        take: impl Fn(&[u8]) -> Result<bool, DecodeError>,
    ) -> Cancelled {
        if !self.is_clustered {
            return pending().await;
        }
        let call = call(&self.types.executor, &id, methods::WATCH_COMPLETE, Vec::new());
        loop {
            match self.next_answer(&call).await {
                Ok(Some(answer)) => match take(&answer) {
                    // Whoever waits here has it.
                    Ok(true) => return pending().await,
                    Ok(false) => tracing::warn!(
                        target: LOG,
                        "ignored a late answer for '{id}' from another sidecar of the app: the work was given out again, or is finished"
                    ),
                    Err(error) => tracing::warn!(
                        target: LOG,
                        "an answer to '{id}' came from another sidecar of the app, and cannot be read: {error}"
                    ),
                },
                Err(error) if may_be_lost(&error) => {
                    tracing::warn!(
                        target: LOG,
                        "the answer to '{id}' may have been lost on its way from another sidecar of the app: {error}"
                    );
                    return Cancelled::Lost;
                }
                // It has moved, or is nowhere yet.
                Ok(None) | Err(_) => sleep(WATCH_PAUSE).await,
            }
        }
    }

    async fn next_answer(&self, call: &ActorCall) -> Result<Option<Vec<u8>>, ActorError> {
        let mut updates = self.actors()?.watch_once(call).await?;
        Ok(updates.next().await.transpose()?.map(|any| any.value))
    }
}

/// Whether an executor may have told an answer that did not arrive. One that moves says so behind all that it has told.
fn may_be_lost(error: &ActorError) -> bool {
    matches!(error, ActorError::Cut(_)) || !error.is_about_place()
}

fn call(executors: &str, id: &str, method: &str, body: Vec<u8>) -> ActorCall {
    ActorCall {
        kind: executors.to_owned(),
        id: id.to_owned(),
        method: method.to_owned(),
        content_type: Some(PROTOBUF),
        from_grpc: true,
        body: body.into(),
        ..ActorCall::default()
    }
}

impl Workflows {
    /// A worker has run a turn. Whether somebody waited for that, here or at another sidecar of the app.
    ///
    /// # Errors
    /// `Unavailable` where the others could not be asked.
    pub async fn turn_done(&self, response: OrchestratorResponse) -> Result<bool, Status> {
        match self.queue.turn_done(response) {
            None => Ok(true),
            Some(left) => self.bring(&left.instance_id, &left.completion_token, &left).await,
        }
    }

    /// A worker has run an activity, as [`Workflows::turn_done`] has it.
    ///
    /// # Errors
    /// As there.
    pub async fn activity_done(&self, response: ActivityResponse) -> Result<bool, Status> {
        match self.queue.activity_done(response) {
            None => Ok(true),
            Some(left) => {
                let id = names::execution_id(&left.instance_id, left.task_id);
                self.bring(&id, &left.completion_token, &left).await
            }
        }
    }

    /// Has the sidecar that waits for the answer to a turn wait no longer, where that is another one.
    pub(crate) async fn cancel(&self, id: &str, token: &str) {
        if !self.with.is_clustered || id.is_empty() || self.queue.is_own(token) {
            return;
        }
        let call = call(&self.types.executor, id, methods::CANCEL, Vec::new());
        if let Err(error) = self.with.actors.invoke_plain(&call).await {
            tracing::warn!(
                target: LOG,
                "cannot report to the sidecar that runs '{id}' that there is no answer to its turn: {error}"
            );
        }
    }

    /// Brings an answer to the sidecar that waits for it.
    async fn bring(&self, id: &str, token: &str, answer: &impl Message) -> Result<bool, Status> {
        if !self.with.is_clustered || self.queue.is_own(token) {
            return Ok(false);
        }
        let call = call(
            &self.types.executor,
            id,
            methods::COMPLETE,
            answer.encode_to_vec(),
        );
        let (began, mut pauses) = (Instant::now(), PAUSES);
        loop {
            let error = match self.with.actors.invoke_plain(&call).await {
                Ok(_) => return Ok(true),
                Err(error) => error,
            };
            let unwanted = error.status().is_some_and(|(code, _)| code == Code::NotFound);
            if began.elapsed() >= OFFER_TIMEOUT || matches!(error, ActorError::Illegal(_) | ActorError::Ended)
            {
                return match unwanted {
                    true => Ok(false),
                    false => Err(Status::unavailable(format!(
                        "the answer to '{id}' was not delivered to the sidecar that waits for it: {error}"
                    ))),
                };
            }
            sleep(pauses.pause()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ended_in_good_order_has_lost_nothing() {
        let status = |code| Status::new(code, "gone");
        for kept in [
            ActorError::Moved,
            ActorError::Disseminating,
            ActorError::NoAddress {
                kind: "e".to_owned(),
                id: "a".to_owned(),
            },
            // It was never reached.
            ActorError::Peer(status(Code::Unavailable)),
            ActorError::Peer(Status::internal("error invoke actor method: remote actor moved")),
        ] {
            assert!(!may_be_lost(&kept), "{kept}");
        }
        for lost in [
            ActorError::Cut(status(Code::Unavailable)),
            // An executor of Dapr that ends may have been told something.
            ActorError::Peer(Status::unknown("closed")),
            ActorError::Internal(status(Code::Aborted)),
        ] {
            assert!(may_be_lost(&lost), "{lost}");
        }
    }
}
