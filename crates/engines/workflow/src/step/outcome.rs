//! What comes of a step.

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{ExecutionStalledEvent, HistoryEvent};
use prost_types::Timestamp;

use crate::event::{NO_ID, event};
use crate::facts::Facts;
use crate::instance::Instance;
use crate::origin::Origin;

/// A timer that is to be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Timer {
    /// Event id of its creation.
    pub id: i32,
    /// Due time of the timer.
    pub fire_at: Option<Timestamp>,
    /// The event that it brings.
    pub fired: HistoryEvent,
}

/// Something for another instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its instance id.
    pub target: String,
    /// The app that hosts it, if it is another than the sender's.
    pub app: Option<String>,
    /// An `ExecutionStarted` creates it; anything else is added to it.
    pub event: HistoryEvent,
    /// Which execution it is for.
    pub origin: Origin,
    /// The event id of the scheduling event, if it has one.
    pub cause: Option<i32>,
}

impl Message {
    /// Whether it creates the instance.
    #[must_use]
    pub fn creates(&self) -> bool {
        crate::create::execution(&self.event).is_some()
    }
}

/// A step that is over: what has to be done before it is stored, and then stored.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Activities to start: `TaskScheduled` events.
    pub tasks: Vec<HistoryEvent>,
    /// Timers to set; none if the instance has ended.
    pub timers: Vec<Timer>,
    /// Timers that limit a wait that is over: their reminders go.
    pub superseded: Vec<i32>,
    /// Events for other instances.
    pub messages: Vec<Message>,
    /// The generation that activities and timers belong to.
    pub generation: u64,
    /// Why the instance cannot go on; nothing else is to be done then.
    pub stalled: Option<ExecutionStalledEvent>,
    /// Activities that are not started, because one of them is too large: `TaskScheduled` events.
    pub refused: Vec<HistoryEvent>,
    /// Results that came early can be taken now: it has to be run again after it is stored.
    pub wakes: bool,
    /// It continued as new more often than [`MAX_RESTARTS`] in a row: it has to be run again after it is stored, and others
    /// get a step meanwhile.
    pub runs_again: bool,
    pub(crate) facts: Facts,
    pub(crate) fresh: Vec<HistoryEvent>,
    pub(crate) restarted: bool,
    pub(crate) custom_status: Option<String>,
    /// What stays in the inbox.
    pub(crate) inbox: Vec<HistoryEvent>,
}

impl Outcome {
    /// Whether the instance has ended.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.facts.completed.is_some()
    }

    /// What the history says after it.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether it may be stored [without](Outcome::without) what could not be sent: an execution's first step, unless it is
    /// the last one too. What has ended is not run again, and would never send it.
    #[must_use]
    pub fn may_be_stored_in_part(&self) -> bool {
        let begins = |event: &HistoryEvent| crate::create::execution(event).is_some();
        !self.is_completed() && self.fresh.iter().any(begins)
    }

    /// The first step of an execution without what could not be sent, so that its status is seen: the event ids of
    /// `unsent` are taken out. The step is to be repeated.
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
        // An event that says what is known already makes the step run again.
        let start = self
            .fresh
            .iter()
            .find(|event| crate::create::execution(event).is_some());
        self.inbox.extend(start.cloned());
        self.facts = facts;
        self
    }

    /// Takes in that the instance cannot go on, once for each reason in a row: `before` is what it was.
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
