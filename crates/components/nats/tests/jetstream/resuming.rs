//! The server deletes a consumer without a durable name after five seconds without a subscriber.

use super::*;

async fn publish(broker: &Arc<dyn PubSub>, texts: &[&str]) {
    for text in texts {
        broker.publish(&message("orders", text)).await.unwrap();
    }
}

/// Waits until the server has no consumer.
async fn until_forgotten(server: &Nats) {
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut stream = jetstream::new(client).get_stream("all").await.unwrap();
    let forgetting = async {
        while stream.info().await.unwrap().state.consumer_count > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, forgetting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_outage_skips_and_repeats_nothing() {
    let Some(server) = started().await else { return };
    let publisher = open(&server.url(), "publisher", &[]).await.unwrap();
    let mut proxy = Proxy::start(server.port()).await;
    let url = format!("nats://127.0.0.1:{}", proxy.port);
    publish(&publisher, &["before"]).await;
    let mut subscriptions = Vec::new();
    // One has not received anything yet.
    for policy in ["all", "new"] {
        let broker = anonymous(&url, &[("deliverPolicy", policy), ("ackWait", "60s")]).await;
        let subscription = subscribe(&broker, "orders").await.unwrap();
        subscriptions.push((broker, subscription));
    }
    let (_, all) = &mut subscriptions[0];
    let settled = next(all).await;
    assert_eq!(settled.message.data, "before");
    settled.receipt.acknowledge();
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.cut();
    publish(&publisher, &["during"]).await;
    until_forgotten(&server).await;
    proxy.restore();
    for (_, subscription) in &mut subscriptions {
        let delivery = next(subscription).await;
        assert_eq!(delivery.message.data, "during");
        delivery.receipt.acknowledge();
    }
    publish(&publisher, &["after", "later"]).await;
    for (_, subscription) in &mut subscriptions {
        let returned = next(subscription).await;
        assert_eq!(returned.message.data, "after");
        returned.receipt.reject();
        let settled = next(subscription).await;
        assert_eq!(settled.message.data, "later");
        settled.receipt.acknowledge();
    }
    // The server forgets returned messages too.
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.cut();
    until_forgotten(&server).await;
    proxy.restore();
    for (broker, mut subscription) in subscriptions {
        let again = next(&mut subscription).await;
        assert_eq!(again.message.data, "after");
        again.receipt.acknowledge();
        broker.close().await;
    }
    publisher.close().await;
}

/// A stream deleted and recreated is read from its start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_recreated_stream_from_start() {
    let Some(server) = started().await else { return };
    let broker = anonymous(&server.url(), &[("deliverPolicy", "new")]).await;
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    publish(&broker, &["1", "2"]).await;
    for _ in 0..2 {
        next(&mut subscription).await.receipt.acknowledge();
    }
    let client = async_nats::connect(server.url()).await.unwrap();
    jetstream::new(client).delete_stream("all").await.unwrap();
    make_stream(&server).await;
    publish(&broker, &["3"]).await;
    assert_eq!(next(&mut subscription).await.message.data, "3");
    broker.close().await;
}
