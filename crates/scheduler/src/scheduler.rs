//! The only place where the parts are wired: a configuration becomes a scheduler, a scheduler runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use outrigger_accept::{
    Limits, Listen, Server,
    address::{host_address, is_localhost},
    health::{Health, Part, serve_health},
    serve_metrics,
};
use outrigger_controlplane::grpc::{self, Allowed};
use outrigger_controlplane::{fine, obtain, supervise};
use outrigger_identity::{Identity, Renewal};
use outrigger_wire::scheduler::v1::scheduler_server::SchedulerServer;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Task};
use crate::error::SchedulerError;
use crate::etcd_api::{self, EtcdApi};
use crate::metrics::Metrics;
use crate::proto::etcd::kv_server::KvServer;
use crate::service::Service;
use crate::storage::Storage;
use crate::storage::embedded::{Embedded, Place};
use crate::triggers::{Driver, Triggers};

const LOG: &str = "dapr.scheduler";
/// App id of the scheduler in its SPIFFE id.
const APP_ID: &str = "dapr-scheduler";
/// Connections of the gRPC server: each sidecar has five or so.
const CONNECTIONS: Limits = Limits {
    connections: 16_384,
    per_source: 8_192,
};
/// Silence after which a peer is asked whether it is still there.
const PING_AFTER: Duration = Duration::from_secs(10);
/// Time limit of its answer.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls at the same time on one connection.
const MAX_STREAMS: u32 = 1024;
/// What sidecars are allowed.
const ALLOWED: Allowed = Allowed {
    connections: CONNECTIONS,
    ping_after: PING_AFTER,
    ping_timeout: PING_TIMEOUT,
    streams: MAX_STREAMS,
};
/// Largest request, in bytes: a job with its payload.
const MAX_REQUEST: usize = 16 << 20;
/// Time for what was answered last to be stored when the process ends.
const CLOSE: Duration = Duration::from_secs(10);

/// A scheduler with its ports bound and its store open, ready to run.
pub struct Scheduler {
    grpc: Server,
    healthz: Server,
    metrics_server: Option<Server>,
    etcd_api: Server,
    identity: Option<(Identity, Renewal)>,
    store: Arc<Embedded>,
    id: String,
    service: Service,
    driver: Driver,
    health: Arc<Health>,
    /// Ready once all servers run.
    parts: Vec<Part>,
    /// Ready once all jobs are known.
    loaded: Part,
    /// Ready once readers of the store know of this scheduler.
    announced: Part,
    metrics: Arc<Metrics>,
    drain: CancellationToken,
}

/// Addresses the servers are bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The scheduler.
    pub grpc: SocketAddr,
    /// `/healthz`.
    pub healthz: SocketAddr,
    /// Metrics, when on.
    pub metrics: Option<SocketAddr>,
    /// Where etcd's clients are answered.
    pub etcd_api: SocketAddr,
    /// What sidecars are told.
    pub broadcast: String,
}

impl Scheduler {
    /// Does what the configuration wants done instead of serving; whether there was something.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn perform(config: &Config) -> Result<bool, SchedulerError> {
        let place = place(config);
        match &config.task {
            None => return Ok(false),
            Some(Task::Snapshot(to)) => place.snapshot(to)?,
            Some(Task::Restore(from)) => place.restore(from)?,
        }
        Ok(true)
    }

    /// Obtains the identity, opens and checks the store, and binds every port. `env` reads the environment.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn build(
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, SchedulerError> {
        let mut health = Health::default();
        let names = ["healthz-server", "security-provider", "scheduler-server"];
        let mut parts: Vec<Part> = names.into_iter().map(|name| health.part(name)).collect();
        let loaded = health.part("scheduler-etcd-embed");
        let announced = health.part("scheduler-leadership");
        let grpc = Server::bind("gRPC", "port", &config.grpc).await?;
        let healthz =
            Server::bind("health", "healthz-port", &Listen::everywhere(config.healthz_port)).await?;
        let metrics_server = match &config.metrics {
            None => None,
            Some(listen) => {
                parts.push(health.part("metrics-exporter"));
                Some(Server::bind("metrics", "metrics-port", listen).await?)
            }
        };
        let etcd_api = Server::bind("etcd client", "etcd-client-port", &config.etcd_api).await?;
        let address = broadcast(&config, grpc.address(), env("DAPR_HOST_IP").as_deref())?;
        let identity = match &config.tls {
            None => None,
            Some(tls) => Some(obtain(tls, APP_ID, &config.namespace, env, &drain).await?),
        };
        let place = place(&config);
        let opened = tokio::task::spawn_blocking(move || Embedded::open(&place)).await;
        let (store, changes) = opened.map_err(outrigger_controlplane::TaskFailed::from)??;

        let metrics = Arc::new(Metrics::default());
        let storage: Arc<dyn Storage> = store.clone();
        let (triggers, driver) = Triggers::new(
            Arc::clone(&storage),
            changes,
            Arc::clone(&metrics),
            config.workers,
        );
        let service = Service {
            storage,
            triggers,
            metrics: Arc::clone(&metrics),
            address: address.as_str().into(),
            drain: drain.clone(),
        };
        tracing::info!(target: LOG, "Jobs are kept in {}", config.data.display());
        Ok(Self {
            grpc,
            healthz,
            metrics_server,
            etcd_api,
            identity,
            store,
            id: config.id,
            service,
            driver,
            health: Arc::new(health),
            parts,
            loaded,
            announced,
            metrics,
            drain,
        })
    }

    /// Where the servers listen.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            grpc: self.grpc.address(),
            healthz: self.healthz.address(),
            metrics: self.metrics_server.as_ref().map(Server::address),
            etcd_api: self.etcd_api.address(),
            broadcast: self.service.address.to_string(),
        }
    }

    /// Serves until told to stop, then lets open calls finish, and what was answered reach the store. Ends early only
    /// when a part cannot go on.
    ///
    /// # Errors
    /// When it ended early.
    pub async fn run(self) -> Result<(), SchedulerError> {
        let stop = self.drain.child_token();
        let mut tasks = JoinSet::new();
        tracing::info!(target: "dapr.scheduler.server", "Running gRPC server on {}", self.grpc.address());
        let (identity, renewal) = self.identity.unzip();
        if let Some(renewal) = renewal {
            tasks.spawn(fine(renewal.run(stop.clone())));
        }
        let (store, id, address) = (
            Arc::clone(&self.store),
            self.id,
            Arc::clone(&self.service.address),
        );
        let (announced, token) = (self.announced, stop.clone());
        tasks.spawn(async move {
            etcd_api::announce(&store, &id, &address).await?;
            announced.set(true);
            token.cancelled().await;
            Ok(())
        });
        let service = SchedulerServer::new(self.service).max_decoding_message_size(MAX_REQUEST);
        tasks.spawn(fine(grpc::serve(
            self.grpc,
            ALLOWED,
            identity,
            service,
            stop.clone(),
        )));
        let api = KvServer::new(EtcdApi::new(Arc::clone(&self.store))).max_decoding_message_size(MAX_REQUEST);
        let allowed = Allowed {
            connections: outrigger_accept::ENDPOINT_LIMITS,
            ..ALLOWED
        };
        tasks.spawn(fine(grpc::serve(self.etcd_api, allowed, None, api, stop.clone())));
        tasks.spawn(fine(serve_health(self.healthz, self.health, stop.clone())));
        if let Some(server) = self.metrics_server {
            let metrics = self.metrics;
            tasks.spawn(fine(serve_metrics(server, stop.clone(), move || {
                metrics.render()
            })));
        }
        let (driver, loaded, token) = (self.driver, self.loaded, stop.clone());
        tasks.spawn(async move { Ok(driver.run(loaded, token).await?) });

        self.parts.iter().for_each(|part| part.set(true));
        let outcome = supervise(tasks, &stop).await;
        self.parts.iter().for_each(|part| part.set(false));
        if tokio::time::timeout(CLOSE, self.store.close()).await.is_err() {
            tracing::warn!(target: LOG, "The store did not close in time: ticks that were taken last may come again");
        }
        outcome
    }
}

fn place(config: &Config) -> Place {
    Place {
        folder: config.data.clone(),
        id: config.id.clone(),
        quota: config.quota,
    }
}

/// What sidecars are told.
fn broadcast(config: &Config, bound: SocketAddr, host_ip: Option<&str>) -> Result<String, SchedulerError> {
    if let Some(given) = &config.broadcast {
        return Ok(given.clone());
    }
    let listen = &config.grpc.host;
    let host = match listen.is_empty() || (!is_localhost(listen) && listen == "0.0.0.0") {
        true => host_address(host_ip)?,
        false => listen.clone(),
    };
    let port = bound.port();
    Ok(match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}
