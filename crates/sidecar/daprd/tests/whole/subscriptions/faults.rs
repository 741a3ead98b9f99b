//! Restarts of sidecars, and messages that apps reject.

use super::*;

/// Invariant: dead letters are published with the app's permissions; a message that may not go there is not
/// acknowledged.
#[tokio::test]
async fn dead_letter_requires_publish_permission() {
    let (app, got) = keeping(|target, _| app::text(if target == "/orders" { 500 } else { 200 }, "")).await;
    let net = Net::plain();
    let folder = tempfile::tempdir().unwrap();
    let broker = sqlite(&folder.path().join("broker.db"));
    let scoped = format!("{broker}  - name: publishingScopes\n    value: me=orders\n");
    let node = plan(&net, &app)
        .resource(&scoped)
        .resource(&subscription(
            "orders",
            "  deadLetterTopic: dead\n  routes: {default: /orders}\n",
        ))
        .resource(&to("dead", "/dead"))
        .start()
        .await;
    publish(&node, "orders", &json!(1)).await;
    eventually(async || payloads(&got, "/orders").len() > 1).await;
    let labels = ["component=\"broker\"", "success=\"false\"", "topic=\"orders\""];
    let refused = async || {
        node.metric("dapr_component_pubsub_dead_letter_count", &labels)
            .await
    };
    eventually(async || refused().await.is_some_and(|count| count >= 1.0)).await;
    assert!(payloads(&got, "/dead").is_empty());
}

/// Two sidecars with dead-letter topics that form a cycle, for events and for raw payloads: the message
/// carries its count.
#[tokio::test]
async fn dead_letter_cycle_ends() {
    let (app, got) = keeping(|_, _| app::text(404, "")).await;
    let net = Net::plain();
    let folder = tempfile::tempdir().unwrap();
    let broker = sqlite(&folder.path().join("broker.db"));
    let bulk = "  deadLetterTopic: b\n  routes: {default: /a}\n  bulkSubscribe: {enabled: true, maxMessagesCount: 5, \
                maxAwaitDurationMs: 1}\n";
    let first = plan(&net, &app)
        .resource(&broker)
        .resource(&subscription("a", bulk))
        .start()
        .await;
    let raw = |topic: &str| {
        let other = if topic == "raw" { "back" } else { "raw" };
        let more = format!(
            "  deadLetterTopic: {other}\n  metadata: {{rawPayload: 'true'}}\n  routes: {{default: /{topic}}}\n"
        );
        subscription(topic, &more)
    };
    let second = net
        .sidecar("other")
        .app(app.port)
        .resource(&broker)
        .resource(&subscription(
            "b",
            "  deadLetterTopic: a\n  routes: {default: /b}\n",
        ))
        .resource(&raw("raw"))
        .resource(&raw("back"))
        .start()
        .await;
    publish(&first, "a", &json!(1)).await;
    let answer = second.ask(post(
        "/v1.0/publish/broker/raw?metadata.rawPayload=true",
        "payload",
    ));
    assert_eq!(answer.await.status, 204);
    let calls = |path: &str| {
        got.lock()
            .unwrap()
            .iter()
            .filter(|(target, _)| target == path)
            .count()
    };
    // The first attempt, plus one per dead-lettering.
    eventually(async || calls("/a") + calls("/b") >= 17 && calls("/raw") + calls("/back") >= 17).await;
    // Later messages arrive after it was dropped, so the sidecars are done.
    for (node, topic) in [(&first, "a"), (&second, "b"), (&second, "raw"), (&second, "back")] {
        let labels = ["component=\"broker\"", &format!("topic=\"{topic}\"")];
        let waiting = async || {
            let count = node
                .metric("dapr_component_pubsub_ingress_in_flight", &labels)
                .await;
            count.unwrap_or_default()
        };
        eventually(async || waiting().await == 0.0).await;
    }
    assert_eq!(calls("/a") + calls("/b"), 17);
    assert_eq!(calls("/raw") + calls("/back"), 17);
}

/// An app that fails the first message of a key twice; returns what it gets of that key and of another.
/// `routes` configures the handling of failures.
async fn failed_twice(routes: &str) -> [Vec<Value>; 2] {
    let left = Mutex::new(2);
    let (app, got) = keeping(move |target, event| {
        let mut left = left.lock().unwrap();
        if target == "/orders" && event["data"] == "a1" && *left > 0 {
            *left -= 1;
            return app::text(500, "");
        }
        app::text(200, "")
    })
    .await;
    let net = Net::plain();
    let folder = tempfile::tempdir().unwrap();
    let broker = sqlite(&folder.path().join("broker.db"));
    let broker = format!("{broker}  - name: publishingScopes\n    value: me=orders;publisher=orders\n");
    let start = async || {
        let plan = plan(&net, &app).resource(&broker);
        plan.resource(&subscription("orders", routes)).start().await
    };
    // The group exists, so a new member gets all messages at once.
    start().await.stop().await.unwrap();
    let publisher = net.sidecar("publisher").resource(&broker).start().await;
    for data in ["a1", "a2", "b1", "a3", "a4", "b2"] {
        let topic = format!("orders?metadata.partitionKey={}", &data[..1]);
        publish(&publisher, &topic, &json!(data)).await;
    }
    let node = start().await;
    let of = |key: &str| {
        let mut all = payloads(&got, "/orders");
        all.retain(|data| data.as_str().unwrap().starts_with(key));
        all
    };
    eventually(async || of("b").len() == 2).await;
    eventually(async || of("a").len() >= 6).await;
    node.stop().await.unwrap();
    [of("a"), of("b")]
}

/// Invariant: without a retry policy too, a failed message delays others with its key, and no other messages,
/// until it is redelivered.
#[tokio::test]
async fn failed_message_blocks_its_key() {
    let [a, b] = failed_twice("  routes: {default: /orders}\n").await;
    assert_eq!(a, ["a1", "a1", "a1", "a2", "a3", "a4"]);
    assert_eq!(b, ["b1", "b2"]);
}

/// Invariant: the same for a message that cannot be published to its dead-letter topic.
#[tokio::test]
async fn unpublishable_dead_letter_blocks_its_key() {
    let [a, b] = failed_twice("  deadLetterTopic: dead\n  routes: {default: /orders}\n").await;
    assert_eq!(a, ["a1", "a1", "a1", "a2", "a3", "a4"]);
    assert_eq!(b, ["b1", "b2"]);
}

/// Invariant: during rolling restarts of three sidecars under load every message arrives, and messages with
/// the same key in order.
#[tokio::test]
async fn rolling_restarts_lose_no_message() {
    const MESSAGES: usize = 90;
    const KEYS: usize = 3;
    let (app, got) = keeping(|_, _| app::text(200, "")).await;
    let net = Net::plain();
    let folder = tempfile::tempdir().unwrap();
    let broker = sqlite(&folder.path().join("broker.db"));
    let start = async || {
        let plan = plan(&net, &app).resource(&broker);
        plan.resource(&to("orders", "/orders")).start().await
    };
    let mut nodes = vec![start().await, start().await, start().await];
    let publisher = net.sidecar("publisher").resource(&broker).start().await;
    let publishing = async {
        for number in 0..MESSAGES {
            let topic = format!("orders?metadata.partitionKey={}", number % KEYS);
            publish(&publisher, &topic, &json!(number)).await;
        }
    };
    let restarting = async {
        for _ in 0..6 {
            nodes.remove(0).stop().await.unwrap();
            nodes.push(start().await);
        }
    };
    tokio::join!(publishing, restarting);
    let first_times = || {
        let mut seen: Vec<usize> = Vec::new();
        for data in payloads(&got, "/orders") {
            let number = usize::try_from(data.as_u64().unwrap()).unwrap();
            if !seen.contains(&number) {
                seen.push(number);
            }
        }
        seen
    };
    eventually(async || first_times().len() == MESSAGES).await;
    for key in 0..KEYS {
        let of_key: Vec<_> = first_times().into_iter().filter(|n| n % KEYS == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

/// Invariant: a message that the app rejects is dead-lettered with its trace after its attempts. Later
/// messages with its key wait for that, and no other messages do.
#[tokio::test]
async fn dead_letters_poison_messages() {
    let (app, got) = keeping(|target, event| {
        let poisoned = target == "/orders" && event["data"] == "poison";
        app::text(if poisoned { 500 } else { 200 }, "")
    })
    .await;
    let net = Net::plain();
    let folder = tempfile::tempdir().unwrap();
    let node = plan(&net, &app)
        .resource(&sqlite(&folder.path().join("broker.db")))
        .resource(RETRY)
        .resource(&subscription(
            "orders",
            "  deadLetterTopic: dead\n  routes: {default: /orders}\n",
        ))
        .resource(&to("dead", "/dead"))
        .start()
        .await;
    for (key, data) in [("a", "before"), ("a", "poison"), ("a", "after"), ("b", "other")] {
        let topic = format!("orders?metadata.partitionKey={key}");
        publish(&node, &topic, &json!(data)).await;
    }
    eventually(async || payloads(&got, "/orders").len() == 6 && payloads(&got, "/dead").len() == 1).await;
    assert_eq!(payloads(&got, "/dead"), [json!("poison")]);
    let mut of_key = payloads(&got, "/orders");
    of_key.retain(|data| data != "other");
    assert_eq!(of_key, ["before", "poison", "poison", "poison", "after"]);
    let labels = ["component=\"broker\"", "success=\"true\"", "topic=\"orders\""];
    node.counts("dapr_component_pubsub_dead_letter_count", &labels, 1.0)
        .await;
}
