//! Answers in a clustered deployment: a worker's answer may reach any sidecar of the app, whichever sent the work. The sidecar
//! that waits for it watches the executor of the piece of work; the one that has it delivers it there.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::HeaderMap;
use outrigger_backoff::Backoff;
use prost::{DecodeError, Message};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::error::Cancelled;
use crate::actors::{ActorCall, ActorError};
use crate::workflow::engine::{Engine, request};
use crate::workflow::protocol::{LOG, WATCH_PAUSE, methods};

/// How long an answer is offered that no sidecar takes: the one that waits for it may be about to watch its executor, or to
/// look where that has moved.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Before an answer is offered a second time, and the longest time between two offers.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));

impl Engine {
    /// Takes what other sidecars bring to an executor, until it is dropped. It ends where an answer may have got lost.
    pub(crate) async fn remote_answer(
        &self,
        id: String,
        take: impl Fn(&[u8]) -> Result<bool, DecodeError>,
    ) -> Cancelled {
        if !self.is_clustered {
            return pending().await;
        }
        let call = request(&self.types.executor, &id, methods::WATCH_COMPLETE, Bytes::new());
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

    /// Cancels the wait of the sidecar that waits for the answer to a step.
    pub(crate) async fn cancel_remotely(&self, id: &str) {
        let kind = &self.types.executor;
        let called = self.call(kind, id, methods::CANCEL, HeaderMap::new(), Bytes::new());
        if let Err(error) = called.await {
            tracing::warn!(
                target: LOG,
                "cannot report to the sidecar that runs '{id}' that there is no answer to its turn: {error}"
            );
        }
    }

    /// Delivers an answer to the sidecar that waits for it; whether there is one.
    pub(crate) async fn deliver_remotely(&self, id: &str, answer: &impl Message) -> Result<bool, Status> {
        let answer = Bytes::from(answer.encode_to_vec());
        let (began, mut pauses) = (Instant::now(), PAUSES);
        loop {
            let kind = &self.types.executor;
            let called = self.call(kind, id, methods::COMPLETE, HeaderMap::new(), answer.clone());
            let Err(error) = called.await else {
                return Ok(true);
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

/// Whether an executor may have told an answer that did not arrive. One that moves says so behind all that it has told.
fn may_be_lost(error: &ActorError) -> bool {
    matches!(error, ActorError::Cut(_)) || !error.is_about_place()
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
