//! Worker streams that keep histories (capability `STATEFUL_HISTORY`): each instance has an owner among them, which
//! gets only the events that it does not have yet.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;

use super::queue::Key;

/// Steps that wait for one stream; further ones go to any stream.
const MAX_QUEUED: usize = 8;
/// Instances of which one stream keeps the history.
const MAX_INSTANCES: usize = 1_000_000;

/// A history as far as a worker has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownHistory {
    /// Identifies the execution.
    pub(crate) execution: u64,
    /// Number of events.
    pub(crate) events: usize,
}

/// The request of a step: an encoded `WorkflowRequest`, in pieces.
#[derive(Debug, Default)]
pub(crate) struct StepRequest {
    /// With the whole history.
    pub(crate) whole: Vec<Bytes>,
    /// The history in it.
    pub(crate) history: Option<KnownHistory>,
    /// With the events after those of [`WorkQueue::known`](super::queue::WorkQueue::known), and these.
    pub(crate) rest: Option<(Vec<Bytes>, KnownHistory)>,
}

impl StepRequest {
    pub(crate) fn size(&self) -> usize {
        self.whole.iter().map(Bytes::len).sum()
    }
}

/// A stream that keeps histories.
#[derive(Default)]
pub(super) struct StatefulStream {
    /// Steps of its instances.
    pub(super) queued: VecDeque<(u64, Key)>,
    sent: HashMap<Arc<str>, KnownHistory>,
    /// Notified of queued steps.
    pub(super) arrived: Arc<Notify>,
}

impl StatefulStream {
    /// The request for this stream, which then has its history.
    pub(super) fn request(&mut self, instance: &Arc<str>, step: StepRequest) -> Vec<Bytes> {
        let known = match step.history {
            Some(history) if self.sent.len() < MAX_INSTANCES || self.sent.contains_key(instance) => {
                self.sent.insert(Arc::clone(instance), history)
            }
            _ => self.sent.remove(instance),
        };
        match step.rest {
            Some((rest, of)) if known == Some(of) => rest,
            _ => step.whole,
        }
    }
}

/// The streams that keep histories, by number.
#[derive(Default)]
pub(super) struct StatefulStreams(pub(super) HashMap<u64, StatefulStream>);

impl StatefulStreams {
    /// The stream that owns an instance.
    fn owner(&self, instance: &str) -> Option<u64> {
        let streams = self.0.keys().copied();
        streams.max_by_key(|stream| (weight(instance, *stream), std::cmp::Reverse(*stream)))
    }

    /// The history that the owner of an instance has.
    pub(super) fn known(&self, instance: &str) -> Option<KnownHistory> {
        self.0.get(&self.owner(instance)?)?.sent.get(instance).copied()
    }

    /// Queues a step for the owner of its instance; `false` if there is none or its queue is full.
    pub(super) fn enqueue(&mut self, number: u64, key: &Key) -> bool {
        let owner = self.owner(&key.instance);
        let Some(owner) = owner.and_then(|owner| self.0.get_mut(&owner)) else {
            return false;
        };
        if owner.queued.len() >= MAX_QUEUED {
            return false;
        }
        owner.queued.push_back((number, key.clone()));
        owner.arrived.notify_one();
        true
    }

    /// Forgets a withdrawn step.
    pub(super) fn withdraw(&mut self, number: u64) {
        for stream in self.0.values_mut() {
            stream.queued.retain(|(queued, _)| *queued != number);
        }
    }
}

/// The weight of a stream for an instance: FNV-1a of the id, a zero byte, and the stream's number.
fn weight(instance: &str, stream: u64) -> u64 {
    let stream = stream.to_string();
    let bytes = instance.bytes().chain([0]).chain(stream.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(history: Option<KnownHistory>, rest: Option<KnownHistory>) -> StepRequest {
        StepRequest {
            whole: vec![Bytes::from_static(b"whole")],
            history,
            rest: rest.map(|rest| (vec![Bytes::from_static(b"rest")], rest)),
        }
    }

    #[test]
    fn sends_rest_of_known_history_only() {
        let known = |execution, events| Some(KnownHistory { execution, events });
        let (mut stream, instance) = (StatefulStream::default(), Arc::from("a"));
        let mut sent = |history, rest| stream.request(&instance, request(history, rest)).concat();
        assert_eq!(sent(known(1, 3), None), b"whole");
        assert_eq!(sent(known(1, 5), known(1, 3)), b"rest");
        // Made for another stream.
        assert_eq!(sent(known(1, 6), known(1, 4)), b"whole");
        // The instance continued as new.
        assert_eq!(sent(known(2, 6), known(2, 6)), b"whole");
        // A step without a history leaves none.
        assert_eq!(sent(None, None), b"whole");
        assert_eq!(sent(known(2, 7), known(2, 6)), b"whole");
    }

    #[test]
    fn instances_have_one_owner() {
        let mut streams = StatefulStreams::default();
        assert_eq!(streams.owner("a"), None);
        for stream in 1..=3 {
            streams.0.insert(stream, StatefulStream::default());
        }
        let owners = |streams: &StatefulStreams| {
            let ids = (0..60).map(|id| streams.owner(&format!("wf-{id}")).unwrap());
            ids.collect::<Vec<_>>()
        };
        let before = owners(&streams);
        assert!((1..=3).all(|stream| before.contains(&stream)));
        streams.0.remove(&2);
        let kept = before
            .iter()
            .zip(owners(&streams))
            .all(|(before, after)| *before == 2 || *before == after);
        assert!(kept, "only the instances of a lost stream move");
        assert_eq!(weight("", 0), weight("", 0));
    }

    #[test]
    fn full_owner_shares_its_steps() {
        let mut streams = StatefulStreams::default();
        let key = Key::new("a", None);
        assert!(!streams.enqueue(1, &key));
        streams.0.insert(7, StatefulStream::default());
        for number in 0..MAX_QUEUED as u64 {
            assert!(streams.enqueue(number, &key));
        }
        assert!(!streams.enqueue(100, &key));
        streams.withdraw(3);
        assert!(streams.enqueue(100, &key));
    }
}
