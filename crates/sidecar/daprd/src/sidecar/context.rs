//! The state shared by every call of a sidecar, from any API.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outrigger_api::access::Access;
use outrigger_api::admit::Token;
use outrigger_api::grpc::{DaprService, GrpcApi, TaskHub, methods};
use outrigger_api::http::{Cors, HttpApi, Routes};
use outrigger_api::internal::InternalApi;
use outrigger_api::metadata::{Metadata, Reported};
use outrigger_api::proxy::Proxy;
use outrigger_api::reflection::Reflection;
use outrigger_blocks::Blocks;
use outrigger_blocks::bindings::Dependencies;
use outrigger_blocks::invoke::{EndpointCommon, Endpoints, Forwarded, Invoker};
use outrigger_blocks_actors::actors::{self, Actors};
use outrigger_blocks_actors::workflow::access::WorkflowAccess;
use outrigger_blocks_actors::workflow::metrics::WorkflowMetrics;
use outrigger_blocks_actors::workflow::{self, Workflows};
use outrigger_identity::{Identity, SpiffeId};
use outrigger_mcp::McpServers;
use outrigger_policy::access::{AccessControl, AppProtocol as AccessProtocol};
use outrigger_policy::apilist::ApiList;
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::configuration::{
    ACTOR_STATE_TTL, Configuration, WORKFLOW_HISTORY_SIGNING, WORKFLOWS_CLUSTERED,
    WORKFLOWS_REMOTE_ACTIVITY_REMINDER,
};
use outrigger_runtime::app::{App, AppProtocol};
use outrigger_runtime::app::{AppChannel, Health};
use outrigger_runtime::components::Components;
use outrigger_runtime::life::{Readiness, Shutdown};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::middleware::Middlewares;
use outrigger_runtime::resilience::Resilience;
use outrigger_runtime::scheduler::{self, Scheduler};
use outrigger_telemetry::trace::Tracer;
use outrigger_transport::peer::Peers;
use outrigger_wire::durabletask::task_hub_sidecar_service_server::TaskHubSidecarServiceServer;
use outrigger_wire::runtime::v1::dapr_server::DaprServer;

use super::settings::{api_log, host_address, host_name};
use crate::config::{self, Config, METADATA_VERSION, Mode};

/// The parts from which the APIs and blocks of a sidecar are built. Created once.
pub(super) struct SidecarContext {
    app_id: Arc<str>,
    namespace: Arc<str>,
    /// The address at which others reach this host.
    pub(super) host: String,
    pub(super) settings: Arc<Configuration>,
    pub(super) app: Option<Arc<AppChannel>>,
    pub(super) health: Health,
    pub(super) middlewares: Arc<Middlewares>,
    pub(super) metrics: Arc<SidecarMetrics>,
    tracer: Tracer,
    pub(super) access: Arc<Access>,
    pub(super) workflow_access: Arc<WorkflowAccess>,
    pub(super) peers: Arc<Peers>,
    pub(super) resilience: Arc<Resilience>,
    /// Maximum size of a message in bytes.
    max_message: usize,
}

/// The APIs of the three servers.
pub(super) struct Apis {
    pub(super) http: Arc<HttpApi>,
    pub(super) grpc: Arc<GrpcApi>,
    pub(super) internal: Arc<InternalApi>,
}

/// How operations of the app are matched.
pub(super) const fn access_protocol(config: &Config) -> AccessProtocol {
    match config.app.protocol {
        AppProtocol::Grpc | AppProtocol::Grpcs => AccessProtocol::Grpc,
        AppProtocol::Http | AppProtocol::Https | AppProtocol::H2c => AccessProtocol::Http,
    }
}

impl SidecarContext {
    pub(super) fn new(
        config: &Config,
        settings: Arc<Configuration>,
        policies: Resiliency,
        metrics: Arc<SidecarMetrics>,
        (control_list, tracer): (Option<AccessControl>, Tracer),
        health: Health,
        identity: Option<Identity>,
    ) -> Self {
        let middlewares = Arc::new(Middlewares::new(&settings));
        let app = AppChannel::build(
            &config.app,
            health.clone(),
            config.api.max_body_size,
            Arc::clone(&metrics),
            Arc::clone(&middlewares),
        );
        let resilience = Resilience::new(policies, Arc::clone(&metrics));
        let app_id: Arc<str> = config.app_id.as_str().into();
        let namespace: Arc<str> = config.workload.namespace_or_default().into();
        let registry = &metrics.all().registry;
        Self {
            workflow_access: Arc::new(WorkflowAccess::new(Arc::clone(&app_id), &namespace, registry)),
            app_id,
            namespace,
            host: host_address(config),
            app: app.map(Arc::new),
            health,
            middlewares,
            tracer,
            access: Arc::new(Access::new(control_list, Arc::clone(&metrics))),
            peers: Arc::new(Peers::new(identity)),
            resilience: Arc::new(resilience),
            max_message: config.api.max_body_size.unwrap_or(usize::MAX),
            settings,
            metrics,
        }
    }

    /// A client of the schedulers. `identity` holds this sidecar's identity and that required of the
    /// schedulers.
    pub(super) fn scheduler(
        &self,
        config: &Config,
        identity: Option<(Identity, SpiffeId)>,
    ) -> Arc<Scheduler> {
        Scheduler::new(scheduler::Settings {
            app_id: Arc::clone(&self.app_id),
            namespace: Arc::clone(&self.namespace),
            addresses: config.control_plane.scheduler.clone(),
            streams: config.control_plane.scheduler_streams,
            identity,
            max_message: self.max_message,
            limits: workflow::scheduler_limits(&self.namespace, &self.app_id, &self.settings.workflow.limits),
        })
    }

    pub(super) fn blocks(&self, config: &App, scheduler: &Arc<Scheduler>) -> Blocks {
        let dependencies = Dependencies {
            resilience: Arc::clone(&self.resilience),
            app: self.app.clone(),
            tracer: self.tracer.clone(),
            asking: config.binding_options_timeout,
            max_answer: self.max_message,
        };
        Blocks::new(
            Arc::clone(&self.app_id),
            &self.settings,
            Arc::clone(&self.middlewares),
            self.health.clone(),
            Arc::clone(scheduler),
            !config.skip_subscribe_endpoint,
            dependencies,
        )
    }

    /// `port` is that of the internal server.
    pub(super) fn actors(
        &self,
        config: &Config,
        port: u16,
        blocks: &Blocks,
        components: &Arc<Components>,
        scheduler: &Arc<Scheduler>,
    ) -> Arc<Actors> {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let actors = Arc::new(Actors::new(actors::Dependencies {
            app_id: Arc::clone(&self.app_id),
            namespace: Arc::clone(&self.namespace),
            address: format!("{host}:{port}"),
            placement: !config.control_plane.placement.is_empty(),
            handover: config.control_plane.handover,
            disseminate_timeout: config.control_plane.disseminate_timeout,
            namespace_missing: config.mode == Mode::Kubernetes
                && config.security.mtls
                && config.workload.namespace.as_deref().is_none_or(str::is_empty),
            app: self.app.clone(),
            peers: Arc::clone(&self.peers),
            resilience: Arc::clone(&self.resilience),
            state: Arc::clone(&blocks.state),
            components: Arc::clone(components),
            scheduler: Arc::clone(scheduler),
            workflow_access: Arc::clone(&self.workflow_access),
            tracer: self.tracer.clone(),
            state_ttl: self.settings.features.enabled(ACTOR_STATE_TTL),
            max_message: self.max_message,
        }));
        actors.follow_store();
        actors
    }

    /// The workflows of the app, whose instances are actors.
    pub(super) fn workflows(
        &self,
        config: &Config,
        actors: &Arc<Actors>,
        identity: Option<&Identity>,
        mcp: &Arc<McpServers>,
    ) -> Arc<Workflows> {
        let features = &self.settings.features;
        let signs = features.enabled(WORKFLOW_HISTORY_SIGNING);
        Workflows::new(workflow::Dependencies {
            app_id: Arc::clone(&self.app_id),
            namespace: Arc::clone(&self.namespace),
            actors: Arc::clone(actors),
            access: Arc::clone(&self.workflow_access),
            settings: self.settings.workflow.clone(),
            remote_results: features.enabled(WORKFLOWS_REMOTE_ACTIVITY_REMINDER),
            is_clustered: features.enabled(WORKFLOWS_CLUSTERED),
            tracer: self.tracer.clone(),
            metrics: Arc::new(WorkflowMetrics::new(&self.metrics.all().registry)),
            max_message: config.api.max_body_size,
            signer: identity.filter(|_| signs).cloned(),
            own: Arc::clone(mcp) as _,
        })
    }

    pub(super) fn endpoints(&self, config: &Config) -> Arc<Endpoints> {
        Arc::new(Endpoints::new(EndpointCommon {
            max_concurrency: config.app.max_concurrency,
            unverified_urls: config.app.protocol == AppProtocol::Https,
            metrics: Arc::clone(&self.metrics),
            middlewares: Arc::clone(&self.middlewares),
        }))
    }

    pub(super) fn apis(
        &self,
        config: &Config,
        blocks: &Blocks,
        reported: Reported,
        readiness: &Readiness,
        shutdown: &Shutdown,
    ) -> Apis {
        let invoker = self.invoker(Arc::clone(&reported.endpoints));
        let actors = &Arc::clone(&reported.actors);
        let workflows = &Arc::clone(&reported.workflows);
        let proxy = self.proxy();
        let metadata = Arc::new(Metadata::new(
            METADATA_VERSION,
            &self.app_id,
            config.app.clone(),
            self.settings.features.names().map(str::to_owned).collect(),
            reported,
        ));
        let reflection = Reflection::default();
        let log = api_log(config, &self.settings);
        let (allowed, denied) = (&self.settings.api_allowed, &self.settings.api_denied);
        let http = HttpApi {
            app_id: Arc::clone(&self.app_id),
            routes: Routes::build(&ApiList::http(allowed, denied)),
            max_body: config.api.max_body_size,
            token: Token::new(config.api.token.as_deref()),
            cors: match &config.api.cors {
                config::Cors::Off => Cors::Off,
                config::Cors::Any => Cors::Any,
                config::Cors::Only(origins) => Cors::only(origins),
            },
            tracer: self.tracer.clone(),
            metrics: Arc::clone(&self.metrics),
            log,
            invoker: Arc::clone(&invoker),
            blocks: blocks.clone(),
            actors: Arc::clone(actors),
            workflows: Arc::clone(workflows),
            metadata: Arc::clone(&metadata),
            readiness: readiness.clone(),
            shutdown: shutdown.clone(),
        };
        let dapr = Arc::new(DaprService {
            invoker,
            blocks: blocks.clone(),
            actors: Arc::clone(actors),
            workflows: Arc::clone(workflows),
            metadata,
            shutdown: shutdown.clone(),
            metrics: Arc::clone(&self.metrics),
            max_message: self.max_message,
            warned: AtomicBool::new(false),
        });
        let task_hub = TaskHub {
            workflows: Arc::clone(workflows),
        };
        let grpc = GrpcApi {
            workers: task_hub.clone(),
            task_hub: TaskHubSidecarServiceServer::new(task_hub)
                .max_decoding_message_size(self.max_message)
                .max_encoding_message_size(usize::MAX),
            streams: DaprServer::from_arc(Arc::clone(&dapr))
                .max_decoding_message_size(self.max_message)
                .max_encoding_message_size(self.max_message),
            dapr,
            list: ApiList::grpc(allowed, denied, methods),
            token: Token::new(config.api.token.as_deref()),
            tracer: self.tracer.clone(),
            metrics: Arc::clone(&self.metrics),
            log,
            proxy: Arc::clone(&proxy),
            reflection: reflection.clone(),
        };
        let internal = InternalApi {
            app_id: Arc::clone(&self.app_id),
            app: self.app.clone(),
            actors: Arc::clone(actors),
            access: Arc::clone(&self.access),
            tracer: self.tracer.clone(),
            metrics: Arc::clone(&self.metrics),
            proxy,
            reflection,
            max_message: self.max_message,
        };
        Apis {
            http: Arc::new(http),
            grpc: Arc::new(grpc),
            internal: Arc::new(internal),
        }
    }

    fn invoker(&self, endpoints: Arc<Endpoints>) -> Arc<Invoker> {
        Arc::new(Invoker {
            app_id: Arc::clone(&self.app_id),
            namespace: Arc::clone(&self.namespace),
            forwarded: Forwarded::new(&self.host, &host_name(), &self.app_id, &self.namespace),
            app: self.app.clone(),
            peers: Arc::clone(&self.peers),
            endpoints,
            resilience: Arc::clone(&self.resilience),
            metrics: Arc::clone(&self.metrics),
            max_message: self.max_message,
        })
    }

    fn proxy(&self) -> Arc<Proxy> {
        Arc::new(Proxy {
            app_id: Arc::clone(&self.app_id),
            namespace: Arc::clone(&self.namespace),
            app: self.app.clone(),
            peers: Arc::clone(&self.peers),
            access: Arc::clone(&self.access),
            resilience: Arc::clone(&self.resilience),
            tracer: self.tracer.clone(),
            metrics: Arc::clone(&self.metrics),
        })
    }
}
