//! Watchers of the status of instances.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{self, StreamExt};
use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_workflow::facts::is_terminal;
use tokio::sync::watch;
use tonic::Status;

use crate::actors::Watched;
use crate::workflow::protocol::any;

type Snapshot = Option<WorkflowMetadata>;

/// The watched instances; others have no entry.
#[derive(Default)]
pub(crate) struct Watchers {
    by_id: Mutex<HashMap<String, watch::Sender<Snapshot>>>,
}

impl Watchers {
    fn locked(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Snapshot>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches an instance: sends its status now and after each save, until it ends. A slow watcher misses
    /// intermediate states.
    pub(crate) fn watch(self: &Arc<Self>, id: &str, now: Snapshot) -> Watched {
        let receiver = {
            let mut watched = self.locked();
            let sender = watched
                .entry(id.to_owned())
                .or_insert_with(|| watch::Sender::new(None));
            let receiver = sender.subscribe();
            sender.send_replace(now);
            receiver
        };
        let mut receiver = Watcher {
            watchers: Arc::clone(self),
            id: id.to_owned(),
            receiver: Some(receiver),
        };
        if let Some(receiver) = &mut receiver.receiver {
            receiver.mark_changed();
        }
        stream::unfold((receiver, false), |(mut watcher, ended)| async move {
            if ended {
                return None;
            }
            loop {
                let receiver = watcher.receiver.as_mut()?;
                if receiver.changed().await.is_err() {
                    let moved = Status::unavailable("the workflow is no longer on this sidecar");
                    return Some((Err(moved), (watcher, true)));
                }
                let metadata = receiver.borrow_and_update().clone();
                // Nothing to report for a missing instance.
                let Some(metadata) = metadata else { continue };
                let ended = is_terminal(metadata.runtime_status());
                let metadata = any("durabletask.protos.backend.v1.WorkflowMetadata", &metadata);
                return Some((Ok(metadata.into()), (watcher, ended)));
            }
        })
        .boxed()
    }

    /// Whether an instance is watched.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.locked().contains_key(id)
    }

    /// Publishes the status of an instance.
    pub(crate) fn publish(&self, id: &str, now: impl FnOnce() -> WorkflowMetadata) {
        if let Some(sender) = self.locked().get(id) {
            sender.send_replace(Some(now()));
        }
    }

    /// Ends all watches of an instance.
    pub(crate) fn end(&self, id: &str) {
        self.locked().remove(id);
    }
}

/// A watcher; the last one of an instance removes its entry.
struct Watcher {
    watchers: Arc<Watchers>,
    id: String,
    receiver: Option<watch::Receiver<Snapshot>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut watched = self.watchers.locked();
        self.receiver = None;
        if watched
            .get(&self.id)
            .is_some_and(|sender| sender.receiver_count() == 0)
        {
            watched.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use outrigger_wire::durabletask::OrchestrationStatus;
    use prost::Message as _;

    use super::*;

    fn status(status: OrchestrationStatus) -> WorkflowMetadata {
        WorkflowMetadata {
            runtime_status: status.into(),
            ..WorkflowMetadata::default()
        }
    }

    async fn next(watched: &mut Watched) -> Option<OrchestrationStatus> {
        let Ok(metadata) = watched.next().await? else {
            return None;
        };
        Some(
            WorkflowMetadata::decode(&*metadata.data.value)
                .unwrap()
                .runtime_status(),
        )
    }

    #[tokio::test]
    async fn watcher_sees_updates_until_end() {
        let watchers = Arc::<Watchers>::default();
        let mut unknown = watchers.watch("a", None);
        assert!(next(&mut unknown).now_or_never().is_none());
        let mut known = watchers.watch("a", Some(status(OrchestrationStatus::Pending)));
        assert_eq!(next(&mut known).await, Some(OrchestrationStatus::Pending));
        watchers.publish("a", || status(OrchestrationStatus::Running));
        watchers.publish("b", || unreachable!("no watcher"));
        assert_eq!(next(&mut known).await, Some(OrchestrationStatus::Running));
        assert_eq!(next(&mut unknown).await, Some(OrchestrationStatus::Running));
        watchers.publish("a", || status(OrchestrationStatus::Completed));
        assert_eq!(next(&mut known).await, Some(OrchestrationStatus::Completed));
        assert_eq!(next(&mut known).await, None);
        drop(known);
        watchers.end("a");
        assert_eq!(next(&mut unknown).await, Some(OrchestrationStatus::Completed));
        let mut moved = watchers.watch("b", None);
        watchers.end("b");
        assert_eq!(
            moved.next().await.unwrap().unwrap_err().code(),
            tonic::Code::Unavailable
        );
        assert!(moved.next().await.is_none());
        let mut left = watchers.watch("a", None);
        drop((unknown, moved));
        assert!(next(&mut left).now_or_never().is_none());
        drop(left);
        assert!(watchers.locked().is_empty());
    }
}
