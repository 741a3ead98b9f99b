use std::{collections::VecDeque, sync::Arc};

use futures::FutureExt;
use outrigger_component::{
    Result,
    pubsub::{Feed, Message, Settlement},
};
use rumqttc::QoS;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    BrokerInner, REDELIVERY_DELAY,
    filter::Filter,
    properties::{self, RETAINED},
    session::{Command, Incoming},
};
use crate::{client::Received, settings::Version};

/// Consumes the messages of one subscription.
pub(super) struct Consumer {
    pub(super) shared: Arc<BrokerInner>,
    pub(super) route: u64,
    /// Filter to unsubscribe at the end.
    pub(super) unsubscribe: Option<Filter>,
    pub(super) incoming: mpsc::UnboundedReceiver<Incoming>,
}

/// A message held by the app, with its earlier attempts.
pub(super) struct Offered {
    incoming: Incoming,
    before: u32,
}

fn message(received: &Received, before: u32) -> Message {
    let properties = received.properties.as_deref();
    let mut metadata = properties.map(properties::metadata).unwrap_or_default();
    metadata.insert(RETAINED.to_owned(), received.retain.to_string());
    Message {
        topic: Arc::clone(&received.topic),
        data: received.payload.clone(),
        content_type: properties.and_then(|properties| properties.content_type.clone()),
        metadata,
        ordering_key: None,
        redelivered: Some(before.max(u32::from(received.again))),
    }
}

impl Consumer {
    pub(super) async fn run(mut self, mut feed: Feed<Offered>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        let connection = &self.shared.sender.connection;
        // The window is shared by all subscriptions: one that uses it up blocks the others.
        if let Version::V5(session) = connection.version
            && connection.qos != QoS::AtMostOnce
        {
            feed.set_window(session.window.into());
        }
        // Returned messages by due time.
        let mut again: VecDeque<(Instant, Offered)> = VecDeque::new();
        let mut draining = false;
        loop {
            if draining && feed.is_settled() {
                break;
            }
            let due = again.front().map(|(due, _)| *due);
            tokio::select! {
                () = closed.cancelled() => {
                    let settled = feed.settled().now_or_never().unwrap_or_default();
                    settled.into_iter().for_each(|settled| settle(settled, None));
                    break;
                }
                () = drain.cancelled(), if !draining => {
                    draining = true;
                    self.retire();
                    again.clear();
                }
                settled = feed.settled() => {
                    let mut again = (!draining).then_some(&mut again);
                    for settled in settled {
                        settle(settled, again.as_deref_mut());
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && feed.free_capacity() > 0 => {
                    if let Some((_, offered)) = again.pop_front() {
                        offer(&mut feed, offered);
                    }
                }
                incoming = self.incoming.recv(), if !draining && feed.free_capacity() > 0 => match incoming {
                    Some(incoming) => offer(&mut feed, Offered { incoming, before: 0 }),
                    // The connection has ended permanently.
                    None => break,
                },
            }
        }
        self.retire();
        drop((again, feed));
        self.leave().await;
        Ok(())
    }

    /// Stops receiving; queued messages pass to other subscriptions.
    fn retire(&mut self) {
        let _gone = self.shared.commands.send(Command::Remove(self.route));
        self.incoming.close();
        while self.incoming.try_recv().is_ok() {}
    }

    async fn leave(self) {
        if let Some(filter) = self.unsubscribe {
            let _gone = self.shared.commands.send(Command::Forget(filter));
        }
        let (written, flushed) = oneshot::channel();
        let _gone = self.shared.commands.send(Command::Flush(written));
        // Ends with an error when dropped, which is the signal.
        let _dropped = flushed.await;
    }
}

fn offer(feed: &mut Feed<Offered>, offered: Offered) {
    if offered.incoming.received.is_expired() {
        offered.incoming.acknowledge();
        return;
    }
    let message = message(&offered.incoming.received, offered.before);
    feed.offer(offered, message);
}

fn settle((offered, settlement): (Offered, Settlement), again: Option<&mut VecDeque<(Instant, Offered)>>) {
    match (settlement, again) {
        (Settlement::Acknowledge, _) => offered.incoming.acknowledge(),
        (Settlement::Reject | Settlement::Release, Some(again)) => {
            let Offered { incoming, before } = offered;
            let before = before + 1;
            again.push_back((Instant::now() + REDELIVERY_DELAY, Offered { incoming, before }));
        }
        (Settlement::Reject | Settlement::Release, None) => drop(offered.incoming),
    }
}
