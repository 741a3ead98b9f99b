//! Leader election by a Lease (`coordination.k8s.io/v1`), compatible with client-go's leader election, so
//! that replicas of both implementations can share a lease.
//!
//! The holder renews the lease and the others watch it; no replica polls. The renewal interval decides how
//! soon a crashed holder is replaced: [`Pace`]. A holder that shuts down releases the lease and is replaced
//! at once.

mod candidate;
mod pace;
mod store;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::error::ApiError;
use candidate::Candidate;
pub use pace::Pace;
use store::ApiLease;

/// Whether a replica leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Leads {
    /// This replica does not lead.
    #[default]
    No,
    /// It leads, and is the first known leader.
    First,
    /// It leads, after an earlier leader, which may have been itself.
    Next,
}

impl Leads {
    /// Whether this replica leads.
    pub fn is_leading(self) -> bool {
        self != Self::No
    }
}

/// Whether this process leads, over time.
pub type Leadership = watch::Receiver<Leads>;

/// A participant in an election.
#[derive(Debug)]
pub struct Election(Candidate<ApiLease>);

impl Election {
    /// An election for the lease `name`; `identity` must be unique to this replica.
    pub fn new(client: Client, namespace: &str, name: &str, identity: String, pace: Pace) -> Self {
        let lease = ApiLease {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Self(Candidate::new(lease, namespace, name, identity, pace))
    }

    /// Reads the lease, which need not exist, to check access before the election starts.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn check(&mut self) -> Result<(), ApiError> {
        self.0.read().await.map(drop)
    }

    /// Whether this process leads.
    pub fn leadership(&self) -> Leadership {
        self.0.leadership()
    }

    /// Participates until cancelled, then releases the lease.
    pub async fn run(self, stop: CancellationToken) {
        self.0.run(stop).await;
    }
}
