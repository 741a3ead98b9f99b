//! Random sources and apps against one queue under simulated time. A failure prints the seed's input.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use outrigger_delivery::{Finish, Id, Limits, Queue, Refused, Settled, Settlement};
use proptest::prelude::*;

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    Offer(Option<u8>),
    Start,
    /// Ends the attempt in flight at this place.
    Finish(usize, Ending),
    /// Ends one that was held at this place.
    Decide(usize, Ending),
    Pass(u64),
    Pause,
    Resume,
    Revoke(u8),
    Reopen(u8),
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Done,
    Retry(u64),
    Return,
    ReturnLane,
    Hold,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        3 => Just(Ending::Done),
        3 => (0_u64..50).prop_map(Ending::Retry),
        1 => Just(Ending::Return),
        1 => Just(Ending::ReturnLane),
        2 => Just(Ending::Hold),
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

/// What an observer knows, to hold the queue to its promises.
#[derive(Default)]
struct Ledger {
    /// Keys by event, in the order of offers.
    offered: Vec<(Id, Option<u8>)>,
    in_flight: Vec<Id>,
    /// Attempted, and not decided.
    undecided: Vec<Id>,
    settled: HashMap<Id, Settlement>,
    ended_well: HashSet<Id>,
    /// When an event may be tried again.
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

    fn settle(&mut self, settled: &Settled<u32>) {
        let again = self.settled.insert(settled.id, settled.settlement);
        assert_eq!(again, None, "settled twice");
        if settled.settlement == Settlement::Acknowledge {
            assert!(
                self.ended_well.contains(&settled.id),
                "acknowledged without success"
            );
        }
    }
}

const LIMITS: Limits = Limits {
    in_flight: 3,
    held: 10,
};

fn finish(queue: &mut Queue<u8, u32>, ledger: &mut Ledger, id: Id, ending: Ending, now: Instant) {
    let end = match ending {
        Ending::Done => {
            ledger.ended_well.insert(id);
            Finish::Done
        }
        Ending::Retry(after) => {
            ledger.not_before.insert(id, now + Duration::from_millis(after));
            Finish::Retry(Duration::from_millis(after))
        }
        Ending::Return => Finish::Return,
        Ending::ReturnLane => Finish::ReturnLane,
        Ending::Hold => Finish::Hold,
    };
    let finished = queue.finish(id, end, now);
    let revoked = ledger.revoked_in_flight.contains(&id);
    if let Some(settled) = &finished.event {
        assert_eq!(settled.settlement == Settlement::Revoked, revoked);
        ledger.settle(settled);
    } else if matches!(ending, Ending::Hold) {
        ledger.undecided.push(id);
    }
    let key = ledger.key(id);
    for settled in &finished.behind {
        assert_eq!(
            (ledger.key(settled.id), settled.settlement),
            (key, Settlement::Blocked)
        );
        ledger.settle(settled);
    }
    assert!(finished.behind.is_sorted_by_key(|settled| settled.id));
    if let (Some(key), Ending::ReturnLane, false) = (key, ending, revoked) {
        ledger.returned.insert(key);
        let waits = |(id, other): &(Id, Option<u8>)| *other == Some(key) && !ledger.settled.contains_key(id);
        assert!(!ledger.offered.iter().any(waits), "one of its lane stays");
    } else {
        assert!(finished.behind.is_empty());
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
                    Err(Refused::Blocked(_)) => assert!(is_returned),
                    Err(refused) => {
                        assert_eq!(room, 0);
                        assert!(matches!(refused, Refused::Full(_)));
                    }
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
                for settled in &gone {
                    assert_eq!(ledger.key(settled.id), Some(key));
                    assert_eq!(settled.settlement, Settlement::Revoked);
                    ledger.settle(settled);
                }
            }
        }
        assert!(queue.in_flight() <= LIMITS.in_flight && queue.held() <= LIMITS.held);
        assert_eq!(queue.in_flight(), ledger.in_flight.len());
        assert_eq!(queue.held(), ledger.offered.len() - ledger.settled.len());
    }
    complete(queue, ledger, now);
}

/// Nothing is stuck: with an app that takes everything, all that was offered is settled.
fn complete(mut queue: Queue<u8, u32>, mut ledger: Ledger, mut now: Instant) {
    queue.resume();
    while queue.held() > 0 {
        while let Some(attempt) = queue.next(now) {
            ledger.started(attempt.id, now);
        }
        if let Some(id) = ledger.in_flight.pop().or_else(|| ledger.undecided.pop()) {
            finish(&mut queue, &mut ledger, id, Ending::Done, now);
        } else {
            now = queue
                .wake_at()
                .expect("events are held, none is in flight and none will be due");
        }
    }
    assert_eq!(ledger.settled.len(), ledger.offered.len());
}

/// A drain returns what waits, in order, and waits for what is in flight only.
fn drain(steps: Vec<Step>) {
    let mut now = Instant::now();
    let mut queue = Queue::new(LIMITS);
    let mut in_flight = Vec::new();
    let mut offered = 0;
    for step in steps {
        match step {
            Step::Offer(key) => offered += usize::from(queue.offer(key, 0).is_ok()),
            Step::Start => in_flight.extend(queue.next(now).map(|attempt| attempt.id)),
            Step::Finish(_, Ending::Retry(after)) => {
                if let Some(id) = in_flight.pop() {
                    let after = Duration::from_millis(after);
                    assert_eq!(queue.finish(id, Finish::Retry(after), now).event, None);
                }
            }
            Step::Pass(time) => now += Duration::from_millis(time),
            _ => {}
        }
    }
    let returned = queue.drain();
    assert!(returned.is_sorted_by_key(|settled| settled.id));
    assert!(returned.iter().all(|s| s.settlement == Settlement::Return));
    assert_eq!(returned.len() + in_flight.len(), offered);
    assert_eq!(queue.next(now), None);
    assert_eq!(queue.offer(None, 0), Err(Refused::Draining(0)));
    for id in in_flight {
        let settled = queue.finish(id, Finish::Retry(Duration::ZERO), now);
        assert_eq!(settled.event.map(|s| s.settlement), Some(Settlement::Return));
    }
    assert_eq!(queue.held(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_for_any_source_and_app(steps in prop::collection::vec(step(), 0..150)) {
        run(steps);
    }

    #[test]
    fn a_drain_returns_all_that_waits(steps in prop::collection::vec(step(), 0..80)) {
        drain(steps);
    }
}

#[test]
fn a_retry_holds_back_its_own_key_alone() {
    let now = Instant::now();
    let mut queue = Queue::new(Limits {
        in_flight: 1,
        held: 10,
    });
    for (key, item) in [("a", 1), ("a", 2), ("b", 3)] {
        queue.offer(Some(key), item).unwrap();
    }
    let first = queue.next(now).unwrap();
    assert_eq!((first.item, first.number), (1, 1));
    assert_eq!(
        queue
            .finish(first.id, Finish::Retry(Duration::from_secs(60)), now)
            .event,
        None
    );
    let other = queue.next(now).unwrap();
    assert_eq!(
        other.item, 3,
        "the only place in flight is free while the first waits"
    );
    assert!(queue.finish(other.id, Finish::Done, now).event.is_some());
    assert_eq!(queue.next(now), None);
    let later = queue.wake_at().unwrap();
    assert_eq!(later, now + Duration::from_secs(60));
    let again = queue.next(later).unwrap();
    assert_eq!((again.item, again.number), (1, 2));
}

#[test]
fn a_key_that_comes_back_waits_for_its_old_attempt() {
    let now = Instant::now();
    let mut queue = Queue::new(Limits {
        in_flight: 4,
        held: 10,
    });
    queue.offer(Some("a"), 1).unwrap();
    let old = queue.next(now).unwrap();
    assert!(queue.revoke(|_| true).is_empty());
    queue.offer(Some("a"), 1).unwrap();
    assert_eq!(queue.next(now), None, "one at a time, also across an assignment");
    let settled = queue.finish(old.id, Finish::Done, now).event.unwrap();
    assert_eq!(settled.settlement, Settlement::Revoked);
    assert!(queue.next(now).is_some());
}

#[test]
fn a_failed_event_takes_its_lane_along_and_no_other() {
    let now = Instant::now();
    let mut queue = Queue::new(Limits {
        in_flight: 4,
        held: 10,
    });
    for (key, item) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
        queue.offer(Some(key), item).unwrap();
    }
    let first = queue.next(now).unwrap();
    let finished = queue.finish(first.id, Finish::ReturnLane, now);
    assert_eq!(
        finished.event.map(|settled| settled.settlement),
        Some(Settlement::Return)
    );
    let behind: Vec<i32> = finished.behind.iter().map(|settled| settled.item).collect();
    assert_eq!(behind, [2, 4]);
    assert_eq!(
        queue.offer(Some("a"), 5),
        Err(Refused::Blocked(5)),
        "it was on its way"
    );
    assert_eq!(queue.next(now).unwrap().item, 3);
    queue.reopen(&"a");
    queue.offer(Some("a"), 1).unwrap();
    assert_eq!(queue.next(now).unwrap().item, 1);
}

/// What becomes of a failed event may take a while to find out: its key waits for it, and nothing else does.
#[test]
fn a_key_waits_until_the_end_of_its_event_is_decided() {
    let now = Instant::now();
    let limits = Limits {
        in_flight: 1,
        held: 10,
    };
    for (decided, next) in [(Finish::Done, Some(2)), (Finish::ReturnLane, None)] {
        let mut queue = Queue::new(limits);
        for (key, item) in [("a", 1), ("a", 2), ("b", 3)] {
            queue.offer(Some(key), item).unwrap();
        }
        let first = queue.next(now).unwrap();
        assert_eq!(queue.finish(first.id, Finish::Hold, now).event, None);
        let other = queue.next(now).unwrap();
        assert_eq!(other.item, 3, "it takes no place in flight");
        queue.finish(other.id, Finish::Done, now);
        assert_eq!(queue.next(now), None, "its key waits");
        let finished = queue.finish(first.id, decided, now);
        assert_eq!(finished.event.map(|settled| settled.item), Some(1));
        let behind: Vec<i32> = finished.behind.iter().map(|settled| settled.item).collect();
        assert_eq!(queue.next(now).map(|attempt| attempt.item), next);
        assert_eq!(
            behind.is_empty(),
            next.is_some(),
            "they follow, or go back with it"
        );
    }
}
