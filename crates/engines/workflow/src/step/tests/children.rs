//! Child workflows: created, terminated with their parent, and distinguished.

use super::*;

#[test]
fn terminates_running_children_with_parent() {
    let child = |id: &str| {
        Act::CreateChildWorkflow(CreateChildWorkflowAction {
            instance_id: id.to_owned(),
            ..CreateChildWorkflowAction::default()
        })
    };
    let mut instance = after(acts(vec![action(0, child("")), action(1, child("named"))]));
    instance.push(terminated(true));
    let step = begin(&mut instance);
    let outcome = done(answer(
        &instance,
        step,
        acts(vec![complete(2, OrchestrationStatus::Terminated)]),
    ));
    assert!(
        outcome.messages.is_empty() && instance.cascade(AT).is_empty(),
        "not stored yet"
    );
    instance.commit(outcome);
    let messages = instance.cascade(AT);
    let names: Vec<_> = messages.iter().map(|message| message.target.as_str()).collect();
    assert_eq!(names, ["a:0000", "named"]);
    let ends =
        |message: &Message| matches!(message.event.event_type, Some(EventType::ExecutionTerminated(_)));
    assert!(messages.iter().all(ends));
}

#[test]
fn child_result_names_parent_execution() {
    use outrigger_wire::durabletask::ParentInstanceInfo;
    for execution in [Some("of-parent"), None] {
        let mut start = started();
        if let Some(EventType::ExecutionStarted(started)) = &mut start.event_type {
            started.parent_instance = Some(ParentInstanceInfo {
                workflow_instance: Some(WorkflowInstance {
                    instance_id: "parent".to_owned(),
                    execution_id: execution.map(str::to_owned),
                }),
                ..ParentInstanceInfo::default()
            });
        }
        let mut instance = Instance::new("a");
        instance.start(start, None);
        let step = begin(&mut instance);
        let ends = acts(vec![complete(0, OrchestrationStatus::Completed)]);
        let outcome = done(answer(&instance, step, ends));
        let origin = &outcome.messages[0].origin;
        let expected = execution.map_or(("", ""), |execution| (execution, "a"));
        assert_eq!((origin.execution.as_str(), origin.instance.as_str()), expected);
    }
}

#[test]
fn continued_child_keeps_scheduled_input() {
    use outrigger_wire::durabletask::ParentInstanceInfo;

    use crate::create::execution;
    use crate::signing::attestation::scheduled_input;
    let mut start = started();
    if let Some(EventType::ExecutionStarted(started)) = &mut start.event_type {
        started.input = Some("one".to_owned());
        started.parent_instance = Some(ParentInstanceInfo::default());
    }
    let mut instance = Instance::new("a");
    instance.start(start, None);
    let mut step = begin(&mut instance);
    for input in ["two", "three"] {
        let last = step.facts.started.clone();
        let again = Act::CompleteWorkflow(CompleteWorkflowAction {
            workflow_status: OrchestrationStatus::ContinuedAsNew.into(),
            result: Some(input.to_owned()),
            ..CompleteWorkflowAction::default()
        });
        let Ok(Answered::ContinuedAsNew(next)) = answer(&instance, step, acts(vec![action(0, again)])) else {
            panic!("it continues");
        };
        step = *next;
        step.keep_scheduled_input(last.as_deref());
        let known = &step.facts.started.as_ref().unwrap().event;
        let stored = step.fresh.iter().find_map(execution).unwrap();
        for started in [known, stored] {
            assert_eq!(
                (started.input.as_deref(), scheduled_input(started)),
                (Some(input), Some("one"))
            );
        }
    }
}

#[test]
fn any_recursive_termination_ends_children() {
    for (first, second, expected) in [(true, false, 1), (false, true, 1), (false, false, 0)] {
        let child = Act::CreateChildWorkflow(CreateChildWorkflowAction::default());
        let mut instance = after(acts(vec![action(0, child)]));
        instance.push(terminated(first));
        instance.push(terminated(second));
        let step = begin(&mut instance);
        let ended = acts(vec![complete(1, OrchestrationStatus::Terminated)]);
        let outcome = done(answer(&instance, step, ended));
        instance.commit(outcome);
        assert_eq!(instance.cascade(AT).len(), expected, "{first} {second}");
    }
}

/// Regression: the instance waited for itself.
#[test]
fn child_with_parent_id_fails_step() {
    let child = |id: &str, app: Option<&str>| {
        let create = CreateChildWorkflowAction {
            instance_id: id.to_owned(),
            name: "order".to_owned(),
            ..CreateChildWorkflowAction::default()
        };
        let mut create = action(4, Act::CreateChildWorkflow(create));
        create.router = app.map(|app| TaskRouter {
            source_app_id: String::new(),
            target_app_id: Some(app.to_owned()),
            target_app_namespace: None,
        });
        let mut instance = Instance::new("a");
        instance.start(started(), None);
        let step = begin(&mut instance);
        answer(&instance, step, acts(vec![create]))
    };
    for app in [None, Some("app")] {
        let error = child("a", app).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StepError::OwnChild { action: 4, .. }), "{text}");
        assert!(
            text.contains("'order'") && text.contains("another instance id"),
            "{text}"
        );
    }
    for (id, app) in [("a", Some("other")), ("b", None), ("", None)] {
        assert_eq!(done(child(id, app)).messages.len(), 1, "{id} {app:?}");
    }
}

#[test]
fn oversized_child_stalls_parent() {
    let child = || {
        let input = Some("x".repeat(2000));
        let create = CreateChildWorkflowAction {
            instance_id: "child".to_owned(),
            name: "order".to_owned(),
            input,
            ..CreateChildWorkflowAction::default()
        };
        acts(vec![action(0, Act::CreateChildWorkflow(create))])
    };
    let mut instance = Instance::new("a");
    instance.start(started(), None);
    let step = begin(&mut instance);
    let outcome = done(answer_within(2000, &instance, step, child()));
    let stalled = outcome.stalled.clone().unwrap();
    assert_eq!(stalled.reason(), StalledReason::PayloadSizeExceeded);
    let why = stalled.description.as_deref().unwrap();
    assert!(
        why.contains("'child'") && why.contains("--max-body-size"),
        "{why}"
    );
    assert!(outcome.messages.is_empty(), "{:?}", outcome.messages);
    instance.commit(outcome);
    let told = instance.history();
    assert!(
        matches!(
            told.last().unwrap().event_type,
            Some(EventType::ExecutionStalled(_))
        ),
        "{told:?}"
    );
    instance.push(raised("x"));
    let step = begin(&mut instance);
    let outcome = done(answer_within(4000, &instance, step, child()));
    assert!(outcome.stalled.is_none());
    assert_eq!(outcome.messages[0].target, "child");
}
