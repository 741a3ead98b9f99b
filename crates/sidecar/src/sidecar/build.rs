//! From settings to a wired sidecar. Ports are bound before anything is dialled.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outrigger_components::pluggable;
use outrigger_identity::{
    AnchorsSource, CaConfig, Identity, IdentityEvent, Mode as IdentityMode, SecurityConfig,
};
use outrigger_policy::access::{AccessControl, AppProtocol as AccessProtocol};
use outrigger_policy::apilist::{ApiList, ApiProtocol};
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::configuration::{Configuration, HOT_RELOAD, SUBTLE_CRYPTO};
use outrigger_telemetry::apilog::ApiLog;
use outrigger_telemetry::export;
use outrigger_telemetry::metrics::{HttpMetricsConfig, LabelRewrite, Metrics, MetricsConfig, RewriteRule};
use outrigger_wire::runtime::v1::dapr_server::DaprServer;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::endpoints::EndpointResolver;
use super::serve::{Servers, Sockets};
use super::{Background, Env, LOG, Secured, Sidecar, SidecarError, resources};
use crate::access::Access;
use crate::admit::Token;
use crate::api::grpc::{DaprService, GrpcApi};
use crate::api::http::{Cors, HttpApi, Routes};
use crate::app::{AppChannel, Health, sensitive};
use crate::blocks::bindings::{Bindings, Surroundings};
use crate::blocks::configuration::Configurations;
use crate::blocks::conversation::Conversations;
use crate::blocks::crypto::Crypto;
use crate::blocks::invoke::{EndpointCommon, Endpoints, Forwarded, Invoker};
use crate::blocks::lock::Locks;
use crate::blocks::metadata::Metadata;
use crate::blocks::middleware::Middlewares;
use crate::blocks::secrets::Secrets;
use crate::blocks::state::State;
use crate::components::{self, Blocks, Components};
use crate::config::{self, AppProtocol, Config, Mode};
use crate::internal::InternalApi;
use crate::life::{Readiness, Shutdown};
use crate::listen::Versions;
use crate::metrics::SidecarMetrics;
use crate::operator::{EndpointFollower, Operator};
use crate::peer::Peers;
use crate::proxy::Proxy;
use crate::reflection::Reflection;
use crate::reload::{self, FolderSource, OperatorSource, Reloader, Source};
use crate::resilience::Resilience;

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
        let counts = IdentityCounts::default();
        let origin = match config.mode {
            Mode::Standalone => {
                let settings = resources::configuration(&config, &env)?;
                let sockets = Sockets::bind(&config)?;
                let secured = secure(&config, &env, &control, &counts).await?;
                tracing::info!(target: LOG, "standalone mode configured");
                Origin {
                    settings,
                    sockets,
                    secured,
                    operator: None,
                }
            }
            Mode::Kubernetes => {
                let sockets = Sockets::bind(&config)?;
                let mut secured = secure(&config, &env, &control, &counts).await?;
                let operator = resources::operator(&config, secured.identity.as_ref())?;
                let settings = resources::operator_configuration(&config, &env, &operator).await?;
                tracing::info!(target: LOG, "kubernetes mode configured");
                if !config.security.mtls {
                    // Only the control plane is spoken to with it.
                    secured.identity = None;
                }
                Origin {
                    settings,
                    sockets,
                    secured,
                    operator: Some(operator),
                }
            }
        };
        tracing::info!(target: LOG, "app id: {}", config.app_id);
        let all_metrics = Metrics::new(&metrics_config(&config, &origin.settings))?;
        counts.start(&all_metrics);
        Parts {
            config,
            env,
            control,
            shutdown,
            origin,
            all_metrics,
            started,
        }
        .wire()
        .await
    }
}

struct Parts {
    config: Config,
    env: Env,
    control: Handle,
    shutdown: Shutdown,
    origin: Origin,
    all_metrics: Arc<Metrics>,
    started: Instant,
}

/// What depends on where the sidecar runs.
struct Origin {
    settings: Configuration,
    sockets: Sockets,
    secured: Secured,
    /// In Kubernetes.
    operator: Option<Operator>,
}

impl Parts {
    async fn wire(self) -> Result<Sidecar, SidecarError> {
        let Self {
            config,
            env,
            control,
            shutdown,
            origin,
            all_metrics,
            started,
        } = self;
        let Origin {
            settings,
            sockets,
            secured,
            operator,
        } = origin;
        let settings = Arc::new(settings);
        let (tracer, pipeline) = export::build(tracing_config(&settings), &config.app_id, |n| env(n))?;
        // Watched before they are read: no change is missed.
        let source = source(&config, &settings, operator.as_ref(), &control)?;
        let loaded = match &operator {
            Some(operator) => operator.load().await?,
            None => resources::resources(&config)?,
        };
        let (policies, problems) = Resiliency::build(&loaded.resiliency, &config.app_id);
        for problem in problems {
            if problem.error {
                tracing::error!(target: LOG, "{problem}");
            } else {
                tracing::warn!(target: LOG, "{problem}");
            }
        }
        for resource in policies.loaded() {
            all_metrics
                .resiliency
                .resource_loaded(&resource.name, &resource.namespace);
        }
        for subscription in &loaded.subscriptions {
            tracing::warn!(
                target: LOG,
                "{}: subscription {} is not served: this release has no pub/sub",
                subscription.source,
                subscription.name
            );
        }
        let metrics = Arc::new(SidecarMetrics::new(all_metrics));
        let app_id: Arc<str> = config.app_id.as_str().into();
        let namespace: Arc<str> = config.workload.namespace_or_default().into();
        let host = host_address(&config);
        let (set_health, health) = Health::new(config.app.health.is_none());
        let middlewares = Arc::new(Middlewares::new(&settings));
        let app = AppChannel::build(
            &config.app,
            health.clone(),
            config.api.max_body_size,
            Arc::clone(&metrics),
            Arc::clone(&middlewares),
        )
        .map(Arc::new);
        let max_message = config.api.max_body_size.unwrap_or(usize::MAX);
        let grpc_app = matches!(config.app.protocol, AppProtocol::Grpc | AppProtocol::Grpcs);
        let protocol = if grpc_app {
            AccessProtocol::Grpc
        } else {
            AccessProtocol::Http
        };
        let control_list = AccessControl::build(&settings.access_control, protocol)?;
        let access = Arc::new(Access::new(control_list, Arc::clone(&metrics)));
        let peers = Arc::new(Peers::new(secured.identity.clone()));
        let resilience = Arc::new(Resilience {
            policies,
            metrics: Arc::clone(&metrics),
        });
        let state = Arc::new(State::new(Arc::clone(&resilience)));
        let scopes = settings.secrets.clone();
        let secrets = Arc::new(Secrets::new(scopes, Arc::clone(&resilience)));
        let configuration = Configurations::new(app.clone(), health.clone(), Arc::clone(&resilience));
        let configuration = Arc::new(configuration);
        let locks = Arc::new(Locks::new(Arc::clone(&resilience)));
        let bindings = Bindings::new(Surroundings {
            resilience: Arc::clone(&resilience),
            app: app.clone(),
            tracer: tracer.clone(),
            asking: config.app.binding_options_timeout,
            max_answer: max_message,
        });
        let subtle = settings.features.enabled(SUBTLE_CRYPTO);
        let crypto = Arc::new(Crypto::new(subtle, Arc::clone(&resilience)));
        let conversation = Arc::new(Conversations::new(Arc::clone(&resilience)));
        let blocks = Blocks {
            state: Arc::clone(&state),
            secrets: Arc::clone(&secrets),
            configuration: Arc::clone(&configuration),
            locks: Arc::clone(&locks),
            middlewares: Arc::clone(&middlewares),
            bindings: Arc::clone(&bindings),
            crypto: Arc::clone(&crypto),
            conversation: Arc::clone(&conversation),
        };
        let mut catalog = outrigger_components::builtin();
        pluggable::discover(&mut catalog, &pluggable_components(&config, &env)).await;
        let context = components::Context {
            catalog,
            app_id: config.app_id.clone(),
            namespace: config.workload.namespace.clone(),
            env_keys: config.resources.env_keys.clone(),
            env: Arc::clone(&env),
            configuration: Arc::clone(&settings),
            metrics: Arc::clone(metrics.all()),
            actors: !config.control_plane.placement.is_empty(),
        };
        let components = Arc::new(Components::new(context, blocks));
        let loading = components.start(&loaded.components).await;
        loading.map_err(|error| SidecarError::Component(error.to_string()))?;
        let endpoint_resolver = EndpointResolver {
            env_keys: config.resources.env_keys.clone(),
            env: Arc::clone(&env),
            secrets: Arc::clone(&secrets),
        };
        let (endpoints, problems) = Endpoints::build(
            endpoint_resolver.all(loaded.http_endpoints).await,
            EndpointCommon {
                max_concurrency: config.app.max_concurrency,
                unverified_urls: config.app.protocol == AppProtocol::Https,
                token: config.app.api_token.as_deref().and_then(sensitive),
                metrics: Arc::clone(&metrics),
                middlewares: Arc::clone(&middlewares),
            },
        );
        for problem in problems {
            tracing::error!(target: LOG, "{problem}");
        }
        let endpoints = Arc::new(endpoints);
        let endpoint_follower = operator.map(|operator| EndpointFollower {
            operator,
            endpoints: Arc::clone(&endpoints),
            resolve: endpoint_resolver.later(),
        });
        let invoker = Arc::new(Invoker {
            app_id: Arc::clone(&app_id),
            namespace: Arc::clone(&namespace),
            forwarded: Forwarded::new(&host, &host_name(), &app_id, &namespace),
            app: app.clone(),
            peers: Arc::clone(&peers),
            endpoints: Arc::clone(&endpoints),
            resilience: Arc::clone(&resilience),
            metrics: Arc::clone(&metrics),
            max_message,
        });
        let proxy = Arc::new(Proxy {
            app_id: Arc::clone(&app_id),
            namespace: Arc::clone(&namespace),
            app: app.clone(),
            peers: Arc::clone(&peers),
            access: Arc::clone(&access),
            resilience,
            tracer: tracer.clone(),
            metrics: Arc::clone(&metrics),
        });
        let metadata = Arc::new(Metadata::new(
            &app_id,
            config.app.clone(),
            settings.features.names().map(str::to_owned).collect(),
            endpoints,
            Arc::clone(&components),
        ));
        let reflection = Reflection::default();
        let log = api_log(&config, &settings);
        let readiness = readiness();
        let reloader = source.map(|source| {
            for target in reload::TARGETS {
                readiness.expect(target);
            }
            Reloader::new(source, Arc::clone(&components), loaded.components)
        });
        let rules = (&settings.api_allowed, &settings.api_denied);
        let http = Arc::new(HttpApi {
            app_id: Arc::clone(&app_id),
            routes: Routes::build(&ApiList::build(rules.0, rules.1, ApiProtocol::Http)),
            max_body: config.api.max_body_size,
            token: Token::new(config.api.token.as_deref()),
            cors: Cors::new(&config.api.cors),
            tracer: tracer.clone(),
            metrics: Arc::clone(&metrics),
            log,
            invoker: Arc::clone(&invoker),
            state: Arc::clone(&state),
            secrets: Arc::clone(&secrets),
            configuration: Arc::clone(&configuration),
            locks: Arc::clone(&locks),
            bindings: Arc::clone(&bindings),
            crypto: Arc::clone(&crypto),
            conversation: Arc::clone(&conversation),
            metadata: Arc::clone(&metadata),
            middlewares,
            readiness: readiness.clone(),
            shutdown: shutdown.clone(),
        });
        let service = DaprService {
            invoker,
            state,
            secrets,
            configuration: Arc::clone(&configuration),
            locks,
            bindings: Arc::clone(&bindings),
            crypto,
            conversation,
            metadata,
            shutdown: shutdown.clone(),
            metrics: Arc::clone(&metrics),
            max_message,
            warned: AtomicBool::new(false),
        };
        let grpc = Arc::new(GrpcApi {
            dapr: DaprServer::new(service)
                .max_decoding_message_size(max_message)
                .max_encoding_message_size(max_message),
            list: ApiList::build(rules.0, rules.1, ApiProtocol::Grpc),
            token: Token::new(config.api.token.as_deref()),
            tracer: tracer.clone(),
            metrics: Arc::clone(&metrics),
            log,
            proxy: Arc::clone(&proxy),
            reflection: reflection.clone(),
        });
        let internal = Arc::new(InternalApi {
            app_id,
            app: app.clone(),
            access,
            tracer,
            metrics: Arc::clone(&metrics),
            proxy,
            reflection,
            max_message,
        });
        let (resolver, fatal) = resolver(&config, &settings, host, sockets.internal_port());
        let servers = Servers {
            sockets,
            http,
            grpc,
            internal,
            internal_tls: secured.identity.as_ref().map(Identity::server_config),
            metrics: Arc::clone(metrics.all()),
            control: control.clone(),
            head_limit: config.api.read_buffer_size,
            http_versions: if config.api.disable_h2c {
                Versions::Http1
            } else {
                Versions::Both
            },
        };
        readiness.ready("security-provider");
        readiness.ready("scheduler-watch-hosts");
        Ok(Sidecar {
            config,
            started,
            control,
            servers,
            app,
            health,
            set_health,
            peers,
            resolver,
            fatal,
            readiness,
            shutdown,
            pipeline,
            components,
            configuration,
            reloader: Mutex::new(reloader),
            endpoint_follower,
            bindings,
            renewal: secured.renewal,
            background: Background::default(),
            reloading: Background::default(),
        })
    }
}

/// What reports changes of resources, where the feature is on.
fn source(
    config: &Config,
    settings: &Configuration,
    operator: Option<&Operator>,
    control: &Handle,
) -> Result<Option<Box<dyn Source>>, SidecarError> {
    if !settings.features.enabled(HOT_RELOAD) {
        return Ok(None);
    }
    if let Some(operator) = operator {
        return Ok(Some(Box::new(OperatorSource::new(operator.clone()))));
    }
    let source = FolderSource::new(
        config.resources.paths.clone(),
        config.workload.namespace.clone(),
        config.app_id.clone(),
        control.clone(),
    );
    source
        .map(|source| Some(Box::new(source) as Box<dyn Source>))
        .map_err(|error| SidecarError::Unsupported(error.to_string()))
}

/// How long a socket of a component may be there without anybody who listens.
const DISCOVERY: Duration = Duration::from_secs(10);

fn pluggable_components(config: &Config, env: &Env) -> pluggable::Options {
    let folder = env(pluggable::FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    pluggable::Options {
        folder: folder
            .unwrap_or_else(|| pluggable::DEFAULT_FOLDER.to_owned())
            .into(),
        wait: DISCOVERY,
        max_value: config.api.max_body_size.unwrap_or(usize::MAX),
    }
}

fn readiness() -> Readiness {
    let readiness = Readiness::default();
    for target in [
        "runtime",
        "security-provider",
        "metrics-exporter",
        "grpc-api-server",
        "grpc-internal-server",
        "scheduler-watch-hosts",
    ] {
        readiness.expect(target);
    }
    readiness
}

fn host_address(config: &Config) -> String {
    let listen = &config.internal.listen_address;
    if config::is_localhost(listen) {
        return listen.clone();
    }
    config::host_address(config.workload.host_ip.as_deref()).unwrap_or_else(|error| {
        tracing::error!(target: LOG, "failed to determine host address: {error}");
        "127.0.0.1".to_owned()
    })
}

fn host_name() -> String {
    hostname::get()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn api_log(config: &Config, settings: &Configuration) -> ApiLog {
    ApiLog {
        enabled: config.api.api_logging.unwrap_or(settings.api_logging.enabled),
        obfuscate_urls: settings.api_logging.obfuscate_urls,
        omit_health_checks: settings.api_logging.omit_health_checks,
    }
}

fn metrics_config(config: &Config, settings: &Configuration) -> MetricsConfig {
    let given = &settings.metrics;
    if given.http.increased_cardinality.is_none() {
        tracing::warn!(
            target: LOG,
            "metrics: spec.metrics.http.increasedCardinality is not set and counts as true; \
             set it to false to bound the number of HTTP series"
        );
    }
    let rules = given.rules.iter().map(|rule| RewriteRule {
        name: rule.name.clone(),
        labels: rule
            .labels
            .iter()
            .map(|label| LabelRewrite {
                name: label.name.clone(),
                regex: label.regex.iter().map(|(r, p)| (r.clone(), p.clone())).collect(),
            })
            .collect(),
    });
    MetricsConfig {
        app_id: config.app_id.clone(),
        namespace: config.workload.namespace_or_default().to_owned(),
        enabled: given.enabled,
        record_error_codes: given.record_error_codes,
        latency_buckets_ms: given
            .latency_buckets
            .iter()
            .filter_map(|b| u64::try_from(*b).ok())
            .collect(),
        http: HttpMetricsConfig {
            increased_cardinality: given.http.legacy_paths(),
            path_matching: given.http.path_matching.clone(),
            exclude_verbs: given.http.exclude_verbs,
        },
        rules: rules.collect(),
        ..MetricsConfig::default()
    }
}

fn tracing_config(settings: &Configuration) -> export::TracingConfig {
    let given = &settings.tracing;
    export::TracingConfig {
        sampling_rate: given.sampling_rate.clone(),
        stdout: given.stdout,
        zipkin_endpoint: given.zipkin_endpoint.clone(),
        otel: export::OtelConfig {
            endpoint: given.otel.endpoint.clone(),
            protocol: given.otel.protocol.clone(),
            is_secure: Some(given.otel.secure),
            headers: given
                .otel
                .headers
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
            timeout: given.otel.timeout,
        },
    }
}

/// Counts what happens to the identity. There is one before there are metrics: what they are depends on settings
/// that, in Kubernetes, only somebody with an identity is told.
#[derive(Clone, Default)]
struct IdentityCounts(Arc<Mutex<Counting>>);

enum Counting {
    Waiting(Vec<IdentityEvent>),
    Ready(Arc<Metrics>),
}

impl Default for Counting {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl IdentityCounts {
    fn start(&self, metrics: &Arc<Metrics>) {
        let before = std::mem::replace(&mut *self.lock(), Counting::Ready(Arc::clone(metrics)));
        if let Counting::Waiting(events) = before {
            events.into_iter().for_each(|event| self.count(event));
        }
    }

    fn count(&self, event: IdentityEvent) {
        let metrics = match &mut *self.lock() {
            Counting::Waiting(events) => return events.push(event),
            Counting::Ready(metrics) => Arc::clone(metrics),
        };
        match event {
            IdentityEvent::InitOk => metrics.runtime.mtls_initialized(),
            IdentityEvent::InitFailed(reason) => metrics.runtime.mtls_init_failed(reason),
            IdentityEvent::Rotated => metrics.runtime.certificate_rotated(),
            IdentityEvent::RotateFailed(reason) => metrics.runtime.certificate_rotation_failed(reason),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn secure(
    config: &Config,
    env: &Env,
    control: &Handle,
    counts: &IdentityCounts,
) -> Result<Secured, SidecarError> {
    let security = &config.security;
    let mode = match config.mode {
        Mode::Standalone => IdentityMode::Standalone,
        Mode::Kubernetes => IdentityMode::Kubernetes,
    };
    if !security.mtls && config.mode == Mode::Standalone {
        tracing::warn!(target: LOG, "mTLS is disabled. Skipping certificate request and tls validation");
        return Ok(Secured {
            identity: None,
            renewal: None,
        });
    }
    tracing::info!(target: "dapr.runtime.security", "Fetching initial identity");
    let counts = counts.clone();
    let events = Arc::new(move |event| counts.count(event));
    let control_plane_trust_domain = resources::control_plane(config)?;
    let anchors = AnchorsSource::Pem(security.trust_anchors.clone().unwrap_or_default());
    let request = SecurityConfig {
        ca: CaConfig {
            sentry_address: security.sentry_address.clone(),
            control_plane_trust_domain,
            control_plane_namespace: security.control_plane_namespace.clone(),
            app_id: config.app_id.clone(),
            namespace: config.workload.namespace.clone().filter(|ns| !ns.is_empty()),
            jwt_audiences: security.jwt_audiences.clone(),
            mode,
            token_file: None,
            env: Arc::clone(env),
        },
        anchors,
        directory: None,
        events,
    };
    let cancel = CancellationToken::new();
    let fetched = control
        .spawn(async move { outrigger_identity::start(request, &cancel).await })
        .await;
    let fetched = fetched.map_err(|e| SidecarError::Security(e.to_string()))?;
    let (identity, renewal) = fetched.map_err(|e| SidecarError::Security(crate::error::chain(&e)))?;
    tracing::info!(target: "dapr.runtime.security", "Security is initialized successfully");
    Ok(Secured {
        identity: Some(identity),
        renewal: Some(renewal),
    })
}

fn resolver(
    config: &Config,
    settings: &Configuration,
    host: String,
    internal_port: u16,
) -> (
    outrigger_discovery::Options,
    tokio::sync::mpsc::Receiver<outrigger_discovery::FatalError>,
) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let given = &settings.name_resolution;
    let component = if given.component.is_empty() {
        outrigger_discovery::default_component(config.mode == Mode::Kubernetes).to_owned()
    } else {
        given.component.clone()
    };
    let options = outrigger_discovery::Options {
        component,
        version: given.version.clone(),
        configuration: given.configuration.clone(),
        registration: outrigger_discovery::Registration {
            app_id: config.app_id.clone(),
            namespace: config.workload.namespace_or_default().to_owned(),
            host_address: host,
            internal_port,
            http_port: config.api.http_port,
            app_port: config.app.port,
            instance: None,
        },
        on_fatal: Arc::new(move |error| {
            // A second report adds nothing: the first ends the process.
            let _full = sender.try_send(error);
        }),
    };
    (options, receiver)
}
