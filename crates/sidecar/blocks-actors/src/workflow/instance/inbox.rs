//! Events that wait for the turn of their instance. The call that has the turn takes all of them: the results of a fan-out cost one
//! reminder and one transaction instead of one each. A step can also wait for events before it is stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use outrigger_workflow::Arrival;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::Status;

use crate::workflow::protocol::arrival;

/// Events that are taken in at once, at most.
const MAX_TOGETHER: usize = 128;
/// Their bytes at most, beside the first one's.
const MAX_BYTES_TOGETHER: usize = 1024 * 1024;

/// An event whose sender waits.
struct Waiting {
    ticket: u64,
    event: Bytes,
    /// What became of it, in the turn of another.
    answer: Option<Result<(), Status>>,
    /// That there is an answer.
    answered: Arc<Notify>,
}

/// What waits for the turn of an instance.
#[derive(Default)]
struct Queue {
    events: Vec<Waiting>,
    /// Calls and reminders that bring no event.
    others: usize,
    /// Notified of each arrival: the step that waits for events before it is stored.
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

/// All events that wait, as many as there are calls.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<Queues>);

/// Events that are taken in together, encoded, with their tickets.
pub(crate) type Batch = Vec<(u64, Bytes)>;

/// The batch that `waiting` begins with.
fn batch<'a>(waiting: impl Iterator<Item = &'a Waiting>) -> Batch {
    let mut batch = Batch::new();
    let mut bytes = 0;
    for waiting in waiting.filter(|waiting| waiting.answer.is_none()) {
        let is_first = batch.is_empty();
        if !is_first {
            bytes += waiting.event.len();
        }
        if batch.len() >= MAX_TOGETHER || bytes > MAX_BYTES_TOGETHER {
            break;
        }
        batch.push((waiting.ticket, waiting.event.clone()));
    }
    batch
}

/// A batch that was read.
#[derive(Default)]
pub(crate) struct Decoded {
    pub(crate) tickets: Vec<u64>,
    /// As many as tickets.
    pub(crate) events: Vec<Arrival>,
    /// To those that cannot be read.
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

    /// Changes the queue of an instance. An empty one goes.
    fn change(&self, instance: &str, change: impl FnOnce(&mut Queue)) {
        let mut queues = self.locked();
        if let Some(queue) = queues.by_instance.get_mut(instance) {
            change(queue);
            if queue.is_empty() {
                queues.by_instance.remove(instance);
            }
        }
    }

    /// Something that brings no event waits for the turn of an instance, until what comes back is dropped.
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

    /// Waits for events, in the turn of their instance, for at most `limit`; not as long as others want the turn.
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

    /// The events that have come, none of them if others want the turn; `None` if nothing has come.
    fn arrived(&self, instance: &str) -> Option<Batch> {
        let queues = self.locked();
        let queue = queues.by_instance.get(instance)?;
        if queue.others > 0 {
            return Some(Batch::new());
        }
        Some(batch(queue.events.iter())).filter(|batch| !batch.is_empty())
    }

    /// What is to be done in a turn: the answer if there is one already, and else the events that are to be taken in.
    pub(crate) fn take(&self, instance: &str, ticket: u64) -> Result<Batch, Result<(), Status>> {
        let queues = self.locked();
        let queue = queues.by_instance.get(instance);
        let waiting = queue.into_iter().flat_map(|queue| &queue.events);
        // Those before it that have no answer get a turn of their own.
        let mut waiting = waiting.skip_while(|waiting| waiting.ticket != ticket).peekable();
        if let Some(answer) = waiting.peek().and_then(|own| own.answer.clone()) {
            return Err(answer);
        }
        Ok(batch(waiting))
    }

    /// Waits until there is an answer.
    pub(crate) async fn answered(&self, instance: &str, ticket: u64) -> Result<(), Status> {
        loop {
            match self.answer_of(instance, ticket) {
                Ok(answer) => return answer,
                Err(notify) => notify.notified().await,
            }
        }
    }

    /// The answer, or who is told of it.
    fn answer_of(&self, instance: &str, ticket: u64) -> Result<Result<(), Status>, Arc<Notify>> {
        let queues = self.locked();
        let queue = queues.by_instance.get(instance);
        let mut waiting = queue.into_iter().flat_map(|queue| &queue.events);
        match waiting.find(|waiting| waiting.ticket == ticket) {
            Some(waiting) => waiting
                .answer
                .clone()
                .ok_or_else(|| Arc::clone(&waiting.answered)),
            // It has left, and nobody tells it anything.
            None => Err(Arc::default()),
        }
    }

    /// Tells who still waits.
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

/// Something that waits for a turn, and brings no event.
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
    fn what_waits_is_taken_together_and_answered_once() {
        let inbox = Inbox::default();
        let mut enter = |instance: &str| inbox.enter(instance, Bytes::from_static(b"event"));
        let [a, b, other, c] = ["one", "one", "other", "one"].map(&mut enter);
        assert_eq!(tickets(inbox.take("one", a)), [a, b, c]);
        assert_eq!(tickets(inbox.take("other", other)), [other]);
        // The second has given up while the first has the turn; the third is answered.
        inbox.leave("one", b);
        let refused = || Err(Status::aborted("no"));
        inbox.answer("one", vec![(a, Ok(())), (b, Ok(())), (c, refused())]);
        inbox.leave("one", a);
        let answered = inbox.take("one", c).unwrap_err();
        assert_eq!(answered.unwrap_err().message(), "no");
        // Another that comes is not taken in with what has its answer.
        let d = inbox.enter("one", Bytes::new());
        assert_eq!(tickets(inbox.take("one", d)), [d]);
        for (instance, ticket) in [("one", c), ("one", d), ("other", other)] {
            inbox.leave(instance, ticket);
        }
        assert!(inbox.locked().by_instance.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_takes_the_events_that_come_unless_others_want_the_turn() {
        const LIMIT: Duration = Duration::from_millis(50);
        let inbox = Inbox::default();
        let next = async || inbox.next("one", LIMIT).await.map(|batch| tickets(Ok(batch)));
        // Nothing comes.
        let began = tokio::time::Instant::now();
        assert_eq!(next().await, None);
        assert_eq!(began.elapsed(), LIMIT);
        // Something comes meanwhile, and before.
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
        // What has its answer has come, and is not taken again.
        assert_eq!(next().await, None);
        // Others are let in at once.
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
    fn who_was_cut_off_leaves_the_others_to_themselves() {
        let inbox = Inbox::default();
        let [a, b, c] = [0; 3].map(|_| inbox.enter("one", Bytes::new()));
        assert_eq!(tickets(inbox.take("one", a)), [a, b, c]);
        inbox.leave("one", a);
        assert_eq!(tickets(inbox.take("one", c)), [c]);
        assert_eq!(tickets(inbox.take("one", b)), [b, c]);
    }

    #[test]
    fn a_batch_is_bounded_but_for_its_first() {
        let inbox = Inbox::default();
        let large = Bytes::from(vec![0; MAX_BYTES_TOGETHER]);
        let [first, second, third] = [0; 3].map(|_| inbox.enter("large", large.clone()));
        assert_eq!(tickets(inbox.take("large", first)), [first, second]);
        assert_eq!(tickets(inbox.take("large", third)), [third]);
        let small: Vec<_> = (0..=MAX_TOGETHER)
            .map(|_| inbox.enter("many", Bytes::new()))
            .collect();
        assert_eq!(tickets(inbox.take("many", small[0])), small[..MAX_TOGETHER]);
    }
}
