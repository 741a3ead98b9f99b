//! Wires the parts: builds an operator from a configuration and runs it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use outrigger_accept::{ENDPOINT_LIMITS, Limits, Ports, Server};
use outrigger_controlplane::grpc::{self, ServerLimits};
use outrigger_controlplane::health::Part;
use outrigger_controlplane::{Monitoring, TlsConfig, fine, host_name, obtain, webhook};
use outrigger_identity::{Identity, Mode, Renewal};
use outrigger_kube::{Client, Election, Kind, Leads, Pace};
use outrigger_wire::operator::v1::operator_server::OperatorServer;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::copies::{Copies, Reflectors};
use crate::error::OperatorError;
use crate::metrics::Metrics;
use crate::secrets::Secrets;
use crate::service::Service;
use crate::services::Services;
use crate::watchdog::Watchdog;
use crate::{convert, definition};

const LOG: &str = "dapr.operator";
/// App id in the operator's SPIFFE id.
const APP_ID: &str = "dapr-operator";
/// User agent for the Kubernetes API.
const AGENT: &str = concat!("outrigger-operator/", env!("CARGO_PKG_VERSION"));
/// The leader's lease, shared with Dapr's operators.
const LEASE: &str = "operator.dapr.io";
/// Connection limits of the gRPC server; each sidecar has one connection.
const CONNECTIONS: Limits = Limits {
    connections: 16_384,
    per_source: 8_192,
};
/// Maximum number of concurrent calls per connection: a sidecar has a stream per kind plus other calls.
const MAX_STREAMS: u32 = 64;
/// Idle time before a sidecar is pinged. Until then a vanished sidecar occupies a slot, and nothing waits for
/// it.
const PING_AFTER: Duration = Duration::from_secs(60);
/// Timeout of a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Limits of the gRPC server.
const GRPC: ServerLimits = ServerLimits {
    connections: CONNECTIONS,
    ping_after: PING_AFTER,
    ping_timeout: PING_TIMEOUT,
    streams: MAX_STREAMS,
};
/// Maximum size of a request in bytes: a namespace and names.
const MAX_REQUEST: usize = 16 << 10;
/// Maximum size of a conversion review in bytes.
const MAX_REVIEW: usize = 64 << 20;
/// Maximum bytes of all reviews in flight.
const MAX_REVIEWS: usize = 256 << 20;
/// How long to retry reading the control plane's Configuration, and the pause between attempts.
const CONFIGURATION_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// An operator with its ports bound, ready to run.
pub struct Operator {
    grpc: Server,
    monitoring: Monitoring,
    webhook: Option<(Server, Part)>,
    identity: Identity,
    renewal: Renewal,
    client: Client,
    config: Config,
    reflectors: Reflectors,
    copies: Copies,
    /// Ready once the collections are listed.
    resources: Part,
    drain: CancellationToken,
}

/// Addresses of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the gRPC server for sidecars.
    pub grpc: SocketAddr,
    /// Address of the `/healthz` server.
    pub healthz: SocketAddr,
    /// Address of the metrics server, if enabled.
    pub metrics: Option<SocketAddr>,
    /// Address of the webhook, if enabled.
    pub webhook: Option<SocketAddr>,
}

impl Operator {
    /// Reads the control plane's Configuration, obtains the identity, and binds every port. `env` reads the
    /// environment.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn build(
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, OperatorError> {
        let client = Client::new(config.kubeconfig.as_deref(), AGENT).await?;
        Self::with_client(client, config, env, drain).await
    }

    /// Like [`Operator::build`], with a given client of the cluster.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub async fn with_client(
        client: Client,
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, OperatorError> {
        let mut ports = Ports::default();
        let grpc = ports.bind("gRPC", "port", &config.grpc).await;
        let parts = ["security-provider", "operator-api-server"];
        let monitoring = Monitoring::bind(&mut ports, &config.healthz, config.metrics.as_ref(), &parts).await;
        let webhook = match &config.webhook {
            None => None,
            Some(listen) => ports.bind("webhook", "webhook-server-port", listen).await,
        };
        let (grpc, mut monitoring) = ports.all(grpc.zip(monitoring))?;
        let resources = monitoring.part("operator-informers");
        let webhook = webhook.map(|server| (server, monitoring.part("operator-webhook")));
        let tls = control_plane(&client, &config).await?;
        let (identity, renewal) = obtain(&tls, APP_ID, &config.namespace, env, &drain).await?;
        let namespace = config.watch_namespace.as_deref();
        let (reflectors, copies) = Reflectors::new(&client, namespace, config.relist);
        Ok(Self {
            grpc,
            monitoring,
            webhook,
            identity,
            renewal,
            client,
            config,
            reflectors,
            copies,
            resources,
            drain,
        })
    }

    /// Addresses of the servers.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            grpc: self.grpc.address(),
            healthz: self.monitoring.healthz(),
            metrics: self.monitoring.metrics(),
            webhook: self.webhook.as_ref().map(|(server, _)| server.address()),
        }
    }

    /// Serves until stopped, then ends all streams. Ends early only if a part fails.
    ///
    /// # Errors
    /// If it ended early.
    pub async fn run(self) -> Result<(), OperatorError> {
        let stop = self.drain.child_token();
        let mut tasks = JoinSet::new();
        tracing::info!(target: LOG, "Running gRPC server on {}", self.grpc.address());
        let metrics = Arc::new(Metrics::default());
        for state in self.reflectors.states() {
            metrics.watches(&state);
        }
        tasks.spawn(fine(lead(
            self.client.clone(),
            &self.config,
            Arc::clone(&metrics),
            stop.clone(),
        )));
        tasks.spawn(fine(self.renewal.run(stop.clone())));
        tasks.spawn(fine(self.reflectors.run(self.resources, stop.clone())));
        if let Some((server, ready)) = self.webhook {
            let (client, namespace) = (self.client.clone(), self.config.namespace.clone());
            let anchors = self.identity.anchors().clone();
            tasks.spawn(fine(definition::maintain(
                client,
                namespace,
                anchors,
                ready,
                stop.clone(),
            )));
            let (identity, token) = (self.identity.clone(), stop.clone());
            tasks.spawn(fine(async move { conversions(server, &identity, token).await }));
        }
        let service = Service {
            copies: self.copies,
            secrets: Arc::new(Secrets::new(self.client.clone(), Arc::clone(&metrics))),
            metrics: Arc::clone(&metrics),
            client: self.client,
            drain: stop.clone(),
        };
        let service = OperatorServer::new(service).max_decoding_message_size(MAX_REQUEST);
        tasks.spawn(fine(grpc::serve(
            self.grpc,
            GRPC,
            Some(self.identity),
            service,
            stop.clone(),
        )));
        self.monitoring
            .supervise(tasks, &stop, move || metrics.render())
            .await
    }
}

async fn conversions(server: Server, identity: &Identity, stop: CancellationToken) {
    let limits = webhook::ServerLimits {
        connections: ENDPOINT_LIMITS,
        body: MAX_REVIEW,
        bodies: MAX_REVIEWS,
    };
    webhook::serve(server, limits, identity, stop, convert::respond).await;
}

/// The identity settings in the control plane's Configuration.
async fn control_plane(client: &Client, config: &Config) -> Result<TlsConfig, OperatorError> {
    let (namespace, name) = (&config.namespace, &config.configuration);
    let unusable = |cause: String| OperatorError::Configuration {
        namespace: namespace.clone(),
        name: name.clone(),
        cause,
    };
    let begun = tokio::time::Instant::now();
    let object: Value = loop {
        match client.get(Kind::CONFIGURATIONS, Some(namespace), name).await {
            Ok(object) => break object,
            Err(error) if begun.elapsed() >= CONFIGURATION_TIMEOUT => {
                return Err(unusable(error.to_string()));
            }
            Err(error) => {
                tracing::debug!(target: LOG, "Configuration {namespace}/{name}: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    };
    let text = |field: &str| object["spec"]["mtls"][field].as_str().unwrap_or_default();
    let trust_domain = text("controlPlaneTrustDomain");
    let sentry_address = match text("sentryAddress") {
        "" => format!("dapr-sentry.{namespace}.svc:443"),
        given => given.to_owned(),
    };
    Ok(TlsConfig {
        trust_domain: trust_domain
            .parse()
            .map_err(|error| unusable(format!("spec.mtls.controlPlaneTrustDomain: {error}")))?,
        anchors: Some(config.anchors.clone()),
        sentry_address,
        mode: Mode::Kubernetes,
    })
}

/// Runs the leader's work while this replica is the leader.
fn lead(
    client: Client,
    config: &Config,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let services = config.services.then(|| Services {
        client: client.clone(),
        metrics: Arc::clone(&metrics),
        namespace: config.watch_namespace.clone(),
        rollouts: config.rollouts,
    });
    let watchdog = config.watchdog.clone().map(|settings| Watchdog {
        client: client.clone(),
        metrics: Arc::clone(&metrics),
        settings,
        namespace: config.watch_namespace.clone(),
        control_plane: config.namespace.clone(),
    });
    let work = move |term: CancellationToken| {
        let (services, watchdog) = (services.clone(), watchdog.clone());
        let metrics = Arc::clone(&metrics);
        async move {
            metrics.lead(true);
            let services = async {
                if let Some(services) = services {
                    Box::pin(services.run(term.clone())).await;
                }
            };
            let watchdog = async {
                if let Some(watchdog) = watchdog {
                    watchdog.run(term.clone()).await;
                }
            };
            tokio::join!(services, watchdog);
            term.cancelled().await;
            metrics.lead(false);
        }
    };
    let (elects, namespace) = (config.elects, config.namespace.clone());
    async move {
        if !elects {
            return Box::pin(work(stop)).await;
        }
        let identity = format!("{}_{}", host_name(), uuid::Uuid::new_v4());
        let election = Election::new(client, &namespace, LEASE, identity, Pace::SLOW);
        let mut leads = election.leadership();
        let terms = async {
            while leads.wait_for(|leads| leads.is_leading()).await.is_ok() {
                let term = stop.child_token();
                let ended = async {
                    // The election ends with the process.
                    let _ = leads.wait_for(|leads| *leads == Leads::No).await;
                    term.cancel();
                };
                tokio::join!(work(term.clone()), ended);
            }
        };
        tokio::join!(election.run(stop.clone()), terms);
    }
}
