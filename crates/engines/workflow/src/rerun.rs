//! Reruns an ended instance from one of its events: the new instance gets the history before the event, then
//! starts the tasks that were in progress and the event itself.

use std::collections::{HashMap, HashSet};

use outrigger_wire::durabletask::backend::v1::BackendWorkflowState;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    HistoryEvent, RerunParentInstanceInfo, RerunWorkflowFromEventRequest, WorkflowInstance,
};
use prost_types::Timestamp;

use crate::actions::{Parent, creation, timer};
use crate::error::RerunError;
use crate::event::{Awaited, ends, other_app};
use crate::facts::{Facts, is_terminal};
use crate::instance::{FIRST_GENERATION, Instance};
use crate::names::child_id;
use crate::step::{Message, Timer};
use crate::stored::{Change, Counts};

/// The tasks that a new instance starts.
#[derive(Clone, Debug, Default)]
pub struct Rerun {
    /// Activities to start.
    pub tasks: Vec<HistoryEvent>,
    /// Timers to set.
    pub timers: Vec<Timer>,
    /// Children to create.
    pub children: Vec<Message>,
}

fn awaited(event: &HistoryEvent) -> Option<(Awaited, i32)> {
    let kind = match event.event_type.as_ref()? {
        EventType::TaskScheduled(_) => Awaited::Task,
        EventType::TimerCreated(_) => Awaited::Timer,
        EventType::ChildWorkflowInstanceCreated(_) => Awaited::Child,
        _ => return None,
    };
    Some((kind, event.event_id))
}

/// Splits off the past of a new run and its tasks in progress. Starts precede results, as in histories that
/// other sidecars fork.
fn split(past: Vec<HistoryEvent>, facts: &Facts) -> (Vec<HistoryEvent>, Vec<HistoryEvent>) {
    let (mut history, mut open) = (Vec::with_capacity(past.len()), Vec::new());
    let mut begun = HashMap::new();
    let mut ended = HashSet::new();
    for event in past {
        if let Some(end) = ends(&event) {
            history.extend(begun.remove(&end));
            ended.insert(end);
        }
        match awaited(&event) {
            Some(key) if facts.is_open(key.0, key.1) => open.push(event),
            Some(key) if facts.has_ended(key.0, key.1) && !ended.contains(&key) => {
                begun.insert(key, event);
            }
            _ => history.push(event),
        }
    }
    (history, open)
}

impl Instance {
    /// The initial state of `request.new_instance_id`. Its inbox holds the tasks to start again.
    ///
    /// # Errors
    /// [`RerunError`].
    pub fn fork(&self, request: &RerunWorkflowFromEventRequest) -> Result<BackendWorkflowState, RerunError> {
        let start = self
            .start_event()
            .ok_or_else(|| RerunError::NoSource(self.id.clone()))?;
        if !is_terminal(self.status()) {
            return Err(RerunError::NotTerminal(self.id.clone()));
        }
        // The new instance would sign what it takes over.
        if self.is_tombstone() {
            return Err(RerunError::Tampered(self.id.clone()));
        }
        if start.parent_instance.is_some() {
            return Err(RerunError::IsChild(self.id.clone()));
        }
        let new_id = request.new_instance_id.as_deref().unwrap_or_default();
        if new_id == self.id {
            return Err(RerunError::SameId(self.id.clone()));
        }
        let mut past = self.history();
        let index = past
            .iter()
            .position(|event| event.event_id >= 0 && u32::try_from(event.event_id) == Ok(request.event_id));
        let index = index.ok_or(RerunError::NoEvent(request.event_id))?;
        past.truncate(index + 1);
        let Some(mut target) = past.pop() else {
            return Err(RerunError::NoEvent(request.event_id));
        };
        self.retarget(&mut target, request, new_id)?;

        let mut facts = Facts::default();
        for event in &past {
            facts.add(event);
        }
        let (history, mut inbox) = split(past, &facts);
        for event in &mut inbox {
            let id = event.event_id;
            if let Some(EventType::ChildWorkflowInstanceCreated(child)) = &mut event.event_type {
                child.instance_id = child_id(new_id, id);
            }
        }
        inbox.push(target);
        Ok(BackendWorkflowState {
            inbox,
            history,
            custom_status: None,
            generation: FIRST_GENERATION,
        })
    }

    /// Applies the request's changes to the event that the new run starts from.
    fn retarget(
        &self,
        target: &mut HistoryEvent,
        request: &RerunWorkflowFromEventRequest,
        new_id: &str,
    ) -> Result<(), RerunError> {
        let (number, id) = (request.event_id, target.event_id);
        let info = Some(RerunParentInstanceInfo {
            instance_id: self.id.clone(),
        });
        let given = request.new_child_workflow_instance_id.as_deref();
        let router = target.router.as_ref();
        let source = router.map_or("", |router| router.source_app_id.as_str());
        let is_own = other_app(router, source).is_none();
        let input = request.overwrite_input.then(|| request.input.clone());
        match &mut target.event_type {
            Some(EventType::TaskScheduled(task)) => {
                if given.is_some() {
                    return Err(RerunError::NotAChild("activity", number));
                }
                task.rerun_parent_instance_info = info;
                task.input = input.unwrap_or_else(|| task.input.take());
            }
            Some(EventType::TimerCreated(timer)) => {
                if input.is_some() {
                    return Err(RerunError::TimerInput(number));
                }
                if given.is_some() {
                    return Err(RerunError::NotAChild("timer", number));
                }
                timer.rerun_parent_instance_info = info;
            }
            Some(EventType::ChildWorkflowInstanceCreated(child)) => {
                if is_own && given == Some(new_id) {
                    return Err(RerunError::OwnChild(new_id.to_owned()));
                }
                child.rerun_parent_instance_info = info;
                child.instance_id = given.map_or_else(|| child_id(new_id, id), str::to_owned);
                child.input = input.unwrap_or_else(|| child.input.take());
            }
            other => {
                // The debug text starts with the variant name.
                let shown = other
                    .as_ref()
                    .map_or_else(String::new, |other| format!("{other:?}"));
                let kind = shown.split('(').next().unwrap_or_default();
                return Err(RerunError::NotScheduled(kind.to_owned(), number));
            }
        }
        Ok(())
    }

    /// Creates an instance from a state made by [`Instance::fork`]. A reminder starts its tasks
    /// ([`Instance::rerun`]); it must be set before the instance is stored, so that a crash loses nothing.
    /// The instance is an execution with ids from `new_id`, so its activities and children differ from those
    /// of the source and of earlier reruns that were purged.
    ///
    /// # Errors
    /// [`RerunError`].
    pub fn from_fork(
        id: &str,
        state: BackendWorkflowState,
        at: Timestamp,
        new_id: &mut dyn FnMut() -> String,
    ) -> Result<(Self, Change), RerunError> {
        let mut instance = Self::new(id);
        instance.generation = state.generation;
        instance.custom_status = state.custom_status;
        if state.inbox.is_empty() {
            return Err(RerunError::Nothing(id.to_owned()));
        }
        for mut event in state.history {
            if let Some(EventType::ExecutionStarted(started)) = &mut event.event_type {
                started.workflow_instance = Some(WorkflowInstance {
                    instance_id: id.to_owned(),
                    execution_id: Some(new_id()),
                });
            }
            instance.append(&event);
        }
        let mut known = HashSet::new();
        for mut event in state.inbox {
            event.timestamp = Some(at);
            if let Some(EventType::TaskScheduled(task)) = &mut event.event_type {
                task.task_execution_id = new_id();
            }
            let key = awaited(&event).ok_or_else(|| RerunError::Unexpected(id.to_owned()))?;
            if known.insert(key) {
                instance.append(&event);
            }
        }
        let change = instance.change();
        Ok((instance, change))
    }

    /// The tasks still to be started of an instance made by [`Instance::from_fork`] with the counts `made`;
    /// none once it has ended or continued as new. `app` hosts it.
    #[must_use]
    pub fn rerun(&self, made: Counts, app: &str, at: Timestamp, new_id: &mut dyn FnMut() -> String) -> Rerun {
        let mut rerun = Rerun::default();
        if self.is_completed() || self.generation != made.generation {
            return rerun;
        }
        let (id, start) = (self.id.as_str(), self.start_event());
        // Entries after these were added by later steps.
        for event in self.history().into_iter().take(made.history) {
            let waits = |key: (Awaited, i32)| {
                let has_ended = self.inbox.iter().any(|end| ends(end) == Some(key));
                self.facts.is_open(key.0, key.1) && !has_ended
            };
            if !awaited(&event).is_some_and(waits) {
                continue;
            }
            match &event.event_type {
                Some(EventType::TimerCreated(created)) => {
                    rerun.timers.push(timer(event.event_id, created.fire_at, at));
                }
                Some(EventType::ChildWorkflowInstanceCreated(child)) => {
                    let message = creation(Parent { id, app, start }, &event, child, (at, new_id()));
                    rerun.children.push(message);
                }
                _ => rerun.tasks.push(event),
            }
        }
        rerun
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{
        ChildWorkflowInstanceCreatedEvent, ExecutionCompletedEvent, ExecutionStartedEvent,
        ParentInstanceInfo, TaskCompletedEvent, TaskScheduledEvent, TimerCreatedEvent, TimerFiredEvent,
    };

    use super::*;
    use crate::event::event;

    const AT: Timestamp = Timestamp { seconds: 3, nanos: 0 };

    fn source() -> Instance {
        let mut instance = Instance::new("old");
        let child = ChildWorkflowInstanceCreatedEvent {
            instance_id: "old:0003".to_owned(),
            name: "sub".to_owned(),
            ..ChildWorkflowInstanceCreatedEvent::default()
        };
        let ended = TaskCompletedEvent {
            task_scheduled_id: 1,
            ..TaskCompletedEvent::default()
        };
        let fired = TimerFiredEvent {
            timer_id: 0,
            ..TimerFiredEvent::default()
        };
        for (id, kind) in [
            (-1, EventType::ExecutionStarted(ExecutionStartedEvent::default())),
            (0, EventType::TimerCreated(TimerCreatedEvent::default())),
            (1, EventType::TaskScheduled(TaskScheduledEvent::default())),
            (2, EventType::TaskScheduled(TaskScheduledEvent::default())),
            (3, EventType::ChildWorkflowInstanceCreated(child)),
            (-1, EventType::TaskCompleted(ended)),
            (-1, EventType::TimerFired(fired)),
            (4, EventType::TaskScheduled(TaskScheduledEvent::default())),
            (
                5,
                EventType::ExecutionCompleted(ExecutionCompletedEvent {
                    workflow_status: 1,
                    ..ExecutionCompletedEvent::default()
                }),
            ),
        ] {
            instance.append(&event(id, AT, kind));
        }
        instance
    }

    fn request(event_id: u32) -> RerunWorkflowFromEventRequest {
        RerunWorkflowFromEventRequest {
            source_instance_id: "old".to_owned(),
            event_id,
            new_instance_id: Some("new".to_owned()),
            ..RerunWorkflowFromEventRequest::default()
        }
    }

    #[test]
    fn rerun_restarts_open_tasks() {
        let state = source().fork(&request(4)).unwrap();
        let ids = |events: &[HistoryEvent]| events.iter().map(|event| event.event_id).collect::<Vec<_>>();
        assert_eq!(ids(&state.history), [-1, 1, -1, 0, -1]);
        assert_eq!(ids(&state.inbox), [2, 3, 4]);
        let mut next = 0;
        let mut new_id = || {
            next += 1;
            next.to_string()
        };
        let (mut instance, change) = Instance::from_fork("new", state, AT, &mut new_id).unwrap();
        let made = instance.stored();
        let own = &instance.start_event().unwrap().workflow_instance;
        let own = own.as_ref().unwrap();
        assert_eq!(
            (&*own.instance_id, own.execution_id.as_deref()),
            ("new", Some("1"))
        );
        let mut rerun_of = |instance: &Instance| instance.rerun(made, "app", AT, &mut new_id);
        let rerun = rerun_of(&instance);
        assert_eq!(instance.facts().len, 8);
        assert!(instance.inbox().is_empty() && !instance.is_completed());
        assert_eq!(change.upserts.len(), 8 + 2);
        assert_eq!(ids(&rerun.tasks), [2, 4]);
        assert_eq!(rerun.children[0].target, "new:0003");
        assert!(rerun.timers.is_empty());
        let Some(EventType::TaskScheduled(target)) = &rerun.tasks[1].event_type else {
            panic!()
        };
        assert_eq!(
            target.rerun_parent_instance_info.as_ref().unwrap().instance_id,
            "old"
        );
        assert_eq!(
            target.task_execution_id, "3",
            "another execution than the source's"
        );
        let Some(EventType::ExecutionStarted(child)) = &rerun.children[0].event.event_type else {
            panic!()
        };
        let parent = child.parent_instance.as_ref().unwrap().workflow_instance.as_ref();
        assert_eq!(parent.unwrap().execution_id.as_deref(), Some("1"));

        // Tasks that have ended, have a waiting result, or were started by a step are not started again.
        let completed = |id| {
            let completed = TaskCompletedEvent {
                task_scheduled_id: id,
                ..TaskCompletedEvent::default()
            };
            event(-1, AT, EventType::TaskCompleted(completed))
        };
        instance.append(&completed(2));
        instance.push(completed(4));
        instance.append(&event(
            5,
            AT,
            EventType::TaskScheduled(TaskScheduledEvent::default()),
        ));
        let rerun = rerun_of(&instance);
        assert!(rerun.tasks.is_empty());
        assert_eq!(rerun.children.len(), 1);
        instance.reset();
        assert!(rerun_of(&instance).children.is_empty());
    }

    #[test]
    fn replaces_input_and_child_id() {
        let source = source();
        let with_input = |event| RerunWorkflowFromEventRequest {
            overwrite_input: true,
            input: Some("7".to_owned()),
            ..request(event)
        };
        let state = source.fork(&with_input(2)).unwrap();
        let Some(EventType::TaskScheduled(task)) = &state.inbox.last().unwrap().event_type else {
            panic!()
        };
        assert_eq!(task.input.as_deref(), Some("7"));
        assert_eq!(source.fork(&with_input(0)), Err(RerunError::TimerInput(0)));
        let with_child = |event| RerunWorkflowFromEventRequest {
            new_child_workflow_instance_id: Some("kid".to_owned()),
            ..request(event)
        };
        let state = source.fork(&with_child(3)).unwrap();
        let Some(EventType::ChildWorkflowInstanceCreated(child)) = &state.inbox.last().unwrap().event_type
        else {
            panic!()
        };
        assert_eq!(child.instance_id, "kid");
        // The parent's step would create it.
        let itself = |event| RerunWorkflowFromEventRequest {
            new_child_workflow_instance_id: Some("new".to_owned()),
            ..request(event)
        };
        assert_eq!(
            source.fork(&itself(3)),
            Err(RerunError::OwnChild("new".to_owned()))
        );
        assert_eq!(
            source.fork(&with_child(1)),
            Err(RerunError::NotAChild("activity", 1))
        );
    }

    #[test]
    fn rejects_events_that_cannot_rerun() {
        let source = source();
        assert_eq!(
            source.fork(&request(5)),
            Err(RerunError::NotScheduled("ExecutionCompleted".to_owned(), 5))
        );
        assert_eq!(source.fork(&request(6)), Err(RerunError::NoEvent(6)));
        let same = RerunWorkflowFromEventRequest {
            new_instance_id: Some("old".to_owned()),
            ..request(1)
        };
        assert_eq!(source.fork(&same), Err(RerunError::SameId("old".to_owned())));
        assert_eq!(
            Instance::new("x").fork(&request(1)),
            Err(RerunError::NoSource("x".to_owned()))
        );
        let mut running = Instance::new("r");
        let started = ExecutionStartedEvent {
            parent_instance: Some(ParentInstanceInfo::default()),
            ..ExecutionStartedEvent::default()
        };
        running.append(&event(-1, AT, EventType::ExecutionStarted(started)));
        assert_eq!(
            running.fork(&request(1)),
            Err(RerunError::NotTerminal("r".to_owned()))
        );
        running.append(&event(
            1,
            AT,
            EventType::ExecutionCompleted(ExecutionCompletedEvent {
                workflow_status: 1,
                ..ExecutionCompletedEvent::default()
            }),
        ));
        assert_eq!(
            running.fork(&request(1)),
            Err(RerunError::IsChild("r".to_owned()))
        );
    }
}
