//! A minimal worker: workflows are functions that replay from the start in every step and read results from
//! the history. `None`: the workflow waits.

use std::collections::{HashMap, HashSet, VecDeque};

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Act;
use outrigger_wire::durabletask::{
    CompleteWorkflowAction, CreateChildWorkflowAction, CreateTimerAction, HistoryEvent,
    HistoryPropagationScope, OrchestrationStatus, PropagatedHistory, ScheduleTaskAction, TaskFailureDetails,
    TaskRouter, WorkflowAction, WorkflowRequest, WorkflowResponse,
};
use prost_types::Timestamp;

/// How a workflow ends.
pub enum End {
    /// Completed.
    Completed(String),
    Failed(String),
    /// Continues as new with this input.
    ContinueAsNew(String),
}

/// The context of a workflow.
#[derive(Default)]
pub struct Context {
    pub name: String,
    pub input: String,
    pub instance: String,
    /// The custom status.
    pub status: Option<String>,
    /// The app of the next activity or child; `None` is its own.
    pub app: Option<String>,
    /// How much history the next activity or child receives.
    pub passes: HistoryPropagationScope,
    /// The history that the workflow has received.
    pub received: Option<PropagatedHistory>,
    now: Timestamp,
    next: i32,
    ended: HashMap<i32, Result<String, String>>,
    known: HashSet<i32>,
    raised: HashMap<String, VecDeque<String>>,
    actions: Vec<WorkflowAction>,
    suspended: bool,
    terminated: Option<String>,
}

impl Context {
    fn read(&mut self, event: HistoryEvent) {
        let id = event.event_id;
        let failure = |details: Option<TaskFailureDetails>| Err(details.unwrap_or_default().error_message);
        match event.event_type.unwrap() {
            EventType::ExecutionStarted(e) => {
                self.name = e.name;
                self.input = e.input.unwrap_or_default();
            }
            EventType::WorkflowStarted(_) => self.now = event.timestamp.unwrap(),
            EventType::TaskScheduled(_)
            | EventType::TimerCreated(_)
            | EventType::ChildWorkflowInstanceCreated(_) => {
                self.known.insert(id);
            }
            EventType::TaskCompleted(e) => self.end(e.task_scheduled_id, Ok(e.result.unwrap_or_default())),
            EventType::TaskFailed(e) => self.end(e.task_scheduled_id, failure(e.failure_details)),
            EventType::ChildWorkflowInstanceCompleted(e) => {
                self.end(e.task_scheduled_id, Ok(e.result.unwrap_or_default()));
            }
            EventType::ChildWorkflowInstanceFailed(e) => {
                self.end(e.task_scheduled_id, failure(e.failure_details));
            }
            EventType::TimerFired(e) => self.end(e.timer_id, Ok(String::new())),
            EventType::EventRaised(e) => {
                let waiting = self.raised.entry(e.name.to_lowercase()).or_default();
                waiting.push_back(e.input.unwrap_or_default());
            }
            EventType::ExecutionSuspended(_) => self.suspended = true,
            EventType::ExecutionResumed(_) => self.suspended = false,
            EventType::ExecutionTerminated(e) => self.terminated = Some(e.input.unwrap_or_default()),
            _ => {}
        }
    }

    /// As SDKs do, ignores a result that precedes its start.
    fn end(&mut self, id: i32, result: Result<String, String>) {
        if self.known.contains(&id) {
            self.ended.insert(id, result);
        }
    }

    fn act(&mut self, mut act: Act) -> i32 {
        let id = self.next;
        self.next += 1;
        let scope = Some(std::mem::take(&mut self.passes).into());
        match &mut act {
            Act::ScheduleTask(task) => task.history_propagation_scope = scope,
            Act::CreateChildWorkflow(child) => child.history_propagation_scope = scope,
            _ => {}
        }
        if !self.known.contains(&id) {
            let router = self.app.take().map(|app| TaskRouter {
                source_app_id: String::new(),
                target_app_id: Some(app),
                target_app_namespace: None,
            });
            self.actions.push(WorkflowAction {
                id,
                router,
                workflow_action_type: Some(act),
            });
        }
        self.app = None;
        id
    }

    /// Starts an activity; returns the id for [`Context::wait`].
    pub fn begin_activity(&mut self, name: &str, input: &str) -> i32 {
        let id = self.next;
        self.act(Act::ScheduleTask(ScheduleTaskAction {
            name: name.to_owned(),
            input: Some(input.to_owned()),
            task_execution_id: format!("{}-{id}-{}", self.instance, self.input),
            ..ScheduleTaskAction::default()
        }))
    }

    pub fn begin_timer(&mut self, millis: i64, limits: Option<&str>) -> i32 {
        let nanos = i64::from(self.now.nanos) + millis % 1000 * 1_000_000;
        let fire_at = Timestamp {
            seconds: self.now.seconds + millis / 1000 + nanos / 1_000_000_000,
            nanos: i32::try_from(nanos % 1_000_000_000).unwrap(),
        };
        self.act(Act::CreateTimer(CreateTimerAction {
            fire_at: Some(fire_at),
            name: limits.map(str::to_owned),
            origin: None,
        }))
    }

    /// Starts a child; with an empty `instance` the engine chooses the id.
    pub fn begin_child(&mut self, name: &str, instance: &str, input: &str) -> i32 {
        self.act(Act::CreateChildWorkflow(CreateChildWorkflowAction {
            instance_id: instance.to_owned(),
            name: name.to_owned(),
            input: Some(input.to_owned()),
            ..CreateChildWorkflowAction::default()
        }))
    }

    /// The result of a task.
    pub fn wait(&mut self, id: i32) -> Option<Result<String, String>> {
        self.ended.get(&id).cloned()
    }

    /// Runs an activity.
    pub fn activity(&mut self, name: &str, input: &str) -> Option<Result<String, String>> {
        let id = self.begin_activity(name, input);
        self.wait(id)
    }

    /// Waits for an event.
    pub fn event(&mut self, name: &str) -> Option<String> {
        self.raised.get_mut(&name.to_lowercase())?.pop_front()
    }
}

/// Runs a step.
pub fn step(request: WorkflowRequest, workflow: &dyn Fn(&mut Context) -> Option<End>) -> WorkflowResponse {
    let mut context = Context {
        instance: request.instance_id.clone(),
        received: request.propagated_history,
        ..Context::default()
    };
    for event in request.past_events.into_iter().chain(request.new_events) {
        context.read(event);
    }
    if let Some(output) = context.terminated.take() {
        // The end action gets the number after all others.
        drop(workflow(&mut context));
        let ended = completion(&mut context, OrchestrationStatus::Terminated, Some(output), None);
        context.actions = vec![ended];
    } else if !context.suspended
        && let Some(end) = workflow(&mut context)
    {
        let ended = match end {
            End::Completed(output) => {
                completion(&mut context, OrchestrationStatus::Completed, Some(output), None)
            }
            End::Failed(message) => {
                let details = TaskFailureDetails {
                    error_type: "Failed".to_owned(),
                    error_message: message,
                    ..TaskFailureDetails::default()
                };
                completion(&mut context, OrchestrationStatus::Failed, None, Some(details))
            }
            End::ContinueAsNew(input) => {
                let mut next = completion(
                    &mut context,
                    OrchestrationStatus::ContinuedAsNew,
                    Some(input),
                    None,
                );
                if let Some(Act::CompleteWorkflow(complete)) = &mut next.workflow_action_type {
                    complete.carryover_events = context.carried();
                }
                next
            }
        };
        context.actions.push(ended);
    }
    WorkflowResponse {
        instance_id: request.instance_id,
        actions: context.actions,
        custom_status: context.status,
        ..WorkflowResponse::default()
    }
}

fn completion(
    context: &mut Context,
    status: OrchestrationStatus,
    result: Option<String>,
    failure_details: Option<TaskFailureDetails>,
) -> WorkflowAction {
    let id = context.next;
    context.next += 1;
    WorkflowAction {
        id,
        router: None,
        workflow_action_type: Some(Act::CompleteWorkflow(CompleteWorkflowAction {
            workflow_status: status.into(),
            result,
            failure_details,
            ..CompleteWorkflowAction::default()
        })),
    }
}

impl Context {
    /// Events not consumed.
    fn carried(&mut self) -> Vec<HistoryEvent> {
        use outrigger_wire::durabletask::EventRaisedEvent;
        let mut left: Vec<_> = std::mem::take(&mut self.raised).into_iter().collect();
        left.sort();
        let raised = left.into_iter().flat_map(|(name, inputs)| {
            inputs.into_iter().map(move |input| EventRaisedEvent {
                name: name.clone(),
                input: Some(input),
            })
        });
        raised
            .map(|raised| HistoryEvent {
                event_id: -1,
                timestamp: Some(self.now),
                router: None,
                event_type: Some(EventType::EventRaised(raised)),
            })
            .collect()
    }
}
