//! Instances whose sidecar process is killed.

use super::*;

/// Invariant: each instance ends normally, with each activity and each result once in its history, even if
/// its sidecar is killed between any of its steps.
#[tokio::test(flavor = "multi_thread")]
async fn chains_survive_sidecar_kills() {
    const KILLS: u64 = 6;
    let world = World::new().await;
    let tasks = Arc::new(chain(Tasks::default()));
    let mut ids = Vec::new();
    for round in 0..KILLS {
        let process = world.sidecar("shop").spawn().await;
        let worker = Worker::of_process(&process, &tasks).await;
        world.hosts("shop", 1).await;
        let before = tasks.ran().len();
        for chain in 0..4 {
            let id = format!("{round}-{chain}");
            let begin = format!("/v1.0/workflows/dapr/chain/start?instanceID={id}");
            let started = process.try_ask(post(&begin, "5")).await.unwrap();
            assert_eq!(started.status, 202, "{}", started.text());
            ids.push(id);
        }
        eventually(async || tasks.ran().len() > before).await;
        // A different time in each round.
        tokio::time::sleep(Duration::from_millis(7 * round)).await;
        drop(process);
        worker.leave().await;
        world.hosts("shop", 0).await;
    }
    let node = world.sidecar("shop").start().await;
    let _worker = Worker::connect(&node, &tasks).await;
    for id in &ids {
        assert_eq!(output(&node, id).await, "40");
        let events = history(&node, id).await;
        assert_eq!(steps(&events), steps_of_chain(), "{id}: {events:?}");
    }
}
