//! Events of a history.

use std::hash::{DefaultHasher, Hash, Hasher};

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{HistoryEvent, TaskRouter};
use prost_types::Timestamp;

/// The id of events not created by an action.
pub const NO_ID: i32 = -1;

/// An event.
#[must_use]
pub fn event(id: i32, at: Timestamp, event_type: EventType) -> HistoryEvent {
    HistoryEvent {
        event_id: id,
        timestamp: Some(at),
        router: None,
        event_type: Some(event_type),
    }
}

/// Nanoseconds since 1970; 0 if absent.
#[must_use]
pub fn nanos(at: Option<&Timestamp>) -> i128 {
    at.map_or(0, |at| {
        i128::from(at.seconds) * 1_000_000_000 + i128::from(at.nanos)
    })
}

/// The kind of an awaited task; named events are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Awaited {
    /// An activity.
    Task,
    /// A timer.
    Timer,
    /// A child workflow.
    Child,
}

/// The kind and number of the task that an event completes.
#[must_use]
pub fn ends(event: &HistoryEvent) -> Option<(Awaited, i32)> {
    match event.event_type.as_ref()? {
        EventType::TaskCompleted(e) => Some((Awaited::Task, e.task_scheduled_id)),
        EventType::TaskFailed(e) => Some((Awaited::Task, e.task_scheduled_id)),
        EventType::TimerFired(e) => Some((Awaited::Timer, e.timer_id)),
        EventType::ChildWorkflowInstanceCompleted(e) => Some((Awaited::Child, e.task_scheduled_id)),
        EventType::ChildWorkflowInstanceFailed(e) => Some((Awaited::Child, e.task_scheduled_id)),
        _ => None,
    }
}

/// Identifies a raised event: time and content hash. `None` for other events and for events without a time,
/// which a workflow carries over when it continues as new.
pub(crate) type Raised = (i64, i32, u64);

pub(crate) fn raised(event: &HistoryEvent) -> Option<Raised> {
    let ((seconds, nanos), Some(EventType::EventRaised(what))) = (raised_at(event)?, &event.event_type)
    else {
        return None;
    };
    let mut hasher = DefaultHasher::new();
    (&what.name, &what.input).hash(&mut hasher);
    Some((seconds, nanos, hasher.finish()))
}

/// The time of a raised event, read without hashing its content.
pub(crate) fn raised_at(event: &HistoryEvent) -> Option<(i64, i32)> {
    let at = event.timestamp.filter(|at| *at != Timestamp::default())?;
    matches!(event.event_type, Some(EventType::EventRaised(_))).then_some((at.seconds, at.nanos))
}

/// Whether an event is a duplicate delivery of an earlier raised event.
pub(crate) fn is_sent_again(event: &HistoryEvent, earlier: &HistoryEvent) -> bool {
    let at = raised_at(event);
    at.is_some() && at == raised_at(earlier) && event.event_type == earlier.event_type
}

/// The execution of the activity that an event is the result of; empty if unknown.
#[must_use]
pub fn execution_of_result(event: &HistoryEvent) -> &str {
    match &event.event_type {
        Some(EventType::TaskCompleted(e)) => &e.task_execution_id,
        Some(EventType::TaskFailed(e)) => &e.task_execution_id,
        _ => "",
    }
}

/// Identifies the result of a task within an inbox.
pub(crate) fn end_key(event: &HistoryEvent) -> Option<(Awaited, i32, String)> {
    let (awaited, id) = ends(event)?;
    Some((awaited, id, execution_of_result(event).to_owned()))
}

/// The target app of an event, if it is not `own`.
#[must_use]
pub fn other_app<'a>(router: Option<&'a TaskRouter>, own: &str) -> Option<&'a str> {
    let target = router?.target_app_id.as_deref()?;
    (!target.is_empty() && target != own).then_some(target)
}

/// Whether an event is a fired timer. Those are never stored in an inbox.
#[must_use]
pub fn is_timer(event: &HistoryEvent) -> bool {
    matches!(event.event_type, Some(EventType::TimerFired(_)))
}
