//! Election by Raft: the group only elects a leader, its log has no entries of ours.
//!
//! All state is in memory, because it is worthless after a restart. A leader leads only while a majority
//! confirms it: [`LEADER_LEASE`] is shorter than the election timeout of the others.

mod messages;
mod peers;
mod server;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{InitializeError, RaftError};
use openraft::impls::EmptyNode;
use openraft::{Raft, ServerState, SnapshotPolicy};
use outrigger_accept::{Limits, Server};
use outrigger_controlplane::grpc::{self, ServerLimits};
use outrigger_identity::Identity;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ElectionError, Leads};
use crate::config::Replica;
use peers::Peers;
use server::RaftService;

const LOG: &str = "dapr.placement.raft";
/// Interval of the leader's heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(300);
/// Minimum and maximum election timeout.
const ELECTION: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(3)];
/// A leader steps down if no majority has confirmed it for this long.
const LEADER_LEASE: Duration = Duration::from_millis(1200);
/// Log length that triggers compaction, and entries kept.
const LOG_ENTRIES: [u64; 2] = [1000, 500];
/// Attempts to resolve this replica's host name, which DNS may not know yet.
const RESOLVE_ATTEMPTS: usize = 240;
/// Pause between them.
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);
/// Maximum concurrent calls on a replica's connection.
const MAX_STREAMS: u32 = 64;
/// Idle time of a connection before a ping.
const PING_AFTER: Duration = Duration::from_secs(10);
/// Time to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Limits for connections of replicas.
const CONNECTIONS: Limits = Limits {
    connections: 64,
    per_source: 32,
};

openraft::declare_raft_types!(
    /// A group without log entries of ours.
    pub(crate) Types:
        D = (),
        R = (),
        Node = EmptyNode,
);

// Required by the macro above.
use std::io::Cursor;

/// This replica's part in elections.
pub(crate) struct RaftElection {
    raft: Raft<Types>,
    /// Raft id of this replica.
    number: u64,
    server: Server,
    identity: Option<Identity>,
    /// The only replica.
    alone: bool,
    leads: watch::Sender<Leads>,
}

/// Binds the address of this replica, once its host name resolves.
///
/// # Errors
/// If the address is in use, or not an address of this machine.
pub(super) async fn bind(id: &str, cluster: &[Replica]) -> Result<Server, ElectionError> {
    let own = cluster.iter().find(|replica| replica.id == id);
    let Some(own) = own else {
        return Err(ElectionError::Raft(format!(
            "{id:?} is not listed in --initial-cluster"
        )));
    };
    let mut attempts = 0;
    loop {
        match Server::bind("raft", "initial-cluster", &own.listen).await {
            Err(error) if error.source.raw_os_error().is_none() && attempts < RESOLVE_ATTEMPTS => {
                attempts += 1;
                tracing::warn!(target: LOG, "{error}: {}; trying again", error.source);
                tokio::time::sleep(RESOLVE_PAUSE).await;
            }
            bound => return Ok(bound?),
        }
    }
}

/// The Raft id of a replica: FNV-1a of its id.
fn number(id: &str) -> u64 {
    id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn numbered(cluster: &[Replica]) -> Result<BTreeMap<u64, Replica>, ElectionError> {
    let mut members = BTreeMap::new();
    for replica in cluster {
        if let Some(other) = members.insert(number(&replica.id), replica.clone()) {
            return Err(ElectionError::SameHash(other.id, replica.id.clone()));
        }
    }
    Ok(members)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl RaftElection {
    /// Joins the group; [`RaftElection::run`] serves the other replicas.
    ///
    /// # Errors
    /// If the group cannot be formed.
    pub(super) async fn start(
        id: &str,
        cluster: &[Replica],
        server: Server,
        identity: Option<Identity>,
    ) -> Result<Self, ElectionError> {
        let members = numbered(cluster)?;
        let settings = openraft::Config {
            cluster_name: "placement".to_owned(),
            heartbeat_interval: millis(HEARTBEAT),
            election_timeout_min: millis(ELECTION[0]),
            election_timeout_max: millis(ELECTION[1]),
            snapshot_policy: SnapshotPolicy::LogsSinceLast(LOG_ENTRIES[0]),
            max_in_snapshot_log_to_keep: LOG_ENTRIES[1],
            ..openraft::Config::default()
        };
        let settings = settings.validate().map_err(raft_error)?;
        let all: BTreeMap<u64, EmptyNode> = members.keys().map(|&id| (id, EmptyNode {})).collect();
        let raft = Raft::new(
            number(id),
            Arc::new(settings),
            Peers::new(members, identity.clone()),
            store::Log::default(),
            store::Applied::default(),
        );
        let raft = raft.await.map_err(raft_error)?;
        match raft.initialize(all).await {
            // Another replica initialized the group.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(raft_error(error)),
        }
        Ok(Self {
            raft,
            number: number(id),
            server,
            identity,
            alone: cluster.len() == 1,
            leads: watch::Sender::new(Leads::No),
        })
    }

    /// Whether this replica leads.
    pub(super) fn leads(&self) -> watch::Receiver<Leads> {
        self.leads.subscribe()
    }

    /// Serves the other replicas and takes part in the election until `stop`.
    ///
    /// # Errors
    /// If Raft fails.
    pub(super) async fn run(self, stop: CancellationToken) -> Result<(), ElectionError> {
        let service = RaftService::new(self.raft.clone(), self.identity.as_ref().map(Identity::id));
        let limits = ServerLimits {
            connections: CONNECTIONS,
            ping_after: PING_AFTER,
            ping_timeout: PING_TIMEOUT,
            streams: MAX_STREAMS,
        };
        let served = grpc::serve(self.server, limits, self.identity, service, stop.clone());
        let followed = stop.run_until_cancelled(follow(&self.raft, self.number, self.alone, &self.leads));
        let (followed, ()) = tokio::join!(
            async {
                let followed = followed.await;
                stop.cancel();
                self.leads.send_replace(Leads::No);
                let _ = self.raft.shutdown().await;
                followed
            },
            served
        );
        followed.unwrap_or(Ok(()))
    }
}

/// Publishes to `leads` whether a majority confirms this replica as leader.
async fn follow(
    raft: &Raft<Types>,
    number: u64,
    alone: bool,
    leads: &watch::Sender<Leads>,
) -> Result<(), ElectionError> {
    // Log metrics change with each confirmation: waiting for those would loop without pause.
    let (metrics, mut changes) = (raft.metrics(), raft.server_metrics());
    let mut confirmed: Option<Instant> = None;
    let mut follows = false;
    loop {
        let (state, leader) = {
            let seen = changes.borrow_and_update();
            (seen.state, seen.current_leader)
        };
        follows |= leader.is_some_and(|leader| leader != number);
        metrics.borrow().running_state.clone().map_err(raft_error)?;
        if state != ServerState::Leader {
            confirmed = None;
        } else if !alone {
            let asked = Instant::now();
            let answer = tokio::time::timeout(LEADER_LEASE, raft.ensure_linearizable()).await;
            if matches!(answer, Ok(Ok(_))) {
                confirmed = Some(asked);
            }
        }
        let leading =
            alone && state == ServerState::Leader || confirmed.is_some_and(|at| at.elapsed() < LEADER_LEASE);
        let now = match (leading, *leads.borrow()) {
            (false, _) => Leads::No,
            (true, Leads::No) if follows => Leads::Next,
            (true, Leads::No) => Leads::First,
            (true, before) => before,
        };
        follows |= leading;
        if leads.send_if_modified(|leads| std::mem::replace(leads, now) != now) && !leading {
            tracing::warn!(target: LOG, "a majority no longer confirms that this replica leads");
        }
        let wait = if confirmed.is_some() {
            HEARTBEAT
        } else {
            LEADER_LEASE
        };
        tokio::select! {
            changed = changes.changed() => changed.map_err(raft_error)?,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn raft_error(error: impl std::fmt::Display) -> ElectionError {
    ElectionError::Raft(error.to_string())
}
