//! The workflows of an app: hosts the actor types while workers are connected, or the sidecar has workflows itself.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::stream::{self, StreamExt as _};
use outrigger_workflow::names::ActorTypes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::activity::actor::Activities;
use super::activity::failures::ActivityFailures;
use super::engine::{Dependencies, Engine, MAX_CONCURRENT};
use super::instance::failures::InstanceFailures;
use super::instance::retention::Retentioners;
use super::instance::state::Instances;
use super::protocol::LOG;
use super::worker::executor::Executors;
use super::worker::queue::Limits;
use super::worker::stream::WorkItems;
use super::worker::workers::Workers;
use crate::actors::{ActorError, Actors, InternalActors};

/// Maximum worker streams.
const MAX_WORKERS: usize = 1024;

/// The users of the actor types of workflows. The first user registers them, the last one unregisters them.
#[derive(Default)]
struct Users {
    /// Open worker streams.
    workers: usize,
    /// Groups of the sidecar's own workflows.
    own: usize,
}

impl Users {
    fn are_none(&self) -> bool {
        self.workers + self.own == 0
    }
}

/// The workflows of an app.
pub struct Workflows {
    pub(crate) actors: Arc<Actors>,
    pub(crate) engine: Arc<Engine>,
    workers: Arc<Workers>,
    activity_failures: Arc<ActivityFailures>,
    pub(crate) instance_failures: Arc<InstanceFailures>,
    users: tokio::sync::Mutex<Users>,
    ended: CancellationToken,
    /// The hosted instances.
    instances: Mutex<Weak<Instances>>,
    /// The time of the last raised event.
    pub(crate) last_event: Mutex<jiff::Timestamp>,
}

impl Workflows {
    /// Starts without workers.
    pub fn new(with: Dependencies) -> Arc<Self> {
        let limit = |limit: Option<u32>| limit.and_then(|limit| usize::try_from(limit).ok());
        let limits = Limits {
            steps: limit(with.settings.max_workflows),
            activities: limit(with.settings.max_activities),
        };
        let max_losses = with.settings.max_activity_losses;
        let (actors, own) = (Arc::clone(&with.actors), Arc::clone(&with.own));
        let engine = Engine::new(with);
        Arc::new(Self {
            actors,
            workers: Arc::new(Workers::new(Arc::clone(&engine), limits, own)),
            activity_failures: Arc::new(ActivityFailures::new(max_losses)),
            instance_failures: Arc::new(InstanceFailures::new(engine.metrics.failing.clone())),
            users: tokio::sync::Mutex::default(),
            ended: CancellationToken::new(),
            instances: Mutex::default(),
            last_event: Mutex::new(jiff::Timestamp::UNIX_EPOCH),
            engine,
        })
    }

    /// Logs that workflows are available.
    pub fn begin(&self) {
        tracing::info!(target: LOG, "Workflow engine started");
    }

    /// The app became unhealthy: waiting activity reminders end and are redelivered later. Running activities
    /// are not cancelled.
    pub fn app_is_unhealthy(&self) {
        self.engine.app_is_unhealthy();
    }

    /// The connected workers.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Checks whether workflows are available.
    ///
    /// # Errors
    /// [`ActorError`] without placement or without an actor state store.
    pub fn check(&self) -> Result<(), ActorError> {
        self.actors.check_available()
    }

    /// The instances hosted here; `None` without users.
    pub(crate) fn instances(&self) -> Option<Arc<Instances>> {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.upgrade()
    }

    fn hosted_types(&self) -> Vec<String> {
        let ActorTypes {
            workflow,
            activity,
            retentioner,
            executor,
        } = &self.engine.types;
        let executor = self.engine.is_clustered.then_some(executor);
        let types = [workflow, activity, retentioner].into_iter().chain(executor);
        types.cloned().collect()
    }

    /// The actors to host.
    fn hosted_actors(&self) -> Vec<(String, Arc<dyn InternalActors>)> {
        let engine = &self.engine;
        let types = engine.types.clone();
        let instances = Arc::new(Instances::new(
            Arc::clone(engine),
            Arc::clone(&self.workers),
            Arc::clone(&self.instance_failures),
            Arc::clone(&self.activity_failures),
        ));
        *self.instances.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&instances);
        let activities = Activities::new(
            Arc::clone(engine),
            Arc::clone(&self.workers),
            Arc::clone(&self.activity_failures),
        );
        let mut actors: Vec<(String, Arc<dyn InternalActors>)> = vec![
            (types.workflow, instances),
            (types.activity, Arc::new(activities)),
            (types.retentioner, Arc::new(Retentioners::new(Arc::clone(engine)))),
        ];
        if engine.is_clustered {
            actors.push((types.executor, Arc::<Executors>::default()));
        }
        actors
    }

    /// Opens a worker stream. The first one registers the workflow actor types. `is_stateful`: the worker keeps
    /// histories.
    ///
    /// # Errors
    /// `Unavailable` if workflows are unavailable, `ResourceExhausted` if there are too many streams.
    pub async fn open_worker(self: &Arc<Self>, is_stateful: bool) -> Result<WorkItems, Status> {
        if self.ended.is_cancelled() {
            return Err(Status::unavailable("the sidecar is shutting down"));
        }
        self.connect().await?;
        // Counted first: nothing may fail between here and the task that disconnects.
        let (items, received) = mpsc::channel(1);
        let workflows = Arc::clone(self);
        self.engine.tasks.spawn(async move {
            workflows
                .workers
                .serve(items, is_stateful, &workflows.ended)
                .await;
            workflows.disconnect().await;
        });
        Ok(received)
    }

    async fn connect(&self) -> Result<(), Status> {
        let mut users = self.users.lock().await;
        if users.workers >= MAX_WORKERS {
            return Err(Status::resource_exhausted(format!(
                "the limit of {MAX_WORKERS} connected workers is reached"
            )));
        }
        let postponed = self.instance_failures.take_postponed();
        if users.workers == 0 {
            // New workers may have other code.
            self.instance_failures.forget();
        }
        self.register(&users)?;
        users.workers += 1;
        self.engine.metrics.workers.add(1);
        if !postponed.is_empty() {
            let engine = Arc::clone(&self.engine);
            self.engine.tasks.spawn(async move {
                let all = postponed.iter().map(|id| engine.run_now(id));
                let all: Vec<_> = all.collect();
                stream::iter(all)
                    .buffer_unordered(MAX_CONCURRENT)
                    .collect::<()>()
                    .await;
            });
        }
        tracing::info!(target: LOG, "work item stream established; {} in all", users.workers);
        Ok(())
    }

    /// The last worker's disconnection ends all instances here, unless the sidecar has workflows itself.
    async fn disconnect(&self) {
        let mut users = self.users.lock().await;
        users.workers -= 1;
        self.engine.metrics.workers.add(-1);
        tracing::info!(target: LOG, "work item stream closed; {} remain", users.workers);
        self.unregister(&users).await;
        if users.workers == 0 {
            // Cancelled runs have recorded failures.
            self.instance_failures.forget();
        }
    }

    /// Hosts the actor types for the sidecar's own workflows, until [`Workflows::release`].
    ///
    /// # Errors
    /// `Unavailable` if workflows are unavailable.
    pub async fn host(&self) -> Result<(), Status> {
        let mut users = self.users.lock().await;
        tracing::debug!(target: LOG, "Registering workflow actors for internal workflows");
        self.register(&users)?;
        users.own += 1;
        Ok(())
    }

    /// Ends one [`Workflows::host`].
    pub async fn release(&self) {
        let mut users = self.users.lock().await;
        users.own -= 1;
        self.unregister(&users).await;
    }

    fn register(&self, users: &Users) -> Result<(), Status> {
        if !users.are_none() {
            return Ok(());
        }
        let registered = self.actors.register_internal(self.hosted_actors());
        registered.map_err(|error: ActorError| {
            let text = format!("unable to establish work item stream at this time: {error}");
            tracing::warn!(target: LOG, "{text}");
            Status::unavailable(text)
        })
    }

    async fn unregister(&self, users: &Users) {
        if users.are_none() {
            tracing::debug!(target: LOG, "Unregistering workflow actors");
            self.actors.unregister_internal(&self.hosted_types()).await;
        }
    }

    /// Ends all worker streams and cancels their unanswered work.
    pub fn end(&self) {
        self.workers.queue.end();
        self.ended.cancel();
        self.engine.tasks.close();
    }

    /// Waits until all streams have ended.
    pub async fn has_ended(&self) {
        self.engine.tasks.wait().await;
    }
}
