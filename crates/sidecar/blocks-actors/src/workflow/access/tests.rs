use outrigger_resources::load;
use outrigger_telemetry::metrics::{MetricsConfig, Registry};
use outrigger_wire::durabletask::{
    EventRaisedEvent, ExecutionResumedEvent, ExecutionStartedEvent, ExecutionSuspendedEvent,
    ExecutionTerminatedEvent, TaskCompletedEvent, TaskScheduledEvent, TimerFiredEvent,
};
use prost::Message;
use tonic::Code;

use super::*;

fn access(spec: Option<&str>) -> WorkflowAccess {
    let registry = Registry::new(&MetricsConfig::default()).unwrap();
    let access = WorkflowAccess::new("shop".into(), "default", &registry);
    if let Some(spec) = spec {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
        );
        access.apply(&load::text(&yaml, "shop").unwrap().workflow_access_policies);
    }
    access
}

fn call(kind: &str, method: &str, body: Vec<u8>) -> ActorCall {
    ActorCall {
        kind: format!("dapr.internal.default.shop.{kind}"),
        id: "i".to_owned(),
        method: method.to_owned(),
        body: body.into(),
        caller: Caller::App("desk".to_owned()),
        ..ActorCall::default()
    }
}

fn event(of: EventType) -> HistoryEvent {
    HistoryEvent {
        event_type: Some(of),
        ..HistoryEvent::default()
    }
}

fn started(name: &str) -> HistoryEvent {
    event(EventType::ExecutionStarted(ExecutionStartedEvent {
        name: name.to_owned(),
        ..ExecutionStartedEvent::default()
    }))
}

fn task(name: &str) -> HistoryEvent {
    event(EventType::TaskScheduled(TaskScheduledEvent {
        name: name.to_owned(),
        ..TaskScheduledEvent::default()
    }))
}

#[test]
fn derives_operation_from_call() {
    let access = access(Some("{}"));
    let create = |name| {
        CreateWorkflowInstanceRequest {
            start_event: Some(started(name)),
            ..CreateWorkflowInstanceRequest::default()
        }
        .encode_to_vec()
    };
    let rerun = |names: &[&str]| {
        BackendWorkflowState {
            history: names.iter().map(|name| started(name)).collect(),
            inbox: vec![task("pay")],
            ..BackendWorkflowState::default()
        }
        .encode_to_vec()
    };
    let add = |of| event(of).encode_to_vec();
    let none = Vec::new;
    for (method, body, expected) in [
        ("CreateWorkflowInstance", create("Order"), "schedule Order"),
        (
            "AddWorkflowEvent",
            add(EventType::ExecutionTerminated(ExecutionTerminatedEvent::default())),
            "terminate",
        ),
        (
            "AddWorkflowEvent",
            add(EventType::EventRaised(EventRaisedEvent::default())),
            "raise",
        ),
        (
            "AddWorkflowEvent",
            add(EventType::ExecutionSuspended(ExecutionSuspendedEvent::default())),
            "pause",
        ),
        (
            "AddWorkflowEvent",
            add(EventType::ExecutionResumed(ExecutionResumedEvent::default())),
            "resume",
        ),
        (
            "AddWorkflowEvent",
            add(EventType::TaskCompleted(TaskCompletedEvent::default())),
            "result",
        ),
        ("PurgeWorkflowState", none(), "purge"),
        ("RecursivePurgeWorkflowState", none(), "purge"),
        ("WaitForRuntimeStatus", none(), "get"),
        ("ForkWorkflowHistory", none(), "rerun"),
        ("RerunWorkflowInstance", rerun(&["Order"]), "rerun Order"),
        ("CreateWorkflowInstance", none(), "malformed"),
        (
            "CreateWorkflowInstance",
            add(EventType::EventRaised(EventRaisedEvent::default())),
            "malformed",
        ),
        ("AddWorkflowEvent", none(), "malformed"),
        ("AddWorkflowEvent", started("Order").encode_to_vec(), "malformed"),
        (
            "AddWorkflowEvent",
            add(EventType::TimerFired(TimerFiredEvent::default())),
            "malformed",
        ),
        ("AddWorkflowEvent", b"\xff".to_vec(), "malformed"),
        ("RerunWorkflowInstance", rerun(&[]), "malformed"),
        ("RerunWorkflowInstance", rerun(&["Order", "Refund"]), "malformed"),
        ("Complete", none(), "cannot invoke"),
        ("", none(), "cannot invoke"),
    ] {
        let call = call("workflow", method, body);
        let asked = access.guard(&call).unwrap().asked();
        let shown = match asked {
            Ok(Asked::Operation(operation, None)) => operation.name().to_owned(),
            Ok(Asked::Operation(operation, Some(name))) => format!("{} {name}", operation.name()),
            Ok(Asked::Result(_)) => "result".to_owned(),
            Err(denied) => denied.to_string(),
        };
        let found = match expected {
            "malformed" => shown.contains(&format!("{DENIED}: malformed request for method '{method}'")),
            "cannot invoke" => {
                shown.contains(&format!("{DENIED}: app 'desk' cannot invoke method '{method}'"))
            }
            expected => shown == expected,
        };
        assert!(found, "{method}: {shown}, and not {expected}");
    }
}

#[test]
fn decides_on_workflow_by_name() {
    let access = access(Some(
        "{rules: [{callers: [{appID: desk}], workflows: [{name: 'Order*', operations: [get]}]}]}",
    ));
    let call = call("workflow", "WaitForRuntimeStatus", Vec::new());
    let guarded = access.guard(&call).unwrap();
    assert!(guarded.workflow(Operation::Get, "Order1").is_ok());
    for (operation, name) in [
        (Operation::Get, "Refund"),
        (Operation::Purge, "Order1"),
        (Operation::Get, ""),
    ] {
        let denied = guarded.workflow(operation, name).unwrap_err();
        let (operation, code) = (operation.name(), denied.code());
        let text =
            format!("{DENIED}: app 'desk' operation '{operation}' on workflow '{name}' (instance 'i')");
        assert_eq!((code, denied.message()), (Code::PermissionDenied, &*text));
    }
    let unknown = ActorCall {
        caller: Caller::Unknown,
        ..call.clone()
    };
    let denied = access
        .guard(&unknown)
        .unwrap()
        .workflow(Operation::Get, "Order1")
        .unwrap_err();
    assert_eq!(
        denied.message(),
        format!("{DENIED}: caller identity missing on workflow 'get' operation")
    );
}

#[test]
fn decides_on_activity_by_name() {
    let access = access(Some(
        "{rules: [{callers: [{appID: desk}], activities: [{name: pay}]}]}",
    ));
    let decide = |method: &str, event: Option<HistoryEvent>| {
        let call = call("activity", method, Vec::new());
        let invocation = event.map(|event| ActivityInvocation {
            history_event: Some(event),
            ..ActivityInvocation::default()
        });
        let decided = access.guard(&call).unwrap().activity(invocation);
        decided.map_err(|denied| denied.message().replace(DENIED, ""))
    };
    assert_eq!(decide("Execute", Some(task("pay"))), Ok(()));
    let said = ": app 'desk' schedule on activity 'ship'".to_owned();
    assert_eq!(decide("Execute", Some(task("ship"))), Err(said));
    for malformed in [None, Some(started("pay"))] {
        let said = ": malformed request for method 'Execute'".to_owned();
        assert_eq!(decide("Execute", malformed), Err(said));
    }
    let said = ": app 'desk' cannot invoke method 'Other'".to_owned();
    assert_eq!(decide("Other", Some(task("pay"))), Err(said));
}

#[test]
fn own_calls_and_lack_of_policies_need_no_decision() {
    let foreign = call("workflow", "Complete", Vec::new());
    assert!(access(None).guard(&foreign).is_none());
    let access = access(Some("{}"));
    let own = ActorCall {
        caller: Caller::Own,
        ..foreign.clone()
    };
    assert!(access.guard(&own).is_none() && access.guard(&foreign).is_some());
    access.apply(&[]);
    assert!(access.guard(&foreign).is_none());
}

/// Regression: any app could end a task by a reminder, whatever the policies said.
#[test]
fn reminder_of_other_app_is_guarded() {
    let access = access(None);
    let reminder = |kind: &str, name: &str, of| Reminder {
        actor_type: format!("dapr.internal.default.shop.{kind}"),
        actor_id: "i".to_owned(),
        name: name.to_owned(),
        data: Some(prost_types::Any {
            value: event(of).encode_to_vec(),
            ..prost_types::Any::default()
        }),
        ..Reminder::default()
    };
    let result = || EventType::TaskCompleted(TaskCompletedEvent::default());
    for (kind, name) in [
        ("workflow", "new-event-x"),
        ("workflow", "timer-1"),
        ("activity", "run-activity"),
        ("activity", "activity-result-x"),
    ] {
        let denied = access.handed_over("desk", &reminder(kind, name, result()));
        assert_eq!(
            denied.unwrap_err().code(),
            Code::PermissionDenied,
            "{kind} {name}"
        );
    }
    let handed = |of| {
        let call = access.handed_over("desk", &reminder("workflow", "activity-result-x", of));
        call.unwrap()
    };
    let call = handed(result());
    assert_eq!(call.caller, Caller::App("desk".to_owned()));
    assert!(matches!(
        access.guard(&call).unwrap().asked(),
        Ok(Asked::Result(_))
    ));
    let call = handed(EventType::EventRaised(EventRaisedEvent::default()));
    let guarded = access.guard(&call).unwrap();
    assert!(guarded.workflow(Operation::Raise, "Order").is_err());
}

#[test]
fn names_and_rules_of_invalid_policy_do_not_count() {
    let access = access(Some(
        "{rules: [{callers: [{appID: desk}], activities: [{name: '*'}]}, {}]}",
    ));
    assert!(access.names().is_empty());
    let call = call("activity", "Execute", Vec::new());
    assert!(
        access
            .guard(&call)
            .unwrap()
            .activity(Some(ActivityInvocation {
                history_event: Some(task("pay")),
                ..ActivityInvocation::default()
            }))
            .is_err()
    );
}
