//! The only place where the parts are wired: a configuration becomes a placement service, which runs.

use std::net::SocketAddr;
use std::sync::Arc;

use outrigger_accept::{
    Limits, Listen, Server,
    health::{Health, Part, serve_health_and},
    serve_metrics,
};
use outrigger_controlplane::grpc::{self, Allowed};
use outrigger_controlplane::{fine, obtain, supervise};
use outrigger_identity::{Identity, Renewal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::election::Election;
use crate::error::PlacementError;
use crate::metrics::Metrics;
use crate::namespaces::Rules;
use crate::service::Service;
use crate::state;
use crate::term::{Keeper, Terms};

/// App id of the placement service in its SPIFFE id.
const APP_ID: &str = "dapr-placement";
/// Connections of the gRPC server: each sidecar has one.
const CONNECTIONS: Limits = Limits {
    connections: 16_384,
    per_source: 8_192,
};
/// Calls at the same time on one connection: a sidecar has one.
const MAX_STREAMS: u32 = 16;

/// A placement service with its ports bound, ready to run.
pub struct Placement {
    grpc: Server,
    raft: Server,
    healthz: Server,
    metrics_server: Option<Server>,
    identity: Option<(Identity, Renewal)>,
    config: Config,
    health: Arc<Health>,
    /// Ready once all servers run.
    parts: Vec<Part>,
    metrics: Arc<Metrics>,
    drain: CancellationToken,
}

/// Addresses the servers are bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The service.
    pub grpc: SocketAddr,
    /// Where replicas elect their leader.
    pub raft: SocketAddr,
    /// `/healthz`.
    pub healthz: SocketAddr,
    /// Metrics, when on.
    pub metrics: Option<SocketAddr>,
}

impl Placement {
    /// Obtains the identity, and binds every port. `env` reads the environment.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn build(
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, PlacementError> {
        let mut health = Health::default();
        let names = [
            "healthz-server",
            "security-provider",
            "placement-grpc-server",
            "placement-raft-leadership",
        ];
        let mut parts: Vec<Part> = names.into_iter().map(|name| health.part(name)).collect();
        let grpc = Server::bind("gRPC", "port", &config.grpc).await?;
        let raft = crate::election::bind(&config).await?;
        let healthz =
            Server::bind("health", "healthz-port", &Listen::everywhere(config.healthz_port)).await?;
        let metrics_server = match &config.metrics {
            None => None,
            Some(listen) => {
                parts.push(health.part("metrics-exporter"));
                Some(Server::bind("metrics", "metrics-port", listen).await?)
            }
        };
        let identity = match &config.tls {
            None => None,
            Some(tls) => Some(obtain(tls, APP_ID, &config.namespace, env, &drain).await?),
        };
        Ok(Self {
            grpc,
            raft,
            healthz,
            metrics_server,
            identity,
            config,
            health: Arc::new(health),
            parts,
            metrics: Arc::default(),
            drain,
        })
    }

    /// Where the servers listen.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            grpc: self.grpc.address(),
            raft: self.raft.address(),
            healthz: self.healthz.address(),
            metrics: self.metrics_server.as_ref().map(Server::address),
        }
    }

    /// Serves until told to stop, then ends all streams. Ends early only when a part cannot go on.
    ///
    /// # Errors
    /// When it ended early.
    pub async fn run(self) -> Result<(), PlacementError> {
        let stop = self.drain.child_token();
        let mut tasks = JoinSet::new();
        tracing::info!(target: "dapr.placement", "Running gRPC server on {}", self.grpc.address());
        let (identity, renewal) = self.identity.unzip();
        if let Some(renewal) = renewal {
            tasks.spawn(fine(renewal.run(stop.clone())));
        }
        let election = Election::start(&self.config, self.raft, identity.clone()).await?;
        let (sender, terms) = watch::channel(None);
        let id: Arc<str> = self.config.id.as_str().into();
        let keeper = Keeper {
            id: Arc::clone(&id),
            rules: Rules {
                timeout: self.config.disseminate_timeout,
                replication_factor: self.config.replication_factor,
                handover: self.config.handover,
            },
            metrics: Arc::clone(&self.metrics),
            terms: sender,
        };
        tasks.spawn(fine(keeper.run(election.leads(), stop.clone())));
        let token = stop.clone();
        tasks.spawn(async move { Ok(election.run(token).await?) });
        let service = Service {
            id,
            terms: terms.clone(),
            drain: stop.clone(),
        };
        let allowed = Allowed {
            connections: CONNECTIONS,
            ping_after: self.config.keepalive_time,
            ping_timeout: self.config.keepalive_timeout,
            streams: MAX_STREAMS,
        };
        tasks.spawn(fine(grpc::serve(
            self.grpc,
            allowed,
            identity,
            service,
            stop.clone(),
        )));
        let metadata = self.config.metadata;
        tasks.spawn(fine(serve_state(
            self.healthz,
            self.health,
            stop.clone(),
            metadata,
            terms,
        )));
        if let Some(server) = self.metrics_server {
            let metrics = self.metrics;
            let render = move || metrics.render();
            tasks.spawn(fine(serve_metrics(server, stop.clone(), render)));
        }
        self.parts.iter().for_each(|part| part.set(true));
        let outcome = supervise(tasks, &stop).await;
        self.parts.iter().for_each(|part| part.set(false));
        outcome
    }
}

/// Serves `/healthz`, and `/placement/state` if that is wanted.
async fn serve_state(
    server: Server,
    health: Arc<Health>,
    stop: CancellationToken,
    metadata: bool,
    terms: Terms,
) {
    let others = move |request: &http::Request<_>| match metadata {
        true => state::answer(request, &terms),
        false => None,
    };
    serve_health_and(server, health, stop, others).await;
}
