//! Counts writes handed to the store and not yet stored. The trigger loop uses the count for backpressure: it
//! waits for the store when the count is high.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The number of [`Share`]s alive.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    len: AtomicUsize,
    shrank: Notify,
}

/// One pending write; counts until dropped.
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

    /// Resolves when a share has been dropped since the last call returned.
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
