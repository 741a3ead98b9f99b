//! State of a member: unfinished entries, and messages to redeliver. No I/O.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use outrigger_component::pubsub::{Message, OrderingKey};
use tokio::time::Instant;

use super::entry::EntryPosition;

/// An entry of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) partition: usize,
    pub(super) place: EntryPosition,
}

/// A message for the app.
#[derive(Debug, Clone)]
pub(super) struct Incoming {
    pub(super) id: Id,
    pub(super) index: u32,
    /// Whether it is the only message of its entry.
    pub(super) is_alone: bool,
    pub(super) message: Message,
}

/// Entries with unfinished messages.
#[derive(Debug, Default)]
pub(super) struct OpenEntries(HashMap<Id, usize>);

impl OpenEntries {
    /// Adds an entry with this number of messages; `false` if already present.
    pub(super) fn take(&mut self, id: Id, messages: usize) -> bool {
        let is_new = !self.0.contains_key(&id);
        if is_new {
            self.0.insert(id, messages);
        }
        is_new
    }

    /// Marks a message as done; returns whether it was the last of its entry.
    pub(super) fn done(&mut self, id: Id) -> bool {
        let Some(left) = self.0.get_mut(&id) else {
            return false;
        };
        *left = left.saturating_sub(1);
        let is_last = *left == 0;
        if is_last {
            self.0.remove(&id);
        }
        is_last
    }

    /// Removes an entry returned to the broker.
    pub(super) fn forget(&mut self, id: Id) {
        self.0.remove(&id);
    }
}

/// A due redelivery.
#[derive(Debug)]
pub(super) enum Due {
    /// Redelivered from here.
    Message(Incoming),
    /// Redelivered by the broker.
    Entry(Id),
}

/// Messages refused by the app.
pub(super) struct Redeliveries {
    after: Duration,
    /// Whether the broker redelivers single messages, to any consumer.
    by_broker: bool,
    /// In order of time.
    times: VecDeque<(Instant, Redelivery)>,
    /// In topic order: later messages of a key wait for the first.
    by_key: HashMap<OrderingKey, BTreeMap<(Id, u32), Incoming>>,
}

enum Redelivery {
    Message(Box<Incoming>),
    Entry(Id),
    Key(OrderingKey),
}

impl Redeliveries {
    pub(super) fn new(after: Duration, by_broker: bool) -> Self {
        Self {
            after,
            by_broker,
            times: VecDeque::new(),
            by_key: HashMap::new(),
        }
    }

    /// The app refused a message.
    pub(super) fn refused(&mut self, mut incoming: Incoming, now: Instant) {
        let before = incoming.message.redelivered.unwrap_or(0);
        incoming.message.redelivered = Some(before.saturating_add(1));
        self.behind(incoming, now);
    }

    /// Redelivers a message behind a refused one of its key, without counting a refusal.
    pub(super) fn behind(&mut self, incoming: Incoming, now: Instant) {
        let redelivery = match &incoming.message.ordering_key {
            Some(ordering_key) => {
                let ordering_key = ordering_key.clone();
                let waiting = self.by_key.entry(ordering_key.clone()).or_default();
                let is_first = waiting.is_empty();
                waiting.insert((incoming.id, incoming.index), incoming);
                if !is_first {
                    return;
                }
                Redelivery::Key(ordering_key)
            }
            None if self.by_broker && incoming.is_alone => Redelivery::Entry(incoming.id),
            None => Redelivery::Message(Box::new(incoming)),
        };
        self.times.push_back((now + self.after, redelivery));
    }

    /// Returns the message, unless it must wait for another one of its key.
    pub(super) fn passes(&mut self, incoming: Incoming) -> Option<Incoming> {
        let ordering_key = incoming.message.ordering_key.as_ref();
        match ordering_key.and_then(|ordering_key| self.by_key.get_mut(ordering_key)) {
            None => Some(incoming),
            Some(waiting) => {
                waiting.insert((incoming.id, incoming.index), incoming);
                None
            }
        }
    }

    /// Time of the next redelivery.
    pub(super) fn next(&self) -> Option<Instant> {
        self.times.front().map(|(time, _)| *time)
    }

    /// Redeliveries due by `now`, in order.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Due> {
        let mut due = Vec::new();
        while self.next().is_some_and(|time| time <= now)
            && let Some((_, redelivery)) = self.times.pop_front()
        {
            match redelivery {
                Redelivery::Message(incoming) => due.push(Due::Message(*incoming)),
                Redelivery::Entry(id) => due.push(Due::Entry(id)),
                Redelivery::Key(ordering_key) => {
                    let waiting = self.by_key.remove(&ordering_key).unwrap_or_default();
                    due.extend(waiting.into_values().map(Due::Message));
                }
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(entry: u64, key: Option<&'static str>) -> Incoming {
        Incoming {
            id: Id {
                partition: 0,
                place: EntryPosition { ledger: 1, entry },
            },
            index: 0,
            is_alone: true,
            message: Message {
                topic: "orders".into(),
                data: Default::default(),
                content_type: None,
                metadata: Default::default(),
                ordering_key: key.map(|key| OrderingKey {
                    partition: None,
                    key: Some(key.into()),
                }),
                redelivered: None,
            },
        }
    }

    fn entries(due: &[Due]) -> Vec<u64> {
        let entry = |due: &Due| match due {
            Due::Message(incoming) => incoming.id.place.entry,
            Due::Entry(id) => id.place.entry,
        };
        due.iter().map(entry).collect()
    }

    #[test]
    fn entry_is_done_with_last_message() {
        let mut open = OpenEntries::default();
        let id = incoming(1, None).id;
        assert!(open.take(id, 2) && !open.take(id, 2));
        assert!(!open.done(id));
        assert!(!open.take(id, 2), "it is here still");
        assert!(open.done(id) && !open.done(id));
        assert!(open.take(id, 1));
        open.forget(id);
        assert!(!open.done(id));
    }

    #[test]
    fn redelivers_refused_after_delay() {
        let mut again = Redeliveries::new(Duration::from_secs(1), false);
        let now = Instant::now();
        again.refused(incoming(1, None), now);
        again.refused(incoming(2, None), now + Duration::from_secs(1));
        assert!(again.due(now).is_empty());
        let due = again.due(now + Duration::from_secs(1));
        let [Due::Message(first)] = &due[..] else {
            panic!("{due:?}");
        };
        assert_eq!((first.id.place.entry, first.message.redelivered), (1, Some(1)));
        assert_eq!(again.next(), Some(now + Duration::from_secs(2)));
    }

    #[test]
    fn refused_message_blocks_its_key() {
        let mut again = Redeliveries::new(Duration::from_secs(1), true);
        let now = Instant::now();
        again.refused(incoming(3, Some("a")), now);
        again.refused(incoming(1, Some("a")), now);
        assert!(again.passes(incoming(4, Some("a"))).is_none());
        assert!(again.passes(incoming(5, Some("b"))).is_some());
        let due = again.due(now + Duration::from_secs(1));
        assert_eq!(entries(&due), [1, 3, 4]);
        assert!(due.iter().all(|due| matches!(due, Due::Message(_))));
        assert!(again.passes(incoming(6, Some("a"))).is_some());
    }

    #[test]
    fn broker_redelivers_single_messages() {
        let mut again = Redeliveries::new(Duration::ZERO, true);
        let now = Instant::now();
        again.refused(incoming(1, None), now);
        let of_a_batch = Incoming {
            is_alone: false,
            ..incoming(2, None)
        };
        again.refused(of_a_batch, now);
        let due = again.due(now);
        assert!(matches!(&due[..], [Due::Entry(_), Due::Message(_)]), "{due:?}");
    }
}
