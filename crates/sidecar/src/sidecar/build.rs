//! From settings to a wired sidecar. Ports are bound before anything is dialled.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use outrigger_components::pluggable;
use outrigger_identity::Identity;
use outrigger_policy::access::{AccessControl, AppProtocol as AccessProtocol};
use outrigger_policy::apilist::{ApiList, ApiProtocol};
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::configuration::{Configuration, HOT_RELOAD, SUBTLE_CRYPTO};
use outrigger_telemetry::export;
use outrigger_telemetry::metrics::Metrics;
use outrigger_wire::runtime::v1::dapr_server::DaprServer;
use tokio::runtime::Handle;

use super::endpoints::EndpointResolver;
use super::security::{IdentityCounts, secure};
use super::serve::{Servers, Sockets};
use super::settings::{
    api_log, host_address, host_name, metrics_config, pluggable_components, resolver, tracing_config,
};
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
use crate::config::{AppProtocol, Config, Mode};
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
        let parts = Parts {
            config,
            env,
            control,
            shutdown,
            origin,
            all_metrics,
            started,
        };
        // Boxed: it holds everything that there is of a sidecar.
        Box::pin(parts.wire()).await
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
