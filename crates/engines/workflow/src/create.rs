//! Decides whether to create an instance, and starts it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use outrigger_wire::durabletask::backend::v1::CreateWorkflowInstanceRequest;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ExecutionStartedEvent, HistoryEvent, ParentInstanceInfo, PropagatedHistory,
};
use prost::Message as _;
use prost_types::Timestamp;

use crate::error::CreateError;
use crate::event::{ends, nanos};
use crate::instance::Instance;
use crate::stored::Change;

/// The decision about a create request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// Create it; any previous instance of this id has ended.
    Begin,
    /// Do nothing: the request is a duplicate.
    Nothing,
}

/// The execution that an event starts.
#[must_use]
pub fn execution(event: &HistoryEvent) -> Option<&ExecutionStartedEvent> {
    match &event.event_type {
        Some(EventType::ExecutionStarted(started)) => Some(started),
        _ => None,
    }
}

/// The id of an execution; empty if it has none.
pub(crate) fn execution_id(started: &ExecutionStartedEvent) -> &str {
    let instance = started.workflow_instance.as_ref();
    let id = instance.and_then(|instance| instance.execution_id.as_deref());
    id.unwrap_or_default()
}

/// Due time of the first run.
#[must_use]
pub fn due(event: &HistoryEvent) -> Option<Timestamp> {
    let scheduled = execution(event).and_then(|started| started.scheduled_start_timestamp);
    scheduled.or(event.timestamp)
}

impl Instance {
    /// Decides about a request. `awaits_result`: an activity of the last execution may still answer.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn creation(
        &self,
        request: &CreateWorkflowInstanceRequest,
        awaits_result: bool,
    ) -> Result<Creation, CreateError> {
        let start = request.start_event.as_ref().and_then(execution);
        let start = start.ok_or_else(|| CreateError::NoStart(self.id.clone()))?;
        let Some(existing) = self.start_event() else {
            return Ok(Creation::Begin);
        };
        if !self.is_completed() {
            // Of any execution of the parent: a parent that continued as new takes over the child.
            return if is_same_task(existing, start) {
                Ok(Creation::Nothing)
            } else {
                Err(CreateError::Active(self.id.clone()))
            };
        }
        // The parent already got the result; its step was interrupted before it was stored.
        if is_same_task(existing, start) && is_same_execution(existing, start) {
            return Ok(Creation::Nothing);
        }
        if awaits_result {
            return Err(CreateError::AwaitsResult(self.id.clone()));
        }
        Ok(Creation::Begin)
    }

    /// The id of the current execution; empty if it has none.
    #[must_use]
    pub fn execution(&self) -> &str {
        self.start_event().map_or("", execution_id)
    }

    /// Identifies the execution, whose history only grows.
    #[must_use]
    pub fn execution_key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.generation, self.execution()).hash(&mut hasher);
        hasher.finish()
    }

    /// The scheduled start, if it is after `now` and only the start event has arrived. Reminders of a
    /// replaced execution do not start it earlier.
    #[must_use]
    pub fn begins_later(&self, now: Timestamp) -> Option<Timestamp> {
        // Results in the inbox belong to the previous execution.
        let mut came = self.inbox.iter().filter(|event| ends(event).is_none());
        let (Some(start), None) = (came.next(), came.next()) else {
            return None;
        };
        let due = execution(start)?.scheduled_start_timestamp?;
        let is_later = self.facts.started.is_none() && nanos(Some(&due)) > nanos(Some(&now));
        is_later.then_some(due)
    }

    /// Starts an execution, in place of the last one if there is one. `received`: the history passed on to it.
    pub fn start(&mut self, event: HistoryEvent, received: Option<PropagatedHistory>) -> Change {
        if self.start_event().is_some() {
            self.reset();
        }
        self.receive(received.map(|received| received.encode_to_vec().into()));
        self.inbox.push(event);
        self.change_from(0, 0)
    }
}

/// Whether both come from the same task of the same parent: a parent whose step was not stored creates its
/// children again.
fn is_same_task(existing: &ExecutionStartedEvent, start: &ExecutionStartedEvent) -> bool {
    fn key(parent: &ParentInstanceInfo) -> (Option<String>, i32) {
        let instance = parent.workflow_instance.as_ref();
        (
            instance.map(|instance| instance.instance_id.clone()),
            parent.task_scheduled_id,
        )
    }
    let parent = |event: &'_ ExecutionStartedEvent| event.parent_instance.clone();
    match (
        parent(existing).as_ref().map(key),
        parent(start).as_ref().map(key),
    ) {
        (Some(of_existing), Some(of_start)) => of_existing == of_start,
        _ => false,
    }
}

/// Children created by Dapr's sidecars do not name the execution of their parent. Such a child may belong to
/// an earlier execution whose result is not reported again, so it starts anew, as it would with Dapr.
fn is_same_execution(existing: &ExecutionStartedEvent, start: &ExecutionStartedEvent) -> bool {
    let (one, other) = (parent_execution(existing), parent_execution(start));
    other.is_some() && one == other
}

fn parent_execution(event: &ExecutionStartedEvent) -> Option<&str> {
    let parent = event.parent_instance.as_ref()?.workflow_instance.as_ref()?;
    parent.execution_id.as_deref()
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{
        EventRaisedEvent, ExecutionCompletedEvent, OrchestrationStatus, TaskCompletedEvent, WorkflowInstance,
    };

    use super::*;
    use crate::event::event;

    const AT: Timestamp = Timestamp { seconds: 1, nanos: 0 };

    fn started(parent: Option<(&str, i32)>) -> HistoryEvent {
        let parent = parent.map(|(id, task)| ParentInstanceInfo {
            task_scheduled_id: task,
            workflow_instance: Some(WorkflowInstance {
                instance_id: id.to_owned(),
                execution_id: None,
            }),
            ..ParentInstanceInfo::default()
        });
        let started = ExecutionStartedEvent {
            parent_instance: parent,
            ..ExecutionStartedEvent::default()
        };
        event(-1, AT, EventType::ExecutionStarted(started))
    }

    fn request(parent: Option<(&str, i32)>) -> CreateWorkflowInstanceRequest {
        CreateWorkflowInstanceRequest {
            start_event: Some(started(parent)),
            ..CreateWorkflowInstanceRequest::default()
        }
    }

    fn running(parent: Option<(&str, i32)>) -> Instance {
        let mut instance = Instance::new("a");
        instance.append(&started(parent));
        instance
    }

    #[test]
    fn only_ended_instances_are_replaced() {
        let (run, mut done) = (running(None), running(None));
        let completed = ExecutionCompletedEvent {
            workflow_status: OrchestrationStatus::Completed.into(),
            ..ExecutionCompletedEvent::default()
        };
        done.append(&event(1, AT, EventType::ExecutionCompleted(completed)));
        let active = CreateError::Active("a".to_owned());
        for (existing, expected) in [
            (&Instance::new("a"), Ok(Creation::Begin)),
            (&run, Err(active)),
            (&done, Ok(Creation::Begin)),
        ] {
            assert_eq!(existing.creation(&request(None), false), expected);
        }
        let awaits = done.creation(&request(None), true);
        assert_eq!(awaits, Err(CreateError::AwaitsResult("a".to_owned())));
    }

    #[test]
    fn parent_may_recreate_its_child() {
        let child = running(Some(("p", 3)));
        let asked = |parent| child.creation(&request(parent), false);
        assert_eq!(asked(Some(("p", 3))), Ok(Creation::Nothing));
        for other in [Some(("p", 4)), Some(("q", 3)), None] {
            assert_eq!(asked(other), Err(CreateError::Active("a".to_owned())));
        }
        // While the child runs, the parent may have continued as new. Once it has ended, the same execution
        // of the parent has its result; another execution starts it anew.
        let of_execution = |execution: &str| {
            let mut event = started(Some(("p", 3)));
            if let Some(EventType::ExecutionStarted(started)) = &mut event.event_type {
                let parent = started.parent_instance.as_mut().unwrap();
                parent.workflow_instance.as_mut().unwrap().execution_id = Some(execution.to_owned());
            }
            event
        };
        let asked_by = |execution: &str| CreateWorkflowInstanceRequest {
            start_event: Some(of_execution(execution)),
            propagated_history: None,
        };
        let mut ended = Instance::new("a");
        ended.append(&of_execution("one"));
        for execution in ["one", "two"] {
            assert_eq!(ended.creation(&asked_by(execution), false), Ok(Creation::Nothing));
        }
        ended.append(&event(
            1,
            AT,
            EventType::ExecutionCompleted(ExecutionCompletedEvent::default()),
        ));
        for (execution, expected) in [("one", Creation::Nothing), ("two", Creation::Begin)] {
            assert_eq!(ended.creation(&asked_by(execution), false), Ok(expected));
        }
        // A child created by Dapr may be of any execution: its parent would wait for a result that never
        // arrives.
        let mut of_dapr = running(Some(("p", 3)));
        assert_eq!(of_dapr.creation(&asked_by("one"), false), Ok(Creation::Nothing));
        of_dapr.append(&event(
            1,
            AT,
            EventType::ExecutionCompleted(ExecutionCompletedEvent::default()),
        ));
        assert_eq!(of_dapr.creation(&asked_by("one"), false), Ok(Creation::Begin));
        let no_start = CreateWorkflowInstanceRequest::default();
        assert_eq!(
            child.creation(&no_start, false),
            Err(CreateError::NoStart("a".to_owned()))
        );
    }

    #[test]
    fn second_execution_replaces_the_first() {
        let mut instance = Instance::new("a");
        assert_eq!(instance.start(started(None), None).upserts.len(), 2);
        assert_eq!(instance.generation, 1);
        for event in std::mem::take(&mut instance.inbox) {
            instance.append(&event);
        }
        instance.append(&event(
            1,
            AT,
            EventType::ExecutionCompleted(ExecutionCompletedEvent::default()),
        ));
        instance.change();
        let change = instance.start(started(None), None);
        assert_eq!(instance.generation, 2);
        assert_eq!(change.deletes, ["history-000000", "history-000001"]);
        assert_eq!(instance.status(), OrchestrationStatus::Pending);
    }

    #[test]
    fn first_run_may_be_scheduled() {
        let mut start = started(None);
        assert_eq!(due(&start), Some(AT));
        let later = Timestamp {
            seconds: 50,
            nanos: 0,
        };
        if let Some(EventType::ExecutionStarted(started)) = &mut start.event_type {
            started.scheduled_start_timestamp = Some(later);
        }
        assert_eq!(due(&start), Some(later));
        // No earlier trigger starts it.
        let mut instance = Instance::new("a");
        instance.start(start, None);
        let [before, after] = [49, 51].map(|seconds| Timestamp { seconds, nanos: 0 });
        assert_eq!(instance.begins_later(before), Some(later));
        assert_eq!(instance.begins_later(after), None);
        // A result for the previous execution, from a sidecar that does not name the execution.
        let result = TaskCompletedEvent::default();
        instance
            .inbox
            .push(event(-1, AT, EventType::TaskCompleted(result)));
        assert_eq!(instance.begins_later(before), Some(later));
        let raised = EventRaisedEvent::default();
        instance.inbox.push(event(-1, AT, EventType::EventRaised(raised)));
        assert_eq!(instance.begins_later(before), None);
        let mut at_once = Instance::new("b");
        at_once.start(started(None), None);
        assert_eq!(at_once.begins_later(before), None);
    }
}
