//! Which replica leads: elected by the replicas themselves, or by a Lease in the API of a cluster. Either way a leader
//! leads no more before another may lead.

mod lease;
mod raft;

use outrigger_accept::{BindError, Server};
use outrigger_identity::Identity;
use outrigger_kube::{ApiError, ConnectError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Electing, Replica};
use lease::LeaseElection;
pub(crate) use outrigger_kube::Leads;
use raft::RaftElection;

/// The election cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// Where this replica should listen.
    #[error("{0}; see --initial-cluster and --id")]
    Bind(#[from] BindError),
    /// Two replicas cannot be told apart.
    #[error("--initial-cluster: the ids {0:?} and {1:?} have the same hash: rename one of them")]
    SameHash(String, String),
    /// Raft has stopped.
    #[error("the election of the leader failed: {0}")]
    Raft(String),
    /// There is no client of the API.
    #[error("--leader-election lease: {0}")]
    Cluster(#[from] ConnectError),
    /// The lease cannot be read.
    #[error(
        "--leader-election lease: cannot use the lease {lease} in the namespace {namespace} (NAMESPACE): {cause}"
    )]
    Lease {
        /// Its name.
        lease: &'static str,
        /// Namespace of this replica.
        namespace: String,
        /// What the cluster's API answered.
        cause: ApiError,
    },
}

/// What an election needs before it begins.
pub(crate) enum Prepared {
    /// Where the other replicas reach this one, and all of them.
    Raft(Server, Vec<Replica>),
    /// The lease, which can be reached.
    Lease(Box<LeaseElection>),
}

/// A replica's part in elections.
pub(crate) enum Election {
    Raft(Box<RaftElection>),
    Lease(Box<LeaseElection>),
}

impl Prepared {
    /// Binds the address for the other replicas, or asks for the lease.
    ///
    /// # Errors
    /// When neither an address nor the lease can be had.
    pub(crate) async fn new(config: &Config) -> Result<Self, ElectionError> {
        match &config.electing {
            Electing::Raft(cluster) => {
                let server = raft::bind(&config.id, cluster).await?;
                Ok(Self::Raft(server, cluster.clone()))
            }
            Electing::Lease { kubeconfig } => {
                let lease = LeaseElection::new(kubeconfig.as_deref(), &config.namespace, &config.id);
                Ok(Self::Lease(Box::new(lease.await?)))
            }
        }
    }

    /// Where the other replicas reach this one, if they have to.
    pub(crate) fn address(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Raft(server, _) => Some(server.address()),
            Self::Lease(_) => None,
        }
    }

    /// Takes part from now on.
    ///
    /// # Errors
    /// When the group of replicas cannot be formed.
    pub(crate) async fn start(self, id: &str, identity: Option<Identity>) -> Result<Election, ElectionError> {
        match self {
            Self::Raft(server, cluster) => {
                let election = RaftElection::start(id, &cluster, server, identity);
                Ok(Election::Raft(Box::new(election.await?)))
            }
            Self::Lease(election) => Ok(Election::Lease(election)),
        }
    }
}

impl Election {
    /// Whether this replica leads.
    pub(crate) fn leads(&self) -> watch::Receiver<Leads> {
        match self {
            Self::Raft(election) => election.leads(),
            Self::Lease(election) => election.leads(),
        }
    }

    /// Follows the election until `stop`.
    ///
    /// # Errors
    /// When it cannot go on.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), ElectionError> {
        match self {
            Self::Raft(election) => election.run(stop).await,
            Self::Lease(election) => {
                election.run(stop).await;
                Ok(())
            }
        }
    }
}
