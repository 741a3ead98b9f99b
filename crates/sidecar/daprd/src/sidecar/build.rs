//! From settings to a wired sidecar. Ports are bound before anything is dialled.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use outrigger_api::metadata;
use outrigger_blocks_actors::actors::Placement;
use outrigger_identity::{Identity, SpiffeId};
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::configuration::{Configuration, HOT_RELOAD};
use outrigger_resources::load::Kind;
use outrigger_resources::resiliency as spec;
use outrigger_runtime::app::Health;
use outrigger_runtime::components::{self, Components};
use outrigger_runtime::life::{Readiness, Shutdown};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::scheduler;
use outrigger_telemetry::metrics::Metrics;
use outrigger_transport::listen::Versions;
use tokio::runtime::Handle;

use super::context::{SidecarContext, access_protocol};
use super::early::{AppliedConfiguration, Environment, Found, catalog, prepare, resiliency, tell_mistakes};
use super::endpoints::EndpointResolver;
use super::expiry::CertificateWatch;
use super::security::service_identity;
use super::serve::Servers;
use super::settings::resolver as resolver_of;
use super::{Env, LOG, Sidecar, SidecarError, resources};
use crate::config::{Config, Mode};
use crate::operator::Operator;
use crate::reload::{
    self, ConfigurationFiles, ConfigurationReconciler, FolderSource, OperatorConfiguration, OperatorSource,
    Reloader, Source, follow_configuration,
};
use crate::status::Status;
use crate::status::findings::{Finding, Findings};

impl Sidecar {
    /// Builds a sidecar: reads its resources, binds its ports, obtains its identity. `control` runs what is not on
    /// the path of a call: scrapes, exports, renewal, name resolution. `shutdown` ends the run.
    ///
    /// # Errors
    /// [`SidecarError`] with everything that is wrong about the failing step.
    pub async fn build(
        config: Config,
        env: Env,
        control: Handle,
        shutdown: Shutdown,
    ) -> Result<Self, SidecarError> {
        let started = Instant::now();
        // Boxed: they hold everything that there is of a sidecar.
        let environment = Box::pin(prepare(&config, &env, &control)).await?;
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
        let Self {
            config,
            env,
            control,
            shutdown,
            environment,
            started,
        } = self;
        let Environment {
            used,
            empty,
            sockets,
            secured,
            towards_control,
            operator,
        } = environment;
        let AppliedConfiguration {
            settings,
            access,
            metrics: all_metrics,
            tracer,
            pipeline,
            sources,
        } = used;
        let settings = Arc::new(settings);
        let loaded = match &operator {
            Some(operator) => operator.load().await?,
            None => {
                let (loaded, usable) = resources::read_resources(&config, &control).await;
                if let Err(error) = usable {
                    // What is wrong beside it is mended with it.
                    tell_mistakes(&loaded, &config).await;
                    return Err(error);
                }
                loaded
            }
        };
        let (set_health, health) = Health::new(config.app.health.is_none());
        let findings = Arc::<Findings>::default();
        findings.listed(None, &loaded);
        let policies = policies(&loaded.resiliency, &config.app_id, &all_metrics, &findings);
        let context = SidecarContext::new(
            &config,
            Arc::clone(&settings),
            policies,
            Arc::new(SidecarMetrics::new(all_metrics)),
            (access, tracer),
            health.clone(),
            secured.identity.clone(),
        );
        let readiness = Readiness::default();
        let service = |app_id| service_identity(&config, towards_control.as_ref(), app_id);
        let scheduler = context.scheduler(&config, service(scheduler::APP_ID)?);
        let placement = placement(&config, service(resources::PLACEMENT_APP_ID)?, &readiness);
        let blocks = context.blocks(&config.app, &scheduler);
        let catalog = catalog(&config).await;
        let of_components = components::Context {
            catalog,
            app_id: config.app_id.clone(),
            namespace: config.workload.namespace.clone(),
            env_keys: config.resources.env_keys.clone(),
            env: Arc::clone(&env),
            configuration: Arc::clone(&settings),
            metrics: Arc::clone(context.metrics.all()),
            max_answer: outrigger_component::answer::limit(config.api.max_body_size),
            actors: !config.control_plane.placement.is_empty(),
        };
        let components = Components::new(
            of_components,
            blocks.categories(),
            Arc::clone(&blocks.secrets) as _,
        );
        let components = Arc::new(components.with_implicit(resources::cluster_secrets(&config)));
        let endpoints = context.endpoints(&config);
        let resolver = EndpointResolver {
            env_keys: config.resources.env_keys.clone(),
            env: Arc::clone(&env),
            secrets: Arc::clone(&blocks.secrets),
        };
        let running = reload::Running {
            app_id: config.app_id.clone(),
            resilience: Arc::clone(&context.resilience),
            components: Arc::clone(&components),
            endpoints: Arc::clone(&endpoints),
            resolve: resolver.into_resolve(),
            blocks: blocks.clone(),
            findings: Arc::clone(&findings),
        };
        let errors = reload::start(&running, &loaded).await;
        if !errors.is_empty() {
            return Err(Found::from(errors).into_error());
        }
        context.middlewares.show_missing();
        let reloads = settings.features.enabled(HOT_RELOAD);
        blocks.subscriptions.show_missing(&loaded.subscriptions, reloads);
        let initialized = readiness.condition("runtime");
        let schedulers_known = readiness.condition("scheduler-watch-hosts");
        let mut reconcilers = reload::reconcilers(&running, &loaded);
        let reloaders = sources.into_iter().map(|(source, kinds)| {
            let own = reconcilers.extract_if(.., |one| kinds.iter().any(|kind| one.is_for(*kind)));
            let of = (kinds.len() == 1).then(|| kinds[0]);
            Reloader::new(source, own.collect(), &readiness).telling(Arc::clone(&findings), of)
        });
        let mut reloaders: Vec<_> = reloaders.collect();
        let read = (Arc::clone(&settings), empty);
        if let Some(source) = configuration_source(&config, &env, &control, operator.as_ref(), read)? {
            let access = Arc::clone(&context.access);
            let running =
                ConfigurationReconciler::new(access, access_protocol(&config), Arc::clone(&settings));
            reloaders.push(Reloader::new(
                source,
                vec![follow_configuration(running)],
                &readiness,
            ));
        }
        let (resolver, fatal) =
            resolver_of(&config, &settings, context.host.clone(), sockets.internal_port());
        let actors = context.actors(&config, sockets.internal_port(), &blocks, &components, &scheduler);
        let workflows = context.workflows(&config, &actors);
        let status = Status {
            app_id: config.app_id.as_str().into(),
            namespace: config.workload.namespace_or_default().into(),
            started,
            app: config.app.clone(),
            health: health.clone(),
            readiness: readiness.clone(),
            components: Arc::clone(&components),
            endpoints: Arc::clone(&endpoints),
            findings,
            subscriptions: Arc::clone(&blocks.subscriptions),
            peers: Arc::clone(&context.peers),
            scheduler: Arc::clone(&scheduler),
            actors: Arc::clone(&actors),
            workflows: Arc::clone(&workflows),
        };
        let apis = context.apis(
            &config,
            &blocks,
            metadata::Reported {
                endpoints,
                components: Arc::clone(&components),
                actors: Arc::clone(&actors),
                workflows: Arc::clone(&workflows),
                scheduler: Arc::clone(&scheduler),
                subscriptions: Arc::clone(&blocks.subscriptions),
            },
            &readiness,
            &shutdown,
        );
        let servers = Servers {
            sockets,
            http: apis.http,
            grpc: apis.grpc,
            internal: apis.internal,
            internal_tls: secured.identity.as_ref().map(Identity::server_config),
            metrics: Arc::clone(context.metrics.all()),
            pages: status.pages(),
            control: control.clone(),
            head_limit: config.api.read_buffer_size,
            http_versions: if config.api.disable_h2c {
                Versions::Http1
            } else {
                Versions::Both
            },
        };
        let certificate = secured.identity.map(|identity| CertificateWatch {
            identity,
            metrics: Arc::clone(context.metrics.all()),
            readiness: readiness.clone(),
            sentry: config.security.sentry_address.clone(),
        });
        Ok(Sidecar {
            config,
            started,
            control,
            servers,
            app: context.app,
            health,
            set_health,
            peers: context.peers,
            resolver,
            fatal,
            readiness,
            initialized,
            shutdown,
            pipeline,
            components,
            configuration: blocks.configuration,
            reloaders: Mutex::new(reloaders),
            bindings: blocks.bindings,
            actors,
            workflows,
            placement,
            jobs: blocks.jobs,
            scheduler,
            schedulers_known: Some(schedulers_known),
            subscriptions: blocks.subscriptions,
            state: blocks.state,
            renewal: secured.renewal,
            certificate,
        })
    }
}

/// How placement is reached, where there is one.
fn placement(
    config: &Config,
    identity: Option<(Identity, SpiffeId)>,
    readiness: &Readiness,
) -> Option<Placement> {
    let addresses = config.control_plane.placement.clone();
    for address in addresses.iter().filter(|address| !address.contains(':')) {
        tracing::warn!(
            target: LOG,
            "--placement-host-address: {address} has no port and cannot be reached: write {address}:50005 if placement \
             listens where it does by default"
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

/// A source, and the kinds of resources that it tells of.
pub(super) type Reported = (Box<dyn Source>, &'static [Kind]);

/// What reports changes of which kinds of resources: the operator always, of components as folders only where the
/// feature is on.
pub(super) fn sources(
    config: &Config,
    settings: &Configuration,
    operator: Option<&Operator>,
    control: &Handle,
) -> Result<Vec<Reported>, SidecarError> {
    let hot_reload = settings.features.enabled(HOT_RELOAD);
    if hot_reload {
        tracing::info!(
            target: LOG,
            "Hot reloading enabled. Daprd will reload {} resources on change.",
            all_kinds()
        );
    }
    if let Some(operator) = operator {
        let followed: &'static [Kind] = match hot_reload {
            true => Kind::ALL,
            false => &[Kind::HttpEndpoint],
        };
        let source = |kind: &'static Kind| -> Reported {
            let source = OperatorSource::new(operator.clone(), *kind);
            (Box::new(source), std::slice::from_ref(kind))
        };
        return Ok(followed.iter().map(source).collect());
    }
    if !hot_reload {
        return Ok(Vec::new());
    }
    let source = FolderSource::new(
        config.resources.paths.clone(),
        config.workload.namespace.clone(),
        config.app_id.clone(),
        control.clone(),
    );
    source
        .map(|source| -> Vec<Reported> { vec![(Box::new(source), Kind::ALL)] })
        .map_err(|error| SidecarError::Unsupported(error.to_string()))
}

/// Where the Configuration is read again, where hot reload is on.
fn configuration_source(
    config: &Config,
    env: &Env,
    control: &Handle,
    operator: Option<&Operator>,
    (started, empty): (Arc<Configuration>, Vec<PathBuf>),
) -> Result<Option<Box<dyn Source>>, SidecarError> {
    let configs = &config.resources.configs;
    let (Some(name), true) = (configs.first(), started.features.enabled(HOT_RELOAD)) else {
        return Ok(None);
    };
    if let Some(operator) = operator {
        let source = OperatorConfiguration::new(operator.clone(), name.clone());
        return Ok(Some(Box::new(source)));
    }
    let files = configs.iter().map(Into::into).collect();
    let source = ConfigurationFiles::new(files, Arc::clone(env), control.clone(), (started, empty));
    let source = source.map_err(|error| SidecarError::Unsupported(error.to_string()))?;
    Ok(Some(Box::new(source)))
}
