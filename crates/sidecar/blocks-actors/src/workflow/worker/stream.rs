//! A worker's stream of work.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::item::Item;
use super::queue::WorkQueue;
use super::workers::Workers;
use crate::workflow::protocol::LOG;

/// How long a worker may take to read an item before its stream is closed.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The receiving end of a worker's stream.
pub type WorkItems = mpsc::Receiver<Result<Item, Status>>;

/// A worker's stream of work. Dropping it cancels its unanswered items.
pub(crate) struct WorkStream {
    queue: Arc<WorkQueue>,
    number: u64,
}

impl WorkStream {
    pub(crate) fn open(queue: &Arc<WorkQueue>, is_stateful: bool) -> Self {
        Self {
            number: queue.open_stream(is_stateful),
            queue: Arc::clone(queue),
        }
    }

    /// Waits for the next item.
    pub(crate) async fn next(&self) -> Item {
        self.queue.next(self.number).await
    }
}

impl Drop for WorkStream {
    fn drop(&mut self) {
        self.queue.close_stream(self.number);
    }
}

impl Workers {
    /// Sends work until the worker disconnects or is too slow, or until shutdown.
    /// `is_stateful`: it keeps histories.
    pub(crate) async fn serve(
        &self,
        items: mpsc::Sender<Result<Item, Status>>,
        is_stateful: bool,
        ended: &CancellationToken,
    ) {
        let stream = WorkStream::open(&self.queue, is_stateful);
        loop {
            let item = tokio::select! {
                biased;
                () = items.closed() => return,
                () = ended.cancelled() => {
                    // A worker that does not read misses the status.
                    let _sent = items.try_send(Err(Status::cancelled("shutting down")));
                    return;
                }
                item = stream.next() => item,
            };
            match timeout(SEND_TIMEOUT, items.send(Ok(item))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    tracing::error!(
                        target: LOG,
                        "a worker did not read its work items within {} s: closing its stream, other workers get \
                         them",
                        SEND_TIMEOUT.as_secs()
                    );
                    return;
                }
            }
        }
    }
}
