//! Subscribes with retries until the broker accepts.

use std::num::NonZeroUsize;
use std::sync::PoisonError;
use std::time::Duration;

use outrigger_component::pubsub::{Subscribe, Subscription};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::dispatch::MAX_UNSETTLED;
use super::{LOG, Target};

/// Backoff of subscription attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

impl Target {
    /// Stores the result of the last attempt, for the status.
    fn note(&self, failure: Option<&String>) {
        let mut last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *last = failure.cloned();
    }

    /// Consumes and delivers until `stop`; then all messages are settled. Cancels `asked` after the first
    /// attempt to subscribe. With `first`, its result is sent there and no retry follows.
    pub(in crate::subscriptions) async fn run(
        &self,
        stop: &CancellationToken,
        asked: &CancellationToken,
        mut first: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        let mut pause = PAUSES.0;
        let mut failed = false;
        loop {
            let subscribed = tokio::select! {
                () = stop.cancelled() => return,
                subscribed = self.subscribe() => subscribed,
            };
            self.note(subscribed.as_ref().err());
            asked.cancel();
            match subscribed {
                Ok(subscription) => {
                    self.begun(failed);
                    if let Some(first) = first.take() {
                        // If the receiver is gone, `stop` follows.
                        let _gone = first.send(Ok(()));
                    }
                    if self.deliver(subscription, stop).await {
                        return;
                    }
                    pause = PAUSES.0;
                }
                Err(error) => {
                    if let Some(first) = first.take() {
                        let _gone = first.send(Err(error));
                        return;
                    }
                    tracing::error!(
                        target: LOG,
                        "Failed to start subscription for pubsub {}, topic {}: {error}",
                        self.wanted.pubsub,
                        self.wanted.topic
                    );
                    failed = true;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = pause.mul_f64(1.5).min(PAUSES.1);
        }
    }

    fn begun(&self, failed_before: bool) {
        if failed_before {
            tracing::info!(
                target: LOG,
                "Successfully started subscription after retry for pubsub {}, topic {}",
                self.wanted.pubsub,
                self.wanted.topic
            );
        }
    }

    async fn subscribe(&self) -> Result<Subscription, String> {
        let (pubsub, topic) = (&self.wanted.pubsub, &self.wanted.topic);
        if !self.broker.topics().may_subscribe(topic) {
            return Err(format!(
                "subscription to topic '{topic}' on pubsub '{pubsub}' is not allowed"
            ));
        }
        let request = Subscribe {
            topic: self.broker.stored_topic(topic).into_owned(),
            metadata: self.wanted.metadata.clone(),
            in_flight: NonZeroUsize::new(MAX_UNSETTLED).unwrap_or(NonZeroUsize::MIN),
        };
        let subscribed = self.broker.component().subscribe(request).await;
        subscribed.map_err(|error| {
            let error = self.broker.cleared(error);
            format!("failed to subscribe to topic {topic}: {error}")
        })
    }
}
