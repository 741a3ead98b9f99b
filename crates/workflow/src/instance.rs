//! An instance as it is stored: its history, what waits to be taken into it, and what a client sees of it.

use std::collections::HashSet;

use outrigger_wire::durabletask::backend::v1::OrchestrationMetadata;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{ExecutionStartedEvent, HistoryEvent, OrchestrationStatus};
use prost::Message as _;
use prost_types::Timestamp;

use crate::error::{AddError, PurgeError};
use crate::event::{Awaited, ends, is_sent_again, is_timer, raised_at};
use crate::facts::Facts;
use crate::history::History;
use crate::names::{activity_id, event_reminder};
use crate::stored::{Change, Counts, MAX_ENTRIES};

/// A workflow instance as it is stored, between two turns.
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// Id of the instance, unique for its app.
    pub id: String,
    /// How often it began anew: by continuing as new, or by being created again.
    pub generation: u64,
    /// What the workflow says of itself.
    pub custom_status: Option<String>,
    pub(crate) facts: Facts,
    pub(crate) history: History,
    pub(crate) inbox: Vec<HistoryEvent>,
    /// What is stored, if anything is.
    pub(crate) stored: Option<Counts>,
}

/// What becomes of an event that is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It changes the instance, and is stored with it.
    New,
    /// It is there already: its run has to be ensured, nothing to be stored.
    Repeated,
    /// It belongs to an execution that is over: nothing is to be done.
    Foreign,
}

/// What becomes of events that are added together.
#[derive(Debug)]
pub struct Additions {
    /// Of each of them.
    pub added: Vec<Result<Added, AddError>>,
    /// The run that takes them in: it has to be ensured before the change is stored. `None` where nothing is to be done.
    pub run: Option<Run>,
    /// What has to be stored.
    pub change: Change,
}

/// A run that has to be ensured.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The name of its reminder.
    pub reminder: String,
    /// When it is due.
    pub due: Option<Timestamp>,
}

impl Instance {
    /// One that does not exist yet.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ..Self::default()
        }
    }

    /// What its history says.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What waits for the next turn.
    #[must_use]
    pub fn inbox(&self) -> &[HistoryEvent] {
        &self.inbox
    }

    /// Its events.
    #[must_use]
    pub fn history(&self) -> Vec<HistoryEvent> {
        // They were encoded here, or decoded when they were read.
        let decoded = self.history.iter().map(HistoryEvent::decode);
        decoded.filter_map(Result::ok).collect()
    }

    /// Encoded length of history and inbox, bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.history.size() + self.inbox.iter().map(prost::Message::encoded_len).sum::<usize>()
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn memory(&self) -> usize {
        // What is known of an event beside its bytes, and of an instance beside its events.
        const EVENT: usize = 128;
        const INSTANCE: usize = 2048;
        let events = self.history.len() + self.inbox.len();
        let start = self.start_event().map_or(0, prost::Message::encoded_len);
        self.size() + start + events * EVENT + INSTANCE
    }

    /// The event that began it: from the history, or the inbox.
    #[must_use]
    pub fn start_event(&self) -> Option<&ExecutionStartedEvent> {
        if let Some(started) = &self.facts.started {
            return Some(&started.event);
        }
        self.inbox.iter().find_map(|event| match &event.event_type {
            Some(EventType::ExecutionStarted(started)) => Some(started),
            _ => None,
        })
    }

    /// The time that reminders are due: that of the first event, which is over, so that they run at once.
    #[must_use]
    pub fn first_at(&self) -> Option<Timestamp> {
        self.facts.first_at
    }

    /// The status that a client sees.
    #[must_use]
    pub fn status(&self) -> OrchestrationStatus {
        self.facts.status()
    }

    /// Whether its execution has ended.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.facts.completed.is_some()
    }

    /// The actors of the activities of its own app that it waits for.
    #[must_use]
    pub fn activities(&self) -> Vec<String> {
        let open = self.facts.open(Awaited::Task);
        let own = open.filter(|(_, open)| open.app.is_none());
        own.map(|(task, _)| activity_id(&self.id, task, self.generation))
            .collect()
    }

    /// How many entries of it are stored.
    #[must_use]
    pub fn stored(&self) -> Counts {
        self.stored.unwrap_or_default()
    }

    /// What clients and watchers are told.
    #[must_use]
    pub fn metadata(&self) -> OrchestrationMetadata {
        let facts = &self.facts;
        let start = self.start_event();
        let parent = start.and_then(|start| start.parent_instance.as_ref());
        let parent = parent.and_then(|parent| parent.orchestration_instance.as_ref());
        let completed = facts.completed.as_deref();
        let first_in_inbox = || self.inbox.first().and_then(|event| event.timestamp);
        OrchestrationMetadata {
            instance_id: self.id.clone(),
            name: start.map(|start| start.name.clone()).unwrap_or_default(),
            runtime_status: self.status().into(),
            created_at: facts
                .started
                .as_ref()
                .map_or_else(first_in_inbox, |started| started.at),
            last_updated_at: facts.updated_at.or_else(first_in_inbox),
            input: start.and_then(|start| start.input.clone()),
            output: completed.and_then(|completed| completed.event.result.clone()),
            custom_status: self.custom_status.clone(),
            failure_details: completed.and_then(|completed| completed.event.failure_details.clone()),
            completed_at: completed.and_then(|completed| completed.at),
            parent_instance_id: parent
                .map(|parent| parent.instance_id.clone())
                .unwrap_or_default(),
        }
    }

    /// Whether an event may be added, and whether it is there already.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn check(&self, event: &HistoryEvent) -> Result<Added, AddError> {
        self.check_against(event, |event| {
            let ended = ends(event);
            self.inbox
                .iter()
                .any(|waiting| ended.is_some() && ends(waiting) == ended || is_sent_again(event, waiting))
        })
    }

    /// As [`Instance::check`]; `waits` says whether it is in the inbox.
    fn check_against(
        &self,
        event: &HistoryEvent,
        waits: impl FnOnce(&HistoryEvent) -> bool,
    ) -> Result<Added, AddError> {
        if self.start_event().is_none() {
            return Err(AddError::Unknown);
        }
        if self.facts.stalled.is_some() && matches!(event.event_type, Some(EventType::EventRaised(_))) {
            return Err(AddError::Stalled);
        }
        if self.facts.is_repeated(event) || self.facts.was_raised(event) {
            return Ok(Added::Repeated);
        }
        if self.facts.is_foreign(event) {
            return Ok(Added::Foreign);
        }
        if waits(event) {
            return Ok(Added::Repeated);
        }
        if self.inbox.len() >= MAX_ENTRIES {
            return Err(AddError::Full);
        }
        Ok(Added::New)
    }

    /// Adds those of `events` that may be added. Who cannot ensure the run, or store the change, has to read the instance
    /// anew.
    pub fn add(&mut self, events: Vec<HistoryEvent>) -> Additions {
        let before = self.inbox.len();
        let mut additions = self.take_in(events);
        if self.inbox.len() > before {
            additions.change = self.change();
        }
        additions
    }

    /// As [`Instance::add`], without what has to be stored.
    pub(crate) fn take_in(&mut self, events: Vec<HistoryEvent>) -> Additions {
        let mut additions = Additions {
            added: Vec::with_capacity(events.len()),
            run: None,
            change: Change::default(),
        };
        // Looked through once, however many events come.
        let mut waiting: HashSet<_> = self.inbox.iter().filter_map(ends).collect();
        let mut times: HashSet<_> = self.inbox.iter().filter_map(raised_at).collect();
        for event in events {
            let is_waiting = |event: &HistoryEvent| {
                ends(event).is_some_and(|end| waiting.contains(&end))
                    || raised_at(event).is_some_and(|at| times.contains(&at))
                        && self.inbox.iter().any(|waiting| is_sent_again(event, waiting))
            };
            let checked = self.check_against(&event, is_waiting);
            // Who has ended takes nothing in any more.
            let is_idle = self.is_completed() || checked == Ok(Added::Foreign);
            if !is_idle && checked.is_ok() {
                additions.run.get_or_insert_with(|| Run {
                    reminder: event_reminder(&event),
                    due: self.first_at().or(event.timestamp),
                });
                if checked == Ok(Added::New) {
                    debug_assert!(
                        !is_timer(&event),
                        "timers that fired are never stored in an inbox"
                    );
                    waiting.extend(ends(&event));
                    times.extend(raised_at(&event));
                    self.inbox.push(event);
                }
            }
            additions.added.push(checked);
        }
        additions
    }

    /// Adds an event without a look at it.
    #[cfg(test)]
    pub(crate) fn push(&mut self, event: HistoryEvent) -> Change {
        self.inbox.push(event);
        self.change()
    }

    /// Forgets everything but the id; the next execution is of the next generation.
    pub(crate) fn reset(&mut self) {
        self.generation += 1;
        self.custom_status = None;
        self.facts = Facts::default();
        self.history.clear();
        self.inbox.clear();
    }

    /// Appends to the history.
    pub(crate) fn append(&mut self, event: &HistoryEvent) {
        self.facts.add(event);
        self.history.push(&event.encode_to_vec());
    }

    /// Whether it may be purged.
    ///
    /// # Errors
    /// [`PurgeError`].
    pub fn purge(&self) -> Result<(), PurgeError> {
        if self.start_event().is_none() {
            return Err(PurgeError::Unknown);
        }
        if self.facts.stalled.is_some() {
            return Err(PurgeError::Stalled);
        }
        if !self.is_completed() {
            return Err(PurgeError::NotCompleted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{
        EventRaisedEvent, ExecutionCompletedEvent, ExecutionStalledEvent, TaskCompletedEvent,
        TaskScheduledEvent,
    };

    use super::*;
    use crate::event::event;

    const AT: Timestamp = Timestamp { seconds: 9, nanos: 0 };

    fn began() -> Instance {
        let mut instance = Instance::new("one");
        instance.append(&event(
            -1,
            AT,
            EventType::ExecutionStarted(ExecutionStartedEvent {
                name: "order".to_owned(),
                input: Some("1".to_owned()),
                ..ExecutionStartedEvent::default()
            }),
        ));
        instance
    }

    fn result(id: i32) -> HistoryEvent {
        let result = TaskCompletedEvent {
            task_scheduled_id: id,
            ..TaskCompletedEvent::default()
        };
        event(-1, AT, EventType::TaskCompleted(result))
    }

    fn raised() -> HistoryEvent {
        event(-1, AT, EventType::EventRaised(EventRaisedEvent::default()))
    }

    #[test]
    fn a_result_is_taken_once() {
        let mut instance = began();
        instance.append(&event(
            2,
            AT,
            EventType::TaskScheduled(TaskScheduledEvent::default()),
        ));
        assert_eq!(instance.check(&result(2)), Ok(Added::New));
        instance.push(result(2));
        assert_eq!(instance.check(&result(2)), Ok(Added::Repeated));
        assert_eq!(instance.check(&result(3)), Ok(Added::New));
        instance.inbox.clear();
        instance.append(&result(2));
        assert_eq!(instance.check(&result(2)), Ok(Added::Repeated));
    }

    #[test]
    fn an_event_that_is_sent_again_is_taken_once_and_one_that_is_raised_again_twice() {
        let named = |name: &str, nanos| {
            let raised = EventRaisedEvent {
                name: name.to_owned(),
                input: Some("1".to_owned()),
            };
            let at = Timestamp { nanos, ..AT };
            event(-1, at, EventType::EventRaised(raised))
        };
        let mut instance = began();
        let added = instance.add(vec![
            named("paid", 1),
            named("paid", 1),
            named("paid", 2),
            named("sent", 1),
        ]);
        let (new, repeated) = (Ok(Added::New), Ok(Added::Repeated));
        assert_eq!(added.added, [new, repeated, new, new]);
        assert_eq!(instance.check(&named("paid", 1)), repeated);
        // It is known when a turn has taken it, too, as long as there were not too many others.
        instance.inbox.clear();
        instance.append(&named("paid", 1));
        assert_eq!(
            instance.add(vec![named("paid", 1), named("paid", 2)]).added,
            [repeated, new]
        );
        for nanos in 10..150 {
            instance.append(&named("other", nanos));
        }
        assert_eq!(instance.check(&named("paid", 1)), new);
        assert_eq!(instance.check(&named("other", 149)), repeated);
        // What a workflow carries on with has no time: each is an event.
        let mut carried = named("paid", 1);
        carried.timestamp = Some(Timestamp::default());
        assert_eq!(instance.add(vec![carried.clone(), carried]).added, [new, new]);
    }

    #[test]
    fn events_that_come_together_are_one_change_and_one_run() {
        let mut instance = began();
        drop(instance.change());
        let names = |additions: &Additions| {
            let run = additions.run.as_ref().map(|run| run.reminder.clone());
            let keys = additions.change.upserts.iter().map(|(key, _)| key.clone());
            (run, keys.collect::<Vec<_>>())
        };
        let added = instance.add(vec![result(2), result(3), result(2), raised()]);
        let (new, repeated) = (Ok(Added::New), Ok(Added::Repeated));
        assert_eq!(added.added, [new, new, repeated, new]);
        let keys = ["inbox-000000", "inbox-000001", "inbox-000002", "metadata"].map(str::to_owned);
        assert_eq!(names(&added), (Some("new-event-tc-2".to_owned()), keys.to_vec()));
        assert_eq!(added.run.unwrap().due, Some(AT));
        assert_eq!(instance.inbox().len(), 3);
        // What is there already has its run ensured, and nothing stored.
        let added = instance.add(vec![result(3)]);
        assert_eq!(added.added, [repeated]);
        assert_eq!(names(&added), (Some("new-event-tc-3".to_owned()), vec![]));
        // Who has ended takes nothing in.
        let completed = ExecutionCompletedEvent::default();
        instance.append(&event(1, AT, EventType::ExecutionCompleted(completed)));
        let added = instance.add(vec![result(4)]);
        assert_eq!(names(&added), (None, vec![]));
        let added = Instance::new("x").add(vec![result(4)]);
        assert_eq!(added.added, [Err(AddError::Unknown)]);
        assert_eq!(names(&added), (None, vec![]));
    }

    #[test]
    fn unknown_and_stalled_instances_take_no_events() {
        assert_eq!(Instance::new("x").check(&raised()), Err(AddError::Unknown));
        let mut stalled = began();
        stalled.append(&event(
            -1,
            AT,
            EventType::ExecutionStalled(ExecutionStalledEvent::default()),
        ));
        assert_eq!(stalled.check(&raised()), Err(AddError::Stalled));
        assert_eq!(stalled.check(&result(1)), Ok(Added::New));
    }

    #[test]
    fn only_what_has_ended_is_purged() {
        assert_eq!(Instance::new("x").purge(), Err(PurgeError::Unknown));
        let mut instance = began();
        assert_eq!(instance.purge(), Err(PurgeError::NotCompleted));
        instance.append(&event(
            -1,
            AT,
            EventType::ExecutionStalled(ExecutionStalledEvent::default()),
        ));
        assert_eq!(instance.purge(), Err(PurgeError::Stalled));
        let completed = ExecutionCompletedEvent::default();
        instance.append(&event(1, AT, EventType::ExecutionCompleted(completed)));
        assert_eq!(instance.purge(), Ok(()));
    }

    #[test]
    fn what_is_pending_has_a_name_and_an_input() {
        let mut instance = Instance::new("two");
        let start = ExecutionStartedEvent {
            name: "order".to_owned(),
            input: Some("5".to_owned()),
            ..ExecutionStartedEvent::default()
        };
        instance.push(event(-1, AT, EventType::ExecutionStarted(start)));
        let metadata = instance.metadata();
        assert_eq!(
            (metadata.name.as_str(), metadata.input.as_deref()),
            ("order", Some("5"))
        );
        assert_eq!(metadata.runtime_status(), OrchestrationStatus::Pending);
        assert_eq!(metadata.created_at, Some(AT));
    }
}
