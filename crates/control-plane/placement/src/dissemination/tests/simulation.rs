//! A simulated fleet: hosts join, leave, change, stall and die, over connections with delays, driven by a
//! seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::*;
use super::{TIMEOUT, rules};

const SEEDS: u64 = 250;
/// Faults end here.
const TROUBLE: Duration = Duration::from_secs(60);
/// The fleet is at rest by then: silent hosts are dropped in one dissemination, and another informs the rest.
const REST: Duration = Duration::from_secs(60 + 60);

/// The state of a host, from its orders.
#[derive(Debug)]
struct Simulated {
    host: Arc<Host>,
    /// It neither reads nor writes.
    silent: bool,
    last: Option<(Phase, u64)>,
    /// Its table and the version.
    table: Option<(u64, Vec<String>)>,
    locked: bool,
    locked_since: Time,
    /// Earliest arrival of its orders and answers, which keep their order.
    down: Time,
    up: Time,
}

#[derive(Debug)]
enum Event {
    /// An order arrives, with the table.
    Order(StreamId, Phase, u64, Vec<String>),
    Message(StreamId, Message),
    Left(StreamId),
    Trouble,
    Wake,
}

struct Fleet {
    random: StdRng,
    namespace: Namespace,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    what: BTreeMap<u64, Event>,
    hosts: BTreeMap<StreamId, Simulated>,
    next: u64,
    published: Vec<String>,
    published_version: u64,
    /// When the namespace is woken.
    alarm: Option<Time>,
    disseminations: u64,
    changes: u64,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            namespace: Namespace::new(rules(false), Time::ZERO),
            now: Time::ZERO,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            hosts: BTreeMap::new(),
            next: 0,
            published: Vec::new(),
            published_version: 0,
            alarm: None,
            disseminations: 0,
            changes: 0,
        }
    }

    fn at(&mut self, time: Time, event: Event) {
        self.next += 1;
        self.events.push(Reverse((time, self.next)));
        self.what.insert(self.next, event);
    }

    fn delay(&mut self) -> Duration {
        match self.random.random_range(0..50) {
            0 => Duration::from_millis(self.random.random_range(0..1000)),
            _ => Duration::from_micros(self.random.random_range(50..3000)),
        }
    }

    fn run(mut self) -> Self {
        self.at(Time::ZERO, Event::Trouble);
        while let Some(Reverse((time, number))) = self.events.pop() {
            if time > REST {
                break;
            }
            self.now = time;
            match self.what.remove(&number).unwrap() {
                Event::Order(stream, phase, version, table) => self.ordered(stream, phase, version, table),
                Event::Message(stream, message) => self.namespace.message(time, stream, message),
                Event::Left(stream) => self.namespace.leave(time, stream),
                Event::Trouble => self.trouble(),
                Event::Wake => self.namespace.wake(time),
            }
            self.carry_out();
            self.check();
        }
        self
    }

    fn carry_out(&mut self) {
        for effect in self.namespace.effects() {
            match effect {
                Effect::Publish { version, .. } => {
                    self.published = self.namespace.hosts().map(describe).collect();
                    self.published_version = version;
                }
                Effect::Order {
                    to, phase, version, ..
                } => {
                    if phase == Phase::Update {
                        assert_eq!(version, self.published_version, "the table is of another version");
                    }
                    let delay = self.delay();
                    let table = if phase == Phase::Update {
                        self.published.clone()
                    } else {
                        Vec::new()
                    };
                    let Some(host) = self.hosts.get_mut(&to) else {
                        continue;
                    };
                    host.down = host.down.max(self.now + delay);
                    let at = host.down;
                    self.at(at, Event::Order(to, phase, version, table));
                }
                Effect::Expire { stream, .. } => {
                    let silent = self.hosts.get(&stream).is_none_or(|host| host.silent);
                    assert!(silent, "only silent and gone hosts are dropped");
                    self.hosts.remove(&stream);
                }
                Effect::Finished { took } => {
                    assert!(took <= TIMEOUT * 3, "a dissemination took {took:?}");
                    self.disseminations += 1;
                }
            }
        }
        let wake_at = self.namespace.wake_at();
        if wake_at != self.alarm {
            self.alarm = wake_at;
            if let Some(at) = wake_at {
                self.at(at, Event::Wake);
            }
        }
    }

    /// A host handles an order as the protocol demands.
    fn ordered(&mut self, stream: StreamId, phase: Phase, version: u64, table: Vec<String>) {
        let (delay, now) = (self.delay(), self.now);
        let Some(host) = self.hosts.get_mut(&stream).filter(|host| !host.silent) else {
            return;
        };
        let expected = match (host.last, phase) {
            (None, Phase::Lock) => true,
            (Some((_, last)), Phase::Lock) => version >= last,
            (Some((Phase::Lock, last)), Phase::Update) | (Some((Phase::Update, last)), Phase::Unlock) => {
                version == last
            }
            _ => false,
        };
        assert!(expected, "{phase:?} {version} after {:?}", host.last);
        host.last = Some((phase, version));
        match phase {
            Phase::Lock => {
                host.locked = true;
                host.locked_since = now;
            }
            Phase::Update => host.table = Some((version, table)),
            Phase::Unlock => {
                host.locked = false;
                let held = now - host.locked_since;
                assert!(
                    held <= TIMEOUT * 3 + Duration::from_secs(5),
                    "locked for {held:?}"
                );
            }
        }
        host.up = host.up.max(now + delay);
        let at = host.up;
        self.at(at, Event::Message(stream, Message::Answer { phase, version }));
    }

    fn trouble(&mut self) {
        let pause = match self.random.random_range(0..3) {
            0 => Duration::from_micros(self.random.random_range(0..500)),
            1 => Duration::from_millis(self.random.random_range(0..100)),
            _ => Duration::from_millis(self.random.random_range(0..5000)),
        };
        if self.now + pause < TROUBLE {
            self.at(self.now + pause, Event::Trouble);
        }
        let streams: Vec<StreamId> = self.hosts.keys().copied().collect();
        let some = (!streams.is_empty()).then(|| streams[self.random.random_range(0..streams.len())]);
        match (self.random.random_range(0..10), some) {
            (0..5, _) | (_, None) => self.join(),
            (5, Some(stream)) => self.hosts.get_mut(&stream).unwrap().silent = true,
            (6 | 7, Some(stream)) => {
                let delay = self.delay();
                if let Some(host) = self.hosts.remove(&stream) {
                    self.changes += u64::from(has_actors(&host.host));
                    self.at(self.now + delay, Event::Left(stream));
                }
            }
            (_, Some(stream)) => self.report(stream),
        }
    }

    fn entities(&mut self) -> Vec<String> {
        (0..3)
            .filter(|_| self.random.random_bool(0.5))
            .map(|n| format!("t{n}"))
            .collect()
    }

    fn join(&mut self) {
        self.next += 1;
        let stream = self.next;
        let entities = self.entities();
        self.changes += u64::from(!entities.is_empty());
        let host = Arc::new(Host {
            name: format!("h{stream}"),
            entities,
            ..Host::default()
        });
        let simulated = Simulated {
            host: Arc::clone(&host),
            silent: false,
            last: None,
            table: None,
            locked: true,
            locked_since: self.now,
            down: self.now,
            up: self.now,
        };
        self.hosts.insert(stream, simulated);
        self.namespace.join(self.now, stream, host);
    }

    fn report(&mut self, stream: StreamId) {
        let (entities, delay) = (self.entities(), self.delay());
        let Some(host) = self.hosts.get_mut(&stream).filter(|host| !host.silent) else {
            return;
        };
        let new = Arc::new(Host {
            entities,
            ..Host::clone(&host.host)
        });
        self.changes += u64::from(differs(&host.host, &new));
        host.host = Arc::clone(&new);
        host.up = host.up.max(self.now + delay);
        let at = host.up;
        self.at(at, Event::Message(stream, Message::Report(new)));
    }

    /// All hosts that route calls use the same table.
    fn check(&self) {
        let mut open = self
            .hosts
            .values()
            .filter(|host| !host.silent && !host.locked)
            .filter_map(|host| host.table.as_ref());
        if let Some(first) = open.next() {
            for other in open {
                assert_eq!(first, other, "two tables at a time");
            }
        }
    }

    /// All hosts have the full table, and none is locked.
    fn check_at_rest(&self) {
        let left = self.namespace.hosts().map(describe).collect::<Vec<_>>();
        let expected: Vec<String> = self
            .hosts
            .values()
            .filter(|host| has_actors(&host.host))
            .map(|host| describe(&host.host))
            .collect();
        assert_eq!(left, expected);
        for host in self.hosts.values().filter(|host| !host.silent) {
            assert!(!host.locked, "{} is locked for ever", host.host.name);
            let table = host.table.as_ref().expect("everybody has a table");
            assert_eq!(table.1, expected, "the table of {}", host.host.name);
        }
        let silent = self.hosts.values().filter(|host| host.silent).count() as u64;
        assert!(
            self.namespace.version() <= self.changes + silent + 64,
            "{} disseminations for {} changes",
            self.namespace.version(),
            self.changes
        );
    }
}

fn describe(host: &Arc<Host>) -> String {
    format!("{}: {}", host.name, host.entities.join(" "))
}

#[test]
fn faulty_fleet_converges_on_one_table() {
    let (mut disseminations, mut changes) = (0, 0);
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| {
            let fleet = Fleet::new(seed).run();
            fleet.check_at_rest();
            (fleet.disseminations, fleet.changes)
        });
        let (some_disseminations, some_changes) = outcome.unwrap_or_else(|_| panic!("seed {seed}"));
        disseminations += some_disseminations;
        changes += some_changes;
    }
    assert!(
        disseminations > SEEDS && disseminations < changes,
        "{disseminations} disseminations for {changes} changes"
    );
}
