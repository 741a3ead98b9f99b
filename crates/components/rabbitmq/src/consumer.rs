use std::{
    collections::{BTreeMap, VecDeque},
    num::{NonZeroU16, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use lapin::{
    Acker, BasicProperties, Channel,
    message::Delivery,
    options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable},
};
use outrigger_component::{
    Error, Kind, Pairs, Result,
    pubsub::{DEAD_LETTER_HOPS, Feed, Message, Prefetch, Settlement},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    BrokerInner, LOG, frames,
    link::{call, failure},
    short,
    topology::Queue,
};

/// Delay before a returned message goes back to the broker, which redelivers it at once.
const REDELIVERY_DELAY: Duration = Duration::from_secs(1);
/// Maximum length of a consumer tag in bytes.
const MAX_TAG: usize = 255;
/// Timeout of the last settlements.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Returns of a message from which on a warning is logged: quorum queues of RabbitMQ 4 drop it after 20.
const WARN_RETURNS: u32 = 15;

/// A consumer of a queue.
pub(super) struct Consumer {
    shared: Arc<BrokerInner>,
    queue: Queue,
    topic: Arc<str>,
    in_flight: NonZeroUsize,
    stream: Option<Stream>,
    drops: DropWarning,
}

/// Whether the warning about dropped messages was logged for the queue.
#[derive(Default)]
struct DropWarning(AtomicBool);

impl DropWarning {
    /// Whether to warn now about a message with this number of returns.
    fn is_due(&self, returned: u32) -> bool {
        returned >= WARN_RETURNS && !self.0.swap(true, Ordering::Relaxed)
    }
}

/// The deliveries of one channel.
struct Stream {
    channel: Channel,
    deliveries: lapin::Consumer,
    prefetch: Prefetch,
    /// Current prefetch count.
    window: usize,
}

/// Messages for the app from one channel.
#[derive(Default)]
struct Backlog {
    /// Delivered without capacity, by tag, which is queue order.
    ahead: BTreeMap<u64, Delivery>,
    /// Returned messages by due time, and whether they were unattempted.
    again: VecDeque<(Instant, Acker, bool)>,
}

impl Backlog {
    fn add(&mut self, delivery: Delivery) {
        self.ahead.insert(delivery.delivery_tag, delivery);
    }
}

fn queue_deleted() -> Error {
    Error::new(Kind::Unavailable, "the queue is gone")
}

impl Consumer {
    pub(super) async fn join(
        shared: &Arc<BrokerInner>,
        queue: Queue,
        in_flight: NonZeroUsize,
    ) -> Result<Self> {
        let mut consumer = Self {
            shared: Arc::clone(shared),
            topic: queue.topic.as_str().into(),
            queue,
            in_flight,
            stream: None,
            drops: DropWarning::default(),
        };
        consumer.stream = Some(consumer.consume().await?);
        Ok(consumer)
    }

    async fn consume(&self) -> Result<Stream> {
        let options = &self.shared.options;
        let channel = self.queue.declare(&self.shared.link, options).await?;
        let most = NonZeroU16::try_from(self.in_flight).unwrap_or(NonZeroU16::MAX);
        let most = options.prefetch.map_or(most, |prefetch| prefetch.min(most));
        let prefetch = Prefetch::new(most);
        let count = if self.queue.has_one_consumer() {
            most.get()
        } else {
            prefetch.count()
        };
        let deliveries = self.deliveries(&channel, count).await?;
        Ok(Stream {
            channel,
            deliveries,
            prefetch,
            window: if options.auto_ack {
                usize::MAX
            } else {
                count.into()
            },
        })
    }

    /// A new consumer with this prefetch count.
    async fn deliveries(&self, channel: &Channel, prefetch: u16) -> Result<lapin::Consumer> {
        call(channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let consuming = channel.basic_consume(
            self.queue.name.clone(),
            short(&self.tag(), "consumer tag")?,
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        call(consuming).await
    }

    /// Changes the prefetch count, which needs a new consumer. It starts before the old one ends, because a
    /// queue may be deleted with its last consumer. Deliveries of the old one stay with the channel.
    async fn adjust_prefetch(&self, stream: &mut Stream, waiting: &mut Backlog) -> Result<()> {
        let fitted = self.deliveries(&stream.channel, stream.prefetch.count()).await?;
        let mut old = std::mem::replace(&mut stream.deliveries, fitted);
        let cancelling = stream
            .channel
            .basic_cancel(old.tag(), BasicCancelOptions::default());
        call(cancelling).await?;
        // Both are drained before anything is handed on, because tags give the order.
        while let Some(delivery) = old.next().await {
            waiting.add(delivery.map_err(|error| failure(&error))?);
        }
        while let Some(delivery) = stream.deliveries.next().now_or_never() {
            let delivery = delivery.ok_or_else(queue_deleted)?;
            waiting.add(delivery.map_err(|error| failure(&error))?);
        }
        Ok(())
    }

    /// `<queue>-<uuid>`, shortened at the start.
    fn tag(&self) -> String {
        let tag = format!("{}-{}", self.queue.name, uuid::Uuid::new_v4());
        let mut from = tag.len().saturating_sub(MAX_TAG);
        while !tag.is_char_boundary(from) {
            from += 1;
        }
        tag[from..].to_owned()
    }

    pub(super) async fn run(mut self, mut feed: Feed<Acker>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        loop {
            let stream = match self.stream.take() {
                Some(stream) => Ok(stream),
                None => self.consume().await,
            };
            let cause = match stream {
                Ok(stream) => match self.session(stream, &mut feed).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            // The broker redelivers the channel's messages.
            feed.forget(|_| true);
            tracing::warn!(
                target: LOG,
                "component {}: topic {}: {cause}; subscribing again", self.shared.component, self.topic
            );
            tokio::select! {
                () = drain.cancelled() => return Ok(()),
                () = closed.cancelled() => return Ok(()),
                () = sleep(self.shared.options.reconnect_wait) => {}
            }
        }
    }

    /// Takes messages from one channel until draining ends. An error means that the channel is gone.
    async fn session(&self, mut stream: Stream, feed: &mut Feed<Acker>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        let mut waiting = Backlog::default();
        feed.set_window(stream.window);
        let (mut draining, mut over) = (false, false);
        loop {
            while feed.free_capacity() > 0
                && let Some((_, delivery)) = waiting.ahead.pop_first()
            {
                self.offer(feed, delivery).await?;
            }
            if draining && feed.is_settled() {
                break;
            }
            let due = waiting.again.front().map(|(due, ..)| *due);
            tokio::select! {
                () = closed.cancelled() => {
                    let settled = feed.settled().now_or_never().unwrap_or_default();
                    self.settle(settled, &mut waiting, true).await?;
                    break;
                }
                () = drain.cancelled(), if !draining => {
                    draining = true;
                    let tag = stream.deliveries.tag();
                    call(stream.channel.basic_cancel(tag, BasicCancelOptions::default())).await?;
                    self.release(&mut waiting).await?;
                }
                settled = feed.settled() => self.settle(settled, &mut waiting, draining).await?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if let Some((_, acker, untried)) = waiting.again.pop_front() {
                        self.return_message(&acker, untried).await?;
                    }
                }
                delivery = stream.deliveries.next(), if !over => match delivery {
                    Some(Ok(delivery)) if draining => self.return_message(&delivery.acker, true).await?,
                    Some(Ok(delivery)) => {
                        let adjust_prefetch = stream.prefetch.received(size(&delivery));
                        waiting.add(delivery);
                        if adjust_prefetch && !self.queue.has_one_consumer() {
                            self.adjust_prefetch(&mut stream, &mut waiting).await?;
                            if !self.shared.options.auto_ack {
                                feed.set_window(stream.prefetch.count().into());
                            }
                        }
                    }
                    Some(Err(error)) => return Err(failure(&error)),
                    // Cancelled by this side or by the broker.
                    None if draining => over = true,
                    None => return Err(queue_deleted()),
                },
            }
        }
        // Closing waits until the broker has read the settlements; unsettled messages return to the queue.
        drop(waiting);
        let _late = timeout(CLOSE_WAIT, stream.channel.close(200, "OK".into())).await;
        Ok(())
    }

    async fn offer(&self, feed: &mut Feed<Acker>, delivery: Delivery) -> Result<()> {
        if let Some(why) = frames::refusal(&delivery.properties) {
            return self.refuse(&delivery.acker, why).await;
        }
        let message = self.message(&delivery);
        if self.shared.options.auto_ack {
            call(delivery.acker.ack(BasicAckOptions::default())).await?;
        }
        feed.offer(delivery.acker, message);
        Ok(())
    }

    /// With a timeout: if the connection breaks, the client may never complete an acknowledgement.
    async fn settle(
        &self,
        settled: Vec<(Acker, Settlement)>,
        waiting: &mut Backlog,
        ending: bool,
    ) -> Result<()> {
        for (acker, settlement) in settled {
            match settlement {
                _ if self.shared.options.auto_ack => {}
                Settlement::Acknowledge => {
                    call(acker.ack(BasicAckOptions::default())).await?;
                }
                Settlement::Reject | Settlement::Release if ending => {
                    self.return_message(&acker, true).await?
                }
                Settlement::Reject | Settlement::Release => {
                    let untried = settlement == Settlement::Release;
                    waiting
                        .again
                        .push_back((Instant::now() + REDELIVERY_DELAY, acker, untried));
                }
            }
        }
        Ok(())
    }

    /// Returns messages that the app never received or did not finish.
    async fn release(&self, waiting: &mut Backlog) -> Result<()> {
        for delivery in std::mem::take(&mut waiting.ahead).into_values() {
            self.return_message(&delivery.acker, true).await?;
        }
        for (_, acker, _) in waiting.again.drain(..) {
            self.return_message(&acker, true).await?;
        }
        Ok(())
    }

    /// Rejects an unreadable message, because redelivery would not help.
    async fn refuse(&self, acker: &Acker, why: &str) -> Result<()> {
        tracing::error!(
            target: LOG,
            "component {}: topic {}: refused a message of the queue {}: {why}; RabbitMQ drops it, unless the queue has a dead-letter exchange (enableDeadLetter)",
            self.shared.component,
            self.topic,
            self.queue.name
        );
        let nack = BasicNackOptions {
            requeue: false,
            ..BasicNackOptions::default()
        };
        call(acker.nack(nack)).await.map(drop)
    }

    /// Returns a message. If the app failed it (`!untried`) and dead-lettering is on, it is dead-lettered;
    /// otherwise it is requeued.
    async fn return_message(&self, acker: &Acker, untried: bool) -> Result<()> {
        let options = &self.shared.options;
        let nack = BasicNackOptions {
            requeue: untried || options.requeue || !options.dead_letter,
            ..BasicNackOptions::default()
        };
        call(acker.nack(nack)).await.map(drop)
    }

    /// With a dead-letter queue, the message is moved there instead.
    fn warn_of_drops(&self, returned: u32) {
        if self.shared.options.dead_letter || !self.drops.is_due(returned) {
            return;
        }
        tracing::warn!(
            target: LOG,
            "component {}: topic {}: a message of the queue {} was returned {returned} times: RabbitMQ 4 \
             drops it after 20 returns, unless a policy for the queue sets a higher delivery-limit; set \
             one, or a dead-letter topic for the subscription, and check why the app fails it",
            self.shared.component,
            self.topic,
            self.queue.name
        );
    }

    fn message(&self, delivery: &Delivery) -> Message {
        let properties = &delivery.properties;
        let mut metadata = Pairs::new();
        if self.shared.options.tell_properties {
            let texts = [
                ("messageid", properties.message_id()),
                ("correlationid", properties.correlation_id()),
                ("type", properties.kind()),
                ("contenttype", properties.content_type()),
            ];
            for (name, text) in texts {
                if let Some(text) = text {
                    metadata.insert(format!("metadata.{name}"), text.to_string());
                }
            }
            for (name, value) in properties.headers().iter().flat_map(|headers| headers.inner()) {
                metadata.insert(format!("metadata.{name}"), shown(value));
            }
        }
        let headers = properties.headers().as_ref();
        if let Some(hops) = headers.and_then(|headers| headers.inner().get(DEAD_LETTER_HOPS)) {
            metadata.insert(DEAD_LETTER_HOPS.to_owned(), shown(hops));
        }
        let returned = returned(properties);
        self.warn_of_drops(returned);
        Message {
            topic: Arc::clone(&self.topic),
            data: delivery.data.clone().into(),
            content_type: None,
            metadata,
            ordering_key: None,
            redelivered: Some(returned.max(u32::from(delivery.redelivered))),
        }
    }
}

/// How often a message was returned to its queue; only quorum queues report it.
fn returned(properties: &BasicProperties) -> u32 {
    let headers = properties.headers().as_ref();
    let counted = headers.and_then(|headers| headers.inner().get("x-delivery-count"));
    let counted = counted.and_then(AMQPValue::as_long_long_int);
    counted.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

/// Memory size of a message in bytes: payload and headers.
fn size(delivery: &Delivery) -> usize {
    let headers = delivery.properties.headers().as_ref();
    delivery.data.len() + headers.map_or(0, table_size)
}

fn table_size(table: &FieldTable) -> usize {
    let pairs = table.inner().iter();
    pairs
        .map(|(name, value)| name.as_str().len() + value_size(value))
        .sum()
}

fn value_size(value: &AMQPValue) -> usize {
    let more = match value {
        AMQPValue::ShortString(text) => text.as_str().len(),
        AMQPValue::LongString(text) => text.len(),
        AMQPValue::ByteArray(bytes) => bytes.len(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(value_size).sum(),
        AMQPValue::FieldTable(table) => table_size(table),
        _ => 0,
    };
    size_of::<AMQPValue>() + more
}

/// A header value as text.
fn shown(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(flag) => flag.to_string(),
        other => match other.as_long_long_int() {
            Some(number) => number.to_string(),
            None => format!("{other:?}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_count_toward_size() {
        let long = || AMQPValue::LongString("x".repeat(1000).into());
        let mut inner = FieldTable::default();
        inner.insert("inner".into(), long());
        let mut headers = FieldTable::default();
        headers.insert("outer".into(), AMQPValue::FieldTable(inner));
        headers.insert("array".into(), AMQPValue::FieldArray(vec![long(), long()].into()));
        let size = table_size(&headers);
        assert!((3015..4000).contains(&size), "{size}");
    }

    #[test]
    fn warns_once_before_drops() {
        let came_back = |times: i64| {
            let mut headers = FieldTable::default();
            headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(times));
            returned(&BasicProperties::default().with_headers(headers))
        };
        let warning = DropWarning::default();
        assert!(!warning.is_due(returned(&BasicProperties::default())));
        assert!(!warning.is_due(came_back(14)));
        assert!(warning.is_due(came_back(15)));
        assert!(!warning.is_due(came_back(16)), "it was told");
    }
}
