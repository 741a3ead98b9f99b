//! Summary of a history, updated event by event, so that the cost of a step does not grow with the history.

use std::sync::Arc;

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ExecutionCompletedEvent, ExecutionStalledEvent, ExecutionStartedEvent, ExecutionTerminatedEvent,
    HistoryEvent, OrchestrationStatus, TimerCreatedEvent, timer_created_event,
};
use prost_types::Timestamp;

use crate::create::execution_id;
use crate::event::{Awaited, Raised, ends, execution_of_result, other_app, raised};
use crate::layered::Layered;

/// A child workflow created by the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The event id of its creation.
    pub event: i32,
    /// Its instance id.
    pub id: String,
    /// The app that hosts it, if not the parent's.
    pub app: Option<String>,
}

/// The start of the execution.
#[derive(Clone, Debug)]
pub struct Started {
    /// The start event, with name, input and parent.
    pub event: ExecutionStartedEvent,
    /// Time of the event, if any.
    pub at: Option<Timestamp>,
}

/// The end of the execution.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The end event, with status, result and failure.
    pub event: ExecutionCompletedEvent,
    /// Time of the event, if any.
    pub at: Option<Timestamp>,
    /// Index of the event in the history.
    pub(crate) entry: usize,
}

impl Completed {
    /// The final status.
    #[must_use]
    pub fn status(&self) -> OrchestrationStatus {
        self.event.workflow_status()
    }
}

/// A task in progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Open {
    /// Start time, if any.
    pub since: Option<Timestamp>,
    /// Activity or child: its name.
    pub name: String,
    /// The app that runs it, if not the workflow's.
    pub app: Option<String>,
    /// Timer: its due time.
    pub due: Option<Timestamp>,
    /// Timer: the name of the event whose wait it limits, as the workflow spells it.
    pub limits: Option<String>,
    /// Child: its instance id.
    pub instance: Option<String>,
    /// Activity: its execution id; may be empty.
    execution: String,
    /// Index of its start in the history.
    pub(crate) entry: usize,
}

/// Summary of a history.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The start; `None` before the first step.
    pub started: Option<Arc<Started>>,
    /// The end, once the execution has ended.
    pub completed: Option<Arc<Completed>>,
    /// Time of the first event.
    pub first_at: Option<Timestamp>,
    /// Time of the last event.
    pub updated_at: Option<Timestamp>,
    /// Whether the workflow is suspended.
    pub is_suspended: bool,
    /// Why the instance is stalled; cleared by the next event.
    pub stalled: Option<ExecutionStalledEvent>,
    /// Patches used so far, in order.
    pub patches: Vec<String>,
    /// The version name recorded by the first step.
    pub version: Option<String>,
    /// Number of events.
    pub len: usize,
    /// The first termination, made recursive if any of them is.
    pub(crate) terminated: Option<Arc<ExecutionTerminatedEvent>>,
    /// The raised events, for dedup.
    raised: Layered<Raised, ()>,
    children: Layered<usize, Child>,
    ended: Layered<(Awaited, i32), ()>,
    open: Layered<(Awaited, i32), Open>,
}

impl Facts {
    /// Whether an event is a duplicate that must not be added.
    #[must_use]
    pub fn is_repeated(&self, event: &HistoryEvent) -> bool {
        match &event.event_type {
            Some(EventType::ExecutionStarted(_)) => self.started.is_some(),
            Some(EventType::ExecutionCompleted(_)) => self.completed.is_some(),
            _ => ends(event).is_some_and(|ended| self.ended.contains(&ended)),
        }
    }

    /// Whether an event is the result of another execution of the activity, started before the workflow
    /// continued as new.
    #[must_use]
    pub fn is_foreign(&self, event: &HistoryEvent) -> bool {
        let result = execution_of_result(event);
        let awaited = ends(event).and_then(|ended| self.open.get(&ended));
        let awaited = awaited.map_or("", |open| open.execution.as_str());
        !result.is_empty() && !awaited.is_empty() && result != awaited
    }

    /// Whether this raised event was already added: a sender that was interrupted sends it again.
    pub(crate) fn was_raised(&self, event: &HistoryEvent) -> bool {
        raised(event).is_some_and(|event| self.raised.contains(&event))
    }

    /// The execution id; empty if it has none.
    #[must_use]
    pub fn execution(&self) -> &str {
        let started = self.started.as_deref();
        started.map_or("", |started| execution_id(&started.event))
    }

    /// Adds an event. Returns the timer that it makes superfluous: the limit of a finished wait.
    pub fn add(&mut self, event: &HistoryEvent) -> Option<i32> {
        self.len += 1;
        self.first_at = self.first_at.or(event.timestamp);
        self.updated_at = event.timestamp.or(self.updated_at);
        self.stalled = None;
        if let Some(ended) = ends(event) {
            self.open.remove(&ended);
            self.ended.insert(ended, ());
            return None;
        }
        let id = event.event_id;
        match event.event_type.as_ref()? {
            EventType::ExecutionStarted(e) => {
                self.started = Some(Arc::new(Started {
                    event: e.clone(),
                    at: event.timestamp,
                }));
            }
            EventType::ExecutionCompleted(e) => {
                self.completed = Some(Arc::new(Completed {
                    event: e.clone(),
                    at: event.timestamp,
                    entry: self.len - 1,
                }));
            }
            EventType::WorkflowStarted(e) => {
                let version = e.version.iter();
                self.patches
                    .extend(version.flat_map(|version| version.patches.iter().cloned()));
                if self.version.is_none() {
                    self.version = e.version.as_ref().and_then(|version| version.name.clone());
                }
            }
            EventType::TaskScheduled(e) => self.begin(Awaited::Task, id, || Open {
                name: e.name.clone(),
                app: app(event),
                execution: e.task_execution_id.clone(),
                ..begun(event)
            }),
            EventType::TimerCreated(e) => self.begin(Awaited::Timer, id, || Open {
                due: e.fire_at,
                limits: limited_wait(e),
                ..begun(event)
            }),
            EventType::ChildWorkflowInstanceCreated(e) => {
                let child = Child {
                    event: id,
                    id: e.instance_id.clone(),
                    app: app(event),
                };
                self.children.insert(self.children.len(), child);
                self.begin(Awaited::Child, id, || Open {
                    name: e.name.clone(),
                    app: app(event),
                    instance: Some(e.instance_id.clone()),
                    ..begun(event)
                });
            }
            EventType::EventRaised(e) => {
                if let Some(raised) = raised(event) {
                    self.raised.insert(raised, ());
                }
                return self.end_wait(&e.name.to_lowercase());
            }
            EventType::ExecutionTerminated(e) => match &mut self.terminated {
                Some(first) if e.recurse => Arc::make_mut(first).recurse = true,
                Some(_) => {}
                first => *first = Some(Arc::new(e.clone())),
            },
            EventType::ExecutionSuspended(_) => self.is_suspended = true,
            EventType::ExecutionResumed(_) => self.is_suspended = false,
            EventType::ExecutionStalled(e) => self.stalled = Some(e.clone()),
            _ => {}
        }
        None
    }

    /// Records a start. The result may precede it in the history, if the sidecar stopped between sending and
    /// storing.
    fn begin(&mut self, awaited: Awaited, id: i32, open: impl FnOnce() -> Open) {
        if !self.ended.contains(&(awaited, id)) {
            let entry = self.len - 1;
            self.open.insert((awaited, id), Open { entry, ..open() });
        }
    }

    fn end_wait(&mut self, name: &str) -> Option<i32> {
        let limits = |open: &Open| open.limits.as_ref().map(|name| name.to_lowercase());
        let oldest = self
            .open(Awaited::Timer)
            .find(|(_, open)| limits(open).as_deref() == Some(name))
            .map(|(id, _)| id);
        let id = oldest?;
        self.open.remove(&(Awaited::Timer, id));
        Some(id)
    }

    /// Makes later updates cheap again; see [`Layered::settle`].
    pub(crate) fn settle(&mut self) {
        self.raised.settle();
        self.children.settle();
        self.ended.settle();
        self.open.settle();
    }

    /// Whether a task has ended.
    #[must_use]
    pub fn has_ended(&self, awaited: Awaited, id: i32) -> bool {
        self.ended.contains(&(awaited, id))
    }

    /// Whether a task is in progress.
    #[must_use]
    pub fn is_open(&self, awaited: Awaited, id: i32) -> bool {
        self.open.contains(&(awaited, id))
    }

    /// Whether an event is the result of a task that is not in progress: it has ended, or no stored step
    /// started it.
    #[must_use]
    pub fn ends_nothing(&self, event: &HistoryEvent) -> bool {
        ends(event).is_some_and(|(awaited, id)| !self.is_open(awaited, id))
    }

    /// The task in progress of this kind and number.
    #[must_use]
    pub fn opened(&self, awaited: Awaited, id: i32) -> Option<&Open> {
        self.open.get(&(awaited, id))
    }

    /// Tasks in progress, by event id.
    pub fn open(&self, awaited: Awaited) -> impl Iterator<Item = (i32, &Open)> {
        self.open.range(all(awaited)).map(|((_, id), open)| (*id, open))
    }

    /// All children created.
    pub fn children(&self) -> impl Iterator<Item = &Child> {
        self.children.iter().map(|(_, child)| child)
    }

    /// The status shown to clients.
    #[must_use]
    pub fn status(&self) -> OrchestrationStatus {
        if let Some(completed) = &self.completed {
            return completed.status();
        }
        if self.stalled.is_some() {
            OrchestrationStatus::Stalled
        } else if self.started.is_none() {
            OrchestrationStatus::Pending
        } else if self.is_suspended {
            OrchestrationStatus::Suspended
        } else {
            OrchestrationStatus::Running
        }
    }
}

fn all(awaited: Awaited) -> std::ops::RangeInclusive<(Awaited, i32)> {
    (awaited, i32::MIN)..=(awaited, i32::MAX)
}

/// The name of the event whose wait a timer limits. SDKs before the contract's v1.18 set no origin.
fn limited_wait(timer: &TimerCreatedEvent) -> Option<String> {
    match &timer.origin {
        Some(timer_created_event::Origin::ExternalEvent(event)) => Some(event.name.clone()),
        Some(_) => None,
        None => timer.name.clone(),
    }
}

/// The task that an event starts.
fn begun(event: &HistoryEvent) -> Open {
    Open {
        since: event.timestamp,
        ..Open::default()
    }
}

/// The app that runs a task, if not the workflow's.
fn app(event: &HistoryEvent) -> Option<String> {
    let router = event.router.as_ref();
    let source = router.map_or("", |router| router.source_app_id.as_str());
    other_app(router, source).map(str::to_owned)
}

/// Whether a status is final.
#[must_use]
pub fn is_terminal(status: OrchestrationStatus) -> bool {
    matches!(
        status,
        OrchestrationStatus::Completed
            | OrchestrationStatus::Failed
            | OrchestrationStatus::Terminated
            | OrchestrationStatus::Canceled
    )
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{
        EventRaisedEvent, ExecutionResumedEvent, ExecutionSuspendedEvent, TaskCompletedEvent,
        TaskScheduledEvent, TimerCreatedEvent, TimerFiredEvent, WorkflowStartedEvent,
    };

    use super::*;
    use crate::event::event;

    fn after(events: impl IntoIterator<Item = (i32, EventType)>) -> Facts {
        let mut facts = Facts::default();
        for (id, kind) in events {
            facts.add(&event(id, Timestamp::default(), kind));
        }
        facts
    }

    fn started() -> EventType {
        EventType::ExecutionStarted(ExecutionStartedEvent::default())
    }

    #[test]
    fn status_follows_events() {
        use OrchestrationStatus as Status;
        let suspended = || EventType::ExecutionSuspended(ExecutionSuspendedEvent::default());
        let resumed = || EventType::ExecutionResumed(ExecutionResumedEvent::default());
        let stalled = || EventType::ExecutionStalled(ExecutionStalledEvent::default());
        let ended = |status: Status| {
            EventType::ExecutionCompleted(ExecutionCompletedEvent {
                workflow_status: status.into(),
                ..ExecutionCompletedEvent::default()
            })
        };
        for (events, status) in [
            (vec![], Status::Pending),
            (vec![stalled()], Status::Stalled),
            (vec![started()], Status::Running),
            (vec![started(), suspended()], Status::Suspended),
            (vec![started(), suspended(), resumed()], Status::Running),
            (vec![started(), suspended(), stalled()], Status::Stalled),
            (vec![started(), stalled(), resumed()], Status::Running),
            (vec![started(), ended(Status::Failed)], Status::Failed),
            (
                vec![started(), suspended(), ended(Status::Completed)],
                Status::Completed,
            ),
        ] {
            let found = after(events.iter().map(|event| (-1, event.clone()))).status();
            assert_eq!(found, status, "{events:?}");
        }
    }

    #[test]
    fn raised_event_ends_oldest_wait() {
        let wait = |name: &str| {
            EventType::TimerCreated(TimerCreatedEvent {
                name: Some(name.to_owned()),
                ..TimerCreatedEvent::default()
            })
        };
        let mut facts = after([
            (1, wait("Paid")),
            (2, wait("other")),
            (3, wait("paid")),
            (4, wait("PAID")),
        ]);
        facts.add(&event(
            -1,
            Timestamp::default(),
            EventType::TimerFired(TimerFiredEvent {
                timer_id: 1,
                ..TimerFiredEvent::default()
            }),
        ));
        let raised = EventType::EventRaised(EventRaisedEvent {
            name: "pAId".to_owned(),
            input: None,
        });
        let raised = event(-1, Timestamp::default(), raised);
        assert_eq!(facts.add(&raised), Some(3));
        assert_eq!(facts.add(&raised), Some(4));
        assert_eq!(facts.add(&raised), None);
        assert_eq!(
            facts.open(Awaited::Timer).map(|(id, _)| id).collect::<Vec<_>>(),
            [2]
        );
    }

    #[test]
    fn distinguishes_duplicate_and_foreign_results() {
        let scheduled = EventType::TaskScheduled(TaskScheduledEvent {
            task_execution_id: "two".to_owned(),
            ..TaskScheduledEvent::default()
        });
        let result = |execution: &str| {
            let result = TaskCompletedEvent {
                task_scheduled_id: 5,
                task_execution_id: execution.to_owned(),
                ..TaskCompletedEvent::default()
            };
            event(-1, Timestamp::default(), EventType::TaskCompleted(result))
        };
        let mut facts = after([(-1, started()), (5, scheduled.clone())]);
        assert!(facts.is_foreign(&result("one")));
        assert!(!facts.is_foreign(&result("two")) && !facts.is_foreign(&result("")));
        assert!(!facts.is_repeated(&result("two")));
        assert!(facts.is_repeated(&event(-1, Timestamp::default(), started())));
        facts.add(&result("two"));
        assert!(facts.is_repeated(&result("two")) && !facts.is_open(Awaited::Task, 5));
        // The result was stored but the scheduling was not: the next attempt of the step schedules it again.
        facts.add(&event(5, Timestamp::default(), scheduled));
        assert!(!facts.is_open(Awaited::Task, 5));
    }

    #[test]
    fn patches_accumulate() {
        let step = |patches: &[&str]| {
            EventType::WorkflowStarted(WorkflowStartedEvent {
                version: Some(outrigger_wire::durabletask::WorkflowVersion {
                    patches: patches.iter().map(|&patch| patch.to_owned()).collect(),
                    name: None,
                }),
            })
        };
        let facts = after([(-1, step(&["a"])), (-1, step(&[])), (-1, step(&["b", "c"]))]);
        assert_eq!(facts.patches, ["a", "b", "c"]);
    }
}
