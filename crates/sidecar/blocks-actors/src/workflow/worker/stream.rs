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

/// How long a worker may take to read a piece of work before its stream counts as dead.
const SEND: Duration = Duration::from_secs(10);

/// What a worker reads.
pub type WorkItems = mpsc::Receiver<Result<Item, Status>>;

/// One worker's stream of work. When it is dropped, what was sent on it and not answered is cancelled.
pub(crate) struct WorkStream {
    queue: Arc<WorkQueue>,
    number: u64,
}

impl WorkStream {
    pub(crate) fn open(queue: &Arc<WorkQueue>) -> Self {
        Self {
            number: queue.open_stream(),
            queue: Arc::clone(queue),
        }
    }

    /// The next piece of work, which is this stream's from now on.
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
    /// Sends work until the worker disconnects, is too slow, or the sidecar ends.
    pub(crate) async fn serve(&self, items: mpsc::Sender<Result<Item, Status>>, ended: &CancellationToken) {
        let stream = WorkStream::open(&self.queue);
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
            match timeout(SEND, items.send(Ok(item))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    tracing::error!(
                        target: LOG,
                        "a worker did not read its work items within {} s: closing its stream, other workers get \
                         them",
                        SEND.as_secs()
                    );
                    return;
                }
            }
        }
    }
}
