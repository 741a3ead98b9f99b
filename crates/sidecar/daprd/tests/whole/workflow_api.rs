//! The workflow APIs of whole sidecars: the management API, the service for SDKs, and the streams of workers.

mod history;

use http::Response;
use hyper::body::Incoming;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::work_item::Request as Work;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Do;
use outrigger_wire::durabletask::{
    CompleteWorkflowAction, CreateInstanceRequest, GetInstanceHistoryRequest, GetInstanceHistoryResponse,
    GetInstanceRequest, GetInstanceResponse, GetWorkItemsRequest, ListInstanceIDsRequest,
    ListInstanceIDsResponse, OrchestrationStatus, RaiseEventRequest, WorkItem, WorkflowAction,
    WorkflowRequest, WorkflowResponse,
};
use outrigger_wire::runtime::v1 as runtime;
use prost::Message;
use serde_json::{Value, json};
use tonic::Code;

use crate::common::grpc::{self, Outcome};
use crate::common::{Control, Net, Node, Placement, Plan, eventually, get, post, request};

const STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  \
                     type: state.sqlite\n  version: v1\n  metadata:\n  - name: connectionString\n    value: 'FILE'\n  \
                     - name: actorStateStore\n    value: 'true'\n";
pub const KIND: &str = "dapr.internal.default.shop.workflow";

/// The environment of sidecars with workflows.
pub struct World {
    net: Net,
    placement: Placement,
    pub control: Control,
    folder: tempfile::TempDir,
}

impl World {
    pub async fn new() -> Self {
        Self {
            net: Net::plain(),
            placement: Placement::start().await,
            control: Control::scheduler().await,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A sidecar of the app `shop`; all share a store.
    pub async fn sidecar(&self) -> Node {
        self.plan().start().await
    }

    /// Its plan.
    pub fn plan(&self) -> Plan<'_> {
        let file = self.folder.path().join("state.db");
        let store = STORE.replace("FILE", &file.display().to_string());
        let plan = self.net.sidecar("shop").resource(&store);
        self.control.with_scheduler(plan).flag(&self.placement.flag())
    }

    /// The database of the store.
    pub fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.folder.path().join("state.db")).unwrap()
    }

    pub async fn hosts(&self, count: usize) {
        eventually(async || self.placement.has(KIND, count)).await;
    }
}

/// A worker like those of SDKs: an open stream of work items, answered by calls.
pub struct Worker {
    port: u16,
    work: Response<Incoming>,
}

impl Worker {
    pub async fn connect(node: &Node) -> Self {
        Self::with(node, GetWorkItemsRequest::default()).await
    }

    pub async fn with(node: &Node, request: GetWorkItemsRequest) -> Self {
        let port = node.ports.grpc;
        let sent = grpc::framed(&request.encode_to_vec());
        let work = grpc::start(port, "/TaskHubSidecarService/GetWorkItems", &[], sent.into()).await;
        Self { port, work }
    }

    /// The next turn to run, and the token to return.
    pub async fn turn(&mut self) -> (WorkflowRequest, String) {
        let item = self.item().await;
        match item.request {
            Some(Work::WorkflowRequest(request)) => (request, item.completion_token),
            other => panic!("{other:?}"),
        }
    }

    /// The next work item.
    pub async fn item(&mut self) -> WorkItem {
        let message = grpc::next(self.work.body_mut())
            .await
            .expect("the stream continues");
        WorkItem::decode(message).unwrap()
    }

    /// Answers that the workflow is completed.
    pub async fn complete(&self, instance: &str, token: &str, result: &str) {
        let done = CompleteWorkflowAction {
            workflow_status: OrchestrationStatus::Completed.into(),
            result: Some(result.to_owned()),
            ..CompleteWorkflowAction::default()
        };
        self.answer(
            instance,
            token,
            vec![WorkflowAction {
                id: 0,
                workflow_action_type: Some(Do::CompleteWorkflow(done)),
                ..WorkflowAction::default()
            }],
        )
        .await;
    }

    pub async fn answer(&self, instance: &str, token: &str, actions: Vec<WorkflowAction>) {
        let response = WorkflowResponse {
            instance_id: instance.to_owned(),
            actions,
            completion_token: token.to_owned(),
            ..WorkflowResponse::default()
        };
        let answered = hub(self.port, "CompleteOrchestratorTask", &response).await;
        assert_eq!(answered.status.code(), Code::Ok, "{:?}", answered.status);
    }
}

pub async fn hub(port: u16, method: &str, message: &impl Message) -> Outcome {
    grpc::unary(port, &format!("/TaskHubSidecarService/{method}"), &[], message).await
}

async fn dapr(node: &Node, method: &str, message: &impl Message) -> Outcome {
    let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
    grpc::unary(node.ports.grpc, &path, &[], message).await
}

async fn status(node: &Node, id: &str) -> Value {
    let answer = node.ask(get(&format!("/v1.0/workflows/dapr/{id}"))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn workflows_require_placement() {
    let net = Net::plain();
    let node = net.sidecar("shop").start().await;
    for version in ["v1.0", "v1.0-beta1", "v1.0-alpha1"] {
        let start = post(&format!("/{version}/workflows/dapr/w/start"), "");
        node.ask(start).await.error(400, "ERR_ACTOR_NO_PLACEMENT");
        let about = get(&format!("/{version}/workflows/dapr/a"));
        node.ask(about).await.error(400, "ERR_ACTOR_NO_PLACEMENT");
        for what in ["pause", "resume", "terminate", "purge", "raiseEvent/e"] {
            let asked = post(&format!("/{version}/workflows/dapr/a/{what}"), "");
            node.ask(asked).await.error(400, "ERR_ACTOR_NO_PLACEMENT");
        }
    }
    let refused = dapr(
        &node,
        "StartWorkflowBeta1",
        &runtime::StartWorkflowRequest::default(),
    )
    .await;
    assert_eq!(refused.status.code(), Code::Unavailable);
    let refused = hub(
        node.ports.grpc,
        "GetWorkItems",
        &GetWorkItemsRequest {
            capabilities: Vec::new(),
        },
    )
    .await;
    assert_eq!(refused.status.code(), Code::Unavailable);
    assert!(
        refused
            .status
            .message()
            .starts_with("unable to establish work item stream")
    );
    let hello = hub(node.ports.grpc, "Hello", &()).await;
    assert_eq!(hello.status.code(), Code::Ok);
}

#[tokio::test]
async fn invalid_workflow_requests_have_contract_codes() {
    let world = World::new().await;
    let node = world.sidecar().await;
    for (id, code) in [
        ("a%20b", "ERR_INSTANCE_ID_INVALID"),
        ("a:b", "ERR_INSTANCE_ID_INVALID"),
        (&"x".repeat(65), "ERR_INSTANCE_ID_TOO_LONG"),
    ] {
        let start = post(&format!("/v1.0/workflows/dapr/w/start?instanceID={id}"), "");
        node.ask(start).await.error(400, code);
    }
    let unknown = node.ask(get("/v1.0/workflows/dapr/nobody")).await;
    let text = unknown.error(404, "ERR_INSTANCE_ID_NOT_FOUND");
    assert_eq!(
        text,
        "unable to find workflow with the provided instance ID: nobody"
    );
    let unnamed = dapr(
        &node,
        "StartWorkflowBeta1",
        &runtime::StartWorkflowRequest::default(),
    )
    .await;
    assert_eq!(unnamed.status.code(), Code::InvalidArgument);
    assert_eq!(unnamed.status.message(), "workflow name is not configured");
    let late = runtime::StartWorkflowRequest {
        workflow_name: "w".to_owned(),
        options: [("dapr.workflow.start_time".to_owned(), "soon".to_owned())].into(),
        ..runtime::StartWorkflowRequest::default()
    };
    let late = dapr(&node, "StartWorkflowAlpha1", &late).await;
    assert_eq!(late.status.code(), Code::Internal);
    assert!(late.status.message().contains("RFC3339"), "{:?}", late.status);
    let about = runtime::GetWorkflowRequest {
        instance_id: "nobody".to_owned(),
        ..runtime::GetWorkflowRequest::default()
    };
    let found: runtime::GetWorkflowResponse = dapr(&node, "GetWorkflowBeta1", &about).await.message();
    let nothing = runtime::GetWorkflowResponse {
        instance_id: "nobody".to_owned(),
        ..runtime::GetWorkflowResponse::default()
    };
    assert_eq!(found, nothing);
    let raised = runtime::RaiseEventWorkflowRequest {
        instance_id: "a".to_owned(),
        ..runtime::RaiseEventWorkflowRequest::default()
    };
    let raised = dapr(&node, "RaiseEventWorkflowBeta1", &raised).await;
    assert_eq!(raised.status.code(), Code::InvalidArgument);
    assert_eq!(raised.status.message(), "missing workflow event name");
    let paused = dapr(
        &node,
        "PauseWorkflowBeta1",
        &runtime::PauseWorkflowRequest::default(),
    )
    .await;
    assert_eq!(paused.status.message(), "no instance ID was provided");
    let about = GetInstanceRequest {
        instance_id: "nobody".to_owned(),
        get_inputs_and_outputs: true,
    };
    let found: GetInstanceResponse = hub(node.ports.grpc, "GetInstance", &about).await.message();
    assert!(!found.exists);
    let history = GetInstanceHistoryRequest {
        instance_id: "nobody".to_owned(),
    };
    let history = hub(node.ports.grpc, "GetInstanceHistory", &history).await;
    assert_eq!(history.status.code(), Code::NotFound);
    assert_eq!(history.status.message(), "workflow instance 'nobody' not found");
}

#[tokio::test]
async fn hosts_types_while_worker_is_connected() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let workers = async || {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        metadata["workflows"].clone()
    };
    assert_eq!(workers().await, Value::Null);
    let one = Worker::connect(&node).await;
    world.hosts(1).await;
    let two = Worker::connect(&node).await;
    eventually(async || workers().await == json!({"connectedWorkers": 2})).await;
    drop(one);
    eventually(async || workers().await == json!({"connectedWorkers": 1})).await;
    assert!(world.placement.has(KIND, 1));
    drop(two);
    world.hosts(0).await;
    assert_eq!(workers().await, Value::Null);
    let _again = Worker::connect(&node).await;
    world.hosts(1).await;
}

/// Every API refuses to start an instance with the id of another.
#[tokio::test]
async fn refuses_id_in_use() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let _worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let (node, id) = (&node, "a");
    let later = runtime::StartWorkflowRequest {
        instance_id: id.to_owned(),
        workflow_name: "order".to_owned(),
        options: [(
            "dapr.workflow.start_time".to_owned(),
            "2999-01-01T00:00:00Z".to_owned(),
        )]
        .into(),
        ..runtime::StartWorkflowRequest::default()
    };
    let started = dapr(node, "StartWorkflowBeta1", &later).await.status;
    assert_eq!(started.code(), Code::Ok, "{started:?}");
    let text = format!("an active workflow with ID '{id}' already exists");
    let again = format!("/v1.0/workflows/dapr/order/start?instanceID={id}");
    let again = node.ask(post(&again, "")).await;
    assert!(again.error(500, "ERR_START_WORKFLOW").ends_with(&text));
    let again = runtime::StartWorkflowRequest {
        instance_id: id.to_owned(),
        workflow_name: "order".to_owned(),
        ..runtime::StartWorkflowRequest::default()
    };
    let of_dapr = dapr(node, "StartWorkflowBeta1", &again).await.status;
    let again = CreateInstanceRequest {
        instance_id: id.to_owned(),
        name: "order".to_owned(),
        ..CreateInstanceRequest::default()
    };
    let of_hub = hub(node.ports.grpc, "StartInstance", &again).await.status;
    assert_eq!(
        of_hub.message(),
        format!("failed to create workflow instance: {text}")
    );
    for refused in [of_dapr, of_hub] {
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert!(refused.message().ends_with(&text), "{refused:?}");
    }
}

#[tokio::test]
async fn starts_runs_describes_and_purges_instance() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let started = node
        .ask(post(
            "/v1.0/workflows/dapr/order/start?instanceID=a",
            r#"{"n":1}"#,
        ))
        .await;
    assert_eq!(started.status, 202, "{}", started.text());
    assert_eq!(started.json(), json!({"instanceID": "a"}));
    let (turn, token) = worker.turn().await;
    assert_eq!(turn.instance_id, "a");
    assert!(turn.past_events.is_empty());
    let begun = turn.new_events.iter().find_map(|event| match &event.event_type {
        Some(EventType::ExecutionStarted(begun)) => Some(begun),
        _ => None,
    });
    let begun = begun.expect("it begins");
    assert_eq!(
        (begun.name.as_str(), begun.input.as_deref()),
        ("order", Some(r#"{"n":1}"#))
    );
    assert_eq!(status(&node, "a").await["runtimeStatus"], "PENDING");
    worker.complete("a", &token, "\"done\"").await;
    let about = GetInstanceRequest {
        instance_id: "a".to_owned(),
        get_inputs_and_outputs: true,
    };
    let ended = hub(node.ports.grpc, "WaitForInstanceCompletion", &about).await;
    let ended: GetInstanceResponse = ended.message();
    let state = ended.workflow_state.expect("a state");
    assert!(state.started_at.is_some());
    assert_eq!(state.workflow_status(), OrchestrationStatus::Completed);
    assert_eq!(state.output.as_deref(), Some("\"done\""));
    let described = status(&node, "a").await;
    assert_eq!(described["runtimeStatus"], "COMPLETED");
    assert_eq!(described["workflowName"], "order");
    let properties = &described["properties"];
    assert_eq!(properties["dapr.workflow.input"], r#"{"n":1}"#);
    assert_eq!(properties["dapr.workflow.output"], "\"done\"");
    let history = GetInstanceHistoryRequest {
        instance_id: "a".to_owned(),
    };
    let history = hub(node.ports.grpc, "GetInstanceHistory", &history).await;
    let history: GetInstanceHistoryResponse = history.message();
    assert_eq!(history.events.len(), 3, "{history:?}");
    let history = node.ask(get("/v1.0-alpha1/workflows/dapr/a/history")).await;
    assert_eq!(history.status, 200, "{}", history.text());
    let history = history.json();
    let events = history["events"].as_array().unwrap();
    assert_eq!(events.len(), 3, "{history}");
    let begun = &events[1]["executionStarted"];
    assert_eq!(
        (&begun["name"], &begun["input"]),
        (&json!("order"), &json!(r#"{"n":1}"#))
    );
    assert_eq!(events[2]["executionCompleted"]["result"], "\"done\"");
    assert!(
        events[2]["timestamp"].as_str().unwrap().ends_with('Z'),
        "{history}"
    );
    let listed = hub(
        node.ports.grpc,
        "ListInstanceIDs",
        &ListInstanceIDsRequest::default(),
    )
    .await;
    let listed: ListInstanceIDsResponse = listed.message();
    assert_eq!(listed.instance_ids, ["a"]);
    let purged = node.ask(post("/v1.0/workflows/dapr/a/purge", "")).await;
    assert_eq!(purged.status, 202, "{}", purged.text());
    let gone = node.ask(get("/v1.0/workflows/dapr/a")).await;
    gone.error(404, "ERR_INSTANCE_ID_NOT_FOUND");
    for what in ["purge", "terminate"] {
        let asked = node
            .ask(post(&format!("/v1.0/workflows/dapr/a/{what}"), ""))
            .await;
        asked.error(404, "ERR_INSTANCE_ID_NOT_FOUND");
    }
    let raised = RaiseEventRequest {
        instance_id: "a".to_owned(),
        name: "e".to_owned(),
        input: None,
    };
    let raised = hub(node.ports.grpc, "RaiseEvent", &raised).await;
    assert!(
        raised.status.message().ends_with("no such instance exists"),
        "{:?}",
        raised.status
    );
    for (operation, status, times) in [
        ("create_workflow", "success", 1.0),
        ("purge_workflow", "success", 1.0),
        ("add_event", "failed", 2.0),
    ] {
        let labels = [
            r#"app_id="shop""#,
            &format!(r#"operation="{operation}""#),
            &format!(r#"status="{status}""#),
        ];
        let name = "dapr_runtime_workflow_operation_count";
        node.counts(name, &labels, times).await;
    }
}

#[tokio::test]
async fn reaches_instance_through_other_sidecar() {
    let world = World::new().await;
    let (here, there) = (world.sidecar().await, world.sidecar().await);
    let mut worker = Worker::connect(&there).await;
    world.hosts(1).await;
    let request = CreateInstanceRequest {
        instance_id: "far".to_owned(),
        name: "order".to_owned(),
        ..CreateInstanceRequest::default()
    };
    let port = here.ports.grpc;
    let starting = tokio::spawn(async move { hub(port, "StartInstance", &request).await });
    let (turn, token) = worker.turn().await;
    assert_eq!(turn.instance_id, "far");
    assert!(!starting.is_finished(), "it is notified when the instance runs");
    worker.complete("far", &token, "1").await;
    let started = starting.await.unwrap();
    assert_eq!(started.status.code(), Code::Ok, "{:?}", started.status);
    let about = GetInstanceRequest {
        instance_id: "far".to_owned(),
        get_inputs_and_outputs: false,
    };
    let ended = hub(port, "WaitForInstanceCompletion", &about).await;
    let ended: GetInstanceResponse = ended.message();
    let state = ended.workflow_state.expect("a state");
    assert_eq!(state.workflow_status(), OrchestrationStatus::Completed);
    assert_eq!(state.output, None, "it was not asked for");
    let raised = RaiseEventRequest {
        instance_id: "nobody".to_owned(),
        name: "e".to_owned(),
        input: None,
    };
    let raised = hub(port, "RaiseEvent", &raised).await;
    assert!(
        raised.status.message().ends_with("no such instance exists"),
        "{:?}",
        raised.status
    );
}

/// Invariant: an instance id that contains the separator of stored keys is listed completely.
#[tokio::test]
async fn lists_instance_id_with_separator() {
    const ID: &str = "a||b||metadata";
    let world = World::new().await;
    let node = world.sidecar().await;
    let _worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let in_an_hour = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    let start = CreateInstanceRequest {
        instance_id: ID.to_owned(),
        name: "order".to_owned(),
        scheduled_start_timestamp: Some(in_an_hour.into()),
        ..CreateInstanceRequest::default()
    };
    let started = hub(node.ports.grpc, "StartInstance", &start).await;
    assert_eq!(started.status.code(), Code::Ok, "{:?}", started.status);
    let all = ListInstanceIDsRequest::default();
    let listed = hub(node.ports.grpc, "ListInstanceIDs", &all).await;
    assert_eq!(listed.message::<ListInstanceIDsResponse>().instance_ids, [ID]);
    let listed = node
        .ask(get("/v1.0-alpha1/workflows/dapr?instanceIDPrefix=a%7C%7Cb"))
        .await;
    assert!(listed.text().contains(ID), "{}", listed.text());
}
