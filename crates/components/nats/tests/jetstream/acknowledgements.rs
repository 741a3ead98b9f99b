//! A consumer on a real server whose acknowledgements cover all earlier messages.

use async_nats::jetstream::consumer::{AckPolicy, Info, push};
use futures::StreamExt;

use super::*;

const ALL: [(&str, &str); 3] = [
    ("ackPolicy", "all"),
    ("queueGroupName", ""),
    ("concurrencyMode", "parallel"),
];

async fn stream(server: &Nats) -> stream::Stream {
    let client = async_nats::connect(server.url()).await.unwrap();
    jetstream::new(client).get_stream("all").await.unwrap()
}

/// Waits until the server reports this of the consumer.
async fn until(stream: &stream::Stream, said: impl Fn(&Info) -> bool) {
    let saying = async {
        while !said(&stream.consumer_info("app").await.unwrap()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, saying).await.unwrap();
}

async fn publish(broker: &Arc<dyn PubSub>, texts: &[&str]) {
    for text in texts {
        broker.publish(&message("orders", text)).await.unwrap();
    }
}

async fn expect(subscription: &mut Subscription, text: &str) -> Delivery {
    let delivery = next(subscription).await;
    assert_eq!(delivery.message.data, text);
    delivery
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivers_failed_despite_later_acknowledgement() {
    let Some(server) = started().await else { return };
    let stream = stream(&server).await;
    let broker = open(&server.url(), "app", &ALL).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    publish(&broker, &["1", "2", "3"]).await;
    let failed = expect(&mut subscription, "1").await;
    expect(&mut subscription, "2").await.receipt.acknowledge();
    failed.receipt.reject();
    let slow = expect(&mut subscription, "3").await;
    let again = expect(&mut subscription, "1").await;
    assert_eq!(again.message.redelivered, Some(1));
    let info = stream.consumer_info("app").await.unwrap();
    assert_eq!(info.config.ack_policy, AckPolicy::All);
    assert_eq!((info.ack_floor.stream_sequence, info.num_ack_pending), (0, 3));
    again.receipt.acknowledge();
    until(&stream, |info| info.ack_floor.stream_sequence == 2).await;
    // Longer than ackWait: neither messages held by the app nor finished ones are redelivered.
    quiet(&mut subscription, Duration::from_secs(4)).await;
    slow.receipt.acknowledge();
    until(&stream, |info| info.ack_floor.stream_sequence == 3).await;
    let info = stream.consumer_info("app").await.unwrap();
    assert_eq!((info.num_ack_pending, info.num_redelivered), (0, 0));
    subscription.ended().await.unwrap();
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivers_after_loss_despite_later_acknowledgements() {
    let Some(server) = started().await else { return };
    let stream = stream(&server).await;
    let mut proxy = Proxy::start(server.port()).await;
    let url = format!("nats://127.0.0.1:{}", proxy.port);
    let vanishing = open(&url, "app", &ALL).await.unwrap();
    let mut subscription = subscribe(&vanishing, "orders").await.unwrap();
    publish(&vanishing, &["1", "2"]).await;
    let held = expect(&mut subscription, "1").await;
    expect(&mut subscription, "2").await.receipt.acknowledge();
    proxy.cut();
    until(&stream, |info| !info.push_bound).await;
    let broker = open(&server.url(), "app", &ALL).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    // It arrives before the other consumer's messages, and must not be acknowledged before them.
    publish(&broker, &["3"]).await;
    expect(&mut subscription, "3").await.receipt.acknowledge();
    for text in ["1", "2"] {
        expect(&mut subscription, text).await.receipt.acknowledge();
    }
    until(&stream, |info| info.num_ack_pending == 0).await;
    quiet(&mut subscription, Duration::from_secs(4)).await;
    subscription.ended().await.unwrap();
    broker.close().await;
    drop(held);
}

/// A consumer created by Dapr, with messages left by its sidecar.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_consumer_of_another_client() {
    let Some(server) = started().await else { return };
    let stream = stream(&server).await;
    let broker = open(&server.url(), "app", &ALL).await.unwrap();
    publish(&broker, &["1", "2", "3"]).await;
    let config = push::Config {
        durable_name: Some("app".to_owned()),
        deliver_subject: "_INBOX.of.dapr".to_owned(),
        filter_subject: "orders".to_owned(),
        ack_policy: AckPolicy::All,
        ack_wait: Duration::from_secs(3),
        ..push::Config::default()
    };
    let consumer = stream.create_consumer(config).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    for _ in 0..3 {
        messages.next().await.unwrap().unwrap();
    }
    drop(messages);
    until(&stream, |info| !info.push_bound).await;
    // The server does not redeliver it. For a later one, it would take the deletion as an acknowledgement of
    // this one too.
    assert!(stream.delete_message(1).await.unwrap());
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    publish(&broker, &["4"]).await;
    for text in ["4", "2", "3"] {
        expect(&mut subscription, text).await.receipt.acknowledge();
    }
    until(&stream, |info| info.num_ack_pending == 0).await;
    subscription.ended().await.unwrap();
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_messages_block_nothing() {
    let Some(server) = started().await else { return };
    let stream = stream(&server).await;
    let few = [ALL[0], ALL[1], ALL[2], ("ackWait", "1s"), ("maxDeliver", "2")];
    let broker = open(&server.url(), "app", &few).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    publish(&broker, &["1", "2"]).await;
    let failed = expect(&mut subscription, "1").await;
    expect(&mut subscription, "2").await.receipt.acknowledge();
    failed.receipt.reject();
    expect(&mut subscription, "1").await.receipt.reject();
    until(&stream, |info| info.ack_floor.stream_sequence == 2).await;
    publish(&broker, &["3", "4"]).await;
    let failed = expect(&mut subscription, "3").await;
    expect(&mut subscription, "4").await.receipt.acknowledge();
    assert!(stream.delete_message(3).await.unwrap());
    failed.receipt.reject();
    until(&stream, |info| info.ack_floor.stream_sequence == 4).await;
    subscription.ended().await.unwrap();
    broker.close().await;
}
