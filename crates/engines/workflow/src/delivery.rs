//! Results that another app delivers.

use crate::error::AddError;
use crate::event::{Awaited, ends};
use crate::instance::{Added, Instance};
use crate::origin::Arrival;

/// The decision about a result that another app delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The instance handles it: the app runs the task, or the instance is unknown.
    Accepted,
    /// Another app runs the task.
    Denied,
    /// The step that started the task is not stored yet: the sender must retry.
    Early,
    /// No step will await it.
    Unwanted,
}

impl Instance {
    /// Decides about a result of `app`. Until the task is in progress, it is unknown which app runs it.
    #[must_use]
    pub fn delivery(&self, arrival: &Arrival, app: &str) -> Delivery {
        let Some((awaited, id)) = ends(&arrival.event) else {
            return Delivery::Denied;
        };
        if let Some(open) = self.facts.opened(awaited, id) {
            return match open.app.as_deref() == Some(app) {
                true => Delivery::Accepted,
                false => Delivery::Denied,
            };
        }
        // The repeated step runs an activity of Dapr again, as does a sender that gets an error.
        let runs_again = awaited == Awaited::Task && arrival.origin.execution.is_empty();
        match self.check_against(&arrival.event, &arrival.origin, |_| false) {
            Err(AddError::Unknown) => Delivery::Accepted,
            Ok(Added::Repeated | Added::Foreign) => Delivery::Unwanted,
            _ if self.is_completed() || runs_again => Delivery::Unwanted,
            _ => Delivery::Early,
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::history_event::EventType;
    use outrigger_wire::durabletask::{
        ChildWorkflowInstanceCompletedEvent, ChildWorkflowInstanceCreatedEvent, ExecutionCompletedEvent,
        ExecutionStartedEvent, HistoryEvent, TaskCompletedEvent, TaskRouter, TaskScheduledEvent,
        WorkflowInstance,
    };
    use prost_types::Timestamp;

    use super::*;
    use crate::event::event;
    use crate::origin::Origin;

    const AT: Timestamp = Timestamp { seconds: 9, nanos: 0 };

    fn started() -> Instance {
        let mut instance = Instance::new("one");
        let start = ExecutionStartedEvent {
            workflow_instance: Some(WorkflowInstance {
                instance_id: "one".to_owned(),
                execution_id: Some("now".to_owned()),
            }),
            ..ExecutionStartedEvent::default()
        };
        instance.append(&event(-1, AT, EventType::ExecutionStarted(start)));
        instance
    }

    fn sent_to(app: &str, id: i32, task: EventType) -> HistoryEvent {
        HistoryEvent {
            router: Some(TaskRouter {
                source_app_id: "own".to_owned(),
                target_app_id: Some(app.to_owned()),
                ..TaskRouter::default()
            }),
            ..event(id, AT, task)
        }
    }

    fn result(awaited: Awaited, id: i32, execution: &str) -> Arrival {
        let ended = match awaited {
            Awaited::Child => {
                EventType::ChildWorkflowInstanceCompleted(ChildWorkflowInstanceCompletedEvent {
                    task_scheduled_id: id,
                    ..ChildWorkflowInstanceCompletedEvent::default()
                })
            }
            _ => EventType::TaskCompleted(TaskCompletedEvent {
                task_scheduled_id: id,
                ..TaskCompletedEvent::default()
            }),
        };
        let mut origin = Origin::of(execution);
        origin.instance = "child".to_owned();
        Arrival {
            event: event(-1, AT, ended),
            origin,
            waited: false,
        }
    }

    /// Regression: the early result of a child was dropped, and its parent waited for it for ever.
    #[test]
    fn early_result_is_sent_again() {
        let mut instance = started();
        let child = || result(Awaited::Child, 3, "now");
        let activity = |execution| result(Awaited::Task, 4, execution);
        for arrival in [child(), result(Awaited::Child, 3, ""), activity("now")] {
            assert_eq!(instance.delivery(&arrival, "b"), Delivery::Early);
        }
        assert_eq!(instance.delivery(&activity(""), "b"), Delivery::Unwanted);
        let created = ChildWorkflowInstanceCreatedEvent {
            instance_id: "child".to_owned(),
            ..ChildWorkflowInstanceCreatedEvent::default()
        };
        let created = EventType::ChildWorkflowInstanceCreated(created);
        let task = EventType::TaskScheduled(TaskScheduledEvent::default());
        for event in [sent_to("b", 3, created), sent_to("b", 4, task)] {
            instance.append(&event);
        }
        for arrival in [child(), activity("now"), activity("")] {
            assert_eq!(instance.delivery(&arrival, "b"), Delivery::Accepted);
            assert_eq!(instance.delivery(&arrival, "c"), Delivery::Denied);
        }
    }

    #[test]
    fn result_without_task_is_dropped() {
        let mut instance = started();
        let arrival = result(Awaited::Child, 3, "now");
        let of_earlier = result(Awaited::Child, 5, "before");
        assert_eq!(instance.delivery(&of_earlier, "b"), Delivery::Unwanted);
        instance.append(&arrival.event);
        assert_eq!(instance.delivery(&arrival, "b"), Delivery::Unwanted);
        let ended = EventType::ExecutionCompleted(ExecutionCompletedEvent::default());
        instance.append(&event(-1, AT, ended));
        let other = result(Awaited::Child, 4, "now");
        assert_eq!(instance.delivery(&other, "b"), Delivery::Unwanted);
        assert_eq!(Instance::new("new").delivery(&other, "b"), Delivery::Accepted);
    }
}
