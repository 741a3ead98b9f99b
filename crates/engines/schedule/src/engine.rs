//! The scheduling engine: jobs in, deliveries out; answers in, state changes to store out.
//!
//! The engine holds the jobs of this member's shard ([`crate::shard`]) without their payloads, and the
//! hosts that receive triggers. The driver executes the engine's actions and reports their results. After a
//! crash, a new engine is filled from the store. Delivery is at least once: a tick is done when the
//! [`Action::Save`] that follows its answer is stored.

mod hosts;
mod limits;
mod line;
mod ready;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::interner::Interner;
use crate::job::{Job, Next, Outcome, Progress};
use crate::shard::Shard;
use crate::wheel::{Handle, Wheel};
pub use hosts::{Host, HostId};
use hosts::{Hosts, Unfinished};
use limits::AnnouncedLimits;
pub use limits::{Key, Limit, LimitCounts, LimitScope};
use ready::{Ready, Sequence};

/// The recipient of a job's ticks. Hosts declare which targets they serve.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The hosts of an app.
    App {
        /// The app's namespace.
        namespace: Arc<str>,
        /// App ID.
        id: Arc<str>,
    },
    /// The hosts of an actor type.
    ActorType {
        /// The actor type's namespace.
        namespace: Arc<str>,
        /// The actor type.
        name: Arc<str>,
    },
}

impl Target {
    /// The namespace; ticks are distributed fairly among namespaces.
    pub fn namespace(&self) -> &Arc<str> {
        match self {
            Self::App { namespace, .. } | Self::ActorType { namespace, .. } => namespace,
        }
    }
}

/// A job's unique key in the store, built from namespace, target and name.
pub type Name = Arc<str>;

/// ID of a trigger on its host's stream: 1, 2, 3, ...
pub type TriggerId = u64;

/// Distinguishes successive jobs with the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Version {
    /// The store's revision at which the job was written.
    pub revision: u64,
    /// The number that selects its member ([`crate::shard`]).
    pub partition: u64,
}

/// An action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a tick to a host, with the payload from the store.
    Deliver {
        /// The host that gets the trigger.
        host: HostId,
        /// ID of the trigger, which the answer refers to.
        trigger: TriggerId,
        /// Name of the job.
        name: Name,
        /// The version whose payload to send.
        version: Version,
        /// Due time of the tick.
        due: Timestamp,
    },
    /// Store a job's progress, unless the stored job has another version.
    Save {
        /// Name of the job.
        name: Name,
        /// The version that the progress belongs to.
        version: Version,
        /// The progress to store.
        progress: Progress,
    },
    /// For metrics only: no host serves the job's target, so its tick is staged.
    Undelivered {
        /// Name of the job.
        name: Name,
    },
    /// Delete a completed job, unless the stored job has another version.
    Delete {
        /// Name of the job.
        name: Name,
        /// The completed version.
        version: Version,
    },
}

/// The answer names a trigger that is not in flight on that host; by the contract, the stream is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("trigger {0} is not in flight on this stream")]
pub struct UnknownTrigger(pub TriggerId);

/// A stored job, new or changed.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Name of the job.
    pub name: Name,
    /// The recipient of its ticks.
    pub target: Target,
    /// The key by which limits count its triggers.
    pub key: Option<Key>,
    /// Its version in the store.
    pub version: Version,
    /// Its due times.
    pub job: Job,
    /// Its stored progress.
    pub progress: Progress,
}

/// A job held by the engine.
#[derive(Debug)]
struct Entry {
    target: Arc<Target>,
    key: Option<Key>,
    job: Job,
    progress: Progress,
    version: Version,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the timing wheel.
    Waiting { tick: Timestamp, handle: Handle },
    /// Due, and queued.
    Due { tick: Timestamp, place: Sequence },
    /// In flight on a host.
    Sent { tick: Timestamp },
    /// Due, but no host serves its target.
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

/// Limits of the engine.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Triggers in flight, over all hosts. An app or actor type may use as many places as it leaves free.
    /// With hosts of several namespaces, that applies to each namespace, and an app may use half of its
    /// namespace's places. Unresponsive apps thus cannot block the others.
    pub in_flight: usize,
    /// Pending [`Action::Save`] and [`Action::Delete`]. Above it, dispatching stops, so at most this number
    /// plus one per trigger in flight ever wait for the store.
    pub unstored: usize,
}

/// The jobs of this member, the connected hosts, and the triggers in flight. Has no I/O, tasks or clock.
#[derive(Debug)]
pub struct Engine {
    /// Boxed: half of a map's slots may be empty.
    jobs: HashMap<Name, Box<Entry>>,
    targets: Interner<Target, Target>,
    wheel: Wheel<Name>,
    ready: Ready,
    hosts: Hosts,
    announced: AnnouncedLimits,
    staged: HashMap<Arc<Target>, BTreeSet<Name>>,
    limits: Limits,
    /// Actions to store that the driver has not confirmed yet.
    unstored: usize,
    /// Dispatching is paused.
    is_paused: bool,
    actions: Vec<Action>,
}

/// Milliseconds for the wheel, rounded up so that no tick is early.
fn millis(time: Timestamp) -> u64 {
    let nanos = time.as_nanosecond().max(0);
    u64::try_from((nanos + 999_999) / 1_000_000).unwrap_or(u64::MAX)
}

/// Milliseconds, rounded down.
fn passed(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond().max(0) / 1_000_000).unwrap_or(u64::MAX)
}

impl Engine {
    /// An engine without jobs. Each limit is at least 1.
    pub fn new(now: Timestamp, limits: Limits) -> Self {
        Self {
            jobs: HashMap::new(),
            targets: Interner::default(),
            wheel: Wheel::new(passed(now)),
            ready: Ready::default(),
            hosts: Hosts::default(),
            announced: AnnouncedLimits::default(),
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

    /// Takes the actions since the last call, in order.
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

    /// Number of triggers in flight.
    pub fn in_flight(&self) -> usize {
        self.hosts.in_flight()
    }

    /// Whether a trigger is in flight.
    pub fn awaits_answers(&self) -> bool {
        self.hosts.awaits()
    }

    /// Reports the number of actions not stored yet; dispatching continues if there is room.
    pub fn unstored(&mut self, count: usize) {
        self.unstored = count;
        self.dispatch();
    }

    /// Whether due jobs wait until more is stored.
    pub fn waits_for_store(&self) -> bool {
        self.unstored >= self.limits.unstored && !self.ready.is_empty()
    }

    /// When to call [`Engine::advance`] next, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let millis = i64::try_from(self.wheel.next()?).ok()?;
        Timestamp::from_millisecond(millis).ok()
    }

    /// Adds a job. It replaces an earlier job of the same name, whose trigger's answer will be ignored. A
    /// known version changes nothing.
    pub fn put(&mut self, now: Timestamp, stored: Stored) {
        let Stored {
            name,
            target,
            key,
            version,
            job,
            progress,
        } = stored;
        if self.jobs.get(&name).is_some_and(|entry| entry.version == version) {
            return;
        }
        self.remove(&name);
        let Some(tick) = job.tick(&progress) else {
            // It was over before this member could store that.
            self.store(Action::Delete { name, version });
            return;
        };
        let Ok(target) = self
            .targets
            .get(target, |target| Ok::<_, Infallible>(target.clone()));
        let handle = self.wheel.insert(millis(tick), Arc::clone(&name));
        let entry = Entry {
            target,
            key,
            job,
            progress,
            version,
            state: State::Waiting { tick, handle },
        };
        self.jobs.insert(name, Box::new(entry));
        self.advance(now);
    }

    /// Removes a job that was deleted at this revision of the store; a job stored later stays.
    pub fn deleted(&mut self, name: &str, revision: u64) {
        if self
            .jobs
            .get(name)
            .is_some_and(|entry| entry.version.revision <= revision)
        {
            self.remove(name);
        }
    }

    /// Removes a job.
    pub fn remove(&mut self, name: &str) {
        let Some(entry) = self.jobs.remove(name) else {
            return;
        };
        match entry.state {
            State::Waiting { handle, .. } => {
                self.wheel.remove(handle);
            }
            State::Due { place, .. } => self.ready.remove(&entry.target, entry.key.as_ref(), place),
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

    /// Pauses dispatching until [`Engine::clear`], because another member is about to take over these jobs.
    /// Answers are still accepted.
    pub fn pause_dispatch(&mut self) {
        self.is_paused = true;
    }

    /// Removes all jobs and resumes dispatching. Hosts stay connected, and answers to triggers in flight
    /// are ignored.
    pub fn clear(&mut self, now: Timestamp) {
        self.hosts.forget_all();
        self.jobs = HashMap::new();
        self.wheel = Wheel::new(passed(now));
        self.ready.forget_due();
        self.staged = HashMap::new();
        self.is_paused = false;
    }

    /// Delivers what is due at `now`. If the clock was set back, only jobs due by the new time are
    /// delivered, and jobs added later do not wait for the old time.
    pub fn advance(&mut self, now: Timestamp) {
        if passed(now) < self.wheel.now() {
            self.wheel.rewind(passed(now));
        }
        let Self {
            wheel, jobs, ready, ..
        } = self;
        wheel.advance(passed(now), |name| {
            // An entry in the wheel belongs to a job until the job removes it.
            if let Some(entry) = jobs.get_mut(&name) {
                entry.state = State::Due {
                    tick: entry.state.tick(),
                    place: ready.push(&entry.target, entry.key.as_ref(), name),
                };
            }
        });
        self.dispatch();
    }

    /// Connects a host.
    pub fn connect(&mut self, mut host: Host) -> HostId {
        let limits = std::mem::take(&mut host.limits);
        let staged = host
            .targets()
            .iter()
            .filter_map(|target| self.staged.remove(target));
        let staged: Vec<_> = staged.flatten().collect();
        let id = self.hosts.add(host);
        let limits = self.announced.announce(id, limits);
        self.limit(limits);
        for name in staged {
            self.due(name);
        }
        self.dispatch();
        id
    }

    /// Sets this member's place in its group, which decides its shares of the limits.
    pub fn share(&mut self, shard: Shard) {
        let limits = self.announced.share(shard);
        self.limit(limits);
        self.dispatch();
    }

    fn limit(&mut self, limits: Vec<(LimitScope, usize)>) {
        for (scope, most) in limits {
            self.ready.limit(&scope, Some(most));
        }
    }

    /// The limits whose counts changed since the last call; without counts, the limit was removed.
    pub fn take_limit_counts(&mut self) -> Vec<(LimitScope, Option<LimitCounts>)> {
        self.ready.take_limit_counts()
    }

    /// Disconnects a host. Its unanswered triggers are redelivered to another host without counting a
    /// failed attempt.
    pub fn disconnect(&mut self, host: HostId) {
        for scope in self.announced.withdraw(host) {
            self.ready.limit(&scope, None);
        }
        for Unfinished { target, key, name } in self.hosts.remove(host) {
            self.ready.ended(&target, key.as_ref());
            if let Some(name) = name {
                self.due(name);
            }
        }
        self.dispatch();
    }

    /// Drops a trigger that could not be sent, because the store no longer has this version of the job. The
    /// replacement arrives by [`Engine::put`].
    pub fn discard_trigger(&mut self, host: HostId, trigger: TriggerId) {
        if let Ok(Some(name)) = self.finish(host, trigger) {
            self.jobs.remove(&name);
        }
        self.dispatch();
    }

    /// Processes a host's answer to a trigger.
    ///
    /// # Errors
    /// [`UnknownTrigger`] if that trigger is not in flight there.
    pub fn answer(
        &mut self,
        now: Timestamp,
        host: HostId,
        trigger: TriggerId,
        outcome: Outcome,
    ) -> Result<(), UnknownTrigger> {
        // `None`: the job was changed or deleted, so the answer is ignored.
        if let Some(name) = self.finish(host, trigger)? {
            self.answered(now, name, outcome);
        }
        self.dispatch();
        Ok(())
    }

    /// Ends a trigger. Returns its job, unless that was changed or deleted.
    fn finish(&mut self, host: HostId, trigger: TriggerId) -> Result<Option<Name>, UnknownTrigger> {
        let Unfinished { target, key, name } = self.hosts.finish(host, trigger)?;
        self.ready.ended(&target, key.as_ref());
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

    /// Queues the current tick again, for any host.
    fn due(&mut self, name: Name) {
        if let Some(entry) = self.jobs.get_mut(&name) {
            entry.state = State::Due {
                tick: entry.state.tick(),
                place: self.ready.push(&entry.target, entry.key.as_ref(), name),
            };
        }
    }

    /// Dispatches due ticks while there is room and limits permit, round robin by namespace and target.
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
            match self.hosts.send(&entry.target, entry.key.as_ref(), &name) {
                Some((host, trigger)) => {
                    entry.state = State::Sent { tick };
                    self.ready.sent(&entry.target, entry.key.as_ref());
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

/// `now` plus a span, limited by the calendar.
fn later(now: Timestamp, after: Duration) -> Timestamp {
    now.checked_add(after).unwrap_or(Timestamp::MAX)
}
