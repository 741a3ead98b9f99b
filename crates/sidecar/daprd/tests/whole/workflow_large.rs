//! Workflows with more data than a message can have; every wait ends with an error.

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::work_item::Request as Work;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Do;
use outrigger_wire::durabletask::{
    ActivityResponse, CompleteWorkflowAction, OrchestrationStatus, ScheduleTaskAction, WorkflowAction,
    WorkflowResponse,
};
use tonic::Code;

use crate::common::{Node, eventually, get, post};
use crate::workflow_api::{Worker, World, hub};

const LIMIT: &str = "--max-body-size=16000";

async fn started(world: &World) -> (Node, Worker) {
    let node = world.plan().flag(LIMIT).start().await;
    let worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let path = "/v1.0/workflows/dapr/order/start?instanceID=a";
    assert_eq!(node.ask(post(path, "1")).await.status, 202);
    (node, worker)
}

/// The reasons why the instance waits.
async fn whys(node: &Node) -> String {
    let waits = node.ask(get("/v1.0-alpha1/workflows/dapr/a/waits")).await.json();
    let waits = waits["waitsFor"].as_array().cloned().unwrap_or_default();
    let whys = waits.iter().filter_map(|wait| wait["why"].as_str());
    whys.collect::<Vec<_>>().join("; ")
}

async fn is_completed(node: &Node) -> bool {
    let answer = node.ask(get("/v1.0/workflows/dapr/a")).await.json();
    answer["runtimeStatus"] == "COMPLETED"
}

/// Invariant: an oversized answer to a turn is reported in the instance's status, and the instance can be
/// terminated.
#[tokio::test]
async fn reports_oversized_answer_and_terminates() {
    let world = World::new().await;
    let (node, mut worker) = started(&world).await;
    let (_, token) = worker.turn().await;
    assert!(whys(&node).await.contains("sent to a worker at 2"));
    let done = CompleteWorkflowAction {
        workflow_status: OrchestrationStatus::Completed.into(),
        result: Some("x".repeat(100_000)),
        ..CompleteWorkflowAction::default()
    };
    let answer = WorkflowResponse {
        instance_id: "a".to_owned(),
        actions: vec![WorkflowAction {
            workflow_action_type: Some(Do::CompleteWorkflow(done)),
            ..WorkflowAction::default()
        }],
        completion_token: token,
        ..WorkflowResponse::default()
    };
    let refused = hub(node.ports.grpc, "CompleteOrchestratorTask", &answer).await;
    assert_eq!(refused.status.code(), Code::ResourceExhausted);
    assert!(
        refused.status.message().ends_with("vs. 16000)"),
        "{:?}",
        refused.status
    );
    eventually(async || whys(&node).await.contains("increase daprd --max-body-size")).await;
    let terminate = node.ask(post("/v1.0/workflows/dapr/a/terminate", "")).await;
    assert_eq!(terminate.status, 202, "{}", terminate.text());
    loop {
        let (turn, token) = worker.turn().await;
        let is_end = |event: &EventType| matches!(event, EventType::ExecutionTerminated(_));
        if turn
            .new_events
            .iter()
            .filter_map(|event| event.event_type.as_ref())
            .any(is_end)
        {
            worker.complete("a", &token, "1").await;
            break;
        }
        // It was retried before.
        let answer = WorkflowResponse {
            completion_token: token,
            ..answer.clone()
        };
        hub(node.ports.grpc, "CompleteOrchestratorTask", &answer).await;
    }
    eventually(async || is_completed(&node).await).await;
}

/// Invariant: the same if the answer reaches another sidecar than the waiting one.
#[tokio::test]
async fn reports_oversized_answer_across_sidecars() {
    const CLUSTERED: &str = "  features:\n  - name: WorkflowsClusteredDeployment\n    enabled: true\n";
    let world = World::new().await;
    let node = world.plan().flag(LIMIT).spec(CLUSTERED).start().await;
    let other = world.plan().flag(LIMIT).spec(CLUSTERED).start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let path = "/v1.0/workflows/dapr/order/start?instanceID=a";
    assert_eq!(node.ask(post(path, "1")).await.status, 202);
    let (_, token) = worker.turn().await;
    let answer = WorkflowResponse {
        instance_id: "a".to_owned(),
        custom_status: Some("x".repeat(100_000)),
        completion_token: token,
        ..WorkflowResponse::default()
    };
    let refused = hub(other.ports.grpc, "CompleteOrchestratorTask", &answer).await;
    assert_eq!(refused.status.code(), Code::ResourceExhausted);
    let (_, token) = worker.turn().await;
    worker.complete("a", &token, "1").await;
    eventually(async || is_completed(&node).await).await;
}

/// Invariant: an activity with an oversized result fails permanently with that reason.
#[tokio::test]
async fn oversized_result_fails_activity() {
    let world = World::new().await;
    let (node, mut worker) = started(&world).await;
    let (_, token) = worker.turn().await;
    let task = Do::ScheduleTask(ScheduleTaskAction {
        name: "collect".to_owned(),
        ..ScheduleTaskAction::default()
    });
    let action = WorkflowAction {
        id: 3,
        workflow_action_type: Some(task),
        ..WorkflowAction::default()
    };
    worker.answer("a", &token, vec![action]).await;
    let item = worker.item().await;
    assert!(matches!(item.request, Some(Work::ActivityRequest(_))), "{item:?}");
    eventually(async || whys(&node).await.contains("sent to a worker at 2")).await;
    let answer = ActivityResponse {
        instance_id: "a".to_owned(),
        task_id: 3,
        result: Some("x".repeat(100_000)),
        completion_token: item.completion_token,
        ..ActivityResponse::default()
    };
    let refused = hub(node.ports.grpc, "CompleteActivityTask", &answer).await;
    assert_eq!(refused.status.code(), Code::ResourceExhausted);
    let (turn, token) = worker.turn().await;
    let failure = turn.new_events.iter().find_map(|event| match &event.event_type {
        Some(EventType::TaskFailed(failed)) => failed.failure_details.clone(),
        _ => None,
    });
    let failure = failure.expect("the activity has failed");
    assert!(failure.is_non_retriable && failure.error_type == "ActivityResultTooLarge");
    let text = failure.error_message;
    assert!(
        text.contains("limit of 16000 bytes") && text.contains("increase daprd --max-body-size"),
        "{text}"
    );
    worker.complete("a", &token, "1").await;
    eventually(async || is_completed(&node).await).await;
}

/// Invariant: a start that could never be sent to a worker is refused.
#[tokio::test]
async fn refuses_oversized_start() {
    let world = World::new().await;
    let (node, _worker) = started(&world).await;
    let input = "x".repeat(15_900);
    let path = "/v1.0/workflows/dapr/order/start?instanceID=large";
    let refused = node.ask(post(path, input)).await;
    assert_eq!(refused.status, 500, "{}", refused.text());
    assert!(refused.text().contains("--max-body-size"), "{}", refused.text());
    let unknown = node.ask(get("/v1.0/workflows/dapr/large")).await;
    unknown.error(404, "ERR_INSTANCE_ID_NOT_FOUND");
}
