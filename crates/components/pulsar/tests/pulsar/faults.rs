//! Vanished members and connections. Invariant: unacknowledged messages are redelivered.

use super::*;

/// The member's task is aborted while the app has a message.
pub(super) async fn killed_member_loses_nothing(address: &str) {
    let broker = open(address, "killed", &[("disableBatching", "true")])
        .await
        .unwrap();
    let mut first = subscribe(&broker, "killed").await;
    publish(&broker, "killed", &["1", "2", "3"], &[]).await;
    let held = next(&mut first).await;
    drop(first);
    let mut second = subscribe(&broker, "killed").await;
    held.receipt.acknowledge();
    assert_eq!(texts(&mut second, 3).await, ["1", "2", "3"]);
    second.ended().await.unwrap();
    broker.close().await;
}

/// The broker resends it on the new connection while the app still handles it; the app's acknowledgement
/// counts.
pub(super) async fn does_not_redeliver_held_messages(through: &str, proxy: &mut Proxy) {
    use outrigger_component_conformance::Link;
    let broker = open(through, "still", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "still").await;
    publish(&broker, "still", &["held"], &[]).await;
    let held = next(&mut subscription).await;
    proxy.cut();
    proxy.restore();
    let after = message("still", "after", &[]);
    while broker.publish(&after).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let delivery = next(&mut subscription).await;
    assert_eq!(text(&delivery), "after");
    delivery.receipt.acknowledge();
    quiet(&mut subscription).await;
    held.receipt.acknowledge();
    subscription.ended().await.unwrap();
    let mut subscription = subscribe(&broker, "still").await;
    quiet(&mut subscription).await;
    subscription.ended().await.unwrap();
    broker.close().await;
}
