//! Vanished members. Invariant: unacknowledged records are redelivered, and late acknowledgements have no
//! effect.

use super::{group::positions, *};

/// The network drops everything: for the brokers the member is dead while the app still works.
pub(super) async fn silent_connection_loses_nothing(through: &str, proxy: &mut Proxy) {
    let one = open(through, "silent", &[]).await.unwrap();
    let mut first = subscribe(&one, "silent", 8).await;
    publish(&one, "silent", "a", &["1", "2"]).await;
    next(&mut first).await.receipt.acknowledge();
    let held = next(&mut first).await;
    assert_eq!(text(&held), "2");
    proxy.lose();
    // Uses new connections, which the proxy lets pass.
    let two = open(through, "silent", &[]).await.unwrap();
    let mut second = subscribe(&two, "silent", 8).await;
    let again = next_until(&mut second, "2").await;
    held.receipt.acknowledge();
    assert!(
        positions(through, "silent", "silent").await[&0] <= 1,
        "nothing is acknowledged for another"
    );
    again.receipt.acknowledge();
    second.ended().await.unwrap();
    assert_eq!(positions(through, "silent", "silent").await[&0], 2);
    one.close().await;
    two.close().await;
}

/// The member's task is aborted while the app has a record.
pub(super) async fn killed_consumer_loses_nothing(address: &str) {
    let one = open(address, "killed", &[]).await.unwrap();
    let mut first = subscribe(&one, "killed", 8).await;
    publish(&one, "killed", "a", &["1", "2", "3"]).await;
    let held = next(&mut first).await;
    drop(first);
    let mut second = subscribe(&one, "killed", 8).await;
    held.receipt.acknowledge();
    for expected in ["1", "2", "3"] {
        let delivery = next(&mut second).await;
        assert_eq!(text(&delivery), expected);
        delivery.receipt.acknowledge();
    }
    second.ended().await.unwrap();
    assert_eq!(positions(address, "killed", "killed").await[&0], 3);
    one.close().await;
}

/// The first acknowledgement may not have arrived.
async fn next_until(subscription: &mut Subscription, expected: &str) -> Delivery {
    loop {
        let delivery = next(subscription).await;
        if text(&delivery) == expected {
            return delivery;
        }
        delivery.receipt.acknowledge();
    }
}
