//! Jobs in, deliveries out; answers in, changes to store out.
//!
//! The engine holds the jobs that this member looks after ([`crate::shard`]), without their payloads, and the hosts
//! that take triggers. Whoever drives it stores what it says, sends what it says, and tells it what happened; after a
//! crash a new engine is filled from the store and goes on. A tick is delivered at least once: it is done when the
//! [`Action::Save`] that follows its answer is stored.

mod hosts;
mod ready;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::interner::Interner;
use crate::job::{Job, Next, Outcome, Progress};
use crate::wheel::{Handle, Wheel};
use hosts::Hosts;
pub use hosts::{Host, HostId};
use ready::{Ready, Sequence};

/// To whom a job's ticks go. Hosts say which targets they take.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The hosts of an app.
    App {
        /// Where the app lives.
        namespace: Arc<str>,
        /// App id.
        id: Arc<str>,
    },
    /// The hosts of an actor type.
    ActorType {
        /// Where the type lives.
        namespace: Arc<str>,
        /// The actor type.
        name: Arc<str>,
    },
}

impl Target {
    /// The namespace, between which ticks are shared out fairly.
    pub fn namespace(&self) -> &Arc<str> {
        match self {
            Self::App { namespace, .. } | Self::ActorType { namespace, .. } => namespace,
        }
    }
}

/// A job's name in the store: unique, and made of namespace, target and name.
pub type Name = Arc<str>;

/// What a trigger is called on its host's stream: 1, 2, 3, ...
pub type TriggerId = u64;

/// Which of the jobs that had a name one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Version {
    /// The store's, when the job was written.
    pub revision: u64,
    /// The number that decides who looks after it ([`crate::shard`]).
    pub partition: u64,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a tick to a host, with the payload from the store.
    Deliver {
        /// The host that gets the trigger.
        host: HostId,
        /// Id of the trigger, which the answer names.
        trigger: TriggerId,
        /// Name of the job.
        name: Name,
        /// Which version of it: the payload of another one is not sent.
        version: Version,
        /// When it was due.
        due: Timestamp,
    },
    /// Store how far a job is, unless the stored job is of another version.
    Save {
        /// Name of the job.
        name: Name,
        /// The version that the progress belongs to.
        version: Version,
        /// The progress of the job, to be stored.
        progress: Progress,
    },
    /// Nothing but counting: no host takes the job's tick, so it waits for one that does.
    Undelivered {
        /// Name of the job.
        name: Name,
    },
    /// Delete a job that is over, unless the stored job is of another version.
    Delete {
        /// Name of the job.
        name: Name,
        /// The version that is over.
        version: Version,
    },
}

/// The answer names a trigger that is not under way on that host; the contract closes such a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("trigger {0} is not in flight on this stream")]
pub struct UnknownTrigger(pub TriggerId);

/// A job under the engine's care.
#[derive(Debug)]
struct Entry {
    target: Arc<Target>,
    job: Job,
    progress: Progress,
    version: Version,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the wheel.
    Waiting { tick: Timestamp, handle: Handle },
    /// Due, and waiting for its turn.
    Due { tick: Timestamp, place: Sequence },
    /// With a host.
    Sent { tick: Timestamp },
    /// Due, and no host takes it: waits for one.
    Staged { tick: Timestamp },
}

impl State {
    fn tick(self) -> Timestamp {
        match self {
            Self::Waiting { tick, .. }
            | Self::Due { tick, .. }
            | Self::Sent { tick }
            | Self::Staged { tick } => tick,
        }
    }
}

/// The most triggers that may be under way.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Triggers without an answer, over all hosts. An app or actor type may have as many as it leaves free, and where
    /// there are hosts of several namespaces a namespace may, and an app half of that: apps that never answer hold up
    /// nobody else.
    pub in_flight: usize,
    /// [`Action::Save`] and [`Action::Delete`] that are not stored: from here on nothing is sent, so that no more than
    /// these and one for each trigger under way ever wait for the store.
    pub unstored: usize,
}

/// The jobs of this member, the hosts that are connected, and the triggers under way. Without I/O, tasks or a clock.
#[derive(Debug)]
pub struct Engine {
    /// Boxed: half of a map's places may be empty.
    jobs: HashMap<Name, Box<Entry>>,
    targets: Interner<Target, Target>,
    wheel: Wheel<Name>,
    ready: Ready,
    hosts: Hosts,
    staged: HashMap<Arc<Target>, BTreeSet<Name>>,
    limits: Limits,
    /// What was given out to be stored, and is not stored as far as it is known here.
    unstored: usize,
    /// Nothing is sent.
    is_paused: bool,
    actions: Vec<Action>,
}

/// Milliseconds for the wheel, rounded up: nothing is ever early.
fn millis(time: Timestamp) -> u64 {
    let nanos = time.as_nanosecond().max(0);
    u64::try_from((nanos + 999_999) / 1_000_000).unwrap_or(u64::MAX)
}

/// Milliseconds that have passed entirely.
fn passed(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond().max(0) / 1_000_000).unwrap_or(u64::MAX)
}

impl Engine {
    /// An engine without jobs. Each limit is 1 at least.
    pub fn new(now: Timestamp, limits: Limits) -> Self {
        Self {
            jobs: HashMap::new(),
            targets: Interner::default(),
            wheel: Wheel::new(passed(now)),
            ready: Ready::default(),
            hosts: Hosts::default(),
            staged: HashMap::new(),
            limits: Limits {
                in_flight: limits.in_flight.max(1),
                unstored: limits.unstored.max(1),
            },
            unstored: 0,
            is_paused: false,
            actions: Vec::new(),
        }
    }

    /// What has to be done since the last call, in this order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Number of jobs.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Triggers under way.
    pub fn in_flight(&self) -> usize {
        self.hosts.in_flight()
    }

    /// Whether the answer to some trigger is still waited for.
    pub fn awaits_answers(&self) -> bool {
        self.hosts.awaits()
    }

    /// Says how much of what was given out is not stored; what waits for the store goes on if there is room again.
    pub fn unstored(&mut self, count: usize) {
        self.unstored = count;
        self.dispatch();
    }

    /// Whether jobs are due that are not sent before more is stored.
    pub fn waits_for_store(&self) -> bool {
        self.unstored >= self.limits.unstored && !self.ready.is_empty()
    }

    /// When to call [`Engine::advance`] next, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let millis = i64::try_from(self.wheel.next()?).ok()?;
        Timestamp::from_millisecond(millis).ok()
    }

    /// Takes a job that is stored, new or changed; the one of that name before it is forgotten, and so is the answer
    /// to its trigger. A version that is known already changes nothing.
    pub fn put(
        &mut self,
        now: Timestamp,
        name: Name,
        target: Target,
        version: Version,
        job: Job,
        progress: Progress,
    ) {
        if self.jobs.get(&name).is_some_and(|entry| entry.version == version) {
            return;
        }
        self.remove(&name);
        let Some(tick) = job.tick(&progress) else {
            // It was over before this member could tell the store.
            self.store(Action::Delete { name, version });
            return;
        };
        let Ok(target) = self
            .targets
            .get(target, |target| Ok::<_, Infallible>(target.clone()));
        let handle = self.wheel.insert(millis(tick), Arc::clone(&name));
        let entry = Entry {
            target,
            job,
            progress,
            version,
            state: State::Waiting { tick, handle },
        };
        self.jobs.insert(name, Box::new(entry));
        self.advance(now);
    }

    /// Forgets a job that was deleted when the store had this revision; one that was stored later stays.
    pub fn deleted(&mut self, name: &str, revision: u64) {
        if self
            .jobs
            .get(name)
            .is_some_and(|entry| entry.version.revision <= revision)
        {
            self.remove(name);
        }
    }

    /// Forgets a job.
    pub fn remove(&mut self, name: &str) {
        let Some(entry) = self.jobs.remove(name) else {
            return;
        };
        match entry.state {
            State::Waiting { handle, .. } => {
                self.wheel.remove(handle);
            }
            State::Due { place, .. } => self.ready.remove(&entry.target, place),
            State::Sent { .. } => self.hosts.forget(name),
            State::Staged { .. } => {
                if let Some(names) = self.staged.get_mut(&entry.target) {
                    names.remove(name);
                    if names.is_empty() {
                        self.staged.remove(&entry.target);
                    }
                }
            }
        }
    }

    /// Sends nothing from now on, until [`Engine::clear`]: somebody else is about to look after these jobs. Answers
    /// are taken as before.
    pub fn pause_dispatch(&mut self) {
        self.is_paused = true;
    }

    /// Forgets all jobs, and goes on; hosts stay connected, and their answers to what is under way mean nothing.
    pub fn clear(&mut self, now: Timestamp) {
        self.hosts.forget_all();
        self.jobs = HashMap::new();
        self.wheel = Wheel::new(passed(now));
        self.ready.forget_due();
        self.staged = HashMap::new();
        self.is_paused = false;
    }

    /// Delivers what is due at `now`. A clock that was set back counts: what is due by its new time alone is
    /// delivered, and jobs that come in by that time do not wait until it shows the old one again.
    pub fn advance(&mut self, now: Timestamp) {
        if passed(now) < self.wheel.now() {
            self.wheel.rewind(passed(now));
        }
        let Self {
            wheel, jobs, ready, ..
        } = self;
        wheel.advance(passed(now), |name| {
            // What is in the wheel is a job's, until the job takes it out.
            if let Some(entry) = jobs.get_mut(&name) {
                entry.state = State::Due {
                    tick: entry.state.tick(),
                    place: ready.push(&entry.target, name),
                };
            }
        });
        self.dispatch();
    }

    /// A host that takes triggers from now on.
    pub fn connect(&mut self, host: Host) -> HostId {
        for target in host.targets() {
            for name in self.staged.remove(target).into_iter().flatten() {
                self.due(name);
            }
        }
        let id = self.hosts.add(host);
        self.dispatch();
        id
    }

    /// A host is gone. What it has not answered goes to another one; that is no failed attempt.
    pub fn disconnect(&mut self, host: HostId) {
        for (target, name) in self.hosts.remove(host) {
            self.ready.ended(&target);
            if let Some(name) = name {
                self.due(name);
            }
        }
        self.dispatch();
    }

    /// A trigger was not sent, because the store has no such version of its job any more. Whatever has taken its place
    /// comes by [`Engine::put`].
    pub fn discard_trigger(&mut self, host: HostId, trigger: TriggerId) {
        if let Ok(Some(name)) = self.finish(host, trigger) {
            self.jobs.remove(&name);
        }
        self.dispatch();
    }

    /// A host's answer to a trigger.
    ///
    /// # Errors
    /// [`UnknownTrigger`] when that trigger is not under way there.
    pub fn answer(
        &mut self,
        now: Timestamp,
        host: HostId,
        trigger: TriggerId,
        outcome: Outcome,
    ) -> Result<(), UnknownTrigger> {
        // `None`: the job was changed or deleted meanwhile; nobody waits for this answer.
        if let Some(name) = self.finish(host, trigger)? {
            self.answered(now, name, outcome);
        }
        self.dispatch();
        Ok(())
    }

    /// Ends a trigger; of which job, unless that was changed or deleted meanwhile.
    fn finish(&mut self, host: HostId, trigger: TriggerId) -> Result<Option<Name>, UnknownTrigger> {
        let (target, name) = self.hosts.finish(host, trigger)?;
        self.ready.ended(&target);
        Ok(name)
    }

    fn answered(&mut self, now: Timestamp, name: Name, outcome: Outcome) {
        let Some(entry) = self.jobs.get_mut(&name) else {
            return;
        };
        let tick = entry.state.tick();
        let next = entry.job.after(&mut entry.progress, tick, outcome);
        let (version, progress) = (entry.version, entry.progress);
        if next == Next::Over {
            self.jobs.remove(&name);
            self.store(Action::Delete { name, version });
            return;
        }
        self.store(Action::Save {
            name: Arc::clone(&name),
            version,
            progress,
        });
        match next {
            Next::Tick(tick) => self.await_tick(name, tick, tick),
            Next::Retry(after) => self.await_tick(name, tick, later(now, after)),
            Next::Over => {}
        }
        self.advance(now);
    }

    fn store(&mut self, action: Action) {
        self.unstored += 1;
        self.actions.push(action);
    }

    /// Puts a job into the wheel until `at`, for a tick that was due at `tick`.
    fn await_tick(&mut self, name: Name, tick: Timestamp, at: Timestamp) {
        let handle = self.wheel.insert(millis(at), Arc::clone(&name));
        if let Some(entry) = self.jobs.get_mut(&name) {
            entry.state = State::Waiting { tick, handle };
        }
    }

    /// Due once more, for whichever host there is.
    fn due(&mut self, name: Name) {
        if let Some(entry) = self.jobs.get_mut(&name) {
            entry.state = State::Due {
                tick: entry.state.tick(),
                place: self.ready.push(&entry.target, name),
            };
        }
    }

    /// Sends what is due while there is room, namespace by namespace and target by target in turn.
    fn dispatch(&mut self) {
        while !self.is_paused && self.unstored < self.limits.unstored {
            let free = self.limits.in_flight.saturating_sub(self.hosts.in_flight());
            let Some(name) = self.ready.pop(free, self.hosts.namespaces() <= 1) else {
                return;
            };
            let Some(entry) = self.jobs.get_mut(&name) else {
                continue;
            };
            let tick = entry.state.tick();
            match self.hosts.send(&entry.target, &name) {
                Some((host, trigger)) => {
                    entry.state = State::Sent { tick };
                    self.ready.sent(&entry.target);
                    self.actions.push(Action::Deliver {
                        host,
                        trigger,
                        name,
                        version: entry.version,
                        due: tick,
                    });
                }
                None => {
                    entry.state = State::Staged { tick };
                    self.actions.push(Action::Undelivered {
                        name: Arc::clone(&name),
                    });
                    self.staged
                        .entry(Arc::clone(&entry.target))
                        .or_default()
                        .insert(name);
                }
            }
        }
    }
}

/// `now` plus a span, as far as the calendar goes.
fn later(now: Timestamp, after: Duration) -> Timestamp {
    now.checked_add(after).unwrap_or(Timestamp::MAX)
}
