//! Limits over all sidecars of an app.

use super::*;

const LIMITS: &str = "  workflow:\n    workflowConcurrencyLimits: [{name: mixed, maxConcurrent: 2}]\n    \
                      activityConcurrencyLimits: [{name: slow, maxConcurrent: 1}]\n";

fn tasks(gate: &Gate) -> Arc<Tasks> {
    let gate = Arc::clone(gate);
    let tasks = Tasks::default()
        .activity("slow", move |_| {
            wait_for(&gate);
            Ok(String::new())
        })
        .activity("fast", |_| Ok(String::new()))
        .workflow("mixed", |context| {
            let begun: Vec<_> = ["slow", "slow", "fast", "fast"]
                .map(|name| context.begin_activity(name, ""))
                .into();
            for id in begun {
                context.wait(id)?.unwrap();
            }
            Some(End::Completed("done".to_owned()))
        });
    Arc::new(tasks)
}

/// Invariant: the limit of a name counts the activities at all sidecars of the app, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn limits_names_over_sidecars() {
    let world = World::new().await;
    let gate: Gate = Arc::default();
    let (one, two) = (
        world.sidecar("shop").spec(LIMITS).start().await,
        world.sidecar("shop").spec(LIMITS).start().await,
    );
    let (first, second) = (tasks(&gate), tasks(&gate));
    let _workers = (
        Worker::connect(&one, &first).await,
        Worker::connect(&two, &second).await,
    );
    world.hosts("shop", 2).await;
    let ran = |name: &str| {
        let all = [first.ran(), second.ran()].concat();
        all.iter().filter(|ran| *ran == name).count()
    };
    for id in ["a", "b", "c"] {
        start(&one, "mixed", id, "").await;
    }
    // All activities were scheduled before these ended.
    eventually(async || ran("fast") == 6).await;
    eventually(async || ran("slow") == 1).await;
    assert_eq!(ran("slow"), 1);
    let (open, opened) = &*gate;
    *open.lock().unwrap() = true;
    opened.notify_all();
    for id in ["a", "b", "c"] {
        assert_eq!(output(&one, id).await, "done");
    }
    assert_eq!(ran("slow"), 6);
}
