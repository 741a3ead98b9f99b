//! Many hosts at once.

use tokio::task::JoinSet;

use crate::running::{Sidecar, TIMEOUT, host, start};

const HOSTS: usize = 200;
/// Streams per connection.
const SHARED: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::async_yields_async,
    reason = "a task's connections last until all have ended"
)]
async fn batches_joins_into_few_disseminations() {
    let running = start(&["--disseminate-timeout=60s"]).await;
    let mut tasks = JoinSet::new();
    for number in 0..HOSTS / SHARED {
        let mut client = running.client().await;
        for stream in 0..SHARED {
            let host = host(&format!("10.0.{number}.{stream}:50002"), &["t"]);
            let mut sidecar = Sidecar::connect(&mut client, host).await;
            tasks.spawn(async move {
                loop {
                    let (_, table) = sidecar.table().await.unwrap();
                    if table.entries["t"].load_map.len() == HOSTS {
                        // It keeps answering until the end of the test.
                        return sidecar.obey();
                    }
                }
            });
        }
    }
    let mut obeying = Vec::new();
    while let Some(ended) = tokio::time::timeout(TIMEOUT * 2, tasks.join_next())
        .await
        .expect("not in time")
    {
        let task = ended.unwrap();
        obeying.push(task);
    }
    assert_eq!(obeying.len(), HOSTS);
    let count = running.metric("dapr_placement_rounds_total").await.unwrap();
    let count: f64 = count.parse().unwrap();
    assert!(count <= HOSTS as f64 / 4.0, "{count} disseminations");
    obeying.iter().for_each(tokio::task::JoinHandle::abort);
}
