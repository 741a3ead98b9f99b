//! Lists the pending tasks and events of an instance.

use prost_types::Timestamp;

use crate::event::Awaited;
use crate::instance::Instance;

/// One thing that an instance waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// A worker: the inbox has events for a step.
    Step {
        /// Number of events.
        events: usize,
        /// Earliest start.
        due: Option<Timestamp>,
    },
    /// The result of an activity.
    Activity {
        /// Event id of its scheduling.
        id: i32,
        /// Name of the activity or child workflow.
        name: String,
        /// The app that runs it, if not the workflow's.
        app: Option<String>,
        /// When it was scheduled.
        since: Option<Timestamp>,
    },
    /// A child workflow.
    Child {
        /// Event id of its creation.
        id: i32,
        /// Name of the activity or child workflow.
        name: String,
        /// Its instance id.
        instance: String,
        /// The app that hosts it, if not the workflow's.
        app: Option<String>,
        /// When it was created.
        since: Option<Timestamp>,
    },
    /// A timer.
    Timer {
        /// Event id of its creation.
        id: i32,
        /// When it fires.
        due: Option<Timestamp>,
    },
    /// An external event; `None` if the history does not name it.
    Event {
        /// Name of the event.
        name: Option<String>,
        /// Limit of the wait.
        until: Option<Timestamp>,
    },
    /// A client to resume it.
    Resume,
    /// A worker whose code matches the history, or a larger limit.
    Fix {
        /// The reason of the stall.
        reason: String,
        /// Its description.
        description: String,
    },
}

impl Instance {
    /// Everything the instance waits for; empty if it has ended.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        let facts = self.facts();
        if self.is_completed() {
            return Vec::new();
        }
        let mut waits = Vec::new();
        if let Some(stalled) = &facts.stalled {
            waits.push(Wait::Fix {
                reason: stalled.reason().as_str_name().to_owned(),
                description: stalled.description.clone().unwrap_or_default(),
            });
        }
        if facts.is_suspended {
            waits.push(Wait::Resume);
        }
        if !self.inbox().is_empty() {
            let start = self.start_event().filter(|_| facts.started.is_none());
            waits.push(Wait::Step {
                events: self.inbox().len(),
                due: start.and_then(|start| start.scheduled_start_timestamp),
            });
        }
        waits.extend(facts.open(Awaited::Task).map(|(id, open)| Wait::Activity {
            id,
            name: open.name.clone(),
            app: open.app.clone(),
            since: open.since,
        }));
        waits.extend(facts.open(Awaited::Child).map(|(id, open)| Wait::Child {
            id,
            name: open.name.clone(),
            instance: open.instance.clone().unwrap_or_default(),
            app: open.app.clone(),
            since: open.since,
        }));
        waits.extend(facts.open(Awaited::Timer).map(|(id, open)| match &open.limits {
            Some(name) => Wait::Event {
                name: Some(name.clone()),
                until: open.due,
            },
            None => Wait::Timer { id, due: open.due },
        }));
        if waits.is_empty() && facts.started.is_some() {
            waits.push(Wait::Event {
                name: None,
                until: None,
            });
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::history_event::EventType;
    use outrigger_wire::durabletask::{
        ExecutionCompletedEvent, ExecutionStartedEvent, ExecutionSuspendedEvent, TaskCompletedEvent,
        TaskScheduledEvent, TimerCreatedEvent,
    };

    use super::*;
    use crate::event::event;

    const AT: Timestamp = Timestamp { seconds: 9, nanos: 0 };

    #[test]
    fn waits_list_open_tasks() {
        let mut instance = Instance::new("a");
        let start = ExecutionStartedEvent {
            scheduled_start_timestamp: Some(AT),
            ..ExecutionStartedEvent::default()
        };
        drop(instance.push(event(-1, AT, EventType::ExecutionStarted(start.clone()))));
        let step = |due| Wait::Step { events: 1, due };
        assert_eq!(instance.waits(), [step(Some(AT))]);
        instance.inbox.clear();
        instance.append(&event(-1, AT, EventType::ExecutionStarted(start)));
        let (name, until) = (None, None);
        assert_eq!(instance.waits(), [Wait::Event { name, until }]);
        let task = TaskScheduledEvent {
            name: "pay".to_owned(),
            ..TaskScheduledEvent::default()
        };
        let timer = |name: Option<&str>| TimerCreatedEvent {
            fire_at: Some(AT),
            name: name.map(str::to_owned),
            ..TimerCreatedEvent::default()
        };
        for (id, kind) in [
            (0, EventType::TaskScheduled(task)),
            (1, EventType::TimerCreated(timer(None))),
            (2, EventType::TimerCreated(timer(Some("Paid")))),
        ] {
            instance.append(&event(id, AT, kind));
        }
        let timers = [
            Wait::Timer { id: 1, due: Some(AT) },
            Wait::Event {
                name: Some("Paid".to_owned()),
                until: Some(AT),
            },
        ];
        let pay = Wait::Activity {
            id: 0,
            name: "pay".to_owned(),
            app: None,
            since: Some(AT),
        };
        assert_eq!(instance.waits()[0], pay);
        assert_eq!(instance.waits()[1..], timers);
        let paid = TaskCompletedEvent::default();
        instance.append(&event(-1, AT, EventType::TaskCompleted(paid)));
        let suspended = ExecutionSuspendedEvent::default();
        instance.append(&event(-1, AT, EventType::ExecutionSuspended(suspended)));
        assert_eq!(instance.waits()[0], Wait::Resume);
        assert_eq!(instance.waits()[1..], timers);
        let ended = ExecutionCompletedEvent::default();
        instance.append(&event(3, AT, EventType::ExecutionCompleted(ended)));
        assert_eq!(instance.waits(), []);
    }
}
