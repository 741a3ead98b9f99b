//! Leader election among replicas, by Raft or by a Lease of the Kubernetes API. In both cases a leader steps
//! down before another one can lead.

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

/// The election cannot start or has failed.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The Raft address cannot be bound.
    #[error("{0}; see --initial-cluster and --id")]
    Bind(#[from] BindError),
    /// Two replica ids have the same hash.
    #[error("--initial-cluster: the ids {0:?} and {1:?} have the same hash: rename one of them")]
    SameHash(String, String),
    /// Raft has stopped.
    #[error("the election of the leader failed: {0}")]
    Raft(String),
    /// The API cannot be reached.
    #[error("--leader-election lease: {0}")]
    Cluster(#[from] ConnectError),
    /// The lease cannot be read.
    #[error(
        "--leader-election lease: cannot use the lease {lease} in the namespace {namespace} (NAMESPACE): {cause}"
    )]
    Lease {
        /// Name of the lease.
        lease: &'static str,
        /// Namespace of this replica.
        namespace: String,
        /// The API's answer.
        cause: ApiError,
    },
}

/// A prepared election.
pub(crate) enum Prepared {
    /// The bound Raft server and all replicas.
    Raft(Server, Vec<Replica>),
    /// The lease, already read once.
    Lease(Box<LeaseElection>),
}

/// A replica's part in the election.
pub(crate) enum Election {
    Raft(Box<RaftElection>),
    Lease(Box<LeaseElection>),
}

impl Prepared {
    /// Binds the Raft address, or reads the lease.
    ///
    /// # Errors
    /// If the address cannot be bound or the lease cannot be read.
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

    /// The Raft address, with Raft.
    pub(crate) fn address(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Raft(server, _) => Some(server.address()),
            Self::Lease(_) => None,
        }
    }

    /// Joins the election.
    ///
    /// # Errors
    /// If the Raft cluster cannot be formed.
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

    /// Takes part in the election until `stop`.
    ///
    /// # Errors
    /// If the election fails.
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
