//! A workflow worker like those of SDKs: a stream of work items, answered by calls. Workflows are functions
//! replayed from the beginning in every step (`replay`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use outrigger_wire::durabletask::work_item::Request as Work;
use outrigger_wire::durabletask::{
    ActivityRequest, ActivityResponse, GetWorkItemsRequest, TaskFailureDetails, WorkItem,
};
use prost::Message;
use tokio::task::JoinSet;

use super::{Node, Process, grpc};
use crate::replay::{Context, End, step};

type Workflow = Box<dyn Fn(&mut Context) -> Option<End> + Send + Sync>;
type Activity = Box<dyn Fn(&ActivityRequest) -> Result<String, String> + Send + Sync>;

/// A store for actors and workflows.
pub const ACTOR_STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  \
                               type: state.in-memory\n  version: v1\n  metadata:\n  - name: actorStateStore\n    \
                               value: 'true'\n";

/// The activities and workflows of a worker.
#[derive(Default)]
pub struct Tasks {
    workflows: HashMap<&'static str, Workflow>,
    activities: HashMap<&'static str, Activity>,
    /// Names of executed activities in order.
    ran: Mutex<Vec<String>>,
}

/// A connected worker; it disconnects on drop.
pub struct Worker {
    serving: JoinSet<()>,
}

impl Tasks {
    pub fn workflow(
        mut self,
        name: &'static str,
        workflow: impl Fn(&mut Context) -> Option<End> + Send + Sync + 'static,
    ) -> Self {
        self.workflows.insert(name, Box::new(workflow));
        self
    }

    pub fn activity(
        mut self,
        name: &'static str,
        activity: impl Fn(&ActivityRequest) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        self.activities.insert(name, Box::new(activity));
        self
    }

    pub fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap().clone()
    }

    fn run(&self, item: WorkItem) -> (&'static str, Vec<u8>) {
        let token = item.completion_token;
        match item.request.expect("a work item has a request") {
            Work::WorkflowRequest(request) => {
                let mut response = step(request, &|context| {
                    let workflow = self.workflows.get(context.name.as_str());
                    workflow.unwrap_or_else(|| panic!("no workflow {}", context.name))(context)
                });
                response.completion_token = token;
                ("CompleteWorkflowTask", response.encode_to_vec())
            }
            Work::ActivityRequest(request) => {
                self.ran.lock().unwrap().push(request.name.clone());
                let activity = self.activities.get(request.name.as_str());
                let ran = activity.unwrap_or_else(|| panic!("no activity {}", request.name))(&request);
                let (result, failure) = match ran {
                    Ok(result) => (Some(result), None),
                    Err(message) => (None, Some(message)),
                };
                let response = ActivityResponse {
                    instance_id: request.workflow_instance.unwrap().instance_id,
                    task_id: request.task_id,
                    result,
                    failure_details: failure.map(|error_message| TaskFailureDetails {
                        error_type: "Refused".to_owned(),
                        error_message,
                        ..TaskFailureDetails::default()
                    }),
                    completion_token: token,
                };
                ("CompleteActivityTask", response.encode_to_vec())
            }
        }
    }
}

/// Opens a stream of work items. It ends with status OK once the sidecar is shutting down and reads no further
/// events, while the sidecar still waits for those in progress.
pub async fn stream(node: &Node) -> Incoming {
    stream_at(node.ports.grpc).await
}

async fn stream_at(port: u16) -> Incoming {
    let sent = grpc::framed(
        &GetWorkItemsRequest {
            capabilities: Vec::new(),
        }
        .encode_to_vec(),
    );
    let path = "/TaskHubSidecarService/GetWorkItems";
    grpc::start(port, path, &[], sent.into()).await.into_body()
}

impl Worker {
    pub async fn connect(node: &Node, work: &Arc<Tasks>) -> Self {
        Self::answering(node, &[node], work).await
    }

    /// A worker whose answers go to these sidecars in turn, as through a load balancer.
    pub async fn answering(node: &Node, to: &[&Node], work: &Arc<Tasks>) -> Self {
        let to = to.iter().map(|node| node.ports.grpc).collect();
        Self::at(node.ports.grpc, to, work).await
    }

    /// A worker of a sidecar in a separate process.
    pub async fn of_process(process: &Process, work: &Arc<Tasks>) -> Self {
        Self::at(process.ports.grpc, vec![process.ports.grpc], work).await
    }

    async fn at(port: u16, to: Vec<u16>, work: &Arc<Tasks>) -> Self {
        let mut ports = to.into_iter().cycle();
        let mut stream = stream_at(port).await;
        let (mut serving, work) = (JoinSet::new(), Arc::clone(work));
        serving.spawn(async move {
            let mut answers = JoinSet::new();
            while let Some(message) = grpc::next(&mut stream).await {
                let item = WorkItem::decode(message).unwrap();
                let work = Arc::clone(&work);
                let port = ports.next().expect("a sidecar to answer");
                answers.spawn(async move {
                    let (method, answer) = work.run(item);
                    grpc::call(port, &format!("/TaskHubSidecarService/{method}"), &[], &[&answer]).await;
                });
            }
        });
        Self { serving }
    }

    pub async fn leave(mut self) {
        self.serving.shutdown().await;
    }
}
