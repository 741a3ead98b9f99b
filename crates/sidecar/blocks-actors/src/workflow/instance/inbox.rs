//! Events that wait for the turn of their instance. The call that gets the turn adds all of them, so that the
//! results of a fan-out cost one reminder and one transaction. A step can also wait for events before it is
//! stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use outrigger_workflow::Arrival;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::Status;

use crate::workflow::protocol::arrival;

/// Maximum events of a batch.
const MAX_BATCH: usize = 128;
/// Maximum bytes of a batch, beyond its first event.
const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// An event with a waiting sender.
struct Waiting {
    ticket: u64,
    event: Bytes,
    /// The answer, if another call's turn added the event.
    answer: Option<Result<(), Status>>,
    /// Notified when there is an answer.
    answered: Arc<Notify>,
}

/// The queue for the turn of an instance.
#[derive(Default)]
struct Queue {
    events: Vec<Waiting>,
    /// Queued calls and reminders without an event.
    others: usize,
    /// Notified of each arrival, for a step that waits before it is stored.
    batch_waiter: Option<Arc<Notify>>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.others == 0 && self.batch_waiter.is_none()
    }

    fn notify(&self) {
        if let Some(batch_waiter) = &self.batch_waiter {
            batch_waiter.notify_one();
        }
    }
}

#[derive(Default)]
struct Queues {
    next: u64,
    by_instance: HashMap<String, Queue>,
}

/// All waiting events; the number of calls bounds them.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<Queues>);

/// Encoded events that are added together, with their tickets.
pub(crate) type Batch = Vec<(u64, Bytes)>;

/// The first batch of `waiting`.
fn batch<'a>(waiting: impl Iterator<Item = &'a Waiting>) -> Batch {
    let mut batch = Batch::new();
    let mut bytes = 0;
    for waiting in waiting.filter(|waiting| waiting.answer.is_none()) {
        let is_first = batch.is_empty();
        if !is_first {
            bytes += waiting.event.len();
        }
        if batch.len() >= MAX_BATCH || bytes > MAX_BATCH_BYTES {
            break;
        }
        batch.push((waiting.ticket, waiting.event.clone()));
    }
    batch
}

/// A decoded batch.
#[derive(Default)]
pub(crate) struct Decoded {
    pub(crate) tickets: Vec<u64>,
    /// One per ticket.
    pub(crate) events: Vec<Arrival>,
    /// Answers to invalid events.
    pub(crate) answers: Vec<(u64, Result<(), Status>)>,
}

impl Decoded {
    pub(crate) fn read(batch: Batch) -> Self {
        let mut decoded = Self::default();
        for (ticket, event) in batch {
            match arrival(&event) {
                Ok(event) => {
                    decoded.tickets.push(ticket);
                    decoded.events.push(event);
                }
                Err(error) => decoded.answers.push((ticket, Err(error))),
            }
        }
        decoded
    }
}

impl Inbox {
    fn locked(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, instance: &str, event: Bytes) -> u64 {
        let mut queues = self.locked();
        queues.next += 1;
        let ticket = queues.next;
        let waiting = Waiting {
            ticket,
            event,
            answer: None,
            answered: Arc::default(),
        };
        let queue = queues.by_instance.entry(instance.to_owned()).or_default();
        queue.events.push(waiting);
        queue.notify();
        ticket
    }

    pub(crate) fn leave(&self, instance: &str, ticket: u64) {
        self.change(instance, |queue| {
            queue.events.retain(|waiting| waiting.ticket != ticket);
        });
    }

    /// Changes the queue of an instance, and drops it if empty.
    fn change(&self, instance: &str, change: impl FnOnce(&mut Queue)) {
        let mut queues = self.locked();
        if let Some(queue) = queues.by_instance.get_mut(instance) {
            change(queue);
            if queue.is_empty() {
                queues.by_instance.remove(instance);
            }
        }
    }

    /// Registers a caller without an event that waits for the turn, until the guard is dropped.
    pub(crate) fn wait<'a>(&'a self, instance: &'a str) -> TurnWaiter<'a> {
        let mut queues = self.locked();
        let queue = queues.by_instance.entry(instance.to_owned()).or_default();
        queue.others += 1;
        queue.notify();
        TurnWaiter {
            inbox: self,
            instance,
        }
    }

    /// Waits for events in the turn of their instance, up to `limit` or until another caller wants the turn.
    pub(crate) async fn next(&self, instance: &str, limit: Duration) -> Option<Batch> {
        let came = Arc::<Notify>::default();
        let _lingering = BatchWaiter::new(self, instance, Arc::clone(&came));
        let next = async {
            loop {
                if let Some(next) = self.arrived(instance) {
                    return Some(next).filter(|batch| !batch.is_empty());
                }
                came.notified().await;
            }
        };
        timeout(limit, next).await.ok().flatten()
    }

    /// The waiting events, none if another caller wants the turn; `None` if nothing has arrived.
    fn arrived(&self, instance: &str) -> Option<Batch> {
        let queues = self.locked();
        let queue = queues.by_instance.get(instance)?;
        if queue.others > 0 {
            return Some(Batch::new());
        }
        Some(batch(queue.events.iter())).filter(|batch| !batch.is_empty())
    }

    /// The work of a turn: `Err` is the answer if there is one, otherwise the events to add.
    pub(crate) fn take(&self, instance: &str, ticket: u64) -> Result<Batch, Result<(), Status>> {
        let queues = self.locked();
        let queue = queues.by_instance.get(instance);
        let waiting = queue.into_iter().flat_map(|queue| &queue.events);
        // Earlier events without an answer get their own turn.
        let mut waiting = waiting.skip_while(|waiting| waiting.ticket != ticket).peekable();
        if let Some(answer) = waiting.peek().and_then(|own| own.answer.clone()) {
            return Err(answer);
        }
        Ok(batch(waiting))
    }

    /// Waits for the answer.
    pub(crate) async fn answered(&self, instance: &str, ticket: u64) -> Result<(), Status> {
        loop {
            match self.answer_of(instance, ticket) {
                Ok(answer) => return answer,
                Err(notify) => notify.notified().await,
            }
        }
    }

    /// The answer, or its notifier.
    fn answer_of(&self, instance: &str, ticket: u64) -> Result<Result<(), Status>, Arc<Notify>> {
        let queues = self.locked();
        let queue = queues.by_instance.get(instance);
        let mut waiting = queue.into_iter().flat_map(|queue| &queue.events);
        match waiting.find(|waiting| waiting.ticket == ticket) {
            Some(waiting) => waiting
                .answer
                .clone()
                .ok_or_else(|| Arc::clone(&waiting.answered)),
            // The call has left: it is never notified.
            None => Err(Arc::default()),
        }
    }

    /// Answers the senders that still wait.
    pub(crate) fn answer(&self, instance: &str, answers: Vec<(u64, Result<(), Status>)>) {
        let mut answers: HashMap<_, _> = answers.into_iter().collect();
        let mut queues = self.locked();
        let queue = queues.by_instance.get_mut(instance);
        for waiting in queue.into_iter().flat_map(|queue| &mut queue.events) {
            if let Some(answer) = answers.remove(&waiting.ticket) {
                waiting.answer = Some(answer);
                waiting.answered.notify_one();
            }
        }
    }
}

/// A caller without an event that waits for the turn.
pub(crate) struct TurnWaiter<'a> {
    inbox: &'a Inbox,
    instance: &'a str,
}

impl Drop for TurnWaiter<'_> {
    fn drop(&mut self) {
        self.inbox.change(self.instance, |queue| queue.others -= 1);
    }
}

/// A step that waits for events before it is stored.
struct BatchWaiter<'a> {
    inbox: &'a Inbox,
    instance: &'a str,
}

impl<'a> BatchWaiter<'a> {
    fn new(inbox: &'a Inbox, instance: &'a str, notify: Arc<Notify>) -> Self {
        let mut queues = inbox.locked();
        queues
            .by_instance
            .entry(instance.to_owned())
            .or_default()
            .batch_waiter = Some(notify);
        Self { inbox, instance }
    }
}

impl Drop for BatchWaiter<'_> {
    fn drop(&mut self) {
        self.inbox
            .change(self.instance, |queue| queue.batch_waiter = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(batch: Result<Batch, Result<(), Status>>) -> Vec<u64> {
        batch.unwrap().into_iter().map(|(ticket, _)| ticket).collect()
    }

    #[test]
    fn batches_and_answers_events_once() {
        let inbox = Inbox::default();
        let mut enter = |instance: &str| inbox.enter(instance, Bytes::from_static(b"event"));
        let [a, b, other, c] = ["one", "one", "other", "one"].map(&mut enter);
        assert_eq!(tickets(inbox.take("one", a)), [a, b, c]);
        assert_eq!(tickets(inbox.take("other", other)), [other]);
        // The second gives up during the first one's turn; the third is answered.
        inbox.leave("one", b);
        let refused = || Err(Status::aborted("no"));
        inbox.answer("one", vec![(a, Ok(())), (b, Ok(())), (c, refused())]);
        inbox.leave("one", a);
        let answered = inbox.take("one", c).unwrap_err();
        assert_eq!(answered.unwrap_err().message(), "no");
        // A later event is not batched with an answered one.
        let d = inbox.enter("one", Bytes::new());
        assert_eq!(tickets(inbox.take("one", d)), [d]);
        for (instance, ticket) in [("one", c), ("one", d), ("other", other)] {
            inbox.leave(instance, ticket);
        }
        assert!(inbox.locked().by_instance.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn step_waits_unless_turn_is_wanted() {
        const LIMIT: Duration = Duration::from_millis(50);
        let inbox = Inbox::default();
        let next = async || inbox.next("one", LIMIT).await.map(|batch| tickets(Ok(batch)));
        // No event arrives.
        let began = tokio::time::Instant::now();
        assert_eq!(next().await, None);
        assert_eq!(began.elapsed(), LIMIT);
        // Events arrive during and before the wait.
        let enter = async {
            tokio::task::yield_now().await;
            let _other = inbox.enter("other", Bytes::new());
            inbox.enter("one", Bytes::new())
        };
        let (came, a) = tokio::join!(next(), enter);
        assert_eq!(came, Some(vec![a]));
        let b = inbox.enter("one", Bytes::new());
        assert_eq!(next().await, Some(vec![a, b]));
        let mut answered = std::pin::pin!(inbox.answered("one", b));
        assert!(futures::poll!(&mut answered).is_pending());
        inbox.answer("one", vec![(b, Ok(())), (a, Err(Status::aborted("no")))]);
        assert!(answered.await.is_ok());
        assert_eq!(inbox.answered("one", a).await.unwrap_err().message(), "no");
        // An answered event counts as an arrival, and is not taken again.
        assert_eq!(next().await, None);
        // Other callers get the turn at once.
        let began = tokio::time::Instant::now();
        let wait = async {
            tokio::task::yield_now().await;
            inbox.wait("one")
        };
        let (came, other) = tokio::join!(next(), wait);
        let c = inbox.enter("one", Bytes::new());
        assert_eq!((came, next().await), (None, None));
        drop(other);
        assert_eq!(next().await, Some(vec![c]));
        assert_eq!(began.elapsed(), Duration::ZERO);
        for ticket in [a, b, c] {
            inbox.leave("one", ticket);
        }
        assert_eq!(inbox.locked().by_instance.len(), 1);
    }

    #[test]
    fn cancelled_call_leaves_others_waiting() {
        let inbox = Inbox::default();
        let [a, b, c] = [0; 3].map(|_| inbox.enter("one", Bytes::new()));
        assert_eq!(tickets(inbox.take("one", a)), [a, b, c]);
        inbox.leave("one", a);
        assert_eq!(tickets(inbox.take("one", c)), [c]);
        assert_eq!(tickets(inbox.take("one", b)), [b, c]);
    }

    #[test]
    fn batch_is_bounded_beyond_first_event() {
        let inbox = Inbox::default();
        let large = Bytes::from(vec![0; MAX_BATCH_BYTES]);
        let [first, second, third] = [0; 3].map(|_| inbox.enter("large", large.clone()));
        assert_eq!(tickets(inbox.take("large", first)), [first, second]);
        assert_eq!(tickets(inbox.take("large", third)), [third]);
        let small: Vec<_> = (0..=MAX_BATCH)
            .map(|_| inbox.enter("many", Bytes::new()))
            .collect();
        assert_eq!(tickets(inbox.take("many", small[0])), small[..MAX_BATCH]);
    }
}
