//! Settling: tells the broker what became of a message, by way of the dead-letter topic where there is one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_component::pubsub::{Message, Publish, Receipt};
use outrigger_runtime::delivery::{Hold, StopTokens, Undelivered};

use super::{Disposition, LOG, Sink, Target};
use crate::pubsub::Protocol;
use crate::subscriptions::attempt::Handled;
use crate::subscriptions::hops::{self, MAX_HOPS};
use crate::subscriptions::incoming::{CONTENT_TYPE, Dropped, PUBSUB_NAME};
use crate::subscriptions::metrics::Status;

impl Target {
    pub(super) async fn settle_message(
        &self,
        message: Message,
        rest: Disposition,
        receipt: Receipt,
        tokens: StopTokens<'_>,
    ) {
        let topic = self.app_topic(&message.topic);
        let counted = |status, by_app| {
            let metrics = self.metrics();
            metrics.event(&self.wanted.pubsub, &topic, status, by_app, Duration::ZERO);
        };
        let mut lane = LaneReturn::NONE;
        // Counts in the lag until the broker is told: its dead letter may take long.
        let _until_settled;
        let failed = match rest {
            Disposition::Stopped => return receipt.release(false),
            Disposition::Dropped(why) => {
                let (why, by_app) = match why {
                    Dropped::Expired => ("it has expired", false),
                    Dropped::NoRoute => ("no route matches it", true),
                };
                match self.dead_letter(&message, why).await {
                    DeadLettering::Failed => return self.return_to_broker(&topic, why, lane, receipt).await,
                    DeadLettering::Published | DeadLettering::Looped | DeadLettering::NoTopic => {
                        counted(Status::Drop, by_app);
                        return receipt.acknowledge();
                    }
                }
            }
            Disposition::Unreadable(why) => {
                tracing::error!(
                    target: LOG,
                    "error deserializing cloud event in pubsub {} and topic {topic}: {why}",
                    self.wanted.pubsub
                );
                // No app sees it: there is nothing to wait for.
                why
            }
            Disposition::Pending(pending, unhandled) => {
                _until_settled = unhandled;
                let (handled, hold) = pending.decided().await;
                lane = LaneReturn {
                    with_lane: self.is_in_order(&message),
                    hold,
                };
                match handled {
                    Ok(Handled::Done) => return receipt.acknowledge(),
                    Ok(Handled::Dropped(why)) => {
                        return match self.dead_letter(&message, why).await {
                            DeadLettering::Failed => lane.give_back(receipt).await,
                            DeadLettering::Published | DeadLettering::Looped | DeadLettering::NoTopic => {
                                receipt.acknowledge();
                            }
                        };
                    }
                    // Its retries were cut short, or its app or client is gone: somebody else gets it.
                    Ok(Handled::Failed(_)) if tokens.any_cancelled() || self.is_app_unhealthy() => {
                        return lane.release(receipt).await;
                    }
                    Err(Undelivered::Stopped | Undelivered::Revoked) => return receipt.release(false),
                    Err(Undelivered::Blocked) => return receipt.release(true),
                    Ok(Handled::Failed(why)) => why,
                    Err(refused @ Undelivered::Refused(_)) => refused.to_string(),
                }
            }
        };
        match self.dead_letter(&message, &failed).await {
            DeadLettering::Published | DeadLettering::Looped => {
                counted(Status::Drop, false);
                receipt.acknowledge();
            }
            DeadLettering::Failed | DeadLettering::NoTopic => {
                self.return_to_broker(&topic, &failed, lane, receipt).await;
            }
        }
    }

    /// What the app fails while it is unhealthy is nobody's verdict on the event.
    fn is_app_unhealthy(&self) -> bool {
        matches!(&self.sink, Sink::App(app) if !app.health().is_healthy())
    }

    /// Whether the messages behind one that fails wait until that one has come again.
    fn is_in_order(&self, message: &Message) -> bool {
        self.keeps_order.load(Ordering::Relaxed)
            && matches!(&message.lane, Some(lane) if lane.key.is_some() || self.collector.is_none())
    }

    /// Publishes a message to the dead-letter topic, where there is one: as the app would, with its rights and under the
    /// policy of the component.
    async fn dead_letter(&self, message: &Message, why: &str) -> DeadLettering {
        let Some(topic) = &self.wanted.dead_letter else {
            return DeadLettering::NoTopic;
        };
        let Some((data, mut metadata)) = hops::next(message, self.wanted.raw).await else {
            tracing::error!(
                target: LOG,
                "dropped a message of topic {} of {}: it became a dead letter {MAX_HOPS} times, so dead-letter topics lead back \
                 to each other; its next one is {topic}, because {why}",
                message.topic,
                self.wanted.pubsub
            );
            return DeadLettering::Looped;
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
                let sent = self.broker.send(&copy, Protocol::Grpc).await;
                sent.map_err(|cause| cause.to_string())
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
                    "a message of topic {origin} of {} went to the dead-letter topic {topic}: {why}",
                    self.wanted.pubsub
                );
                DeadLettering::Published
            }
            Err(error) => {
                tracing::error!(
                    target: LOG,
                    "error sending message to dead letter, origin topic: {origin} dead letter topic {topic} err: \
                     {error}; it should go there because {why}"
                );
                DeadLettering::Failed
            }
        }
    }

    /// Nobody could do anything with a message: the broker has it again.
    async fn return_to_broker(&self, topic: &str, why: &str, lane: LaneReturn, receipt: Receipt) {
        self.metrics()
            .event(&self.wanted.pubsub, topic, Status::Retry, false, Duration::ZERO);
        tracing::warn!(
            target: LOG,
            "a message of topic {topic} of {} is returned to the broker: {why}",
            self.wanted.pubsub
        );
        lane.give_back(receipt).await;
    }
}

/// How a message goes back to the broker: alone, or with those behind it in its lane.
struct LaneReturn {
    with_lane: bool,
    /// While there is a dead-letter topic: they wait until it is known whether it takes the message.
    hold: Hold,
}

impl LaneReturn {
    const NONE: Self = Self {
        with_lane: false,
        hold: Hold::NONE,
    };

    async fn give_back(self, receipt: Receipt) {
        match self.with_lane {
            // The engine has to know first: it attempts none of the lane until the broker has all of it.
            true if self.hold.return_lane().await => receipt.reject_lane(),
            true => receipt.release(false),
            false => receipt.reject(),
        }
    }

    /// The same for a message that nobody failed.
    async fn release(self, receipt: Receipt) {
        let with_lane = self.with_lane && self.hold.return_lane().await;
        receipt.release(with_lane);
    }
}

/// What became of a message that the app does not handle.
enum DeadLettering {
    /// It is in the dead-letter topic.
    Published,
    /// It should be there and is not.
    Failed,
    /// It was one too often.
    Looped,
    /// There is no dead-letter topic.
    NoTopic,
}
