//! A simulated fleet with calls: placement as it is, and hosts that decide with `outrigger_actors` as sidecars do, over
//! connections with delays, by a seed. Hosts come, leave, are killed and cut off, connections break again and again, turns
//! are slow and call others, callers give up, actors are idle and have timers, leaders die.
//!
//! Whatever happens: an actor is active on one host at a time, turns begin one at a time and in their order, no call is
//! deeper in a turn than it may be, idle actors end and others do not, timers are due as they say, no call runs twice
//! unless a host without handover cut it off, and none is lost. Where nothing breaks, none fails either, and no host that
//! hands over stops what does not move. In some fleets placement lets nobody hand over, as by default.

mod calls;
mod connection;
mod hosts;
mod idle;
mod timers;
mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;

use outrigger_actors::ring::{self, Tables};
use outrigger_actors::routes::Origin;
use outrigger_actors::turns::Ticket;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::*;
use calls::Call;
use hosts::{Cut, Member};
use timers::Timer;

/// Fleets that every run of the tests simulates. `SIMULATION_SEEDS=from..to` simulates others.
const SEEDS: std::ops::Range<u64> = 0..2000;
const TIMEOUT: Duration = Duration::from_secs(8);
/// Until then the fleet is disturbed, and called.
const TROUBLE: Duration = Duration::from_secs(20);
/// By then all is settled.
const REST: Duration = Duration::from_secs(120);
const ACTORS: u32 = 12;
/// Points of a host on the ring.
const POINTS: i64 = 8;

/// What may happen in a fleet.
#[derive(Clone, Copy, PartialEq)]
enum Weather {
    /// Hosts come, and leave on purpose; all hand over.
    Fair,
    /// The same among hosts of which some cannot hand over, or beside a placement that lets nobody.
    Mixed,
    /// Anything.
    Rough,
}

enum Event {
    Trouble,
    Call,
    /// A call arrives at a host, from another one.
    Arrive(usize, usize, usize, Origin),
    /// The origin of a call tries again.
    Again(usize),
    /// Whoever made a call waits for it no longer.
    GiveUp(usize),
    /// A turn, the call's so many-th step.
    TurnEnds(usize, u32),
    /// The app has ended an actor, in the host's so many-th life.
    ActorEnded(usize, u32, u32, Ticket),
    Order(StreamId, Phase, u64, u64, Rc<Published>),
    StreamEnds(StreamId),
    Said(StreamId, Message),
    Left(StreamId),
    Wake(u32),
    /// Time is up for calls that a host lets go on, in its so many-th wait.
    Cut(usize, u32),
    Connect(usize, u32),
    /// A host that goes on alone does not know whether there is a leader.
    Unreached(usize, u32),
    /// A host that is cut off notices.
    Silence(usize, u32),
    Heal(usize),
    /// A host's connection breaks, and so many times more.
    Flap(usize, u32, u32),
    /// A host looks for idle actors.
    LooksForIdle(usize),
    /// The app has ended an idle actor, in the host's so many-th life.
    IdleEnded(usize, u32, u32, Ticket),
    TimerDue(usize),
    /// A host that left on purpose ends its stream.
    Gone(usize),
    Leader,
}

/// The table as it was published.
#[derive(Default)]
struct Published {
    hosts: Vec<String>,
    leaving: Vec<String>,
}

struct World {
    random: StdRng,
    weather: Weather,
    /// Whether placement lets hosts hand over.
    handover: bool,
    now: Time,
    began: Instant,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    what: HashMap<u64, Event>,
    next: u64,
    /// `None` while there is no leader.
    namespace: Option<Namespace>,
    term: u64,
    alarm: Option<Time>,
    published: Rc<Published>,
    tables: HashMap<Vec<String>, Tables>,
    streams: BTreeMap<StreamId, usize>,
    hosts: Vec<Member>,
    calls: Vec<Call>,
    /// Which host an actor is active on.
    active: HashMap<u32, usize>,
    timers: Vec<Timer>,
    /// Calls of one turn at once, where turns can be joined.
    depth: Option<u32>,
    /// After so long an actor is idle.
    idle: Duration,
    counts: Counts,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    calls: u64,
    turns: u64,
    /// Actors that ended because they moved, or their host went.
    moved: u64,
    /// Calls that joined a turn.
    joined: u64,
    /// Calls whose turn was as deep as it may be.
    refused: u64,
    /// Actors that ended because they were idle.
    rested: u64,
    /// Timers that were due.
    timers: u64,
    /// Connections to placement that broke.
    flaps: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.turns += other.turns;
        self.moved += other.moved;
        self.joined += other.joined;
        self.refused += other.refused;
        self.rested += other.rested;
        self.timers += other.timers;
        self.flaps += other.flaps;
    }
}

/// The seeds of this run.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = text.split_once("..").expect("SIMULATION_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let weather = [Weather::Fair, Weather::Mixed, Weather::Rough, Weather::Rough];
        let (weather, handover) = match weather[random.random_range(0..weather.len())] {
            Weather::Fair => (Weather::Fair, true),
            other => (other, random.random_bool(0.6)),
        };
        let depth = random.random_bool(0.7).then(|| random.random_range(2..4));
        let idle = match random.random_bool(0.7) {
            true => Duration::from_millis(random.random_range(50..3000)),
            false => Duration::MAX,
        };
        Self {
            weather,
            handover,
            random,
            now: Time::ZERO,
            began: Instant::now(),
            queue: BinaryHeap::new(),
            what: HashMap::new(),
            next: 0,
            namespace: Some(Namespace::new(TIMEOUT, handover, Time::ZERO)),
            term: 1,
            alarm: None,
            published: Rc::default(),
            tables: HashMap::new(),
            streams: BTreeMap::new(),
            hosts: Vec::new(),
            calls: Vec::new(),
            active: HashMap::new(),
            timers: Vec::new(),
            depth,
            idle,
            counts: Counts::default(),
        }
    }

    fn after(&mut self, pause: Duration, event: Event) {
        self.at(self.now + pause, event);
    }

    fn at(&mut self, time: Time, event: Event) {
        self.next += 1;
        self.queue.push(Reverse((time, self.next)));
        self.what.insert(self.next, event);
    }

    fn delay(&mut self) -> Duration {
        match self.random.random_range(0..40) {
            0 => Duration::from_millis(self.random.random_range(0..500)),
            _ => Duration::from_micros(self.random.random_range(50..3000)),
        }
    }

    fn run(mut self) -> Self {
        for _ in 0..3 {
            self.start_host();
        }
        self.after(Duration::from_secs(1), Event::Trouble);
        self.after(Duration::ZERO, Event::Call);
        while let Some(Reverse((time, number))) = self.queue.pop() {
            if time > REST {
                break;
            }
            self.now = time;
            let event = self.what.remove(&number).expect("an event");
            self.happens(event);
            self.carry_out();
            self.plan_looks();
        }
        self
    }

    fn happens(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Trouble => self.trouble(),
            Event::Call => self.new_call(),
            Event::Arrive(call, from, at, origin) => self.arrive(call, from, at, origin),
            Event::Again(call) => self.again(call),
            Event::GiveUp(call) => self.give_up(call),
            Event::Flap(host, life, times) => self.flap(host, life, times),
            Event::LooksForIdle(host) => self.looks_for_idle(host),
            Event::IdleEnded(host, life, actor, ticket) => self.idle_ended(host, life, actor, ticket),
            Event::TimerDue(timer) => self.timer_due(timer),
            Event::TurnEnds(call, step) => self.turn_ends(call, step),
            Event::ActorEnded(host, life, actor, ticket) => self.actor_ended(host, life, actor, ticket),
            Event::Order(stream, phase, version, handover, table) => {
                self.ordered(stream, phase, version, handover, &table);
            }
            Event::StreamEnds(stream) => {
                let is_reached = |host: &&usize| self.hosts[**host].cut == Cut::Nobody;
                if let Some(host) = self.streams.get(&stream).filter(is_reached).copied() {
                    self.streams.remove(&stream);
                    self.lost(host);
                }
            }
            Event::Said(stream, message) => {
                if let Some(namespace) = &mut self.namespace {
                    namespace.message(now, stream, message);
                }
            }
            Event::Left(stream) => {
                if let Some(namespace) = &mut self.namespace {
                    namespace.leave(now, stream);
                }
            }
            Event::Wake(of) => {
                if let Some(namespace) = self.namespace.as_mut().filter(|_| u64::from(of) == self.term) {
                    namespace.wake(now);
                }
            }
            Event::Cut(host, wait) => self.cut(host, wait),
            Event::Connect(host, life) => self.connect(host, life),
            Event::Unreached(host, life) => self.unreached(host, life),
            Event::Silence(host, life) => self.silence(host, life),
            Event::Heal(host) => self.heal(host),
            Event::Gone(host) => self.lose(host),
            Event::Leader => self.new_leader(),
        }
    }

    /// Brings what placement wants to the hosts.
    fn carry_out(&mut self) {
        let Some(namespace) = &mut self.namespace else {
            return;
        };
        for effect in namespace.effects() {
            match effect {
                Effect::Publish { .. } => self.publish(),
                Effect::Order {
                    to,
                    phase,
                    version,
                    handover,
                } => {
                    let delay = self.delay();
                    let handover = if handover { self.term } else { 0 };
                    let Some(&host) = self.streams.get(&to) else {
                        continue;
                    };
                    let at = (self.now + delay).max(self.hosts[host].down);
                    self.hosts[host].down = at;
                    let table = Rc::clone(&self.published);
                    self.at(at, Event::Order(to, phase, version, handover, table));
                }
                Effect::Expire { stream, .. } => {
                    let delay = self.delay();
                    self.after(delay, Event::StreamEnds(stream));
                }
                Effect::Finished { .. } => {}
            }
        }
        let wake_at = self.namespace.as_ref().and_then(Namespace::wake_at);
        if wake_at != self.alarm {
            self.alarm = wake_at;
            if let Some(at) = wake_at {
                let term = u32::try_from(self.term).expect("few terms");
                self.at(at, Event::Wake(term));
            }
        }
    }

    fn publish(&mut self) {
        let Some(namespace) = &self.namespace else { return };
        let mut hosts: Vec<_> = namespace.hosts().map(|host| host.name.clone()).collect();
        hosts.sort();
        // Whose connection broke may be there twice.
        hosts.dedup();
        let leaving = namespace.leaving().map(str::to_owned).collect();
        self.published = Rc::new(Published { hosts, leaving });
    }

    fn table(&mut self, hosts: &[String]) -> Tables {
        let known = self.tables.entry(hosts.to_vec()).or_insert_with(|| {
            let hosts = hosts.iter().map(|name| ring::Host {
                address: name.as_str().into(),
                app_id: "app".into(),
            });
            Tables::new([("T".to_owned(), hosts.collect())], POINTS).expect("a small table")
        });
        known.clone()
    }

    /// The leader dies; another one leads soon.
    fn lose_leader(&mut self) {
        if self.namespace.take().is_none() {
            return;
        }
        self.alarm = None;
        let streams: Vec<_> = self.streams.keys().copied().collect();
        for stream in streams {
            let delay = self.delay();
            self.after(delay, Event::StreamEnds(stream));
        }
        let pause = Duration::from_millis(self.random.random_range(2000..6000));
        self.after(pause, Event::Leader);
    }

    fn new_leader(&mut self) {
        self.term += 1;
        self.namespace = Some(Namespace::new(TIMEOUT, self.handover, self.now + SETTLE));
    }

    fn trouble(&mut self) {
        let pause = Duration::from_millis(self.random.random_range(0..2500));
        if self.now + pause < TROUBLE {
            self.after(pause, Event::Trouble);
        }
        let up: Vec<_> = (0..self.hosts.len())
            .filter(|host| self.hosts[*host].is_well())
            .collect();
        let kinds = if self.weather == Weather::Rough { 10 } else { 4 };
        let some = (up.len() > 1).then(|| up[self.random.random_range(0..up.len())]);
        match (self.random.random_range(0..kinds), some) {
            (0 | 1, _) | (_, None) => {
                if up.len() < 6 {
                    self.start_host();
                }
            }
            (2 | 3, Some(host)) => self.leave_on_purpose(host),
            (4, Some(host)) => self.kill(host),
            (5, Some(host)) => self.cut_off(host, Cut::Placement),
            (6, Some(host)) => self.cut_off(host, Cut::All),
            (7, _) => self.lose_leader(),
            (8, Some(host)) => self.hosts[host].slow = true,
            (_, Some(host)) => {
                let (life, times) = (self.hosts[host].life, self.random.random_range(1..6));
                self.flap(host, life, times);
            }
        }
    }

    fn check_at_rest(&self) {
        self.check_idle();
        self.check_timers();
        for (number, call) in self.calls.iter().enumerate() {
            assert!(call.is_over(), "call {number} is lost: {call:?}");
            // Whose own sidecar ended has nobody to ask any more.
            if self.weather != Weather::Rough && self.hosts[call.from].is_up {
                assert!(!call.has_failed(), "call {number} failed: {call:?}");
            }
        }
    }
}

#[test]
fn actors_are_in_one_place_and_calls_run_once_whatever_happens() {
    let seeds = seeds();
    let mut all = Counts::default();
    for seed in seeds.clone() {
        let outcome = std::panic::catch_unwind(|| {
            let world = World::new(seed).run();
            world.check_at_rest();
            Counts {
                calls: world.calls.len() as u64,
                ..world.counts
            }
        });
        all.add(&outcome.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    // What is not tried proves nothing.
    let number = seeds.end - seeds.start;
    let Counts {
        calls,
        turns,
        moved,
        joined,
        refused,
        rested,
        timers,
        flaps,
    } = all;
    assert!(
        calls > 50 * number && turns > 40 * number && moved > 10 * number,
        "{all:?}"
    );
    assert!(
        rested > 20 * number && timers > number && joined > 2 * number && flaps > number,
        "{all:?}"
    );
    assert!(refused > number / 20, "{all:?}");
}
