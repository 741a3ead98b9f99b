//! Instances that cannot continue: they are retried with backoff, and at once when something changes.

use std::time::Instant;

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::purge_instances_request::Request as Purged;
use outrigger_wire::durabletask::work_item::Request as Work;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Do;
use outrigger_wire::durabletask::{
    ActivityResponse, CreateChildWorkflowAction, PurgeInstancesRequest, PurgeInstancesResponse,
    ScheduleTaskAction, WorkItem, WorkflowAction, WorkflowVersionNotAvailableAction,
};
use outrigger_wire::scheduler::v1::job_target_metadata::Type;
use outrigger_wire::scheduler::v1::{
    Job, JobMetadata, JobTargetMetadata, ListJobsRequest, ListJobsResponse, NamedJob, TargetActorReminder,
};

use crate::common::{Node, eventually, get, grpc, post};
use crate::workflow_api::{KIND, Worker, World, hub};

/// The scheduler's target of an actor.
pub fn target(kind: &str, id: &str) -> JobMetadata {
    let target = Type::Actor(TargetActorReminder {
        r#type: kind.to_owned(),
        id: id.to_owned(),
    });
    JobMetadata {
        app_id: "shop".to_owned(),
        namespace: "default".to_owned(),
        target: Some(JobTargetMetadata { r#type: Some(target) }),
        concurrency_key: None,
    }
}

/// The reminders of an actor with their names.
pub async fn named_reminders(world: &World, kind: &str, id: &str) -> Vec<NamedJob> {
    let request = ListJobsRequest {
        metadata: Some(target(kind, id)),
    };
    let path = "/dapr.proto.scheduler.v1.Scheduler/ListJobs";
    let listed = grpc::unary(world.control.scheduler.port(), path, &[], &request).await;
    let listed: ListJobsResponse = listed.message();
    listed.jobs
}

/// The reminders of an actor.
async fn reminders(world: &World, kind: &str, id: &str) -> Vec<Job> {
    let named = named_reminders(world, kind, id).await;
    named.into_iter().filter_map(|named| named.job).collect()
}

/// Seconds until the reminders of the instance `a` are due.
async fn due(world: &World) -> Vec<i64> {
    let jobs = reminders(world, KIND, "a").await;
    let jobs = jobs.into_iter().filter_map(|job| job.due_time);
    let now = jiff::Timestamp::now();
    jobs.map(|due| due.parse::<jiff::Timestamp>().unwrap().as_second() - now.as_second())
        .collect()
}

pub async fn begun(node: &Node) {
    let path = "/v1.0/workflows/dapr/order/start?instanceID=a";
    assert_eq!(node.ask(post(path, "1")).await.status, 202);
}

async fn waits(node: &Node) -> serde_json::Value {
    node.ask(get("/v1.0-alpha1/workflows/dapr/a/waits")).await.json()
}

/// Invariant: a stalled instance is retried every five seconds instead of every second, and at once with the
/// next worker.
#[tokio::test]
async fn stalled_instance_backs_off_until_next_worker() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    let no_version = Do::WorkflowVersionNotAvailable(WorkflowVersionNotAvailableAction::default());
    let action = WorkflowAction {
        workflow_action_type: Some(no_version),
        ..WorkflowAction::default()
    };
    worker.answer("a", &token, vec![action]).await;
    eventually(async || waits(&node).await["runtimeStatus"] == "STALLED").await;
    eventually(async || {
        let due = due(&world).await;
        matches!(due[..], [due] if due > 2)
    })
    .await;
    node.counts("dapr_runtime_workflow_stalled_instances", &[], 1.0)
        .await;
    node.counts("dapr_runtime_workflow_workers", &[], 1.0).await;
    drop(worker);
    world.hosts(0).await;
    node.counts("dapr_runtime_workflow_workers", &[], 0.0).await;
    node.counts("dapr_runtime_workflow_stalled_instances", &[], 0.0)
        .await;
    let mut worker = Worker::connect(&node).await;
    let (turn, token) = worker.turn().await;
    assert_eq!(turn.instance_id, "a");
    worker.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
}

/// Starts an activity.
fn deadly() -> WorkflowAction {
    let task = Do::ScheduleTask(ScheduleTaskAction {
        name: "deadly".to_owned(),
        ..ScheduleTaskAction::default()
    });
    WorkflowAction {
        workflow_action_type: Some(task),
        ..WorkflowAction::default()
    }
}

/// Invariant: an activity whose workers disconnect is not run again after the maximum number of losses, and
/// is counted.
#[tokio::test]
async fn parks_activity_that_kills_workers() {
    let world = World::new().await;
    let plan = world.plan().spec("  workflow:\n    maxActivityLosses: 1\n");
    let node = plan.start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.answer("a", &token, vec![deadly()]).await;
    let activity = worker.item().await;
    assert!(
        matches!(activity.request, Some(Work::ActivityRequest(_))),
        "{activity:?}"
    );
    let mut other = Worker::connect(&node).await;
    drop(worker);
    let (turn, token) = other.turn().await;
    let failed = turn
        .new_events
        .iter()
        .any(|event| matches!(event.event_type, Some(EventType::TaskFailed(_))));
    assert!(failed, "{turn:?}");
    let labels = [r#"activity_name="deadly""#];
    node.counts("dapr_runtime_workflow_activity_parked_count", &labels, 1.0)
        .await;
    other.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
}

/// Waits until the instance `a` reports that it is stalled, and why.
async fn is_stalled_for_lost_workers(node: &Node) {
    eventually(async || waits(node).await["runtimeStatus"] == "STALLED").await;
    let told = waits(node).await["waitsFor"].clone();
    let is_told = |wait: &serde_json::Value| {
        let why = wait["why"].as_str().unwrap_or_default();
        wait["kind"] == "fix" && why.contains("Workers lost")
    };
    assert!(told.as_array().unwrap().iter().any(is_told), "{told}");
}

/// Invariant: a workflow that kills its workers is retried with backoff and reports why it is stalled. It can
/// be terminated, and continues with a worker that survives it.
#[tokio::test]
async fn workflow_that_kills_workers_stalls() {
    let world = World::new().await;
    let plan = world.plan().spec("  workflow:\n    maxActivityLosses: 3\n");
    let node = plan.start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    for _ in 0..3 {
        worker.turn().await;
        assert_eq!(waits(&node).await["runtimeStatus"], "PENDING");
        let other = Worker::connect(&node).await;
        drop(std::mem::replace(&mut worker, other));
    }
    let lost = Instant::now();
    is_stalled_for_lost_workers(&node).await;
    let terminate = node.ask(post("/v1.0/workflows/dapr/a/terminate", "")).await;
    assert_eq!(terminate.status, 202, "{}", terminate.text());
    let another = Worker::connect(&node).await;
    drop(another);
    let (turn, token) = worker.turn().await;
    assert!(
        lost.elapsed().as_secs() >= 3,
        "neither a worker nor an event has it run sooner"
    );
    let is_end = |event: &EventType| matches!(event, EventType::ExecutionTerminated(_));
    let mut events = turn
        .new_events
        .iter()
        .filter_map(|event| event.event_type.as_ref());
    assert!(events.any(is_end));
    worker.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
}

/// Invariant: the same if each worker is the only one: the stall is stored when the next one connects at the
/// latest.
#[tokio::test]
async fn workflow_that_kills_only_worker_stalls() {
    let world = World::new().await;
    let plan = world.plan().spec("  workflow:\n    maxActivityLosses: 2\n");
    let node = plan.start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    for _ in 0..2 {
        worker.turn().await;
        drop(worker);
        world.hosts(0).await;
        // It is on no sidecar now.
        node.counts("dapr_runtime_workflow_failing_instances", &[], 0.0)
            .await;
        worker = Worker::connect(&node).await;
        world.hosts(1).await;
    }
    is_stalled_for_lost_workers(&node).await;
    let (_, token) = worker.turn().await;
    worker.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
}

/// Invariant: an activity that ran next to a workflow that kills its workers is not counted as the cause.
#[tokio::test]
async fn counts_no_concurrent_activity() {
    let world = World::new().await;
    let plan = world.plan().spec("  workflow:\n    maxActivityLosses: 2\n");
    let node = plan.start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let path = "/v1.0/workflows/dapr/deadly/start?instanceID=b";
    assert_eq!(node.ask(post(path, "1")).await.status, 202);
    assert_eq!(worker.turn().await.0.instance_id, "b");
    let mut other = Worker::connect(&node).await;
    drop(worker);
    // A second later it has the other one.
    assert_eq!(other.turn().await.0.instance_id, "b");
    begun(&node).await;
    let (turn, token) = other.turn().await;
    assert_eq!(turn.instance_id, "a");
    other.answer("a", &token, vec![deadly()]).await;
    let is_activity = |item: &WorkItem| matches!(item.request, Some(Work::ActivityRequest(_)));
    let activity = async |worker: &mut Worker| {
        loop {
            let item = worker.item().await;
            match &item.request {
                Some(Work::WorkflowRequest(turn)) if turn.instance_id == "b" => {}
                _ => break item,
            }
        }
    };
    assert!(is_activity(&activity(&mut other).await));
    // A loss with this worker is not counted; a loss with the next one is.
    let mut next = Worker::connect(&node).await;
    drop(other);
    assert!(is_activity(&activity(&mut next).await));
    let mut last = Worker::connect(&node).await;
    drop(next);
    let item = activity(&mut last).await;
    assert!(is_activity(&item), "{item:?}");
}

/// Invariant: a sidecar started later continues the count of an activity's losses.
#[tokio::test]
async fn parks_activity_across_sidecar_restart() {
    let world = World::new().await;
    let spec = "  workflow:\n    maxActivityLosses: 3\n";
    let node = world.plan().spec(spec).start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.answer("a", &token, vec![deadly()]).await;
    let is_activity = |item: WorkItem| matches!(item.request, Some(Work::ActivityRequest(_)));
    assert!(is_activity(worker.item().await));
    let activity = KIND.replace(".workflow", ".activity");
    let data = async || {
        let jobs = reminders(&world, &activity, "a::0::1").await;
        let data = jobs.into_iter().find_map(|job| job.data);
        data.map_or(0, |data| data.value.len())
    };
    let first = data().await;
    assert!(first > 0);
    let mut other = Worker::connect(&node).await;
    drop(worker);
    assert!(is_activity(other.item().await));
    drop(other);
    eventually(async || data().await > first).await;
    node.stop().await.unwrap();
    world.hosts(0).await;
    let node = world.plan().spec(spec).start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    assert!(is_activity(worker.item().await));
    let mut other = Worker::connect(&node).await;
    drop(worker);
    let (turn, token) = other.turn().await;
    let failed = turn.new_events.iter().find_map(|event| match &event.event_type {
        Some(EventType::TaskFailed(failed)) => failed.failure_details.clone(),
        _ => None,
    });
    let failed = failed.unwrap();
    assert_eq!(failed.error_type, "ActivityParked");
    assert!(
        failed.error_message.contains("3 times"),
        "{}",
        failed.error_message
    );
    other.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
}

/// Invariant: an instance with an unsendable action is retried with backoff, and at once when an event
/// arrives.
#[tokio::test]
async fn unsendable_child_backs_off() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    // Longer than the maximum of a reminder's name.
    let bad = "x".repeat(600);
    let child = || WorkflowAction {
        id: 0,
        workflow_action_type: Some(Do::CreateChildWorkflow(CreateChildWorkflowAction {
            name: "child".to_owned(),
            instance_id: bad.clone(),
            ..CreateChildWorkflowAction::default()
        })),
        ..WorkflowAction::default()
    };
    // The second attempt is at once or a second later, then two, four and eight seconds later.
    for _ in 0..4 {
        let (_, token) = worker.turn().await;
        worker.answer("a", &token, vec![child()]).await;
    }
    let kept = async || {
        let kept = node.metric("dapr_runtime_workflow_kept_history_bytes", &[]).await;
        kept.unwrap_or_default()
    };
    eventually(async || kept().await > 0.0).await;
    // One reminder remains, and no other is needed.
    eventually(async || {
        let due = due(&world).await;
        matches!(due[..], [due] if due > 4)
    })
    .await;
    let why = waits(&node).await["waitsFor"][0]["why"].clone();
    assert!(
        why.as_str()
            .is_some_and(|why| why.contains("failed to create child workflow")),
        "{why}"
    );
    let failing = "dapr_runtime_workflow_failing_instances";
    node.counts(failing, &[], 1.0).await;
    let raised = node.ask(post("/v1.0/workflows/dapr/a/raiseEvent/go", "1")).await;
    assert_eq!(raised.status, 202);
    let waited = Instant::now();
    let (_, token) = worker.turn().await;
    assert!(waited.elapsed().as_secs() < 3, "{:?}", waited.elapsed());
    worker.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
    eventually(async || kept().await == 0.0).await;
    node.counts(failing, &[], 0.0).await;
}

/// Regression: an activity's result repeated a turn that could not be stored at once, which ran the activity
/// again, and all results were kept.
#[tokio::test]
async fn activity_does_not_reset_backoff() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let act = |id: i32, act: Do| WorkflowAction {
        id,
        workflow_action_type: Some(act),
        ..WorkflowAction::default()
    };
    let (mut turns, mut results) = (Vec::new(), 0);
    while turns.len() < 4 || results < 4 {
        let item = worker.item().await;
        let token = item.completion_token;
        if matches!(item.request, Some(Work::ActivityRequest(_))) {
            let done = ActivityResponse {
                instance_id: "a".to_owned(),
                task_id: 1,
                completion_token: token,
                ..ActivityResponse::default()
            };
            hub(node.ports.grpc, "CompleteActivityTask", &done).await;
            results += 1;
            continue;
        }
        turns.push(Instant::now());
        // Longer than the maximum of a reminder's name.
        let child = Do::CreateChildWorkflow(CreateChildWorkflowAction {
            name: "child".to_owned(),
            instance_id: "x".repeat(600),
            ..CreateChildWorkflowAction::default()
        });
        // As in SDKs, each repetition has another execution id.
        let task = Do::ScheduleTask(ScheduleTaskAction {
            name: "pay".to_owned(),
            task_execution_id: format!("repetition {}", turns.len()),
            ..ScheduleTaskAction::default()
        });
        worker
            .answer("a", &token, vec![act(0, child), act(1, task)])
            .await;
    }
    let pauses = turns[3].duration_since(turns[1]);
    assert!(
        pauses.as_secs() >= 4,
        "it comes after two and four seconds: {pauses:?}"
    );
    let database = world.database();
    let waiting = || -> i64 {
        let counted = "SELECT count(*) FROM state WHERE key LIKE '%||a||inbox-%'";
        database.query_row(counted, [], |row| row.get(0)).unwrap()
    };
    // Its start, and the last result.
    eventually(async || waiting() == 2).await;
}

/// Invariant: the suggested remedy works without an SDK: another instance continues from an event of an ended
/// one.
#[tokio::test]
async fn reruns_instance_over_http() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.answer("a", &token, vec![deadly()]).await;
    let rerun = |event: &str| {
        let path = format!("/v1.0-alpha1/workflows/dapr/a/rerun/{event}?newInstanceID=b");
        node.ask(post(&path, ""))
    };
    rerun("first").await.error(400, "ERR_MALFORMED_REQUEST");
    let text = rerun("0").await.error(500, "ERR_START_WORKFLOW");
    assert!(text.ends_with("'a' is not in a terminal state"), "{text}");
    let item = worker.item().await;
    let done = ActivityResponse {
        instance_id: "a".to_owned(),
        completion_token: item.completion_token,
        ..ActivityResponse::default()
    };
    hub(node.ports.grpc, "CompleteActivityTask", &done).await;
    let (_, token) = worker.turn().await;
    worker.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
    let begun = rerun("0").await;
    assert_eq!(begun.status, 202, "{}", begun.text());
    assert_eq!(begun.json(), serde_json::json!({"instanceID": "b"}));
    let item = worker.item().await;
    let Some(Work::ActivityRequest(activity)) = item.request else {
        panic!("{item:?}")
    };
    assert_eq!((activity.name.as_str(), activity.task_id), ("deadly", 0));
    // Regression: its id was not free while the sidecar cached the instance.
    let purge = || node.ask(post("/v1.0/workflows/dapr/b/purge?force=true", ""));
    assert_eq!(purge().await.status, 202);
    let begun = rerun("0").await;
    assert_eq!(begun.status, 202, "{}", begun.text());
    // Regression: the sender of an event got the error of the store, and sent the event again.
    assert_eq!(purge().await.status, 202);
    let raised = node.ask(post("/v1.0/workflows/dapr/b/raiseEvent/go", "1")).await;
    let text = raised.error(500, "ERR_RAISE_EVENT_WORKFLOW");
    assert!(text.ends_with("no such instance exists"), "{text}");
}

async fn purge_by_force(node: &Node) -> i32 {
    let request = PurgeInstancesRequest {
        request: Some(Purged::InstanceId("a".to_owned())),
        recursive: true,
        force: Some(true),
    };
    let purged = hub(node.ports.grpc, "PurgeInstances", &request).await;
    assert_eq!(purged.status.code(), tonic::Code::Ok, "{:?}", purged.status);
    let purged: PurgeInstancesResponse = purged.message();
    purged.deleted_instance_count
}

/// Invariant: an instance with corrupted state is retried with backoff, reports why, and can be removed.
#[tokio::test]
async fn purges_corrupted_instance_by_force() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    worker.turn().await;
    drop(worker);
    world.hosts(0).await;
    let database = world.database();
    let change = |sql: &str, key: &str| {
        let changed = database.execute(sql, [format!("shop||{KIND}||a||{key}")]);
        assert_eq!(changed.unwrap(), 1, "{key}");
    };
    change("DELETE FROM state WHERE key = ?1", "inbox-000000");
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    eventually(async || {
        let due = due(&world).await;
        matches!(due[..], [due] if due > 2)
    })
    .await;
    for what in ["terminate", "purge"] {
        let path = format!("/v1.0/workflows/dapr/a/{what}");
        let refused = node.ask(post(&path, "")).await;
        assert_eq!(refused.status, 500, "{what}");
        let text = refused.text();
        assert!(
            text.contains("inbox key 'inbox-000000' declared in metadata") && text.contains("by force"),
            "{text}"
        );
    }
    assert_eq!(purge_by_force(&node).await, 1);
    eventually(async || due(&world).await.is_empty()).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.complete("a", &token, "1").await;
    eventually(async || waits(&node).await["runtimeStatus"] == "COMPLETED").await;
    // The number of entries is missing.
    change("UPDATE state SET value = 'ew==' WHERE key = ?1", "metadata");
    let purge = |query: &str| node.ask(post(&format!("/v1.0/workflows/dapr/a/purge{query}"), ""));
    assert_eq!(purge("?force=false").await.status, 500);
    purge("?force=1").await.error(400, "ERR_MALFORMED_REQUEST");
    assert_eq!(purge("?force=true").await.status, 202);
    let left: i64 = database
        .query_row("SELECT count(*) FROM state WHERE key LIKE 'shop||%'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(left, 0);
}
