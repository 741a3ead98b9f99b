//! Orders and tables that sidecars receive.

use std::time::Duration;

use tonic::Code;

use crate::running::{Sidecar, host, http, names, start, until};

#[tokio::test]
async fn hosts_and_callers_receive_table() {
    let running = start(&[]).await;
    let mut one = running.connect(host("h1:1", &["t", "u"])).await;
    let (version, table) = one.table().await.unwrap();
    assert_eq!(
        (version, table.replication_factor, table.version.as_str()),
        (1, 100, "1")
    );
    assert_eq!(
        (names(&table, "t"), names(&table, "u")),
        (vec!["h1:1".to_owned()], vec!["h1:1".to_owned()])
    );
    assert_eq!(table.entries["t"].load_map["h1:1"].id, "app");

    let mut caller = running.connect(host("h2:1", &[])).await;
    let (version, table) = caller.table().await.unwrap();
    assert_eq!(
        (version, names(&table, "t").len()),
        (1, 1),
        "without a dissemination"
    );

    let mut two = running.connect(host("h3:1", &["t"])).await;
    let (version, ..) = tokio::join!(
        one.until_hosts("t", &["h1:1", "h3:1"]),
        two.until_hosts("t", &["h1:1", "h3:1"]),
        caller.until_hosts("t", &["h1:1", "h3:1"])
    );
    assert_eq!(version, 2);

    drop(two);
    tokio::join!(
        one.until_hosts("t", &["h1:1"]),
        caller.until_hosts("t", &["h1:1"])
    );
}

#[tokio::test]
async fn namespaces_are_isolated() {
    let running = start(&[]).await;
    let mut one = running.connect(host("h1:1", &["t"])).await;
    one.table().await.unwrap();
    let mut other = host("h2:1", &["t"]);
    other.namespace = "other".to_owned();
    let (version, table) = running.connect(other).await.table().await.unwrap();
    assert_eq!((version, names(&table, "t")), (1, vec!["h2:1".to_owned()]));
}

#[tokio::test]
async fn silent_host_delays_only_until_timeout() {
    let running = start(&["--disseminate-timeout=1s"]).await;
    let mut good = running.connect(host("h1:1", &["t"])).await;
    good.table().await.unwrap();
    let mut silent = running.connect(host("h2:1", &["t"])).await;
    let version = good.until_hosts("t", &["h1:1"]).await;
    assert_eq!(silent.next().await.unwrap().operation, "lock");
    let status = silent.next().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(
        status.message(),
        format!("dissemination timeout after 1s for version {version}")
    );
    assert_eq!(
        running.metric("dapr_placement_expired_total").await.as_deref(),
        Some("1")
    );
}

#[tokio::test]
async fn non_reading_host_delays_only_until_timeout() {
    let running = start(&["--disseminate-timeout=500ms"]).await;
    let mut good = running.connect(host("h1:1", &["t"])).await;
    good.table().await.unwrap();
    let deaf = running.connect(host("h2:1", &["t"])).await;
    for _ in 0..3 {
        good.until_hosts("t", &["h1:1"]).await;
        let other = running.connect(host("h3:1", &["t"])).await.obey();
        good.until_hosts("t", &["h1:1", "h3:1"]).await;
        other.abort();
    }
    drop(deaf);
}

#[tokio::test]
async fn state_and_metrics_list_hosts() {
    let running = start(&[]).await;
    assert_eq!(running.state().await, "{}");
    let one = running.connect(host("h1:1", &["b", "a"])).await.obey();
    let caller = running.connect(host("h2:1", &[])).await.obey();
    let expected = r#"{"tables":{"ns":{"hosts":[{"api_level":20,"entities":["a","b"],"id":"app","name":"h1:1","namespace":"ns","operation":1}],"version":1}}}"#;
    until("the state tells of the host", async || {
        running.state().await == expected
    })
    .await;
    let metric = |name: &'static str| running.metric(name);
    let (all, actors) = (
        "dapr_placement_runtimes_total{host_namespace=\"ns\"}",
        "dapr_placement_actor_runtimes_total{host_namespace=\"ns\"}",
    );
    until("both are counted", async || {
        metric(all).await.as_deref() == Some("2")
    })
    .await;
    assert_eq!(metric(actors).await.as_deref(), Some("1"));
    one.abort();
    caller.abort();
    until("neither is counted", async || {
        metric(all).await.as_deref() == Some("0")
    })
    .await;
    assert_eq!(metric(actors).await.as_deref(), Some("0"));
    until("the namespace is gone", async || running.state().await == "{}").await;
    let health = http(running.addresses.healthz, "/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

#[tokio::test]
async fn stopping_leader_notifies_streams() {
    let running = start(&[]).await;
    let obeying = running.connect(host("h1:1", &["t"])).await.obey();
    let waiting: Sidecar = running.connect(host("h2:1", &["t"])).await;
    let stopped = tokio::time::timeout(Duration::from_secs(30), running.stop()).await;
    assert!(stopped.is_ok(), "it did not end");
    let status = obeying.await.unwrap();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "placement server is shutting down")
    );
    drop(waiting);
}
