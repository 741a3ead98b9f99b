//! Replacing the authority when its files change.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use outrigger_controlplane::chain;
use tokio_util::sync::CancellationToken;

use crate::{
    authority::Authority, cluster::Source, metrics::Metrics, oidc::OidcTls, own_certificate::OwnCertificate,
    watch::FolderWatch,
};

const LOG: &str = "dapr.sentry";

/// Files are rarely replaced all at once: this long after the first change they are read.
const SETTLE: Duration = Duration::from_secs(2);

/// Watches the files and swaps what is made of them.
#[derive(Debug)]
pub(crate) struct Reloader {
    pub watch: FolderWatch,
    pub source: Source,
    pub authority: Arc<ArcSwap<Authority>>,
    pub own: Arc<OwnCertificate>,
    pub oidc: Option<Arc<OidcTls>>,
    pub metrics: Arc<Metrics>,
}

impl Reloader {
    /// Reloads on every change until told to stop.
    pub(crate) async fn run(mut self, drain: CancellationToken) {
        loop {
            let settled = async {
                self.watch.changed().await;
                tokio::time::sleep(SETTLE).await;
            };
            tokio::select! {
                () = drain.cancelled() => return,
                () = settled => {}
            }
            tracing::warn!(target: LOG, "Issuer credentials changed; reloading");
            self.metrics.issuer_changed();
            self.reload_authority().await;
            if let Some(oidc) = &self.oidc
                && let Err(error) = oidc.load()
            {
                tracing::error!(target: LOG, "Keeping the TLS certificate of the OIDC server: {error}");
            }
        }
    }

    async fn reload_authority(&self) {
        let in_use = self.authority.load_full();
        let authority = match self.source.reload(&in_use).await {
            Ok(authority) => authority,
            Err(error) => return keep(&chain(&error)),
        };
        self.metrics
            .issuer_expires(authority.x509.not_after().unix_timestamp());
        self.authority.store(Arc::new(authority));
        match self.own.renew() {
            Ok(()) => tracing::info!(target: LOG, "CA certificate key pair ready"),
            Err(error) => tracing::error!(
                target: LOG,
                "Keeping the certificate of the gRPC server: {}", chain(&error)
            ),
        }
    }
}

fn keep(reason: &str) {
    tracing::error!(target: LOG, "Keeping the CA certificates and keys in use: {reason}");
}
