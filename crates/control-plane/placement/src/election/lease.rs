//! Election by a Lease of the Kubernetes API: its holder leads.

use std::path::Path;
use std::time::Duration;

use outrigger_kube::{ApiError, Client, Leadership, Pace};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ElectionError;

const LOG: &str = "dapr.placement";
/// User agent for the API.
const AGENT: &str = concat!("outrigger-placement/", env!("CARGO_PKG_VERSION"));
/// Name of the lease.
const LEASE: &str = "placement.dapr.io";
/// How long to retry the API at startup, and the pause between attempts.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// A replica's part in the election.
pub(crate) struct LeaseElection(outrigger_kube::Election);

impl LeaseElection {
    /// Joins the election in `namespace` as replica `id`, after reading the lease once.
    ///
    /// # Errors
    /// If the lease cannot be read.
    pub(super) async fn new(
        kubeconfig: Option<&Path>,
        namespace: &str,
        id: &str,
    ) -> Result<Self, ElectionError> {
        let client = Client::new(kubeconfig, AGENT).await?;
        // Unique per process: a restarted replica's predecessor may still be running.
        let identity = format!("{id}_{}", uuid::Uuid::new_v4());
        let mut election = outrigger_kube::Election::new(client, namespace, LEASE, identity, Pace::FAST);
        let begun = Instant::now();
        loop {
            match election.check().await {
                Ok(()) => return Ok(Self(election)),
                Err(cause) if is_final(&cause) || begun.elapsed() >= START_TIMEOUT => {
                    return Err(ElectionError::Lease {
                        lease: LEASE,
                        namespace: namespace.to_owned(),
                        cause,
                    });
                }
                Err(error) => {
                    tracing::warn!(target: LOG, "cannot read the lease {LEASE}: {error}; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    pub(super) fn leads(&self) -> Leadership {
        self.0.leadership()
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        self.0.run(stop).await;
    }
}

/// Whether retrying is useless.
fn is_final(error: &ApiError) -> bool {
    matches!(error, ApiError::Refused { status, .. } if status.is_client_error() && *status != http::StatusCode::TOO_MANY_REQUESTS)
}
