use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::{AttemptEnd, Settlement};

/// Limits of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent attempts; at least 1.
    pub in_flight: usize,
    /// Unsettled events, including those in flight; at least `in_flight`.
    pub unsettled: usize,
}

/// An event's ID in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

/// An attempt to make now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt<T> {
    /// The event's ID for [`Queue::finish`].
    pub id: Id,
    /// The event to deliver.
    pub item: T,
    /// 1 for the first attempt.
    pub number: u32,
}

/// A queue between a source and the app; the crate's documentation has its guarantees.
///
/// `K` is the ordering key. `T` is cloned for every attempt, so it should be cheap to clone, such as an
/// `Arc`.
///
/// ```
/// use std::time::Instant;
///
/// use outrigger_delivery::{AttemptEnd, Limits, Queue, Settlement};
///
/// let now = Instant::now();
/// let mut queue = Queue::new(Limits { in_flight: 8, unsettled: 64 });
/// queue.offer(Some("order-1"), "created").unwrap();
/// queue.offer(Some("order-1"), "paid").unwrap();
///
/// let first = queue.next(now).unwrap();
/// assert_eq!(first.item, "created");
/// assert!(queue.next(now).is_none()); // the key has an event in flight
/// let (settlement, _) = queue.finish(first.id, AttemptEnd::Acknowledge, now);
/// assert_eq!(settlement, Some(Settlement::Acknowledge));
/// assert_eq!(queue.next(now).unwrap().item, "paid");
/// ```
#[derive(Debug)]
pub struct Queue<K, T> {
    limits: Limits,
    keys: HashMap<K, KeyQueue<T>>,
    ready: VecDeque<Candidate<K, T>>,
    delayed: BTreeMap<Due, Candidate<K, T>>,
    running: HashMap<Id, Running<K, T>>,
    /// Events finished with [`AttemptEnd::Undecided`].
    undecided: HashMap<Id, Running<K, T>>,
    unsettled: usize,
    next: u64,
    paused: bool,
    draining: bool,
}

/// Due time of a retry; the number orders retries with the same time.
type Due = (Instant, u64);

/// A candidate for an attempt.
#[derive(Debug)]
enum Candidate<K, T> {
    /// The first event of a key.
    Key(K),
    /// An event without a key.
    Free(Event<T>),
}

#[derive(Debug)]
struct Event<T> {
    id: Id,
    item: T,
    attempts: u32,
}

/// The events of one key. Exists while it has an event, waiting or in flight.
#[derive(Debug)]
struct KeyQueue<T> {
    waiting: VecDeque<Event<T>>,
    state: KeyState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyState {
    Ready,
    InFlight,
    Delayed(Due),
    /// Its events were returned to the source; stays empty until it is reopened.
    Returned,
}

#[derive(Debug)]
struct Running<K, T> {
    key: Option<K>,
    event: Event<T>,
    revoked: bool,
}

impl<K: Clone + Eq + Hash, T: Clone> Queue<K, T> {
    /// An empty queue.
    pub fn new(limits: Limits) -> Self {
        let in_flight = limits.in_flight.max(1);
        Self {
            limits: Limits {
                in_flight,
                unsettled: limits.unsettled.max(in_flight),
            },
            keys: HashMap::new(),
            ready: VecDeque::new(),
            delayed: BTreeMap::new(),
            running: HashMap::new(),
            undecided: HashMap::new(),
            unsettled: 0,
            next: 0,
            paused: false,
            draining: false,
        }
    }

    /// Number of events that can be offered now.
    pub fn free_capacity(&self) -> usize {
        if self.draining {
            return 0;
        }
        self.limits.unsettled - self.unsettled
    }

    /// Number of unsettled events, in flight or not.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Number of attempts in flight.
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Accepts an event. Events with the same `key` stay in order; events without a key are unordered.
    ///
    /// # Errors
    /// The event, if there is no [capacity](Queue::free_capacity), or its key waits for [`Queue::reopen`].
    pub fn offer(&mut self, key: Option<K>, item: T) -> Result<Id, T> {
        if self.free_capacity() == 0 {
            return Err(item);
        }
        if let Some(key) = &key
            && let Some(queue) = self.keys.get(key)
            && queue.state == KeyState::Returned
        {
            return Err(item);
        }
        let id = Id(self.next);
        self.next += 1;
        self.unsettled += 1;
        let event = Event {
            id,
            item,
            attempts: 0,
        };
        let Some(key) = key else {
            self.ready.push_back(Candidate::Free(event));
            return Ok(id);
        };
        match self.keys.get_mut(&key) {
            Some(queue) => queue.waiting.push_back(event),
            None => {
                let queue = KeyQueue {
                    waiting: VecDeque::from([event]),
                    state: KeyState::Ready,
                };
                self.keys.insert(key.clone(), queue);
                self.ready.push_back(Candidate::Key(key));
            }
        }
        Ok(id)
    }

    /// The next attempt to make at `now`; call it until it returns `None`.
    pub fn next(&mut self, now: Instant) -> Option<Attempt<T>> {
        if self.paused || self.running.len() >= self.limits.in_flight {
            return None;
        }
        self.wake(now);
        let (key, mut event) = match self.ready.pop_front()? {
            Candidate::Free(event) => (None, event),
            Candidate::Key(key) => {
                let queue = self.keys.get_mut(&key)?;
                let event = queue.waiting.pop_front()?;
                queue.state = KeyState::InFlight;
                (Some(key), event)
            }
        };
        event.attempts = event.attempts.saturating_add(1);
        let attempt = Attempt {
            id: event.id,
            item: event.item.clone(),
            number: event.attempts,
        };
        let running = Running {
            key,
            event,
            revoked: false,
        };
        self.running.insert(attempt.id, running);
        Some(attempt)
    }

    /// Moves due retries to the ready queue.
    fn wake(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                return;
            }
            let candidate = first.remove();
            if let Candidate::Key(key) = &candidate
                && let Some(queue) = self.keys.get_mut(key)
            {
                queue.state = KeyState::Ready;
            }
            self.ready.push_back(candidate);
        }
    }

    /// When to call [`Queue::next`] again if nothing else happens.
    pub fn wake_at(&self) -> Option<Instant> {
        if self.paused || self.running.len() >= self.limits.in_flight {
            return None;
        }
        self.delayed.first_key_value().map(|(due, _)| due.0)
    }

    /// Ends an attempt, or decides an [undecided](AttemptEnd::Undecided) one. Returns the event's
    /// settlement, and the events behind it that are released with it, in order. `None`: the event will be
    /// retried or is undecided, or `id` is unknown.
    ///
    /// A draining queue does not retry. An event whose key was revoked is released, whatever its outcome.
    pub fn finish(&mut self, id: Id, end: AttemptEnd, now: Instant) -> (Option<Settlement>, Vec<Id>) {
        let unsettled = (None, Vec::new());
        let ended = self.running.remove(&id).or_else(|| self.undecided.remove(&id));
        let Some(Running { key, event, revoked }) = ended else {
            return unsettled;
        };
        let settlement = match end {
            _ if revoked => Settlement::Release,
            AttemptEnd::Acknowledge => Settlement::Acknowledge,
            AttemptEnd::Retry(after) if !self.draining => {
                self.delay(key, event, now, after);
                return unsettled;
            }
            AttemptEnd::Undecided => {
                self.undecided.insert(id, Running { key, event, revoked });
                return unsettled;
            }
            AttemptEnd::Retry(_) | AttemptEnd::Reject | AttemptEnd::RejectKey => Settlement::Reject,
        };
        self.unsettled -= 1;
        let behind = match key {
            Some(key) if !revoked && end == AttemptEnd::RejectKey => self.return_key(&key),
            Some(key) => {
                self.continue_key(key);
                Vec::new()
            }
            None => Vec::new(),
        };
        (Some(settlement), behind)
    }

    /// Returns the events that wait behind the rejected one in flight.
    fn return_key(&mut self, key: &K) -> Vec<Id> {
        let behind = self.empty_key(key);
        if let Some(queue) = self.keys.get_mut(key) {
            queue.state = KeyState::Returned;
        }
        behind
    }

    /// The source has received all returned events of a key: events offered from now on are in order again.
    pub fn reopen(&mut self, key: &K) {
        if let Some(queue) = self.keys.get(key)
            && queue.state == KeyState::Returned
        {
            self.keys.remove(key);
        }
    }

    fn delay(&mut self, key: Option<K>, event: Event<T>, now: Instant, after: Duration) {
        // A time beyond the clock's range means never.
        let at = now.checked_add(after).unwrap_or_else(|| now + FOREVER);
        let due = (at, self.next);
        self.next += 1;
        let candidate = match key {
            None => Candidate::Free(event),
            Some(key) => {
                if let Some(queue) = self.keys.get_mut(&key) {
                    queue.waiting.push_front(event);
                    queue.state = KeyState::Delayed(due);
                }
                Candidate::Key(key)
            }
        };
        self.delayed.insert(due, candidate);
    }

    /// The event in flight of a key has ended: its next one becomes ready, or the key is removed.
    fn continue_key(&mut self, key: K) {
        let Some(queue) = self.keys.get_mut(&key) else {
            return;
        };
        if queue.waiting.is_empty() {
            self.keys.remove(&key);
        } else {
            queue.state = KeyState::Ready;
            self.ready.push_back(Candidate::Key(key));
        }
    }

    /// Starts no attempts until [`Queue::resume`]. Attempts in flight continue, and events are still
    /// accepted.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Ends a pause.
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Revokes keys that the source lost in a rebalance. Their waiting events are removed at once; those in
    /// flight are [released](Settlement::Release) when they end. Events of the same key offered later wait
    /// for that.
    pub fn revoke(&mut self, is_revoked: impl Fn(&K) -> bool) -> Vec<Id> {
        for running in self.running.values_mut().chain(self.undecided.values_mut()) {
            running.revoked |= running.key.as_ref().is_some_and(&is_revoked);
        }
        let keys: Vec<K> = self.keys.keys().filter(|key| is_revoked(key)).cloned().collect();
        let mut gone = Vec::new();
        for key in keys {
            gone.append(&mut self.empty_key(&key));
        }
        self.ready
            .retain(|candidate| !matches!(candidate, Candidate::Key(key) if is_revoked(key)));
        gone
    }

    /// Takes the waiting events of a key, which stays if one is in flight.
    fn empty_key(&mut self, key: &K) -> Vec<Id> {
        let Some(queue) = self.keys.get_mut(key) else {
            return Vec::new();
        };
        let waiting = std::mem::take(&mut queue.waiting);
        match queue.state {
            KeyState::InFlight | KeyState::Returned => {}
            KeyState::Ready => {
                self.keys.remove(key);
            }
            KeyState::Delayed(due) => {
                self.delayed.remove(&due);
                self.keys.remove(key);
            }
        }
        self.unsettled -= waiting.len();
        waiting.into_iter().map(|event| event.id).collect()
    }

    /// Stops accepting events and does not retry. Returns the waiting events for the source, in key order.
    /// The queue is drained when [`Queue::unsettled`] is 0.
    pub fn drain(&mut self) -> Vec<Id> {
        self.draining = true;
        self.release_waiting()
    }

    /// Returns the waiting events for the source, in key order. Attempts in flight continue, and events are
    /// still accepted.
    pub fn release_waiting(&mut self) -> Vec<Id> {
        let keys: Vec<K> = self.keys.keys().cloned().collect();
        let mut gone = Vec::new();
        for key in keys {
            gone.append(&mut self.empty_key(&key));
        }
        let delayed = std::mem::take(&mut self.delayed).into_values();
        for candidate in std::mem::take(&mut self.ready).into_iter().chain(delayed) {
            if let Candidate::Free(event) = candidate {
                self.unsettled -= 1;
                gone.push(event.id);
            }
        }
        // Oldest first, for sources that redeliver in the order of returns.
        gone.sort_unstable();
        gone
    }
}

/// Longer than any process runs, and within every clock's range.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
