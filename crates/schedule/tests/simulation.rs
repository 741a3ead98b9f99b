//! A scheduler that crashes, hosts that come and go, and jobs, under simulated time. A failure prints the input.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_schedule::engine::{Action, Engine, Host, HostId, Limits, Name, Target, TriggerId, Version};
use outrigger_schedule::job::{FailurePolicy, Job, Outcome, Progress, Request};
use proptest::prelude::*;

const APPS: usize = 3;
const LIMIT: usize = 4;
/// What is not stored, at most, when something is sent.
const UNSTORED: usize = 3;
const LIMITS: Limits = Limits {
    in_flight: LIMIT,
    unstored: UNSTORED,
};

#[derive(Debug, Clone)]
enum Step {
    Schedule {
        job: u8,
        app: usize,
        kind: Kind,
    },
    Delete(u8),
    Connect(usize),
    Disconnect(usize),
    Answer(usize, Outcome),
    Pass(u64),
    /// The clock is set: back by up to two hours, or ahead.
    Jump(i64),
    /// The process dies: what was not stored is lost, and all streams with it. `stored`: how many of the actions that
    /// wait to be stored made it.
    Crash {
        stored: usize,
    },
    /// All that waits to be stored is.
    Store,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Once(u32),
    Every { seconds: u8, repeats: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        (0_u32..5000).prop_map(Kind::Once),
        (1_u8..5, 1_u8..4).prop_map(|(seconds, repeats)| Kind::Every { seconds, repeats }),
    ];
    let outcome = prop_oneof![3 => Just(Outcome::Success), 1 => Just(Outcome::Failed)];
    prop_oneof![
        4 => (0_u8..12, 0..APPS, kind).prop_map(|(job, app, kind)| Step::Schedule { job, app, kind }),
        1 => (0_u8..12).prop_map(Step::Delete),
        3 => (0..APPS).prop_map(Step::Connect),
        1 => (0_usize..4).prop_map(Step::Disconnect),
        6 => (0_usize..8, outcome).prop_map(|(at, outcome)| Step::Answer(at, outcome)),
        4 => (0_u64..3000).prop_map(Step::Pass),
        1 => (-7_200_i64..7_200).prop_map(Step::Jump),
        1 => (0_usize..4).prop_map(|stored| Step::Crash { stored }),
        3 => Just(Step::Store),
    ]
}

fn target(app: usize) -> Target {
    Target::App {
        namespace: format!("ns{}", app % 2).into(),
        id: format!("app{app}").into(),
    }
}

/// What survives a crash.
#[derive(Clone)]
struct Stored {
    app: usize,
    revision: u64,
    job: Job,
    progress: Progress,
}

struct World {
    now: Timestamp,
    /// The latest time that the clock has shown: what was due by then may come when there is room for it.
    latest: Timestamp,
    store: BTreeMap<Name, Stored>,
    engine: Engine,
    hosts: Vec<(HostId, usize)>,
    under_way: Vec<(HostId, TriggerId, Name, Timestamp)>,
    unstored: Vec<Action>,
    revision: u64,
    /// Ticks whose success is stored, by job and revision.
    done: HashMap<(Name, u64), Vec<Timestamp>>,
    /// Ticks that were answered with success, and not stored yet.
    succeeded: HashMap<(Name, u64), Timestamp>,
}

impl World {
    fn new() -> Self {
        let now: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
        Self {
            now,
            latest: now,
            store: BTreeMap::new(),
            engine: Engine::new(now, LIMITS),
            hosts: Vec::new(),
            under_way: Vec::new(),
            unstored: Vec::new(),
            revision: 0,
            done: HashMap::new(),
            succeeded: HashMap::new(),
        }
    }

    fn schedule(&mut self, job: u8, app: usize, kind: Kind) {
        let (due, every);
        let request = match kind {
            Kind::Once(millis) => {
                due = format!("{millis}ms");
                Request {
                    due_time: Some(&due),
                    ..Request::default()
                }
            }
            Kind::Every { seconds, repeats } => {
                every = format!("@every {seconds}s");
                Request {
                    schedule: Some(&every),
                    repeats: Some(u32::from(repeats)),
                    failure_policy: Some(FailurePolicy::Constant {
                        interval: Duration::from_millis(500),
                        max_retries: None,
                    }),
                    ..Request::default()
                }
            }
        };
        let name: Name = format!("job{job}").into();
        self.revision += 1;
        let stored = Stored {
            app,
            revision: self.revision,
            job: Job::new(&request, self.now).unwrap(),
            progress: Progress::default(),
        };
        // A job is acknowledged when it is stored: that comes first.
        self.store.insert(name.clone(), stored.clone());
        self.put(name, stored);
    }

    fn put(&mut self, name: Name, stored: Stored) {
        let Stored {
            app,
            revision,
            job,
            progress,
        } = stored;
        let version = Version {
            revision,
            partition: 0,
        };
        self.engine
            .put(self.now, name, target(app), version, job, progress);
        self.collect();
    }

    /// Checks and keeps what the engine wants done.
    fn collect(&mut self) {
        for action in self.engine.take_actions() {
            match &action {
                Action::Deliver {
                    host,
                    trigger,
                    name,
                    due,
                    version,
                } => {
                    assert!(*due <= self.latest, "{name} fired early");
                    assert!(
                        self.unstored.len() < UNSTORED,
                        "{name} fired while the store is behind"
                    );
                    let stored = &self.store[name];
                    assert_eq!(
                        version.revision, stored.revision,
                        "{name} fired in another version"
                    );
                    assert!(
                        self.hosts.contains(&(*host, stored.app)),
                        "sent to a host that does not take it"
                    );
                    let done = self.done.get(&(name.clone(), stored.revision));
                    assert!(
                        !done.is_some_and(|ticks| ticks.contains(due)),
                        "{name} fired again after its success was stored"
                    );
                    let twice = self.under_way.iter().any(|(_, _, other, _)| other == name);
                    let replaced = self
                        .under_way
                        .iter()
                        .any(|(_, _, other, at)| other == name && at != due);
                    assert!(
                        !twice || replaced || stored.revision > 1,
                        "{name} is under way twice"
                    );
                    self.under_way.push((*host, *trigger, name.clone(), *due));
                }
                Action::Undelivered { .. } => {}
                _ => self.unstored.push(action),
            }
        }
        assert!(self.engine.in_flight() <= LIMIT);
    }

    fn keep(&mut self, count: usize) {
        let count = count.min(self.unstored.len());
        for action in self.unstored.drain(..count).collect::<Vec<_>>() {
            let (name, revision) = match &action {
                Action::Save { name, version, .. } | Action::Delete { name, version } => {
                    (name.clone(), version.revision)
                }
                Action::Deliver { .. } | Action::Undelivered { .. } => unreachable!("not stored"),
            };
            let Some(stored) = self.store.get_mut(&name).filter(|s| s.revision == revision) else {
                continue;
            };
            if let Some(tick) = self.succeeded.remove(&(name.clone(), revision)) {
                self.done.entry((name.clone(), revision)).or_default().push(tick);
            }
            match action {
                Action::Save { progress, .. } => stored.progress = progress,
                _ => {
                    self.store.remove(&name);
                }
            }
        }
        self.engine.unstored(self.unstored.len());
        self.collect();
    }

    fn answer(&mut self, at: usize, outcome: Outcome) {
        if self.under_way.is_empty() {
            return;
        }
        let (host, trigger, name, due) = self.under_way.swap_remove(at % self.under_way.len());
        if outcome == Outcome::Success
            && let Some(stored) = self.store.get(&name)
        {
            // One answer at a time: what came before is stored first.
            let revision = stored.revision;
            self.keep(usize::MAX);
            self.succeeded.insert((name, revision), due);
        }
        self.engine.answer(self.now, host, trigger, outcome).unwrap();
        self.collect();
    }

    fn disconnect(&mut self, at: usize) {
        if self.hosts.is_empty() {
            return;
        }
        let (host, _) = self.hosts.swap_remove(at % self.hosts.len());
        self.under_way.retain(|(other, ..)| *other != host);
        self.engine.disconnect(host);
        self.collect();
    }

    fn connect(&mut self, app: usize) {
        let Target::App { namespace, id } = target(app) else {
            unreachable!("jobs of apps only");
        };
        // The engine names the host before anything is sent to it.
        let before = self.hosts.len();
        let host = self.engine.connect(Host::new(&namespace, &id, true, &[]));
        self.hosts.insert(before, (host, app));
        self.collect();
    }

    fn crash(&mut self, stored: usize) {
        self.keep(stored);
        self.unstored.clear();
        self.succeeded.clear();
        self.under_way.clear();
        self.hosts.clear();
        self.engine = Engine::new(self.now, LIMITS);
        for (name, stored) in self.store.clone() {
            self.put(name, stored);
        }
    }

    fn pass(&mut self, millis: u64) {
        self.jump(i64::try_from(millis).unwrap());
    }

    fn jump(&mut self, millis: i64) {
        self.now = self
            .now
            .checked_add(jiff::SignedDuration::from_millis(millis))
            .unwrap();
        self.latest = self.latest.max(self.now);
        self.engine.advance(self.now);
        self.collect();
    }

    /// Answers all that is sent, and stores that; which ticks came, in their order. None is due later than now.
    fn done(&mut self) -> Vec<(String, Timestamp)> {
        let mut ticks = Vec::new();
        while let Some((_, _, name, due)) = self.under_way.first() {
            assert!(*due <= self.now, "{name} is early");
            ticks.push((name.to_string(), *due));
            self.answer(0, Outcome::Success);
            self.keep(usize::MAX);
        }
        ticks
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Schedule { job, app, kind } => {
                self.keep(usize::MAX);
                self.schedule(job, app, kind);
            }
            Step::Delete(job) => {
                let name: Name = format!("job{job}").into();
                self.keep(usize::MAX);
                self.store.remove(&name);
                self.engine.remove(&name);
                self.collect();
            }
            Step::Connect(app) => self.connect(app),
            Step::Disconnect(at) => self.disconnect(at),
            Step::Answer(at, outcome) => self.answer(at, outcome),
            Step::Pass(millis) => self.pass(millis),
            Step::Jump(seconds) => self.jump(seconds * 1000),
            Step::Crash { stored } => self.crash(stored),
            Step::Store => self.keep(usize::MAX),
        }
        self.keep_stored_and_engine_alike();
    }

    fn keep_stored_and_engine_alike(&mut self) {
        if self.unstored.is_empty() {
            assert_eq!(self.engine.len(), self.store.len(), "a job was lost, or made up");
        }
    }

    /// With hosts for every app that take everything, every job ends.
    fn complete(mut self) {
        for app in 0..APPS {
            self.connect(app);
        }
        for _ in 0..10_000 {
            if self.store.is_empty() {
                return;
            }
            if self.under_way.is_empty() {
                self.keep(usize::MAX);
                let Some(next) = self.engine.wake_at() else {
                    assert!(
                        self.store.is_empty(),
                        "jobs are stored, and none will ever be due"
                    );
                    return;
                };
                let wait = next.duration_since(self.now).as_millis();
                self.pass(u64::try_from(wait).unwrap_or(0));
            } else {
                self.answer(0, Outcome::Success);
                self.keep(usize::MAX);
            }
        }
        panic!("jobs are stuck: {:?}", self.store.keys().collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_job_is_lost_early_or_repeated(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.complete();
    }
}

#[test]
fn a_herd_in_one_namespace_does_not_hold_up_the_others() {
    let mut world = World::new();
    world.connect(0);
    world.connect(1);
    for job in 0..100 {
        world.schedule(job, 0, Kind::Once(1000));
    }
    world.schedule(200, 1, Kind::Once(1000));
    world.pass(1000);
    let other = world.under_way.iter().any(|(_, _, name, _)| &**name == "job200");
    assert!(
        other,
        "among the first {LIMIT} triggers is one of the other namespace"
    );
}

#[test]
fn hosts_of_an_app_take_turns() {
    let mut world = World::new();
    for _ in 0..LIMIT {
        world.connect(0);
    }
    for job in 0..4 {
        world.schedule(job, 0, Kind::Once(10));
    }
    world.pass(10);
    let mut hosts: Vec<_> = world.under_way.iter().map(|(host, ..)| *host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    assert_eq!(hosts.len(), LIMIT);
}

#[test]
fn a_job_waits_for_its_app() {
    let mut world = World::new();
    world.schedule(1, 2, Kind::Once(10));
    world.pass(60_000);
    assert!(world.under_way.is_empty());
    world.connect(2);
    assert_eq!(world.under_way.len(), 1);
    world.disconnect(0);
    assert!(world.under_way.is_empty());
    world.connect(2);
    assert_eq!(world.under_way.len(), 1, "a lost stream is no failed attempt");
}

#[test]
fn a_clock_that_is_set_back_holds_up_nobody() {
    let mut world = World::new();
    world.connect(0);
    world.pass(1000);
    world.jump(-3_600_000);
    world.schedule(1, 0, Kind::Once(10));
    world.pass(10);
    assert_eq!(world.under_way.len(), 1);
}

const HOUR: i64 = 3_600_000;
const MINUTE: u32 = 60_000;

/// The time of a tick that many seconds after the world began.
fn at(began: Timestamp, seconds: i64) -> Timestamp {
    began + jiff::SignedDuration::from_secs(seconds)
}

/// Invariant: when the clock jumps an hour ahead, what was due in that hour comes late and once, ticks that were missed one
/// after the other; what is due after the hour is not early, and comes once too.
#[test]
fn a_clock_that_jumps_an_hour_ahead_makes_late_and_not_early() {
    let mut world = World::new();
    let began = world.now;
    world.connect(0);
    for (job, due) in [(1, 10 * MINUTE), (2, 59 * MINUTE), (3, 61 * MINUTE)] {
        world.schedule(job, 0, Kind::Once(due));
    }
    // Every four minutes: 15 ticks in the hour, 5 after it.
    let every = Kind::Every {
        seconds: 240,
        repeats: 20,
    };
    world.schedule(4, 0, every);
    world.jump(HOUR);
    let mut ticks = world.done();
    let missed: Vec<_> = ticks.extract_if(.., |(name, _)| name == "job4").collect();
    let expected: Vec<_> = (1..=15)
        .map(|tick| ("job4".to_owned(), at(began, tick * 240)))
        .collect();
    assert_eq!(missed, expected, "each that was missed, in their order");
    ticks.sort_unstable();
    let late = [("job1", 600), ("job2", 3540)].map(|(name, due)| (name.to_owned(), at(began, due)));
    assert_eq!(ticks, late);
    world.pass(59_999);
    assert!(world.done().is_empty());
    world.pass(1);
    assert_eq!(world.done(), [("job3".to_owned(), at(began, 3660))]);
    // A restart makes nothing late once more.
    world.crash(usize::MAX);
    world.connect(0);
    assert!(world.done().is_empty());
    world.pass(180_000);
    assert_eq!(world.done(), [("job4".to_owned(), at(began, 16 * 240))]);
    world.complete();
}

/// Invariant: when the clock is set back an hour, what was done does not come again, also not to a process that starts by
/// that clock, and what is due waits for its time: late by the hour, once, and not early.
#[test]
fn a_clock_that_is_set_back_an_hour_repeats_nothing_and_is_not_early() {
    for restarted in [false, true] {
        let mut world = World::new();
        let began = world.now;
        world.connect(0);
        world.schedule(1, 0, Kind::Once(MINUTE));
        world.schedule(2, 0, Kind::Once(3 * MINUTE));
        let every = Kind::Every {
            seconds: 60,
            repeats: 4,
        };
        world.schedule(3, 0, every);
        world.pass(150_000);
        assert_eq!(world.done().len(), 3, "one job, and two ticks of another");
        world.jump(-HOUR);
        if restarted {
            world.crash(usize::MAX);
            world.connect(0);
        }
        assert!(world.done().is_empty());
        // Now it shows the time again at which it was set back.
        world.pass(u64::try_from(HOUR).unwrap());
        assert!(world.done().is_empty(), "what was done, or is due later");
        world.pass(29_999);
        assert!(world.done().is_empty());
        world.pass(1);
        let mut ticks = world.done();
        ticks.sort_unstable();
        let third = at(began, 180);
        assert_eq!(ticks, ["job2", "job3"].map(|name| (name.to_owned(), third)));
        world.pass(60_000);
        assert_eq!(world.done(), [("job3".to_owned(), at(began, 240))]);
        assert!(world.store.is_empty(), "all have had their ticks");
    }
}

#[test]
fn an_answer_that_nobody_waits_for_is_refused() {
    let mut world = World::new();
    world.connect(0);
    world.schedule(1, 0, Kind::Once(0));
    let (host, trigger, ..) = world.under_way[0].clone();
    let now = world.now;
    assert!(
        world
            .engine
            .answer(now, host, trigger + 1, Outcome::Success)
            .is_err()
    );
    assert!(world.engine.answer(now, host, trigger, Outcome::Success).is_ok());
    assert!(world.engine.answer(now, host, trigger, Outcome::Success).is_err());
}

#[test]
fn a_member_that_lets_go_sends_nothing_and_takes_answers_until_it_has_none() {
    let mut world = World::new();
    world.connect(0);
    world.schedule(1, 0, Kind::Once(0));
    world.schedule(2, 0, Kind::Once(0));
    assert_eq!(world.under_way.len(), 2);
    world.engine.hold();
    world.schedule(3, 0, Kind::Once(0));
    world.pass(60_000);
    assert_eq!(world.under_way.len(), 2, "nothing is sent any more");
    world.answer(0, Outcome::Success);
    assert!(world.engine.awaits_answers());
    assert_eq!(world.unstored.len(), 1, "how far the first is has to be stored");
    // The second takes too long: another member has it next, and the answer means nothing here.
    world.engine.clear(world.now);
    assert!(world.engine.is_empty() && !world.engine.awaits_answers());
    world.keep(usize::MAX);
    world.answer(0, Outcome::Success);
    assert!(world.unstored.is_empty());
    // Back in charge, with the hosts that stayed.
    for (name, stored) in world.store.clone() {
        world.put(name, stored);
    }
    let names: Vec<&str> = world.under_way.iter().map(|(_, _, name, _)| &**name).collect();
    assert_eq!(names, ["job2", "job3"]);
}

#[test]
fn versions_tell_which_job_is_meant() {
    let mut world = World::new();
    world.schedule(1, 0, Kind::Once(1000));
    let stored = world.store["job1"].clone();
    world.engine.deleted("job1", stored.revision - 1);
    assert_eq!(world.engine.len(), 1, "it was stored after that");
    world.pass(1000);
    world.connect(0);
    let (host, trigger, name, _) = world.under_way[0].clone();
    // Told once more, it is the same job, and its trigger stays under way.
    world.put(name, stored.clone());
    assert_eq!(world.under_way.len(), 1);
    world.engine.gone(host, trigger);
    assert!(world.engine.is_empty(), "the store has it no more");
    world.engine.deleted("job1", stored.revision);
    assert!(world.engine.is_empty());
}

#[test]
fn a_store_that_hangs_holds_up_what_is_due_until_it_goes_on() {
    let mut world = World::new();
    world.connect(0);
    for job in 0..12 {
        world.schedule(job, 0, Kind::Once(10));
    }
    world.pass(10);
    // Every answer is taken, and none is stored.
    while let Some((host, trigger, ..)) = world.under_way.pop() {
        world
            .engine
            .answer(world.now, host, trigger, Outcome::Success)
            .unwrap();
        world.collect();
    }
    assert!(world.unstored.len() < LIMIT + UNSTORED, "{:?}", world.unstored);
    assert!(world.engine.waits_for_store());
    let stored = world.unstored.len();
    world.keep(1);
    assert_eq!(world.under_way.len(), usize::from(stored - 1 < UNSTORED));
    world.keep(usize::MAX);
    assert_eq!(world.under_way.len(), LIMIT);
    assert!(!world.engine.waits_for_store());
    world.complete();
}
