//! `pubsub.in-memory`: messages within one sidecar, lost on exit. Delivery is at most once: rejected messages
//! are dropped.

use std::num::NonZeroUsize;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use outrigger_component::{
    Catalog, Entry, Error, Kind, Metadata, PubSub, Result,
    catalog::Version,
    pubsub::{Features, Feed, Message, OrderingKey, Publish, Subscribe, Subscription},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Maximum queued messages per subscription.
const MAX_WAITING: usize = 65_536;
/// Maximum queued bytes per subscription: payloads, metadata, keys and topics.
const MAX_BYTES: usize = 256 << 20;

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .pubsub
        .add(Entry::new(&["in-memory"], Version::Only, |setup| async move {
            Ok(Arc::new(Broker::new(&setup.metadata)) as Arc<dyn PubSub>)
        }));
}

struct Broker {
    component: Arc<str>,
    /// `None` once closed.
    subscribers: Mutex<Option<Vec<Subscriber>>>,
    closed: CancellationToken,
}

struct Subscriber {
    pattern: String,
    queue: mpsc::Sender<Message>,
    bytes: Arc<AtomicUsize>,
}

impl Subscriber {
    /// A pattern ending in `*` matches every longer topic.
    fn wants(&self, topic: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            None => self.pattern == topic,
            Some(prefix) => topic.len() > prefix.len() && topic.starts_with(prefix),
        }
    }

    fn has_room(&self, size: usize) -> bool {
        self.queue.capacity() > 0 && self.bytes.load(Ordering::Relaxed).saturating_add(size) <= MAX_BYTES
    }
}

/// Here each message owns its topic.
fn size(message: &Message) -> usize {
    message.size() + message.topic.len()
}

impl Broker {
    fn new(metadata: &Metadata) -> Self {
        Self {
            component: metadata.component().clone(),
            subscribers: Mutex::new(Some(Vec::new())),
            closed: CancellationToken::new(),
        }
    }

    fn subscribers(&self) -> MutexGuard<'_, Option<Vec<Subscriber>>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> Error {
        Error::closed().of(&self.component)
    }
}

#[async_trait]
impl PubSub for Broker {
    fn features(&self) -> Features {
        Features {
            wildcards: true,
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        let mut subscribers = self.subscribers();
        let subscribers = subscribers.as_mut().ok_or_else(|| self.closed())?;
        subscribers.retain(|subscriber| !subscriber.queue.is_closed());
        let wanted = subscribers
            .iter()
            .filter(|subscriber| subscriber.wants(&message.topic));
        let ordering_key = message.partition_key().map(|key| OrderingKey {
            partition: None,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
        });
        let message = Message {
            topic: message.topic.as_str().into(),
            data: message.data.clone(),
            content_type: message.content_type.clone(),
            metadata: message.metadata.clone(),
            ordering_key,
            redelivered: Some(0),
        };
        let size = size(&message);
        // All subscribers get the message or none: a retried publish must not duplicate it.
        if let Some(full) = wanted.clone().find(|subscriber| !subscriber.has_room(size)) {
            let text = format!(
                "the subscription to {} has {MAX_WAITING} messages or {MAX_BYTES} bytes waiting; publish again when \
                 the app has handled some",
                full.pattern
            );
            return Err(Error::new(Kind::Unavailable, text).of(&self.component));
        }
        for subscriber in wanted {
            subscriber.bytes.fetch_add(size, Ordering::Relaxed);
            // Capacity was checked, and only this side adds to the queue.
            let _ = subscriber.queue.try_send(message.clone());
        }
        Ok(())
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let (queue, messages) = mpsc::channel(MAX_WAITING);
        let bytes = Arc::new(AtomicUsize::new(0));
        let mut subscribers = self.subscribers();
        let subscribers = subscribers.as_mut().ok_or_else(|| self.closed())?;
        subscribers.push(Subscriber {
            pattern: request.topic.clone(),
            queue,
            bytes: Arc::clone(&bytes),
        });
        let closed = self.closed.clone();
        let subscription = Subscription::start(&request, |feed| deliver(feed, messages, bytes, closed));
        // One at a time, so that messages are handled in order.
        Ok(subscription.with_concurrency(Some(NonZeroUsize::MIN)))
    }

    async fn ping(&self) -> Result<()> {
        self.subscribers().as_ref().map(drop).ok_or_else(|| self.closed())
    }

    async fn close(&self) {
        self.subscribers().take();
        self.closed.cancel();
    }
}

async fn deliver(
    mut feed: Feed<()>,
    mut messages: mpsc::Receiver<Message>,
    bytes: Arc<AtomicUsize>,
    closed: CancellationToken,
) -> Result<()> {
    let drain = feed.drain_token();
    loop {
        if feed.draining() {
            messages.close();
            if feed.is_settled() {
                return Ok(());
            }
        }
        tokio::select! {
            () = closed.cancelled() => return Ok(()),
            () = drain.cancelled(), if !feed.draining() => {}
            _ = feed.settled() => {}
            message = messages.recv(), if feed.free_capacity() > 0 => match message {
                None => return Ok(()),
                Some(message) => {
                    bytes.fetch_sub(size(&message), Ordering::Relaxed);
                    feed.offer((), message);
                }
            },
        }
    }
}
