//! Turns the actions of a worker's answer into events and side effects.

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType;
use outrigger_wire::durabletask::{
    ChildWorkflowInstanceCompletedEvent, ChildWorkflowInstanceCreatedEvent, ChildWorkflowInstanceFailedEvent,
    CompleteWorkflowAction, CreateChildWorkflowAction, CreateTimerAction, ExecutionCompletedEvent,
    ExecutionStalledEvent, ExecutionStartedEvent, HistoryEvent, HistoryPropagationScope, OrchestrationStatus,
    ParentInstanceInfo, ScheduleTaskAction, StalledReason, TaskRouter, TaskScheduledEvent, TimerCreatedEvent,
    TimerFiredEvent, WorkflowAction, WorkflowInstance, WorkflowStartedEvent, create_timer_action,
    timer_created_event,
};
use prost_types::Timestamp;

use crate::error::StepError;
use crate::event::{Awaited, NO_ID, event, nanos, other_app};
use crate::facts::Facts;
use crate::instance::Instance;
use crate::names::child_id;
use crate::origin::Origin;
use crate::propagation::scope;
use crate::step::{Message, Step, StepContext, Timer};

/// Side effects of a step.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) tasks: Vec<HistoryEvent>,
    pub(crate) timers: Vec<Timer>,
    pub(crate) messages: Vec<Message>,
    pub(crate) stalled: Option<ExecutionStalledEvent>,
}

/// Builds a timer from its creation event.
pub(crate) fn timer(id: i32, fire_at: Option<Timestamp>, at: Timestamp) -> Timer {
    let fired = TimerFiredEvent {
        fire_at,
        timer_id: id,
    };
    Timer {
        id,
        fire_at,
        fired: event(NO_ID, at, EventType::TimerFired(fired)),
    }
}

/// The parent of a child workflow.
#[derive(Clone, Copy)]
pub(crate) struct Parent<'a> {
    /// Its instance id.
    pub(crate) id: &'a str,
    /// Its app.
    pub(crate) app: &'a str,
    /// Its start event.
    pub(crate) start: Option<&'a ExecutionStartedEvent>,
}

/// Builds the message that creates a child, from its creation event.
pub(crate) fn creation(
    parent: Parent<'_>,
    created: &HistoryEvent,
    child: &ChildWorkflowInstanceCreatedEvent,
    outside: (Timestamp, String),
) -> Message {
    let Parent {
        id,
        app,
        start: parent,
    } = parent;
    let (at, execution) = outside;
    let started = ExecutionStartedEvent {
        name: child.name.clone(),
        version: child.version.clone(),
        input: child.input.clone(),
        workflow_instance: Some(WorkflowInstance {
            instance_id: child.instance_id.clone(),
            execution_id: Some(execution),
        }),
        parent_instance: Some(ParentInstanceInfo {
            task_scheduled_id: created.event_id,
            name: Some(parent.map(|parent| parent.name.clone()).unwrap_or_default()),
            version: None,
            // The execution id distinguishes a child that is created again from a child of a parent that
            // continued as new.
            workflow_instance: Some(WorkflowInstance {
                instance_id: id.to_owned(),
                execution_id: parent
                    .and_then(|parent| parent.workflow_instance.as_ref())
                    .and_then(|parent| parent.execution_id.clone()),
            }),
            app_id: Some(app.to_owned()),
            app_namespace: None,
        }),
        parent_trace_context: child.parent_trace_context.clone(),
        ..ExecutionStartedEvent::default()
    };
    let mut start = event(NO_ID, at, EventType::ExecutionStarted(started));
    start.router.clone_from(&created.router);
    Message {
        target: child.instance_id.clone(),
        app: other_app(created.router.as_ref(), app).map(str::to_owned),
        event: start,
        origin: Origin::default(),
        cause: Some(created.event_id),
        propagates: scope(created),
    }
}

/// The origin of a timer, as its creation event has it.
fn origin(origin: create_timer_action::Origin) -> timer_created_event::Origin {
    use create_timer_action::Origin as Action;
    use timer_created_event::Origin as Created;
    match origin {
        Action::CreateTimer(origin) => Created::CreateTimer(origin),
        Action::ExternalEvent(origin) => Created::ExternalEvent(origin),
        Action::ActivityRetry(origin) => Created::ActivityRetry(origin),
        Action::ChildWorkflowRetry(origin) => Created::ChildWorkflowRetry(origin),
    }
}

impl Step {
    /// Applies an action. Returns the next step if the workflow continues as new; later actions are then
    /// ignored.
    pub(crate) fn apply(
        &mut self,
        instance: &Instance,
        action: WorkflowAction,
        outside: &mut StepContext<'_>,
        effects: &mut Effects,
    ) -> Result<Option<Self>, StepError> {
        let id = action.id;
        let outbound = |what: &'static str| StepError::Outbound {
            instance: self.id.clone(),
            what,
        };
        let of_action = action.router;
        match action.workflow_action_type {
            Some(WorkflowActionType::ScheduleTask(task)) => {
                self.schedule(id, task, of_action, outside, effects);
            }
            Some(WorkflowActionType::CreateTimer(timer)) => {
                self.create_timer(id, timer, of_action, outside, effects);
            }
            Some(WorkflowActionType::CreateChildWorkflow(child)) => {
                self.create_child(id, child, of_action, outside, effects)?;
            }
            Some(WorkflowActionType::CompleteWorkflow(complete)) => {
                let continues = complete.workflow_status() == OrchestrationStatus::ContinuedAsNew;
                if continues {
                    // SDKs answer a termination with both actions, in either order. The termination wins.
                    if self.facts.completed.is_some() || self.terminated.is_some() {
                        return Ok(None);
                    }
                    return Ok(Some(self.continue_as_new(instance, complete, of_action, outside)));
                }
                self.complete(id, complete, of_action, outside.at, effects);
            }
            Some(WorkflowActionType::WorkflowVersionNotAvailable(_)) => {
                let name = self.facts.version.as_deref().unwrap_or_default();
                effects.stalled = Some(ExecutionStalledEvent {
                    reason: StalledReason::VersionNotAvailable.into(),
                    description: Some(format!("Version not available: {name}")),
                });
            }
            Some(WorkflowActionType::SendEvent(_)) => return Err(outbound("sendEvent")),
            Some(WorkflowActionType::TerminateWorkflow(_)) => {
                return Err(outbound("terminateOrchestration"));
            }
            Some(WorkflowActionType::CreateDetachedWorkflow(_)) | None => {
                return Err(StepError::UnknownAction {
                    instance: self.id.clone(),
                    action: id,
                });
            }
        }
        Ok(None)
    }

    /// The source is always this app; the target comes from the action or from the action it wraps.
    fn router(&self, outer: Option<TaskRouter>, inner: Option<TaskRouter>) -> Option<TaskRouter> {
        let target = |router: Option<TaskRouter>| router.and_then(|router| router.target_app_id);
        Some(TaskRouter {
            source_app_id: self.app.clone(),
            target_app_id: target(inner).or_else(|| target(outer)),
            target_app_namespace: None,
        })
    }

    fn record_action(
        &mut self,
        id: i32,
        at: Timestamp,
        router: Option<TaskRouter>,
        event_type: EventType,
    ) -> HistoryEvent {
        let mut event = event(id, at, event_type);
        event.router = router;
        self.take(event.clone());
        event
    }

    fn schedule(
        &mut self,
        id: i32,
        task: ScheduleTaskAction,
        outer: Option<TaskRouter>,
        outside: &StepContext<'_>,
        effects: &mut Effects,
    ) {
        let router = self.router(outer, task.router);
        let scheduled = TaskScheduledEvent {
            name: task.name,
            version: task.version,
            input: task.input,
            parent_trace_context: outside.trace.clone(),
            task_execution_id: match task.task_execution_id {
                given if given.is_empty() => self.task_execution(id),
                given => given,
            },
            rerun_parent_instance_info: None,
            history_propagation_scope: task.history_propagation_scope,
        };
        let execution = scheduled.task_execution_id.clone();
        let event = self.record_action(id, outside.at, router, EventType::TaskScheduled(scheduled));
        // The result may have arrived already, for an earlier attempt of this step that was not stored.
        if !self.facts.has_ended(Awaited::Task, id) && !self.has_early(Awaited::Task, id, &execution) {
            effects.tasks.push(event);
        }
    }

    /// The execution id of an activity if the SDK sets none. It distinguishes activities of the same number
    /// in different lives of the instance, and is the same for each attempt of the step.
    fn task_execution(&self, id: i32) -> String {
        let Some(started) = &self.facts.started else {
            return String::new();
        };
        let instance = started.event.workflow_instance.as_ref();
        match instance.and_then(|instance| instance.execution_id.as_ref()) {
            Some(execution) => format!("{execution}-{id}"),
            None => format!("{}-{id}", nanos(started.at.as_ref())),
        }
    }

    fn create_timer(
        &mut self,
        id: i32,
        action: CreateTimerAction,
        outer: Option<TaskRouter>,
        outside: &StepContext<'_>,
        effects: &mut Effects,
    ) {
        let router = self.router(outer, None);
        let created = TimerCreatedEvent {
            fire_at: action.fire_at,
            name: action.name,
            rerun_parent_instance_info: None,
            origin: action.origin.map(origin),
        };
        self.record_action(id, outside.at, router, EventType::TimerCreated(created));
        if !self.facts.has_ended(Awaited::Timer, id) {
            effects.timers.push(timer(id, action.fire_at, outside.at));
        }
    }

    fn create_child(
        &mut self,
        id: i32,
        action: CreateChildWorkflowAction,
        outer: Option<TaskRouter>,
        outside: &mut StepContext<'_>,
        effects: &mut Effects,
    ) -> Result<(), StepError> {
        let router = self.router(outer, action.router);
        let instance_id = match action.instance_id {
            given if given.is_empty() => child_id(&self.id, id),
            given => given,
        };
        if instance_id == self.id && other_app(router.as_ref(), &self.app).is_none() {
            return Err(StepError::OwnChild {
                instance: instance_id,
                action: id,
                child: action.name,
            });
        }
        let child = ChildWorkflowInstanceCreatedEvent {
            instance_id,
            name: action.name,
            version: action.version,
            input: action.input,
            parent_trace_context: outside.trace.clone(),
            rerun_parent_instance_info: None,
            history_propagation_scope: action.history_propagation_scope,
        };
        let event_type = EventType::ChildWorkflowInstanceCreated(child.clone());
        let created = self.record_action(id, outside.at, router, event_type);
        if self.facts.has_ended(Awaited::Child, id) || self.has_early(Awaited::Child, id, "") {
            return Ok(());
        }
        let outside = (outside.at, (outside.new_id)());
        let parent = Parent {
            id: &self.id,
            app: &self.app,
            start: self.facts.started.as_deref().map(|started| &started.event),
        };
        effects.messages.push(creation(parent, &created, &child, outside));
        Ok(())
    }

    fn name(&self) -> &str {
        let started = self.facts.started.as_deref();
        started.map_or("", |started| &started.event.name)
    }

    pub(crate) fn complete(
        &mut self,
        id: i32,
        action: CompleteWorkflowAction,
        outer: Option<TaskRouter>,
        at: Timestamp,
        effects: &mut Effects,
    ) {
        let status = action.workflow_status();
        let router = self.router(outer, None);
        let completed = ExecutionCompletedEvent {
            workflow_status: status.into(),
            result: action.result.clone(),
            failure_details: action.failure_details.clone(),
        };
        if self.facts.completed.is_some() {
            return;
        }
        self.record_action(id, at, router, EventType::ExecutionCompleted(completed));
        let started = self.facts.started.as_deref();
        let Some(parent) = started.and_then(|started| started.event.parent_instance.as_ref()) else {
            return;
        };
        let Some(instance) = &parent.workflow_instance else {
            return;
        };
        let task_scheduled_id = parent.task_scheduled_id;
        // Set if the parent named its execution.
        let origin = instance.execution_id.as_ref().map(|execution| Origin {
            execution: execution.clone(),
            instance: self.id.clone(),
        });
        let outcome = if status == OrchestrationStatus::Completed {
            EventType::ChildWorkflowInstanceCompleted(ChildWorkflowInstanceCompletedEvent {
                task_scheduled_id,
                result: action.result,
                attestation: None,
                signer_certificate: None,
            })
        } else {
            EventType::ChildWorkflowInstanceFailed(ChildWorkflowInstanceFailedEvent {
                task_scheduled_id,
                failure_details: action.failure_details,
                attestation: None,
                signer_certificate: None,
            })
        };
        let mut event = event(NO_ID, at, outcome);
        event.router = Some(TaskRouter {
            source_app_id: self.app.clone(),
            target_app_id: parent.app_id.clone(),
            target_app_namespace: None,
        });
        effects.messages.push(Message {
            target: instance.instance_id.clone(),
            app: other_app(event.router.as_ref(), &self.app).map(str::to_owned),
            origin: origin.unwrap_or_default(),
            event,
            cause: None,
            propagates: HistoryPropagationScope::None,
        });
    }

    fn continue_as_new(
        &self,
        instance: &Instance,
        action: CompleteWorkflowAction,
        outer: Option<TaskRouter>,
        outside: &mut StepContext<'_>,
    ) -> Self {
        let router = self.router(outer, None);
        let last = self.facts.started.as_deref().map(|started| &started.event);
        let started = ExecutionStartedEvent {
            name: self.name().to_owned(),
            version: action
                .new_version
                .or_else(|| last.and_then(|last| last.version.clone())),
            input: action.result,
            workflow_instance: Some(WorkflowInstance {
                instance_id: self.id.clone(),
                execution_id: Some((outside.new_id)()),
            }),
            parent_instance: last.and_then(|last| last.parent_instance.clone()),
            // One trace over all executions of an endless workflow would grow without limit.
            parent_trace_context: last
                .and_then(|last| last.parent_trace_context.as_ref())
                .map(|_| (outside.new_trace)()),
            ..ExecutionStartedEvent::default()
        };
        let mut next = self.restarted();
        next.received = self.received_by_next(instance);
        let step = EventType::WorkflowStarted(WorkflowStartedEvent::default());
        for event_type in [step, EventType::ExecutionStarted(started)] {
            next.record_action(NO_ID, outside.at, router.clone(), event_type);
        }
        for event in action.carryover_events {
            if !next.facts.is_repeated(&event) {
                next.take(event);
            }
        }
        next
    }

    fn restarted(&self) -> Self {
        let mut next = self.clone();
        next.facts = Facts::default();
        next.fresh = Vec::new();
        next.forget();
        next.restarts += 1;
        next
    }
}
