//! Server answers over the limit.

use std::num::NonZeroUsize;

use outrigger_component::{
    answer::MAX_ANSWER,
    pubsub::{Event, Subscribe},
};

use super::*;

/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(60);

const LARGE: usize = MAX_ANSWER + 1;

fn run(redis: &Redis, script: &str) {
    assert_eq!(redis.cli(&["EVAL", script, "0"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_value_fails_its_call_only() {
    let Some(redis) = Redis::start(&[]) else { return };
    let host = redis.host();
    let properties = [("redisHost", host.as_str())];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    store.set(&set("small", "v")).await.unwrap();
    run(
        &redis,
        &format!("redis.call('HSET', 'large', 'data', string.rep('x', {LARGE}), 'version', 1)"),
    );
    run(
        &redis,
        &format!("redis.call('SET', 'text', string.rep('x', {LARGE}))"),
    );
    for key in ["large", "text"] {
        let reading = (0..8).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { text(&*store, "small").await })
        });
        let reading: Vec<_> = reading.collect();
        let error = store.get(&Get::key(key)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge, "{error}");
        assert!(error.to_string().contains("--max-body-size"), "{error}");
        for read in reading {
            assert_eq!(read.await.unwrap().as_deref(), Some("v"));
        }
    }
    let clients = redis.cli(&["CLIENT", "LIST"]);
    let own = clients
        .lines()
        .filter(|client| client.contains("cmd=hmget") || client.contains("cmd=get"));
    assert_eq!(
        own.count(),
        1,
        "one connection, which was not replaced: {clients}"
    );

    let binding = components()
        .output("bindings.redis", "v1", &properties)
        .await
        .unwrap();
    let get = Invoke {
        operation: "get".to_owned(),
        metadata: [("key".to_owned(), "text".to_owned())].into(),
        ..Invoke::default()
    };
    let error = binding.invoke(&get).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge, "{error}");
    let values = components()
        .configuration("configuration.redis", "v1", &properties)
        .await
        .unwrap();
    let request = Request {
        keys: vec!["text".to_owned()],
        ..Request::default()
    };
    let error = values.get(&request).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge, "{error}");
}

/// On its own: among others it would only be read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_message_blocks_no_other() {
    let Some(redis) = Redis::start(&[]) else { return };
    let host = redis.host();
    let properties = [("redisHost", host.as_str()), ("consumerID", "app")];
    let broker = components()
        .pubsub("pubsub.redis", "v1", &properties)
        .await
        .unwrap();
    let half = MAX_ANSWER / 2 + 1;
    for bytes in [1, half, half, LARGE, 2] {
        let add = format!("redis.call('XADD', 'orders', '*', 'data', string.rep('x', {bytes}))");
        run(&redis, &add);
    }
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(16).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    for bytes in [1, half, half, 2] {
        let event = tokio::time::timeout(SOON, subscription.next()).await.unwrap();
        let Some(Event::Message(delivery)) = event else {
            panic!("{event:?}");
        };
        assert_eq!(delivery.message.data.len(), bytes);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    assert_eq!(redis.cli(&["XLEN", "orders"]), "5");
    assert!(redis.cli(&["XPENDING", "orders", "app"]).starts_with('0'));
    broker.close().await;
}
