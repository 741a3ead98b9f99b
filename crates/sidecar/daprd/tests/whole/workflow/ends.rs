//! Instances that end before their activities.

use std::sync::{Condvar, Mutex};

use super::*;

/// A gate that blocks an activity.
#[derive(Default)]
struct Latch(Mutex<bool>, Condvar);

impl Latch {
    /// Limited, so that a failing test, which never opens it, does not hang.
    fn wait(&self) {
        let open = self.0.lock().unwrap();
        let waited = self
            .1
            .wait_timeout_while(open, Duration::from_secs(30), |open| !*open);
        drop(waited.unwrap());
    }

    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

/// Invariant: an activity started in another app by the only turn of an instance runs, even if nothing waits
/// for it.
#[tokio::test(flavor = "multi_thread")]
async fn last_turn_starts_remote_activity() {
    let world = World::new().await;
    let tasks = Tasks::default().workflow("careless", |context| {
        context.app = Some("bank".to_owned());
        context.begin_activity("double", "1");
        Some(End::Completed(String::new()))
    });
    let (shop, _worker, _) = world.with_worker("shop", tasks).await;
    start(&shop, "careless", "a", "").await;
    let failing = "dapr_runtime_workflow_failing_instances";
    shop.counts(failing, &[], 1.0).await;
    let (_bank, _bank_worker, bank) = world.with_worker("bank", chain(Tasks::default())).await;
    output(&shop, "a").await;
    eventually(async || bank.ran() == ["double"]).await;
}

/// Regression: activities of an instance purged and restarted within a minute were confused with those of the
/// previous run, which have the same ids.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_instance_has_new_activities() {
    let world = World::new().await;
    let (node, _worker, tasks) = world.with_worker("shop", chain(Tasks::default())).await;
    for ran in [3, 6] {
        start(&node, "chain", "a", "5").await;
        let ended = tokio::time::timeout(Duration::from_secs(9), output(&node, "a")).await;
        assert_eq!(ended.expect("its activities run"), "40");
        assert_eq!(tasks.ran().len(), ran);
        let purged = node.ask(post("/v1.0/workflows/dapr/a/purge", "")).await;
        assert_eq!(purged.status, 202, "{}", purged.text());
    }
}

/// Invariant: an instance whose activities have lost their reminders does not wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn restarts_despite_unanswered_activity() {
    let world = World::new().await;
    let (latch, began) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let (waits, tells) = (Arc::clone(&latch), Arc::clone(&began));
    let tasks = Tasks::default()
        .activity("slow", move |_| {
            tells.open();
            tokio::task::block_in_place(|| waits.wait());
            Ok(String::new())
        })
        .workflow("held", |context| {
            if context.input == "again" {
                return Some(End::Completed(String::new()));
            }
            context.begin_timer(3_600_000, None);
            context.activity("slow", "")?.ok();
            None
        });
    let (node, worker, _) = world.with_worker("shop", tasks).await;
    start(&node, "held", "a", "").await;
    tokio::task::block_in_place(|| began.wait());
    // The previous worker is busy with its activity.
    let ends = Tasks::default().workflow("held", |_| Some(End::Completed(String::new())));
    let other = Worker::connect(&node, &Arc::new(ends)).await;
    let terminated = node.ask(post("/v1.0/workflows/dapr/a/terminate", "")).await;
    assert_eq!(terminated.status, 202, "{}", terminated.text());
    eventually(async || status(&node, "a").await == "TERMINATED").await;
    start(&node, "held", "a", "again").await;
    eventually(async || status(&node, "a").await == "COMPLETED").await;
    latch.open();
    drop((worker, other));
}
