//! Limits on triggers in flight, in random orders of events.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use outrigger_schedule::engine::{
    Action, Engine, Host, HostId, Limit, LimitScope, Limits, Name, Stored, Target, TriggerId, Version,
};
use outrigger_schedule::job::{Job, Outcome, Progress, Request};
use outrigger_schedule::shard::Shard;
use proptest::prelude::*;

const TYPES: [&str; 2] = ["workflow", "activity"];
const KEYS: [Option<&str>; 3] = [None, Some("x"), Some("y")];
const MEMBERS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Step {
    /// A job of a type and key becomes due.
    Put(usize, usize),
    Delete(usize),
    /// A host connects, with limits of types and keys.
    Connect(Vec<(usize, usize, usize)>),
    Disconnect(usize),
    Answer(usize),
    /// The number of members changes; this member is one of them.
    Share(usize, usize),
    /// All jobs are read again.
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let limits = prop::collection::vec((0..TYPES.len(), 0..KEYS.len(), 1_usize..6), 0..4);
    prop_oneof![
        8 => (0..TYPES.len(), 0..KEYS.len()).prop_map(|(of, key)| Step::Put(of, key)),
        1 => (0_usize..100).prop_map(Step::Delete),
        2 => limits.prop_map(Step::Connect),
        1 => (0_usize..4).prop_map(Step::Disconnect),
        8 => (0_usize..8).prop_map(Step::Answer),
        1 => (1..=MEMBERS.len(), 0..MEMBERS.len()).prop_map(|(total, own)| Step::Share(total, own)),
        1 => Just(Step::Reset),
    ]
}

fn scope(of: usize, key: usize) -> LimitScope {
    LimitScope {
        target: Arc::new(Target::ActorType {
            namespace: "ns".into(),
            name: TYPES[of].into(),
        }),
        key: KEYS[key].map(|key| Arc::new(key.to_owned())),
    }
}

struct World {
    now: Timestamp,
    engine: Engine,
    jobs: BTreeMap<Name, (usize, usize)>,
    hosts: Vec<(HostId, HashSet<LimitScope>)>,
    /// The newest value of each limit.
    newest: HashMap<LimitScope, usize>,
    shard: Shard,
    under_way: Vec<(HostId, TriggerId, usize, usize)>,
    revision: u64,
    counts: HashMap<LimitScope, usize>,
}

impl World {
    fn new() -> Self {
        let now: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
        let limits = Limits {
            in_flight: 100,
            unstored: 1000,
        };
        Self {
            now,
            engine: Engine::new(now, limits),
            jobs: BTreeMap::new(),
            hosts: Vec::new(),
            newest: HashMap::new(),
            shard: Shard::ALL,
            under_way: Vec::new(),
            revision: 0,
            counts: HashMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Put(of, key) => {
                self.revision += 1;
                let name: Name = format!("job{}", self.revision).into();
                self.jobs.insert(Arc::clone(&name), (of, key));
                self.put(name, of, key);
            }
            Step::Delete(at) => {
                if let Some(name) = self.jobs.keys().nth(at).cloned() {
                    self.jobs.remove(&name);
                    self.engine.remove(&name);
                }
            }
            Step::Connect(limits) => self.connect(&limits),
            Step::Disconnect(at) if at < self.hosts.len() => {
                let (host, _) = self.hosts.remove(at);
                self.under_way.retain(|sent| sent.0 != host);
                self.engine.disconnect(host);
            }
            Step::Answer(at) if at < self.under_way.len() => {
                let (host, trigger, ..) = self.under_way.remove(at);
                self.engine
                    .answer(self.now, host, trigger, Outcome::Success)
                    .unwrap();
            }
            Step::Share(total, own) if own < total => {
                let members = MEMBERS.into_iter().take(total);
                self.shard = Shard::of(MEMBERS[own], members).unwrap();
                self.engine.share(self.shard);
            }
            Step::Reset => {
                self.engine.clear(self.now);
                for (name, (of, key)) in self.jobs.clone() {
                    self.put(name, of, key);
                }
            }
            _ => {}
        }
        self.collect();
    }

    fn put(&mut self, name: Name, of: usize, key: usize) {
        let request = Request {
            due_time: Some("0s"),
            ..Request::default()
        };
        let LimitScope { target, key } = scope(of, key);
        let stored = Stored {
            name,
            target: (*target).clone(),
            key,
            version: Version {
                revision: self.revision,
                partition: 0,
            },
            job: Job::new(&request, self.now).unwrap(),
            progress: Progress::default(),
        };
        self.engine.put(self.now, stored);
        self.collect();
    }

    fn connect(&mut self, limits: &[(usize, usize, usize)]) {
        let limits: Vec<_> = limits
            .iter()
            .map(|&(of, key, most)| Limit {
                scope: scope(of, key),
                most,
            })
            .collect();
        for Limit { scope, most } in &limits {
            self.newest.insert(scope.clone(), *most);
        }
        let scopes = limits.iter().map(|limit| limit.scope.clone()).collect();
        let host = Host::new("ns", "app", false, &TYPES).limited(limits);
        self.hosts.push((self.engine.connect(host), scopes));
    }

    fn in_flight(&self, scope: &LimitScope) -> usize {
        let counts = |&&(_, _, of, key): &&(HostId, TriggerId, usize, usize)| {
            let of = self::scope(of, key);
            of.target == scope.target && (scope.key.is_none() || scope.key == of.key)
        };
        self.under_way.iter().filter(counts).count()
    }

    /// Checks each delivery against the limits that hold now.
    fn collect(&mut self) {
        for action in self.engine.take_actions() {
            match action {
                Action::Deliver {
                    host, trigger, name, ..
                } => {
                    let (of, key) = self.jobs[&name];
                    for scope in [scope(of, 0), scope(of, key)] {
                        if self.hosts.iter().any(|(_, scopes)| scopes.contains(&scope)) {
                            let most = self.shard.part_of(self.newest[&scope]);
                            assert!(self.in_flight(&scope) < most, "{scope:?} is full");
                        }
                    }
                    self.under_way.push((host, trigger, of, key));
                }
                Action::Delete { name, .. } => {
                    self.jobs.remove(&name);
                }
                _ => {}
            }
        }
        for (scope, counts) in self.engine.take_limit_counts() {
            match counts {
                Some(counts) => self.counts.insert(scope, counts.in_flight),
                None => self.counts.remove(&scope),
            };
        }
        for (scope, shown) in &self.counts {
            assert_eq!(*shown, self.in_flight(scope), "{scope:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Invariant: in any order of events, no limit is exceeded, and no job waits for a limit with room.
    #[test]
    fn limits_hold_and_release_everything(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.step(Step::Connect(vec![(0, 0, 2), (0, 1, 1), (1, 2, 1)]));
        while !world.under_way.is_empty() {
            world.step(Step::Answer(0));
        }
        prop_assert!(world.jobs.is_empty(), "{:?}", world.jobs);
        while !world.hosts.is_empty() {
            world.step(Step::Disconnect(0));
        }
        prop_assert!(world.counts.is_empty(), "{:?}", world.counts);
    }
}
