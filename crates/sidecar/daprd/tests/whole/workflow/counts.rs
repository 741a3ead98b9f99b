//! The cost of instances: the number and kind of store operations.

use std::sync::atomic::AtomicBool;

use outrigger_wire::scheduler::v1::job_target_metadata::Type;
use outrigger_wire::scheduler::v1::{
    Job, JobMetadata, JobTargetMetadata, ScheduleJobRequest, ScheduleJobResponse, TargetActorReminder,
};

use super::*;

const WORKFLOW: &str = "dapr.internal.default.shop.workflow";

/// Number of store operations of each kind: single reads, bulk reads, transactions.
async fn asked(node: &Node) -> [f64; 3] {
    let mut asked = [0.0; 3];
    for (operation, count) in ["get", "bulk_get", "transaction"].iter().zip(&mut asked) {
        let labels = [
            &format!("operation=\"{operation}\"") as &str,
            "component=\"store\"",
            "success=\"true\"",
        ];
        let counted = node.metric("dapr_component_state_count", &labels).await;
        *count = counted.unwrap_or_default();
    }
    asked
}

/// The operations since `before`.
async fn asked_since(node: &Node, before: [f64; 3]) -> [f64; 3] {
    let now = asked(node).await;
    std::array::from_fn(|index| now[index] - before[index])
}

/// Number of executed instance reminders.
async fn reminded(node: &Node) -> f64 {
    let labels = [&format!("actor_type=\"{WORKFLOW}\"") as &str, "success=\"true\""];
    let counted = node
        .metric("dapr_runtime_actor_reminders_fired_total", &labels)
        .await;
    counted.unwrap_or_default()
}

/// Creates run reminders as they remain when one turn consumes several events.
async fn leave_behind(world: &World, instance: &str, count: usize) {
    for number in 0..count {
        let request = ScheduleJobRequest {
            name: format!("new-event-tc-{number}"),
            job: Some(Job {
                due_time: Some("0s".to_owned()),
                ..Job::default()
            }),
            metadata: Some(JobMetadata {
                app_id: "shop".to_owned(),
                namespace: "default".to_owned(),
                target: Some(JobTargetMetadata {
                    r#type: Some(Type::Actor(TargetActorReminder {
                        r#type: WORKFLOW.to_owned(),
                        id: instance.to_owned(),
                    })),
                }),
                concurrency_key: None,
            }),
            overwrite: true,
        };
        let path = "/dapr.proto.scheduler.v1.Scheduler/ScheduleJob";
        grpc::unary(world.control.scheduler.port(), path, &[], &request)
            .await
            .message::<ScheduleJobResponse>();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_reminders_read_no_history() {
    const LEFT: usize = 10;
    for (spec, keys) in [
        ("", 1),
        ("  workflow:\n    stateRetentionPolicy:\n      completed: 1h\n", 2),
    ] {
        let world = World::new().await;
        let node = world.sidecar("shop").spec(spec).start().await;
        let _worker = Worker::connect(&node, &Arc::new(chain(Tasks::default()))).await;
        world.hosts("shop", 1).await;
        start(&node, "chain", "a", "5").await;
        assert_eq!(output(&node, "a").await, "40");
        // The first of these was for its turns, each stored with its results.
        eventually(async || reminded(&node).await >= 1.0).await;
        for (instance, keys) in [("a", keys), ("never-was", 1)] {
            let (before, already) = (asked(&node).await, reminded(&node).await);
            leave_behind(&world, instance, LEFT).await;
            eventually(async || reminded(&node).await - already >= LEFT as f64).await;
            let reads = (LEFT * keys) as f64;
            assert_eq!(
                asked_since(&node, before).await,
                [reads, 0.0, 0.0],
                "{instance} {spec}"
            );
        }
        assert_eq!(output(&node, "a").await, "40");
    }
}

/// An instance that is pending but not in memory is run too.
#[tokio::test(flavor = "multi_thread")]
async fn reminder_runs_uncached_instance() {
    let world = World::new().await;
    let tasks = || {
        Arc::new(Tasks::default().workflow("waits", |context| {
            let first = context.event("go")?;
            Some(End::Completed(first))
        }))
    };
    let node = world.sidecar("shop").start().await;
    let worker = Worker::connect(&node, &tasks()).await;
    world.hosts("shop", 1).await;
    start(&node, "waits", "a", "").await;
    eventually(async || status(&node, "a").await == "RUNNING").await;
    worker.leave().await;
    world.hosts("shop", 0).await;
    let _worker = Worker::connect(&node, &tasks()).await;
    world.hosts("shop", 1).await;
    // Nothing is pending yet, so this one is redundant.
    let already = reminded(&node).await;
    leave_behind(&world, "a", 1).await;
    eventually(async || reminded(&node).await > already).await;
    assert_eq!(status(&node, "a").await, "RUNNING");
    raise(&node, "a", "go", "1").await;
    assert_eq!(output(&node, "a").await, "1");
}

/// The cost of a chain of three: its transactions and other operations. Each run by a reminder, except the
/// first, is a step whose result came too late to be stored with the turn that started it.
async fn cost_of_chain(node: &Node, before: [f64; 3], already: f64) -> [f64; 3] {
    eventually(async || asked_since(node, before).await[2] == 4.0 + reminded(node).await - already).await;
    asked_since(node, before).await
}

#[tokio::test(flavor = "multi_thread")]
async fn chain_reads_nothing_between_steps() {
    let world = World::new().await;
    let (node, _worker, _) = world.with_worker("shop", chain(Tasks::default())).await;
    let before = asked(&node).await;
    start(&node, "chain", "a", "5").await;
    assert_eq!(output(&node, "a").await, "40");
    let [reads, histories, transactions] = cost_of_chain(&node, before, 0.0).await;
    assert!(transactions <= 8.0, "{transactions}");
    // The instance may no longer be in memory when a late result arrives.
    let late = transactions - 5.0;
    // One to check that it does not exist, and one by a waiting client if that comes first.
    assert!(
        reads <= 2.0 + late && histories <= 1.0 + 2.0 * late,
        "{reads} {histories} {transactions}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn quick_step_costs_one_transaction() {
    let world = World::new().await;
    let (node, _worker, _) = world.with_worker("shop", chain(Tasks::default())).await;
    let mut costs = Vec::new();
    // The speed of activities depends on the machine; one of several chains suffices.
    for instance in 0..30 {
        let id = instance.to_string();
        let (before, already) = (asked(&node).await, reminded(&node).await);
        start(&node, "chain", &id, "5").await;
        // A watcher of the instance would cause an extra turn.
        eventually(async || status(&node, &id).await == "COMPLETED").await;
        let [.., transactions] = cost_of_chain(&node, before, already).await;
        // The start, three turns with the results of their activities, and the last turn.
        if transactions == 5.0 {
            return;
        }
        costs.push(transactions);
    }
    panic!("{costs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn consumes_pending_results_together() {
    const ACTIVITIES: usize = 50;
    let closed = || Arc::new((Mutex::new(false), Condvar::new()));
    let (of_activities, of_turn) = (closed(), closed());
    let (waits, is_in_turn) = (Arc::clone(&of_turn), Arc::new(AtomicBool::new(false)));
    let begun = Arc::clone(&is_in_turn);
    let tasks = gated_activities(&of_activities).workflow("fan", move |context| {
        let all: Vec<_> = (0..ACTIVITIES)
            .map(|_| context.begin_activity("slow", ""))
            .collect();
        context.event("go")?;
        begun.store(true, Ordering::SeqCst);
        wait_for(&waits);
        for id in all {
            context.wait(id)?.unwrap();
        }
        Some(End::Completed("all".to_owned()))
    });
    let world = World::new().await;
    let (node, _worker, tasks) = world.with_worker("shop", tasks).await;
    start(&node, "fan", "a", "").await;
    eventually(async || tasks.ran().len() == ACTIVITIES && reminded(&node).await >= 1.0).await;
    raise(&node, "a", "go", "1").await;
    eventually(async || is_in_turn.load(Ordering::SeqCst)).await;
    let (before, already) = (asked(&node).await, reminded(&node).await);
    open(&of_activities);
    // All of them queue behind the turn.
    let labels = [&format!("actor_type=\"{WORKFLOW}\"") as &str];
    let pending = "dapr_runtime_actor_pending_actor_calls";
    node.counts(pending, &labels, ACTIVITIES as f64).await;
    open(&of_turn);
    assert_eq!(output(&node, "a").await, "all");
    let [.., transactions] = asked_since(&node, before).await;
    // The turn, all results, and the turn that consumes them.
    assert_eq!(transactions, 3.0);
    eventually(async || reminded(&node).await - already >= 2.0).await;
    assert_eq!(reminded(&node).await - already, 2.0);
    let results = history(&node, "a")
        .await
        .into_iter()
        .filter_map(|event| match event.event_type {
            Some(EventType::TaskCompleted(done)) => Some(done.task_scheduled_id),
            _ => None,
        });
    let mut results: Vec<_> = results.collect();
    results.sort_unstable();
    assert_eq!(results.len(), ACTIVITIES);
    results.dedup();
    assert_eq!(results.len(), ACTIVITIES);
}
