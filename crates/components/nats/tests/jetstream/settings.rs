//! Effects of settings on a real server.

use std::time::SystemTime;

use super::*;

/// Without a durable name each subscription gets all messages from `deliverPolicy` on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliver_policy_sets_start() {
    let Some(server) = started().await else { return };
    let url = server.url();
    let publisher = open(&url, "app", &[]).await.unwrap();
    for text in ["1", "2"] {
        publisher.publish(&message("orders", text)).await.unwrap();
    }
    // Messages published after a whole second are newer than these.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_secs().to_string();
    publisher.publish(&message("orders", "3")).await.unwrap();
    for (more, expected) in [
        (vec![], vec!["1", "2", "3"]),
        (vec![("deliverPolicy", "last")], vec!["3"]),
        (
            vec![("deliverPolicy", "sequence"), ("startSequence", "2")],
            vec!["2", "3"],
        ),
        (
            vec![("deliverPolicy", "time"), ("startTime", now.as_str())],
            vec!["3"],
        ),
        (vec![("deliverPolicy", "new")], vec![]),
    ] {
        let broker = anonymous(&url, &more).await;
        let mut subscription = subscribe(&broker, "orders").await.unwrap();
        assert_eq!(subscription.concurrency(), None);
        for text in expected {
            let delivery = next(&mut subscription).await;
            assert_eq!(delivery.message.data, text, "{more:?}");
            delivery.receipt.acknowledge();
        }
        quiet(&mut subscription, Duration::from_millis(300)).await;
        broker.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_follows_settings() {
    let Some(server) = started().await else { return };
    let url = server.url();
    let more = [
        ("memoryStorage", "true"),
        ("maxDeliver", "7"),
        ("maxAckPending", "9"),
        ("replicas", "1"),
        ("rateLimit", "1000000"),
        ("heartbeat", "20s"),
        ("flowControl", "true"),
        ("backOff", "4s,5s"),
    ];
    // Consumers of deliver groups have neither flow control nor heartbeats.
    let alone = ("queueGroupName", "");
    let set = open(&url, "set", &[&more[..], &[alone]].concat()).await.unwrap();
    let unset = open(&url, "unset", &[alone]).await.unwrap();
    let client = async_nats::connect(&url).await.unwrap();
    let stream = jetstream::new(client).get_stream("all").await.unwrap();
    let mut made = Vec::new();
    for (broker, name) in [(&set, "set"), (&unset, "unset")] {
        let subscription = subscribe(broker, "orders").await.unwrap();
        made.push(stream.consumer_info(name).await.unwrap().config);
        subscription.ended().await.unwrap();
        broker.close().await;
    }
    let seconds = |numbers: &[u64]| {
        numbers
            .iter()
            .copied()
            .map(Duration::from_secs)
            .collect::<Vec<_>>()
    };
    let [set, unset] = &made[..] else { unreachable!() };
    assert_eq!((set.memory_storage, unset.memory_storage), (true, false));
    assert_eq!((set.max_deliver, unset.max_deliver), (7, -1));
    assert_eq!((set.max_ack_pending, unset.max_ack_pending), (9, 1000));
    assert_eq!((set.num_replicas, unset.num_replicas), (1, 0));
    assert_eq!((set.rate_limit, unset.rate_limit), (1_000_000, 0));
    assert_eq!(set.idle_heartbeat, Duration::from_secs(20));
    assert_eq!(unset.idle_heartbeat, Duration::ZERO);
    assert_eq!((set.flow_control, unset.flow_control), (true, false));
    assert_eq!((&set.backoff, &unset.backoff), (&seconds(&[4, 5]), &seconds(&[])));
    assert_eq!(unset.ack_wait, Duration::from_secs(3));
}

/// Dapr's client rejects it too: server and component would follow different settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_conflicting_durable_consumer() {
    let Some(server) = started().await else { return };
    let url = server.url();
    let alone = ("queueGroupName", "");
    let first = [alone, ("maxDeliver", "7"), ("maxAckPending", "9")];
    let first = open(&url, "app", &first).await.unwrap();
    let subscription = subscribe(&first, "orders").await.unwrap();
    subscription.ended().await.unwrap();
    first.close().await;
    for (other, has) in [
        (("ackPolicy", "all"), "explicit"),
        (("queueGroupName", "members"), "none"),
        (("ackWait", "4s"), "3s"),
        (("maxDeliver", "8"), "7"),
        (("maxAckPending", "10"), "9"),
        (("backOff", "4s,5s"), "none"),
        (("deliverPolicy", "new"), "all"),
        (("rateLimit", "1000"), "0"),
        (("replicas", "1"), "0"),
        (("heartbeat", "20s"), "0ns"),
        (("memoryStorage", "true"), "false"),
        (("flowControl", "true"), "false"),
    ] {
        let broker = open(&url, "app", &[alone, other]).await.unwrap();
        let error = subscribe(&broker, "orders").await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration, "{error}");
        let difference = format!("has {} {has}, and {} is set", other.0, other.1);
        for part in [&*difference, "\"app\"", "delete the consumer"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        broker.close().await;
    }
    // The component accepts the consumer that it created.
    let more = [
        ("heartbeat", "20s"),
        ("flowControl", "true"),
        ("rateLimit", "1000"),
        ("replicas", "1"),
        ("backOff", "4s,5s"),
        ("maxDeliver", "5"),
        ("memoryStorage", "true"),
        ("deliverPolicy", "sequence"),
        ("startSequence", "1"),
    ];
    for group in ["", "members"] {
        let again = [&more[..], &[("queueGroupName", group)]].concat();
        let name = format!("again{group}");
        for _ in 0..2 {
            let broker = open(&url, &name, &again).await.unwrap();
            let subscription = subscribe(&broker, "orders").await.unwrap();
            subscription.ended().await.unwrap();
            broker.close().await;
        }
    }
    // Unset properties keep the server's values.
    let unset = open(&url, "app", &[alone, ("ackWait", "")]).await.unwrap();
    let subscription = subscribe(&unset, "orders").await.unwrap();
    subscription.ended().await.unwrap();
    unset.close().await;
}

/// Domain and prefix select JetStream's API subjects; it does not answer under others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn domain_and_prefix_select_api() {
    let Some(server) = Nats::in_domain("hub") else {
        return;
    };
    make_stream(&server).await;
    let url = server.url();
    for (setting, answers) in [
        (("domain", "hub"), true),
        (("apiPrefix", "$JS.hub.API"), true),
        (("domain", "elsewhere"), false),
        (("apiPrefix", "$JS.elsewhere.API"), false),
    ] {
        let broker = anonymous(&url, &[setting, ("deliverPolicy", "new")]).await;
        match subscribe(&broker, "orders").await {
            Ok(mut subscription) => {
                broker.publish(&message("orders", "x")).await.unwrap();
                next(&mut subscription).await.receipt.acknowledge();
                subscription.ended().await.unwrap();
                assert!(answers, "{setting:?}");
            }
            Err(error) => assert!(!answers, "{setting:?}: {error}"),
        }
        broker.close().await;
    }
}
