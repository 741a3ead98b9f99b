//! Spans of workflows.

use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Do;
use outrigger_wire::durabletask::{
    CompleteWorkflowAction, OrchestrationStatus, WorkflowAction, WorkflowResponse, WorkflowVersion,
};

use super::pubsub::sampled;
use super::*;
use crate::workflow_api::{Worker, World, hub};

/// Invariant: the span of an execution names the patches used by its code.
#[tokio::test]
async fn span_names_patches() {
    let world = World::new().await;
    let (otel, spans) = collector().await;
    let node = world.plan().spec(&sampled(&otel)).start().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let path = "/v1.0/workflows/dapr/order/start?instanceID=a";
    let started = node.ask(request("POST", path, &[PARENT], "1")).await;
    assert_eq!(started.status, 202);
    let (_, token) = worker.turn().await;
    let done = CompleteWorkflowAction {
        workflow_status: OrchestrationStatus::Completed.into(),
        ..CompleteWorkflowAction::default()
    };
    let answer = WorkflowResponse {
        instance_id: "a".to_owned(),
        actions: vec![WorkflowAction {
            workflow_action_type: Some(Do::CompleteWorkflow(done)),
            ..WorkflowAction::default()
        }],
        completion_token: token,
        version: Some(WorkflowVersion {
            patches: vec!["one".to_owned(), "two".to_owned()],
            ..WorkflowVersion::default()
        }),
        ..WorkflowResponse::default()
    };
    hub(node.ports.grpc, "CompleteOrchestratorTask", &answer).await;
    let patches = || {
        let spans = spans.lock().unwrap();
        let of = spans
            .iter()
            .find(|span| span.span.name == "orchestration||order")?;
        let found = of.span.attributes.iter().find(|a| a.key == "applied_patches")?;
        match found.value.clone()?.value? {
            Value::ArrayValue(list) => Some(list.values),
            other => panic!("{other:?}"),
        }
    };
    eventually(async || patches().is_some()).await;
    let texts = patches().unwrap().into_iter().map(|value| value.value.unwrap());
    let expected = ["one", "two"].map(|patch| Value::StringValue(patch.to_owned()));
    assert_eq!(texts.collect::<Vec<_>>(), expected);
}
