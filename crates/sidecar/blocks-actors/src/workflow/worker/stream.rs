//! The workers of the app: streams of work that they open, and the actor types that are hosted while there are any.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;

use super::item::Item;
use crate::actors::ActorError;
use crate::workflow::instance::dispatch::AT_ONCE;
use crate::workflow::{LOG, Workflows};

/// How long a worker may take to read a piece of work before its stream counts as dead.
const SEND: Duration = Duration::from_secs(10);
/// Streams of workers at most.
const MAX_WORKERS: usize = 1024;

/// What a worker reads.
pub type WorkItems = mpsc::Receiver<Result<Item, Status>>;

impl Workflows {
    /// Opens a stream of work. The first one has this sidecar host the actor types of workflows.
    ///
    /// # Errors
    /// `Unavailable` where there can be no workflows, `ResourceExhausted` where there are too many streams.
    pub async fn open_worker(self: &Arc<Self>) -> Result<WorkItems, Status> {
        if self.ended.is_cancelled() {
            return Err(Status::unavailable("the sidecar ends"));
        }
        self.joined().await?;
        // Counted before anything can fail between here and the task that leaves again.
        let (items, received) = mpsc::channel(1);
        let workflows = Arc::clone(self);
        self.tasks.spawn(async move {
            workflows.send_work(items).await;
            workflows.disconnected().await;
        });
        Ok(received)
    }

    async fn joined(&self) -> Result<(), Status> {
        let mut workers = self.workers.lock().await;
        if *workers >= MAX_WORKERS {
            return Err(Status::resource_exhausted(format!(
                "the limit of {MAX_WORKERS} connected workers is reached"
            )));
        }
        let postpone = self.instance_failures.take_postponed();
        if *workers == 0 {
            let unable = |error: ActorError| {
                let text = format!("unable to establish work item stream at this time: {error}");
                tracing::warn!(target: LOG, "{text}");
                Status::unavailable(text)
            };
            let types = self.actors_of_app();
            self.with.actors.register_internal(types).map_err(unable)?;
        }
        *workers += 1;
        self.with.metrics.workers.add(1);
        if !postpone.is_empty() {
            let engine = self.engine();
            self.tasks.spawn(async move {
                let all = postpone.iter().map(|id| engine.run_now(id));
                let all: Vec<_> = all.collect();
                stream::iter(all).buffer_unordered(AT_ONCE).collect::<()>().await;
            });
        }
        tracing::info!(target: LOG, "work item stream established; {} in all", *workers);
        Ok(())
    }

    /// The last to leave ends all instances here.
    async fn disconnected(&self) {
        let mut workers = self.workers.lock().await;
        *workers -= 1;
        self.with.metrics.workers.add(-1);
        tracing::info!(target: LOG, "work item stream closed; {} remain", *workers);
        if *workers == 0 {
            self.with.actors.unregister_internal(&self.hosted_types()).await;
            // Runs that were cut off have left their instances here.
            self.instance_failures.forget();
        }
    }

    /// Sends work until the worker goes, is too slow, or the sidecar ends.
    async fn send_work(&self, items: mpsc::Sender<Result<Item, Status>>) {
        let stream = self.queue.open();
        loop {
            let item = tokio::select! {
                biased;
                () = items.closed() => return,
                () = self.ended.cancelled() => {
                    // A worker that does not read is not told.
                    let _told = items.try_send(Err(Status::cancelled("shutting down")));
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

    /// Ends the streams of all workers, and with them what they have not answered.
    pub fn end(&self) {
        self.queue.end();
        self.ended.cancel();
        self.tasks.close();
    }

    /// Waits until the streams have ended.
    pub async fn has_ended(&self) {
        self.tasks.wait().await;
    }
}
