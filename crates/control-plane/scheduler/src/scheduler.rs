//! Wires the parts of a scheduler: builds it from a configuration and runs it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use outrigger_accept::budget::Payloads;
use outrigger_accept::{
    Limits, Listen, Ports, Server,
    address::{host_address, is_localhost},
};
use outrigger_controlplane::grpc::{self, ServerLimits};
use outrigger_controlplane::health::Part;
use outrigger_controlplane::{Monitoring, fine, obtain_into};
use outrigger_identity::{Identity, Renewal};
use outrigger_kube::Client;
use outrigger_wire::scheduler::v1::scheduler_server::SchedulerServer;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Store, Task};
use crate::defragment::{self, Defragment};
use crate::error::SchedulerError;
use crate::etcd_api::{self, EtcdApi};
use crate::etcd_child::{EtcdChild, Pace, become_etcd};
use crate::metrics::Metrics;
use crate::migrate::migrate;
use crate::namespaces::Namespaces;
use crate::opened::{Opened, location};
use crate::proto::etcd::kv_server::KvServer;
use crate::service::{PAYLOADS_PART, Service, size};
use crate::storage::embedded::Embedded;
use crate::storage::{Storage, StorageError};
use crate::triggers::{self, Driver, Group, Triggers};

const LOG: &str = "dapr.scheduler";
/// App id in the scheduler's SPIFFE id.
const APP_ID: &str = "dapr-scheduler";
/// User agent for the Kubernetes API.
const AGENT: &str = concat!("outrigger-scheduler/", env!("CARGO_PKG_VERSION"));
/// Connection limits of the gRPC server. A sidecar has about five connections.
const CONNECTIONS: Limits = Limits {
    connections: 16_384,
    per_source: 8_192,
};
/// Time without traffic before a peer is pinged. Triggers of a lost peer go to another sidecar.
const PING_AFTER: Duration = Duration::from_secs(3);
/// Timeout of a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent calls per connection.
const MAX_STREAMS: u32 = 1024;
/// Limits of the gRPC server.
const GRPC: ServerLimits = ServerLimits {
    connections: CONNECTIONS,
    ping_after: PING_AFTER,
    ping_timeout: PING_TIMEOUT,
    streams: MAX_STREAMS,
};
/// Maximum size of a request in bytes: a job with its payload.
const MAX_REQUEST: usize = 16 << 20;
/// Deadline at shutdown for storing the last answers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A scheduler with its ports bound and its store open, ready to run.
pub struct Scheduler {
    grpc: Server,
    monitoring: Monitoring,
    /// The embedded store and its server for etcd clients.
    embedded: Option<(Arc<Embedded>, Server)>,
    identity: Option<(Identity, Renewal)>,
    storage: Arc<dyn Storage>,
    child: Option<(EtcdChild, Defragment)>,
    id: String,
    address: String,
    service: Service,
    driver: Driver,
    /// In Kubernetes: the watch of namespaces and its readiness.
    namespaces: Option<(Namespaces, Part)>,
    /// Ready once all jobs are loaded.
    loaded: Part,
    /// Ready once this scheduler is announced in the embedded store.
    announced: Option<Part>,
    metrics: Arc<Metrics>,
    /// Stops all parts, at shutdown or when one of them fails.
    stop: CancellationToken,
}

/// Addresses of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the gRPC server.
    pub grpc: SocketAddr,
    /// Address of the `/healthz` server.
    pub healthz: SocketAddr,
    /// Address of the metrics server, if enabled.
    pub metrics: Option<SocketAddr>,
    /// Address for etcd clients, if the store is embedded.
    pub etcd_api: Option<SocketAddr>,
    /// The `host:port` announced to sidecars.
    pub broadcast: String,
}

impl Scheduler {
    /// Turns the arguments of the process into flags. If the arguments say so, the process becomes etcd
    /// instead.
    ///
    /// # Errors
    /// If it cannot become etcd.
    pub fn arguments(mut given: Vec<String>) -> Result<Vec<String>, String> {
        if let Some(error) = become_etcd(&given) {
            return Err(format!("cannot run etcd: {error}"));
        }
        // `--migrate FROM TO` has two values, but a flag has one.
        let is_migrate = |argument: &String| matches!(argument.as_str(), "--migrate" | "-migrate");
        let at = given.iter().position(is_migrate);
        if let Some(target) = at.and_then(|at| given.get_mut(at + 2))
            && !target.starts_with('-')
        {
            target.insert_str(0, "--migrate-to=");
        }
        Ok(given)
    }

    /// Runs the one-off task of the configuration; `false` if there is none.
    ///
    /// # Errors
    /// If the task fails.
    pub async fn perform(config: &Config) -> Result<bool, SchedulerError> {
        let location = location(config);
        match &config.task {
            None => return Ok(false),
            Some(Task::Snapshot(to)) => location.snapshot(to)?,
            Some(Task::Restore(from)) => location.restore(from)?,
            Some(Task::Migrate(from, to)) => {
                let done = migrate(from, to, &location).await?;
                println!("{done}");
            }
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
        let mut ports = Ports::default();
        let grpc = ports.bind("gRPC", "port", &config.grpc).await;
        let healthz = Listen::everywhere(config.healthz_port);
        let parts = ["security-provider", "scheduler-server"];
        let monitoring = Monitoring::bind(&mut ports, &healthz, config.metrics.as_ref(), &parts).await;
        let is_embedded = config.store == Store::Embedded;
        let etcd_api = match is_embedded {
            true => {
                ports
                    .bind("etcd client", "etcd-client-port", &config.etcd_api)
                    .await
            }
            false => None,
        };
        let (grpc, mut monitoring) = ports.all(grpc.zip(monitoring))?;
        let loaded = monitoring.part(match config.store {
            Store::Embedded | Store::Cluster(_) => "scheduler-etcd-embed",
            Store::Etcd(_) => "scheduler-etcd-external",
            Store::Postgres(_) => "scheduler-postgres",
        });
        let announced = is_embedded.then(|| monitoring.part("scheduler-leadership"));
        let address = broadcast(&config, grpc.address(), env("DAPR_HOST_IP").as_deref())?;
        let identity = match &config.tls {
            None => None,
            Some(tls) => {
                let files = match &config.store {
                    Store::Cluster(cluster) => cluster.identity.clone(),
                    _ => None,
                };
                Some(obtain_into(tls, APP_ID, &config.namespace, env, &drain, files).await?)
            }
        };
        let opened = Opened::open(&config, &address).await?;

        let metrics = Arc::new(Metrics::default());
        let namespaces = namespaces(&config, &opened.storage, &mut monitoring).await?;
        let (triggers, driver) = Triggers::new(
            Arc::clone(&opened.storage),
            opened.changes,
            Group {
                own: address.clone(),
                hosts: opened.hosts.clone(),
            },
            Arc::clone(&metrics),
            triggers::limits(config.workers),
        );
        let stop = drain.child_token();
        let service = Service {
            storage: Arc::clone(&opened.storage),
            triggers,
            metrics: Arc::clone(&metrics),
            hosts: opened.hosts,
            over: CancellationToken::new(),
            streams: TaskTracker::new(),
            payloads: Payloads::part(PAYLOADS_PART),
        };
        tracing::info!(target: LOG, "jobs are stored in {}", opened.at);
        Ok(Self {
            grpc,
            monitoring,
            embedded: opened.embedded.zip(etcd_api),
            identity,
            storage: opened.storage,
            child: opened.child,
            id: config.id,
            address,
            service,
            driver,
            namespaces,
            loaded,
            announced,
            metrics,
            stop,
        })
    }

    /// Addresses of the servers.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            grpc: self.grpc.address(),
            healthz: self.monitoring.healthz(),
            metrics: self.monitoring.metrics(),
            etcd_api: self.embedded.as_ref().map(|(_, server)| server.address()),
            broadcast: self.address.clone(),
        }
    }

    /// Serves until stopped, then lets open calls finish and stores the last answers. Ends early only if a
    /// part fails.
    ///
    /// # Errors
    /// If it ended early.
    pub async fn run(self) -> Result<(), SchedulerError> {
        let stop = self.stop;
        let mut tasks = JoinSet::new();
        tracing::info!(target: "dapr.scheduler.server", "Running gRPC server on {}", self.grpc.address());
        let (identity, renewal) = self.identity.unzip();
        let anchors = identity.as_ref().map(|identity| identity.anchors().subscribe());
        if let Some(renewal) = renewal {
            tasks.spawn(fine(renewal.run(stop.clone())));
        }
        let over = self.service.over.clone();
        let (streams, token) = (self.service.streams.clone(), stop.clone());
        tasks.spawn(async move {
            token.cancelled().await;
            streams.close();
            streams.wait().await;
            Ok(())
        });
        let service = size::ExplainSize {
            service: SchedulerServer::new(self.service).max_decoding_message_size(MAX_REQUEST),
            limit: MAX_REQUEST,
        };
        tasks.spawn(fine(grpc::serve(
            self.grpc,
            GRPC,
            identity,
            service,
            stop.clone(),
        )));
        if let Some((store, server)) = self.embedded {
            let api = KvServer::new(EtcdApi::new(Arc::clone(&store))).max_decoding_message_size(MAX_REQUEST);
            let limits = ServerLimits {
                connections: outrigger_accept::ENDPOINT_LIMITS,
                ..GRPC
            };
            tasks.spawn(fine(grpc::serve(server, limits, None, api, stop.clone())));
            let (id, address, announced) = (self.id, self.address, self.announced);
            let token = stop.clone();
            tasks.spawn(async move {
                match etcd_api::announce(&store, &id, &address).await {
                    Err(error @ StorageError::Full(_)) => {
                        tracing::warn!(target: LOG, "cannot announce this scheduler to clients of etcd's API: {error}");
                    }
                    announced => announced?,
                }
                if let Some(announced) = announced {
                    announced.set(true);
                }
                token.cancelled().await;
                Ok(())
            });
        }
        let (mut child, defragment) = self.child.unzip();
        if let Some(defragment) = defragment {
            tasks.spawn(fine(defragment.run(defragment::Pace::USUAL, stop.clone())));
        }
        if let Some(child) = &mut child {
            if let Some((trust, anchors)) = child.trust().zip(anchors) {
                tasks.spawn(fine(trust.follow(anchors, Pace::USUAL, stop.clone())));
            }
            let (ended, token) = (child.ended(), stop.clone());
            tasks.spawn(async move {
                token
                    .run_until_cancelled(ended)
                    .await
                    .map_or(Ok(()), |error| Err(error.into()))
            });
        }
        if let Some((namespaces, ready)) = self.namespaces {
            tasks.spawn(fine(namespaces.run(ready, stop.clone())));
        }
        let (driver, loaded, token) = (self.driver, self.loaded, stop.clone());
        tasks.spawn(async move { Ok(driver.run(loaded, token, over).await?) });

        let metrics = self.metrics;
        let render = move || metrics.render();
        let outcome = self.monitoring.supervise(tasks, &stop, render).await;
        if tokio::time::timeout(CLOSE_TIMEOUT, self.storage.close())
            .await
            .is_err()
        {
            tracing::warn!(
                target: LOG,
                "the store did not close in time: recent triggers may be repeated"
            );
        }
        if let Some(child) = child {
            // After the store is closed, because etcd is the store.
            let ended = tokio::task::spawn_blocking(|| child.stop()).await;
            ended.map_err(outrigger_controlplane::TaskFailed::from)?;
        }
        outcome
    }
}

/// Starts the watch of namespaces, in Kubernetes only.
async fn namespaces(
    config: &Config,
    storage: &Arc<dyn Storage>,
    monitoring: &mut Monitoring,
) -> Result<Option<(Namespaces, Part)>, SchedulerError> {
    let Some(cluster) = &config.kubernetes else {
        return Ok(None);
    };
    let client = Client::new(cluster.kubeconfig.as_deref(), AGENT).await?;
    let namespaces = Namespaces::new(client, Arc::clone(storage));
    Ok(Some((namespaces, monitoring.part("scheduler-controller"))))
}

/// The `host:port` announced to sidecars.
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
