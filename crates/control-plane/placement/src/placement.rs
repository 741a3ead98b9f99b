//! Wires a configuration to a running placement service.

use std::net::SocketAddr;
use std::sync::Arc;

use outrigger_accept::{Limits, Listen, Ports, Server};
use outrigger_controlplane::grpc::{self, ServerLimits};
use outrigger_controlplane::{Monitoring, fine, obtain};
use outrigger_identity::{Identity, Renewal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::dissemination::Rules;
use crate::election::Prepared;
use crate::error::PlacementError;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::state;
use crate::term::TermRunner;

/// App id of the placement service in its SPIFFE id.
const APP_ID: &str = "dapr-placement";
/// Limits for connections of the gRPC server: each sidecar has one.
const CONNECTIONS: Limits = Limits {
    connections: 16_384,
    per_source: 8_192,
};
/// Maximum concurrent calls of a connection: a sidecar has one.
const MAX_STREAMS: u32 = 16;

/// A placement service with bound ports, ready to run.
pub struct Placement {
    grpc: Server,
    election: Prepared,
    monitoring: Monitoring,
    identity: Option<(Identity, Renewal)>,
    config: Config,
    metrics: Arc<Metrics>,
    drain: CancellationToken,
}

/// Bound addresses of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the gRPC server for sidecars.
    pub grpc: SocketAddr,
    /// Address for Raft, if used.
    pub raft: Option<SocketAddr>,
    /// Address of the `/healthz` server.
    pub healthz: SocketAddr,
    /// Metrics, when on.
    pub metrics: Option<SocketAddr>,
}

impl Placement {
    /// Obtains the identity and binds all ports. `env` reads the environment.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn build(
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, PlacementError> {
        let mut ports = Ports::default();
        let grpc = ports.bind("gRPC", "port", &config.grpc).await;
        let parts = [
            "security-provider",
            "placement-grpc-server",
            "placement-raft-leadership",
        ];
        let healthz = Listen::everywhere(config.healthz_port);
        let monitoring = Monitoring::bind(&mut ports, &healthz, config.metrics.as_ref(), &parts).await;
        let (grpc, monitoring) = ports.all(grpc.zip(monitoring))?;
        let election = Prepared::new(&config).await?;
        let identity = match &config.tls {
            None => None,
            Some(tls) => Some(obtain(tls, APP_ID, &config.namespace, env, &drain).await?),
        };
        Ok(Self {
            grpc,
            election,
            monitoring,
            identity,
            config,
            metrics: Arc::default(),
            drain,
        })
    }

    /// The bound addresses.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            grpc: self.grpc.address(),
            raft: self.election.address(),
            healthz: self.monitoring.healthz(),
            metrics: self.monitoring.metrics(),
        }
    }

    /// Serves until stopped, then ends all streams.
    ///
    /// # Errors
    /// If a part fails earlier.
    pub async fn run(self) -> Result<(), PlacementError> {
        let stop = self.drain.child_token();
        let mut tasks = JoinSet::new();
        tracing::info!(target: "dapr.placement", "Running gRPC server on {}", self.grpc.address());
        let (identity, renewal) = self.identity.unzip();
        if let Some(renewal) = renewal {
            tasks.spawn(fine(renewal.run(stop.clone())));
        }
        let election = self.election.start(&self.config.id, identity.clone()).await?;
        let (sender, terms) = watch::channel(None);
        let id: Arc<str> = self.config.id.as_str().into();
        let keeper = TermRunner {
            id: Arc::clone(&id),
            rules: Rules {
                timeout: self.config.disseminate_timeout,
                window: self.config.coalesce_window,
                replication_factor: self.config.replication_factor,
                handover: self.config.handover,
            },
            metrics: Arc::clone(&self.metrics),
            terms: sender,
            tasks: TaskTracker::new(),
        };
        tasks.spawn(fine(keeper.run(election.leads(), stop.clone())));
        let token = stop.clone();
        tasks.spawn(async move { Ok(election.run(token).await?) });
        let service = Service {
            id,
            terms: terms.clone(),
            drain: stop.clone(),
        };
        let limits = ServerLimits {
            connections: CONNECTIONS,
            ping_after: self.config.keepalive_time,
            ping_timeout: self.config.keepalive_timeout,
            streams: MAX_STREAMS,
        };
        tasks.spawn(fine(grpc::serve(
            self.grpc,
            limits,
            identity,
            service,
            stop.clone(),
        )));
        let (metadata, metrics) = (self.config.metadata, self.metrics);
        let render = move || metrics.render();
        // Serves `/placement/state` if enabled.
        let state = move |request: &http::Request<_>| match metadata {
            true => state::answer(request, &terms),
            false => None,
        };
        self.monitoring.supervise_and(tasks, &stop, render, state).await
    }
}
