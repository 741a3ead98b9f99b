//! How much is given to the store and not stored yet. It is bounded by who triggers jobs: that waits for the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts its [`Share`]s.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    len: AtomicUsize,
    shrank: Notify,
}

/// Something that is not stored yet, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share(Arc<Backlog>);

impl Backlog {
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        self.len.fetch_add(1, Ordering::Relaxed);
        Share(Arc::clone(self))
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Ends when there is less since it ended last.
    pub(crate) async fn shrank(&self) {
        self.shrank.notified().await;
    }
}

impl Clone for Share {
    fn clone(&self) -> Self {
        self.0.share()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.len.fetch_sub(1, Ordering::Relaxed);
        self.0.shrank.notify_one();
    }
}
