//! Changes of a member's partitions. The client waits with each until the member has taken note.

use krafka::consumer::{ConsumerRebalanceListener, TopicPartition};
use tokio::sync::{mpsc, oneshot};

/// What happened to partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartitionChange {
    /// They are this member's from now on.
    Assigned,
    /// They will be another member's; this one can still commit.
    Revoked,
    /// They are another member's already.
    Lost,
}

/// Partitions that come or go.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) what: PartitionChange,
    pub(super) partitions: Vec<i32>,
    /// Dropped when the member has taken note.
    pub(super) noted: oneshot::Sender<()>,
}

/// Notifies a member of changes to its partitions.
pub(super) struct Listener(pub(super) mpsc::Sender<Change>);

impl Listener {
    async fn notify(&self, what: PartitionChange, partitions: &[TopicPartition]) {
        let (noted, note) = oneshot::channel();
        let change = Change {
            what,
            partitions: partitions.iter().map(TopicPartition::partition).collect(),
            noted,
        };
        // A member that has gone needs not know.
        if self.0.send(change).await.is_ok() {
            let _noted = note.await;
        }
    }
}

impl ConsumerRebalanceListener for Listener {
    async fn on_partitions_assigned(&self, partitions: &[TopicPartition]) {
        self.notify(PartitionChange::Assigned, partitions).await;
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        self.notify(PartitionChange::Revoked, partitions).await;
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        self.notify(PartitionChange::Lost, partitions).await;
    }
}
