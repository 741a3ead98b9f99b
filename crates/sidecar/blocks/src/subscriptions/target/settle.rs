//! Settles messages, through the dead-letter topic if there is one.

use std::time::Duration;

use outrigger_component::pubsub::{Message, Publish, Receipt};
use outrigger_delivery::{Settlement, Verdict};
use outrigger_runtime::delivery::{PausedKey, StopTokens, Undelivered};

use super::{LOG, Offered, Sink, Target};
use crate::pubsub::Protocol;
use crate::subscriptions::hops::{self, MAX_HOPS};
use crate::subscriptions::incoming::{CONTENT_TYPE, PUBSUB_NAME};
use crate::subscriptions::metrics::{DROP, Labels, RETRY, labels};

/// How long a dead letter may take to be published.
const DEAD_LETTER_LIMIT: Duration = Duration::from_secs(30);

impl Target {
    /// Waits for the verdict on a message and settles it.
    pub(super) async fn settle_message(
        &self,
        message: Message,
        offered: Offered,
        receipt: Receipt,
        tokens: StopTokens<'_>,
    ) {
        // The message counts in the lag until it is settled, which includes publishing its dead letter.
        let (pending, _in_lag) = match offered {
            Ok(pending) => pending,
            Err(verdict) => return self.settle_unattempted(&message, verdict, receipt).await,
        };
        let (verdict, key) = pending.decided().await;
        let why = match verdict {
            Ok(Verdict::Acknowledge) => return receipt.acknowledge(),
            Ok(Verdict::Drop { why, .. }) => {
                return match self.dead_letter(&message, why).await {
                    Some(Settlement::Reject) => key.reject(receipt).await,
                    _ => receipt.acknowledge(),
                };
            }
            // The retries were cut short, or the app or client is gone: another consumer gets the message.
            Ok(Verdict::Reject(_)) if tokens.any_cancelled() || self.is_app_unhealthy() => {
                return key.release(receipt).await;
            }
            Ok(Verdict::Reject(why)) => why,
            Err(Undelivered::Stopped | Undelivered::Revoked) => return receipt.release(false),
            Err(Undelivered::Blocked) => return receipt.release(true),
            Err(refused @ Undelivered::Refused(_)) => refused.to_string(),
        };
        let otherwise = (Settlement::Reject, DROP);
        self.settle_failed(&message, &why, otherwise, key, receipt).await;
    }

    /// Settles a message that is not delivered to the app.
    async fn settle_unattempted(&self, message: &Message, verdict: Verdict, receipt: Receipt) {
        let dropped = (Settlement::Acknowledge, labels(&verdict));
        let (why, otherwise) = match verdict {
            Verdict::Acknowledge => return receipt.acknowledge(),
            Verdict::Drop { why, .. } => (why.to_owned(), dropped),
            Verdict::Reject(why) => {
                tracing::error!(
                    target: LOG,
                    "error deserializing cloud event in pubsub {} and topic {}: {why}",
                    self.wanted.pubsub,
                    self.app_topic(&message.topic)
                );
                (why, (Settlement::Reject, DROP))
            }
        };
        self.settle_failed(message, &why, otherwise, PausedKey::NONE, receipt)
            .await;
    }

    /// Publishes the dead letter of a message and settles the message. `otherwise`: the settlement without a
    /// dead-letter topic, and the labels of a dropped message.
    async fn settle_failed(
        &self,
        message: &Message,
        why: &str,
        (otherwise, dropped): (Settlement, Labels),
        key: PausedKey,
        receipt: Receipt,
    ) {
        let settlement = self.dead_letter(message, why).await.unwrap_or(otherwise);
        let (metrics, pubsub) = (self.metrics(), &self.wanted.pubsub);
        let topic = self.app_topic(&message.topic);
        if settlement == Settlement::Acknowledge {
            metrics.event(pubsub, &topic, dropped, Duration::ZERO);
            return receipt.acknowledge();
        }
        metrics.event(pubsub, &topic, RETRY, Duration::ZERO);
        tracing::warn!(
            target: LOG,
            "message of topic {topic} of {pubsub} returned to the broker: {why}"
        );
        key.reject(receipt).await;
    }

    /// Failures while the app is unhealthy do not count against the event.
    fn is_app_unhealthy(&self) -> bool {
        matches!(&self.sink, Sink::App(app) if !app.health().is_healthy())
    }

    /// Publishes a message to the dead-letter topic, with the app's permissions and the component's policy.
    /// Returns the settlement of the message; `None` without a dead-letter topic.
    async fn dead_letter(&self, message: &Message, why: &str) -> Option<Settlement> {
        let topic = self.wanted.dead_letter.as_ref()?;
        let Some((data, mut metadata)) = hops::next(message, self.wanted.raw).await else {
            tracing::error!(
                target: LOG,
                "message of topic {} of {} dropped after {MAX_HOPS} dead letters: the dead-letter topics form a loop; the next \
                 is {topic}; reason: {why}",
                message.topic,
                self.wanted.pubsub
            );
            return Some(Settlement::Acknowledge);
        };
        metadata.insert(PUBSUB_NAME.to_owned(), self.wanted.pubsub.clone());
        if let Some(content_type) = &message.content_type {
            metadata.insert(CONTENT_TYPE.to_owned(), content_type.clone());
        }
        let copy = Publish {
            topic: self.broker.stored_topic(topic).into_owned(),
            data,
            content_type: message.content_type.clone(),
            declared: message.content_type.clone(),
            metadata,
        };
        let allowed = self.broker.check_allowed(topic, &self.dependencies().app_id);
        let published = match allowed {
            Ok(()) => {
                let sending = self.broker.send(&copy, Protocol::Grpc);
                match tokio::time::timeout(DEAD_LETTER_LIMIT, sending).await {
                    Ok(sent) => sent.map_err(|cause| cause.to_string()),
                    Err(_) => Err(format!(
                        "no answer of the broker within {} s",
                        DEAD_LETTER_LIMIT.as_secs()
                    )),
                }
            }
            Err(forbidden) => Err(forbidden.to_string()),
        };
        let origin = &message.topic;
        self.metrics()
            .dead_letter(&self.wanted.pubsub, &self.wanted.topic, published.is_ok());
        match published {
            Ok(()) => {
                tracing::warn!(
                    target: LOG,
                    "message of topic {origin} of {} moved to dead-letter topic {topic}: {why}",
                    self.wanted.pubsub
                );
                Some(Settlement::Acknowledge)
            }
            Err(error) => {
                tracing::error!(
                    target: LOG,
                    "error sending message to dead letter, origin topic: {origin} dead letter topic {topic} err: \
                     {error}; reason of the dead letter: {why}"
                );
                Some(Settlement::Reject)
            }
        }
    }
}
