//! Builds a wired sidecar from settings. Ports are bound before any connection is made.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use outrigger_api::metadata;
use outrigger_blocks::Blocks;
use outrigger_blocks_actors::actors::Placement;
use outrigger_identity::{Identity, SpiffeId};
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::configuration::{Configuration, HOT_RELOAD, WORKFLOW_HISTORY_SIGNING};
use outrigger_resources::load::{Kind, Loaded};
use outrigger_resources::resiliency as spec;
use outrigger_runtime::app::Health;
use outrigger_runtime::components::{self, Components};
use outrigger_runtime::life::{Readiness, Shutdown};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::scheduler;
use outrigger_telemetry::export::Pipeline;
use outrigger_telemetry::metrics::Metrics;
use tokio::runtime::Handle;

use super::background::Background;
use super::cluster::Cluster;
use super::context::SidecarContext;
use super::discovery::Discovery;
use super::early::{AppliedConfiguration, Environment, Found, catalog, log_problems_of, prepare, resiliency};
use super::endpoints::EndpointResolver;
use super::expiry::CertificateWatch;
use super::reloading::Reloading;
use super::restart::Restarts;
use super::security::service_identity;
use super::serve::Servers;
use super::{Env, LOG, Mcp, Sidecar, SidecarError, resources};
use crate::config::{Config, Mode};
use crate::operator::Operator;
use crate::reload::{self, ConfigurationFiles, FolderSource, OperatorConfiguration, OperatorSource, Source};
use crate::status::Status;
use crate::status::findings::{Finding, Findings};

impl Sidecar {
    /// Builds a sidecar: reads its resources, binds its ports, obtains its identity. `control` runs work off
    /// the call path: scrapes, exports, renewal, name resolution. `shutdown` ends the run.
    ///
    /// # Errors
    /// [`SidecarError`] with all problems of the failing step.
    pub async fn build(
        config: Config,
        env: Env,
        control: Handle,
        shutdown: Shutdown,
    ) -> Result<Self, SidecarError> {
        let started = Instant::now();
        // Boxed, because these futures hold the whole state of a sidecar.
        let environment = Box::pin(prepare(&config, &env, &control, shutdown.is_restart())).await?;
        tracing::info!(target: LOG, "app id: {}", config.app_id);
        let builder = Builder {
            config,
            env,
            control,
            shutdown,
            environment,
            started,
        };
        Box::pin(builder.wire()).await
    }
}

struct Builder {
    config: Config,
    env: Env,
    control: Handle,
    shutdown: Shutdown,
    environment: Environment,
    started: Instant,
}

impl Builder {
    async fn wire(self) -> Result<Sidecar, SidecarError> {
        let (config, control, with) = (self.config, self.control, self.environment);
        check_signing(&with)?;
        let operator = with.operator.as_ref();
        let loaded = load(&config, &control, operator).await?;
        let findings = Arc::<Findings>::default();
        findings.listed(None, &loaded);
        let (set_health, health) = Health::new(config.app.health.is_none());
        let policies = policies(&loaded.resiliency, &config.app_id, &with.used.metrics, &findings);
        let identity = with.secured.identity;
        let (context, sources, pipeline) = context(&config, with.used, policies, health, &identity);
        let readiness = Readiness::default();
        let service = |app_id| service_identity(&config, with.towards_control.as_ref(), app_id);
        let scheduler = context.scheduler(&config, service(scheduler::APP_ID)?);
        let placement = placement(&config, service(resources::PLACEMENT_APP_ID)?, &readiness);
        let blocks = context.blocks(&config.app, &scheduler);
        let resolver = Arc::new(EndpointResolver {
            env_keys: config.resources.env_keys.clone(),
            env: Arc::clone(&self.env),
            secrets: Arc::clone(&blocks.secrets),
        });
        let kubernetes = config.mode == Mode::Kubernetes;
        let (servers, failures) =
            resolver.mcp_servers(identity.clone(), kubernetes, config.api.max_body_size);
        let mcp = Mcp { servers, failures };
        let running = running(&config, &self.env, &context, &blocks, findings, (&resolver, &mcp)).await;
        start_resources(&running, &loaded, &context).await?;
        let initialized = readiness.condition("runtime");
        let schedulers_known = readiness.condition("scheduler-watch-hosts");
        let relist = config.resources.relist;
        let mut reloading = Reloading::new(sources, &running, &loaded, relist, &readiness);
        let read = (Arc::clone(&context.settings), with.empty);
        if let Some(source) = configuration_source(&config, &self.env, &control, operator, read) {
            reloading.follow_configuration(source, &config, &context, (&readiness, &self.shutdown));
        }
        let port = with.sockets.internal_port();
        let discovery = Discovery::new(&config, &context, port);
        let actors = context.actors(&config, port, &blocks, &running.components, &scheduler);
        let cluster = Cluster {
            workflows: context.workflows(&config, &actors, identity.as_ref(), &mcp.servers),
            actors,
            placement,
            scheduler,
            schedulers_known: Some(schedulers_known),
        };
        let status = status(&config, self.started, &readiness, &context, &running, &cluster);
        let reported = reported(&running, &cluster);
        let apis = context.apis(&config, &blocks, reported, &readiness, &self.shutdown);
        let sockets = with.sockets;
        let servers = Servers::new(&config, &control, sockets, apis, &context, &identity, status);
        let certificate =
            identity.map(|identity| CertificateWatch::new(identity, &config, &context, &readiness));
        let background = Background {
            pipeline,
            renewal: with.secured.renewal,
            certificate,
        };
        let restarts = Restarts {
            config: config.clone(),
            env: self.env,
            control: control.clone(),
            operator: with.operator,
        };
        Ok(Sidecar {
            restarts,
            config,
            started: self.started,
            control,
            servers,
            context,
            set_health,
            discovery,
            readiness,
            initialized,
            shutdown: self.shutdown,
            background,
            components: running.components,
            mcp,
            reloading,
            blocks,
            cluster,
        })
    }
}

/// The identity signs histories.
fn check_signing(with: &Environment) -> Result<(), SidecarError> {
    let signs = with.used.settings.features.enabled(WORKFLOW_HISTORY_SIGNING);
    match signs && with.secured.identity.is_none() {
        true => Err(SidecarError::Security(
            "WorkflowHistorySigning feature flag is enabled but mTLS is not configured; workflow history signing \
             requires mTLS to be active: start the sidecar with --enable-mtls, or disable the feature"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// The resources present at start.
async fn load(
    config: &Config,
    control: &Handle,
    operator: Option<&Operator>,
) -> Result<Loaded, SidecarError> {
    if let Some(operator) = operator {
        return Ok(operator.load().await?);
    }
    let (loaded, usable) = resources::read_resources(config, control).await;
    if let Err(error) = usable {
        // Other problems of the files are reported in the same start.
        log_problems_of(&loaded, config).await;
        return Err(error);
    }
    Ok(loaded)
}

/// The context of all calls, plus the parts of the Configuration that it does not use: sources of changes,
/// and trace export.
fn context(
    config: &Config,
    used: AppliedConfiguration,
    policies: Resiliency,
    health: Health,
    identity: &Option<Identity>,
) -> (SidecarContext, Vec<Reported>, Pipeline) {
    let context = SidecarContext::new(
        config,
        Arc::new(used.settings),
        policies,
        Arc::new(SidecarMetrics::new(used.metrics)),
        (used.access, used.tracer),
        health,
        identity.clone(),
    );
    (context, used.sources, used.pipeline)
}

/// The parts that resources are applied to.
async fn running(
    config: &Config,
    env: &Env,
    context: &SidecarContext,
    blocks: &Blocks,
    findings: Arc<Findings>,
    (resolver, mcp): (&Arc<EndpointResolver>, &Mcp),
) -> reload::Running {
    let of_components = components::Context {
        catalog: catalog(config).await,
        app_id: config.app_id.clone(),
        namespace: config.workload.namespace.clone(),
        env_keys: config.resources.env_keys.clone(),
        env: Arc::clone(env),
        configuration: Arc::clone(&context.settings),
        metrics: Arc::clone(context.metrics.all()),
        max_answer: outrigger_component::answer::limit(config.api.max_body_size),
        actors: !config.control_plane.placement.is_empty(),
    };
    let secrets = Arc::clone(&blocks.secrets);
    let components = Components::new(of_components, blocks.categories(), secrets as _);
    reload::Running {
        app_id: config.app_id.clone(),
        resilience: Arc::clone(&context.resilience),
        components: Arc::new(components.with_implicit(resources::cluster_secrets(config))),
        endpoints: context.endpoints(config),
        resolve: resolver.endpoints(),
        mcp: Arc::clone(&mcp.servers),
        blocks: blocks.clone(),
        workflow_access: Arc::clone(&context.workflow_access),
        findings,
    }
}

async fn start_resources(
    running: &reload::Running,
    loaded: &Loaded,
    context: &SidecarContext,
) -> Result<(), SidecarError> {
    let errors = reload::start(running, loaded).await;
    if !errors.is_empty() {
        return Err(Found::from(errors).into_error());
    }
    context.middlewares.show_missing();
    let reloads = context.settings.features.enabled(HOT_RELOAD);
    running
        .blocks
        .subscriptions
        .show_missing(&loaded.subscriptions, reloads);
    Ok(())
}

fn reported(running: &reload::Running, cluster: &Cluster) -> metadata::Reported {
    metadata::Reported {
        endpoints: Arc::clone(&running.endpoints),
        components: Arc::clone(&running.components),
        actors: Arc::clone(&cluster.actors),
        workflows: Arc::clone(&cluster.workflows),
        scheduler: Arc::clone(&cluster.scheduler),
        subscriptions: Arc::clone(&running.blocks.subscriptions),
        resilience: Arc::clone(&running.resilience),
        mcp_servers: {
            let servers = Arc::clone(&running.mcp);
            Box::new(move || servers.names())
        },
        workflow_access: Arc::clone(&running.workflow_access),
    }
}

fn status(
    config: &Config,
    started: Instant,
    readiness: &Readiness,
    context: &SidecarContext,
    running: &reload::Running,
    cluster: &Cluster,
) -> Status {
    Status {
        app_id: config.app_id.as_str().into(),
        namespace: config.workload.namespace_or_default().into(),
        started,
        app: config.app.clone(),
        health: context.health.clone(),
        readiness: readiness.clone(),
        components: Arc::clone(&running.components),
        endpoints: Arc::clone(&running.endpoints),
        findings: Arc::clone(&running.findings),
        subscriptions: Arc::clone(&running.blocks.subscriptions),
        peers: Arc::clone(&context.peers),
        scheduler: Arc::clone(&cluster.scheduler),
        actors: Arc::clone(&cluster.actors),
        workflows: Arc::clone(&cluster.workflows),
    }
}

/// The placement client, if placement is configured.
fn placement(
    config: &Config,
    identity: Option<(Identity, SpiffeId)>,
    readiness: &Readiness,
) -> Option<Placement> {
    let addresses = config.control_plane.placement.clone();
    for address in addresses.iter().filter(|address| !address.contains(':')) {
        tracing::warn!(
            target: LOG,
            "--placement-host-address: {address} has no port: write {address}:50005 for the default port of placement"
        );
    }
    (!addresses.is_empty()).then(|| Placement {
        addresses,
        by_name: config.mode == Mode::Kubernetes,
        identity,
        ready: readiness.condition("internal-placement-service"),
    })
}

fn policies(
    resources: &[spec::Resiliency],
    app_id: &str,
    metrics: &Metrics,
    findings: &Findings,
) -> Resiliency {
    let (policies, problems) = resiliency(resources, app_id);
    crate::log_problems!(LOG, &problems);
    findings.set(Kind::Resiliency.name(), "", problems.iter().map(Finding::from));
    for resource in policies.loaded() {
        tracing::info!(target: LOG, "Found Resiliency: {}", resource.name);
        metrics
            .resiliency
            .resource_loaded(&resource.name, &resource.namespace);
    }
    policies
}

/// The names of all kinds of resources, for logs.
fn all_kinds() -> String {
    let names: Vec<_> = Kind::ALL
        .iter()
        .map(|kind| format!("'{}'", kind.name()))
        .collect();
    match names.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// A source and the kinds of resources it reports.
pub(super) type Reported = (Box<dyn Source>, &'static [Kind]);

/// The sources of changes and their kinds; none if hot reload is disabled.
pub(super) fn sources(
    config: &Config,
    settings: &Configuration,
    operator: Option<&Operator>,
    control: &Handle,
) -> Vec<Reported> {
    if !settings.features.enabled(HOT_RELOAD) {
        return Vec::new();
    }
    tracing::info!(
        target: LOG,
        "Hot reloading enabled. Daprd will reload {} resources on change.",
        all_kinds()
    );
    if let Some(operator) = operator {
        let source = |kind: &'static Kind| -> Reported {
            let source = OperatorSource::new(operator.clone(), *kind);
            (Box::new(source), std::slice::from_ref(kind))
        };
        return Kind::ALL.iter().map(source).collect();
    }
    let source = FolderSource::new(
        config.resources.paths.clone(),
        config.workload.namespace.clone(),
        config.app_id.clone(),
        control.clone(),
    );
    vec![(Box::new(source), Kind::ALL)]
}

/// The source for reloading the Configuration, if hot reload is enabled.
fn configuration_source(
    config: &Config,
    env: &Env,
    control: &Handle,
    operator: Option<&Operator>,
    (started, empty): (Arc<Configuration>, Vec<PathBuf>),
) -> Option<Box<dyn Source>> {
    let configs = &config.resources.configs;
    let (Some(name), true) = (configs.first(), started.features.enabled(HOT_RELOAD)) else {
        return None;
    };
    if let Some(operator) = operator {
        let source = OperatorConfiguration::new(operator.clone(), name.clone());
        return Some(Box::new(source));
    }
    let files = configs.iter().map(Into::into).collect();
    let source = ConfigurationFiles::new(files, Arc::clone(env), control.clone(), (started, empty));
    Some(Box::new(source))
}
