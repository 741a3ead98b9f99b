//! Answers in a clustered deployment, where a worker's answer may reach any sidecar of the app. The sidecar
//! that waits for it watches the work item's executor; the sidecar that receives it delivers it there.

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

/// How long an answer is offered without a taker: the waiting sidecar may be about to watch the executor or
/// to follow it to its new host.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Backoff between offers.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));

impl Engine {
    /// Receives what other sidecars deliver to an executor. Returns if an answer may have been lost.
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
                    // The local queue has delivered it.
                    Ok(true) => return pending().await,
                    Ok(false) => tracing::warn!(
                        target: LOG,
                        "ignored a late answer for '{id}' from another sidecar of the app: the work was reassigned or is finished"
                    ),
                    Err(error) => tracing::warn!(
                        target: LOG,
                        "cannot decode an answer to '{id}' from another sidecar of the app: {error}"
                    ),
                },
                Err(error) if may_be_lost(&error) => {
                    tracing::warn!(
                        target: LOG,
                        "the answer to '{id}' may have been lost on its way from another sidecar of the app: {error}"
                    );
                    return Cancelled::Lost;
                }
                // The executor has moved or is not hosted yet.
                Ok(None) | Err(_) => sleep(WATCH_PAUSE).await,
            }
        }
    }

    async fn next_answer(&self, call: &ActorCall) -> Result<Option<Vec<u8>>, ActorError> {
        let mut updates = self.actors()?.watch_once(call).await?;
        Ok(updates.next().await.transpose()?.map(|update| update.data.value))
    }

    /// Cancels the wait of the sidecar that waits for a step's answer.
    pub(crate) async fn cancel_remotely(&self, id: &str) {
        let kind = &self.types.executor;
        let called = self.call(kind, id, methods::CANCEL, HeaderMap::new(), Bytes::new());
        if let Err(error) = called.await {
            tracing::warn!(
                target: LOG,
                "cannot inform the sidecar that runs '{id}' of its step's lost worker: {error}"
            );
        }
    }

    /// Delivers an answer to the waiting sidecar; returns whether there is one. Not a policy's retry: it
    /// bridges the time until the waiting sidecar watches.
    pub(crate) async fn deliver_remotely(&self, id: &str, answer: &impl Message) -> Result<bool, Status> {
        let answer = Bytes::from(answer.encode_to_vec());
        let (began, mut pauses) = (Instant::now(), BACKOFF);
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
                        "the answer to '{id}' could not be delivered to the waiting sidecar: {error}"
                    ))),
                };
            }
            sleep(pauses.pause()).await;
        }
    }
}

/// Whether an executor may have sent an answer that did not arrive. A moving executor reports that after
/// everything it has sent.
fn may_be_lost(error: &ActorError) -> bool {
    matches!(error, ActorError::Cut(_)) || !error.is_about_place()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clean_ends_lose_no_answer() {
        let status = |code| Status::new(code, "gone");
        for kept in [
            ActorError::Moved,
            ActorError::Disseminating,
            ActorError::NoAddress {
                kind: "e".to_owned(),
                id: "a".to_owned(),
            },
            // Never reached.
            ActorError::Peer(status(Code::Unavailable)),
            ActorError::Peer(Status::internal("error invoke actor method: remote actor moved")),
        ] {
            assert!(!may_be_lost(&kept), "{kept}");
        }
        for lost in [
            ActorError::Cut(status(Code::Unavailable)),
            // An executor of Dapr may have sent something before it ended.
            ActorError::Peer(Status::unknown("closed")),
            ActorError::Internal(status(Code::Aborted)),
        ] {
            assert!(may_be_lost(&lost), "{lost}");
        }
    }
}
