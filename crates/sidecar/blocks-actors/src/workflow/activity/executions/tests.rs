//! Executions of counted work.

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
            assert_eq!(self.panics.swap(0, Ordering::SeqCst), 0, "panics on request");
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
