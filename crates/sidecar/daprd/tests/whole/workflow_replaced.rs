//! Starts that replace a running instance, as allowed by the reuse policy of SDKs.

use std::time::{Duration, SystemTime};

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::orchestrator_action::OrchestratorActionType as Do;
use outrigger_wire::durabletask::work_item::Request as Work;
use outrigger_wire::durabletask::{
    ActivityResponse, CreateInstanceRequest, CreateOrchestrationAction, CreateTimerAction,
    OrchestrationIdReusePolicy, OrchestrationStatus, OrchestratorAction, ScheduleTaskAction,
};
use outrigger_wire::scheduler::v1::{Job, ScheduleJobRequest};
use tonic::Code;

use crate::common::grpc::{self, Outcome};
use crate::common::{Node, eventually, get};
use crate::workflow_api::{KIND, Worker, World, hub};
use crate::workflow_stuck::{begun, named_reminders, target};

fn in_an_hour() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

/// Starts a timer of an hour with number 0, and an activity with number 1.
fn begins_both() -> Vec<OrchestratorAction> {
    let timer = CreateTimerAction {
        fire_at: Some(in_an_hour().into()),
        name: None,
    };
    let task = ScheduleTaskAction {
        name: "slow".to_owned(),
        ..ScheduleTaskAction::default()
    };
    let acts = [Do::CreateTimer(timer), Do::ScheduleTask(task)];
    let actions = (0..).zip(acts).map(|(id, act)| OrchestratorAction {
        id,
        orchestrator_action_type: Some(act),
        ..OrchestratorAction::default()
    });
    actions.collect()
}

/// Starts the instance `a` in place of the running one.
async fn replace(node: &Node, at: SystemTime) -> Outcome {
    let request = CreateInstanceRequest {
        instance_id: "a".to_owned(),
        name: "order".to_owned(),
        input: Some("2".to_owned()),
        scheduled_start_timestamp: Some(at.into()),
        orchestration_id_reuse_policy: Some(OrchestrationIdReusePolicy {
            operation_status: vec![OrchestrationStatus::Running.into()],
            action: CreateOrchestrationAction::Terminate.into(),
        }),
        ..CreateInstanceRequest::default()
    };
    hub(node.ports.grpc, "StartInstance", &request).await
}

/// The names of an actor's reminders.
async fn names(world: &World, kind: &str, id: &str) -> Vec<String> {
    let named = named_reminders(world, kind, id).await;
    named.into_iter().map(|named| named.name).collect()
}

async fn status(node: &Node) -> serde_json::Value {
    let about = node.ask(get("/v1.0/workflows/dapr/a")).await;
    about.json()["runtimeStatus"].clone()
}

/// Invariant: wherever a replacing start is interrupted, there is one complete run: the old one with all its
/// reminders until the new one is stored, then the new one. The old run's reminders and results do not affect
/// the new one.
#[tokio::test]
async fn replacing_start_is_atomic() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.answer("a", &token, begins_both()).await;
    let Some(Work::ActivityRequest(activity)) = worker.item().await.request else {
        panic!("no activity")
    };
    assert_eq!(activity.name, "slow");
    eventually(async || status(&node).await == "RUNNING").await;

    // For example, because the store is full.
    let database = world.database();
    let refuse = ["INSERT", "UPDATE"].map(|what| {
        format!("CREATE TRIGGER full_{what} BEFORE {what} ON state BEGIN SELECT RAISE(ABORT, 'full'); END;")
    });
    database.execute_batch(&refuse.concat()).unwrap();
    let at = SystemTime::now() + Duration::from_secs(3);
    let refused = replace(&node, at).await;
    assert_ne!(refused.status.code(), Code::Ok);
    let activities = KIND.replace(".workflow", ".activity");
    let has = |names: Vec<String>, wanted: &str| names.iter().any(|name| name.ends_with(wanted));
    assert!(has(names(&world, KIND, "a").await, "timer-0"));
    assert!(has(names(&world, &activities, "a::1::1").await, "run-activity"));
    assert_eq!(status(&node).await, "RUNNING");

    database
        .execute_batch("DROP TRIGGER full_INSERT; DROP TRIGGER full_UPDATE;")
        .unwrap();
    let at = SystemTime::now() + Duration::from_secs(3);
    let replaced = replace(&node, at).await;
    assert_eq!(replaced.status.code(), Code::Ok, "{:?}", replaced.status);
    assert_eq!(names(&world, &activities, "a::1::1").await, [""; 0]);
    // Remains of the old run: a reminder of an event, and the result of its activity.
    let left = ScheduleJobRequest {
        name: "new-event-er-left".to_owned(),
        job: Some(Job {
            due_time: Some("0s".to_owned()),
            ..Job::default()
        }),
        metadata: Some(target(KIND, "a")),
        overwrite: true,
    };
    let path = "/dapr.proto.scheduler.v1.Scheduler/ScheduleJob";
    let scheduled = grpc::unary(world.control.scheduler.port(), path, &[], &left).await;
    assert_eq!(scheduled.status.code(), Code::Ok, "{:?}", scheduled.status);
    let done = ActivityResponse {
        instance_id: "a".to_owned(),
        task_id: 1,
        ..ActivityResponse::default()
    };
    hub(node.ports.grpc, "CompleteActivityTask", &done).await;
    let labels = [r#"activity_name="slow""#, r#"status="success""#];
    node.counts("dapr_runtime_workflow_activity_execution_count", &labels, 1.0)
        .await;

    let (turn, token) = worker.turn().await;
    assert!(SystemTime::now() >= at, "it began before its time");
    assert!(turn.past_events.is_empty(), "{turn:?}");
    let [_, start] = turn.new_events.as_slice() else {
        panic!("{turn:?}")
    };
    assert!(
        matches!(&start.event_type, Some(EventType::ExecutionStarted(start)) if start.input.as_deref() == Some("2")),
        "{turn:?}"
    );
    worker.complete("a", &token, "2").await;
    eventually(async || status(&node).await == "COMPLETED").await;
}
