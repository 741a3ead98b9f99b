//! Wires the parts of sentry: builds it from a configuration and runs it.
//!
//! Dapr's sentry restarts its servers when the CA's files change. This one replaces the authority behind the
//! running servers: no connection is cut, no port is closed, and unusable material leaves the current
//! authority in use.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use outrigger_accept::{Limits, Listen, Ports, Server};
use outrigger_controlplane::{Monitoring, fine};
use outrigger_identity::{Mode, SpiffeId};
use outrigger_kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    authority::{Authority, AuthoritySource},
    cluster::{self, Source},
    config::Config,
    error::SentryError,
    expiry, grpc, material,
    metrics::Metrics,
    oidc::Oidc,
    own_certificate::OwnCertificate,
    reload::Reloader,
    rotation::Terms,
    service::CaService,
    settings::Settings,
    validator::{ControlPlane, JwksValidator, KubernetesValidator, Validators},
    watch::FolderWatch,
};

const LOG: &str = "dapr.sentry";

/// A certificate authority with its ports bound, ready to run.
#[derive(Debug)]
pub struct Sentry {
    grpc: Server,
    connections: Limits,
    monitoring: Monitoring,
    oidc: Option<Oidc>,
    service: CaService,
    own: Arc<OwnCertificate>,
    validators: Arc<Validators>,
    reloader: Reloader,
    watch: FolderWatch,
    metrics: Arc<Metrics>,
    drain: CancellationToken,
}

/// Addresses of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the gRPC server.
    pub grpc: SocketAddr,
    /// Address of the `/healthz` server.
    pub healthz: SocketAddr,
    /// Address of the metrics server, if enabled.
    pub metrics: Option<SocketAddr>,
    /// Address of the OIDC server, if enabled.
    pub oidc: Option<SocketAddr>,
}

impl Sentry {
    /// Loads or generates the CA, loads the validator's key set, and binds every port. `env` resolves
    /// environment variables in the Configuration file. `drain` ends [`Sentry::run`].
    pub async fn build(
        config: Config,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        drain: CancellationToken,
    ) -> Result<Self, SentryError> {
        let (client, settings) = cluster_and_settings(&config, Arc::new(env)).await?;
        let id = SpiffeId::sentry(&config.trust_domain, &config.namespace).map_err(|cause| {
            SentryError::Namespace {
                namespace: config.namespace.clone(),
                cause,
            }
        })?;
        let metrics = Arc::new(Metrics::default());
        let source = source(&config, &client, &id, &settings);
        let authority = load(&source, &metrics).await?;

        let validators = validators(&settings, &id, config.control_plane, client.as_ref()).await?;
        let validators = Arc::new(validators);

        let mut ports = Ports::default();
        let grpc = ports.bind("gRPC", "port", &config.grpc).await;
        let healthz = Listen::everywhere(config.healthz_port);
        let metrics_listen = config.metrics_port.map(Listen::everywhere);
        let parts = ["sentry-server", "security-provider"];
        let monitoring = Monitoring::bind(&mut ports, &healthz, metrics_listen.as_ref(), &parts).await;
        // The OIDC server publishes token keys, so it requires tokens.
        let oidc = match (&config.oidc, &config.jwt) {
            (Some(oidc), Some(_)) => ports.bind("OIDC", "oidc-server-listen-port", &oidc.listen).await,
            _ => None,
        };
        let (grpc, mut monitoring) = ports.all(grpc.zip(monitoring))?;
        if settings.jwks.is_some() {
            monitoring.ready_while_running("sentry-jwks-validator");
        }
        if client.is_some() {
            monitoring.ready_while_running("sentry-kubernetes-validator");
        }
        let oidc = oidc.and_then(|server| serve_oidc(server, &config, &authority, &mut monitoring));

        let (ttl, skew) = (span(settings.workload_ttl), span(settings.skew));
        let own = OwnCertificate::issue(id.clone(), authority.clone(), ttl, skew, metrics.clone())?;
        let own = Arc::new(own);
        let service = CaService {
            authority: authority.clone(),
            validators: validators.clone(),
            metrics: metrics.clone(),
            domain: match &client {
                None => id.trust_domain().to_owned(),
                Some(_) => outrigger_kube::cluster_domain(),
            },
            sentry: id,
            ttl,
            skew,
        };
        let reloader = Reloader {
            source,
            authority,
            own: own.clone(),
            oidc: oidc.as_ref().and_then(|oidc| oidc.tls.clone()),
            metrics: metrics.clone(),
            poll_interval: Terms::new(settings.workload_ttl, settings.skew).poll_interval(),
        };
        Ok(Self {
            watch: FolderWatch::new(watched(&config))?,
            grpc,
            connections: config.connections,
            monitoring,
            oidc,
            service,
            own,
            validators,
            reloader,
            metrics,
            drain,
        })
    }

    /// Addresses of the servers.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            grpc: self.grpc.address(),
            healthz: self.monitoring.healthz(),
            metrics: self.monitoring.metrics(),
            oidc: self.oidc.as_ref().map(|oidc| oidc.server.address()),
        }
    }

    /// Serves until `drain` is cancelled, then lets open calls finish. Ends early only if a part fails.
    pub async fn run(self) -> Result<(), SentryError> {
        // All parts stop together: on `drain`, or when one of them ends.
        let stop = self.drain.child_token();
        let mut tasks = JoinSet::new();
        tracing::info!(target: "dapr.sentry.server", "Running gRPC server on {}", self.grpc.address());
        let (current, token) = (self.own.current(), stop.clone());
        tasks.spawn(async move {
            let served = grpc::serve(self.grpc, current, self.service, self.connections, token).await;
            served.map_err(|error| SentryError::OwnCertificate(error.into()))
        });
        tasks.spawn(fine(expiry::watch(self.reloader.authority.clone(), stop.clone())));
        match self.oidc {
            None => tracing::info!(target: LOG, "OIDC HTTP server is disabled"),
            Some(oidc) => {
                let token = stop.clone();
                tasks.spawn(async move { oidc.serve(token).await.map_err(SentryError::OidcTls) });
            }
        }
        let (own, token) = (self.own, stop.clone());
        tasks.spawn(fine(async move { own.keep_fresh(token).await }));
        if let Some(jwks) = self.validators.jwks().cloned() {
            let token = stop.clone();
            tasks.spawn(async move { Ok(jwks.refresh(token).await?) });
        }
        tasks.spawn(fine(self.reloader.run(self.watch, stop.clone())));

        let metrics = self.metrics;
        self.monitoring
            .supervise(tasks, &stop, move || metrics.render())
            .await
    }
}

async fn load(source: &Source, metrics: &Metrics) -> Result<Arc<ArcSwap<Authority>>, SentryError> {
    let (authority, new) = source.load_or_generate().await?;
    if new {
        metrics.issuer_changed();
    }
    metrics.issuer_expires(authority.x509.not_after().unix_timestamp());
    metrics.rotation(authority.rotation);
    tracing::info!(target: LOG, "CA certificate key pair ready");
    tracing::info!(target: LOG, "rotation of the CA: {}", authority.rotation);
    Ok(Arc::new(ArcSwap::from_pointee(authority)))
}

async fn validators(
    settings: &Settings,
    sentry: &SpiffeId,
    control_plane: ControlPlane,
    client: Option<&Client>,
) -> Result<Validators, SentryError> {
    let jwks = match &settings.jwks {
        None => None,
        Some(options) => {
            tracing::info!(target: LOG, "Using validator 'jwks' for the audience {sentry}");
            Some(JwksValidator::new(options, sentry.clone()).await?)
        }
    };
    let insecure = jwks.is_none() && client.is_none();
    let validators = Validators::new(jwks, sentry.namespace(), control_plane);
    Ok(match client {
        Some(client) => {
            tracing::info!(target: LOG, "Using validator 'kubernetes'");
            validators.with_kubernetes(KubernetesValidator::new(client.clone(), sentry.clone()))
        }
        None => {
            if insecure {
                tracing::info!(target: LOG, "Using validator 'insecure'");
            }
            validators
        }
    })
}

/// The cluster client, if any, and the settings of the Configuration.
async fn cluster_and_settings(
    config: &Config,
    env: outrigger_identity::Env,
) -> Result<(Option<Client>, Settings), SentryError> {
    let Some(cluster) = &config.cluster else {
        return Ok((None, Settings::load(&config.configuration, |name| env(name))?));
    };
    outrigger_identity::refuse_root(Mode::Kubernetes, &env)?;
    let client = cluster::client(cluster).await?;
    let settings = cluster::settings(&client, config).await?;
    Ok((Some(client), settings))
}

/// The source of the authority.
fn source(config: &Config, client: &Option<Client>, id: &SpiffeId, settings: &Settings) -> Source {
    let source = AuthoritySource::new(config, id.clone(), settings);
    match client {
        None => Source::Files(source),
        Some(client) => Source::cluster(client.clone(), &config.namespace, source),
    }
}

/// Binds the OIDC server, if it and tokens are enabled.
fn serve_oidc(
    server: Server,
    config: &Config,
    authority: &Arc<ArcSwap<Authority>>,
    monitoring: &mut Monitoring,
) -> Option<Oidc> {
    let (oidc, jwt) = config.oidc.as_ref().zip(config.jwt.as_ref())?;
    let ready = monitoring.part("oidc-server");
    Some(Oidc::new(
        server,
        oidc,
        jwt.issuer.clone(),
        authority.clone(),
        ready,
    ))
}

/// The folders to watch.
fn watched(config: &Config) -> Vec<PathBuf> {
    let paths = &config.paths;
    let mut files = vec![&paths.root, &paths.issuer, &paths.issuer_key];
    if config.jwt.is_some() {
        files.extend([&paths.jwt_key, &paths.jwks]);
        if let Some(tls) = config.oidc.as_ref().and_then(|oidc| oidc.tls.as_ref()) {
            files.extend([&tls.certificate, &tls.key]);
        }
    }
    files.into_iter().map(|file| material::folder(file)).collect()
}

fn span(duration: Duration) -> time::Duration {
    time::Duration::try_from(duration).unwrap_or(time::Duration::MAX)
}
