//! Queue of finished spans for one exporter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::SpanData;

/// Spans queued before new ones are dropped.
const CAPACITY: usize = 2048;
/// Spans per export. The first span wakes the exporter; a full batch ends its wait for more.
pub(crate) const BATCH: usize = 512;

/// Bounded queue between the request path, which never blocks, and an exporter.
#[derive(Debug, Default)]
pub struct SpanQueue {
    spans: Mutex<Vec<Arc<SpanData>>>,
    dropped: AtomicU64,
    arrived: Notify,
    full_batch: Notify,
}

impl SpanQueue {
    /// Queues a finished span, or counts it as dropped if the queue is full.
    pub fn push(&self, span: Arc<SpanData>) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() >= CAPACITY {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        spans.push(span);
        match spans.len() {
            1 => self.arrived.notify_one(),
            BATCH => self.full_batch.notify_one(),
            _ => {}
        }
    }

    /// Takes all queued spans, oldest first.
    pub fn take(&self) -> Vec<Arc<SpanData>> {
        std::mem::take(&mut *self.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Spans dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Resolves when a span has arrived in the empty queue since the last call.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Resolves when a full batch is queued.
    pub(crate) async fn batch_ready(&self) {
        self.full_batch.notified().await;
    }
}
