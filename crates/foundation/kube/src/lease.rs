//! Which replica leads: whoever holds a Lease (`coordination.k8s.io/v1`), by the rules that Kubernetes' own programs
//! follow, so that replicas of either make can share one.
//!
//! The holder writes, and the others watch: nobody asks for what has not changed. How often it writes decides how soon it
//! is followed when it dies without a word: [`Pace`]. One that is told to stop gives the lease back, and is followed at
//! once.

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
    /// This candidate does not lead.
    #[default]
    No,
    /// It does, and as far as it knows nobody did before.
    First,
    /// It does, after it did before or another did.
    Next,
}

impl Leads {
    /// Whether it does.
    pub fn is_leading(self) -> bool {
        self != Self::No
    }
}

/// Whether this process leads.
pub type Leadership = watch::Receiver<Leads>;

/// Takes part in an election.
#[derive(Debug)]
pub struct Election(Candidate<ApiLease>);

impl Election {
    /// An election for the lease `name`; `identity` is this replica's alone.
    pub fn new(client: Client, namespace: &str, name: &str, identity: String, pace: Pace) -> Self {
        let lease = ApiLease {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Self(Candidate::new(lease, namespace, name, identity, pace))
    }

    /// Asks for the lease, which need not exist, before the election begins: whether it can be reached.
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

    /// Takes part until told to stop, then gives the lease back.
    pub async fn run(self, stop: CancellationToken) {
        self.0.run(stop).await;
    }
}
