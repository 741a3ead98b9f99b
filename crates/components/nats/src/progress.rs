//! Progress of a subscriber in a stream, where the server does not track it: with `ackPolicy` `all` an
//! acknowledgement covers all earlier messages, and without `durableName` the server forgets a disconnected
//! consumer.

use std::collections::BTreeMap;

use async_nats::{
    Subject,
    jetstream::{
        Message as Incoming,
        consumer::{AckPolicy, Info},
    },
};

/// Progress of a consumer with this subscriber only.
pub(super) struct Progress {
    policy: AckPolicy,
    /// Unacknowledged messages by stream sequence.
    tracked: BTreeMap<u64, Tracked>,
    /// The highest sequence received.
    seen: u64,
    /// Number of the next delivery. Another number means that deliveries were lost.
    next: u64,
    /// From this sequence on, the server may wait for acknowledgements of messages that did not arrive.
    doubt: Option<u64>,
}

struct Tracked {
    /// Reply subject of the first delivery: these increase with the sequence, and the server ignores
    /// acknowledgements that do not exceed the last.
    reply: Subject,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Here,
    /// Returned for redelivery.
    Returned,
    /// Done, but an earlier message is not.
    Done,
}

impl Progress {
    /// `info` is from before the subscription.
    pub(super) fn of(info: &Info) -> Self {
        Self {
            policy: info.config.ack_policy,
            tracked: BTreeMap::new(),
            seen: info.delivered.stream_sequence,
            next: info.delivered.consumer_sequence + 1,
            doubt: (info.num_ack_pending > 0).then_some(info.ack_floor.stream_sequence + 1),
        }
    }

    /// Whether an acknowledgement covers all earlier messages.
    pub(super) fn all(&self) -> bool {
        self.policy == AckPolicy::All
    }

    /// Records a delivery; `false` if the message was already done.
    pub(super) fn came(&mut self, incoming: &Incoming) -> bool {
        match (incoming.info(), &incoming.reply) {
            (Ok(info), Some(reply)) => self.note(info.stream_sequence, info.consumer_sequence, reply),
            _ => true,
        }
    }

    fn note(&mut self, sequence: u64, number: u64, reply: &Subject) -> bool {
        // Without acknowledgements, lost messages are not redelivered.
        if number != self.next && self.policy != AckPolicy::None {
            self.doubt = self.doubt.or(Some(self.seen + 1));
        }
        self.next = number + 1;
        self.seen = self.seen.max(sequence);
        let tracked = self.tracked.entry(sequence).or_insert_with(|| Tracked {
            reply: reply.clone(),
            state: State::Here,
        });
        if tracked.state == State::Returned {
            tracked.state = State::Here;
        }
        tracked.state != State::Done
    }

    /// The app has handled a message. Acknowledging the returned subject covers all earlier finished
    /// messages.
    pub(super) fn done(&mut self, incoming: &Incoming) -> Option<Subject> {
        let Ok(info) = incoming.info() else {
            return incoming.reply.clone();
        };
        if self.all() {
            return self.finished(info.stream_sequence);
        }
        self.tracked.remove(&info.stream_sequence);
        incoming.reply.clone()
    }

    /// With `all`: marks a message as finished.
    pub(super) fn finished(&mut self, sequence: u64) -> Option<Subject> {
        if let Some(tracked) = self.tracked.get_mut(&sequence) {
            tracked.state = State::Done;
        }
        self.passed()
    }

    /// With `all`: the last message up to which all are done, if not yet acknowledged.
    pub(super) fn passed(&mut self) -> Option<Subject> {
        let mut passed = None;
        while let Some(first) = self.tracked.first_entry()
            && first.get().state == State::Done
            && self.doubt.is_none_or(|doubt| *first.key() < doubt)
        {
            passed = Some(first.remove().reply);
        }
        passed
    }

    pub(super) fn returned(&mut self, incoming: &Incoming) {
        if let Ok(info) = incoming.info()
            && let Some(tracked) = self.tracked.get_mut(&info.stream_sequence)
            && tracked.state == State::Here
        {
            tracked.state = State::Returned;
        }
    }

    /// Finished messages that cannot be acknowledged yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Subject> {
        let done = self
            .tracked
            .values()
            .filter(|tracked| tracked.state == State::Done);
        done.map(|tracked| &tracked.reply)
    }

    pub(super) fn in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Compares with the server's number of unacknowledged messages, from an answer after which nothing was
    /// recorded here.
    pub(super) fn compare(&mut self, unacknowledged: usize) {
        if unacknowledged <= self.tracked.len() {
            self.doubt = None;
        }
    }

    /// The first message, if it waits for redelivery.
    pub(super) fn awaiting_redelivery(&self) -> Option<u64> {
        let (sequence, tracked) = self.tracked.first_key_value()?;
        (tracked.state == State::Returned).then_some(*sequence)
    }

    /// Start of a new consumer: all earlier messages are done.
    pub(super) fn resume(&self) -> u64 {
        let mut tracked = self.tracked.iter();
        let open = tracked.find(|(_, tracked)| tracked.state != State::Done);
        let open = open.map(|(sequence, _)| *sequence);
        open.into_iter().chain(self.doubt).min().unwrap_or(self.seen + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginning(doubt: Option<u64>) -> Progress {
        Progress {
            policy: AckPolicy::All,
            tracked: BTreeMap::new(),
            seen: 0,
            next: 1,
            doubt,
        }
    }

    fn came(progress: &mut Progress, sequence: u64, number: u64) -> bool {
        progress.note(
            sequence,
            number,
            &Subject::from(format!("{sequence} by {number}")),
        )
    }

    fn acknowledged(subject: Option<Subject>) -> Option<String> {
        subject.map(|subject| subject.to_string())
    }

    #[test]
    fn acknowledges_after_all_earlier_done() {
        let mut progress = beginning(None);
        for (sequence, number) in [(2, 1), (5, 2), (6, 3)] {
            assert!(came(&mut progress, sequence, number));
        }
        assert_eq!(progress.finished(5), None);
        assert_eq!(progress.waiting().count(), 1);
        assert_eq!(progress.resume(), 2);
        assert!(came(&mut progress, 2, 4), "again");
        assert!(!came(&mut progress, 5, 5), "it is done");
        assert_eq!(acknowledged(progress.finished(2)).as_deref(), Some("5 by 2"));
        assert_eq!(progress.resume(), 6);
        assert_eq!(acknowledged(progress.finished(6)).as_deref(), Some("6 by 3"));
        assert_eq!(progress.resume(), 7);
    }

    #[test]
    fn does_not_acknowledge_lost_messages() {
        let mut progress = beginning(None);
        came(&mut progress, 1, 1);
        came(&mut progress, 4, 3);
        assert_eq!(acknowledged(progress.finished(1)).as_deref(), Some("1 by 1"));
        assert_eq!(progress.finished(4), None);
        progress.compare(2);
        assert!(progress.in_doubt());
        assert_eq!(progress.resume(), 2);
        came(&mut progress, 3, 4);
        progress.compare(2);
        assert_eq!(progress.passed(), None);
        assert_eq!(acknowledged(progress.finished(3)).as_deref(), Some("4 by 3"));
    }

    #[test]
    fn does_not_acknowledge_other_subscribers_messages() {
        let mut progress = beginning(Some(1));
        came(&mut progress, 3, 1);
        assert_eq!(progress.finished(3), None);
        assert_eq!(progress.resume(), 1);
    }
}
