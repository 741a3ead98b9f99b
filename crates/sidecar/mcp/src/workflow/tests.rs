use outrigger_resources::load;
use outrigger_wire::durabletask::{
    ChildWorkflowInstanceCompletedEvent, ChildWorkflowInstanceCreatedEvent, ChildWorkflowInstanceFailedEvent,
    ExecutionResumedEvent, ExecutionStartedEvent, ExecutionSuspendedEvent, ExecutionTerminatedEvent,
    HistoryEvent, TaskCompletedEvent, TaskFailedEvent, TaskScheduledEvent,
};

use super::*;

/// A server with the given `middleware`, YAML.
fn server(middleware: &str) -> McpServer {
    let yaml = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: MCPServer\nmetadata: {{name: s}}\nspec:\n  endpoint: {{streamableHTTP: {{url: \
         'http://x'}}}}\n  middleware: {middleware}\n"
    );
    load::text(&yaml, "app").unwrap().mcp_servers.remove(0)
}

fn hooks(kind: &str, mutate: bool) -> McpServer {
    server(&format!(
        "{{{kind}: [{{workflow: {{workflowName: h, appID: other}}, mutate: {mutate}}}]}}"
    ))
}

fn event(id: i32, event_type: EventType) -> HistoryEvent {
    HistoryEvent {
        event_id: id,
        event_type: Some(event_type),
        ..HistoryEvent::default()
    }
}

fn started(input: &str) -> HistoryEvent {
    event(
        -1,
        EventType::ExecutionStarted(ExecutionStartedEvent {
            name: "w".to_owned(),
            input: Some(input.to_owned()),
            ..ExecutionStartedEvent::default()
        }),
    )
}

fn failure(text: &str) -> Option<TaskFailureDetails> {
    Some(TaskFailureDetails {
        error_message: text.to_owned(),
        ..TaskFailureDetails::default()
    })
}

fn hook_done(id: i32, output: &str) -> HistoryEvent {
    event(
        -1,
        EventType::ChildWorkflowInstanceCompleted(ChildWorkflowInstanceCompletedEvent {
            task_scheduled_id: id,
            result: Some(output.to_owned()),
            ..ChildWorkflowInstanceCompletedEvent::default()
        }),
    )
}

fn hook_failed(id: i32, text: &str) -> HistoryEvent {
    event(
        -1,
        EventType::ChildWorkflowInstanceFailed(ChildWorkflowInstanceFailedEvent {
            task_scheduled_id: id,
            failure_details: failure(text),
            ..ChildWorkflowInstanceFailedEvent::default()
        }),
    )
}

fn called(id: i32, output: &str) -> HistoryEvent {
    event(
        -1,
        EventType::TaskCompleted(TaskCompletedEvent {
            task_scheduled_id: id,
            result: Some(output.to_owned()),
            ..TaskCompletedEvent::default()
        }),
    )
}

fn scheduled(id: i32, name: &str) -> HistoryEvent {
    event(
        id,
        EventType::TaskScheduled(TaskScheduledEvent {
            name: name.to_owned(),
            ..TaskScheduledEvent::default()
        }),
    )
}

fn hook_created(id: i32, name: &str) -> HistoryEvent {
    event(
        id,
        EventType::ChildWorkflowInstanceCreated(ChildWorkflowInstanceCreatedEvent {
            name: name.to_owned(),
            ..ChildWorkflowInstanceCreatedEvent::default()
        }),
    )
}

fn actions(server: &McpServer, method: Method<'_>, events: Vec<HistoryEvent>) -> Vec<WorkflowAction> {
    let request = WorkflowRequest {
        new_events: events,
        ..WorkflowRequest::default()
    };
    step(server, method, &History::read(&request))
}

fn one(server: &McpServer, method: Method<'_>, events: Vec<HistoryEvent>) -> WorkflowActionType {
    let mut actions = actions(server, method, events);
    assert_eq!(actions.len(), 1);
    actions.remove(0).workflow_action_type.unwrap()
}

/// The output of the workflow, or the text of its failure.
fn end(server: &McpServer, method: Method<'_>, events: Vec<HistoryEvent>) -> Result<String, String> {
    match one(server, method, events) {
        WorkflowActionType::CompleteWorkflow(end) => match end.failure_details {
            Some(failure) => Err(failure.error_message),
            None => Ok(end.result.unwrap_or_default()),
        },
        other => panic!("{other:?}"),
    }
}

fn text_of(result: &str) -> (bool, String) {
    let result: Value = serde_json::from_str(result).unwrap();
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    (result["isError"] == true, text.to_owned())
}

const CALL: Method<'static> = Method::CallTool("t");
const RESULT: &str = r#"{"content":[{"type":"text","text":"ok"}]}"#;

#[test]
fn calls_tool_and_returns_result() {
    let server = server("{}");
    let input = r#"{"arguments":{"city":"x"}}"#;
    match one(&server, CALL, vec![started(input)]) {
        WorkflowActionType::ScheduleTask(task) => {
            assert_eq!(task.name, "dapr.internal.mcp.s.call-tool");
            let input: Value = serde_json::from_str(&task.input.unwrap()).unwrap();
            assert_eq!(input, json!({"tool_name": "t", "arguments": {"city": "x"}}));
        }
        other => panic!("{other:?}"),
    }
    let scheduled = scheduled(0, "dapr.internal.mcp.s.call-tool");
    assert!(actions(&server, CALL, vec![started(input), scheduled.clone()]).is_empty());
    let done = vec![started(input), scheduled, called(0, RESULT)];
    assert_eq!(end(&server, CALL, done), Ok(RESULT.to_owned()));
    let failed = event(
        -1,
        EventType::TaskFailed(TaskFailedEvent {
            failure_details: failure("gone"),
            ..TaskFailedEvent::default()
        }),
    );
    let result = end(&server, CALL, vec![started(""), failed]).unwrap();
    assert_eq!(
        text_of(&result),
        (true, "task failed with an error: gone".to_owned())
    );
}

/// Regression: after a reload of the middleware, the result of a hook was that of the tool, or the tool was
/// called twice.
#[test]
fn changed_middleware_fails_the_call() {
    let text = "the middleware of MCPServer \"s\" changed during the call: call again";
    let hooked = hooks("beforeCallTool", false);
    let call = "dapr.internal.mcp.s.call-tool";
    for (server, events) in [
        (server("{}"), vec![hook_created(0, "h"), hook_done(0, "{}")]),
        (hooked.clone(), vec![scheduled(0, call), called(0, RESULT)]),
        (hooked.clone(), vec![hook_created(0, "other")]),
    ] {
        let events = [started("")].into_iter().chain(events).collect();
        assert_eq!(end(&server, CALL, events), Err(text.to_owned()));
    }
    let same = vec![started(""), hook_created(0, "h"), hook_done(0, "{}")];
    assert_eq!(actions(&hooked, CALL, same).len(), 1);
}

#[test]
fn lists_tools() {
    let server = server("{}");
    match one(&server, Method::ListTools, vec![started("null")]) {
        WorkflowActionType::ScheduleTask(task) => assert_eq!(task.name, "dapr.internal.mcp.s.list-tools"),
        other => panic!("{other:?}"),
    }
    let done = vec![started(""), called(0, r#"{"tools":[]}"#)];
    assert_eq!(
        end(&server, Method::ListTools, done),
        Ok(r#"{"tools":[]}"#.to_owned())
    );
}

#[test]
fn reports_unreadable_input_as_result() {
    let server = server("{}");
    for input in ["{", r#"{"arguments":1}"#, "[1]"] {
        let (is_error, text) = text_of(&end(&server, CALL, vec![started(input)]).unwrap());
        assert!(
            is_error && text.starts_with("failed to parse CallToolInput: "),
            "{text}"
        );
    }
}

#[test]
fn hook_runs_before_call() {
    let server = hooks("beforeCallTool", false);
    match one(&server, CALL, vec![started(r#"{"arguments":{"a":1}}"#)]) {
        WorkflowActionType::CreateChildWorkflow(child) => {
            assert_eq!(child.name, "h");
            assert_eq!(child.router.unwrap().target_app_id.as_deref(), Some("other"));
            let input: Value = serde_json::from_str(&child.input.unwrap()).unwrap();
            let expected = json!({"name": "s", "toolName": "t", "arguments": {"a": 1}});
            assert_eq!(input, expected);
        }
        other => panic!("{other:?}"),
    }
    let denied = end(&server, CALL, vec![started(""), hook_failed(0, "denied")]).unwrap();
    let text = "beforeCallTool: task failed with an error: denied";
    assert_eq!(
        text_of(&denied),
        (true, text.to_owned()),
        "the tool is not called"
    );
    let passed = actions(&server, CALL, vec![started(""), hook_done(0, "ignored")]);
    assert_eq!(passed[0].id, 1);
}

#[test]
fn hook_replaces_arguments() {
    let server = hooks("beforeCallTool", true);
    let events = vec![
        started(r#"{"arguments":{"a":1}}"#),
        hook_done(0, r#"{"arguments":{"b":2}}"#),
    ];
    match one(&server, CALL, events) {
        WorkflowActionType::ScheduleTask(task) => {
            let input: Value = serde_json::from_str(&task.input.unwrap()).unwrap();
            assert_eq!(input["arguments"], json!({"b": 2}));
        }
        other => panic!("{other:?}"),
    }
    let odd = end(&server, CALL, vec![started(""), hook_done(0, "odd")]).unwrap();
    assert!(text_of(&odd).1.starts_with("beforeCallTool: "));
}

#[test]
fn hook_after_call_gates_and_replaces_result() {
    for (mutate, which) in [(false, "hook"), (true, "mutating hook")] {
        let server = hooks("afterCallTool", mutate);
        let begun = || vec![started(""), called(0, RESULT)];
        match one(&server, CALL, begun()) {
            WorkflowActionType::CreateChildWorkflow(child) => {
                let input: Value = serde_json::from_str(&child.input.unwrap()).unwrap();
                assert_eq!(input["result"], STANDARD.encode(RESULT));
            }
            other => panic!("{other:?}"),
        }
        let after = |last: HistoryEvent| end(&server, CALL, begun().into_iter().chain([last]).collect());
        let text = format!(
            "afterCallTool failed: {which} \"h\" failed for tool \"t\" on MCPServer \"s\": task failed with an error: no"
        );
        assert_eq!(after(hook_failed(1, "no")), Err(text));
        let replaced = json!({"result": STANDARD.encode(r#"{"content":[]}"#)}).to_string();
        let expected = if mutate { r#"{"content":[]}"# } else { RESULT };
        assert_eq!(after(hook_done(1, &replaced)), Ok(expected.to_owned()));
        let odd = after(hook_done(1, "{}"));
        assert_eq!(odd.is_err(), mutate, "an empty result");
    }
}

#[test]
fn list_hooks_fail_the_workflow() {
    let before = hooks("beforeListTools", false);
    let denied = vec![started(""), hook_failed(0, "no")];
    let text = "beforeListTools failed: task failed with an error: no";
    assert_eq!(end(&before, Method::ListTools, denied), Err(text.to_owned()));
    let after = hooks("afterListTools", false);
    let denied = vec![started(""), called(0, "{}"), hook_failed(1, "no")];
    let text = end(&after, Method::ListTools, denied).unwrap_err();
    assert!(
        text.starts_with("afterListTools failed: hook \"h\" failed for MCPServer \"s\""),
        "{text}"
    );
}

#[test]
fn suspended_instance_waits() {
    let server = server("{}");
    let suspended = event(
        -1,
        EventType::ExecutionSuspended(ExecutionSuspendedEvent::default()),
    );
    let resumed = event(-1, EventType::ExecutionResumed(ExecutionResumedEvent::default()));
    let mut events = vec![started(""), called(0, RESULT), suspended];
    assert!(actions(&server, CALL, events.clone()).is_empty());
    events.push(resumed);
    assert!(end(&server, CALL, events).is_ok());
}

#[test]
fn terminated_instance_completes_as_such() {
    let terminated = event(
        -1,
        EventType::ExecutionTerminated(ExecutionTerminatedEvent {
            input: Some("why".to_owned()),
            ..ExecutionTerminatedEvent::default()
        }),
    );
    match one(&server("{}"), CALL, vec![started(""), terminated]) {
        WorkflowActionType::CompleteWorkflow(end) => {
            assert_eq!(end.workflow_status(), OrchestrationStatus::Terminated);
            assert_eq!(end.result.as_deref(), Some("why"));
        }
        other => panic!("{other:?}"),
    }
}
