//! The state store on a real etcd.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use outrigger_component::{
    Kind, Result, StateStore,
    state::{Get, Set, TTL, TTL_EXPIRES, Value},
};
use outrigger_component_conformance::{self as conformance, StateRules};
use outrigger_components_testing::{Components, proxy::Proxy, server::Etcd, tls::Certificates};

async fn open(endpoint: &str, version: &str, more: &[(&str, &str)]) -> Result<Arc<dyn StateStore>> {
    let mut properties = vec![("endpoints", endpoint)];
    properties.extend_from_slice(more);
    Components::of(outrigger_components_etcd::add)
        .state("state.etcd", version, &properties)
        .await
}

fn rules(version: &str) -> StateRules {
    StateRules {
        alien_etag: Kind::InvalidEtag,
        reports_expiry: version == "v2",
        ..StateRules::default()
    }
}

fn write(key: &str, value: &'static str) -> Set {
    Set {
        key: key.to_owned(),
        value: Value::Bytes(value.into()),
        ..Set::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_layouts_pass_conformance() {
    let Some(server) = Etcd::start() else { return };
    for version in ["v1", "v2"] {
        let prefix = [("keyPrefixPath", version)];
        let store = open(&server.endpoint(), version, &prefix).await.unwrap();
        assert_eq!(store.max_operations().await, Some(128));
        conformance::state(&store, rules(version)).await;
        conformance::state_after_close(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_survives_server_restart() {
    let Some(mut server) = Etcd::start() else { return };
    let store = open(&server.endpoint(), "v2", &[]).await.unwrap();
    conformance::state_outlives(&store, &mut server).await;
}

/// v1 stores the value's bytes, v2 a message; keys have the prefix. `state.etcd` without a version is v1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layouts_match_dapr() {
    let Some(server) = Etcd::start() else { return };
    let endpoint = server.endpoint();
    let (old, new) = (
        open(&endpoint, "", &[]).await.unwrap(),
        open(&endpoint, "v2", &[("keyPrefixPath", "/app")]).await.unwrap(),
    );
    old.set(&write("k", "plain")).await.unwrap();
    let mut expiring = write("k", "data");
    expiring.metadata.insert(TTL.to_owned(), "600".to_owned());
    new.set(&expiring).await.unwrap();
    assert_eq!(raw(&old, "k").await, b"plain");
    // v1 shows the stored bytes.
    let root = open(&endpoint, "v1", &[("keyPrefixPath", "/app")]).await.unwrap();
    let stored = raw(&root, "k").await;
    assert_eq!(stored[..6], [&[0x0a, 4][..], b"data"].concat());
    assert_eq!(stored[stored.len() - 5..], [0x1a, 3, 0x08, 0xd8, 0x04], "600 s");
    let item = new.get(&Get::key("k")).await.unwrap().unwrap();
    assert!(item.metadata.contains_key(TTL_EXPIRES));
    new.set(&write("k", "for ever")).await.unwrap();
    let stored = raw(&root, "k").await;
    assert_eq!(stored[stored.len() - 2..], [0x1a, 0]);
    let item = new.get(&Get::key("k")).await.unwrap().unwrap();
    assert!(item.metadata.is_empty(), "{:?}", item.metadata);
    // Read through v2, this is invalid.
    root.set(&write("odd", "\u{7f}\u{7f}")).await.unwrap();
    let error = new.get(&Get::key("odd")).await.unwrap_err();
    assert!(error.to_string().contains("v1"), "{error}");
}

async fn raw(store: &Arc<dyn StateStore>, key: &str) -> Vec<u8> {
    store.get(&Get::key(key)).await.unwrap().unwrap().data.to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fails_over_to_another_member() {
    let (Some(mut first), Some(second)) = (Etcd::start(), Etcd::start()) else {
        return;
    };
    let endpoints = format!("{},http://{}", first.endpoint(), second.endpoint());
    let store = open(&endpoints, "v2", &[]).await.unwrap();
    store.set(&write("k", "1")).await.unwrap();
    conformance::Link::cut(&mut first);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(error) = store.ping().await {
        assert!(
            error.retryable() && tokio::time::Instant::now() < deadline,
            "{error}"
        );
    }
}

/// As after a power loss: the connection does not close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fails_over_from_silent_member() {
    let (Some(first), Some(second)) = (Etcd::start(), Etcd::start()) else {
        return;
    };
    let port = first.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::start(port).await;
    let endpoints = format!("127.0.0.1:{},{}", proxy.port, second.endpoint());
    let store = open(&endpoints, "v2", &[]).await.unwrap();
    store.set(&write("k", "1")).await.unwrap();
    conformance::Link::cut(&mut proxy.silence());
    // 10 s until the ping, 5 s for its answer, 5 s for an unanswered new connection.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(40);
    while let Err(error) = store.ping().await {
        assert!(
            error.retryable() && tokio::time::Instant::now() < deadline,
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_over_tls() {
    let certificates = Certificates::new();
    let Some(server) = Etcd::start_tls(&certificates) else {
        return;
    };
    let with = async |root: &str| {
        let tls = [
            ("tlsEnable", "true"),
            ("ca", root),
            ("cert", certificates.client.as_str()),
            ("key", certificates.client_key.as_str()),
        ];
        open(&server.endpoint(), "v2", &tls).await
    };
    let store = with(&certificates.root).await.unwrap();
    store.set(&write("k", "1")).await.unwrap();
    let stranger = with(&Certificates::new().root).await.unwrap();
    let error = stranger.get(&Get::key("k")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn starts_without_reachable_store() {
    let store = open("127.0.0.1:1", "v2", &[]).await.unwrap();
    let error = store.get(&Get::key("k")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = Components::of(outrigger_components_etcd::add);
    let entry = catalog.state.find("state.etcd", "v2").unwrap();
    let here = ("endpoints", "127.0.0.1:1");
    conformance::settings(
        &entry,
        &[
            ("endpoints", &[]),
            ("endpoints", &[("endpoints", "nowhere")]),
            ("maxTxnOps", &[here, ("maxTxnOps", "many")]),
            ("ca", &[here, ("tlsEnable", "true")]),
            (
                "ca",
                &[
                    here,
                    ("tlsEnable", "true"),
                    ("ca", "x"),
                    ("cert", "x"),
                    ("key", "x"),
                ],
            ),
        ],
    )
    .await;
}
