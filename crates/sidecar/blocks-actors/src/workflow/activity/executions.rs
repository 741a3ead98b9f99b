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
        () = alone(&running.sender) => Err(Status::cancelled("the activity was cancelled: its caller is gone")),
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
async fn alone(sender: &watch::Sender<Completion>) {
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[derive(Clone)]
    struct Counted {
        ran: Arc<AtomicUsize>,
        delivered: Arc<AtomicUsize>,
        may_run: Arc<Semaphore>,
        may_deliver: Arc<Semaphore>,
        fails: Arc<AtomicUsize>,
        panics: Arc<AtomicUsize>,
        scheduled: i128,
    }

    impl Counted {
        fn new(permits: usize) -> Self {
            Self {
                ran: Arc::default(),
                delivered: Arc::default(),
                may_run: Arc::new(Semaphore::new(permits)),
                may_deliver: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
                fails: Arc::default(),
                panics: Arc::default(),
                scheduled: 1,
            }
        }

        fn counts(&self) -> (usize, usize) {
            (
                self.ran.load(Ordering::SeqCst),
                self.delivered.load(Ordering::SeqCst),
            )
        }
    }

    impl Executable for Counted {
        type Result = ();

        fn run(&self) -> BoxFuture<'_, Result<(), Status>> {
            Box::pin(async move {
                self.may_run.acquire().await.unwrap().forget();
                self.ran.fetch_add(1, Ordering::SeqCst);
                assert_eq!(self.panics.swap(0, Ordering::SeqCst), 0, "as it was told");
                Ok(())
            })
        }

        fn deliver<'a>(&'a self, (): &'a ()) -> BoxFuture<'a, Result<(), Status>> {
            Box::pin(async move {
                self.may_deliver.acquire().await.unwrap().forget();
                if self.fails.load(Ordering::SeqCst) > 0 {
                    self.fails.fetch_sub(1, Ordering::SeqCst);
                    return Err(Status::unavailable("not now"));
                }
                self.delivered.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        }

        fn scheduled(&self) -> i128 {
            self.scheduled
        }

        fn size(&self, (): &()) -> usize {
            6
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reminders_of_a_task_share_one_execution() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let step = Counted::new(0);
        let both = async {
            tokio::join!(
                executions.join("a".into(), step.clone()),
                executions.join("a".into(), step.clone())
            )
        };
        let release = async {
            tokio::task::yield_now().await;
            step.may_run.add_permits(9);
        };
        let ((one, two), ()) = tokio::join!(both, release);
        assert!(one.is_ok() && two.is_ok());
        executions.join("a".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (1, 1));
        executions.join("b".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (2, 2));
        sleep(RETENTION).await;
        executions.join("a".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (3, 3));
        assert_eq!(executions.locked().by_key.len(), 1);
    }

    /// Regression: an activity was skipped if its instance was purged and recreated within a minute by an SDK
    /// that reuses ids.
    #[tokio::test(start_paused = true)]
    async fn rescheduled_work_runs_again() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let step = Counted::new(9);
        let again = Counted {
            scheduled: 2,
            ..step.clone()
        };
        for expected in [1, 2] {
            let step = if expected == 1 { &step } else { &again };
            for _ in 0..2 {
                executions.join("a".into(), step.clone()).await.unwrap();
                assert_eq!(step.counts(), (expected, expected));
            }
        }
        // A repeated step schedules a running activity again, and its reminder may be redelivered.
        let step = Counted::new(0);
        let later = Counted {
            scheduled: 2,
            ..step.clone()
        };
        let both = async {
            tokio::join!(
                executions.join("b".into(), step.clone()),
                executions.join("b".into(), later.clone())
            )
        };
        let release = async {
            tokio::task::yield_now().await;
            step.may_run.add_permits(9);
        };
        let ((one, two), ()) = tokio::join!(both, release);
        assert!(one.is_ok() && two.is_ok());
        executions.join("b".into(), later.clone()).await.unwrap();
        assert_eq!(step.counts(), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn redelivers_result_without_rerun() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let step = Counted::new(9);
        step.fails.store(2, Ordering::SeqCst);
        assert!(executions.join("a".into(), step.clone()).await.is_err());
        assert!(executions.join("a".into(), step.clone()).await.is_err());
        executions.join("a".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn bounds_undelivered_results() {
        let executions = Arc::new(Executions::with_room(10, TaskTracker::new()));
        let (kept, dropped) = (Counted::new(9), Counted::new(9));
        for step in [&kept, &dropped] {
            step.fails.store(1, Ordering::SeqCst);
        }
        assert!(executions.join("kept".into(), kept.clone()).await.is_err());
        assert!(executions.join("dropped".into(), dropped.clone()).await.is_err());
        executions.join("dropped".into(), dropped.clone()).await.unwrap();
        executions.join("kept".into(), kept.clone()).await.unwrap();
        assert_eq!((kept.counts(), dropped.counts()), ((1, 1), (2, 1)));
        // Delivered and expired results free the budget.
        kept.fails.store(1, Ordering::SeqCst);
        assert!(executions.join("forgotten".into(), kept.clone()).await.is_err());
        assert_eq!(executions.budget.available_permits(), 4);
        sleep(RETENTION).await;
        executions.join("other".into(), dropped.clone()).await.unwrap();
        assert_eq!(executions.budget.available_permits(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn panicked_execution_restarts_with_next_reminder() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let step = Counted::new(9);
        step.panics.store(1, Ordering::SeqCst);
        let ended = executions.join("a".into(), step.clone()).await.unwrap_err();
        assert_eq!(ended.code(), tonic::Code::Aborted);
        executions.join("a".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn remembers_late_delivery() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let step = Counted::new(9);
        step.fails.store(1, Ordering::SeqCst);
        assert!(executions.join("a".into(), step.clone()).await.is_err());
        sleep(RETENTION - Duration::from_secs(1)).await;
        executions.join("a".into(), step.clone()).await.unwrap();
        sleep(Duration::from_secs(2)).await;
        executions.join("a".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (1, 1));
        sleep(RETENTION).await;
        executions.join("b".into(), step.clone()).await.unwrap();
        let all = executions.locked();
        assert_eq!((all.by_key.len(), all.over.len()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn orphaned_execution_completes_or_expires() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let cut = |step: &Counted, key: &str| {
            let (executions, step, key) = (Arc::clone(&executions), step.clone(), key.to_owned());
            async move {
                tokio::time::timeout(Duration::from_secs(1), executions.join(key, step))
                    .await
                    .is_err()
            }
        };
        let (runs, waits) = (Counted::new(0), Counted::new(0));
        assert!(cut(&runs, "runs").await && cut(&waits, "waits").await);
        runs.may_run.add_permits(1);
        sleep(Duration::from_secs(40)).await;
        assert_eq!(runs.counts(), (1, 1));
        waits.may_run.add_permits(1);
        sleep(Duration::from_secs(40)).await;
        assert_eq!(waits.counts(), (0, 0));
        assert!(!executions.locked().by_key.contains_key("waits"));
    }

    /// Invariant: a result in delivery is stored before the sidecar exits.
    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_for_result_delivery() {
        let tasks = TaskTracker::new();
        let executions = Arc::new(Executions::new(tasks.clone()));
        let step = Counted {
            may_deliver: Arc::new(Semaphore::new(0)),
            ..Counted::new(1)
        };
        let cut_off = tokio::time::timeout(Duration::from_secs(1), executions.join("a".into(), step.clone()));
        assert!(cut_off.await.is_err());
        tasks.close();
        let early = tokio::time::timeout(Duration::from_secs(1), tasks.wait());
        assert!(early.await.is_err(), "it is not delivered yet");
        step.may_deliver.add_permits(1);
        tasks.wait().await;
        assert_eq!(step.counts(), (1, 1));
    }
}
