//! More records than the client buffers, on a single-threaded runtime as in a sidecar.

use std::thread;

use outrigger_component::pubsub::{BulkEntry, BulkPublish};
use tokio::sync::oneshot;

use super::*;

/// Several times `channelBufferSize`.
const RECORDS: usize = 2000;

/// Invariant: while records wait for a busy app, other tasks of the thread run, and all records arrive.
pub(super) async fn waiting_records_do_not_starve_tasks(address: &str) {
    let broker = open(address, "backlog", &[("initialOffset", "oldest")])
        .await
        .unwrap();
    let entries = (0..RECORDS).map(|number| BulkEntry {
        id: number.to_string(),
        data: number.to_string().into(),
        ..BulkEntry::default()
    });
    let bulk = BulkPublish {
        topic: "backlog".to_owned(),
        entries: entries.collect(),
        metadata: Default::default(),
    };
    let failed = broker.publish_bulk(&bulk).await.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    broker.close().await;
    let (done, finished) = oneshot::channel();
    let address = address.to_owned();
    // Not joined: if the invariant is broken, the thread never ends.
    let _thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let came = runtime.block_on(consume(&address));
        // The receiver may have given up.
        let _told = done.send(came);
    });
    let came = tokio::time::timeout(SOON, finished).await;
    assert_eq!(came.expect("the thread has time for its tasks").unwrap(), RECORDS);
}

/// Consumes all records with an app that answers later; returns their number.
async fn consume(address: &str) -> usize {
    let broker = open(address, "backlog", &[("initialOffset", "oldest")])
        .await
        .unwrap();
    let mut subscription = subscribe(&broker, "backlog", 16).await;
    for _ in 0..RECORDS {
        let delivery = next(&mut subscription).await;
        tokio::spawn(async move {
            // A busy thread sees timers and network events last.
            tokio::time::sleep(Duration::from_millis(1)).await;
            delivery.receipt.acknowledge();
        });
    }
    subscription.ended().await.unwrap();
    broker.close().await;
    RECORDS
}
