//! From a broker's subscription into the engine, and back: what became of each message.

use std::collections::HashSet;
use std::future::Future;

use futures::stream::{FuturesUnordered, StreamExt};
use outrigger_component::Error;
use outrigger_component::pubsub::{Delivery, Event, Message, OrderingKey, Receipt, Subscription};
use tokio_util::sync::CancellationToken;

use super::Inbox;

/// How a delivery is told to end.
#[derive(Clone, Copy)]
pub struct StopTokens<'a> {
    /// No more messages are taken.
    pub stop: &'a CancellationToken,
    /// No more attempts are made: ends the engine.
    pub ending: &'a CancellationToken,
}

impl StopTokens<'_> {
    /// Whether what failed may have failed because of the end.
    pub fn any_cancelled(&self) -> bool {
        self.stop.is_cancelled() || self.ending.is_cancelled()
    }
}

/// What orders a message among those of its subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    key: OrderingKey,
    /// Of a message that waits for no other.
    alone: Option<u64>,
}

impl Order {
    /// After the earlier messages of its key.
    pub fn after(key: OrderingKey) -> Self {
        Self { key, alone: None }
    }

    /// After none; but a rebalance that revokes the key revokes the message. `number`: unique.
    pub fn alone(key: OrderingKey, number: u64) -> Self {
        Self {
            key,
            alone: Some(number),
        }
    }

    /// Whether it waits for those before it.
    pub fn is_after(&self) -> bool {
        self.alone.is_none()
    }

    /// Whether it came by one of these partitions.
    fn came_by(&self, partitions: &HashSet<u32>) -> bool {
        self.key
            .partition
            .is_some_and(|partition| partitions.contains(&partition))
    }
}

/// What is done with the messages of one subscription around the engine.
pub trait Consumer: Sync {
    /// The event that is delivered to the app.
    type Event: Send + Sync;
    /// What an attempt at it comes to.
    type Outcome: Send;
    /// A message that was offered to the engine, or is not for it.
    type Offered: Send;

    /// Makes an event of a message and gives it to the engine.
    fn offer(
        &self,
        inbox: &Inbox<Order, Self::Event, Self::Outcome>,
        message: &Message,
    ) -> impl Future<Output = Self::Offered> + Send;

    /// Waits for what comes of a message, and tells the broker.
    fn settle(
        &self,
        message: Message,
        offered: Self::Offered,
        receipt: Receipt,
        tokens: StopTokens<'_>,
    ) -> impl Future<Output = ()> + Send;
}

/// Gives messages to the engine and settles them until it is told to stop, or until the subscription ends by itself: then
/// `false`. When it returns, the broker knows what became of every message.
///
/// # Errors
/// Why the subscription ended; the broker may not have heard of a settlement.
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
