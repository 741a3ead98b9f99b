//! Servers behind sentinels, and connections over TLS.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_master_through_sentinels() {
    let Some(redis) = Redis::start(&[]) else { return };
    let sentinel = Sentinel::watching(&redis, None);
    let host = format!("127.0.0.1:{}", sentinel.port);
    let properties = [
        ("redisHost", host.as_str()),
        ("failover", "true"),
        ("sentinelMasterName", "main"),
    ];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    conformance::state(&store, RULES).await;
    let locks = components().lock("lock.redis", "v1", &properties).await.unwrap();
    conformance::lock(&locks).await;
    let mut unknown = properties;
    unknown[2].1 = "other";
    assert!(components().state("state.redis", "v1", &unknown).await.is_err());
}

/// Stores of one server, some of which cannot connect.
struct Secured<'a> {
    host: &'a str,
    /// E.g. `failover`.
    more: &'a [(&'a str, &'a str)],
}

impl Secured<'_> {
    async fn open(&self, root: &str, identity: Option<&Certificates>) -> Result<Arc<dyn StateStore>> {
        let mut properties = vec![
            ("redisHost", self.host),
            ("enableTLS", "true"),
            ("caCert", root),
            ("redisMaxRetryInterval", "10ms"),
        ];
        if let Some(identity) = identity {
            properties.extend([
                ("clientCert", identity.client.as_str()),
                ("clientKey", &identity.client_key),
            ]);
        }
        properties.extend(self.more);
        components().state("state.redis", "v1", &properties).await
    }

    /// The immediate error of a store that cannot be opened.
    async fn refusal(&self, root: &str, identity: Option<&Certificates>) -> Error {
        let opening = self.open(root, identity);
        let opened = tokio::time::timeout(Duration::from_secs(5), opening).await;
        let error = opened.unwrap().map(drop).unwrap_err();
        assert!(error.to_string().contains(self.host), "{error}");
        error
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_everywhere_over_tls() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let Some(redis) = Redis::start_tls(&certificates, &[]) else {
        return;
    };
    let sentinel = Sentinel::watching(&redis, Some(&certificates));
    let (direct, watched) = (redis.host(), format!("127.0.0.1:{}", sentinel.port));
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let cluster = Redis::start_tls(&certificates, &cluster).unwrap();
    cluster.is_cluster().await;
    let shared = cluster.host();
    let failover = [("failover", "true"), ("sentinelMasterName", "main")];
    for (host, more) in [
        (&direct, &[][..]),
        (&watched, &failover[..]),
        (&shared, &[("redisType", "cluster")]),
    ] {
        let secured = Secured { host, more };
        // Without an authority nothing is verified, as in Dapr.
        for root in [certificates.root.as_str(), ""] {
            let store = secured.open(root, Some(&certificates)).await.unwrap();
            store.set(&set("k", "v")).await.unwrap();
            assert_eq!(text(&*store, "k").await.as_deref(), Some("v"));
        }
        let error = secured
            .refusal(&others.root, Some(&certificates))
            .await
            .to_string();
        assert!(error.contains("invalid peer certificate"), "{error}");
        secured.refusal(&certificates.root, Some(&others)).await;
        secured.refusal(&certificates.root, None).await;
    }
    rejections_name_remedy(&certificates, &others).await;

    let properties = [
        ("redisHost", watched.as_str()),
        ("failover", "true"),
        ("sentinelMasterName", "main"),
        ("enableTLS", "true"),
        ("clientCert", &certificates.client),
        ("clientKey", &certificates.client_key),
    ];
    let store = components()
        .configuration("configuration.redis", "v1", &properties)
        .await
        .unwrap();
    conformance::configuration(&store, &Values(redis.client())).await;
}

/// Before TLS 1.3 a server rejects during the handshake, so its error cannot be lost.
async fn rejections_name_remedy(certificates: &Certificates, others: &Certificates) {
    let redis = Redis::start_tls(certificates, &["--tls-protocols", "TLSv1.2"]).unwrap();
    let host = redis.host();
    let secured = Secured {
        host: &host,
        more: &[],
    };
    for (root, identity) in [
        (&others.root, Some(certificates)),
        (&certificates.root, Some(others)),
        (&certificates.root, None),
    ] {
        let error = secured.refusal(root, identity).await;
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(
            error.to_string().contains("check enableTLS, caCert, clientCert"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follows_failover() {
    let Some(mut redis) = Redis::start(&["--repl-diskless-sync-delay", "0"]) else {
        return;
    };
    let port = redis.port.to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    replica.is_replica().await;
    let sentinel = Sentinel::watching(&redis, None);
    let host = format!("127.0.0.1:{}", sentinel.port);
    let properties = [
        ("redisHost", host.as_str()),
        ("failover", "true"),
        ("sentinelMasterName", "main"),
        ("redisMaxRetryInterval", "50ms"),
    ];
    let store = components()
        .state("state.redis", "v1", &properties)
        .await
        .unwrap();
    let strong = Set {
        consistency: Consistency::Strong,
        ..set("k", "before")
    };
    store.set(&strong).await.unwrap();
    assert_eq!(replica.cli(&["HGET", "k", "data"]), "before");
    // A write that waits a second for its replica blocks no other call.
    replica.freeze(true);
    let (writer, during) = (
        store.clone(),
        Set {
            consistency: Consistency::Strong,
            ..set("k", "during")
        },
    );
    let mut waiting = tokio::spawn(async move { writer.set(&during).await });
    let applied = async {
        while redis.cli(&["HGET", "k", "data"]) != "during" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), applied)
        .await
        .unwrap();
    tokio::select! {
        biased;
        read = text(&*store, "k") => assert_eq!(read.as_deref(), Some("during")),
        written = &mut waiting => panic!("a read waited for the replica: {written:?}"),
    }
    replica.freeze(false);
    waiting.await.unwrap().unwrap();

    redis.kill();
    let mut written = store.set(&set("k", "after")).await;
    let deadline = std::time::Instant::now() + Duration::from_secs(40);
    while let Err(error) = &written {
        assert!(std::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        written = store.set(&set("k", "after")).await;
    }
    assert_eq!(replica.cli(&["HGET", "k", "data"]), "after");
    assert_eq!(text(&*store, "k").await.as_deref(), Some("after"));
}
