//! A simulated fleet with calls: the real placement engine, and hosts that use `outrigger_actors` as sidecars
//! do, over connections with delays, driven by a seed. Hosts join, leave, are killed and cut off; connections
//! flap; turns are slow and call other actors; callers give up; actors are idle and have timers; leaders die.
//!
//! Invariants: an actor is active on one host at a time; turns run one at a time and in order; no turn
//! exceeds its depth; idle actors end and busy ones do not; timers fire as requested; no call runs twice
//! unless a host without handover cut it off; no call is lost. Without faults no call fails, and no host with
//! handover stops actors that stay. Some fleets disallow handover, the default of placement.

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
use super::rules;
use calls::Call;
use hosts::{Cut, Member};
use timers::Timer;

/// Seeds of every test run. `SIMULATION_SEEDS=from..to` runs others.
const SEEDS: std::ops::Range<u64> = 0..2000;
/// Faults and calls end here.
const TROUBLE: Duration = Duration::from_secs(20);
/// The fleet is at rest by then.
const REST: Duration = Duration::from_secs(120);
const ACTORS: u32 = 12;
/// Points of a host on the ring.
const POINTS: i64 = 8;

/// The faults of a fleet.
#[derive(Clone, Copy, PartialEq)]
enum Weather {
    /// Hosts join and leave on purpose; all support handover.
    Fair,
    /// The same, but some hosts or placement do not support handover.
    Mixed,
    /// All faults.
    Rough,
}

enum Event {
    Trouble,
    Call,
    /// A call from another host arrives.
    Arrive(usize, usize, usize, Origin),
    /// The origin of a call retries.
    Again(usize),
    /// The caller of a call gives up.
    GiveUp(usize),
    /// A turn ends, at this step of the call.
    TurnEnds(usize, u32),
    /// The app has deactivated an actor, in this life of the host.
    ActorEnded(usize, u32, u32, Ticket),
    Order(StreamId, Phase, u64, u64, Rc<Published>),
    StreamEnds(StreamId),
    Said(StreamId, Message),
    Left(StreamId),
    Wake(u32),
    /// The drain time of a host is over, in this wait.
    Cut(usize, u32),
    Connect(usize, u32),
    /// An isolated host does not know whether there is a leader.
    Unreached(usize, u32),
    /// A host notices that it is cut off.
    Silence(usize, u32),
    Heal(usize),
    /// A host's connection breaks, and will this many more times.
    Flap(usize, u32, u32),
    /// A host scans for idle actors.
    LooksForIdle(usize),
    /// The app has deactivated an idle actor, in this life of the host.
    IdleEnded(usize, u32, u32, Ticket),
    TimerDue(usize),
    /// A host that left on purpose closes its stream.
    Gone(usize),
    Leader,
}

/// A published table.
#[derive(Default)]
struct Published {
    hosts: Vec<String>,
    leaving: Vec<String>,
}

struct World {
    random: StdRng,
    weather: Weather,
    /// Whether placement allows handover.
    handover: bool,
    now: Time,
    began: Instant,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    what: HashMap<u64, Event>,
    next: u64,
    /// `None` without a leader.
    namespace: Option<Namespace>,
    term: u64,
    alarm: Option<Time>,
    published: Rc<Published>,
    tables: HashMap<Vec<String>, Tables>,
    streams: BTreeMap<StreamId, usize>,
    hosts: Vec<Member>,
    calls: Vec<Call>,
    /// The host on which an actor is active.
    active: HashMap<u32, usize>,
    timers: Vec<Timer>,
    /// Maximum calls of one turn, with reentrancy.
    depth: Option<u32>,
    /// Idle timeout of actors.
    idle: Duration,
    counts: Counts,
}

/// Event counts.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    calls: u64,
    turns: u64,
    /// Actors deactivated because they moved or their host left.
    moved: u64,
    /// Calls that joined a turn.
    joined: u64,
    /// Calls rejected because their turn was too deep.
    refused: u64,
    /// Actors deactivated because they were idle.
    rested: u64,
    /// Timers fired.
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
            namespace: Some(Namespace::new(rules(handover), Time::ZERO)),
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

    /// Delivers the effects of placement to the hosts.
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
        // A host may be listed twice after its connection broke.
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

    /// The leader dies; another is elected soon.
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
        self.namespace = Some(Namespace::new(rules(self.handover), self.now + SETTLE));
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
            // A caller whose own sidecar ended is excluded.
            if self.weather != Weather::Rough && self.hosts[call.from].is_up {
                assert!(!call.has_failed(), "call {number} failed: {call:?}");
            }
        }
    }
}

#[test]
fn actors_have_one_host_and_calls_run_once() {
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
    // Each feature must have occurred, or the test proves nothing.
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
