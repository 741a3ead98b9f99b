//! Instances without a store.

use outrigger_wire::durabletask::{
    ChildWorkflowInstanceCompletedEvent, ChildWorkflowInstanceCreatedEvent, EventRaisedEvent,
    ExecutionCompletedEvent, ExecutionStalledEvent, ParentInstanceInfo, TaskCompletedEvent,
    TaskScheduledEvent, WorkflowInstance, WorkflowStartedEvent, WorkflowVersion,
};

use super::*;
use crate::event::event;

const AT: Timestamp = Timestamp { seconds: 9, nanos: 0 };

fn began() -> Instance {
    let mut instance = Instance::new("one");
    instance.append(&event(
        -1,
        AT,
        EventType::ExecutionStarted(ExecutionStartedEvent {
            name: "order".to_owned(),
            input: Some("1".to_owned()),
            ..ExecutionStartedEvent::default()
        }),
    ));
    instance
}

fn result(id: i32) -> HistoryEvent {
    let result = TaskCompletedEvent {
        task_scheduled_id: id,
        ..TaskCompletedEvent::default()
    };
    event(-1, AT, EventType::TaskCompleted(result))
}

fn raised() -> HistoryEvent {
    event(-1, AT, EventType::EventRaised(EventRaisedEvent::default()))
}

#[test]
fn result_is_added_once() {
    let mut instance = began();
    instance.append(&event(
        2,
        AT,
        EventType::TaskScheduled(TaskScheduledEvent::default()),
    ));
    assert_eq!(instance.check(&result(2)), Ok(Added::New));
    instance.push(result(2));
    assert_eq!(instance.check(&result(2)), Ok(Added::Repeated));
    assert_eq!(instance.check(&result(3)), Ok(Added::New));
    instance.inbox.clear();
    instance.append(&result(2));
    assert_eq!(instance.check(&result(2)), Ok(Added::Repeated));
}

/// An instance in an execution of this id, which waits for activity 2 and the child `second` with the number
/// 1.
fn waiting_in(execution: &str) -> Instance {
    let mut instance = Instance::new("one");
    let start = ExecutionStartedEvent {
        workflow_instance: Some(WorkflowInstance {
            instance_id: "one".to_owned(),
            execution_id: Some(execution.to_owned()).filter(|id| !id.is_empty()),
        }),
        ..ExecutionStartedEvent::default()
    };
    let child = ChildWorkflowInstanceCreatedEvent {
        instance_id: "second".to_owned(),
        ..ChildWorkflowInstanceCreatedEvent::default()
    };
    for (id, kind) in [
        (-1, EventType::ExecutionStarted(start)),
        (1, EventType::ChildWorkflowInstanceCreated(child)),
        (2, EventType::TaskScheduled(TaskScheduledEvent::default())),
    ] {
        instance.append(&event(id, AT, kind));
    }
    instance
}

/// Regression: the result of a child of an earlier execution completed the child of the same number of the
/// next one.
#[test]
fn rejects_results_of_other_executions() {
    let child = |id: i32| {
        let ended = ChildWorkflowInstanceCompletedEvent {
            task_scheduled_id: id,
            result: None,
            attestation: None,
            signer_certificate: None,
        };
        event(-1, AT, EventType::ChildWorkflowInstanceCompleted(ended))
    };
    let came = |event: HistoryEvent, execution: &str, instance: &str| {
        let origin = Origin {
            execution: execution.to_owned(),
            instance: instance.to_owned(),
        };
        let arrival = Arrival {
            event,
            origin,
            waited: false,
        };
        let added = |own: &str| {
            waiting_in(own)
                .add(vec![arrival.clone()], Limit::default())
                .added
                .remove(0)
        };
        // An instance that does not know its own execution accepts all results.
        assert_eq!(added(""), Ok(Added::New));
        added("now")
    };
    let (new, foreign) = (Ok(Added::New), Ok(Added::Foreign));
    for (arrived, expected) in [
        (came(child(1), "now", "second"), new),
        (came(child(1), "before", "first"), foreign),
        // It was running when this execution requested it, which took it over.
        (came(child(1), "before", "second"), new),
        // Not requested yet; a later request starts it anew.
        (came(child(4), "before", "second"), foreign),
        (came(child(4), "now", "second"), new),
        // From a sidecar that names no execution.
        (came(child(1), "", ""), new),
        (came(child(4), "", ""), new),
        (came(result(2), "now", ""), new),
        (came(result(2), "before", ""), foreign),
        (came(result(4), "before", ""), foreign),
        (came(result(2), "", ""), new),
        (came(raised(), "before", ""), new),
    ] {
        assert_eq!(arrived, expected);
    }
}

/// Regression: the result of a child that Dapr ran for an earlier execution completed a later child.
#[test]
fn drops_unnamed_results_after_continue_as_new() {
    let added = |generation, id| {
        let mut instance = waiting_in("now");
        instance.generation = generation;
        instance.add(vec![result(id)], Limit::default()).added.remove(0)
    };
    assert_eq!(added(1, 4), Ok(Added::New));
    assert_eq!(added(2, 4), Ok(Added::Foreign));
    assert_eq!(added(2, 2), Ok(Added::New), "the activity is in progress");
}

/// Regression: a result of an earlier execution in the inbox made the result of this execution look like a
/// duplicate. Later, results of each failed attempt filled the inbox.
#[test]
fn keeps_last_early_result() {
    let of = |execution: &str| {
        let result = TaskCompletedEvent {
            task_scheduled_id: 2,
            task_execution_id: execution.to_owned(),
            ..TaskCompletedEvent::default()
        };
        event(-1, AT, EventType::TaskCompleted(result))
    };
    let keys = |additions: &Additions| {
        let keys = additions.change.upserts.iter().map(|(key, _)| key.clone());
        keys.collect::<Vec<_>>()
    };
    let mut instance = began();
    drop(instance.change());
    let added = instance.add(
        vec![raised(), of("before"), of("now"), of("now")],
        Limit::default(),
    );
    let (new, repeated) = (Ok(Added::New), Ok(Added::Repeated));
    assert_eq!(added.added, [new, new, new, repeated]);
    assert_eq!(instance.inbox(), [raised(), of("now")]);
    assert_eq!(keys(&added), ["inbox-000000", "inbox-000001", "metadata"]);
    // Only the replaced entry is stored again.
    let added = instance.add(vec![of("later"), result(3)], Limit::default());
    assert_eq!(added.added, [new, new]);
    assert_eq!(instance.inbox(), [raised(), of("later"), result(3)]);
    assert_eq!(keys(&added), ["inbox-000001", "inbox-000002", "metadata"]);
    let added = instance.add(vec![of("last")], Limit::default());
    assert_eq!(keys(&added), ["inbox-000001", "metadata"]);
    assert_eq!(added.run.unwrap().reminder, "new-event-tc-2");
    // Once the step is stored, the result of its activity replaces no other.
    let scheduled = TaskScheduledEvent {
        task_execution_id: "stored".to_owned(),
        ..TaskScheduledEvent::default()
    };
    assert!(instance.facts().ends_nothing(&of("stored")));
    instance.append(&event(2, AT, EventType::TaskScheduled(scheduled)));
    assert!(!instance.facts().ends_nothing(&of("stored")) && !instance.facts().ends_nothing(&raised()));
    assert_eq!(instance.add(vec![of("stored")], Limit::default()).added, [new]);
    let inbox = [raised(), of("last"), result(3), of("stored")];
    assert_eq!(instance.inbox(), inbox);
    let foreign = instance.add(vec![of("last")], Limit::default());
    assert_eq!(foreign.added, [Ok(Added::Foreign)]);
}

#[test]
fn deduplicates_resent_raised_events() {
    let named = |name: &str, nanos| {
        let raised = EventRaisedEvent {
            name: name.to_owned(),
            input: Some("1".to_owned()),
        };
        let at = Timestamp { nanos, ..AT };
        event(-1, at, EventType::EventRaised(raised))
    };
    let mut instance = began();
    let added = instance.add(
        vec![
            named("paid", 1),
            named("paid", 1),
            named("paid", 2),
            named("sent", 1),
        ],
        Limit::default(),
    );
    let (new, repeated) = (Ok(Added::New), Ok(Added::Repeated));
    assert_eq!(added.added, [new, repeated, new, new]);
    assert_eq!(instance.check(&named("paid", 1)), repeated);
    // A step has consumed it: still recognized.
    instance.inbox.clear();
    instance.append(&named("paid", 1));
    assert_eq!(
        instance
            .add(vec![named("paid", 1), named("paid", 2)], Limit::default())
            .added,
        [repeated, new]
    );
    for nanos in 10..150 {
        instance.append(&named("other", nanos));
    }
    assert_eq!(instance.check(&named("paid", 1)), repeated);
    assert_eq!(instance.check(&named("other", 150)), new);
    // Carried-over events have no time: each counts.
    let mut carried = named("paid", 1);
    carried.timestamp = Some(Timestamp::default());
    assert_eq!(
        instance
            .add(vec![carried.clone(), carried], Limit::default())
            .added,
        [new, new]
    );
}

#[test]
fn batch_is_one_change_and_run() {
    let mut instance = began();
    drop(instance.change());
    let names = |additions: &Additions| {
        let run = additions.run.as_ref().map(|run| run.reminder.clone());
        let keys = additions.change.upserts.iter().map(|(key, _)| key.clone());
        (run, keys.collect::<Vec<_>>())
    };
    let added = instance.add(vec![result(2), result(3), result(2), raised()], Limit::default());
    let (new, repeated) = (Ok(Added::New), Ok(Added::Repeated));
    assert_eq!(added.added, [new, new, repeated, new]);
    let keys = ["inbox-000000", "inbox-000001", "inbox-000002", "metadata"].map(str::to_owned);
    assert_eq!(names(&added), (Some("new-event-tc-2".to_owned()), keys.to_vec()));
    assert_eq!(added.run.unwrap().due, Some(AT));
    assert_eq!(instance.inbox().len(), 3);
    // A duplicate gets its run ensured, and nothing stored.
    let added = instance.add(vec![result(3)], Limit::default());
    assert_eq!(added.added, [repeated]);
    assert_eq!(names(&added), (Some("new-event-tc-3".to_owned()), vec![]));
    // A completed instance takes no events.
    let completed = ExecutionCompletedEvent::default();
    instance.append(&event(1, AT, EventType::ExecutionCompleted(completed)));
    let added = instance.add(vec![result(4)], Limit::default());
    assert_eq!(names(&added), (None, vec![]));
    let added = Instance::new("x").add(vec![result(4)], Limit::default());
    assert_eq!(added.added, [Err(AddError::Unknown)]);
    assert_eq!(names(&added), (None, vec![]));
}

#[test]
fn unknown_and_stalled_reject_events() {
    assert_eq!(Instance::new("x").check(&raised()), Err(AddError::Unknown));
    let mut stalled = began();
    stalled.append(&event(
        -1,
        AT,
        EventType::ExecutionStalled(ExecutionStalledEvent::default()),
    ));
    assert_eq!(stalled.check(&raised()), Err(AddError::Stalled));
    assert_eq!(stalled.check(&result(1)), Ok(Added::New));
}

#[test]
fn purges_only_ended_instances() {
    assert_eq!(Instance::new("x").purge(), Err(PurgeError::Unknown));
    let mut instance = began();
    assert_eq!(instance.purge(), Err(PurgeError::NotCompleted));
    instance.append(&event(
        -1,
        AT,
        EventType::ExecutionStalled(ExecutionStalledEvent::default()),
    ));
    assert_eq!(instance.purge(), Err(PurgeError::Stalled));
    let completed = ExecutionCompletedEvent::default();
    instance.append(&event(1, AT, EventType::ExecutionCompleted(completed)));
    assert_eq!(instance.purge(), Ok(()));
}

#[test]
fn pending_instance_has_name_and_input() {
    let mut instance = Instance::new("two");
    let start = ExecutionStartedEvent {
        name: "order".to_owned(),
        input: Some("5".to_owned()),
        ..ExecutionStartedEvent::default()
    };
    instance.push(event(-1, AT, EventType::ExecutionStarted(start)));
    let metadata = instance.metadata();
    assert_eq!(
        (metadata.name.as_str(), metadata.input.as_deref()),
        ("order", Some("5"))
    );
    assert_eq!(metadata.runtime_status(), OrchestrationStatus::Pending);
    assert_eq!(metadata.created_at, Some(AT));
    assert_eq!(
        (metadata.started_at, metadata.version, metadata.parent_app_id),
        (None, None, None)
    );
}

#[test]
fn metadata_name_version_and_parent() {
    let mut child = Instance::new("child");
    let version = WorkflowVersion {
        name: Some("v2".to_owned()),
        ..WorkflowVersion::default()
    };
    let step = WorkflowStartedEvent {
        version: Some(version),
    };
    let start = ExecutionStartedEvent {
        parent_instance: Some(ParentInstanceInfo {
            workflow_instance: Some(WorkflowInstance {
                instance_id: "parent".to_owned(),
                execution_id: None,
            }),
            app_id: Some("other".to_owned()),
            ..ParentInstanceInfo::default()
        }),
        ..ExecutionStartedEvent::default()
    };
    let step_at = Timestamp { seconds: 9, nanos: 1 };
    child.append(&event(-1, step_at, EventType::WorkflowStarted(step)));
    child.append(&event(-1, AT, EventType::ExecutionStarted(start)));
    let metadata = child.metadata();
    assert_eq!(
        (metadata.started_at, metadata.version.as_deref()),
        (Some(step_at), Some("v2"))
    );
    assert_eq!(
        (
            metadata.parent_instance_id.as_str(),
            metadata.parent_app_id.as_deref()
        ),
        ("parent", Some("other"))
    );
}

#[test]
fn rejects_oversized_raised_event() {
    let mut instance = began();
    let large = |input: usize| {
        let raised = EventRaisedEvent {
            name: "paid".to_owned(),
            input: Some("x".repeat(input)),
        };
        event(-1, AT, EventType::EventRaised(raised))
    };
    let (mut instance_of, limit) = (began(), Limit(1000));
    let room = 950 - instance_of.size();
    let empty = large(400).encoded_len() - 400;
    let fits = large(room - empty);
    assert_eq!(instance_of.add(vec![fits.clone()], limit).added, [Ok(Added::New)]);
    assert_eq!(limit.stalls(instance_of.size()), None);
    // One byte more than fits, alone and behind others; events before and after it are accepted.
    for (before, input) in [(0, room - empty + 1), (1, room - empty)] {
        let small = vec![large(0); before];
        let events = [&small[..], &[large(input), result(7)]].concat();
        let mut additions = instance.clone().add(events, limit);
        assert_eq!(additions.added.pop(), Some(Ok(Added::New)));
        let refused = additions.added.pop().unwrap().unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("exceeds 95%") && text.contains("--max-body-size"),
            "{text}"
        );
        assert!(additions.added.iter().all(Result::is_ok));
    }
    // A duplicate is recognized regardless of room.
    assert_eq!(instance_of.add(vec![fits], limit).added, [Ok(Added::Repeated)]);
    let step = instance.begin("shop", None, AT, limit);
    assert!(!matches!(step, crate::StepStart::Stalled(_)));
}
