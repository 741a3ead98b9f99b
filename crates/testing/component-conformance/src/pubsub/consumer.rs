use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use outrigger_component::{
    PubSub,
    pubsub::{Delivery, Event, Publish, Subscribe, Subscription},
};
use tokio::time::timeout;

use super::super::{Outcome, SOON, Step, ensure};

/// How long to wait for messages that must not come.
pub(super) const A_WHILE: Duration = Duration::from_millis(400);

/// A consumer.
pub(super) struct Consumer {
    pub(super) subscription: Subscription,
}

pub(super) fn request(topic: &str, in_flight: usize) -> Subscribe {
    Subscribe {
        topic: topic.to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(in_flight).unwrap_or(NonZeroUsize::MIN),
    }
}

impl Consumer {
    pub(super) async fn start(
        broker: &Arc<dyn PubSub>,
        topic: &str,
        in_flight: usize,
    ) -> Result<Self, String> {
        let subscribing = broker.subscribe(request(topic, in_flight));
        let subscription = timeout(SOON, subscribing)
            .await
            .step("subscribe")?
            .step("subscribe")?;
        Ok(Self { subscription })
    }

    /// The next message, within a deadline. Cancel-safe.
    pub(super) async fn take(&mut self) -> Result<Delivery, String> {
        self.take_within(SOON).await
    }

    pub(super) async fn take_within(&mut self, limit: Duration) -> Result<Delivery, String> {
        let waiting = async {
            loop {
                match self.subscription.next().await {
                    Some(Event::Message(delivery)) => return Ok(delivery),
                    Some(Event::Revoked(_) | Event::Reopened(_)) => {}
                    None => return Err("the subscription ended".to_owned()),
                }
            }
        };
        timeout(limit, waiting).await.step("a message comes")?
    }

    /// Takes and acknowledges `count` messages; returns their payloads.
    pub(super) async fn acknowledge(&mut self, count: usize) -> Result<Vec<String>, String> {
        let mut texts = Vec::with_capacity(count);
        while texts.len() < count {
            let delivery = self.take().await;
            let delivery = delivery.map_err(|error| format!("{error}, after {texts:?}"))?;
            texts.push(data(&delivery));
            delivery.receipt.acknowledge();
        }
        Ok(texts)
    }

    /// Checks that no message comes.
    pub(super) async fn quiet(&mut self) -> Outcome {
        match self.take_within(A_WHILE).await {
            Ok(delivery) => Err(format!("{:?} came", data(&delivery))),
            Err(_) => Ok(()),
        }
    }

    pub(super) async fn end(self) -> Outcome {
        timeout(SOON, self.subscription.ended())
            .await
            .step("the subscription ends")?
            .step("the subscription")
    }
}

pub(super) fn data(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.message.data).into_owned()
}

pub(super) async fn publish(broker: &Arc<dyn PubSub>, topic: &str, texts: &[&str]) -> Outcome {
    for text in texts {
        let message = Publish {
            topic: topic.to_owned(),
            data: (*text).to_owned().into(),
            ..Publish::default()
        };
        timeout(SOON, broker.publish(&message))
            .await
            .step("publish")?
            .step("publish")?;
    }
    Ok(())
}

/// Closes a component and checks that it stops.
pub(super) async fn settled(broker: &Arc<dyn PubSub>) -> Outcome {
    let closing = timeout(SOON, broker.close()).await;
    ensure!(closing.is_ok(), "closing does not end");
    Ok(())
}
