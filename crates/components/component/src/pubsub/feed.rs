use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::{
    mpsc::{self, UnboundedReceiver, UnboundedSender},
    oneshot,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Delivery, Event, Message, Receipt, Revoked, Settlement, Subscribe,
    keys::{Keys, Notify},
};
use crate::{Error, Kind, Result};

/// Limit of message bytes per subscription; a single larger message passes.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Assumed message size until messages arrive, bytes.
const INITIAL_SIZE: usize = 2 * 1024 * 1024;

/// Number of unacknowledged messages at which the broker stops sending.
#[derive(Debug, Clone)]
pub struct Window(Arc<AtomicUsize>);

impl Default for Window {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }
}

impl Window {
    /// The current window; `usize::MAX` if the broker has none or does not report it.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A running subscription. Dropping it ends it at once; unsettled messages are redelivered later.
#[derive(Debug)]
pub struct Subscription {
    events: UnboundedReceiver<Event>,
    drain: CancellationToken,
    task: AbortOnDropHandle<Result<()>>,
    concurrency: Option<NonZeroUsize>,
    window: Window,
    keeps_order: bool,
    needs_consumer: bool,
}

/// The adapter's side of a subscription. `T` identifies a message to the broker.
///
/// No method waits for the engine: [`Feed::free_capacity`] says how many messages may be offered.
#[derive(Debug)]
pub struct Feed<T> {
    events: UnboundedSender<Event>,
    settled: UnboundedReceiver<(u64, Settlement, bool)>,
    settling: UnboundedSender<(u64, Settlement, bool)>,
    drain: CancellationToken,
    window: Window,
    limit: usize,
    next: u64,
    /// By receipt number. Numbers increase in delivery order.
    unsettled: BTreeMap<u64, T>,
    /// Bytes of all messages held by the engine, by receipt number.
    sizes: HashMap<u64, usize>,
    /// Sum of `sizes`.
    bytes: usize,
    /// Expected size of the next message: the largest recent one, bytes.
    expected: usize,
    /// Set if the broker keeps the order of a key.
    keys: Option<Keys>,
}

impl Subscription {
    /// Like [`Subscription::start`], for a broker that redelivers the messages of a key in order.
    /// [`Receipt::reject_key`] needs this.
    pub fn start_in_order<T, F>(request: &Subscribe, run: impl FnOnce(Feed<T>) -> F) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Self::start_with(request, Some(Keys::default()), run)
    }

    /// Spawns `run` with the adapter's side of the subscription, until it returns or the subscription is
    /// dropped. It must return once [`Feed::draining`] and nothing is unsettled.
    pub fn start<T, F>(request: &Subscribe, run: impl FnOnce(Feed<T>) -> F) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Self::start_with(request, None, run)
    }

    fn start_with<T, F>(request: &Subscribe, keys: Option<Keys>, run: impl FnOnce(Feed<T>) -> F) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let keeps_order = keys.is_some();
        let (events, taken) = mpsc::unbounded_channel();
        let (settling, settled) = mpsc::unbounded_channel();
        let drain = CancellationToken::new();
        let window = Window::default();
        let feed = Feed {
            events,
            settled,
            settling,
            drain: drain.clone(),
            window: window.clone(),
            limit: request.in_flight.get(),
            next: 0,
            unsettled: BTreeMap::new(),
            sizes: HashMap::new(),
            bytes: 0,
            expected: INITIAL_SIZE,
            keys,
        };
        Self {
            events: taken,
            drain,
            task: AbortOnDropHandle::new(tokio::spawn(run(feed))),
            concurrency: None,
            window,
            keeps_order,
            needs_consumer: false,
        }
    }

    /// Whether the broker redelivers the messages of a key in order.
    pub fn keeps_order(&self) -> bool {
        self.keeps_order
    }

    /// Sets the concurrency from the component's settings.
    #[must_use]
    pub fn with_concurrency(mut self, concurrency: Option<NonZeroUsize>) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Concurrency from the component's settings; `None` if not set.
    pub fn concurrency(&self) -> Option<NonZeroUsize> {
        self.concurrency
    }

    /// Sets whether the broker drops messages without a consumer, and gives returned messages to other
    /// consumers.
    #[must_use]
    pub fn needing_consumer(mut self, needs_consumer: bool) -> Self {
        self.needs_consumer = needs_consumer;
        self
    }

    /// Whether ending the subscription can lose messages, published later or returned at its end. If so, it
    /// should not end for a pause.
    pub fn needs_consumer(&self) -> bool {
        self.needs_consumer
    }

    /// The broker's window; it may change.
    pub fn window(&self) -> Window {
        self.window.clone()
    }

    /// The next event; `None` after the end of the subscription.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Stops taking messages from the broker. Received messages can still be settled.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Whether the subscription has ended, by itself or with its component.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Drains, returns messages not yet taken by [`Subscription::next`], and waits until the broker has all
    /// settlements. Receipts still held delay this.
    ///
    /// # Errors
    /// Why the subscription ended early; settlements may then be lost.
    pub async fn ended(mut self) -> Result<()> {
        self.drain();
        self.events.close();
        // Dropping an event returns its message.
        while self.events.recv().await.is_some() {}
        match self.task.await {
            Ok(ended) => ended,
            Err(error) => Err(Error::new(Kind::Internal, "a subscription failed").because(error)),
        }
    }
}

impl<T> Feed<T> {
    /// How many more messages may be offered; zero while draining. Large messages lower it below the
    /// requested number.
    pub fn free_capacity(&self) -> usize {
        if self.draining() {
            return 0;
        }
        let by_number = self.limit.saturating_sub(self.sizes.len());
        let by_size = MAX_BYTES.saturating_sub(self.bytes) / self.expected.max(1);
        // One message always passes, whatever its size.
        by_number.min(by_size.max(usize::from(self.sizes.is_empty())))
    }

    /// How many bytes may be offered, for brokers that announce sizes. If [`Feed::free_capacity`] allows, one
    /// message passes whatever its size.
    pub fn free_bytes(&self) -> usize {
        MAX_BYTES.saturating_sub(self.bytes)
    }

    /// Sets how many unacknowledged messages the broker sends ahead. Returned messages count until the broker
    /// knows of them. Without a call there is no limit.
    pub fn set_window(&self, count: usize) {
        self.window.0.store(count.max(1), Ordering::Relaxed);
    }

    /// Passes a message to the engine.
    pub fn offer(&mut self, name: T, message: Message) {
        let id = self.next;
        self.next += 1;
        self.unsettled.insert(id, name);
        let size = message.size();
        self.sizes.insert(id, size);
        self.bytes += size;
        // A single very large message must not block small ones.
        self.expected = size.max(self.expected - self.expected / 8).min(MAX_BYTES / 8);
        if let (Some(keys), Some(ordering_key)) = (&mut self.keys, &message.ordering_key)
            && !keys.offered(id, ordering_key)
        {
            return;
        }
        let receipt = Receipt::new(id, self.settling.clone());
        // Fails if the subscription was dropped; the dropped receipt then rejects the message.
        let _ = self.events.send(Event::Message(Delivery { message, receipt }));
    }

    /// Waits for settlements and returns them in order, with the broker's identifiers. An empty result means
    /// that the engine released forgotten messages and [`Feed::free_capacity`] grew. Cancel-safe.
    pub async fn settled(&mut self) -> Vec<(T, Settlement)> {
        let mut found = Vec::new();
        // Never `None`: this side holds a sender too.
        if let Some(settled) = self.settled.recv().await {
            self.take(settled, &mut found);
        }
        while let Ok(settled) = self.settled.try_recv() {
            self.take(settled, &mut found);
        }
        found
    }

    fn take(&mut self, settled: (u64, Settlement, bool), found: &mut Vec<(T, Settlement)>) {
        let (id, settlement, with_key) = settled;
        let notify = match &mut self.keys {
            Some(keys) => keys.settled(id, settlement, with_key),
            None => Notify::Now,
        };
        match notify {
            Notify::Now => self.report(id, settlement, found),
            Notify::Later => {}
            Notify::All(all, ordering_key) => {
                for (id, settlement) in all {
                    self.report(id, settlement, found);
                }
                // Ignored if the subscription was dropped.
                let _ = self.events.send(Event::Reopened(ordering_key));
            }
        }
    }

    fn report(&mut self, id: u64, settlement: Settlement, found: &mut Vec<(T, Settlement)>) {
        self.bytes -= self.sizes.remove(&id).unwrap_or(0);
        // Forgotten messages are not reported.
        if let Some(name) = self.unsettled.remove(&id) {
            found.push((name, settlement));
        }
    }

    /// Unsettled messages in the order they were offered.
    pub fn unsettled(&self) -> impl Iterator<Item = &T> {
        self.unsettled.values()
    }

    /// Whether nothing is unsettled.
    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Stops reporting settlements of these messages: the broker redelivers them to this or another consumer.
    /// Their receipts count as in flight until the engine settles them.
    pub fn forget(&mut self, is_gone: impl Fn(&T) -> bool) {
        self.unsettled.retain(|_, name| !is_gone(name));
    }

    /// Reports revoked partitions to the engine and waits until it has recorded them. Then [`Feed::forget`]
    /// their messages.
    pub async fn revoked(&self, partitions: Vec<u32>) {
        let (noted, taken_note) = oneshot::channel();
        let event = Event::Revoked(Revoked { partitions, noted });
        if self.events.send(event).is_ok() {
            // An error means that the other side was dropped, which counts as recorded.
            let _ = taken_note.await;
        }
    }

    /// Whether the subscription is draining.
    pub fn draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Cancelled when the subscription starts draining.
    pub fn drain_token(&self) -> CancellationToken {
        self.drain.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(in_flight: usize) -> Subscribe {
        Subscribe {
            topic: "orders".to_owned(),
            metadata: Default::default(),
            in_flight: NonZeroUsize::new(in_flight).unwrap(),
        }
    }

    fn message(text: &'static str) -> Message {
        Message {
            topic: "orders".into(),
            data: text.into(),
            content_type: None,
            metadata: Default::default(),
            ordering_key: None,
            redelivered: None,
        }
    }

    /// Offers `texts` as capacity allows; returns the settlements after a drain.
    async fn offering(
        mut feed: Feed<&'static str>,
        texts: &[&'static str],
    ) -> Vec<(&'static str, Settlement)> {
        let drain = feed.drain_token();
        let (mut texts, mut all) = (texts.iter(), Vec::new());
        loop {
            while feed.free_capacity() > 0
                && let Some(text) = texts.next()
            {
                feed.offer(text, message(text));
            }
            if feed.draining() && feed.is_settled() {
                return all;
            }
            tokio::select! {
                settled = feed.settled() => all.extend(settled),
                () = drain.cancelled(), if !feed.draining() => {}
            }
        }
    }

    async fn delivery(subscription: &mut Subscription) -> Delivery {
        match subscription.next().await {
            Some(Event::Message(delivery)) => delivery,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn bounds_unsettled_messages() {
        let (report, outcome) = oneshot::channel();
        let mut subscription = Subscription::start(&request(2), |feed| async move {
            let _ = report.send(offering(feed, &["a", "b", "c"]).await);
            Ok(())
        });
        let a = delivery(&mut subscription).await;
        let b = delivery(&mut subscription).await;
        tokio::task::yield_now().await;
        assert!(subscription.events.try_recv().is_err(), "two are unsettled");
        a.receipt.acknowledge();
        let c = delivery(&mut subscription).await;
        drop(c);
        b.receipt.reject();
        subscription.ended().await.unwrap();
        let settled = outcome.await.unwrap();
        assert_eq!(
            settled,
            [
                ("a", Settlement::Acknowledge),
                ("c", Settlement::Reject),
                ("b", Settlement::Reject)
            ]
        );
    }

    /// Capacity while `unsettled` messages of `size` bytes are held, and after they are settled.
    async fn rooms(size: usize, unsettled: usize) -> (usize, usize) {
        let (report, outcome) = oneshot::channel();
        let (go, settle) = oneshot::channel();
        let mut subscription = Subscription::start(&request(1024), |mut feed: Feed<usize>| async move {
            let mut left = unsettled;
            for number in 0..unsettled {
                assert!(feed.free_capacity() > 0, "for number {number}");
                let message = Message {
                    data: vec![0; size].into(),
                    ..message("")
                };
                feed.offer(number, message);
            }
            let before = feed.free_capacity();
            let _ = go.send(());
            while left > 0 {
                left -= feed.settled().await.len();
            }
            let _ = report.send((before, feed.free_capacity()));
            Ok(())
        });
        settle.await.unwrap();
        for _ in 0..unsettled {
            delivery(&mut subscription).await.receipt.acknowledge();
        }
        outcome.await.unwrap()
    }

    #[tokio::test]
    async fn large_messages_reduce_capacity() {
        assert_eq!(rooms(0, 100).await, (924, 1024), "small ones are counted alone");
        assert_eq!(
            rooms(INITIAL_SIZE, 16).await,
            (0, 16),
            "of the first ones few are taken"
        );
        let four = 4 * 1024 * 1024;
        assert_eq!(rooms(four, 7).await, (1, 8));
        assert_eq!(rooms(four, 8).await, (0, 8));
        assert_eq!(rooms(MAX_BYTES / 2 + 1, 1).await, (3, 8), "small ones may follow");
        assert_eq!(rooms(2 * MAX_BYTES, 1).await, (0, 8), "one passes, however large");
    }

    #[tokio::test]
    async fn metadata_counts_toward_capacity() {
        let (report, room) = oneshot::channel();
        let _subscription = Subscription::start(&request(1024), |mut feed: Feed<usize>| async move {
            for number in 0..9 {
                let metadata = crate::Pairs::from([("x".to_owned(), "y".repeat(MAX_BYTES / 8))]);
                feed.offer(
                    number,
                    Message {
                        metadata,
                        ..message("")
                    },
                );
            }
            let _ = report.send((feed.free_capacity(), feed.free_bytes()));
            Ok(())
        });
        assert_eq!(room.await.unwrap(), (0, 0));
    }

    #[tokio::test]
    async fn returns_untaken_messages_at_end() {
        let (report, outcome) = oneshot::channel();
        let subscription = Subscription::start(&request(5), |feed| async move {
            let _ = report.send(offering(feed, &["a"]).await);
            Ok(())
        });
        tokio::task::yield_now().await;
        subscription.ended().await.unwrap();
        assert_eq!(outcome.await.unwrap(), [("a", Settlement::Reject)]);
    }

    #[tokio::test]
    async fn forgotten_messages_count_until_settled() {
        let (report, outcome) = oneshot::channel();
        let mut subscription = Subscription::start(&request(1), |mut feed: Feed<u32>| async move {
            feed.offer(1, message("a"));
            feed.forget(|_| true);
            let before = feed.free_capacity();
            feed.revoked(vec![7]).await;
            // Returns without settlements so that a caller waiting for capacity checks again.
            let nothing = tokio::time::timeout(std::time::Duration::from_secs(10), feed.settled()).await;
            let _ = report.send((
                before,
                nothing.is_ok_and(|settled| settled.is_empty()),
                feed.free_capacity(),
            ));
            Ok(())
        });
        let first = delivery(&mut subscription).await;
        let Some(Event::Revoked(revoked)) = subscription.next().await else {
            panic!("no revocation");
        };
        assert_eq!(revoked.partitions, [7]);
        first.receipt.acknowledge();
        drop(revoked.noted);
        assert_eq!(outcome.await.unwrap(), (0, true, 1), "its settlement is not told");
    }
}
