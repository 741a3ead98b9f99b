//! Redelivery by a real server.

use std::time::Instant;

use super::*;

const ORDER: &str = r#"{"specversion":"1.0","id":"order-1","data":1}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivers_failed_after_ack_wait() {
    let Some(server) = started().await else { return };
    let broker = open(&server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    broker.publish(&message("orders", ORDER)).await.unwrap();
    let failed = next(&mut subscription).await;
    let begun = Instant::now();
    failed.receipt.reject();
    let again = next(&mut subscription).await;
    let pause = begun.elapsed();
    assert!(
        pause >= Duration::from_millis(2900),
        "ackWait is 3s, not {pause:?}"
    );
    assert_eq!(again.message.redelivered, Some(1));
    again.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Bulk subscriptions rely on it: no further message arrives while this many are unsettled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_respects_window() {
    let Some(server) = started().await else { return };
    let url = server.url();
    let broker = open(&url, "few", &[("maxAckPending", "2")]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    for text in ["1", "2", "3"] {
        broker.publish(&message("orders", text)).await.unwrap();
    }
    let held = [next(&mut subscription).await, next(&mut subscription).await];
    quiet(&mut subscription, Duration::from_millis(500)).await;
    assert_eq!(subscription.window().get(), held.len());
    for delivery in held {
        delivery.receipt.acknowledge();
    }
    next(&mut subscription).await.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
    for (more, window) in [
        (("maxAckPending", ""), 1000),
        (("maxAckPending", "-1"), usize::MAX),
        (("ackPolicy", "none"), usize::MAX),
    ] {
        let broker = open(&url, &format!("other{window}{}", more.0), &[more])
            .await
            .unwrap();
        let mut subscription = subscribe(&broker, "orders").await.unwrap();
        next(&mut subscription).await.receipt.acknowledge();
        assert_eq!(subscription.window().get(), window, "{more:?}");
        subscription.ended().await.unwrap();
        broker.close().await;
    }
}

/// A stream that keeps a message until one consumer has acknowledged it.
async fn work_queue(url: &str) -> stream::Stream {
    let client = async_nats::connect(url).await.unwrap();
    let config = stream::Config {
        name: "work".to_owned(),
        subjects: vec!["work".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    };
    jetstream::new(client).create_stream(config).await.unwrap()
}

/// They share a consumer, whichever member created it, even if they start at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_shares_work_queue() {
    let Some(server) = Nats::start("") else { return };
    let url = server.url();
    let mut stream = work_queue(&url).await;
    let first = open(&url, "app", &[("concurrencyMode", "parallel")])
        .await
        .unwrap();
    let second = open(&url, "app", &[("concurrencyMode", "parallel")])
        .await
        .unwrap();
    for round in 0..3 {
        let (one, two) = tokio::join!(subscribe(&first, "work"), subscribe(&second, "work"));
        let (mut one, mut two) = (one.unwrap(), two.unwrap());
        let mut came = Vec::new();
        let mut each = [0, 0];
        for number in 0..40 {
            let text = format!("{round}-{number}");
            first.publish(&message("work", &text)).await.unwrap();
        }
        for _ in 0..40 {
            let (member, delivery) = tokio::select! {
                delivery = next(&mut one) => (0, delivery),
                delivery = next(&mut two) => (1, delivery),
            };
            assert_eq!(delivery.message.redelivered, Some(0));
            each[member] += 1;
            came.push(String::from_utf8(delivery.message.data.to_vec()).unwrap());
            delivery.receipt.acknowledge();
        }
        // Longer than ackWait.
        tokio::join!(
            quiet(&mut one, Duration::from_secs(4)),
            quiet(&mut two, Duration::from_secs(4))
        );
        came.sort_unstable();
        came.dedup();
        assert_eq!(came.len(), 40, "{came:?}");
        assert!(each.iter().all(|count| *count > 0), "{each:?}");
        let info = stream.info().await.unwrap();
        assert_eq!((info.state.messages, info.state.consumer_count), (0, 1));
        let (one, two) = tokio::join!(one.ended(), two.ended());
        one.and(two).unwrap();
    }
    first.close().await;
    second.close().await;
}

/// Each delay is the ack deadline of a delivery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handler_keeps_message_with_short_backoff() {
    let Some(server) = started().await else { return };
    let pauses = [("ackWait", "60s"), ("backOff", "2s,1s"), ("maxDeliver", "3")];
    let broker = open(&server.url(), "app", &pauses).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    broker.publish(&message("orders", "slow")).await.unwrap();
    let held = next(&mut subscription).await;
    quiet(&mut subscription, Duration::from_secs(5)).await;
    held.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Consumers without a shared name would be two, which the server rejects for a work queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_queue_allows_one_consumer_per_topic() {
    let Some(server) = Nats::start("") else { return };
    let url = server.url();
    work_queue(&url).await;
    for other in [("durableName", ""), ("durableName", "other")] {
        let first = open(&url, "app", &[]).await.unwrap();
        let second = open(&url, "app", &[other]).await.unwrap();
        let subscription = subscribe(&first, "work").await.unwrap();
        let error = subscribe(&second, "work").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration, "{error}");
        for part in ["work", "not unique", "durableName", "queueGroupName"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        subscription.ended().await.unwrap();
        first.close().await;
        second.close().await;
    }
}

/// Neither acknowledgement nor rejection arrives: the server must detect it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivers_after_consumer_loss_and_ack_wait() {
    let Some(server) = started().await else { return };
    let mut proxy = Proxy::start(server.port()).await;
    let url = format!("nats://127.0.0.1:{}", proxy.port);
    let vanishing = open(&url, "app", &[]).await.unwrap();
    let mut subscription = subscribe(&vanishing, "orders").await.unwrap();
    vanishing.publish(&message("orders", ORDER)).await.unwrap();
    let held = next(&mut subscription).await;
    let other = open(&server.url(), "app", &[]).await.unwrap();
    let mut waiting = subscribe(&other, "orders").await.unwrap();
    // The last in-progress notice was at most a second ago.
    let begun = Instant::now();
    proxy.cut();
    let again = next(&mut waiting).await;
    let pause = begun.elapsed();
    assert!(
        pause >= Duration::from_millis(1500),
        "ackWait is 3s, not {pause:?}"
    );
    assert_eq!(again.message.data, ORDER);
    assert_eq!(again.message.redelivered, Some(1));
    again.receipt.acknowledge();
    waiting.ended().await.unwrap();
    other.close().await;
    drop((held, subscription));
}

/// The server considers a message done once it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledgements_is_at_most_once() {
    let Some(server) = started().await else { return };
    // Without acknowledgements there is no ack deadline.
    let none = [("ackPolicy", "none"), ("ackWait", "")];
    let broker = open(&server.url(), "app", &none).await.unwrap();
    assert!(!broker.features().at_least_once);
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    for text in ["refused", "held"] {
        broker.publish(&message("orders", text)).await.unwrap();
    }
    let refused = next(&mut subscription).await;
    assert_eq!(refused.message.data, "refused");
    refused.receipt.reject();
    let held = next(&mut subscription).await;
    assert_eq!(held.message.data, "held");
    quiet(&mut subscription, Duration::from_secs(2)).await;
    // This removes its consumer.
    drop((subscription, held));
    broker.close().await;
    let broker = open(&server.url(), "app", &none).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    quiet(&mut subscription, Duration::from_secs(2)).await;
    broker.publish(&message("orders", "later")).await.unwrap();
    let later = next(&mut subscription).await;
    assert_eq!(later.message.data, "later");
    later.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// On one thread, because the log is captured per thread.
#[tokio::test]
async fn logs_message_dropped_by_server() {
    let Some(server) = started().await else { return };
    let lines = outrigger_testing::log_lines::Lines::new();
    let errors = || lines.take("dapr.contrib", tracing::Level::ERROR);
    let few = [("ackWait", "1s"), ("maxDeliver", "2")];
    let broker = open(&server.url(), "app", &few).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    broker.publish(&message("orders", "first")).await.unwrap();
    next(&mut subscription).await.receipt.acknowledge();
    broker.publish(&message("orders", ORDER)).await.unwrap();
    for attempt in 0..2 {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.redelivered, Some(attempt));
        assert_eq!(errors(), []);
        delivery.receipt.reject();
    }
    quiet(&mut subscription, Duration::from_secs(3)).await;
    let errors = errors();
    let [error] = &errors[..] else {
        panic!("{errors:#?}")
    };
    for part in [
        "topic orders",
        "message order-1 ",
        "sequence 2 ",
        "stream all",
        "maxDeliver 2",
        "deadLetterTopic",
    ] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}
