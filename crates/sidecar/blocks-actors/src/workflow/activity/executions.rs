//! Executions of activities: all reminders of an activity share one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::workflow::protocol::LOG;

/// How long a finished execution is remembered.
const RETENTION: Duration = Duration::from_secs(60);
/// How long an execution continues without a waiting reminder.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum executions remembered.
const MAX_RETAINED: usize = 1 << 16;
/// Maximum bytes of undelivered results and their work.
const MAX_UNDELIVERED: usize = 64 << 20;

/// The work of an execution.
pub(crate) trait Executable: Send + Sync + 'static {
    /// The result.
    type Result: Send + Sync + 'static;

    /// Runs the work.
    fn run(&self) -> BoxFuture<'_, Result<Self::Result, Status>>;

    /// Delivers the result.
    fn deliver<'a>(&'a self, result: &'a Self::Result) -> BoxFuture<'a, Result<(), Status>>;

    /// Scheduling time, nanoseconds since 1970; 0 if its key alone identifies it.
    fn scheduled(&self) -> i128;

    /// Bytes held by the work and its result.
    fn size(&self, result: &Self::Result) -> usize;
}

/// `None` while it is running.
type Completion = Option<Result<(), Status>>;

enum Execution {
    /// Running; with the last scheduling time.
    Running(watch::Receiver<Completion>, i128),
    /// Finished but not delivered; since when.
    Undelivered(Instant, Arc<dyn Redeliver>),
    /// Finished; since when, and with its scheduling time. Work scheduled at another time is a new execution
    /// with the same key: its instance was purged, and SDKs may reuse ids.
    Done(Instant, i128),
}

/// The end of an execution.
enum Finished {
    Undelivered(Arc<dyn Redeliver>),
    Done,
}

trait Redeliver: Send + Sync {
    fn redeliver(&self) -> BoxFuture<'_, Result<(), Status>>;
}

struct Undelivered<S: Executable> {
    work: S,
    result: S::Result,
    _budget: OwnedSemaphorePermit,
}

impl<S: Executable> Redeliver for Undelivered<S> {
    fn redeliver(&self) -> BoxFuture<'_, Result<(), Status>> {
        self.work.deliver(&self.result)
    }
}

#[derive(Default)]
struct All {
    by_key: HashMap<String, Execution>,
    /// Finished executions in order of expiry.
    over: VecDeque<(Instant, String)>,
}

pub(crate) struct Executions {
    all: Mutex<All>,
    /// Budget in bytes for undelivered results.
    budget: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Executions {
    /// Starts empty. Shutdown must wait for `tasks`, so that results in delivery are delivered.
    pub(crate) fn new(tasks: TaskTracker) -> Self {
        Self::with_room(MAX_UNDELIVERED, tasks)
    }

    fn with_room(undelivered: usize, tasks: TaskTracker) -> Self {
        Self {
            all: Mutex::default(),
            budget: Arc::new(Semaphore::new(undelivered)),
            tasks,
        }
    }

    /// Keeps an undelivered result if there is room.
    fn keep<S: Executable>(&self, key: &str, work: S, result: S::Result) -> Option<Finished> {
        let size = work.size(&result);
        let bytes = u32::try_from(size).ok();
        let held = bytes.and_then(|bytes| Arc::clone(&self.budget).try_acquire_many_owned(bytes).ok());
        let Some(held) = held else {
            tracing::warn!(
                target: LOG,
                "activity '{key}' will be run again: its result could not be delivered, and its {size} bytes exceed the \
                 budget of {MAX_UNDELIVERED} bytes for undelivered results"
            );
            return None;
        };
        let undelivered = Undelivered {
            work,
            result,
            _budget: held,
        };
        Some(Finished::Undelivered(Arc::new(undelivered)))
    }

    fn locked(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the work or joins its execution. If the caller is dropped, the execution continues for a while.
    pub(crate) async fn join<S: Executable>(self: &Arc<Self>, key: String, work: S) -> Result<(), Status> {
        let scheduled = work.scheduled();
        let mut ending = {
            let mut all = self.locked();
            all.forget();
            match all.by_key.remove(&key) {
                Some(Execution::Done(at, known)) if known == scheduled => {
                    all.by_key.insert(key, Execution::Done(at, known));
                    return Ok(());
                }
                // The sender lives while the task does.
                Some(Execution::Running(ending, _)) => {
                    all.by_key
                        .insert(key, Execution::Running(ending.clone(), scheduled));
                    ending
                }
                Some(Execution::Undelivered(_, undelivered)) => {
                    let (sender, ending) = watch::channel(None);
                    let known = Execution::Running(ending.clone(), scheduled);
                    all.by_key.insert(key.clone(), known);
                    let running = Running::new(self, key, sender);
                    self.tasks.spawn(async move {
                        let delivered = undelivered.redeliver().await;
                        let over = match &delivered {
                            Ok(()) => Some(Finished::Done),
                            Err(_) => Some(Finished::Undelivered(undelivered)),
                        };
                        running.end(over, delivered);
                    });
                    ending
                }
                Some(Execution::Done(..)) | None => {
                    let (sender, ending) = watch::channel(None);
                    let known = Execution::Running(ending.clone(), scheduled);
                    all.by_key.insert(key.clone(), known);
                    self.tasks.spawn(execute(Running::new(self, key, sender), work));
                    ending
                }
            }
        };
        let ended = ending.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|ended| (*ended).clone());
        ended.unwrap_or_else(|| {
            Err(Status::aborted(
                "the execution of the activity ended without a result",
            ))
        })
    }

    fn end(&self, key: String, over: Option<Finished>) {
        let mut all = self.locked();
        let now = Instant::now();
        let known = match over {
            None => {
                all.by_key.remove(&key);
                return;
            }
            Some(Finished::Undelivered(undelivered)) => Execution::Undelivered(now, undelivered),
            Some(Finished::Done) => match all.by_key.get(&key) {
                Some(Execution::Running(_, scheduled)) => Execution::Done(now, *scheduled),
                // Only running executions end.
                _ => return,
            },
        };
        all.by_key.insert(key.clone(), known);
        all.over.push_back((now, key));
        all.forget();
    }
}

async fn execute<S: Executable>(running: Running, work: S) {
    let ran = tokio::select! {
        ran = work.run() => ran,
        () = wait_until_orphaned(&running.sender) => Err(Status::cancelled("the activity was cancelled: its caller is gone")),
    };
    let (over, ended) = match ran {
        Err(error) => (None, Err(error)),
        Ok(result) => match work.deliver(&result).await {
            Ok(()) => (Some(Finished::Done), Ok(())),
            Err(error) => (running.keep(work, result), Err(error)),
        },
    };
    running.end(over, ended);
}

/// A running execution, in its task. If it panics or is dropped, it ends without a result, and the next
/// reminder starts it again.
struct Running {
    executions: Arc<Executions>,
    key: Option<String>,
    sender: watch::Sender<Completion>,
}

impl Running {
    fn new(executions: &Arc<Executions>, key: String, sender: watch::Sender<Completion>) -> Self {
        Self {
            executions: Arc::clone(executions),
            key: Some(key),
            sender,
        }
    }

    fn keep<S: Executable>(&self, work: S, result: S::Result) -> Option<Finished> {
        let key = self.key.as_deref().unwrap_or_default();
        self.executions.keep(key, work, result)
    }

    fn end(mut self, over: Option<Finished>, ended: Result<(), Status>) {
        if let Some(key) = self.key.take() {
            self.executions.end(key, over);
        }
        self.sender.send_replace(Some(ended));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.executions.end(key, None);
        }
    }
}

/// Completes when no reminder has waited for a while. The table of executions holds one receiver itself.
async fn wait_until_orphaned(sender: &watch::Sender<Completion>) {
    const POLL_INTERVAL: Duration = Duration::from_secs(1);
    let mut since = Instant::now();
    loop {
        if sender.receiver_count() > 1 {
            since = Instant::now();
        } else if since.elapsed() >= ORPHAN_TIMEOUT {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}

impl All {
    /// Drops expired and excess entries.
    fn forget(&mut self) {
        while let Some((at, key)) = self.over.front() {
            if at.elapsed() < RETENTION && self.over.len() <= MAX_RETAINED {
                return;
            }
            // An execution that restarted or ended again later is kept.
            let over = match self.by_key.get(key) {
                Some(Execution::Undelivered(over, _) | Execution::Done(over, _)) => Some(over),
                Some(Execution::Running(..)) | None => None,
            };
            if over == Some(at) {
                self.by_key.remove(key);
            }
            self.over.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
