//! The outcome of a step.

use bytes::Bytes;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{ExecutionStalledEvent, HistoryEvent, HistoryPropagationScope};
use prost_types::Timestamp;

use crate::event::{NO_ID, event};
use crate::facts::Facts;
use crate::instance::Instance;
use crate::origin::Origin;

/// A timer to set.
#[derive(Clone, Debug, PartialEq)]
pub struct Timer {
    /// Event id of its creation.
    pub id: i32,
    /// Due time.
    pub fire_at: Option<Timestamp>,
    /// The event it delivers.
    pub fired: HistoryEvent,
}

/// An event for another instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its instance id.
    pub target: String,
    /// The app that hosts it, if not the sender's.
    pub app: Option<String>,
    /// An `ExecutionStarted` creates the instance; other events are added to it.
    pub event: HistoryEvent,
    /// The execution it is meant for.
    pub origin: Origin,
    /// The event id of the scheduling event, if any.
    pub cause: Option<i32>,
    /// How much history it passes on.
    pub propagates: HistoryPropagationScope,
}

impl Message {
    /// Whether it creates the instance.
    #[must_use]
    pub fn creates(&self) -> bool {
        crate::create::execution(&self.event).is_some()
    }
}

/// A finished step: send and schedule its effects, then store it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Activities to start: `TaskScheduled` events.
    pub tasks: Vec<HistoryEvent>,
    /// Timers to set; none if the instance has ended.
    pub timers: Vec<Timer>,
    /// Timers of finished waits: delete their reminders.
    pub superseded: Vec<i32>,
    /// Events for other instances.
    pub messages: Vec<Message>,
    /// The generation of its activities and timers.
    pub generation: u64,
    /// Why the instance is stalled; there are no other effects then.
    pub stalled: Option<ExecutionStalledEvent>,
    /// Activities not started because one of them is too large: `TaskScheduled` events.
    pub refused: Vec<HistoryEvent>,
    /// Early results can be consumed now: run the instance again after storing.
    pub wakes: bool,
    /// It continued as new more than [`MAX_RESTARTS`](super::answer::MAX_RESTARTS) times in a row: run it
    /// again after storing, so that other instances get a step in between.
    pub runs_again: bool,
    pub(crate) facts: Facts,
    pub(crate) fresh: Vec<HistoryEvent>,
    pub(crate) restarted: bool,
    /// If it continued as new: the history that the new execution has received.
    pub(crate) received: Option<Bytes>,
    pub(crate) custom_status: Option<String>,
    /// Events that stay in the inbox.
    pub(crate) inbox: Vec<HistoryEvent>,
}

impl Outcome {
    /// Whether the instance has ended.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.facts.completed.is_some()
    }

    /// Summary of the history after the step.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether the step may be stored [without](Outcome::without) effects that could not be sent. Only the
    /// first step of an execution, and not if it is also the last: an ended instance does not run again and
    /// would never send them.
    #[must_use]
    pub fn may_be_stored_in_part(&self) -> bool {
        let begins = |event: &HistoryEvent| crate::create::execution(event).is_some();
        !self.is_completed() && self.fresh.iter().any(begins)
    }

    /// Drops the events `unsent` from the first step of an execution, so that its status becomes visible. The
    /// step must be repeated.
    #[must_use]
    pub fn without(mut self, instance: &Instance, unsent: &[i32]) -> Self {
        let mut facts = if self.restarted {
            Facts::default()
        } else {
            instance.facts.clone()
        };
        self.fresh
            .retain(|event| !unsent.contains(&event.event_id) || event.event_id == NO_ID);
        for event in &self.fresh {
            facts.add(event);
        }
        // A duplicate event makes the step run again.
        let start = self
            .fresh
            .iter()
            .find(|event| crate::create::execution(event).is_some());
        self.inbox.extend(start.cloned());
        self.facts = facts;
        self
    }

    /// Records a stall, once per reason in a row; `before` is the previous stall.
    pub(super) fn stall(
        &mut self,
        stalled: ExecutionStalledEvent,
        before: Option<&ExecutionStalledEvent>,
        at: Timestamp,
    ) {
        let is_known = before.is_some_and(|before| before.description == stalled.description);
        if !is_known || self.restarted {
            let event = event(NO_ID, at, EventType::ExecutionStalled(stalled.clone()));
            self.facts.add(&event);
            self.fresh.push(event);
        }
        self.stalled = Some(stalled);
    }
}
