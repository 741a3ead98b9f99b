//! Settings of components and subscriptions on a real broker.

use super::*;

/// A component with durable queues and additional settings.
async fn lasting(url: &str, group: &str, more: &[(&str, &str)]) -> Arc<dyn PubSub> {
    open(url, group, &[&LASTING[..], more].concat()).await.unwrap()
}

/// Numbers of ready messages and of consumers of a queue.
async fn queue(url: &str, name: &str) -> (u32, u32) {
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel.queue_declare(name.into(), passive, FieldTable::default());
    let queue = queue.await.unwrap();
    connection.close(200, "OK".into()).await.unwrap();
    (queue.message_count(), queue.consumer_count())
}

async fn quiet(subscription: &mut Subscription, time: Duration) {
    let event = tokio::time::timeout(time, subscription.next()).await;
    assert!(event.is_err(), "{event:?}");
}

async fn publish(broker: &Arc<dyn PubSub>, topic: &str, texts: &[&str]) {
    for text in texts {
        broker.publish(&message(topic, text, &[])).await.unwrap();
    }
}

async fn comes(subscription: &mut Subscription, texts: &[&str]) {
    for text in texts {
        let delivery = next(subscription).await;
        assert_eq!(delivery.message.data, *text);
        delivery.receipt.acknowledge();
    }
}

pub(super) async fn settings_take_effect(url: &str, rabbit: &RabbitMq) {
    auto_ack_is_at_most_once(url).await;
    single_active_consumer_gets_all(url).await;
    new_group_starts_at_latest(url).await;
    requeues_failed_with_dead_letters_enabled(url).await;
    queue_name_is_configurable(url).await;
    higher_priority_is_delivered_first(url).await;
    max_len_bytes_bounds_queue(url).await;
    prefetch_count_bounds_deliveries(url).await;
    let broker = open(url, "named", &[("clientName", "a client of the tests")]).await;
    broker.unwrap().close().await;
    let logged = async {
        while !rabbit.log().contains("a client of the tests") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, logged).await.unwrap();
}

async fn auto_ack_is_at_most_once(url: &str) {
    let broker = lasting(url, "once", &[("autoAck", "true")]).await;
    assert!(!broker.features().at_least_once);
    let mut subscription = subscribe(&broker, "once", &[]).await.unwrap();
    publish(&broker, "once", &["refused", "held"]).await;
    next(&mut subscription).await.receipt.reject();
    let held = next(&mut subscription).await;
    assert_eq!(held.message.data, "held");
    assert_eq!(subscription.window().get(), usize::MAX, "nothing is waited for");
    // A returned message would be requeued after a second.
    quiet(&mut subscription, Duration::from_secs(2)).await;
    drop((subscription, held));
    broker.close().await;
    assert_eq!(queue(url, "once-once").await, (0, 0));
}

async fn single_active_consumer_gets_all(url: &str) {
    let (one, two) = (
        lasting(url, "single", &[]).await,
        lasting(url, "single", &[]).await,
    );
    let metadata = [("singleActiveConsumer", "true")];
    let mut first = subscribe(&one, "single", &metadata).await.unwrap();
    let mut second = subscribe(&two, "single", &metadata).await.unwrap();
    let texts: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    publish(&one, "single", &texts).await;
    comes(&mut first, &texts).await;
    quiet(&mut second, Duration::from_millis(300)).await;
    first.ended().await.unwrap();
    publish(&one, "single", &texts).await;
    comes(&mut second, &texts).await;
    second.ended().await.unwrap();
    one.close().await;
    two.close().await;
}

async fn new_group_starts_at_latest(url: &str) {
    let old = lasting(url, "old", &[]).await;
    let mut first = subscribe(&old, "begun", &[]).await.unwrap();
    publish(&old, "begun", &["before"]).await;
    let new = lasting(url, "new", &[]).await;
    let mut second = subscribe(&new, "begun", &[]).await.unwrap();
    publish(&old, "begun", &["after"]).await;
    comes(&mut first, &["before", "after"]).await;
    comes(&mut second, &["after"]).await;
    first.ended().await.unwrap();
    second.ended().await.unwrap();
    old.close().await;
    new.close().await;
}

async fn requeues_failed_with_dead_letters_enabled(url: &str) {
    let more = [("enableDeadLetter", "true"), ("requeueInFailure", "true")];
    let broker = lasting(url, "again", &more).await;
    let mut subscription = subscribe(&broker, "again", &[]).await.unwrap();
    publish(&broker, "again", &["x"]).await;
    next(&mut subscription).await.receipt.reject();
    let again = next(&mut subscription).await;
    assert_eq!(again.message.redelivered, Some(1));
    again.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
    assert_eq!(queue(url, "dlq-again-again").await, (0, 0));
}

async fn queue_name_is_configurable(url: &str) {
    let broker = lasting(url, "app", &[]).await;
    let mut subscription = subscribe(&broker, "called", &[("queueName", "of-its-own")])
        .await
        .unwrap();
    assert_eq!(queue(url, "of-its-own").await, (0, 1));
    publish(&broker, "called", &["x"]).await;
    comes(&mut subscription, &["x"]).await;
    subscription.ended().await.unwrap();
    broker.close().await;
}

async fn higher_priority_is_delivered_first(url: &str) {
    let broker = lasting(url, "app", &[]).await;
    let metadata = [("maxPriority", "9")];
    let made = subscribe(&broker, "ranked", &metadata).await.unwrap();
    made.ended().await.unwrap();
    for (text, priority) in [("low", "1"), ("high", "9"), ("middle", "5")] {
        let ranked = message("ranked", text, &[("priority", priority)]);
        broker.publish(&ranked).await.unwrap();
    }
    let mut subscription = subscribe(&broker, "ranked", &metadata).await.unwrap();
    comes(&mut subscription, &["high", "middle", "low"]).await;
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// The oldest messages are dropped.
async fn max_len_bytes_bounds_queue(url: &str) {
    let bounds = [("maxLenBytes", "10")];
    for (group, of_component, of_subscription) in [
        ("component", &bounds[..], &[][..]),
        ("subscription", &[], &bounds),
    ] {
        let broker = lasting(url, group, of_component).await;
        let made = subscribe(&broker, "narrow", of_subscription).await.unwrap();
        made.ended().await.unwrap();
        publish(&broker, "narrow", &["11111", "22222", "33333"]).await;
        assert_eq!(queue(url, &format!("{group}-narrow")).await, (2, 0), "{group}");
        let mut subscription = subscribe(&broker, "narrow", of_subscription).await.unwrap();
        comes(&mut subscription, &["22222", "33333"]).await;
        subscription.ended().await.unwrap();
        broker.close().await;
    }
}

/// Connections that break repeatedly during acknowledgements do not block the consumer.
pub(super) async fn broken_connections_do_not_block_acknowledgements(url: &str, proxy: &mut Proxy) {
    const MESSAGES: usize = 2000;
    let through = format!("amqp://guest:guest@127.0.0.1:{}", proxy.port);
    let broker = lasting(&through, "broken", &[]).await;
    let publisher = lasting(url, "publisher", &[]).await;
    let request = Subscribe {
        topic: "broken".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(1000).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    let publishing = tokio::spawn(async move {
        for number in 0..MESSAGES {
            let message = message("broken", &number.to_string(), &[]);
            publisher.publish(&message).await.unwrap();
        }
        publisher.close().await;
    });
    let mut came = std::collections::HashSet::new();
    while came.len() < MESSAGES {
        let delivery = next(&mut subscription).await;
        delivery.receipt.acknowledge();
        if came.insert(delivery.message.data) && came.len() % 200 == 0 {
            proxy.cut();
            proxy.restore();
        }
    }
    publishing.await.unwrap();
    subscription.ended().await.unwrap();
    broker.close().await;
}

async fn prefetch_count_bounds_deliveries(url: &str) {
    let broker = lasting(url, "few", &[("prefetchCount", "2")]).await;
    let mut subscription = subscribe(&broker, "few", &[]).await.unwrap();
    publish(&broker, "few", &["1", "2", "3", "4"]).await;
    let (first, second) = (next(&mut subscription).await, next(&mut subscription).await);
    quiet(&mut subscription, Duration::from_millis(300)).await;
    assert_eq!(subscription.window().get(), 2);
    assert_eq!(
        queue(url, "few-few").await,
        (2, 1),
        "the others stay in the queue"
    );
    first.receipt.acknowledge();
    comes(&mut subscription, &["3"]).await;
    second.receipt.acknowledge();
    comes(&mut subscription, &["4"]).await;
    subscription.ended().await.unwrap();
    broker.close().await;
}
