//! The environment of instances: store, reminders, activities and clock. A crash clears memory and keeps what
//! was stored and sent.

mod ends;
mod reruns;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use outrigger_wire::durabletask::backend::v1::CreateWorkflowInstanceRequest;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    EventRaisedEvent, ExecutionResumedEvent, ExecutionStartedEvent, ExecutionSuspendedEvent,
    ExecutionTerminatedEvent, HistoryEvent, OrchestrationStatus, RerunWorkflowFromEventRequest,
    TaskCompletedEvent, TaskFailedEvent, TaskFailureDetails, WorkflowInstance, WorkflowRequest,
};
use outrigger_workflow::event::event;
use outrigger_workflow::names::{CASCADE_TERMINATE, METADATA, timer_reminder};
use outrigger_workflow::{
    Additions, Answered, Arrival, Change, Counts, Creation, Instance, Limit, Message, Origin, Outcome,
    StepContext, StepStart, Timer,
};
use prost::Message as _;
use prost_types::Timestamp;
use rand::RngExt;
use rand::rngs::StdRng;

use super::program::{self, Program, Sent};
use super::replay;

/// When the hosting process crashes.
pub(crate) enum Crashes {
    /// Never.
    None,
    /// With this probability, per cent, at every step.
    Random(Box<StdRng>, u32),
}

/// The process crashed.
#[derive(Debug)]
struct Crash;

/// The result of a run.
#[derive(PartialEq)]
enum Ran {
    Over,
    /// Retry.
    Again,
    /// Stored together with events that arrived since: run them at once.
    TookMore,
}

/// The sender of an event that arrived before a step was stored.
enum Came {
    /// The activity of a reminder.
    Result((i64, String, String)),
    Client,
}

/// The purpose of a reminder; its key is what it overwrites.
#[derive(Clone, Debug)]
enum Due {
    Run,
    Timer(HistoryEvent, u64),
    /// With the execution it is for.
    Activity(HistoryEvent, Origin),
    Rerun(Counts),
    /// The termination of a parent.
    Terminate(HistoryEvent),
}

/// The end of an instance: status, output and failure.
pub(crate) type End = (OrchestrationStatus, Option<String>, Option<String>);
/// All ends by instance id.
pub(crate) type Ends = BTreeMap<String, End>;

pub(crate) struct World {
    program: Program,
    crashing: Crashes,
    pub(crate) crashes: u32,
    now: i64,
    store: BTreeMap<String, BTreeMap<String, Bytes>>,
    memory: BTreeMap<String, Instance>,
    /// By due time in milliseconds, actor and name.
    reminders: BTreeMap<(i64, String, String), Due>,
    next_id: u64,
    /// App of each instance.
    apps: BTreeMap<String, String>,
    /// End of each execution, by instance id and generation.
    completed: BTreeMap<(String, u64), End>,
    other_app_is_down: bool,
    /// Probability that a step is stored together with later events; `None`: steps are stored at once.
    lingering: Option<(StdRng, f64)>,
    /// Number of steps stored together with later events.
    pub(crate) stored_together: u32,
    /// Maximum operations of a store transaction, and how often a change exceeded it.
    most: usize,
    pub(crate) splits: usize,
    /// Whether each attempt of a step has new execution ids for its activities.
    distinguishes: bool,
    /// Pending client actions, retried until done.
    to_start: bool,
    to_send: Vec<Sent>,
    to_rerun: bool,
}

/// The app of the root; the other app is `other`.
const APP: &str = "app";
const ROOT: &str = "root";
/// The rerun of the root.
const AGAIN: &str = "again";
const LIMIT: Limit = Limit(4 << 20);
/// Maximum crashes of a run.
const MAX_CRASHES: u32 = 300;
/// Maximum results that arrive together.
const TOGETHER: usize = 3;

impl World {
    pub(crate) fn new(program: Program, crashing: Crashes, lingering: Option<(StdRng, f64)>) -> Self {
        let to_send = program.sent.clone();
        Self {
            program,
            crashes: 0,
            now: 1_700_000_000_000,
            store: BTreeMap::new(),
            memory: BTreeMap::new(),
            reminders: BTreeMap::new(),
            next_id: 0,
            apps: BTreeMap::from([ROOT, AGAIN].map(|id| (id.to_owned(), APP.to_owned()))),
            completed: BTreeMap::new(),
            other_app_is_down: matches!(crashing, Crashes::Random(..)),
            crashing,
            lingering,
            stored_together: 0,
            splits: 0,
            to_start: true,
            // A rerun that waits for an event sent earlier would wait forever.
            to_rerun: to_send.is_empty(),
            to_send,
            most: usize::MAX,
            distinguishes: false,
        }
    }

    /// Limits the operations of a store transaction.
    pub(crate) fn splitting(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Gives each attempt of a step new execution ids for its activities, as most SDKs do.
    pub(crate) fn distinguishing(mut self) -> Self {
        self.distinguishes = true;
        self
    }

    /// Runs until nothing is pending.
    pub(crate) fn run(&mut self) -> Ends {
        for step in 0.. {
            assert!(step < 20_000, "it does not end: {:?}", self.reminders);
            match self.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(Crash) => {
                    self.crashes += 1;
                    self.memory.clear();
                }
            }
        }
        let ends = self.ends();
        self.purge_all();
        ends
    }

    /// A point where the process may crash.
    fn may_crash(&mut self) -> Result<(), Crash> {
        match &mut self.crashing {
            // Otherwise a sender to many instances might never finish.
            _ if self.crashes >= MAX_CRASHES => Ok(()),
            Crashes::Random(random, per_cent) => match random.random_range(0..100) < *per_cent {
                true => Err(Crash),
                false => Ok(()),
            },
            Crashes::None => Ok(()),
        }
    }

    fn at(&self) -> Timestamp {
        Timestamp {
            seconds: self.now / 1000,
            nanos: i32::try_from(self.now % 1000).unwrap() * 1_000_000,
        }
    }

    /// Does the next thing; `false` if there is none.
    fn step(&mut self) -> Result<bool, Crash> {
        if self.to_start {
            let started = ExecutionStartedEvent {
                name: ROOT.to_owned(),
                input: Some("0|".to_owned()),
                workflow_instance: Some(WorkflowInstance {
                    instance_id: ROOT.to_owned(),
                    execution_id: Some("first".to_owned()),
                }),
                ..ExecutionStartedEvent::default()
            };
            let start = event(-1, self.at(), EventType::ExecutionStarted(started));
            // A client that does not know whether its request succeeded repeats it and gets `already exists`.
            if !self.is_stored(ROOT) {
                self.create(ROOT, start)?;
            }
            self.to_start = false;
            return Ok(true);
        }
        if let Some(next) = self.next_sent() {
            let sent = self.sent(next);
            self.add(ROOT, vec![sent.into()])?;
            self.to_send.remove(0);
            return Ok(true);
        }
        let Some((key, due)) = self
            .reminders
            .first_key_value()
            .map(|(key, due)| (key.clone(), due.clone()))
        else {
            let begins = self.to_rerun;
            if begins {
                self.rerun()?;
                self.to_rerun = false;
            }
            return Ok(begins);
        };
        self.now = self.now.max(key.0) + 1;
        let handled = match due {
            Due::Run => self.run_until_stored(&key.1, None)?,
            Due::Timer(fired, generation) => self.run_until_stored(&key.1, Some((fired, generation)))?,
            Due::Activity(..) => {
                self.run_activities(&key)?;
                return Ok(true);
            }
            Due::Rerun(made) => self.begin_rerun(&key.1, made)?,
            Due::Terminate(terminated) => {
                self.add(&key.1, vec![terminated.into()])?;
                true
            }
        };
        if handled {
            self.may_crash()?;
            self.reminders.remove(&key);
        } else {
            // Redelivered in a second. A timer may have been set again by the next generation.
            let is_timers = key.2.starts_with("timer-");
            match self.reminders.remove(&key) {
                Some(due) => drop(self.reminders.insert((self.now + 1000, key.1, key.2), due)),
                None => assert!(is_timers, "{key:?} is gone"),
            }
        }
        Ok(true)
    }

    /// The next client action; clients act one after the other, with pauses.
    fn next_sent(&self) -> Option<Sent> {
        let next = *self.to_send.first()?;
        if next == Sent::TerminateAtRest {
            return self.reminders.is_empty().then_some(next);
        }
        let is_quiet = self.reminders.keys().all(|key| key.0 > self.now);
        (is_quiet || next.is_early()).then_some(next)
    }

    fn sent(&self, sent: Sent) -> HistoryEvent {
        let what = match sent {
            Sent::Event(number) => EventType::EventRaised(EventRaisedEvent {
                name: format!("eVent{number}"),
                input: Some(format!("raised {number}")),
            }),
            Sent::Suspend(_) => EventType::ExecutionSuspended(ExecutionSuspendedEvent::default()),
            Sent::Terminate(_) | Sent::TerminateAtRest => {
                EventType::ExecutionTerminated(ExecutionTerminatedEvent {
                    input: Some("ended".to_owned()),
                    recurse: true,
                })
            }
            Sent::Resume(_) => EventType::ExecutionResumed(ExecutionResumedEvent::default()),
        };
        event(-1, self.at(), what)
    }

    fn remind(&mut self, at: i64, actor: &str, name: &str, due: Due) {
        self.reminders
            .retain(|(_, other, known), _| other != actor || known != name);
        self.reminders
            .insert((at, actor.to_owned(), name.to_owned()), due);
    }

    /// Each start has its own reminder.
    fn run_again(&mut self, id: &str) {
        self.next_id += 1;
        let name = format!("start-{}", self.next_id);
        self.remind(self.now, id, &name, Due::Run);
    }

    /// Whether the instance exists, beyond uncounted remains.
    fn is_stored(&mut self, id: &str) -> bool {
        let Some(instance) = self.load(id) else {
            return false;
        };
        let is_stored = !instance.is_left_over();
        self.memory.insert(id.to_owned(), instance);
        is_stored
    }

    fn load(&mut self, id: &str) -> Option<Instance> {
        if let Some(instance) = self.memory.remove(id) {
            return Some(instance);
        }
        let stored = self.store.get(id)?;
        let counts = Counts::read(id, stored.get(METADATA)?).unwrap();
        Some(Instance::read(id, counts, |key| stored.get(key).cloned()).unwrap())
    }

    fn save(&mut self, instance: Instance, change: Change) -> Result<(), Crash> {
        let id = instance.id.clone();
        let change_has_history = change.upserts.iter().any(|(key, _)| key.starts_with("history-"));
        let parts = change.split(self.most);
        self.splits += usize::from(parts.len() > 1);
        let ends = instance.is_completed() && change_has_history;
        for part in parts {
            self.may_crash()?;
            let stored = self.store.entry(id.clone()).or_default();
            for key in &part.deletes {
                let was_stored = stored.remove(key).is_some();
                // An interrupted multi-transaction change may have stored less than planned.
                assert!(was_stored || self.most < usize::MAX, "{key} was never stored");
            }
            stored.extend(part.upserts);
        }
        let stored = &self.store[&id];
        let counts = Counts::read(&id, &stored[METADATA]).unwrap();
        assert_eq!(
            counts.history,
            instance.facts().len,
            "stored and cached state are equal"
        );
        // A crash between two transactions leaves uncounted entries.
        if self.most == usize::MAX {
            let history = stored.keys().filter(|key| key.starts_with("history-")).count();
            assert_eq!(history, counts.history);
        }
        if ends {
            let of = (id.clone(), instance.generation);
            let before = self.completed.insert(of, ends::end_of(&instance));
            assert!(before.is_none(), "{id} ends a second time, after {before:?}");
        }
        self.memory.insert(instance.id.clone(), instance);
        self.may_crash()
    }

    fn create(&mut self, id: &str, start: HistoryEvent) -> Result<(), Crash> {
        let mut instance = self.load(id).unwrap_or_else(|| Instance::new(id));
        let request = CreateWorkflowInstanceRequest {
            start_event: Some(start.clone()),
            propagated_history: None,
        };
        match instance.creation(&request, false) {
            Ok(Creation::Begin) => {}
            Ok(_) => {
                self.memory.insert(id.to_owned(), instance);
                return Ok(());
            }
            Err(error) => panic!("{id} is not created: {error}"),
        }
        self.remind(self.now, id, "start", Due::Run);
        self.may_crash()?;
        let change = instance.start(start, None);
        self.save(instance, change)
    }

    fn set_timers(&mut self, id: &str, generation: u64, timers: &[Timer]) -> Result<(), Crash> {
        for timer in timers {
            self.may_crash()?;
            let at = timer.fire_at.unwrap();
            let at = at.seconds * 1000 + i64::from(at.nanos) / 1_000_000;
            let due = Due::Timer(timer.fired.clone(), generation);
            self.remind(at, id, &timer_reminder(timer.id), due);
        }
        Ok(())
    }

    /// Starts activities and sends messages; returns the activities that could not be started.
    fn send(
        &mut self,
        id: &str,
        (generation, execution): (u64, &str),
        tasks: &[HistoryEvent],
        messages: &[Message],
    ) -> Result<Vec<i32>, Crash> {
        let mut unsent = Vec::new();
        for task in tasks {
            self.may_crash()?;
            let is_remote = task
                .router
                .as_ref()
                .is_some_and(|router| router.target_app_id.is_some());
            if is_remote && std::mem::take(&mut self.other_app_is_down) {
                unsent.push(task.event_id);
                continue;
            }
            let actor = format!("{id}::{}::{generation}", task.event_id);
            let due = Due::Activity(task.clone(), Origin::of(execution));
            self.remind(self.now, &actor, "run-activity", due);
        }
        for message in messages {
            self.may_crash()?;
            if message.creates() && message.app.is_some() && std::mem::take(&mut self.other_app_is_down) {
                unsent.extend(message.cause);
                continue;
            }
            let app = message.app.clone().unwrap_or_else(|| self.apps[id].clone());
            if message.creates() {
                self.apps.insert(message.target.clone(), app.clone());
            }
            assert_eq!(
                self.apps[&message.target], app,
                "{message:?} of {id} finds its way"
            );
            if message.creates() {
                self.create(&message.target, message.event.clone())?;
            } else {
                let (event, origin) = (message.event.clone(), message.origin.clone());
                self.add(
                    &message.target,
                    vec![Arrival {
                        event,
                        origin,
                        waited: false,
                    }],
                )?;
            }
        }
        Ok(unsent)
    }

    /// Adds events that arrive together.
    fn add(&mut self, id: &str, events: Vec<Arrival>) -> Result<(), Crash> {
        let mut instance = self.load(id).expect("the instance exists");
        let Additions {
            added, run, change, ..
        } = instance.add(events, Limit::default());
        assert!(added.iter().all(Result::is_ok), "not stalled: {added:?}");
        if change.is_empty() {
            self.memory.insert(id.to_owned(), instance);
        } else {
            self.save(instance, change)?;
        }
        // If it crashes here, the sender repeats the event.
        self.may_crash()?;
        if let Some(run) = run {
            self.remind(self.now, id, &run.reminder, Due::Run);
        }
        Ok(())
    }

    /// Terminates the children of an instance that ended.
    fn terminate(&mut self, id: &str, terminations: Vec<Message>) -> Result<(), Crash> {
        for message in terminations {
            self.may_crash()?;
            let app = message.app.as_ref().unwrap_or_else(|| &self.apps[id]);
            assert_eq!(self.apps[&message.target], *app, "{message:?} finds its way");
            match message.app {
                None => self.remind(
                    self.now,
                    &message.target,
                    CASCADE_TERMINATE,
                    Due::Terminate(message.event),
                ),
                Some(_) => self.add(&message.target, vec![message.event.into()])?,
            }
        }
        Ok(())
    }
}
