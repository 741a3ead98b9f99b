//! A worker's stream of work.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::item::Item;
use super::workers::Workers;
use crate::workflow::protocol::LOG;

/// How long a worker may take to read a piece of work before its stream counts as dead.
const SEND: Duration = Duration::from_secs(10);

/// What a worker reads.
pub type WorkItems = mpsc::Receiver<Result<Item, Status>>;

impl Workers {
    /// Sends work until the worker disconnects, is too slow, or the sidecar ends.
    pub(crate) async fn serve(&self, items: mpsc::Sender<Result<Item, Status>>, ended: &CancellationToken) {
        let stream = self.queue.open();
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
