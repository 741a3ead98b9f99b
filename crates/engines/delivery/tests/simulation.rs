//! Random sources and apps against one queue under simulated time. A failure prints the seed's input.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use outrigger_delivery::{AttemptEnd, Id, Limits, Queue, Settlement};
use proptest::prelude::*;

/// A step of the simulation.
#[derive(Debug, Clone)]
enum Step {
    Offer(Option<u8>),
    Start,
    /// Ends the attempt in flight at this index.
    Finish(usize, AttemptEnd),
    /// Decides the undecided event at this index.
    Decide(usize, AttemptEnd),
    Pass(u64),
    Pause,
    Resume,
    Revoke(u8),
    Reopen(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        3 => Just(AttemptEnd::Acknowledge),
        3 => (0_u64..50).prop_map(|after| AttemptEnd::Retry(Duration::from_millis(after))),
        1 => Just(AttemptEnd::Reject),
        1 => Just(AttemptEnd::RejectKey),
        2 => Just(AttemptEnd::Undecided),
    ];
    prop_oneof![
        6 => prop::option::of(0_u8..4).prop_map(Step::Offer),
        6 => Just(Step::Start),
        6 => (0_usize..8, ending.clone()).prop_map(|(at, ending)| Step::Finish(at, ending)),
        3 => (0_usize..8, ending).prop_map(|(at, ending)| Step::Decide(at, ending)),
        3 => (0_u64..40).prop_map(Step::Pass),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => (0_u8..4).prop_map(Step::Revoke),
        3 => (0_u8..4).prop_map(Step::Reopen),
    ]
}

/// An observer's model, to check the queue's guarantees.
#[derive(Default)]
struct Ledger {
    /// Keys by event, in the order of offers.
    offered: Vec<(Id, Option<u8>)>,
    in_flight: Vec<Id>,
    /// Attempted, but undecided.
    undecided: Vec<Id>,
    settled: HashMap<Id, Settlement>,
    ended_well: HashSet<Id>,
    /// Earliest times of retries.
    not_before: HashMap<Id, Instant>,
    revoked_in_flight: HashSet<Id>,
    /// Keys that were returned and not reopened.
    returned: HashSet<u8>,
}

impl Ledger {
    fn key(&self, id: Id) -> Option<u8> {
        self.offered.iter().find(|(other, _)| *other == id).unwrap().1
    }

    fn started(&mut self, id: Id, now: Instant) {
        assert!(!self.settled.contains_key(&id), "attempted after it was settled");
        assert!(!self.in_flight.contains(&id), "attempted twice at once");
        assert!(
            !self.undecided.contains(&id),
            "attempted while its end is decided"
        );
        if let Some(at) = self.not_before.get(&id) {
            assert!(now >= *at, "tried again too early");
        }
        if let Some(key) = self.key(id) {
            assert!(
                !self.returned.contains(&key),
                "attempted before its key was reopened"
            );
            let older = self.offered.iter().take_while(|(other, _)| *other != id);
            for (other, other_key) in older {
                let is_open = !self.settled.contains_key(other);
                assert!(
                    *other_key != Some(key) || !is_open,
                    "overtook an event of its key"
                );
            }
        }
        self.in_flight.push(id);
    }

    fn settle(&mut self, id: Id, settlement: Settlement) {
        let again = self.settled.insert(id, settlement);
        assert_eq!(again, None, "settled twice");
        if settlement == Settlement::Acknowledge {
            assert!(self.ended_well.contains(&id), "acknowledged without success");
        }
    }
}

const LIMITS: Limits = Limits {
    in_flight: 3,
    unsettled: 10,
};

fn finish(queue: &mut Queue<u8, u32>, ledger: &mut Ledger, id: Id, end: AttemptEnd, now: Instant) {
    match end {
        AttemptEnd::Acknowledge => ledger.ended_well.extend([id]),
        AttemptEnd::Retry(after) => ledger.not_before.extend([(id, now + after)]),
        _ => {}
    }
    let (settled, behind) = queue.finish(id, end, now);
    let revoked = ledger.revoked_in_flight.contains(&id);
    if let Some(settlement) = settled {
        assert_eq!(settlement == Settlement::Release, revoked);
        ledger.settle(id, settlement);
    } else if end == AttemptEnd::Undecided {
        ledger.undecided.push(id);
    }
    let key = ledger.key(id);
    for id in &behind {
        assert_eq!(ledger.key(*id), key);
        ledger.settle(*id, Settlement::Release);
    }
    assert!(behind.is_sorted());
    if let (Some(key), AttemptEnd::RejectKey, false) = (key, end, revoked) {
        ledger.returned.insert(key);
        let waits = |(id, other): &(Id, Option<u8>)| *other == Some(key) && !ledger.settled.contains_key(id);
        assert!(!ledger.offered.iter().any(waits), "one of its key stays");
    } else {
        assert!(behind.is_empty());
    }
}

fn run(steps: Vec<Step>) {
    let mut now = Instant::now();
    let mut queue = Queue::new(LIMITS);
    let mut ledger = Ledger::default();
    let mut paused = false;
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Offer(key) => {
                let room = queue.free_capacity();
                let is_returned = key.is_some_and(|key| ledger.returned.contains(&key));
                match queue.offer(key, u32::try_from(number).unwrap()) {
                    Ok(id) => {
                        assert!(!is_returned, "out of order");
                        ledger.offered.push((id, key));
                    }
                    Err(_) => assert!(is_returned || room == 0),
                }
            }
            Step::Start => {
                if let Some(attempt) = queue.next(now) {
                    assert!(!paused);
                    ledger.started(attempt.id, now);
                }
            }
            Step::Finish(at, ending) if !ledger.in_flight.is_empty() => {
                let at = at % ledger.in_flight.len();
                let id = ledger.in_flight.swap_remove(at);
                finish(&mut queue, &mut ledger, id, ending, now);
            }
            Step::Decide(at, ending) if !ledger.undecided.is_empty() => {
                let at = at % ledger.undecided.len();
                let id = ledger.undecided.swap_remove(at);
                finish(&mut queue, &mut ledger, id, ending, now);
            }
            Step::Finish(..) | Step::Decide(..) => {}
            Step::Pass(time) => now += Duration::from_millis(time),
            Step::Pause => {
                queue.pause();
                paused = true;
            }
            Step::Resume => {
                queue.resume();
                paused = false;
            }
            Step::Reopen(key) => {
                queue.reopen(&key);
                ledger.returned.remove(&key);
            }
            Step::Revoke(key) => {
                let gone = queue.revoke(|other| *other == key);
                let attempted = ledger.in_flight.iter().chain(&ledger.undecided);
                let of_key = attempted.filter(|id| ledger.key(**id) == Some(key));
                ledger
                    .revoked_in_flight
                    .extend(of_key.copied().collect::<Vec<_>>());
                for id in gone {
                    assert_eq!(ledger.key(id), Some(key));
                    ledger.settle(id, Settlement::Release);
                }
            }
        }
        assert!(queue.in_flight() <= LIMITS.in_flight && queue.unsettled() <= LIMITS.unsettled);
        assert_eq!(queue.in_flight(), ledger.in_flight.len());
        assert_eq!(queue.unsettled(), ledger.offered.len() - ledger.settled.len());
    }
    complete(queue, ledger, now);
}

/// Liveness: with an app that accepts everything, all offered events are settled.
fn complete(mut queue: Queue<u8, u32>, mut ledger: Ledger, mut now: Instant) {
    queue.resume();
    while queue.unsettled() > 0 {
        while let Some(attempt) = queue.next(now) {
            ledger.started(attempt.id, now);
        }
        if let Some(id) = ledger.in_flight.pop().or_else(|| ledger.undecided.pop()) {
            finish(&mut queue, &mut ledger, id, AttemptEnd::Acknowledge, now);
        } else {
            now = queue
                .wake_at()
                .expect("events are unsettled, none is in flight and none will be due");
        }
    }
    assert_eq!(ledger.settled.len(), ledger.offered.len());
}

/// A drain returns the waiting events in order, and waits only for those in flight.
fn drain(steps: Vec<Step>) {
    let mut now = Instant::now();
    let mut queue = Queue::new(LIMITS);
    let mut in_flight = Vec::new();
    let mut offered = 0;
    for step in steps {
        match step {
            Step::Offer(key) => offered += usize::from(queue.offer(key, 0).is_ok()),
            Step::Start => in_flight.extend(queue.next(now).map(|attempt| attempt.id)),
            Step::Finish(_, end @ AttemptEnd::Retry(_)) => {
                if let Some(id) = in_flight.pop() {
                    assert_eq!(queue.finish(id, end, now).0, None);
                }
            }
            Step::Pass(time) => now += Duration::from_millis(time),
            _ => {}
        }
    }
    let returned = queue.drain();
    assert!(returned.is_sorted());
    assert_eq!(returned.len() + in_flight.len(), offered);
    assert_eq!(queue.next(now), None);
    assert_eq!(queue.offer(None, 0), Err(0));
    for id in in_flight {
        let (settled, _) = queue.finish(id, AttemptEnd::Retry(Duration::ZERO), now);
        assert_eq!(settled, Some(Settlement::Reject));
    }
    assert_eq!(queue.unsettled(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn guarantees_hold_for_any_source_and_app(steps in prop::collection::vec(step(), 0..150)) {
        run(steps);
    }

    #[test]
    fn drain_returns_waiting_events(steps in prop::collection::vec(step(), 0..80)) {
        drain(steps);
    }
}

#[test]
fn retry_blocks_only_its_key() {
    let now = Instant::now();
    let mut queue = Queue::new(Limits {
        in_flight: 1,
        unsettled: 10,
    });
    for (key, item) in [("a", 1), ("a", 2), ("b", 3)] {
        queue.offer(Some(key), item).unwrap();
    }
    let first = queue.next(now).unwrap();
    assert_eq!((first.item, first.number), (1, 1));
    let minute = AttemptEnd::Retry(Duration::from_secs(60));
    assert_eq!(queue.finish(first.id, minute, now).0, None);
    let other = queue.next(now).unwrap();
    assert_eq!(
        other.item, 3,
        "the only place in flight is free while the first waits"
    );
    assert!(queue.finish(other.id, AttemptEnd::Acknowledge, now).0.is_some());
    assert_eq!(queue.next(now), None);
    let later = queue.wake_at().unwrap();
    assert_eq!(later, now + Duration::from_secs(60));
    let again = queue.next(later).unwrap();
    assert_eq!((again.item, again.number), (1, 2));
}

#[test]
fn reassigned_key_waits_for_old_attempt() {
    let now = Instant::now();
    let mut queue = Queue::new(Limits {
        in_flight: 4,
        unsettled: 10,
    });
    queue.offer(Some("a"), 1).unwrap();
    let old = queue.next(now).unwrap();
    assert!(queue.revoke(|_| true).is_empty());
    queue.offer(Some("a"), 1).unwrap();
    assert_eq!(queue.next(now), None, "one at a time, also across an assignment");
    let (settled, _) = queue.finish(old.id, AttemptEnd::Acknowledge, now);
    assert_eq!(settled, Some(Settlement::Release));
    assert!(queue.next(now).is_some());
}

#[test]
fn rejection_returns_only_its_key() {
    let now = Instant::now();
    let mut queue = Queue::new(Limits {
        in_flight: 4,
        unsettled: 10,
    });
    let ids =
        [("a", 1), ("a", 2), ("b", 3), ("a", 4)].map(|(key, item)| queue.offer(Some(key), item).unwrap());
    let first = queue.next(now).unwrap();
    let finished = queue.finish(first.id, AttemptEnd::RejectKey, now);
    assert_eq!(finished, (Some(Settlement::Reject), vec![ids[1], ids[3]]));
    assert_eq!(queue.offer(Some("a"), 5), Err(5), "it was on its way");
    assert_eq!(queue.next(now).unwrap().item, 3);
    queue.reopen(&"a");
    queue.offer(Some("a"), 1).unwrap();
    assert_eq!(queue.next(now).unwrap().item, 1);
}

/// Deciding a failed event may take time: only its key waits.
#[test]
fn undecided_event_blocks_only_its_key() {
    let now = Instant::now();
    let limits = Limits {
        in_flight: 1,
        unsettled: 10,
    };
    for (decided, next) in [(AttemptEnd::Acknowledge, Some(2)), (AttemptEnd::RejectKey, None)] {
        let mut queue = Queue::new(limits);
        for (key, item) in [("a", 1), ("a", 2), ("b", 3)] {
            queue.offer(Some(key), item).unwrap();
        }
        let first = queue.next(now).unwrap();
        assert_eq!(queue.finish(first.id, AttemptEnd::Undecided, now).0, None);
        let other = queue.next(now).unwrap();
        assert_eq!(other.item, 3, "it takes no place in flight");
        queue.finish(other.id, AttemptEnd::Acknowledge, now);
        assert_eq!(queue.next(now), None, "its key waits");
        let (settled, behind) = queue.finish(first.id, decided, now);
        assert!(settled.is_some());
        assert_eq!(queue.next(now).map(|attempt| attempt.item), next);
        assert_eq!(
            behind.is_empty(),
            next.is_some(),
            "they follow, or go back with it"
        );
    }
}
