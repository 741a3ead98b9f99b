//! A member of a subscription: passes messages of its partitions to the app as capacity allows, and
//! settlements back.

use std::{collections::VecDeque, future::pending, num::NonZeroU16, sync::Arc};

use futures::{FutureExt, future::try_join_all};
use outrigger_component::{
    Result,
    pubsub::{Feed, Message, OrderingKey, Prefetch, Settlement},
};
use pulsar::proto::{MessageIdData, command_subscribe::SubType};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::{Instant, sleep_until},
};

use super::{
    broker::BrokerState,
    connection::Connection,
    entry::{Entry, Part},
    lookup,
    redelivery::{Due, Id, Incoming, OpenEntries, Redeliveries},
    session::{Order, Session, SessionEvent, subscribe},
};

pub(super) struct Member {
    shared: Arc<BrokerState>,
    topic: Arc<str>,
    kind: SubType,
    partitions: Vec<Partition>,
    news: UnboundedReceiver<(usize, SessionEvent)>,
    prefetch: Prefetch,
    open: OpenEntries,
    redeliveries: Redeliveries,
    ready: VecDeque<Incoming>,
}

struct Partition {
    orders: UnboundedSender<Order>,
    /// Number of its connection.
    connection: u64,
    /// Messages that the broker may send; negative if a batch exceeded it.
    granted: i64,
    /// Received messages not yet handed to the app.
    waiting: i64,
}

/// Maximum prefetched messages if all are small.
fn most(queue: u16) -> NonZeroU16 {
    NonZeroU16::new(queue).unwrap_or(NonZeroU16::MIN)
}

impl Member {
    /// Joins the subscription, which exists on return.
    pub(super) async fn join(shared: &Arc<BrokerState>, topic: &str, kind: SubType) -> Result<Self> {
        let settings = &shared.settings;
        let names = lookup::partitions(settings, &settings.topic(topic)?).await?;
        let opened: Vec<Connection> =
            try_join_all(names.iter().map(|name| subscribe(shared, name, kind))).await?;
        let (news, events) = unbounded_channel();
        let mut partitions = Vec::new();
        for (number, (topic, connection)) in names.into_iter().zip(opened).enumerate() {
            let (orders, ordered) = unbounded_channel();
            let session = Session {
                shared: Arc::clone(shared),
                topic,
                number,
                kind,
                orders: ordered,
                news: news.clone(),
            };
            shared.tasks.spawn(session.run(connection));
            partitions.push(Partition {
                orders,
                connection: 0,
                granted: 0,
                waiting: 0,
            });
        }
        Ok(Self {
            topic: topic.into(),
            kind,
            partitions,
            news: events,
            prefetch: Prefetch::new(most(settings.queue)),
            open: OpenEntries::default(),
            redeliveries: Redeliveries::new(settings.again, kind == SubType::Shared),
            ready: VecDeque::new(),
            shared: Arc::clone(shared),
        })
    }

    pub(super) async fn run(mut self, mut feed: Feed<Incoming>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        let mut draining = false;
        loop {
            while feed.free_capacity() > 0
                && let Some(incoming) = self.ready.pop_front()
            {
                if let Some(incoming) = self.redeliveries.passes(incoming) {
                    self.partition(incoming.id).waiting -= 1;
                    let message = incoming.message.clone();
                    feed.offer(incoming, message);
                }
            }
            if draining && feed.is_settled() {
                break;
            }
            if !draining {
                self.grant_permits();
            }
            let next = self.redeliveries.next().filter(|_| !draining);
            tokio::select! {
                () = closed.cancelled() => {
                    for (incoming, settlement) in feed.settled().now_or_never().unwrap_or_default() {
                        self.settle(incoming, settlement);
                    }
                    break;
                }
                // Leaving the subscription returns messages that the app never received.
                () = drain.cancelled(), if !draining => draining = true,
                settled = feed.settled() => {
                    for (incoming, settlement) in settled {
                        self.settle(incoming, settlement);
                    }
                }
                () = until(next) => self.come_again(),
                Some((number, news)) = self.news.recv() => self.note(number, news),
            }
        }
        self.leave().await;
        Ok(())
    }

    fn partition(&mut self, id: Id) -> &mut Partition {
        &mut self.partitions[id.partition]
    }

    /// Grants the broker permits up to the queue's capacity.
    fn grant_permits(&mut self) {
        let partitions = i64::try_from(self.partitions.len()).unwrap_or(i64::MAX);
        let each = (i64::from(self.prefetch.count()) / partitions).max(1);
        for partition in &mut self.partitions {
            let more = each - partition.granted - partition.waiting;
            // In steps, not one by one.
            let is_worth_it = more > each / 2 || (more > 0 && partition.granted <= 0);
            if partition.connection > 0
                && is_worth_it
                && let Ok(permits) = u32::try_from(more)
            {
                partition.granted += more;
                let _ = partition.orders.send(Order::Flow(partition.connection, permits));
            }
        }
    }

    fn note(&mut self, number: usize, news: SessionEvent) {
        match news {
            SessionEvent::Up(connection) => {
                let partition = &mut self.partitions[number];
                partition.connection = connection;
                partition.granted = 0;
            }
            SessionEvent::Unused(permits) => self.partitions[number].granted -= i64::from(permits),
            SessionEvent::Entry(entry, permits) => {
                self.partitions[number].granted -= i64::from(permits);
                self.take(number, *entry);
            }
        }
    }

    fn take(&mut self, partition: usize, entry: Entry) {
        let id = Id {
            partition,
            place: entry.place,
        };
        if entry.parts.is_empty() {
            return self.order(id, Order::Acknowledge);
        }
        // After a reconnect the broker resends messages that are already here.
        if !self.open.take(id, entry.parts.len()) {
            return;
        }
        for part in entry.parts {
            let index = part.index;
            let message = self.message(id, part, entry.redelivered);
            self.prefetch.received(message.size());
            self.partitions[partition].waiting += 1;
            self.ready.push_back(Incoming {
                id,
                index,
                is_alone: !entry.is_batch,
                message,
            });
        }
    }

    fn message(&self, id: Id, part: Part, redelivered: u32) -> Message {
        // A shared subscription has no order.
        let keeps_order = self.kind != SubType::Shared;
        let ordering_key = part.key.filter(|_| keeps_order).map(|key| OrderingKey {
            partition: u32::try_from(id.partition).ok(),
            key: Some(key),
        });
        Message {
            topic: Arc::clone(&self.topic),
            data: part.data,
            content_type: None,
            metadata: part.properties,
            ordering_key,
            redelivered: Some(redelivered),
        }
    }

    fn settle(&mut self, incoming: Incoming, settlement: Settlement) {
        match settlement {
            Settlement::Acknowledge => {
                if self.open.done(incoming.id) {
                    self.order(incoming.id, Order::Acknowledge);
                }
            }
            Settlement::Reject => {
                self.partition(incoming.id).waiting += 1;
                self.redeliveries.refused(incoming, Instant::now());
            }
            Settlement::Release => {
                self.partition(incoming.id).waiting += 1;
                self.redeliveries.behind(incoming, Instant::now());
            }
        }
    }

    fn come_again(&mut self) {
        for due in self.redeliveries.due(Instant::now()).into_iter().rev() {
            match due {
                Due::Message(incoming) => self.ready.push_front(incoming),
                Due::Entry(id) => {
                    self.partition(id).waiting -= 1;
                    self.open.forget(id);
                    self.order(id, Order::Redeliver);
                }
            }
        }
    }

    fn order(&mut self, id: Id, order: impl FnOnce(Vec<MessageIdData>) -> Order) {
        let name = MessageIdData {
            ledger_id: id.place.ledger,
            entry_id: id.place.entry,
            ..MessageIdData::default()
        };
        // Fails if the session has ended: the broker then redelivers it.
        let _ = self.partition(id).orders.send(order(vec![name]));
    }

    /// Waits until the brokers have the acknowledgements and the other messages back.
    async fn leave(&mut self) {
        let mut leaving = Vec::new();
        for partition in &self.partitions {
            let (done, left) = oneshot::channel();
            let _ = partition.orders.send(Order::Leave(done));
            leaving.push(left);
        }
        for left in leaving {
            // Fails if the session has ended.
            let _ = left.await;
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
