//! The Redis components on real servers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod binding;
mod broker;
mod sentinel;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use outrigger_component::{
    Error, Kind, Result, StateStore,
    bindings::Invoke,
    configuration::{Item, Request},
    state::{
        Bounds, Concurrency, Consistency, Delete, Feature, Get, Operation, Set, TTL, Transaction, Value,
    },
};
use outrigger_component_conformance::{self as conformance, StateRules, Writer};
use outrigger_components_testing::{
    Components,
    proxy::Proxy,
    server::{Cli, Redis, Sentinel},
    tls::Certificates,
};

fn components() -> Components {
    Components::of(outrigger_components_redis::add)
}

const RULES: StateRules = StateRules {
    alien_etag: Kind::InvalidEtag,
    reports_expiry: false,
    takes_null: true,
    bulk_fails_whole: false,
    rejects_existing_key: true,
};

fn set(key: &str, value: &str) -> Set {
    Set {
        key: key.to_owned(),
        value: Value::Bytes(value.to_owned().into()),
        ..Set::default()
    }
}

async fn text(store: &dyn StateStore, key: &str) -> Option<String> {
    let item = store.get(&Get::key(key)).await.unwrap()?;
    Some(String::from_utf8(item.data.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_passes_conformance() {
    let Some(redis) = Redis::start(&[]) else { return };
    let store = components()
        .state("state.redis", "v1", &[("redisHost", &redis.host())])
        .await
        .unwrap();
    conformance::state(&store, RULES).await;
    conformance::state_after_close(&store).await;
}

#[tokio::test]
async fn layout_matches_dapr() {
    let Some(redis) = Redis::start(&["--requirepass", ""]) else {
        return;
    };
    let properties = [("redisHost", redis.host()), ("redisDB", "3".to_owned())];
    let properties = properties.each_ref().map(|(name, value)| (*name, value.as_str()));
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    let cli = |arguments: &[&str]| {
        let all: Vec<&str> = ["-n", "3"].iter().chain(arguments).copied().collect();
        redis.cli(&all)
    };

    store.set(&set("k", "one")).await.unwrap();
    assert_eq!(cli(&["HGETALL", "k"]), "data\none\nversion\n1");
    store.set(&set("k", "two")).await.unwrap();
    assert_eq!(cli(&["HGET", "k", "version"]), "2");
    let json = Set {
        value: Value::Json(r#"{"b": 1.0, "a": "<"}"#.into()),
        ..set("json", "")
    };
    store.set(&json).await.unwrap();
    assert_eq!(cli(&["HGET", "json", "data"]), r#"{"a":"<","b":1}"#);
    let first = Set {
        concurrency: Concurrency::FirstWrite,
        ..set("first", "x")
    };
    store.set(&first).await.unwrap();
    assert_eq!(cli(&["HGET", "first", "first-write"]), "0");
    // In a transaction no write sets `first-write`, so plain writes succeed.
    let several = Transaction {
        operations: vec![Operation::Set(Set {
            key: "several".to_owned(),
            ..first
        })],
        ..Transaction::default()
    };
    store.transact(&several).await.unwrap();
    assert_eq!(cli(&["HGETALL", "several"]), "data\nx\nversion\n1");
    store.set(&set("several", "y")).await.unwrap();
    assert_eq!(cli(&["HGETALL", "several"]), "data\ny\nversion\n2");
    let mut short = set("short", "x");
    short.metadata.insert(TTL.to_owned(), "100".to_owned());
    store.set(&short).await.unwrap();
    let ttl: i64 = cli(&["TTL", "short"]).parse().unwrap();
    assert!((90..=100).contains(&ttl), "{ttl}");
    short.metadata.insert(TTL.to_owned(), "-1".to_owned());
    store.set(&short).await.unwrap();
    assert_eq!(cli(&["TTL", "short"]), "-1");

    // Data of other writers: a plain value of the first releases, an unrelated hash, another type.
    cli(&["SET", "plain", "old"]);
    assert_eq!(text(&*store, "plain").await.as_deref(), Some("old"));
    cli(&["HSET", "broken", "data", "x"]);
    assert_eq!(
        store.get(&Get::key("broken")).await.unwrap_err().kind(),
        Kind::Internal
    );
    cli(&["RPUSH", "list", "x"]);
    store.set(&set("list", "new")).await.unwrap();
    assert_eq!(text(&*store, "list").await.as_deref(), Some("new"));
}

#[tokio::test]
async fn default_ttl_applies() {
    let Some(redis) = Redis::start(&[]) else { return };
    let properties = [("redisHost", redis.host()), ("ttlInSeconds", "100".to_owned())];
    let properties = properties.each_ref().map(|(name, value)| (*name, value.as_str()));
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    store.set(&set("k", "v")).await.unwrap();
    assert_ne!(redis.cli(&["TTL", "k"]), "-1");
}

#[tokio::test]
async fn invalid_credentials_are_named() {
    let Some(redis) = Redis::start(&["--requirepass", "secret"]) else {
        return;
    };
    let open = async |password: &str| {
        let host = redis.host();
        let properties = [("redisHost", host.as_str()), ("redisPassword", password)];
        components().state("state.redis", "v1", &properties).await
    };
    let error = open("guess").await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains(&redis.host()), "{error}");
    assert!(!error.to_string().contains("guess"), "{error}");
    open("secret").await.unwrap().ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_server_restart() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let host = redis.host();
    let properties = [("redisHost", host.as_str()), ("redisMaxRetryInterval", "50ms")];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    store.set(&set("k", "before")).await.unwrap();
    redis.kill();
    let error = store.set(&set("k", "during")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.retryable());
    redis.start_again();
    // The script cache is empty and the connection new.
    store.set(&set("k2", "after")).await.unwrap();
    assert_eq!(text(&*store, "k").await.as_deref(), Some("before"));
    assert_eq!(text(&*store, "k2").await.as_deref(), Some("after"));

    conformance::state_outlives(&store, &mut redis).await;
    let locks = components().lock("lock.redis", "v1", &properties).await.unwrap();
    conformance::lock_outlives(&locks, &mut redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_waits_for_restart() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let host = redis.host();
    let properties = [("redisHost", host.as_str()), ("redisMaxRetries", "100")];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    store.set(&set("k", "v")).await.unwrap();
    redis.kill();
    let reading = tokio::spawn(async move { store.get(&Get::key("k")).await });
    redis.start_again();
    assert!(reading.await.unwrap().unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaces_dropped_connection() {
    let Some(redis) = Redis::start(&[]) else { return };
    let host = redis.host();
    let properties = [("redisHost", host.as_str()), ("redisMaxRetryInterval", "10ms")];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    for round in 0..5 {
        store.set(&set("k", &round.to_string())).await.unwrap();
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(text(&*store, "k").await, Some(round.to_string()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaces_lost_connection() {
    let Some(redis) = Redis::start(&[]) else { return };
    let proxy = Proxy::start(redis.port).await;
    let host = format!("127.0.0.1:{}", proxy.port);
    let properties = [
        ("redisHost", host.as_str()),
        ("readTimeout", "5s"),
        ("redisMaxRetryInterval", "10ms"),
    ];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    store.set(&set("k", "v")).await.unwrap();
    proxy.lose();
    assert_eq!(text(&*store, "k").await.as_deref(), Some("v"));
    // A write that must not run twice is not repeated, but the next one works.
    proxy.lose();
    let first = Set {
        concurrency: Concurrency::FirstWrite,
        ..set("first", "x")
    };
    let error = store.set(&first).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
    store.set(&first).await.unwrap();

    // Changes missed while the watcher is disconnected are reported, and no others.
    for key in ["changed", "removed", "same"] {
        redis.cli(&["SET", key, "old||1"]);
    }
    let store = components()
        .configuration("configuration.redis", "v1", &properties)
        .await
        .unwrap();
    let keys = ["changed", "removed", "same", "absent"].map(str::to_owned);
    let request = Request {
        keys: keys.to_vec(),
        ..Request::default()
    };
    let mut subscription = store.subscribe(&request).await.unwrap();
    proxy.lose();
    redis.cli(&["SET", "changed", "new||2"]);
    redis.cli(&["DEL", "removed"]);
    let update = tokio::time::timeout(Duration::from_secs(20), subscription.updates.recv());
    let update = update.await.unwrap().unwrap();
    assert_eq!(update.len(), 2, "{update:?}");
    assert_eq!(update["changed"].value, "new");
    assert_eq!(update["removed"], Item::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_passes_conformance() {
    let Some(nodes) = Redis::cluster(3).await else {
        return;
    };
    let host = nodes[1].host();
    let properties = [("redisHost", host.as_str()), ("redisType", "cluster")];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    assert!(!store.features().contains(&Feature::KeysLike));
    conformance::state(&store, RULES).await;
    // Keys on several nodes.
    let gets = ["a", "b", "c", "absent"].map(Get::key);
    let transaction = Transaction {
        operations: ["a", "b", "c"].map(|key| Operation::Set(set(key, "3"))).to_vec(),
        ..Default::default()
    };
    store.transact(&transaction).await.unwrap();
    let items = store.bulk_get(&gets, Bounds::default()).await.unwrap();
    let found: Vec<bool> = items
        .iter()
        .map(|item| item.item.as_ref().unwrap().is_some())
        .collect();
    assert_eq!(found, [true, true, true, false]);
    let holders = nodes.iter().filter(|node| node.cli(&["DBSIZE"]) != "0");
    assert_eq!(holders.count(), 3);
    a_slot_may_move(&*store, &nodes).await;
    let error = components()
        .lock("lock.redis", "v1", &properties)
        .await
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("Redis Cluster"), "{error}");
}

async fn a_slot_may_move(store: &dyn StateStore, nodes: &[Redis]) {
    let slot = nodes[0].cli(&["CLUSTER", "KEYSLOT", "moving"]);
    let ids: Vec<String> = nodes.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
    let is_there = |node: &Redis| !node.cli(&["GET", "moving"]).contains("MOVED");
    let from = nodes.iter().position(is_there).unwrap();
    let to = (from + 1) % nodes.len();
    let (source, target) = (&nodes[from], &nodes[to]);
    target.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]);
    source.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]);
    // New keys are created on the target already.
    let first = Set {
        concurrency: Concurrency::FirstWrite,
        ..set("moving", "x")
    };
    store.set(&first).await.unwrap();
    assert_eq!(text(store, "moving").await.as_deref(), Some("x"));
    for node in [target, source] {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]);
    }
    assert_eq!(text(store, "moving").await.as_deref(), Some("x"));
    let delete = Delete {
        key: "moving".to_owned(),
        ..Delete::default()
    };
    store.delete(&delete).await.unwrap();
    assert_eq!(text(store, "moving").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_does_not_repeat_commands() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let announced = listener.local_addr().unwrap().port().to_string();
    let arguments = ["--cluster-enabled", "yes", "--cluster-announce-port", &announced];
    let Some(redis) = Redis::start(&arguments) else {
        return;
    };
    redis.is_cluster().await;
    let proxy = Proxy::serve(listener, redis.port);
    let host = format!("127.0.0.1:{announced}");
    let properties = [
        ("redisHost", host.as_str()),
        ("redisType", "cluster"),
        ("redisMaxRetryInterval", "10ms"),
    ];
    let binding = components()
        .output("bindings.redis", "v1", &properties)
        .await
        .unwrap();
    let increment = Invoke {
        operation: "increment".to_owned(),
        metadata: [("key".to_owned(), "n".to_owned())].into(),
        ..Invoke::default()
    };
    binding.invoke(&increment).await.unwrap();
    proxy.swallow_an_answer();
    let error = binding.invoke(&increment).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert_eq!(redis.cli(&["GET", "n"]), "2");
    // A read is repeated.
    proxy.swallow_an_answer();
    let get = Invoke {
        operation: "get".to_owned(),
        ..increment
    };
    assert_eq!(binding.invoke(&get).await.unwrap().unwrap().data, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strong_writes_wait_for_replicas() {
    let Some(redis) = Redis::start(&["--repl-diskless-sync-delay", "0"]) else {
        return;
    };
    let port = redis.port.to_string();
    let Some(replica) = Redis::start(&["--replicaof", "127.0.0.1", &port]) else {
        return;
    };
    replica.is_replica().await;
    let host = redis.host();
    let properties = [("redisHost", host.as_str())];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    let strong = Set {
        consistency: Consistency::Strong,
        ..set("k", "v")
    };
    store.set(&strong).await.unwrap();
    assert_eq!(replica.cli(&["HGET", "k", "data"]), "v");
    let delete = Delete {
        key: "k".to_owned(),
        consistency: Consistency::Strong,
        ..Delete::default()
    };
    store.delete(&delete).await.unwrap();
    assert_eq!(replica.cli(&["EXISTS", "k"]), "0");
    let error = components()
        .lock("lock.redis", "v1", &properties)
        .await
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("set failover"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_pass_conformance() {
    let Some(redis) = Redis::start(&[]) else { return };
    let store = components()
        .lock("lock.redis", "v1", &[("redisHost", &redis.host())])
        .await
        .unwrap();
    conformance::lock(&store).await;
    store
        .try_lock("lock||app||r", "me", Duration::from_secs(50))
        .await
        .unwrap();
    assert_eq!(redis.cli(&["GET", "lock||app||r"]), "me");
    store.close().await;
    assert_eq!(store.unlock("r", "me").await.unwrap_err().kind(), Kind::Closed);
}

struct Values(Cli);

#[async_trait]
impl Writer for Values {
    async fn put(&self, key: &str, value: &str, version: &str) {
        let text = if version.is_empty() {
            value.to_owned()
        } else {
            format!("{value}||{version}")
        };
        self.0.run(&["SET", key, &text]);
    }

    async fn remove(&self, key: &str) {
        self.0.run(&["DEL", key]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_passes_conformance() {
    let Some(redis) = Redis::start(&["--notify-keyspace-events", "Es"]) else {
        return;
    };
    redis.cli(&["HSET", "not-a-string", "field", "value"]);
    let store = components()
        .configuration("configuration.redis", "v1", &[("redisHost", &redis.host())])
        .await
        .unwrap();
    conformance::configuration(&store, &Values(redis.client())).await;
    let mut events: Vec<char> = redis
        .cli(&["CONFIG", "GET", "notify-keyspace-events"])
        .chars()
        .collect();
    events.retain(|flag| "Es".contains(*flag));
    // The setting's name contains these letters too.
    assert!(
        events.ends_with(&['E', 's']) || events.contains(&'E'),
        "other events were switched off"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_survives_outages() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let mut proxy = Proxy::start(redis.port).await;
    let values = Values(redis.client());
    let host = format!("127.0.0.1:{}", proxy.port);
    let store = components()
        .configuration("configuration.redis", "v1", &[("redisHost", &host)])
        .await
        .unwrap();
    conformance::configuration_outlives(&store, &values, &mut proxy).await;
    conformance::configuration_outlives(&store, &values, &mut redis).await;
    let store = components()
        .state("state.redis", "v1", &[("redisHost", &host)])
        .await
        .unwrap();
    conformance::state_outlives(&store, &mut proxy).await;
}
