use outrigger_components_testing::registry::{SchemaRegistry, Trouble};
use outrigger_offload::{INLINE, done_at_once};

use super::*;

const RECORD: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"int"}]}"#;
/// Credentials `key` and `secret`.
const AUTHORIZATION: &str = "Basic a2V5OnNlY3JldA==";

fn registry(url: &str, more: &[(&str, &str)]) -> Registry {
    let properties = [("schemaRegistryURL", url)];
    let owned = properties.iter().chain(more);
    let owned = owned.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let metadata = Metadata::new("broker", owned).unwrap();
    Registry::read(&metadata).unwrap().unwrap()
}

async fn encode(registry: &Registry, topic: &str, json: &str) -> Result<Bytes> {
    let json = Bytes::copy_from_slice(json.as_bytes());
    registry.encode(topic, json, 1024).await
}

#[tokio::test]
async fn payloads_start_with_schema_id() {
    let server = SchemaRegistry::start(None).await;
    let _other = server.register("other-value", "\"string\"");
    assert_eq!(server.register("orders-value", RECORD), 2);
    let registry = registry(&server.url(), &[]);
    let payload = encode(&registry, "orders", "{\"id\":-1}").await.unwrap();
    assert_eq!(&payload[..], [0, 0, 0, 0, 2, 1]);
    assert_eq!(schema_id(&payload), Ok(2));
    assert!(registry.known(2).is_none());
    let schema = registry.by_id(2).await.unwrap();
    assert_eq!(registry.decode(&schema, &payload).unwrap(), "{\"id\":-1}");
    assert!(matches!(registry.known(2), Some(Ok(_))));
    assert_eq!(
        server.requests(),
        ["/subjects/orders-value/versions/latest", "/schemas/ids/2"]
    );
    for wrong in [&b"{\"id\":1}"[..], b"", b"\0\0\0\0"] {
        assert!(
            schema_id(wrong).unwrap_err().contains("valueSchemaType"),
            "{wrong:?}"
        );
    }
}

#[tokio::test]
async fn caches_latest_schema_as_configured() {
    let server = SchemaRegistry::start(None).await;
    let id = async |registry: &Registry| encode(registry, "t", "{\"id\":1}").await.unwrap()[4];
    server.register("t-value", RECORD);
    let long = registry(&server.url(), &[]);
    let short = registry(&server.url(), &[("schemaLatestVersionCacheTTL", "1ms")]);
    let none = registry(&server.url(), &[("schemaCachingEnabled", "false")]);
    for registry in [&long, &short, &none] {
        assert_eq!(id(registry).await, 1);
    }
    server.register("t-value", RECORD);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!((id(&long).await, id(&short).await, id(&none).await), (1, 2, 2));
    assert_eq!(server.requests().len(), 5, "{:?}", server.requests());
}

#[tokio::test]
async fn credentials_go_only_to_registry() {
    let server = SchemaRegistry::start(Some(AUTHORIZATION)).await;
    server.register("t-value", RECORD);
    let account = [
        ("schemaRegistryAPIKey", "key"),
        ("schemaRegistryAPISecret", "secret"),
    ];
    encode(&registry(&server.url(), &account), "t", "{\"id\":1}")
        .await
        .unwrap();
    let address = server.url().replace("http://", "");
    let inside = format!("http://key:secret@{address}/");
    encode(&registry(&inside, &[]), "t", "{\"id\":1}").await.unwrap();
    let wrong = [
        ("schemaRegistryAPIKey", "key"),
        ("schemaRegistryAPISecret", "wrong-secret"),
    ];
    let error = encode(&registry(&server.url(), &wrong), "t", "{\"id\":1}")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("schemaRegistryAPIKey"), "{error}");
    assert!(!error.to_string().contains("wrong-secret"), "{error}");
    let elsewhere = SchemaRegistry::start(None).await;
    let location = format!("location: {}/\r\n", elsewhere.url());
    server.trouble(Some(Trouble::Answer(302, location, String::new())));
    let error = encode(&registry(&inside, &[]), "t", "{\"id\":1}")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("another origin"), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn names_missing_schemas() {
    let server = SchemaRegistry::start(None).await;
    let registry = registry(&format!("{}/", server.url()), &[]);
    let error = encode(&registry, "orders", "{}").await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    for part in ["\"orders-value\"", "40401", &server.url(), "register"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let failure = registry.by_id(9).await.unwrap_err();
    assert!(!failure.may_pass(), "another try does not help by itself");
    assert!(
        failure.to_string().contains("no schema 9 (error_code 40403)"),
        "{failure}"
    );
    assert!(
        matches!(registry.known(9), Some(Err(_))),
        "it is remembered for a while"
    );
}

#[tokio::test]
async fn distinguishes_transient_failures() {
    let server = SchemaRegistry::start(None).await;
    let answer = |status, body: &str| Some(Trouble::Answer(status, String::new(), body.to_owned()));
    let large = format!("{{\"id\":1,\"schema\":\"{}\"}}", "x".repeat(MAX_ANSWER));
    for (trouble, passes, part) in [
        (
            answer(500, "{\"error_code\":50001,\"message\":\"?\"}"),
            true,
            "500",
        ),
        (answer(503, "busy"), true, "503"),
        (answer(429, ""), true, "429"),
        (answer(200, "<html>"), true, "does not describe a schema"),
        (answer(200, &large), true, "larger than 2097152 bytes"),
        (
            answer(200, "{\"schema\":\"{}\"}"),
            false,
            "schema 1 cannot be used",
        ),
        (
            answer(200, "{\"schema\":\"syntax = 3\",\"schemaType\":\"PROTOBUF\"}"),
            false,
            "\"PROTOBUF\"",
        ),
        (
            answer(
                200,
                "{\"schema\":\"\\\"int\\\"\",\"references\":[{\"name\":\"com.Item\",\"subject\":\"i\",\"version\":1}]}",
            ),
            false,
            "\"com.Item\"",
        ),
    ] {
        server.trouble(trouble);
        let failure = registry(&server.url(), &[]).by_id(1).await.unwrap_err();
        assert_eq!(failure.may_pass(), passes, "{failure}");
        assert!(failure.to_string().contains(part), "{part}: {failure}");
        assert!(failure.to_string().contains(&server.url()), "{failure}");
    }
    server.trouble(answer(200, "{\"schema\":\"\\\"int\\\"\"}"));
    let failure = registry(&server.url(), &[]).latest("s").await.unwrap_err();
    assert!(failure.to_string().contains("no id"), "{failure}");
}

#[tokio::test]
async fn unreachable_registry_hides_credentials() {
    let registry = registry("http://key:secret@127.0.0.1:1/base?token=secret", &[]);
    let error = encode(&registry, "t", "{}").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    let expected =
        "the schema registry at http://127.0.0.1:1/base/subjects/t-value/versions/latest: cannot connect";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn times_out_on_hanging_registry() {
    let server = SchemaRegistry::start(None).await;
    server.trouble(Some(Trouble::Hang));
    let registry = Arc::new(registry(&server.url(), &[]));
    // More than the concurrency limit: the others wait for a permit, within the timeout.
    let asking: Vec<_> = (1..=MAX_CONCURRENT_REQUESTS + 4)
        .map(|id| {
            let registry = Arc::clone(&registry);
            tokio::spawn(async move { registry.by_id(u32::try_from(id).unwrap()).await.unwrap_err() })
        })
        .collect();
    while server.requests().len() < MAX_CONCURRENT_REQUESTS {
        tokio::task::yield_now().await;
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        server.requests().len(),
        MAX_CONCURRENT_REQUESTS,
        "the others wait"
    );
    tokio::time::pause();
    for asked in asking {
        let failure = asked.await.unwrap();
        assert!(failure.may_pass());
        assert!(failure.to_string().contains("no answer within 10s"), "{failure}");
    }
    tokio::time::resume();
    server.trouble(None);
    server.register("t-value", RECORD);
    encode(&registry, "t", "{\"id\":1}").await.unwrap();
}

#[tokio::test]
async fn concurrent_lookups_share_answer() {
    let server = SchemaRegistry::start(None).await;
    server.register("t-value", RECORD);
    let registry = Arc::new(registry(&server.url(), &[]));
    let asking = (0..100).map(|_| {
        let registry = Arc::clone(&registry);
        async move { encode(&registry, "t", "{\"id\":1}").await }
    });
    for encoded in futures::future::join_all(asking).await {
        encoded.unwrap();
    }
    assert!(
        server.requests().len() <= MAX_CONCURRENT_REQUESTS,
        "{:?}",
        server.requests()
    );
}

#[tokio::test]
async fn mismatch_names_field_and_schema() {
    let server = SchemaRegistry::start(None).await;
    server.register("orders-value", RECORD);
    let registry = registry(&server.url(), &[]);
    let error = encode(&registry, "orders", "{\"id\":\"one\"}").await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest);
    assert_eq!(
        error.to_string(),
        "the message does not fit schema 1 of the subject \"orders-value\": field \"id\": a string is given where the \
         schema has int"
    );
    let schema = registry.by_id(1).await.unwrap();
    let error = registry.decode(&schema, b"\0\0\0\0\x01").unwrap_err();
    assert_eq!(
        error,
        "it does not match schema 1: field \"id\": the data is truncated"
    );
}

#[tokio::test]
async fn offloads_large_payloads() {
    let server = SchemaRegistry::start(None).await;
    server.register("t-value", "\"string\"");
    let registry = registry(&server.url(), &[]);
    encode(&registry, "t", "\"the schema is known then\"")
        .await
        .unwrap();
    for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
        let text = format!("\"{}\"", "x".repeat(length - 2));
        let encoding = registry.encode("t", text.clone().into(), 2 * INLINE);
        let (was_at_once, encoded) = done_at_once(encoding).await;
        assert_eq!(was_at_once, at_once, "{length} bytes to encode");
        encoded.unwrap();
        let schema = format!("\"string\"{}", " ".repeat(length - "\"string\"".len()));
        let (was_at_once, codec) = done_at_once(parsed(schema)).await;
        assert_eq!(was_at_once, at_once, "a schema of {length} bytes");
        assert!(codec.is_ok());
    }
}
