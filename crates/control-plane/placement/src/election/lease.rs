//! By a Lease in the API of a cluster: whoever holds it leads.

use std::path::Path;
use std::time::Duration;

use outrigger_kube::{ApiError, Client, Leadership, Pace};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ElectionError;

const LOG: &str = "dapr.placement";
/// What placement calls itself to the API.
const AGENT: &str = concat!("outrigger-placement/", env!("CARGO_PKG_VERSION"));
/// The lease of the replica that leads.
const LEASE: &str = "placement.dapr.io";
/// How long the API is tried for at the start, and the pause between two attempts.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// A replica's part in the election.
pub(crate) struct LeaseElection(outrigger_kube::Election);

impl LeaseElection {
    /// The election of the replicas in `namespace`, of which this one is `id`. The lease can be read.
    ///
    /// # Errors
    /// When it cannot.
    pub(super) async fn new(
        kubeconfig: Option<&Path>,
        namespace: &str,
        id: &str,
    ) -> Result<Self, ElectionError> {
        let client = Client::new(kubeconfig, AGENT).await?;
        // A process that comes back is another: its predecessor may still run.
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

/// Whether it is of no use to ask again.
fn is_final(error: &ApiError) -> bool {
    matches!(error, ApiError::Refused { status, .. } if status.is_client_error() && *status != http::StatusCode::TOO_MANY_REQUESTS)
}
