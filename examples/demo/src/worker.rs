//! The gRPC app's workflow and its worker: a stream of work items from the sidecar, and a result for each. Dapr's SDKs
//! contain such a worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::task_hub_sidecar_service_client::TaskHubSidecarServiceClient;
use outrigger_wire::durabletask::work_item::Request as Work;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Action;
use outrigger_wire::durabletask::{
    ActivityResponse, CompleteWorkflowAction, CreateTimerAction, GetWorkItemsRequest, OrchestrationStatus,
    ScheduleTaskAction, WorkItem, WorkflowAction, WorkflowRequest, WorkflowResponse,
};
use serde_json::json;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};

use crate::Failure;

/// Inputs of the activities, which run in parallel.
pub(crate) const CARGO: [&str; 3] = ["water", "rope", "canvas"];
/// The event that the workflow waits for.
pub(crate) const EVENT: &str = "wind";
/// Delay of the workflow's timer in seconds, from its first step.
pub(crate) const TIMER: i64 = 3;
/// Duration of an activity.
pub(crate) const STOWING: Duration = Duration::from_millis(500);
/// Pause between connection attempts.
const PAUSE: Duration = Duration::from_millis(100);

type Sidecar = TaskHubSidecarServiceClient<Channel>;

/// Runs work items of the sidecar on this gRPC port, and reconnects when it restarts.
pub(crate) async fn work(sidecar: u16) -> Result<(), Failure> {
    let channel = Endpoint::from_shared(format!("http://127.0.0.1:{sidecar}"))?.connect_lazy();
    let sidecar = TaskHubSidecarServiceClient::new(channel);
    // Activities run by this process.
    let ran = Arc::<AtomicU32>::default();
    loop {
        // The sidecar sends work items again whose results it did not receive.
        let _ended = take_work(sidecar.clone(), &ran).await;
        sleep(PAUSE).await;
    }
}

async fn take_work(mut sidecar: Sidecar, ran: &Arc<AtomicU32>) -> Result<(), Failure> {
    let mut items = sidecar
        .get_work_items(GetWorkItemsRequest {
            capabilities: Vec::new(),
        })
        .await?
        .into_inner();
    while let Some(item) = items.message().await? {
        tokio::spawn(answer(sidecar.clone(), item, Arc::clone(ran)));
    }
    Ok(())
}

async fn answer(mut sidecar: Sidecar, item: WorkItem, ran: Arc<AtomicU32>) -> Result<(), Failure> {
    let completion_token = item.completion_token;
    match item.request.ok_or("a piece of work without work")? {
        Work::WorkflowRequest(request) => {
            let response = WorkflowResponse {
                instance_id: request.instance_id.clone(),
                actions: turn(request),
                completion_token,
                ..WorkflowResponse::default()
            };
            sidecar.complete_orchestrator_task(response).await?;
        }
        Work::ActivityRequest(request) => {
            sleep(STOWING).await;
            let number = ran.fetch_add(1, Ordering::SeqCst) + 1;
            let response = ActivityResponse {
                instance_id: request.workflow_instance.unwrap_or_default().instance_id,
                task_id: request.task_id,
                result: Some(number.to_string()),
                completion_token,
                ..ActivityResponse::default()
            };
            sidecar.complete_activity_task(response).await?;
        }
    }
    Ok(())
}

/// The workflow: a function from its history to its next actions. It starts all activities and a timer, and completes after
/// these and the event. Actions are numbered from 0.
fn turn(request: WorkflowRequest) -> Vec<WorkflowAction> {
    let (mut now, mut begun, mut fired, mut raised) = (None, false, false, None);
    let mut stowed = BTreeMap::new();
    for event in request.past_events.into_iter().chain(request.new_events) {
        now = event.timestamp.or(now);
        match event.event_type {
            Some(EventType::TimerCreated(_)) => begun = true,
            Some(EventType::TaskCompleted(task)) => {
                stowed.insert(task.task_scheduled_id, task.result);
            }
            Some(EventType::TimerFired(_)) => fired = true,
            Some(EventType::EventRaised(event)) if event.name.eq_ignore_ascii_case(EVENT) => {
                raised = event.input;
            }
            _ => {}
        }
    }
    let actions = match raised {
        _ if !begun => {
            let activity = |cargo: &str| {
                Action::ScheduleTask(ScheduleTaskAction {
                    name: "stow".to_owned(),
                    input: Some(json!(cargo).to_string()),
                    ..ScheduleTaskAction::default()
                })
            };
            let fire_at = now.map(|mut at| {
                at.seconds += TIMER;
                at
            });
            let timer = Action::CreateTimer(CreateTimerAction {
                fire_at,
                name: None,
                origin: None,
            });
            CARGO.into_iter().map(activity).chain([timer]).collect()
        }
        Some(raised) if fired && stowed.len() == CARGO.len() => {
            let stowed: Vec<String> = stowed.into_values().flatten().collect();
            vec![Action::CompleteWorkflow(CompleteWorkflowAction {
                workflow_status: OrchestrationStatus::Completed.into(),
                result: Some(format!("stowed {}, wind {raised}", stowed.join(" "))),
                ..CompleteWorkflowAction::default()
            })]
        }
        _ => Vec::new(),
    };
    // The completion follows the activities and the timer.
    let first = if begun { CARGO.len() + 1 } else { 0 };
    let numbered = actions.into_iter().zip(first..);
    numbered
        .map(|(action, id)| WorkflowAction {
            id: i32::try_from(id).unwrap_or(i32::MAX),
            router: None,
            workflow_action_type: Some(action),
        })
        .collect()
}
