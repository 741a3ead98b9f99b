//! Whether an instance is created, and how it begins.

use outrigger_wire::durabletask::backend::v1::CreateWorkflowInstanceRequest;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    CreateOrchestrationAction, ExecutionStartedEvent, HistoryEvent, ParentInstanceInfo,
};
use prost_types::Timestamp;

use crate::error::CreateError;
use crate::event::{ends, nanos};
use crate::instance::Instance;
use crate::stored::Change;

/// What becomes of a request to create an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// It begins; what there was of its id has ended.
    Begin,
    /// It begins, in place of what runs under its id.
    Replace,
    /// Nothing: the request was carried out before, or is to be ignored.
    Nothing,
}

/// The execution that an event begins.
#[must_use]
pub fn execution(event: &HistoryEvent) -> Option<&ExecutionStartedEvent> {
    match &event.event_type {
        Some(EventType::ExecutionStarted(started)) => Some(started),
        _ => None,
    }
}

/// The id of an execution; empty where it has none.
pub(crate) fn execution_id(started: &ExecutionStartedEvent) -> &str {
    let instance = started.orchestration_instance.as_ref();
    let id = instance.and_then(|instance| instance.execution_id.as_deref());
    id.unwrap_or_default()
}

/// When a first run is due.
#[must_use]
pub fn due(event: &HistoryEvent) -> Option<Timestamp> {
    let scheduled = execution(event).and_then(|started| started.scheduled_start_timestamp);
    scheduled.or(event.timestamp)
}

impl Instance {
    /// What becomes of a request. `awaits_result` says whether an activity of the last execution may still answer.
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
        let status = self.status() as i32;
        let policy = request.policy.as_ref();
        if let Some(policy) = policy.filter(|policy| policy.operation_status.contains(&status)) {
            match policy.action() {
                CreateOrchestrationAction::Ignore => return Ok(Creation::Nothing),
                CreateOrchestrationAction::Terminate => return Ok(Creation::Replace),
                CreateOrchestrationAction::Error => {}
            }
        }
        if !self.is_completed() {
            // Of whichever execution of its parent: one that continued as new takes the child over.
            return if is_same_task(existing, start) {
                Ok(Creation::Nothing)
            } else {
                Err(CreateError::Active(self.id.clone()))
            };
        }
        // Its parent knows how it ended; the parent's step was cut off before it was stored.
        if is_same_task(existing, start) && is_same_execution(existing, start) {
            return Ok(Creation::Nothing);
        }
        if awaits_result {
            return Err(CreateError::AwaitsResult(self.id.clone()));
        }
        Ok(Creation::Begin)
    }

    /// Which execution it is in: its id; empty where it has none.
    #[must_use]
    pub fn execution(&self) -> &str {
        self.start_event().map_or("", execution_id)
    }

    /// When it begins, if that is after `now` and nothing but its start has come. Reminders of an execution that it took the
    /// place of do not begin it sooner.
    #[must_use]
    pub fn begins_later(&self, now: Timestamp) -> Option<Timestamp> {
        // Nothing of it can have ended yet: that is of the execution before.
        let mut came = self.inbox.iter().filter(|event| ends(event).is_none());
        let (Some(start), None) = (came.next(), came.next()) else {
            return None;
        };
        let due = execution(start)?.scheduled_start_timestamp?;
        let is_later = self.facts.started.is_none() && nanos(Some(&due)) > nanos(Some(&now));
        is_later.then_some(due)
    }

    /// Begins an execution, in place of the last one if there was any.
    pub fn start(&mut self, event: HistoryEvent) -> Change {
        if self.start_event().is_some() {
            self.reset();
        }
        self.inbox.push(event);
        self.change_from(0, 0)
    }
}

/// A parent that did not store its step creates its children again: the instance and the task are those of before.
fn is_same_task(existing: &ExecutionStartedEvent, start: &ExecutionStartedEvent) -> bool {
    fn key(parent: &ParentInstanceInfo) -> (Option<String>, i32) {
        let instance = parent.orchestration_instance.as_ref();
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

/// Children that Dapr's sidecars have created do not say of which execution of their parent they are. One of those may be of
/// an execution before, and what it ended with is not told again: it begins anew, as it would there.
fn is_same_execution(existing: &ExecutionStartedEvent, start: &ExecutionStartedEvent) -> bool {
    let (one, other) = (parent_execution(existing), parent_execution(start));
    other.is_some() && one == other
}

fn parent_execution(event: &ExecutionStartedEvent) -> Option<&str> {
    let parent = event.parent_instance.as_ref()?.orchestration_instance.as_ref()?;
    parent.execution_id.as_deref()
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{
        EventRaisedEvent, ExecutionCompletedEvent, OrchestrationIdReusePolicy, OrchestrationInstance,
        OrchestrationStatus, TaskCompletedEvent,
    };

    use super::*;
    use crate::event::event;

    const AT: Timestamp = Timestamp { seconds: 1, nanos: 0 };

    fn started(parent: Option<(&str, i32)>) -> HistoryEvent {
        let parent = parent.map(|(id, task)| ParentInstanceInfo {
            task_scheduled_id: task,
            orchestration_instance: Some(OrchestrationInstance {
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

    fn request(
        parent: Option<(&str, i32)>,
        policy: Option<(&[OrchestrationStatus], CreateOrchestrationAction)>,
    ) -> CreateWorkflowInstanceRequest {
        CreateWorkflowInstanceRequest {
            start_event: Some(started(parent)),
            policy: policy.map(|(statuses, action)| OrchestrationIdReusePolicy {
                operation_status: statuses.iter().map(|status| (*status).into()).collect(),
                action: action.into(),
            }),
        }
    }

    fn running(parent: Option<(&str, i32)>) -> Instance {
        let mut instance = Instance::new("a");
        instance.append(&started(parent));
        instance
    }

    #[test]
    fn the_policy_decides_where_the_status_is_named() {
        use CreateOrchestrationAction as Action;
        use OrchestrationStatus::{Completed, Running};
        let active = || CreateError::Active("a".to_owned());
        let (run, mut done) = (running(None), running(None));
        let completed = ExecutionCompletedEvent {
            orchestration_status: Completed.into(),
            ..ExecutionCompletedEvent::default()
        };
        done.append(&event(1, AT, EventType::ExecutionCompleted(completed)));
        for (existing, policy, expected) in [
            (&Instance::new("a"), None, Ok(Creation::Begin)),
            (&run, None, Err(active())),
            (
                &run,
                Some((&[Running][..], Action::Ignore)),
                Ok(Creation::Nothing),
            ),
            (
                &run,
                Some((&[Running][..], Action::Terminate)),
                Ok(Creation::Replace),
            ),
            (&run, Some((&[Running][..], Action::Error)), Err(active())),
            (&run, Some((&[Completed][..], Action::Ignore)), Err(active())),
            (&done, None, Ok(Creation::Begin)),
            (
                &done,
                Some((&[Completed, Running][..], Action::Ignore)),
                Ok(Creation::Nothing),
            ),
            (
                &done,
                Some((&[Completed][..], Action::Terminate)),
                Ok(Creation::Replace),
            ),
        ] {
            assert_eq!(
                existing.creation(&request(None, policy), false),
                expected,
                "{policy:?}"
            );
        }
        let awaits = done.creation(&request(None, None), true);
        assert_eq!(awaits, Err(CreateError::AwaitsResult("a".to_owned())));
    }

    #[test]
    fn a_parent_may_create_its_child_again() {
        let child = running(Some(("p", 3)));
        let asked = |parent| child.creation(&request(parent, None), false);
        assert_eq!(asked(Some(("p", 3))), Ok(Creation::Nothing));
        for other in [Some(("p", 4)), Some(("q", 3)), None] {
            assert_eq!(asked(other), Err(CreateError::Active("a".to_owned())));
        }
        // While it runs, the parent may have continued as new. It has ended: the same execution of the parent knows, another
        // one has it begin anew.
        let of_execution = |execution: &str| {
            let mut event = started(Some(("p", 3)));
            if let Some(EventType::ExecutionStarted(started)) = &mut event.event_type {
                let parent = started.parent_instance.as_mut().unwrap();
                parent.orchestration_instance.as_mut().unwrap().execution_id = Some(execution.to_owned());
            }
            event
        };
        let asked_by = |execution: &str| CreateWorkflowInstanceRequest {
            start_event: Some(of_execution(execution)),
            policy: None,
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
        // Of which execution one is that Dapr has created, nobody knows: its parent would wait for a result that does not come.
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
    fn a_second_execution_is_of_the_next_generation_and_leaves_nothing_of_the_first() {
        let mut instance = Instance::new("a");
        assert_eq!(instance.start(started(None)).upserts.len(), 2);
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
        let change = instance.start(started(None));
        assert_eq!(instance.generation, 2);
        assert_eq!(change.deletes, ["history-000000", "history-000001"]);
        assert_eq!(instance.status(), OrchestrationStatus::Pending);
    }

    #[test]
    fn a_first_run_may_be_due_later() {
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
        // Whatever had it run before.
        let mut instance = Instance::new("a");
        instance.start(start);
        let [before, after] = [49, 51].map(|seconds| Timestamp { seconds, nanos: 0 });
        assert_eq!(instance.begins_later(before), Some(later));
        assert_eq!(instance.begins_later(after), None);
        // The result of what the execution before began, of a sidecar that does not say for which execution it is.
        let result = TaskCompletedEvent::default();
        instance
            .inbox
            .push(event(-1, AT, EventType::TaskCompleted(result)));
        assert_eq!(instance.begins_later(before), Some(later));
        let raised = EventRaisedEvent::default();
        instance.inbox.push(event(-1, AT, EventType::EventRaised(raised)));
        assert_eq!(instance.begins_later(before), None);
        let mut at_once = Instance::new("b");
        at_once.start(started(None));
        assert_eq!(at_once.begins_later(before), None);
    }
}
