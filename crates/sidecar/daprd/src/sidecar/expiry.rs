//! The expiry of the sidecar's certificate: exported as a metric, logged, and reported by the outbound health
//! check.

use std::sync::Arc;

use outrigger_identity::expiry::{last_quarter, reached, valid_until};
use outrigger_identity::{Identity, Svid};
use outrigger_runtime::life::Readiness;
use outrigger_telemetry::metrics::Metrics;
use tokio_util::sync::CancellationToken;

use super::context::SidecarContext;
use crate::config::Config;

const LOG: &str = "dapr.runtime.security";

/// Watches the certificate of a sidecar.
pub(super) struct CertificateWatch {
    identity: Identity,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    /// Address of the CA, `host:port`.
    sentry: String,
}

impl CertificateWatch {
    pub(super) fn new(
        identity: Identity,
        config: &Config,
        context: &SidecarContext,
        readiness: &Readiness,
    ) -> Self {
        Self {
            identity,
            metrics: Arc::clone(context.metrics.all()),
            readiness: readiness.clone(),
            sentry: config.security.sentry_address.clone(),
        }
    }

    /// Runs until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut current = self.identity.subscribe();
        loop {
            let svid = Arc::clone(&current.borrow_and_update());
            let renewed = stop.run_until_cancelled(async {
                tokio::select! {
                    renewed = current.changed() => renewed.is_ok(),
                    () = self.watch_expiry(&svid) => false,
                }
            });
            if renewed.await != Some(true) {
                return;
            }
        }
    }

    /// Exports the expiry of a certificate, and logs when it is near and when it is reached. Never returns.
    async fn watch_expiry(&self, svid: &Svid) {
        // An issuer may expire before the certificates it signed.
        let end = valid_until(svid.chain()).unwrap_or_else(|_| svid.not_after());
        self.metrics.runtime.certificate_expires(end.as_second());
        self.readiness.outbound_possible();
        reached(last_quarter(end)).await;
        tracing::warn!(
            target: LOG,
            "the certificate of this sidecar expires at {end} and has not been renewed yet; calls to and from other \
             sidecars will fail then. Check that sentry at {} is reachable",
            self.sentry
        );
        reached(end).await;
        let reason = format!(
            "the certificate of this sidecar expired at {end} and could not be renewed by sentry at {}; other \
             sidecars refuse it. See the log for the renewal error",
            self.sentry
        );
        tracing::error!(target: LOG, "{reason}");
        self.readiness.outbound_impossible(reason);
        std::future::pending().await
    }
}
