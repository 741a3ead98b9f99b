//! Reloads the authority when its files change.

use std::{pin::pin, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use outrigger_controlplane::chain;
use tokio_util::sync::CancellationToken;

use crate::{
    authority::Authority, cluster::Source, metrics::Metrics, oidc::OidcTls, own_certificate::OwnCertificate,
    watch::FolderWatch,
};

const LOG: &str = "dapr.sentry";

/// Delay between the first change and the reload, because files are replaced one by one.
const SETTLE: Duration = Duration::from_secs(2);

/// Maximum number of consecutive rotation steps: one step and its confirmation.
const MAX_STEPS: usize = 4;

/// Replaces the authority in use.
#[derive(Debug)]
pub(crate) struct Reloader {
    pub source: Source,
    pub authority: Arc<ArcSwap<Authority>>,
    pub own: Arc<OwnCertificate>,
    pub oidc: Option<Arc<OidcTls>>,
    pub metrics: Arc<Metrics>,
    /// Interval of reloads without a change, for steps of the rotation and writes of other replicas.
    pub poll_interval: Duration,
}

impl Reloader {
    /// Reloads on every change and periodically, until stopped.
    pub(crate) async fn run(self, mut watch: FolderWatch, drain: CancellationToken) {
        loop {
            // Kept across timer ticks, so that no change is lost.
            let mut settled = pin!(async {
                watch.changed().await;
                tokio::time::sleep(SETTLE).await;
            });
            loop {
                self.reload_authority().await;
                tokio::select! {
                    () = drain.cancelled() => return,
                    () = &mut settled => break,
                    () = tokio::time::sleep(self.poll_interval) => {}
                }
            }
            tracing::warn!(target: LOG, "Issuer credentials changed; reloading");
            self.metrics.issuer_changed();
            if let Some(oidc) = &self.oidc
                && let Err(error) = oidc.load()
            {
                tracing::error!(target: LOG, "keeping the TLS certificate of the OIDC server: {error}");
            }
        }
    }

    async fn reload_authority(&self) {
        for _ in 0..MAX_STEPS {
            let in_use = self.authority.load_full();
            let (authority, written) = match self.source.reload(&in_use).await {
                Ok(reloaded) => reloaded,
                Err(error) => return log_kept_authority(&chain(&error)),
            };
            self.put(&in_use, authority);
            if !written {
                return;
            }
        }
    }

    /// Replaces the authority in use.
    fn put(&self, in_use: &Authority, authority: Authority) {
        self.metrics.rotation(authority.rotation);
        if authority.files == in_use.files {
            return;
        }
        self.metrics
            .issuer_expires(authority.x509.not_after().unix_timestamp());
        self.authority.store(Arc::new(authority));
        match self.own.renew() {
            Ok(()) => tracing::info!(target: LOG, "CA certificate key pair ready"),
            Err(error) => tracing::error!(
                target: LOG,
                "keeping the certificate of the gRPC server: {}", chain(&error)
            ),
        }
    }
}

fn log_kept_authority(reason: &str) {
    tracing::error!(target: LOG, "keeping the CA certificates and keys in use: {reason}");
}
