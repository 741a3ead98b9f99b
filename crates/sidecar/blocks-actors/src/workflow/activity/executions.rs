//! Executions of activities: one for all reminders that ask for it, however often they come.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::workflow::protocol::LOG;

/// How long it is known that an execution is done.
const RETENTION: Duration = Duration::from_secs(60);
/// How long an execution goes on that no reminder waits for.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);
/// Executions that are remembered, at most.
const MAX_RETAINED: usize = 1 << 16;
/// Bytes of results that nobody could be told, with what they are results of.
const MAX_UNDELIVERED: usize = 64 << 20;

/// What an execution consists of.
pub(crate) trait Executable: Send + Sync + 'static {
    /// What it results in.
    type Result: Send + Sync + 'static;

    /// Does the work.
    fn run(&self) -> BoxFuture<'_, Result<Self::Result, Status>>;

    /// Tells who waits for it.
    fn deliver<'a>(&'a self, result: &'a Self::Result) -> BoxFuture<'a, Result<(), Status>>;

    /// When it was scheduled, nanoseconds since 1970; 0 where its key alone tells it from all others.
    fn scheduled(&self) -> i128;

    /// Bytes that it takes to keep both.
    fn size(&self, result: &Self::Result) -> usize;
}

/// `None` while it goes on.
type Completion = Option<Result<(), Status>>;

enum Execution {
    /// It goes on; when it was scheduled, last if that was more than once.
    Running(watch::Receiver<Completion>, i128),
    /// Its result is there, and nobody could be told; since when.
    Undelivered(Instant, Arc<dyn Redeliver>),
    /// It is over; since when, and when it was scheduled. What was scheduled at another time, although the result was taken, is
    /// another one with the same key: its instance was purged since, and an SDK may make the same ids again.
    Done(Instant, i128),
}

/// How an execution is over.
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
    /// What is over, in the order in which it is to be forgotten.
    over: VecDeque<(Instant, String)>,
}

/// All executions.
pub(crate) struct Executions {
    all: Mutex<All>,
    /// Bytes, for what is not delivered.
    budget: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Executions {
    /// None yet. Whoever ends the sidecar waits for `tasks`: a result that is being delivered is delivered first.
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

    /// Keeps a result that was not delivered, if there is room.
    fn keep<S: Executable>(&self, key: &str, work: S, result: S::Result) -> Option<Finished> {
        let size = work.size(&result);
        let bytes = u32::try_from(size).ok();
        let held = bytes.and_then(|bytes| Arc::clone(&self.budget).try_acquire_many_owned(bytes).ok());
        let Some(held) = held else {
            tracing::warn!(
                target: LOG,
                "activity '{key}' will be run again: its result could not be delivered, and keeping its {size} bytes \
                 would exceed the {MAX_UNDELIVERED} that undelivered results may have"
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

    /// Executes it, or joins its execution. Whoever is dropped meanwhile leaves it to go on for a while.
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
                // Its task is there as long as it is not over.
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
                // Only what runs ends.
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
        () = alone(&running.sender) => Err(Status::cancelled("the activity was cancelled: its caller has gone")),
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

/// An execution that goes on, in its task. One that panics or is dropped is over without a result, and begins anew with the
/// next reminder.
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

/// Completes when no reminder has waited for a while. The table of executions has one receiver of its own.
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
    /// Forgets what was over long ago, and what is too much.
    fn forget(&mut self) {
        while let Some((at, key)) = self.over.front() {
            if at.elapsed() < RETENTION && self.over.len() <= MAX_RETAINED {
                return;
            }
            // One that goes on anew, or was over again later, is not forgotten.
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
    async fn reminders_of_one_task_share_one_execution_which_is_remembered_for_a_minute() {
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

    /// Regression: an activity was never run whose instance was purged and begun again within a minute, by an SDK that makes the
    /// same ids.
    #[tokio::test(start_paused = true)]
    async fn what_is_scheduled_again_though_its_result_was_taken_is_run_again() {
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
        // A step that is repeated schedules what runs already, and its reminder may come again.
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
    async fn a_result_that_was_not_delivered_is_delivered_without_running_again() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let step = Counted::new(9);
        step.fails.store(2, Ordering::SeqCst);
        assert!(executions.join("a".into(), step.clone()).await.is_err());
        assert!(executions.join("a".into(), step.clone()).await.is_err());
        executions.join("a".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn results_that_are_not_delivered_are_kept_as_far_as_there_is_room() {
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
        // What is delivered, or forgotten, makes room.
        kept.fails.store(1, Ordering::SeqCst);
        assert!(executions.join("forgotten".into(), kept.clone()).await.is_err());
        assert_eq!(executions.budget.available_permits(), 4);
        sleep(RETENTION).await;
        executions.join("other".into(), dropped.clone()).await.unwrap();
        assert_eq!(executions.budget.available_permits(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn an_execution_that_panics_begins_anew_with_the_next_reminder() {
        let executions = Arc::new(Executions::new(TaskTracker::new()));
        let step = Counted::new(9);
        step.panics.store(1, Ordering::SeqCst);
        let ended = executions.join("a".into(), step.clone()).await.unwrap_err();
        assert_eq!(ended.code(), tonic::Code::Aborted);
        executions.join("a".into(), step.clone()).await.unwrap();
        assert_eq!(step.counts(), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_delivered_late_is_remembered_from_then_on() {
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
    async fn what_runs_when_its_reminder_is_cut_off_is_delivered_and_what_waits_for_long_is_withdrawn() {
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

    /// Invariant: a result that is being stored when the sidecar ends is stored before it has ended.
    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_tasks_waits_for_a_result_that_is_being_delivered() {
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
