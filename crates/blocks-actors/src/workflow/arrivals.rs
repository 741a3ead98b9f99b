//! Events that wait for the turn of their instance: whoever has the turn takes in what waits with it. A fan-out's results
//! come together, and cost one reminder and one transaction then instead of one each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use outrigger_wire::durabletask::HistoryEvent;
use tonic::Status;

use super::engine::decode;
use super::instance::Instances;
use crate::actors::{ActorCall, Arrived};

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
}

#[derive(Default)]
struct Queues {
    next: u64,
    by_instance: HashMap<String, Vec<Waiting>>,
}

/// All events that wait, as many as there are calls.
#[derive(Default)]
pub(super) struct Arrivals(Mutex<Queues>);

/// Events that are taken in together, encoded, with their tickets. The first one is of who has the turn.
type Batch = Vec<(u64, Bytes)>;

impl Arrivals {
    fn locked(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, instance: &str, event: Bytes) -> u64 {
        let mut queues = self.locked();
        queues.next += 1;
        let ticket = queues.next;
        let waiting = Waiting {
            ticket,
            event,
            answer: None,
        };
        let queue = queues.by_instance.entry(instance.to_owned()).or_default();
        queue.push(waiting);
        ticket
    }

    fn leave(&self, instance: &str, ticket: u64) {
        let mut queues = self.locked();
        if let Some(queue) = queues.by_instance.get_mut(instance) {
            queue.retain(|waiting| waiting.ticket != ticket);
            if queue.is_empty() {
                queues.by_instance.remove(instance);
            }
        }
    }

    /// What is to be done in a turn: the answer if there is one already, and else the events that are to be taken in.
    fn take(&self, instance: &str, ticket: u64) -> Result<Batch, Result<(), Status>> {
        let queues = self.locked();
        let queue = queues.by_instance.get(instance);
        let waiting = queue.into_iter().flatten();
        // Those before it that have no answer get a turn of their own.
        let mut waiting = waiting.skip_while(|waiting| waiting.ticket != ticket).peekable();
        if let Some(answer) = waiting.peek().and_then(|own| own.answer.clone()) {
            return Err(answer);
        }
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
        Ok(batch)
    }

    /// Tells who still waits.
    fn answer(&self, instance: &str, answers: Vec<(u64, Result<(), Status>)>) {
        let mut answers: HashMap<_, _> = answers.into_iter().collect();
        let mut queues = self.locked();
        let queue = queues.by_instance.get_mut(instance);
        for waiting in queue.into_iter().flatten() {
            if let Some(answer) = answers.remove(&waiting.ticket) {
                waiting.answer = Some(answer);
            }
        }
    }
}

/// A call that brings an event.
pub(super) struct Arriving<'a> {
    instances: &'a Instances,
    instance: &'a str,
    ticket: u64,
}

impl<'a> Arriving<'a> {
    pub(super) fn new(instances: &'a Instances, call: &'a ActorCall) -> Self {
        Self {
            ticket: instances.arrivals.enter(&call.id, call.body.clone()),
            instances,
            instance: &call.id,
        }
    }

    async fn take_in(&self, batch: Batch) -> Result<(), Status> {
        let mut held = self.instances.hold(self.instance);
        held.check_stalled()?;
        let mut tickets = Vec::with_capacity(batch.len());
        let mut events = Vec::with_capacity(batch.len());
        let mut answers = Vec::with_capacity(batch.len());
        for (ticket, event) in batch {
            match decode::<HistoryEvent>("the event", event) {
                Ok(event) => {
                    tickets.push(ticket);
                    events.push(event);
                }
                Err(error) => answers.push((ticket, Err(error))),
            }
        }
        let own = events
            .first()
            .cloned()
            .filter(|_| tickets.first() == Some(&self.ticket));
        let are_many = events.len() > 1;
        match (held.add_events(events).await, own) {
            (Ok(taken), _) => answers.extend(tickets.into_iter().zip(taken)),
            // What the store did not take may be another's event: that must not keep this one out.
            (Err(_), Some(own)) if are_many => {
                let alone = held.add_events(vec![own]).await?;
                answers.extend(alone.into_iter().map(|answer| (self.ticket, answer)));
            }
            (Err(error), Some(_)) => return Err(error),
            // Its own could not be read; those of others are theirs to try.
            (Err(_), None) => {}
        }
        self.instances.arrivals.answer(self.instance, answers);
        match self.instances.arrivals.take(self.instance, self.ticket) {
            Err(answer) => answer,
            Ok(_) => Err(Status::internal(
                "an event of a workflow was left without an answer",
            )),
        }
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.instances.arrivals.leave(self.instance, self.ticket);
    }
}

#[async_trait]
impl Arrived for Arriving<'_> {
    async fn in_turn(&self) -> Result<Bytes, Status> {
        // Who took it in had its turn before, and may have been cut off: then it has no answer, and is taken in now.
        let taken = match self.instances.arrivals.take(self.instance, self.ticket) {
            Err(answer) => answer,
            Ok(batch) => self.take_in(batch).await,
        };
        taken.map(|()| Bytes::new())
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
        let arrivals = Arrivals::default();
        let mut enter = |instance: &str| arrivals.enter(instance, Bytes::from_static(b"event"));
        let [a, b, other, c] = ["one", "one", "other", "one"].map(&mut enter);
        assert_eq!(tickets(arrivals.take("one", a)), [a, b, c]);
        assert_eq!(tickets(arrivals.take("other", other)), [other]);
        // The second has given up while the first has the turn; the third is answered.
        arrivals.leave("one", b);
        let refused = || Err(Status::aborted("no"));
        arrivals.answer("one", vec![(a, Ok(())), (b, Ok(())), (c, refused())]);
        arrivals.leave("one", a);
        let answered = arrivals.take("one", c).unwrap_err();
        assert_eq!(answered.unwrap_err().message(), "no");
        // Another that comes is not taken in with what has its answer.
        let d = arrivals.enter("one", Bytes::new());
        assert_eq!(tickets(arrivals.take("one", d)), [d]);
        for (instance, ticket) in [("one", c), ("one", d), ("other", other)] {
            arrivals.leave(instance, ticket);
        }
        assert!(arrivals.locked().by_instance.is_empty());
    }

    #[test]
    fn who_was_cut_off_leaves_the_others_to_themselves() {
        let arrivals = Arrivals::default();
        let [a, b, c] = [0; 3].map(|_| arrivals.enter("one", Bytes::new()));
        assert_eq!(tickets(arrivals.take("one", a)), [a, b, c]);
        arrivals.leave("one", a);
        assert_eq!(tickets(arrivals.take("one", c)), [c]);
        assert_eq!(tickets(arrivals.take("one", b)), [b, c]);
    }

    #[test]
    fn a_batch_is_bounded_but_for_its_first() {
        let arrivals = Arrivals::default();
        let large = Bytes::from(vec![0; MAX_BYTES_TOGETHER]);
        let [first, second, third] = [0; 3].map(|_| arrivals.enter("large", large.clone()));
        assert_eq!(tickets(arrivals.take("large", first)), [first, second]);
        assert_eq!(tickets(arrivals.take("large", third)), [third]);
        let small: Vec<_> = (0..=MAX_TOGETHER)
            .map(|_| arrivals.enter("many", Bytes::new()))
            .collect();
        assert_eq!(tickets(arrivals.take("many", small[0])), small[..MAX_TOGETHER]);
    }
}
