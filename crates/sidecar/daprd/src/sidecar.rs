//! Wires the parts: builds a running sidecar from settings and resources.

mod app_life;
mod background;
mod blocks;
mod build;
mod cluster;
mod context;
mod discovery;
mod early;
mod endpoints;
mod expiry;
mod ports;
mod reloading;
mod resources;
mod restart;
mod security;
mod serve;
mod settings;

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_blocks::Blocks;
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_discovery::FatalError;
use outrigger_identity::{Identity, Renewal};
use outrigger_mcp::McpServers;
use outrigger_runtime::app::{AppChannel, Health, HealthSetter};
use outrigger_runtime::components::Components;
use outrigger_runtime::life::{Condition, Lifecycle, Readiness, Shutdown, Stage, Tasks};
use outrigger_transport::peer::Peers;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Receiver;

use crate::config::Config;
use crate::operator::OperatorError;
use crate::reload::ReloadError;
use crate::sidecar::app_life::AppLife;
use crate::sidecar::background::Background;
use crate::sidecar::cluster::Cluster;
use crate::sidecar::context::SidecarContext;
use crate::sidecar::discovery::Discovery;
use crate::sidecar::reloading::Reloading;
use crate::sidecar::restart::Restarts;
use crate::sidecar::serve::Servers;

pub use outrigger_runtime::components::Env;
pub use ports::PortsError;
pub use resources::check;

pub(crate) const LOG: &str = "dapr.runtime";

/// Why a sidecar cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// The Configuration cannot be loaded.
    #[error("error loading configuration: {0}")]
    Configuration(String),
    /// The resources cannot be loaded.
    // Components are loaded first, and tools match this text.
    #[error("failed to load components: {0}")]
    Resources(String),
    /// A component cannot be created or started.
    #[error("{0}")]
    Component(String),
    /// An MCP server is invalid.
    #[error("{0}")]
    McpServer(String),
    /// Ports or sockets cannot be bound.
    #[error(transparent)]
    Ports(#[from] PortsError),
    /// No identity is available.
    #[error("{0}")]
    Security(String),
    /// The tracing settings are not valid.
    #[error(transparent)]
    Tracing(#[from] outrigger_telemetry::export::TracingError),
    /// The metrics settings are not valid.
    #[error(transparent)]
    Metrics(#[from] outrigger_telemetry::metrics::MetricsError),
    /// The access control settings are not valid.
    #[error(transparent)]
    Access(#[from] outrigger_policy::access::AccessError),
    /// A reload failed.
    #[error(transparent)]
    Reload(#[from] ReloadError),
    /// The operator of the cluster failed.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// Several independent steps failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<SidecarError>),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Another sidecar has taken this one's place.
    #[error(transparent)]
    Fatal(#[from] FatalError),
    /// In-flight work did not end before the deadline.
    #[error("Graceful shutdown timeout exceeded, forcing shutdown")]
    GraceExceeded,
}

/// A sidecar ready to run. Its ports are bound, and only the CA has been contacted.
pub struct Sidecar {
    config: Config,
    restarts: Restarts,
    started: Instant,
    control: Handle,
    readiness: Readiness,
    /// Set once the app was found, or if there is none.
    initialized: Condition,
    shutdown: Shutdown,
    servers: Servers,
    context: SidecarContext,
    set_health: HealthSetter,
    discovery: Discovery,
    components: Arc<Components>,
    blocks: Blocks,
    cluster: Cluster,
    mcp: Mcp,
    reloading: Reloading,
    background: Background,
}

/// The MCP servers, and the failure that ends the sidecar.
struct Mcp {
    servers: Arc<McpServers>,
    failures: Receiver<String>,
}

/// The identity and its renewal.
struct Secured {
    identity: Option<Identity>,
    renewal: Option<Renewal>,
}

impl Sidecar {
    /// The readiness conditions and their state.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Runs until a shutdown or a restart is requested, then drains.
    ///
    /// # Errors
    /// Why it could not continue, or not end in time.
    pub async fn run(self) -> Result<(), SidecarError> {
        let Self {
            config,
            restarts,
            started,
            control,
            readiness,
            initialized,
            shutdown,
            mut servers,
            context: SidecarContext {
                app, health, peers, ..
            },
            set_health,
            mut discovery,
            components,
            blocks,
            mut cluster,
            mut mcp,
            reloading,
            background,
        } = self;
        let mut lifecycle = Lifecycle::default();
        background.start(&control, &mut lifecycle);
        discovery.start(&control, &peers).await;
        cluster.start_scheduler(&blocks.jobs, &mut lifecycle);
        blocks::start_outbox(&blocks.state, &mut lifecycle).await;
        servers.start(&readiness, &mut lifecycle)?;
        begin_mcp(&mcp.servers, &cluster.workflows, &readiness, &mut lifecycle);
        let mut reload_failed = reloading.start(&mut lifecycle);
        blocks::end_with(&blocks, config.shutdown.block.is_some(), &mut lifecycle);
        cluster.end_workers_with(&mut lifecycle);
        close_with(components, peers, app.clone(), &mut lifecycle);
        cluster.follow_placement(&mut lifecycle);
        cluster.workflows.begin();
        let mut is_initialized = false;
        let result = {
            let app_life = app_life::run(AppLife {
                config: config.clone(),
                app,
                health: health.clone(),
                set_health,
                bindings: blocks.bindings,
                actors: cluster.actors,
                workflows: cluster.workflows,
                jobs: blocks.jobs,
                subscriptions: blocks.subscriptions,
                background: lifecycle.tasks(Stage::Background, "the app's start and health"),
                started,
            });
            let mut app_life = Box::pin(app_life);
            let mut restarting = Box::pin(restarts.follow(&shutdown));
            loop {
                tokio::select! {
                    never = &mut restarting => match never {},
                    () = &mut app_life, if !is_initialized => {
                        is_initialized = true;
                        initialized.met();
                    }
                    () = shutdown.requested() => break Ok(()),
                    Some(fatal) = discovery.failed() => break Err(SidecarError::from(fatal)),
                    Some(error) = reload_failed.recv() => break Err(SidecarError::from(error)),
                    Some(error) = mcp.failures.recv() => break Err(SidecarError::McpServer(error)),
                }
            }
        };
        lifecycle.end(Stage::Reading).await;
        if shutdown.again().is_none() {
            block(&config, &health).await;
        }
        let drained = drain(&config, lifecycle).await;
        result.and(drained)
    }
}

/// Registers the MCP servers; outbound calls are possible once that has ended.
fn begin_mcp(
    servers: &Arc<McpServers>,
    workflows: &Arc<Workflows>,
    readiness: &Readiness,
    lifecycle: &mut Lifecycle,
) {
    servers.begin(workflows);
    let (ending, ended) = (Arc::clone(servers), Arc::clone(servers));
    let ended = async move { ended.has_ended().await };
    lifecycle.add(Stage::Events, "MCP servers", move || ending.end(), ended);
    if servers.names().is_empty() {
        return readiness.outbound_ready();
    }
    let Tasks { tasks, stop } = lifecycle.tasks(Stage::Reading, "the registration of MCP servers");
    let (servers, readiness) = (Arc::clone(servers), readiness.clone());
    tasks.spawn(async move {
        if stop.run_until_cancelled(servers.settled()).await.is_some() {
            readiness.outbound_ready();
        }
    });
}

/// Connections close last, because draining parts and components may need them.
fn close_with(
    components: Arc<Components>,
    peers: Arc<Peers>,
    app: Option<Arc<AppChannel>>,
    lifecycle: &mut Lifecycle,
) {
    let closed = async move {
        components.close().await;
        peers.close().await;
        if let Some(app) = app {
            app.close().await;
        }
    };
    lifecycle.add(
        Stage::Components,
        "components, connections and name resolution",
        || {},
        closed,
    );
}

/// `--dapr-block-shutdown-duration`: keeps serving for that time, or until the app is unhealthy.
async fn block(config: &Config, health: &Health) {
    let Some(duration) = config.shutdown.block else {
        return;
    };
    tracing::info!(
        target: LOG,
        "Blocking graceful shutdown for {} or until app reports unhealthy...",
        shown(duration)
    );
    let unhealthy = async {
        match config.app.health {
            Some(_) => health.until_unhealthy().await,
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

async fn drain(config: &Config, mut lifecycle: Lifecycle) -> Result<(), SidecarError> {
    let grace = config.shutdown.grace;
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
                tracing::warn!(target: LOG, "the grace period ended before: {unfinished}");
                // A sidecar that starts again needs the ports.
                lifecycle.stop_all();
                return Err(SidecarError::GraceExceeded);
            }
        }
    }
    Ok(())
}

fn shown(duration: Duration) -> String {
    outrigger_resources::value::format_go_duration(duration)
}
