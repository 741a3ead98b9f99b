//! Pub/sub on streams.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use outrigger_component::{
    Kind, PubSub, Result,
    pubsub::{Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, PubSubRules};
use outrigger_components_testing::{Components, proxy::Proxy, server::Redis};

use super::components;

const RULES: PubSubRules = PubSubRules {
    groups: true,
    redelivers: true,
    keeps: true,
    keys: false,
    wildcard: None,
};
/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(20);

async fn open(host: &str, group: &str, more: &[(&str, &str)]) -> Result<Arc<dyn PubSub>> {
    let mut properties = vec![
        ("redisHost", host),
        ("consumerID", group),
        ("redeliverInterval", "200ms"),
        ("processingTimeout", "10s"),
    ];
    for (name, value) in more {
        properties.retain(|(other, _)| other != name);
        properties.push((name, value));
    }
    components().pubsub("pubsub.redis", "v1", &properties).await
}

fn message(data: &str, metadata: &[(&str, &str)]) -> Publish {
    let metadata = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Publish {
        topic: "orders".to_owned(),
        data: data.to_owned().into(),
        metadata: metadata.collect(),
        ..Publish::default()
    }
}

async fn subscribe(broker: &Arc<dyn PubSub>) -> Subscription {
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(4).unwrap(),
    };
    broker.subscribe(request).await.unwrap()
}

async fn next(subscription: &mut Subscription) -> Delivery {
    match tokio::time::timeout(SOON, subscription.next()).await.unwrap() {
        Some(Event::Message(delivery)) => delivery,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_pass_conformance() {
    let Some(redis) = Redis::start(&[]) else { return };
    conformance::pubsub(RULES, async |group: &str| open(&redis.host(), group, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_streams_pass_conformance() {
    let Some(nodes) = Redis::cluster(3).await else {
        return;
    };
    let cluster = [("redisType", "cluster")];
    conformance::pubsub(RULES, async |group: &str| {
        open(&nodes[0].host(), group, &cluster).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_when_server_is_killed() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let host = redis.host();
    conformance::pubsub_outlives(
        RULES,
        async |group: &str| open(&host, group, &[]).await,
        &mut redis,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_when_connections_break() {
    let Some(redis) = Redis::start(&[]) else { return };
    let mut proxy = Proxy::start(redis.port).await;
    let host = format!("127.0.0.1:{}", proxy.port);
    conformance::pubsub_outlives(
        RULES,
        async |group: &str| open(&host, group, &[]).await,
        &mut proxy,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_over_long_outage() {
    let Some(redis) = Redis::start(&[]) else { return };
    let mut proxy = Proxy::start(redis.port).await;
    let host = format!("127.0.0.1:{}", proxy.port);
    let opener = async |group: &str| open(&host, group, &[("processingTimeout", "3s")]).await;
    conformance::pubsub_outlives_long(RULES, opener, &mut proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_on_silent_connections() {
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::start(redis.port).await;
    let host = format!("127.0.0.1:{}", proxy.port);
    let opener = async |group: &str| open(&host, group, &[("processingTimeout", "3s")]).await;
    conformance::pubsub_outlives_silence(RULES, opener, &mut proxy.silence()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tolerates_failing_consumers() {
    let Some(redis) = Redis::start(&[]) else { return };
    let host = redis.host();
    let opener = async |group: &str| open(&host, group, &[("processingTimeout", "2s")]).await;
    conformance::pubsub_members(RULES, opener).await;
}

/// Compatibility with Dapr's sidecars.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_form_matches_dapr() {
    let Some(redis) = Redis::start(&[]) else { return };
    let broker = open(&redis.host(), "app", &[]).await.unwrap();
    broker.publish(&message("plain", &[])).await.unwrap();
    broker.publish(&message("more", &[("a", "1")])).await.unwrap();
    let range = redis.cli(&["XRANGE", "orders", "-", "+"]);
    let fields: Vec<&str> = range.lines().filter(|line| !line.contains('-')).collect();
    assert_eq!(
        fields,
        ["data", "plain", "data", "more", "metadata", "{\"a\":\"1\"}"]
    );
    // A new group starts at the oldest entry; its consumer has the group's name.
    let mut subscription = subscribe(&broker).await;
    assert_eq!(subscription.concurrency(), NonZeroUsize::new(10));
    let first = next(&mut subscription).await;
    assert_eq!(first.message.data, "plain");
    assert!(
        redis
            .cli(&["XINFO", "CONSUMERS", "orders", "app"])
            .contains("app")
    );
    // An entry of another writer, with an extra field.
    redis.cli(&["XADD", "orders", "*", "other", "x", "data", "foreign"]);
    assert_eq!(next(&mut subscription).await.message.metadata["a"], "1");
    assert_eq!(next(&mut subscription).await.message.data, "foreign");
    drop(first);
    broker.close().await;
}

/// Entry sizes are known only after reading: the first read requests a few, later ones as many as fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_read_bytes() {
    const LARGE: usize = 2 * 1024 * 1024;
    let Some(redis) = Redis::start(&[]) else { return };
    let broker = open(&redis.host(), "app", &[]).await.unwrap();
    let large = "x".repeat(LARGE);
    for _ in 0..24 {
        broker.publish(&message(&large, &[])).await.unwrap();
    }
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(1000).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(next(&mut subscription).await);
    }
    let more = tokio::time::timeout(Duration::from_millis(500), subscription.next()).await;
    assert!(more.is_err(), "more than 32 MiB");
    assert!(redis.cli(&["XPENDING", "orders", "app"]).starts_with("16"));
    held.drain(..).for_each(|delivery| delivery.receipt.acknowledge());
    for _ in 0..8 {
        next(&mut subscription).await.receipt.acknowledge();
    }
    // Small entries are read in large batches again.
    for _ in 0..300 {
        broker.publish(&message("small", &[])).await.unwrap();
    }
    for _ in 0..300 {
        held.push(next(&mut subscription).await);
    }
    held.drain(..).for_each(|delivery| delivery.receipt.acknowledge());
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// A killed sidecar leaves its entries pending. Another sidecar of the group, ours or Dapr's, claims them
/// after they are idle for `processingTimeout`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_entries_of_vanished_consumer() {
    let Some(redis) = Redis::start(&[]) else { return };
    let short = [("processingTimeout", "1s")];
    let broker = open(&redis.host(), "app", &short).await.unwrap();
    let mut subscription = subscribe(&broker).await;
    // Read by another consumer of the group, which then vanishes.
    redis.cli(&["XADD", "orders", "*", "data", "left"]);
    let took = next(&mut subscription).await;
    took.receipt.acknowledge();
    subscription.ended().await.unwrap();
    redis.cli(&["XADD", "orders", "*", "data", "behind"]);
    redis.cli(&[
        "XREADGROUP",
        "GROUP",
        "app",
        "dead",
        "COUNT",
        "1",
        "STREAMS",
        "orders",
        ">",
    ]);
    let mut subscription = subscribe(&broker).await;
    let claimed = next(&mut subscription).await;
    assert_eq!(claimed.message.data, "behind");
    assert_eq!(claimed.message.redelivered, Some(1));
    claimed.receipt.acknowledge();
    subscription.ended().await.unwrap();
    assert!(redis.cli(&["XPENDING", "orders", "app"]).starts_with('0'));
    broker.close().await;
}

/// Even if the settings disable scans for pending entries: Dapr acknowledges failed messages, so it needs no
/// scan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivers_without_periodic_scan() {
    let Some(redis) = Redis::start(&[]) else { return };
    for never in [("processingTimeout", "0"), ("redeliverInterval", "0")] {
        let host = redis.host();
        let opener = async || open(&host, "app", &[never]).await.unwrap();
        let broker = opener().await;
        let mut subscription = subscribe(&broker).await;
        broker.publish(&message("failing", &[])).await.unwrap();
        for before in 0..3 {
            let delivery = next(&mut subscription).await;
            assert_eq!(delivery.message.redelivered, Some(before), "{never:?}");
            match before {
                2 => delivery.receipt.acknowledge(),
                _ => delivery.receipt.reject(),
            }
        }
        // Prefetched, and returned on a clean shutdown.
        for data in ["a", "b"] {
            broker.publish(&message(data, &[])).await.unwrap();
        }
        let (first, second) = (next(&mut subscription).await, next(&mut subscription).await);
        drop((first, second));
        subscription.ended().await.unwrap();
        broker.close().await;
        let broker = opener().await;
        let mut subscription = subscribe(&broker).await;
        for data in ["a", "b"] {
            let delivery = next(&mut subscription).await;
            assert_eq!(delivery.message.data, data, "{never:?}");
            delivery.receipt.acknowledge();
        }
        subscription.ended().await.unwrap();

        // Entries of a vanished consumer, more than one scan covers, and one held by another sidecar.
        let leave = |data: &str| {
            let id = redis.cli(&["XADD", "orders", "*", "data", data]);
            redis.cli(&["XREADGROUP", "GROUP", "app", "app", "STREAMS", "orders", ">"]);
            id
        };
        for number in 0..40 {
            let id = leave(&number.to_string());
            redis.cli(&[
                "XCLAIM", "orders", "app", "app", "0", &id, "IDLE", "60000", "JUSTID",
            ]);
        }
        leave("held by another");
        let one_each = open(&host, "app", &[never, ("queueDepth", "1")]).await.unwrap();
        let mut subscription = subscribe(&one_each).await;
        for number in 0..40 {
            let delivery = next(&mut subscription).await;
            assert_eq!(delivery.message.data, number.to_string(), "{never:?}");
            delivery.receipt.acknowledge();
        }
        let more = tokio::time::timeout(Duration::from_secs(2), subscription.next()).await;
        assert!(more.is_err(), "{more:?}");
        subscription.ended().await.unwrap();
        assert!(redis.cli(&["XPENDING", "orders", "app"]).starts_with('1'));
        redis.cli(&["DEL", "orders"]);
        broker.close().await;
        one_each.close().await;
    }
}

/// However many held entries precede it, and however few a step scans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_entry_behind_many_held_ones() {
    const HELD: usize = 17;
    let Some(redis) = Redis::start(&[]) else { return };
    let few = [
        ("queueDepth", "1"),
        ("processingTimeout", "1s"),
        ("redeliverInterval", "1s"),
    ];
    let broker = open(&redis.host(), "app", &few).await.unwrap();
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(2 * HELD).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..HELD {
        broker.publish(&message("held", &[])).await.unwrap();
        held.push(next(&mut subscription).await);
    }
    // Atomically, or the reading consumer would take it.
    let left = "redis.call('XADD', 'orders', '*', 'data', 'left')
        redis.call('XREADGROUP', 'GROUP', 'app', 'dead', 'STREAMS', 'orders', '>')";
    redis.cli(&["EVAL", left, "0"]);
    let claimed = next(&mut subscription).await;
    assert_eq!(claimed.message.data, "left");
    claimed.receipt.acknowledge();
    held.drain(..).for_each(|delivery| delivery.receipt.acknowledge());
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Entries deleted from the stream cannot be delivered and would be scanned forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledges_deleted_pending_entries() {
    let Some(redis) = Redis::start(&[]) else { return };
    let broker = open(&redis.host(), "app", &[("processingTimeout", "1s")])
        .await
        .unwrap();
    let subscription = subscribe(&broker).await;
    subscription.ended().await.unwrap();
    let id = redis.cli(&["XADD", "orders", "*", "data", "removed"]);
    redis.cli(&["XADD", "orders", "*", "data", "left"]);
    redis.cli(&["XREADGROUP", "GROUP", "app", "dead", "STREAMS", "orders", ">"]);
    redis.cli(&["XDEL", "orders", id.trim()]);
    let mut subscription = subscribe(&broker).await;
    let claimed = next(&mut subscription).await;
    assert_eq!(claimed.message.data, "left");
    claimed.receipt.acknowledge();
    subscription.ended().await.unwrap();
    assert!(redis.cli(&["XPENDING", "orders", "app"]).starts_with('0'));
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handler_keeps_message() {
    let Some(redis) = Redis::start(&[]) else { return };
    let short = [("processingTimeout", "2s")];
    let broker = open(&redis.host(), "app", &short).await.unwrap();
    let other = open(&redis.host(), "app", &short).await.unwrap();
    let mut subscription = subscribe(&broker).await;
    broker.publish(&message("slow", &[])).await.unwrap();
    let held = next(&mut subscription).await;
    let mut waiting = subscribe(&other).await;
    let early = tokio::time::timeout(Duration::from_secs(5), waiting.next()).await;
    assert!(early.is_err(), "{early:?}");
    held.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trims_streams_as_configured() {
    let Some(redis) = Redis::start(&["--stream-node-max-entries", "10"]) else {
        return;
    };
    let length = || -> usize { redis.cli(&["XLEN", "orders"]).parse().unwrap() };
    let bounded = open(&redis.host(), "app", &[("maxLenApprox", "10")])
        .await
        .unwrap();
    for _ in 0..100 {
        bounded.publish(&message("x", &[])).await.unwrap();
    }
    assert!(length() <= 30, "{}", length());
    let aging = open(&redis.host(), "app", &[("streamTTL", "10ms")])
        .await
        .unwrap();
    for _ in 0..30 {
        aging.publish(&message("x", &[])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(length() <= 30, "{}", length());
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = components();
    let entry = catalog.pubsub.find("pubsub.redis", "v1").unwrap();
    let host = ("redisHost", "127.0.0.1:1");
    conformance::settings(
        &entry,
        &[
            ("redisHost", &[]),
            ("redeliverInterval", &[host, ("redeliverInterval", "soon")]),
            ("processingTimeout", &[host, ("processingTimeout", "soon")]),
            ("queueDepth", &[host, ("queueDepth", "deep")]),
            ("concurrency", &[host, ("concurrency", "-1")]),
            ("maxLenApprox", &[host, ("maxLenApprox", "long")]),
            ("streamTTL", &[host, ("streamTTL", "soon")]),
        ],
    )
    .await;
    let error = open("127.0.0.1:1", "app", &[("redisMaxRetries", "0")])
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

/// The server disconnects clients that send more than its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_oversized_message_only() {
    const MAX_BULK: usize = 1 << 20;
    let limit = MAX_BULK.to_string();
    let Some(redis) = Redis::start(&["--proto-max-bulk-len", &limit]) else {
        return;
    };
    let broker = open(&redis.host(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker).await;
    broker.publish(&message("before", &[])).await.unwrap();
    let large = "x".repeat(MAX_BULK + 1);
    let error = broker.publish(&message(&large, &[])).await.unwrap_err();
    // The connection may be closed before the server's error is read.
    let text = error.to_string();
    assert!(
        ["invalid bulk length", "broken pipe", "reset"]
            .iter()
            .any(|cause| text.contains(cause)),
        "{text}"
    );
    // Requests in flight when the connection ends may have run, so they fail instead of being repeated.
    let again = async {
        while broker.publish(&message("after", &[])).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, again).await.unwrap();
    for data in ["before", "after"] {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, data);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}
