//! The task of one exporter.

use std::sync::Arc;
use std::time::Duration;

use outrigger_backoff::Backoff;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::trace::{BATCH, SpanData, SpanQueue};

use super::{ExportError, Exporter};

/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Attempts per batch, with backoff.
const ATTEMPTS: u32 = 5;
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
/// Time limit of the final flush.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Worker {
    exporter: Exporter,
    queue: Arc<SpanQueue>,
    timeout: Duration,
    /// Whether the last export failed, so that an outage is logged once.
    failing: bool,
    dropped: u64,
}

impl Worker {
    pub(super) fn new(exporter: Exporter, queue: Arc<SpanQueue>, timeout: Duration) -> Self {
        Self {
            exporter,
            queue,
            timeout,
            failing: false,
            dropped: 0,
        }
    }

    /// Ends within [`FLUSH_LIMIT`] of `cancel`, even if the collector hangs.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        let limit = async {
            cancel.cancelled().await;
            sleep(FLUSH_LIMIT).await;
        };
        tokio::select! {
            () = self.work(&cancel) => {}
            () = limit => tracing::warn!(
                target: "dapr.runtime",
                "trace spans were lost at shutdown: {} exporter: no answer within {FLUSH_LIMIT:?}",
                self.exporter.name()
            ),
        }
    }

    async fn work(&mut self, cancel: &CancellationToken) {
        let mut ending = false;
        while !ending {
            ending = cancel.run_until_cancelled(self.gather()).await.is_none();
            for batch in self.queue.take().chunks(BATCH) {
                self.deliver(batch, cancel).await;
            }
            self.report_dropped();
        }
    }

    /// Waits for a span, then for the rest of its batch.
    async fn gather(&self) {
        self.queue.arrived().await;
        let _ = timeout(GATHER, self.queue.batch_ready()).await;
    }

    /// Retries unless the collector rejects the batch. An attempt that starts after
    /// cancellation is the last.
    async fn deliver(&mut self, batch: &[Arc<SpanData>], cancel: &CancellationToken) {
        let mut pauses = PAUSES;
        for attempt in 1.. {
            let last = attempt == ATTEMPTS || cancel.is_cancelled();
            let outcome = self.attempt(batch).await;
            if last || !matches!(outcome, Err(ExportError::Unavailable(_))) {
                return self.note(batch.len(), outcome);
            }
            cancel.run_until_cancelled(sleep(pauses.pause())).await;
        }
    }

    async fn attempt(&mut self, batch: &[Arc<SpanData>]) -> Result<(), ExportError> {
        let limit = self.timeout;
        timeout(limit, self.exporter.export(batch))
            .await
            .unwrap_or_else(|_| Err(ExportError::Unavailable(format!("no answer within {limit:?}"))))
    }

    fn note(&mut self, spans: usize, outcome: Result<(), ExportError>) {
        match outcome {
            Ok(()) => self.failing = false,
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(
                    target: "dapr.runtime",
                    "dropped {spans} trace spans: {} exporter: {error} (further failures are not logged until one \
                     succeeds)",
                    self.exporter.name()
                );
            }
            Err(_) => {}
        }
    }

    fn report_dropped(&mut self) {
        let dropped = self.queue.dropped();
        if dropped > self.dropped {
            tracing::warn!(
                target: "dapr.runtime",
                "dropped {} trace spans: the {} exporter is slower than they are made (lower \
                 spec.tracing.samplingRate)",
                dropped - self.dropped,
                self.exporter.name()
            );
            self.dropped = dropped;
        }
    }
}
