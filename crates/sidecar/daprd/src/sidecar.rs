//! The one place where the parts are wired: settings and resources in, a running sidecar out.

mod app_life;
mod build;
mod context;
mod early;
mod endpoints;
mod expiry;
mod ports;
mod resources;
mod security;
mod serve;
mod settings;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outrigger_blocks::bindings::Bindings;
use outrigger_blocks::configuration::Configurations;
use outrigger_blocks::jobs::Jobs;
use outrigger_blocks::state::State;
use outrigger_blocks::subscriptions::Subscriptions;
use outrigger_blocks_actors::actors::{Actors, Placement};
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_discovery::{BuildError, FatalError};
use outrigger_identity::{Identity, Renewal};
use outrigger_runtime::app::{AppChannel, Health, HealthSetter};
use outrigger_runtime::components::Components;
use outrigger_runtime::life::{Condition, Lifecycle, Readiness, Shutdown, Stage, Tasks};
use outrigger_runtime::scheduler::Scheduler;
use outrigger_telemetry::export::Pipeline;
use outrigger_transport::peer::Peers;
use tokio::runtime::Handle;

use crate::config::Config;
use crate::operator::OperatorError;
use crate::reload::{ReloadError, Reloader};
use crate::sidecar::app_life::AppLife;
use crate::sidecar::expiry::CertificateWatch;
use crate::sidecar::serve::Servers;

pub use outrigger_runtime::components::Env;
pub use ports::PortsError;
pub use resources::check;

pub(crate) const LOG: &str = "dapr.runtime";

/// Why a sidecar does not start or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// Configuration files.
    #[error("error loading configuration: {0}")]
    Configuration(String),
    /// Resource files.
    // Components are what is loaded first, and the word tools match.
    #[error("failed to load components: {0}")]
    Resources(String),
    /// A component that cannot be made or started.
    #[error("{0}")]
    Component(String),
    /// Ports and sockets.
    #[error(transparent)]
    Ports(#[from] PortsError),
    /// No identity.
    #[error("{0}")]
    Security(String),
    /// Tracing settings.
    #[error(transparent)]
    Tracing(#[from] outrigger_telemetry::export::TracingError),
    /// Metric settings.
    #[error(transparent)]
    Metrics(#[from] outrigger_telemetry::metrics::MetricsError),
    /// Access control settings.
    #[error(transparent)]
    Access(#[from] outrigger_policy::access::AccessError),
    /// Resources that changed cannot be followed.
    #[error(transparent)]
    Reload(#[from] ReloadError),
    /// The operator of the cluster does not give what is needed.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// Something that this release does not do.
    #[error("{0}")]
    Unsupported(String),
    /// Steps that do not need each other.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<SidecarError>),
    /// The operating system says no.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed, for the message.
        what: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Another sidecar took this one's place.
    #[error(transparent)]
    Fatal(#[from] FatalError),
    /// In-flight work did not end in time.
    #[error("Graceful shutdown timeout exceeded, forcing shutdown")]
    GraceExceeded,
}

/// A sidecar ready to run. Its ports are bound; nothing has been dialled but the CA.
pub struct Sidecar {
    config: Config,
    started: Instant,
    control: Handle,
    servers: Servers,
    app: Option<Arc<AppChannel>>,
    health: Health,
    set_health: HealthSetter,
    peers: Arc<Peers>,
    resolver: outrigger_discovery::Options,
    fatal: tokio::sync::mpsc::Receiver<FatalError>,
    readiness: Readiness,
    /// Met when the app was found, or there is none.
    initialized: Condition,
    shutdown: Shutdown,
    pipeline: Pipeline,
    components: Arc<Components>,
    configuration: Arc<Configurations>,
    /// Only their own tasks use them: the lock lets the others share the sidecar.
    reloaders: Mutex<Vec<Reloader>>,
    bindings: Arc<Bindings>,
    actors: Arc<Actors>,
    workflows: Arc<Workflows>,
    /// Until it is followed.
    placement: Option<Placement>,
    jobs: Arc<Jobs>,
    scheduler: Arc<Scheduler>,
    /// Met when the schedulers are known, or there are none.
    schedulers_known: Option<Condition>,
    subscriptions: Arc<Subscriptions>,
    state: Arc<State>,
    renewal: Option<Renewal>,
    certificate: Option<CertificateWatch>,
}

/// The identity and what keeps it fresh.
struct Secured {
    identity: Option<Identity>,
    renewal: Option<Renewal>,
}

impl Sidecar {
    /// The conditions of readiness, with their state.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Runs until somebody asks to stop, then drains.
    ///
    /// # Errors
    /// What kept it from going on, or from ending in time.
    pub async fn run(mut self) -> Result<(), SidecarError> {
        let mut lifecycle = Lifecycle::default();
        self.start_background(&mut lifecycle);
        self.start_resolver().await;
        self.start_scheduler(&mut lifecycle);
        self.start_outbox(&mut lifecycle).await;
        self.servers.start(&self.readiness, &mut lifecycle)?;
        self.readiness.outbound_ready();
        let mut reload_failed = self.start_reloading(&mut lifecycle);
        self.register_blocks(&mut lifecycle);
        self.follow_placement(&mut lifecycle);
        self.workflows.begin();
        let mut initialized = false;
        let result = {
            let app_life = app_life::run(AppLife {
                config: self.config.clone(),
                app: self.app.clone(),
                health: self.health.clone(),
                set_health: Arc::clone(&self.set_health),
                bindings: Arc::clone(&self.bindings),
                actors: Arc::clone(&self.actors),
                workflows: Arc::clone(&self.workflows),
                jobs: Arc::clone(&self.jobs),
                subscriptions: Arc::clone(&self.subscriptions),
                background: lifecycle.tasks(Stage::Background, "the app's start and health"),
                started: self.started,
            });
            let mut app_life = std::pin::pin!(app_life);
            loop {
                tokio::select! {
                    () = &mut app_life, if !initialized => {
                        initialized = true;
                        self.initialized.met();
                    }
                    () = self.shutdown.requested() => break Ok(()),
                    Some(fatal) = self.fatal.recv() => break Err(SidecarError::from(fatal)),
                    Some(error) = reload_failed.recv() => break Err(SidecarError::from(error)),
                }
            }
        };
        lifecycle.end(Stage::Reading).await;
        self.block().await;
        let drained = self.drain(lifecycle).await;
        result.and(drained)
    }

    fn start_background(&mut self, lifecycle: &mut Lifecycle) {
        let Tasks { tasks, stop } = &lifecycle.tasks(Stage::Background, "exports and certificates");
        let pipeline = std::mem::take(&mut self.pipeline);
        tasks.spawn_on(pipeline.run(stop.clone()), &self.control);
        if let Some(renewal) = self.renewal.take() {
            tasks.spawn_on(renewal.run(stop.clone()), &self.control);
        }
        if let Some(certificate) = self.certificate.take() {
            tasks.spawn_on(certificate.run(stop.clone()), &self.control);
        }
    }

    /// Follows which schedulers there are, and takes what is due.
    fn start_scheduler(&mut self, lifecycle: &mut Lifecycle) {
        if let Some(known) = self.schedulers_known.take() {
            let Tasks { tasks, stop } = lifecycle.tasks(Stage::Components, "the list of schedulers");
            tasks.spawn(Arc::clone(&self.scheduler).follow_hosts(known, stop));
        }
        self.scheduler.begin_triggers();
        let (jobs, scheduler) = (Arc::clone(&self.jobs), Arc::clone(&self.scheduler));
        let stop = move || {
            jobs.end();
            scheduler.end_triggers();
        };
        lifecycle.add(Stage::Reading, "triggers of jobs", stop, async {});
        let (jobs, scheduler) = (Arc::clone(&self.jobs), Arc::clone(&self.scheduler));
        let drained = async move {
            jobs.drained().await;
            scheduler.triggers_ended().await;
        };
        lifecycle.add(Stage::Events, "jobs that the app handles", || {}, drained);
    }

    /// Follows the internal topics of state stores with an outbox. They end with the calls, whose transactions they send on.
    async fn start_outbox(&self, lifecycle: &mut Lifecycle) {
        self.state.begin_outbox().await;
        let Tasks { tasks, stop } = lifecycle.tasks(Stage::Reload, "the stores that have an outbox");
        tasks.spawn(Arc::clone(&self.state).follow_outbox(stop));
        let (ending, draining) = (Arc::clone(&self.state), Arc::clone(&self.state));
        let drained = async move { draining.outbox_drained().await };
        lifecycle.add(
            Stage::Calls,
            "events of the outbox",
            move || ending.end_outbox(),
            drained,
        );
    }

    /// Follows changes of resources, where that is wanted; what comes back is why that cannot go on.
    fn start_reloading(&mut self, lifecycle: &mut Lifecycle) -> tokio::sync::mpsc::Receiver<ReloadError> {
        let (failed, failures) = tokio::sync::mpsc::channel(1);
        let reloaders = self.reloaders.get_mut().unwrap_or_else(PoisonError::into_inner);
        if reloaders.is_empty() {
            return failures;
        }
        let Tasks { tasks, stop } = lifecycle.tasks(Stage::Reload, "the reload of resources");
        for reloader in reloaders.drain(..) {
            let (run, failed) = (reloader.run(stop.clone()), failed.clone());
            tasks.spawn(async move {
                if let Err(error) = run.await {
                    // Nobody listens when the process ends already.
                    let _ending = failed.send(error).await;
                }
            });
        }
        failures
    }

    /// What the blocks run beside calls, and what they use.
    fn register_blocks(&self, lifecycle: &mut Lifecycle) {
        let (reading, handling) = (Arc::clone(&self.bindings), Arc::clone(&self.bindings));
        let reading = move || reading.end_reading();
        lifecycle.add(Stage::Reading, "input bindings", reading, async {});
        let handled = async move { handling.drained().await };
        lifecycle.add(Stage::Events, "events of input bindings", || {}, handled);
        let (reading, handling) = (Arc::clone(&self.subscriptions), Arc::clone(&self.subscriptions));
        let blocks = self.config.shutdown.block.is_some();
        let reading = async move {
            if blocks {
                reading.pause().await;
            }
            reading.end_reading();
        };
        lifecycle.add(Stage::Reading, "subscriptions", || {}, reading);
        let handled = async move { handling.drained().await };
        lifecycle.add(Stage::Events, "events of subscriptions", || {}, handled);
        let (ending, ended) = (Arc::clone(&self.workflows), Arc::clone(&self.workflows));
        let ended = async move { ended.has_ended().await };
        lifecycle.add(Stage::Events, "workers of workflows", move || ending.end(), ended);
        let (stopping, watching) = (Arc::clone(&self.configuration), Arc::clone(&self.configuration));
        let stop = move || stopping.stop();
        let stopped = async move { watching.stopped().await };
        lifecycle.add(Stage::Calls, "configuration subscriptions", stop, stopped);
        let (components, peers) = (Arc::clone(&self.components), Arc::clone(&self.peers));
        let closed = async move { components.close().await };
        lifecycle.add(Stage::Components, "components", || {}, closed);
        let app = self.app.clone();
        let closed = async move {
            peers.close().await;
            if let Some(app) = app {
                app.close().await;
            }
        };
        lifecycle.add(
            Stage::Components,
            "connections and name resolution",
            || {},
            closed,
        );
    }

    /// Actors end while the app can still use the APIs.
    fn follow_placement(&mut self, lifecycle: &mut Lifecycle) {
        if self.placement.is_none() {
            tracing::info!(target: LOG, "Actor runtime disabled: no --placement-host-address is given");
        }
        if let Some(placement) = self.placement.take() {
            self.actors.take_reminders();
            let Tasks { tasks, stop } = lifecycle.tasks(Stage::Events, "actors");
            tasks.spawn(Arc::clone(&self.actors).run(placement, stop));
        }
    }

    /// A resolver that does not start is reported; calls to other apps fail until the cause is removed.
    async fn start_resolver(&self) {
        let options = self.resolver.clone();
        let name = options.component.clone();
        let started = self.control.spawn(outrigger_discovery::build(options)).await;
        match started {
            Ok(Ok(resolver)) => {
                tracing::info!(target: LOG, "Initialized name resolution to {name}");
                self.peers.set_resolver(resolver);
            }
            Ok(Err(error)) => log_resolver(&name, &error),
            Err(error) => tracing::error!(target: LOG, "name resolution did not start: {error}"),
        }
    }

    /// `--dapr-block-shutdown-duration`: everything goes on for a while, or until the app is unhealthy.
    async fn block(&self) {
        let Some(duration) = self.config.shutdown.block else {
            return;
        };
        let shown = outrigger_resources::value::format_go_duration(duration);
        tracing::info!(
            target: LOG,
            "Blocking graceful shutdown for {shown} or until app reports unhealthy..."
        );
        let unhealthy = async {
            match self.config.app.health {
                Some(_) => self.health.until_unhealthy().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(duration) => {
                tracing::info!(target: LOG, "Block shutdown period expired, entering shutdown...");
            }
            () = unhealthy => tracing::info!(target: LOG, "App reported unhealthy, entering shutdown..."),
        }
    }

    async fn drain(self, mut lifecycle: Lifecycle) -> Result<(), SidecarError> {
        let grace = self.config.shutdown.grace;
        match grace {
            Some(grace) => {
                tracing::info!(target: LOG, "dapr shutting down, grace period {}", shown(grace));
            }
            None => {
                tracing::warn!(target: LOG, "Graceful shutdown timeout is infinite, will wait indefinitely to shutdown")
            }
        }
        let all = async {
            tracing::info!(target: LOG, "Dapr is shutting down");
            lifecycle.end(Stage::Background).await;
            tracing::info!(target: LOG, "Dapr runtime stopped");
        };
        match grace {
            None => all.await,
            Some(grace) => {
                if tokio::time::timeout(grace, all).await.is_err() {
                    let unfinished = lifecycle.unfinished().join(", ");
                    tracing::warn!(target: LOG, "the grace period is over before these have ended: {unfinished}");
                    return Err(SidecarError::GraceExceeded);
                }
            }
        }
        Ok(())
    }
}

fn shown(duration: Duration) -> String {
    outrigger_resources::value::format_go_duration(duration)
}

fn log_resolver(name: &str, error: &BuildError) {
    tracing::error!(
        target: LOG,
        "failed to initialize name resolution {name}: {error}; calls to other apps will fail"
    );
}
