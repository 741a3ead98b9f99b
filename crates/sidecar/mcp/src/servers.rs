//! The servers of the resources: registers each in the background, and answers the work of the registered ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use outrigger_backoff::Backoff;
use outrigger_blocks_actors::workflow::{OwnWork, Workflows};
use outrigger_resources::mcp_server::McpServer;
use outrigger_resources::{Problem, Source};
use outrigger_wire::durabletask::{
    ActivityRequest, ActivityResponse, TaskFailureDetails, WorkflowRequest, WorkflowResponse, WorkflowVersion,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::limits::{ATTEMPTS, ATTEMPTS_TIME};
use crate::names::{Activity, Method};
use crate::server::Server;
use crate::workflow::{self, History};
use crate::{LOG, Surroundings};

/// Pauses between attempts to register a server.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// Version of the workflows.
const VERSION: &str = "v1";
/// Error type of an activity of an unknown server, as durabletask's SDKs call it.
const NOT_REGISTERED: &str = "TaskActivityNotRegistered";

/// Why the sidecar cannot run: a server without `ignoreErrors` could not be registered.
pub type Failure = String;

/// The servers of the resources.
pub struct McpServers {
    with: Arc<Surroundings>,
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// Set once servers may be registered.
    workflows: OnceLock<Weak<Workflows>>,
    failed: mpsc::Sender<Failure>,
    stop: CancellationToken,
}

/// A server of the resources.
struct Entry {
    /// With resolved references.
    spec: Arc<McpServer>,
    stage: watch::Sender<Stage>,
    /// Cancelled when the resource changes or goes.
    stop: CancellationToken,
}

enum Stage {
    /// It is being registered.
    Waiting,
    Registered(Arc<Server>),
    Failed(String),
}

/// The server that a name belongs to.
enum Found<M> {
    Server(Arc<Server>, M),
    /// It is being registered.
    Waiting,
    /// It is not registered; the text begins with `: `, or is empty.
    No(String),
}

impl Entry {
    /// Whether it describes the same server, apart from the place of the definition, and from secrets that cannot
    /// be read now.
    fn is_same(&self, spec: &McpServer) -> bool {
        let (mut known, mut new) = ((*self.spec).clone(), spec.clone());
        known.source = Source::default();
        new.source = Source::default();
        let items = known.endpoint.items_mut().iter_mut();
        for (known, new) in items.zip(new.endpoint.items_mut()) {
            if new.secret.is_some() && new.value.is_none() {
                known.value = None;
            }
        }
        known == new
    }

    fn has_failed(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Failed(_))
    }
}

impl McpServers {
    /// No servers. The receiver gets the error that must end the sidecar.
    pub fn new(with: Surroundings) -> (Arc<Self>, mpsc::Receiver<Failure>) {
        let (failed, failures) = mpsc::channel(1);
        let servers = Self {
            stop: CancellationToken::new(),
            with: Arc::new(with),
            entries: Mutex::default(),
            workflows: OnceLock::new(),
            failed,
        };
        (Arc::new(servers), failures)
    }

    /// Names of the servers, registered or not.
    pub fn names(&self) -> Vec<String> {
        self.locked().keys().cloned().collect()
    }

    /// Sets the desired servers; registers new, changed and failed ones. Returns the problems of ignored
    /// resources.
    ///
    /// # Errors
    /// The problem of a resource that must end the sidecar.
    pub async fn set(self: &Arc<Self>, desired: &[McpServer]) -> Result<Vec<Problem>, Problem> {
        let directory = std::env::current_dir().unwrap_or_default();
        let (mut usable, mut ignored) = (Vec::new(), Vec::new());
        for spec in desired.iter().filter(|spec| !spec.name.is_empty()) {
            match spec.check(self.with.kubernetes, &directory) {
                Ok(()) => usable.push(spec),
                Err(problem) if spec.ignore_errors => {
                    let what = &problem.what;
                    tracing::error!(target: LOG, "Ignoring error processing MCPServer: {what}");
                    ignored.push(problem);
                }
                Err(problem) => {
                    let what = &problem.what;
                    tracing::warn!(target: LOG, "Error processing MCPServer, daprd will exit gracefully: {what}");
                    return Err(problem);
                }
            }
        }
        self.locked().retain(|name, entry| {
            let is_kept = usable.iter().any(|spec| spec.name == *name);
            if !is_kept {
                tracing::info!(target: LOG, "MCPServer was removed: {}", entry.spec.log_name());
                entry.stop.cancel();
            }
            is_kept
        });
        for spec in usable {
            let spec = (self.with.resolve)(spec.clone()).await;
            self.put(spec);
        }
        Ok(ignored)
    }

    fn put(self: &Arc<Self>, spec: McpServer) {
        let name = spec.name.clone();
        let mut entries = self.locked();
        let entry = match entries.get(&name) {
            Some(known) if known.is_same(&spec) && !known.has_failed() => return,
            Some(known) if known.is_same(&spec) => {
                known.stage.send_replace(Stage::Waiting);
                Arc::clone(known)
            }
            known => {
                if let Some(known) = known {
                    tracing::info!(target: LOG, "Closing existing MCPServer to reload: {}", known.spec.log_name());
                    known.stop.cancel();
                }
                tracing::info!(target: LOG, "MCPServer loaded: {}", spec.log_name());
                Arc::new(Entry {
                    spec: Arc::new(spec),
                    stage: watch::Sender::new(Stage::Waiting),
                    stop: self.stop.child_token(),
                })
            }
        };
        entries.insert(name, Arc::clone(&entry));
        drop(entries);
        self.start(entry);
    }

    /// Registers the servers from now on.
    pub fn begin(self: &Arc<Self>, workflows: &Arc<Workflows>) {
        let _first = self.workflows.set(Arc::downgrade(workflows));
        let entries: Vec<_> = self.locked().values().cloned().collect();
        entries.into_iter().for_each(|entry| self.start(entry));
    }

    /// Waits until the registration of each present server has ended.
    pub async fn settled(&self) {
        let entries: Vec<_> = self.locked().values().cloned().collect();
        let settled = entries.iter().map(|entry| async {
            let mut stage = entry.stage.subscribe();
            // The sender lives in the entry.
            let _settled = stage
                .wait_for(|stage| !matches!(stage, Stage::Waiting))
                .await
                .is_ok();
        });
        join_all(settled).await;
    }

    /// Cancels calls and closes connections.
    pub fn end(&self) {
        self.stop.cancel();
        self.with.tasks.close();
    }

    /// Waits until connections are closed.
    pub async fn has_ended(&self) {
        self.with.tasks.wait().await;
    }

    fn start(self: &Arc<Self>, entry: Arc<Entry>) {
        if let Some(workflows) = self.workflows.get().and_then(Weak::upgrade) {
            let servers = Arc::clone(self);
            self.with
                .tasks
                .spawn(async move { Box::pin(servers.run(&entry, &workflows)).await });
        }
    }

    /// Registers a server, and ends that when its resource changes or goes.
    async fn run(&self, entry: &Entry, workflows: &Workflows) {
        let registering = self.register(entry, workflows);
        match Box::pin(entry.stop.run_until_cancelled(registering)).await {
            Some(Ok(server)) => {
                entry.stage.send_replace(Stage::Registered(Arc::new(server)));
                entry.stop.cancelled().await;
                workflows.release().await;
                // Closes the connection after its last call.
                entry.stage.send_replace(Stage::Waiting);
            }
            Some(Err(why)) => {
                let why = format!(
                    "MCPServer {:?}: failed to register workflows: {why}",
                    entry.spec.name
                );
                self.report(entry, &why).await;
                entry.stage.send_replace(Stage::Failed(why));
            }
            None => {}
        }
    }

    async fn report(&self, entry: &Entry, why: &str) {
        let place = &entry.spec.source;
        if entry.spec.ignore_errors {
            tracing::error!(target: LOG, "{place}: Ignoring error processing MCPServer: {why}");
            return;
        }
        tracing::warn!(
            target: LOG,
            "{place}: Error processing MCPServer, daprd will exit gracefully: {why}; correct the endpoint, or set \
             spec.ignoreErrors"
        );
        // The receiver is gone if the sidecar is already ending.
        let _ending = self.failed.send(why.to_owned()).await;
    }

    /// Registers a server, and hosts the workflow actors for it.
    async fn register(&self, entry: &Entry, workflows: &Workflows) -> Result<Server, String> {
        workflows.check().map_err(|error| error.to_string())?;
        let (began, mut pauses, mut attempts) = (Instant::now(), BACKOFF, 1);
        let server = loop {
            match Server::register(Arc::clone(&entry.spec), Arc::clone(&self.with)).await {
                Ok(server) => break server,
                Err(why) if attempts == ATTEMPTS || began.elapsed() >= ATTEMPTS_TIME => return Err(why),
                Err(why) => tracing::warn!(target: LOG, "{why}; retrying"),
            }
            attempts += 1;
            sleep(pauses.pause()).await;
        };
        let hosted = workflows.host().await;
        hosted.map_err(|status| status.message().to_owned())?;
        Ok(server)
    }

    /// The server for which `method` recognizes a name.
    fn find<M>(&self, method: impl Fn(&str) -> Option<M>) -> Found<M> {
        let entries = self.locked();
        let found = entries
            .values()
            .find_map(|entry| Some((entry, method(&entry.spec.name)?)));
        let Some((entry, method)) = found else {
            return Found::No(String::new());
        };
        match &*entry.stage.borrow() {
            Stage::Waiting => Found::Waiting,
            Stage::Registered(server) => Found::Server(Arc::clone(server), method),
            Stage::Failed(why) => Found::No(format!(": {why}")),
        }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnWork for McpServers {
    fn step(&self, request: WorkflowRequest) -> Option<WorkflowResponse> {
        let history = History::read(&request);
        let name = history.name;
        let unregistered = |why: &str| format!("workflow named '{name}' is not registered{why}");
        let actions = match self.find(|server| Method::of(server, name)) {
            Found::Waiting => return None,
            Found::Server(server, Method::CallTool(tool)) if !server.has(tool) => {
                workflow::fail(&history, unregistered(""))
            }
            Found::Server(server, method) => workflow::step(&server.spec, method, &history),
            Found::No(why) => workflow::fail(&history, unregistered(&why)),
        };
        Some(WorkflowResponse {
            actions,
            version: Some(WorkflowVersion {
                patches: Vec::new(),
                name: Some(VERSION.to_owned()),
            }),
            instance_id: request.instance_id,
            ..WorkflowResponse::default()
        })
    }

    fn activity<'a>(&'a self, request: &'a ActivityRequest) -> BoxFuture<'a, Option<ActivityResponse>> {
        Box::pin(async move {
            let name = &request.name;
            let outcome = match self.find(|server| Activity::of(server, name)) {
                Found::Waiting => return None,
                Found::Server(server, activity) => {
                    let input = request.input.as_deref().unwrap_or_default();
                    let ran = self.stop.run_until_cancelled(server.run(activity, input));
                    Ok(Box::pin(ran).await?)
                }
                Found::No(why) => Err(TaskFailureDetails {
                    error_type: NOT_REGISTERED.to_owned(),
                    error_message: format!("no task activity named '{name}' was registered{why}"),
                    ..TaskFailureDetails::default()
                }),
            };
            let (result, failure_details) = match outcome {
                Ok(output) => (Some(output), None),
                Err(failure) => (None, Some(failure)),
            };
            let instance = request.workflow_instance.as_ref();
            Some(ActivityResponse {
                instance_id: instance.map_or_else(String::new, |instance| instance.instance_id.clone()),
                task_id: request.task_id,
                result,
                failure_details,
                ..ActivityResponse::default()
            })
        })
    }
}
