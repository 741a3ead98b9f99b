//! Events of a history.

use std::hash::{DefaultHasher, Hash, Hasher};

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{HistoryEvent, TaskRouter};
use prost_types::Timestamp;

/// The id of events that no action has made.
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

/// Nanoseconds since 1970; 0 without a time.
#[must_use]
pub fn nanos(at: Option<&Timestamp>) -> i128 {
    at.map_or(0, |at| {
        i128::from(at.seconds) * 1_000_000_000 + i128::from(at.nanos)
    })
}

/// What a workflow waits for, other than events by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Awaited {
    /// An activity.
    Task,
    /// A timer, until it fires.
    Timer,
    /// A child workflow.
    Child,
}

/// What an event brings to its end, and the id of the event that began it.
#[must_use]
pub fn ends(event: &HistoryEvent) -> Option<(Awaited, i32)> {
    match event.event_type.as_ref()? {
        EventType::TaskCompleted(e) => Some((Awaited::Task, e.task_scheduled_id)),
        EventType::TaskFailed(e) => Some((Awaited::Task, e.task_scheduled_id)),
        EventType::TimerFired(e) => Some((Awaited::Timer, e.timer_id)),
        EventType::SubOrchestrationInstanceCompleted(e) => Some((Awaited::Child, e.task_scheduled_id)),
        EventType::SubOrchestrationInstanceFailed(e) => Some((Awaited::Child, e.task_scheduled_id)),
        _ => None,
    }
}

/// What tells an event that was raised from all others: when, and a number made from what. `None` for other events and where
/// it has no time, as those that a workflow carries on with.
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

/// The time of such an event, which is found without a look at what may be large.
pub(crate) fn raised_at(event: &HistoryEvent) -> Option<(i64, i32)> {
    let at = event.timestamp.filter(|at| *at != Timestamp::default())?;
    matches!(event.event_type, Some(EventType::EventRaised(_))).then_some((at.seconds, at.nanos))
}

/// Whether the two are one event that was raised once, and sent twice.
pub(crate) fn is_sent_again(event: &HistoryEvent, earlier: &HistoryEvent) -> bool {
    let at = raised_at(event);
    at.is_some() && at == raised_at(earlier) && event.event_type == earlier.event_type
}

/// Which execution of an activity an event is the result of; empty if it does not say.
#[must_use]
pub fn execution_of_result(event: &HistoryEvent) -> &str {
    match &event.event_type {
        Some(EventType::TaskCompleted(e)) => &e.task_execution_id,
        Some(EventType::TaskFailed(e)) => &e.task_execution_id,
        _ => "",
    }
}

/// What tells the end of something that waits in an inbox from all others.
pub(crate) fn end_key(event: &HistoryEvent) -> Option<(Awaited, i32, String)> {
    let (awaited, id) = ends(event)?;
    Some((awaited, id, execution_of_result(event).to_owned()))
}

/// The app that an event is meant for, if it is another than `own`.
#[must_use]
pub fn other_app<'a>(router: Option<&'a TaskRouter>, own: &str) -> Option<&'a str> {
    let target = router?.target_app_id.as_deref()?;
    (!target.is_empty() && target != own).then_some(target)
}

/// Whether an event is a timer's that fired. Those are never stored in an inbox.
#[must_use]
pub fn is_timer(event: &HistoryEvent) -> bool {
    matches!(event.event_type, Some(EventType::TimerFired(_)))
}
