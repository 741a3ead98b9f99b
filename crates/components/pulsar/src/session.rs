//! The consumer of a partition, with one connection at a time, reconnected when lost.

use std::{sync::Arc, time::Duration};

use outrigger_component::{Error, Kind, Result};
use pulsar::{
    message::Message,
    proto::{CommandSubscribe, KeySharedMeta, KeySharedMode, MessageIdData, command_subscribe::SubType},
};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    time::sleep,
};

use super::{
    broker::{BrokerState, LOG},
    command::{self, ID},
    connection::Connection,
    entry::{Entry, permits},
    lookup,
};

/// Delay before reconnecting.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// A command of the member.
pub(super) enum Order {
    /// Grants this many permits on this connection.
    Flow(u64, u32),
    Acknowledge(Vec<MessageIdData>),
    /// Redeliver to any consumer.
    Redeliver(Vec<MessageIdData>),
    /// Leave the subscription and signal completion.
    Leave(oneshot::Sender<()>),
}

/// An event for the member; permits bound the number of entries.
pub(super) enum SessionEvent {
    /// Connected; the connection's number.
    Up(u64),
    /// An entry, and the permits it used.
    Entry(Box<Entry>, u32),
    /// Permits used without a message.
    Unused(u32),
}

pub(super) struct Session {
    pub(super) shared: Arc<BrokerState>,
    /// Full name of the partition.
    pub(super) topic: String,
    /// Index among the topic's partitions.
    pub(super) number: usize,
    pub(super) kind: SubType,
    pub(super) orders: UnboundedReceiver<Order>,
    pub(super) news: UnboundedSender<(usize, SessionEvent)>,
}

/// Joins the subscription on a partition.
pub(super) async fn subscribe(shared: &Arc<BrokerState>, topic: &str, kind: SubType) -> Result<Connection> {
    let settings = &shared.settings;
    let mut connection = lookup::open(settings, topic).await?;
    let request = connection.request();
    let subscribe = command::subscribe(CommandSubscribe {
        topic: topic.to_owned(),
        subscription: settings.subscription.clone(),
        sub_type: kind as i32,
        consumer_id: ID,
        request_id: request,
        durable: Some(settings.durable),
        initial_position: Some(settings.position as i32),
        replicate_subscription_state: settings.replicates.then_some(true),
        key_shared_meta: (kind == SubType::KeyShared).then(|| KeySharedMeta {
            key_shared_mode: KeySharedMode::AutoSplit as i32,
            ..KeySharedMeta::default()
        }),
        ..CommandSubscribe::default()
    });
    let what = format!("topic {topic}, subscription {:?}", settings.subscription);
    connection
        .ask(&what, subscribe, |message| {
            let done = message.command.success.as_ref()?;
            (done.request_id == request).then_some(())
        })
        .await?;
    Ok(connection)
}

impl Session {
    /// Runs until told to leave, or until the member is gone.
    pub(super) async fn run(mut self, connection: Connection) {
        let mut connection = Some(connection);
        let mut number = 0;
        loop {
            let opened = match connection.take() {
                Some(connection) => Ok(connection),
                None => subscribe(&self.shared, &self.topic, self.kind).await,
            };
            let cause = match opened {
                Ok(opened) => {
                    number += 1;
                    match self.serve(opened, number).await {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            tracing::warn!(
                target: LOG,
                "component {}: {}: {cause}; subscribing again", self.shared.component, self.topic
            );
            if self.paused().await {
                return;
            }
        }
    }

    /// Waits before a reconnect. Commands in that time are obsolete, because the broker redelivers
    /// everything. Returns whether the member left.
    async fn paused(&mut self) -> bool {
        let pause = sleep(RECONNECT_DELAY);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return false,
                order = self.orders.recv() => match order {
                    None => return true,
                    Some(Order::Leave(done)) => {
                        let _ = done.send(());
                        return true;
                    }
                    Some(_) => {}
                },
            }
        }
    }

    async fn serve(&mut self, mut connection: Connection, number: u64) -> Result<()> {
        self.notify(SessionEvent::Up(number));
        loop {
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(Order::Flow(of, permits)) if of == number => {
                        connection.send(command::flow(permits)).await?;
                    }
                    Some(Order::Flow(..)) => {}
                    Some(Order::Acknowledge(ids)) => connection.send(command::acknowledge(ids)).await?,
                    Some(Order::Redeliver(ids)) => connection.send(command::redeliver(ids)).await?,
                    None => {
                        leave(&mut connection).await;
                        return Ok(());
                    }
                    Some(Order::Leave(done)) => {
                        leave(&mut connection).await;
                        let _ = done.send(());
                        return Ok(());
                    }
                },
                message = connection.next() => self.on_message(message?).await?,
            }
        }
    }

    fn notify(&self, news: SessionEvent) {
        // If the member is gone, its command channel closes.
        let _ = self.news.send((self.number, news));
    }

    async fn on_message(&self, message: Box<Message>) -> Result<()> {
        if message.command.close_consumer.is_some() {
            let text = format!("the broker no longer serves {}", self.topic);
            return Err(Error::new(Kind::Unavailable, text));
        }
        let (Some(command), Some(payload)) = (message.command.message, message.payload) else {
            return Ok(());
        };
        let taken = permits(&payload);
        let (command, entry) = Entry::read(command, payload).await;
        match entry {
            Ok(entry) => self.notify(SessionEvent::Entry(Box::new(entry), taken)),
            Err(why) => {
                let id = &command.message_id;
                tracing::error!(
                    target: LOG,
                    "component {}: {}: the message {}:{} stays at the broker, unacknowledged: {why}",
                    self.shared.component, self.topic, id.ledger_id, id.entry_id
                );
                self.notify(SessionEvent::Unused(taken));
            }
        }
        Ok(())
    }
}

/// The broker's answer confirms that it has read the acknowledgements. Without an answer the connection is
/// lost.
async fn leave(connection: &mut Connection) {
    let request = connection.request();
    let close = command::close_consumer(request);
    let asked = connection.ask("leaving a subscription", close, |message| {
        let done = message.command.success.as_ref()?;
        (done.request_id == request).then_some(())
    });
    if let Err(error) = asked.await {
        tracing::debug!(target: LOG, "{error}");
    }
}
