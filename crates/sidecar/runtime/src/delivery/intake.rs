//! Connects a broker's subscription to the engine and settles each message.

use std::collections::HashSet;
use std::future::Future;

use futures::stream::{FuturesUnordered, StreamExt};
use outrigger_component::Error;
use outrigger_component::pubsub::{Delivery, Event, Message, OrderingKey, Receipt, Subscription};
use tokio_util::sync::CancellationToken;

use super::Inbox;

/// The two stages of stopping a delivery.
#[derive(Clone, Copy)]
pub struct StopTokens<'a> {
    /// Stop consuming messages.
    pub stop: &'a CancellationToken,
    /// Stop making attempts; ends the engine.
    pub ending: &'a CancellationToken,
}

impl StopTokens<'_> {
    /// Whether a failure may be caused by the shutdown.
    pub fn any_cancelled(&self) -> bool {
        self.stop.is_cancelled() || self.ending.is_cancelled()
    }
}

/// The ordering of a message within its subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    key: OrderingKey,
    /// A unique number for a message without ordering.
    alone: Option<u64>,
}

impl Order {
    /// Ordered after earlier messages of its key.
    pub fn after(key: OrderingKey) -> Self {
        Self { key, alone: None }
    }

    /// Not ordered, but revoked together with its key. `number` must be unique.
    pub fn alone(key: OrderingKey, number: u64) -> Self {
        Self {
            key,
            alone: Some(number),
        }
    }

    /// Whether it waits for earlier messages.
    pub fn is_after(&self) -> bool {
        self.alone.is_none()
    }

    /// Whether it came from one of these partitions.
    fn came_by(&self, partitions: &HashSet<u32>) -> bool {
        self.key
            .partition
            .is_some_and(|partition| partitions.contains(&partition))
    }
}

/// Handling of one subscription's messages before and after the engine.
pub trait Consumer: Sync {
    /// The event that is delivered to the app.
    type Event: Send + Sync;
    /// The result of an attempt.
    type Outcome: Send;
    /// A message that was offered to the engine or rejected.
    type Offered: Send;

    /// Converts a message to an event and offers it to the engine.
    fn offer(
        &self,
        inbox: &Inbox<Order, Self::Event, Self::Outcome>,
        message: &Message,
    ) -> impl Future<Output = Self::Offered> + Send;

    /// Waits for the result of a message and settles it.
    fn settle(
        &self,
        message: Message,
        offered: Self::Offered,
        receipt: Receipt,
        tokens: StopTokens<'_>,
    ) -> impl Future<Output = ()> + Send;
}

/// Offers messages to the engine and settles them until stopped, or until the subscription ends by itself:
/// then returns `false`. All messages are settled when it returns.
///
/// # Errors
/// Why the subscription ended; a settlement may not have reached the broker.
pub async fn take<C: Consumer>(
    consumer: &C,
    mut subscription: Subscription,
    inbox: Inbox<Order, C::Event, C::Outcome>,
    tokens: StopTokens<'_>,
) -> (bool, Result<(), Error>) {
    let mut settling = FuturesUnordered::new();
    let stopped = loop {
        tokio::select! {
            biased;
            () = tokens.stop.cancelled() => break true,
            Some(()) = settling.next(), if !settling.is_empty() => {}
            event = subscription.next() => match event {
                None => break false,
                Some(Event::Message(Delivery { message, receipt })) => {
                    let offered = consumer.offer(&inbox, &message).await;
                    settling.push(consumer.settle(message, offered, receipt, tokens));
                }
                Some(Event::Reopened(key)) => inbox.reopen(Order::after(key)).await,
                Some(Event::Revoked(revoked)) => {
                    let gone: HashSet<u32> = revoked.partitions.into_iter().collect();
                    inbox.revoke(Box::new(move |order: &Order| order.came_by(&gone))).await;
                    drop(revoked.noted);
                }
            },
        }
    };
    subscription.drain();
    tokens.ending.cancel();
    drop(inbox);
    while settling.next().await.is_some() {}
    (stopped, subscription.ended().await)
}
