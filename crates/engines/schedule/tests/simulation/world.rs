//! The engine's environment: a clock, a persistent store, and hosts. Each method checks the engine's
//! actions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_schedule::engine::{
    self, Action, Engine, Host, HostId, Limits, Name, Target, TriggerId, Version,
};
use outrigger_schedule::job::{FailurePolicy, Job, Outcome, Progress, Request};

pub(crate) const APPS: usize = 3;
pub(crate) const LIMIT: usize = 4;
/// Maximum number of unstored actions while dispatching.
pub(crate) const UNSTORED: usize = 3;
const LIMITS: Limits = Limits {
    in_flight: LIMIT,
    unstored: UNSTORED,
};

#[derive(Debug, Clone)]
pub(crate) enum Step {
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
    /// Changes the clock: back by up to two hours, or ahead.
    Jump(i64),
    /// Crashes the process: loses everything not stored, and all streams. `stored` is the number of waiting
    /// actions that were stored before.
    Crash {
        stored: usize,
    },
    /// Stores everything that waits.
    Store,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Once(u32),
    Every { seconds: u8, repeats: u8 },
}

impl Kind {
    /// The job of this kind, scheduled at `now`.
    pub(crate) fn job(self, now: Timestamp) -> Job {
        let (due, every);
        let request = match self {
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
        Job::new(&request, now).unwrap()
    }
}

pub(crate) fn target(app: usize) -> Target {
    Target::App {
        namespace: format!("ns{}", app % 2).into(),
        id: format!("app{app}").into(),
    }
}

/// State that survives a crash.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) app: usize,
    pub(crate) revision: u64,
    pub(crate) job: Job,
    pub(crate) progress: Progress,
}

/// A trigger in flight, whether or not the engine waits for its answer.
#[derive(Debug, Clone)]
pub(crate) struct UnderWay {
    pub(crate) host: HostId,
    pub(crate) trigger: TriggerId,
    pub(crate) name: Name,
    pub(crate) due: Timestamp,
    /// Revision of the job, to distinguish jobs of the same name.
    pub(crate) revision: u64,
}

/// Statistics of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) acknowledged: usize,
    /// Ticks sent, including repeated ones.
    pub(crate) fired: usize,
    /// Ticks sent late.
    pub(crate) late: usize,
    pub(crate) lost: usize,
    pub(crate) early: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.fired += other.fired;
        self.late += other.late;
        self.lost += other.lost;
        self.early += other.early;
    }

    /// Prints the row for `conformance/evidence.md`; no tick may be lost or early.
    pub(crate) fn report(self, fault: &str) {
        let Self {
            acknowledged,
            fired,
            late,
            lost,
            early,
        } = self;
        println!(
            "tally | {fault} | acknowledged {acknowledged} | fired {fired} | late {late} | lost {lost} | early {early}"
        );
        assert!(acknowledged > 0 && fired > 0, "{fault}: nothing was tried");
        assert_eq!((lost, early), (0, 0), "{fault}");
    }
}

pub(crate) struct World {
    pub(crate) now: Timestamp,
    /// The latest time the clock has shown: ticks due by then may be sent.
    latest: Timestamp,
    pub(crate) store: BTreeMap<Name, Stored>,
    pub(crate) engine: Engine,
    pub(crate) hosts: Vec<(HostId, usize)>,
    pub(crate) under_way: Vec<UnderWay>,
    pub(crate) unstored: Vec<Action>,
    pub(crate) revision: u64,
    /// Ticks whose success is stored, by job and revision.
    done: HashMap<(Name, u64), Vec<Timestamp>>,
    /// Successful ticks that are not stored yet.
    succeeded: HashMap<(Name, u64), Timestamp>,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn new() -> Self {
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
            tally: Tally::default(),
        }
    }

    pub(crate) fn schedule(&mut self, job: u8, app: usize, kind: Kind) {
        let name: Name = format!("job{job}").into();
        self.revision += 1;
        let stored = Stored {
            app,
            revision: self.revision,
            job: kind.job(self.now),
            progress: Progress::default(),
        };
        // A job is acknowledged once it is stored, so store it first.
        self.store.insert(name.clone(), stored.clone());
        self.tally.acknowledged += 1;
        self.put(name, stored);
    }

    pub(crate) fn put(&mut self, name: Name, stored: Stored) {
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
        let stored = engine::Stored {
            name,
            target: target(app),
            key: None,
            version,
            job,
            progress,
        };
        self.engine.put(self.now, stored);
        self.collect();
    }

    /// Checks and queues the engine's actions.
    pub(crate) fn collect(&mut self) {
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
                    // The answer to a replaced job is ignored, so its trigger may still be in flight.
                    let twice = self
                        .under_way
                        .iter()
                        .any(|other| other.name == *name && other.revision == version.revision);
                    assert!(!twice, "{name} is under way twice");
                    self.tally.fired += 1;
                    self.tally.late += usize::from(*due < self.now);
                    self.under_way.push(UnderWay {
                        host: *host,
                        trigger: *trigger,
                        name: name.clone(),
                        due: *due,
                        revision: version.revision,
                    });
                }
                Action::Undelivered { .. } => {}
                _ => self.unstored.push(action),
            }
        }
        assert!(self.engine.in_flight() <= LIMIT);
    }

    pub(crate) fn keep(&mut self, count: usize) {
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

    pub(crate) fn answer(&mut self, at: usize, outcome: Outcome) {
        if self.under_way.is_empty() {
            return;
        }
        let UnderWay {
            host,
            trigger,
            name,
            due,
            revision,
        } = self.under_way.swap_remove(at % self.under_way.len());
        if outcome == Outcome::Success
            && self
                .store
                .get(&name)
                .is_some_and(|stored| stored.revision == revision)
        {
            // One answer at a time: store the previous one first.
            self.keep(usize::MAX);
            self.succeeded.insert((name, revision), due);
        }
        self.engine.answer(self.now, host, trigger, outcome).unwrap();
        self.collect();
    }

    pub(crate) fn disconnect(&mut self, at: usize) {
        if self.hosts.is_empty() {
            return;
        }
        let (host, _) = self.hosts.swap_remove(at % self.hosts.len());
        self.under_way.retain(|other| other.host != host);
        self.engine.disconnect(host);
        self.collect();
    }

    pub(crate) fn connect(&mut self, app: usize) {
        let Target::App { namespace, id } = target(app) else {
            unreachable!("jobs of apps only");
        };
        // The engine names the host before it sends anything to it.
        let before = self.hosts.len();
        let host = self.engine.connect(Host::new(&namespace, &id, true, &[]));
        self.hosts.insert(before, (host, app));
        self.collect();
    }

    pub(crate) fn crash(&mut self, stored: usize) {
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

    pub(crate) fn pass(&mut self, millis: u64) {
        self.jump(i64::try_from(millis).unwrap());
    }

    pub(crate) fn jump(&mut self, millis: i64) {
        self.now = self
            .now
            .checked_add(jiff::SignedDuration::from_millis(millis))
            .unwrap();
        self.latest = self.latest.max(self.now);
        self.engine.advance(self.now);
        self.collect();
    }

    /// Answers everything sent and stores the results. Returns the ticks in order. None may be due later
    /// than now.
    pub(crate) fn done(&mut self) -> Vec<(String, Timestamp)> {
        let mut ticks = Vec::new();
        while let Some(UnderWay { name, due, .. }) = self.under_way.first() {
            assert!(*due <= self.now, "{name} is early");
            ticks.push((name.to_string(), *due));
            self.answer(0, Outcome::Success);
            self.keep(usize::MAX);
        }
        ticks
    }

    pub(crate) fn step(&mut self, step: Step) {
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

    pub(crate) fn keep_stored_and_engine_alike(&mut self) {
        if self.unstored.is_empty() {
            assert_eq!(self.engine.len(), self.store.len(), "a job was lost, or made up");
        }
    }

    /// With hosts for every app that accept everything, every job ends.
    pub(crate) fn complete(mut self) -> Tally {
        for app in 0..APPS {
            self.connect(app);
        }
        for _ in 0..10_000 {
            if self.store.is_empty() {
                return self.tally;
            }
            if self.under_way.is_empty() {
                self.keep(usize::MAX);
                let Some(next) = self.engine.wake_at() else {
                    assert!(
                        self.store.is_empty(),
                        "jobs are stored, and none will ever be due"
                    );
                    return self.tally;
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
