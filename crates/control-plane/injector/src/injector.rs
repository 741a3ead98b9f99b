//! Wires the parts: builds an injector from a configuration and runs it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use http::Request;
use outrigger_accept::{Limits, Ports, Server};
use outrigger_controlplane::health::Part;
use outrigger_controlplane::{Monitoring, TlsConfig, fine, obtain, webhook};
use outrigger_identity::{Identity, Mode, Renewal};
use outrigger_kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, OLD_ACCOUNTS};
use crate::error::InjectorError;
use crate::metrics::Metrics;
use crate::mtls::Mtls;
use crate::registration;
use crate::review::{Lists, Reviewer};

const LOG: &str = "dapr.injector";
/// App id in the injector's SPIFFE id.
const APP_ID: &str = "dapr-injector";
/// User agent for the Kubernetes API.
const AGENT: &str = concat!("outrigger-injector/", env!("CARGO_PKG_VERSION"));
/// Connection limits of the webhook; API servers keep a few connections each.
const CONNECTIONS: Limits = Limits {
    connections: 1024,
    per_source: 512,
};
/// Maximum size of a review in bytes: the API server's maximum for a pod.
const MAX_REVIEW: usize = 8 << 20;
/// Maximum bytes of all reviews in flight.
const MAX_REVIEWS: usize = 64 << 20;
/// Path of the injector's token. If it exists, sidecars get a token too.
const TOKEN: &str = "/var/run/secrets/dapr.io/sentrytoken/token";

/// An injector with its ports bound, ready to run.
pub struct Injector {
    webhook: Server,
    monitoring: Monitoring,
    identity: Identity,
    renewal: Renewal,
    client: Client,
    reviewer: Reviewer,
    /// Ready once the trust anchors are registered.
    registered: Part,
    drain: CancellationToken,
}

/// Addresses of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the admission webhook.
    pub webhook: SocketAddr,
    /// Address of the `/healthz` server.
    pub healthz: SocketAddr,
    /// Address of the metrics server, if enabled.
    pub metrics: Option<SocketAddr>,
}

impl Injector {
    /// Obtains the identity, and binds every port. `env` reads the environment.
    ///
    /// # Errors
    /// [`InjectorError`].
    pub async fn build(
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, InjectorError> {
        let client = Client::new(config.kubeconfig.as_deref(), AGENT).await?;
        Self::with_client(client, config, env, drain).await
    }

    /// Like [`Injector::build`], with a given client of the cluster.
    ///
    /// # Errors
    /// [`InjectorError`].
    pub async fn with_client(
        client: Client,
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, InjectorError> {
        let mut ports = Ports::default();
        let webhook = ports.bind("webhook", "port", &config.webhook).await;
        let parts = ["security-provider", "injector-service"];
        let monitoring = Monitoring::bind(&mut ports, &config.healthz, config.metrics.as_ref(), &parts).await;
        let (webhook, mut monitoring) = ports.all(webhook.zip(monitoring))?;
        let registered = monitoring.part("injector-webhook-configuration");
        if env(OLD_ACCOUNTS).is_some_and(|list| !list.is_empty()) {
            tracing::warn!(
                target: LOG,
                "{OLD_ACCOUNTS} is deprecated: move its patterns to ALLOWED_SERVICE_ACCOUNTS"
            );
        }
        let tls = TlsConfig {
            trust_domain: config.trust_domain,
            anchors: Some(config.anchors),
            sentry_address: config.sentry_address,
            mode: Mode::Kubernetes,
        };
        let (identity, renewal) = obtain(&tls, APP_ID, &config.settings.namespace, env, &drain).await?;
        let mtls = Mtls::new(client.clone(), &config.settings.namespace, &config.configuration);
        let reviewer = Reviewer {
            settings: Arc::new(config.settings),
            callers: config.callers,
            anchors: identity.anchors().clone(),
            token: tokio::fs::try_exists(Path::new(TOKEN)).await.unwrap_or(false),
            client: client.clone(),
            mtls,
            metrics: Arc::default(),
            lists: Lists::default(),
        };
        Ok(Self {
            webhook,
            monitoring,
            identity,
            renewal,
            client,
            reviewer,
            registered,
            drain,
        })
    }

    /// Addresses of the servers.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            webhook: self.webhook.address(),
            healthz: self.monitoring.healthz(),
            metrics: self.monitoring.metrics(),
        }
    }

    /// Serves until stopped, then lets open reviews finish. Ends early only if a part fails.
    ///
    /// # Errors
    /// If it ended early.
    pub async fn run(self) -> Result<(), InjectorError> {
        let stop = self.drain.child_token();
        let mut tasks = JoinSet::new();
        tracing::info!(target: LOG, "serving the webhook on {}", self.webhook.address());
        let metrics: Arc<Metrics> = Arc::clone(&self.reviewer.metrics);
        tasks.spawn(fine(self.renewal.run(stop.clone())));
        let anchors = self.identity.anchors().clone();
        tasks.spawn(fine(registration::maintain(
            self.client,
            anchors,
            self.registered,
            stop.clone(),
        )));
        let (reviewer, identity, token) = (Arc::new(self.reviewer), self.identity, stop.clone());
        let limits = webhook::ServerLimits {
            connections: CONNECTIONS,
            body: MAX_REVIEW,
            bodies: MAX_REVIEWS,
        };
        tasks.spawn(fine(async move {
            let handle = move |request: Request<_>| {
                let reviewer = Arc::clone(&reviewer);
                async move { reviewer.respond(request).await }
            };
            webhook::serve(self.webhook, limits, &identity, token, handle).await;
        }));
        self.monitoring
            .supervise(tasks, &stop, move || metrics.render())
            .await
    }
}
