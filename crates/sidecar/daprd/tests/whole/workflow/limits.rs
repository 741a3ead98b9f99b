//! Instances with changes larger than a transaction of the store.

use outrigger_components_testing::server::Etcd;
use serde_json::json;

use super::*;
use crate::common::client::send;

/// Number of activities: more than the 128 operations of an etcd transaction.
const WIDTH: u32 = 200;

fn component(endpoint: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  type: state.etcd\n  version: v2\n  \
         metadata:\n  - name: endpoints\n    value: '{endpoint}'\n  - name: actorStateStore\n    value: 'true'\n"
    )
}

/// Number of keys in etcd.
async fn keys(port: u16) -> u64 {
    // From the first key to the last.
    let every = json!({"key": "AA==", "range_end": "AA==", "count_only": true});
    let answer = send(port, post("/v3/kv/range", every.to_string())).await.unwrap();
    let answer = crate::common::Answer::read(answer).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let count = &answer.json()["count"];
    count.as_str().map_or(0, |count| count.parse().unwrap())
}

/// Invariant: a step larger than a transaction completes like any other, each activity runs once, and a purge
/// leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn completes_fan_out_above_etcd_transaction() {
    let Some(etcd) = Etcd::start() else { return };
    let endpoint = etcd.endpoint();
    let port = endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
    let world = World::new().await;
    let plan = world.net.sidecar("shop").resource(&component(&endpoint));
    let plan = world.control.with_scheduler(plan);
    let node = plan.flag(&world.placement.flag()).start().await;
    let tasks = Tasks::default()
        .activity("double", |request| double(request.input.as_deref()))
        .workflow("fan", |context| {
            let begun = (0..WIDTH).map(|n| context.begin_activity("double", &n.to_string()));
            let begun: Vec<_> = begun.collect();
            let mut sum = 0;
            for id in begun {
                sum += context.wait(id)?.unwrap().parse::<u32>().unwrap();
            }
            Some(End::Completed(sum.to_string()))
        });
    let tasks = Arc::new(tasks);
    let _worker = Worker::connect(&node, &tasks).await;
    world.hosts("shop", 1).await;
    start(&node, "fan", "a", "").await;
    assert_eq!(output(&node, "a").await, (WIDTH * (WIDTH - 1)).to_string());
    assert_eq!(tasks.ran().len(), WIDTH as usize);
    let events = history(&node, "a").await;
    let done = steps(&events)
        .into_iter()
        .filter(|(step, _)| *step == "completed");
    assert_eq!(done.count(), WIDTH as usize);
    // Plus its metadata and custom status.
    assert_eq!(keys(port).await, events.len() as u64 + 2);
    let purged = node.ask(post("/v1.0/workflows/dapr/a/purge", "")).await;
    assert_eq!(purged.status, 202, "{}", purged.text());
    assert_eq!(keys(port).await, 0);
}
