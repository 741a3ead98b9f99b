//! Subscribing: asks the broker until it accepts.

use std::num::NonZeroUsize;
use std::sync::PoisonError;
use std::time::Duration;

use outrigger_component::pubsub::{Subscribe, Subscription};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::dispatch::MAX_UNSETTLED;
use super::{LOG, Target};

/// Pauses before a broker is asked again for a subscription.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

impl Target {
    /// Keeps how the last attempt to subscribe went, for the status.
    fn note(&self, failure: Option<&String>) {
        let mut last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *last = failure.cloned();
    }

    /// Takes and delivers until `stop`; when it returns, the broker knows what became of every message. The first attempt
    /// to subscribe is over when `asked` is cancelled; `first` hears how it went, and then there is no second one.
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
                        // Whoever asked may be gone: then `stop` follows.
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
