//! Instances whose stored state is changed by others while a sidecar caches it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_wire::durabletask::backend::v1::BackendWorkflowStateMetadata;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Do;
use outrigger_wire::durabletask::{
    CompleteWorkflowAction, EventRaisedEvent, HistoryEvent, OrchestrationStatus, WorkflowAction,
    WorkflowRequest,
};
use outrigger_wire::scheduler::v1::{Job, ScheduleJobRequest};
use prost::Message;
use prost_types::Timestamp;
use tonic::Code;

use crate::common::{Node, eventually, get, grpc, post};
use crate::workflow_api::{KIND, Worker, World};
use crate::workflow_stuck::{begun, target};

fn key(name: &str) -> String {
    format!("shop||{KIND}||a||{name}")
}

fn metadata(world: &World) -> BackendWorkflowStateMetadata {
    let sql = "SELECT value FROM state WHERE key = ?1";
    let value = world
        .database()
        .query_row(sql, [key("metadata")], |row| row.get::<_, String>(0));
    let value = STANDARD.decode(value.unwrap()).unwrap();
    BackendWorkflowStateMetadata::decode(&value[..]).unwrap()
}

/// Writes a value like another sidecar.
fn write(world: &World, name: &str, value: &impl Message) {
    let sql = "INSERT OR REPLACE INTO state (key, value, is_binary, etag) VALUES (?1, ?2, 1, ?3)";
    let etag = uuid::Uuid::new_v4().to_string();
    let value = STANDARD.encode(value.encode_to_vec());
    let written = world.database().execute(sql, [key(name), value, etag]);
    assert_eq!(written.unwrap(), 1, "{name}");
}

fn raised(number: usize) -> HistoryEvent {
    let raised = EventRaisedEvent {
        name: "e".to_owned(),
        input: Some(number.to_string()),
    };
    HistoryEvent {
        event_id: -1,
        timestamp: Some(Timestamp {
            seconds: 1_700_000_000,
            nanos: i32::try_from(number).unwrap(),
        }),
        event_type: Some(EventType::EventRaised(raised)),
        ..HistoryEvent::default()
    }
}

/// The external events of a turn.
fn events(turn: &WorkflowRequest) -> Vec<HistoryEvent> {
    let is_raised = |event: &&HistoryEvent| matches!(event.event_type, Some(EventType::EventRaised(_)));
    turn.new_events.iter().filter(is_raised).cloned().collect()
}

fn input(event: &HistoryEvent) -> &str {
    match &event.event_type {
        Some(EventType::EventRaised(raised)) => raised.input.as_deref().unwrap_or_default(),
        other => panic!("{other:?}"),
    }
}

async fn status(node: &Node) -> serde_json::Value {
    let about = node.ask(get("/v1.0/workflows/dapr/a")).await;
    about.json()["runtimeStatus"].clone()
}

/// Schedules a run of the instance.
async fn remind(world: &World) {
    let request = ScheduleJobRequest {
        name: "new-event-batch".to_owned(),
        job: Some(Job {
            due_time: Some("0s".to_owned()),
            ..Job::default()
        }),
        metadata: Some(target(KIND, "a")),
        overwrite: true,
    };
    let path = "/dapr.proto.scheduler.v1.Scheduler/ScheduleJob";
    let scheduled = grpc::unary(world.control.scheduler.port(), path, &[], &request).await;
    assert_eq!(scheduled.status.code(), Code::Ok, "{:?}", scheduled.status);
}

/// Consumes one event per continue-as-new until there is none; returns them.
async fn take_one_by_one(worker: &mut Worker, wanted: usize) -> Vec<String> {
    let mut taken = Vec::new();
    loop {
        let (turn, token) = worker.turn().await;
        let mut came = events(&turn).into_iter();
        let Some(first) = came.next() else {
            if taken.len() == wanted {
                worker.complete("a", &token, "1").await;
                return taken;
            }
            worker.answer("a", &token, Vec::new()).await;
            continue;
        };
        taken.push(input(&first).to_owned());
        let again = CompleteWorkflowAction {
            workflow_status: OrchestrationStatus::ContinuedAsNew.into(),
            carryover_events: came.collect(),
            ..CompleteWorkflowAction::default()
        };
        let action = WorkflowAction {
            workflow_action_type: Some(Do::CompleteWorkflow(again)),
            ..WorkflowAction::default()
        };
        worker.answer("a", &token, vec![action]).await;
    }
}

/// Invariant: events stored by another sidecar are each consumed once and in order, even if the workflow
/// continues as new with each of them. Each execution has the next generation.
#[tokio::test]
async fn consumes_foreign_events_once_in_order() {
    const EVENTS: usize = 25;
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.answer("a", &token, Vec::new()).await;
    eventually(async || status(&node).await == "RUNNING").await;
    let mut counts = metadata(&world);
    assert_eq!(counts.generation, 1);
    (0..EVENTS).for_each(|number| write(&world, &format!("inbox-{number:06}"), &raised(number)));
    counts.inbox_length = EVENTS as u64;
    write(&world, "metadata", &counts);
    remind(&world).await;
    let taken = take_one_by_one(&mut worker, EVENTS).await;
    let expected: Vec<_> = (0..EVENTS).map(|number| number.to_string()).collect();
    assert_eq!(taken, expected);
    eventually(async || status(&node).await == "COMPLETED").await;
    assert!(metadata(&world).generation > 1);
}

/// Invariant: an event is stored before its reminder, so that whichever sidecar gets the reminder finds it. Until
/// the scheduler has the reminder, the sender waits.
#[tokio::test]
async fn stores_event_before_its_reminder() {
    let mut world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.answer("a", &token, Vec::new()).await;
    eventually(async || status(&node).await == "RUNNING").await;
    world.control.scheduler.kill();
    let raise = post("/v1.0/workflows/dapr/a/raiseEvent/e", "7");
    let raised = node.ask(raise);
    let mut raised = std::pin::pin!(raised);
    tokio::select! {
        _ = &mut raised => panic!("there is no scheduler"),
        () = eventually(async || metadata(&world).inbox_length == 1) => {}
    }
    world.control.start_scheduler().await;
    assert_eq!(raised.await.status, 202);
    let (turn, _token) = worker.turn().await;
    assert_eq!(events(&turn).iter().map(input).collect::<Vec<_>>(), ["7"]);
}

/// Invariant: a step that finds changed state is repeated at once with the stored state, unnoticed by its
/// caller.
#[tokio::test]
async fn repeats_step_on_changed_state() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    begun(&node).await;
    let (_, token) = worker.turn().await;
    worker.answer("a", &token, Vec::new()).await;
    eventually(async || status(&node).await == "RUNNING").await;
    let change = || write(&world, "metadata", &metadata(&world));
    change();
    let raise = post("/v1.0/workflows/dapr/a/raiseEvent/e", "7");
    let answer = node.ask(raise).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    for again in [true, false] {
        let (turn, token) = worker.turn().await;
        let came = events(&turn);
        assert_eq!(came.iter().map(input).collect::<Vec<_>>(), ["7"]);
        if again {
            change();
        }
        worker.complete("a", &token, "1").await;
    }
    eventually(async || status(&node).await == "COMPLETED").await;
    let failed = [r#"success="false""#];
    let failed = node
        .metric("dapr_runtime_actor_reminders_fired_total", &failed)
        .await;
    assert_eq!(failed, None, "the scheduler repeats nothing");
}
