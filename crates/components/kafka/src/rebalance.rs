//! Changes of a member's partitions. The client waits until the member has recorded each change.

use krafka::consumer::{ConsumerRebalanceListener, TopicPartition};
use tokio::sync::{mpsc, oneshot};

/// A change of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartitionChange {
    /// Assigned to this member.
    Assigned,
    /// Being reassigned; this member can still commit.
    Revoked,
    /// Already assigned to another member.
    Lost,
}

/// Partitions that were assigned or removed.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) what: PartitionChange,
    pub(super) partitions: Vec<i32>,
    /// Dropped once the member has recorded the change.
    pub(super) noted: oneshot::Sender<()>,
}

/// Notifies a member of changes of its partitions.
pub(super) struct Listener(pub(super) mpsc::Sender<Change>);

impl Listener {
    async fn notify(&self, what: PartitionChange, partitions: &[TopicPartition]) {
        let (noted, note) = oneshot::channel();
        let change = Change {
            what,
            partitions: partitions.iter().map(TopicPartition::partition).collect(),
            noted,
        };
        // Fails if the member has ended, which needs no notification.
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
