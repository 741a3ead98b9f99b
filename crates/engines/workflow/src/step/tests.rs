//! One test per rule of a step; sequences of steps are simulated in `tests/simulation`.

use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Act;
use outrigger_wire::durabletask::{
    CompleteWorkflowAction, CreateChildWorkflowAction, CreateDetachedWorkflowAction, CreateTimerAction,
    EventRaisedEvent, ExecutionStartedEvent, OrchestrationStatus, ScheduleTaskAction, SendEventAction,
    StalledReason, TaskCompletedEvent, TimerFiredEvent, TimerOriginActivityRetry, TimerOriginCreateTimer,
    TimerOriginExternalEvent, WorkflowAction, WorkflowInstance, WorkflowRequest, WorkflowResponse,
    WorkflowVersion, WorkflowVersionNotAvailableAction, create_timer_action,
};

use super::*;
use crate::error::StepError;
use crate::stored::MAX_ENTRIES;

mod children;
mod limits;
mod propagation;

const AT: Timestamp = Timestamp { seconds: 7, nanos: 0 };

fn started() -> HistoryEvent {
    let started = ExecutionStartedEvent {
        name: "w".to_owned(),
        ..ExecutionStartedEvent::default()
    };
    event(NO_ID, AT, EventType::ExecutionStarted(started))
}

fn raised(name: &str) -> HistoryEvent {
    let raised = EventRaisedEvent {
        name: name.to_owned(),
        input: None,
    };
    event(NO_ID, AT, EventType::EventRaised(raised))
}

fn action(id: i32, act: Act) -> WorkflowAction {
    WorkflowAction {
        id,
        router: None,
        workflow_action_type: Some(act),
    }
}

fn task(id: i32) -> WorkflowAction {
    action(id, Act::ScheduleTask(ScheduleTaskAction::default()))
}

fn complete(id: i32, status: OrchestrationStatus) -> WorkflowAction {
    let complete = CompleteWorkflowAction {
        workflow_status: status.into(),
        ..CompleteWorkflowAction::default()
    };
    action(id, Act::CompleteWorkflow(complete))
}

fn begin(instance: &mut Instance) -> Step {
    match instance.begin("app", None, AT, Limit(0)) {
        StepStart::Step(step) => *step,
        other => panic!("{other:?}"),
    }
}

fn new_trace() -> TraceContext {
    TraceContext {
        trace_parent: "new".to_owned(),
        ..TraceContext::default()
    }
}

fn answer(instance: &Instance, step: Step, response: WorkflowResponse) -> Result<Answered, StepError> {
    answer_within(0, instance, step, response)
}

fn answer_within(
    limit: usize,
    instance: &Instance,
    step: Step,
    response: WorkflowResponse,
) -> Result<Answered, StepError> {
    let mut new_id = || "id".to_owned();
    let outside = &mut StepContext {
        at: AT,
        trace: None,
        new_id: &mut new_id,
        new_trace,
        limit: Limit(limit),
    };
    step.answer(instance, response, outside)
}

fn acts(actions: Vec<WorkflowAction>) -> WorkflowResponse {
    WorkflowResponse {
        actions,
        ..WorkflowResponse::default()
    }
}

fn done(answered: Result<Answered, StepError>) -> Outcome {
    match answered {
        Ok(Answered::Done(outcome)) => *outcome,
        other => panic!("{other:?}"),
    }
}

/// An instance after a first step with this answer.
fn after(response: WorkflowResponse) -> Instance {
    let mut instance = Instance::new("a");
    instance.start(started(), None);
    let step = begin(&mut instance);
    let outcome = done(answer(&instance, step, response));
    instance.commit(outcome);
    instance
}

fn patched(patches: &[&str]) -> WorkflowResponse {
    WorkflowResponse {
        version: Some(WorkflowVersion {
            patches: patches.iter().map(|&patch| patch.to_owned()).collect(),
            name: None,
        }),
        ..WorkflowResponse::default()
    }
}

#[test]
fn request_has_history_and_new_events() {
    let mut instance = after(acts(vec![task(0)]));
    instance.push(raised("x"));
    let step = begin(&mut instance);
    let request = WorkflowRequest::decode(step.request(&instance).concat().as_slice()).unwrap();
    assert_eq!(
        (request.instance_id.as_str(), request.past_events.len()),
        ("a", 3)
    );
    assert_eq!(request.past_events, instance.history());
    assert_eq!(request.new_events, step.events());
    assert!(matches!(
        request.new_events[0].event_type,
        Some(EventType::WorkflowStarted(_))
    ));
    let source = request.past_events[1]
        .router
        .as_ref()
        .map(|router| router.source_app_id.as_str());
    assert_eq!(source, Some("app"));
}

#[test]
fn ended_instance_drops_events() {
    let mut instance = after(acts(vec![complete(0, OrchestrationStatus::Completed)]));
    assert!(matches!(
        instance.begin("app", None, AT, Limit(0)),
        StepStart::Idle
    ));
    instance.push(raised("x"));
    match instance.begin("app", None, AT, Limit(0)) {
        StepStart::Dropped(change) => assert_eq!(change.deletes, ["inbox-000000"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn history_patches_must_be_prefix() {
    let mut instance = after(patched(&["a", "b"]));
    instance.push(raised("x"));
    for (patches, stalls) in [
        (&["a"][..], true),
        (&["b", "a"], true),
        (&["a", "b"], false),
        (&["a", "b", "c"], false),
    ] {
        let mut instance = instance.clone();
        let step = begin(&mut instance);
        let outcome = done(answer(&instance, step, patched(patches)));
        assert_eq!(outcome.stalled.is_some(), stalls, "{patches:?}");
        if !stalls {
            instance.commit(outcome);
            assert_eq!(instance.facts().patches, patches, "only what is new is recorded");
        }
    }
    let step = begin(&mut instance);
    let outcome = done(answer(&instance, step, WorkflowResponse::default()));
    let text = outcome.stalled.as_ref().unwrap().description.clone().unwrap();
    assert_eq!(
        text,
        "Patch mismatch. History patches: [a, b], current patches: []. "
    );
    instance.commit(outcome);
    assert_eq!(instance.status(), OrchestrationStatus::Stalled);
    assert_eq!(instance.inbox().len(), 1, "the event is consumed after the stall");
    // The same reason is recorded once.
    let len = instance.facts().len;
    let step = begin(&mut instance);
    let again = done(answer(&instance, step, WorkflowResponse::default()));
    assert!(again.stalled.is_some());
    instance.commit(again);
    assert_eq!(instance.facts().len, len);
    let step = begin(&mut instance);
    let outcome = done(answer(&instance, step, patched(&["a", "b"])));
    instance.commit(outcome);
    assert_eq!(instance.status(), OrchestrationStatus::Running);
}

#[test]
fn unknown_version_stalls() {
    let first = WorkflowResponse {
        version: Some(WorkflowVersion {
            patches: Vec::new(),
            name: Some("v2".to_owned()),
        }),
        ..WorkflowResponse::default()
    };
    let mut instance = after(first);
    instance.push(raised("x"));
    let step = begin(&mut instance);
    let gone = Act::WorkflowVersionNotAvailable(WorkflowVersionNotAvailableAction::default());
    let outcome = done(answer(&instance, step, acts(vec![action(0, gone)])));
    let stalled = outcome.stalled.unwrap();
    assert_eq!(stalled.reason(), StalledReason::VersionNotAvailable);
    assert_eq!(stalled.description.as_deref(), Some("Version not available: v2"));
}

#[test]
fn raised_event_supersedes_wait_timer() {
    use create_timer_action::Origin;
    let named = |name: &str| TimerOriginExternalEvent {
        name: name.to_owned(),
    };
    for (name, origin, expected) in [
        (Some("Paid"), None, &[0][..]),
        (None, Some(Origin::ExternalEvent(named("Paid"))), &[0]),
        (Some("Paid"), Some(Origin::ExternalEvent(named("other"))), &[]),
        (
            Some("Paid"),
            Some(Origin::CreateTimer(TimerOriginCreateTimer {})),
            &[],
        ),
        (
            Some("Paid"),
            Some(Origin::ActivityRetry(TimerOriginActivityRetry::default())),
            &[],
        ),
    ] {
        let limit = CreateTimerAction {
            fire_at: Some(AT),
            name: name.map(str::to_owned),
            origin: origin.clone(),
        };
        let mut instance = after(acts(vec![action(0, Act::CreateTimer(limit))]));
        instance.push(raised("paid"));
        let step = begin(&mut instance);
        let outcome = done(answer(&instance, step, WorkflowResponse::default()));
        assert_eq!(outcome.superseded, expected, "{origin:?}");
        instance.commit(outcome);
        let history = instance.history();
        let created = history.iter().find_map(|event| match &event.event_type {
            Some(EventType::TimerCreated(created)) => Some(created),
            _ => None,
        });
        let copied = created.unwrap().origin.is_some();
        assert_eq!(copied, origin.is_some(), "the history has the origin");
    }
    // A timer that fires twice counts once.
    let mut instance = after(acts(vec![action(
        0,
        Act::CreateTimer(CreateTimerAction::default()),
    )]));
    let fired = TimerFiredEvent {
        fire_at: None,
        timer_id: 0,
    };
    let fired = event(NO_ID, AT, EventType::TimerFired(fired));
    let StepStart::Step(step) = instance.begin("app", Some(fired.clone()), AT, Limit(0)) else {
        panic!()
    };
    let outcome = done(answer(&instance, *step, WorkflowResponse::default()));
    instance.commit(outcome);
    assert!(matches!(
        instance.begin("app", Some(fired), AT, Limit(0)),
        StepStart::Idle
    ));
}

fn terminated(recurse: bool) -> HistoryEvent {
    let terminated = ExecutionTerminatedEvent { input: None, recurse };
    event(NO_ID, AT, EventType::ExecutionTerminated(terminated))
}

#[test]
fn termination_wins_over_any_answer() {
    let ends = |status| complete(0, status);
    let continues = complete(1, OrchestrationStatus::ContinuedAsNew);
    let unknown = Act::WorkflowVersionNotAvailable(WorkflowVersionNotAvailableAction {});
    let child = Act::CreateChildWorkflow(CreateChildWorkflowAction::default());
    let timer = Act::CreateTimer(CreateTimerAction::default());
    let others = vec![task(7), action(8, child), action(9, timer)];
    for (actions, id) in [
        // Go's SDK answers with both actions, in any order.
        (vec![ends(OrchestrationStatus::Terminated), continues.clone()], 0),
        (vec![continues.clone(), ends(OrchestrationStatus::Terminated)], 0),
        (vec![continues], NO_ID),
        (others, NO_ID),
        (vec![action(0, unknown)], NO_ID),
        (Vec::new(), NO_ID),
    ] {
        let mut instance = after(acts(vec![task(5)]));
        let mut ends_it = terminated(false);
        if let Some(EventType::ExecutionTerminated(terminated)) = &mut ends_it.event_type {
            terminated.input = Some("why".to_owned());
        }
        instance.push(raised("x"));
        instance.push(ends_it);
        instance.push(raised("y"));
        let step = begin(&mut instance);
        let outcome = done(answer(&instance, step, acts(actions.clone())));
        let completed = outcome.facts().completed.clone().unwrap();
        assert_eq!(completed.status(), OrchestrationStatus::Terminated, "{actions:?}");
        let effects = outcome.tasks.len() + outcome.timers.len() + outcome.messages.len();
        assert_eq!((effects, outcome.stalled.is_none()), (0, true), "{actions:?}");
        instance.commit(outcome);
        assert_eq!(instance.history().last().unwrap().event_id, id);
        if id == NO_ID {
            assert_eq!(completed.event.result.as_deref(), Some("why"));
        }
    }
    // A worker that completes first is right.
    let mut instance = after(acts(vec![task(5)]));
    instance.push(terminated(false));
    let step = begin(&mut instance);
    let both = [OrchestrationStatus::Failed, OrchestrationStatus::Terminated].map(ends);
    let outcome = done(answer(&instance, step, acts(both.to_vec())));
    let completed = outcome.facts().completed.clone().unwrap();
    assert_eq!(completed.status(), OrchestrationStatus::Failed);
}

#[test]
fn continue_as_new_begins_new_trace() {
    for trace in [None, Some("old")] {
        let mut start = started();
        if let Some(EventType::ExecutionStarted(started)) = &mut start.event_type {
            started.parent_trace_context = trace.map(|trace| TraceContext {
                trace_parent: trace.to_owned(),
                ..TraceContext::default()
            });
        }
        let mut instance = Instance::new("a");
        instance.start(start, None);
        let step = begin(&mut instance);
        let continues = acts(vec![complete(0, OrchestrationStatus::ContinuedAsNew)]);
        let Ok(Answered::ContinuedAsNew(next)) = answer(&instance, step, continues) else {
            panic!()
        };
        let started = &next.facts().started.as_ref().unwrap().event;
        let root = started.parent_trace_context.as_ref();
        let root = root.map(|root| root.trace_parent.as_str());
        assert_eq!(root, trace.map(|_| "new"));
    }
}

#[test]
fn retried_first_step_sends_unsent_effects() {
    let mut instance = Instance::new("a");
    instance.start(started(), None);
    let step = begin(&mut instance);
    let ends = acts(vec![task(0), complete(1, OrchestrationStatus::Completed)]);
    let last = done(answer(&instance, step, ends));
    assert!(!last.may_be_stored_in_part(), "it would have no repetition");
    let step = begin(&mut instance);
    let outcome = done(answer(&instance, step, acts(vec![task(0), task(1)])));
    assert!(outcome.may_be_stored_in_part());
    let partly = outcome.without(&instance, &[1]);
    instance.commit(partly);
    assert_eq!(instance.status(), OrchestrationStatus::Running);
    let step = begin(&mut instance);
    assert_eq!(step.events().len(), 1);
    let outcome = done(answer(&instance, step, acts(vec![task(1)])));
    assert_eq!(outcome.tasks.len(), 1);
    instance.commit(outcome);
    assert!(instance.inbox().is_empty());
    assert_eq!(
        instance
            .facts()
            .open(Awaited::Task)
            .map(|(id, _)| id)
            .collect::<Vec<_>>(),
        [0, 1]
    );
}

/// Regression: events raised before such a step were delivered to the workflow twice.
#[test]
fn deduplicates_step_partly_stored_by_dapr() {
    let mut instance = Instance::new("a");
    // Dapr keeps the inbox, with events that the history has too.
    for event in [started(), raised("x")] {
        instance.append(&event);
        instance.push(event);
    }
    let mut later = raised("x");
    later.timestamp = Some(Timestamp { nanos: 1, ..AT });
    instance.push(later.clone());
    let step = begin(&mut instance);
    assert_eq!(step.events()[1..], [later]);
    // Carried-over events, possibly equal, are in no history yet.
    let mut instance = Instance::new("a");
    for event in [started(), raised("x"), raised("x")] {
        instance.push(event);
    }
    let step = begin(&mut instance);
    assert_eq!(step.events()[2..], [raised("x"), raised("x")]);
}

#[test]
fn early_result_waits_for_its_task() {
    let result = |id: i32| {
        let done = TaskCompletedEvent {
            task_scheduled_id: id,
            ..TaskCompletedEvent::default()
        };
        event(NO_ID, AT, EventType::TaskCompleted(done))
    };
    // The step that scheduled 1 and 2 was interrupted after it had started them.
    let mut instance = after(acts(vec![task(0)]));
    instance.push(result(1));
    assert!(matches!(
        instance.begin("app", None, AT, Limit(0)),
        StepStart::Idle
    ));
    instance.push(raised("go"));
    let step = begin(&mut instance);
    assert_eq!(step.events().len(), 2, "only the event goes to the worker");
    let outcome = done(answer(&instance, step, acts(vec![task(1), task(2)])));
    let begun: Vec<_> = outcome.tasks.iter().map(|task| task.event_id).collect();
    assert_eq!(begun, [2], "a task with a result is not started again");
    assert!(outcome.wakes);
    instance.commit(outcome);
    assert_eq!(instance.inbox(), [result(1)]);
    let step = begin(&mut instance);
    assert_eq!(step.events()[1], result(1));
    let outcome = done(answer(&instance, step, acts(vec![])));
    assert!(!outcome.wakes);
    instance.commit(outcome);
    assert!(instance.inbox().is_empty());
    // An unknown timer fires again once it is created.
    let fired = event(NO_ID, AT, EventType::TimerFired(TimerFiredEvent::default()));
    assert!(matches!(
        instance.begin("app", Some(fired), AT, Limit(0)),
        StepStart::Idle
    ));
}

#[test]
fn endless_loop_yields_and_keeps_progress() {
    let mut instance = Instance::new("a");
    instance.start(started(), None);
    let mut step = begin(&mut instance);
    let mut rounds = 0;
    let outcome = loop {
        let again = acts(vec![complete(0, OrchestrationStatus::ContinuedAsNew)]);
        match answer(&instance, step, again).unwrap() {
            Answered::ContinuedAsNew(next) => step = *next,
            Answered::Done(outcome) => break outcome,
        }
        rounds += 1;
    };
    assert_eq!(rounds, MAX_RESTARTS);
    assert!(outcome.runs_again);
    instance.commit(*outcome);
    assert_eq!(
        (instance.generation, instance.inbox().len(), instance.facts().len),
        (2, 1, 0)
    );
}

#[test]
fn unsupported_actions_fail_the_step() {
    let mut instance = Instance::new("a");
    instance.start(started(), None);
    let step = begin(&mut instance);
    let detached = Act::CreateDetachedWorkflow(CreateDetachedWorkflowAction::default());
    for act in [None, Some(detached)] {
        let unknown = WorkflowAction {
            id: 4,
            workflow_action_type: act,
            ..WorkflowAction::default()
        };
        let error = answer(&instance, step.clone(), acts(vec![unknown])).unwrap_err();
        assert!(error.to_string().contains("unknown action type"), "{error}");
    }
    let sends = action(0, Act::SendEvent(SendEventAction::default()));
    let error = answer(&instance, step, acts(vec![sends])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("don't know how to process outbound message"),
        "{error}"
    );
}

/// The execution id of the activity of a first step.
fn execution_of_task(execution: Option<&str>, at: i64, given: &str) -> String {
    let mut start = started();
    start.timestamp = Some(Timestamp {
        seconds: at,
        nanos: 0,
    });
    if let Some(EventType::ExecutionStarted(started)) = &mut start.event_type {
        started.workflow_instance = Some(WorkflowInstance {
            instance_id: "a".to_owned(),
            execution_id: execution.map(str::to_owned),
        });
    }
    let mut instance = Instance::new("a");
    instance.start(start, None);
    let step = begin(&mut instance);
    let scheduled = ScheduleTaskAction {
        task_execution_id: given.to_owned(),
        ..ScheduleTaskAction::default()
    };
    let outcome = done(answer(
        &instance,
        step,
        acts(vec![action(0, Act::ScheduleTask(scheduled))]),
    ));
    match &outcome.tasks[0].event_type {
        Some(EventType::TaskScheduled(task)) => task.task_execution_id.clone(),
        other => panic!("{other:?}"),
    }
}

/// The activity result of a purged instance does not complete an activity of a new instance of the same id.
#[test]
fn distinguishes_activities_of_recreated_instance() {
    let of = execution_of_task;
    assert_eq!(of(Some("x"), 1, ""), of(Some("x"), 1, ""));
    assert_ne!(of(Some("x"), 1, ""), of(Some("y"), 1, ""));
    assert_ne!(of(None, 1, ""), of(None, 2, ""));
    assert_eq!(of(Some("x"), 1, "given"), "given");
}
