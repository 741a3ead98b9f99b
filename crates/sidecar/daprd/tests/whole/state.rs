//! The state API over both protocols: stored values, errors and formats.

use std::collections::HashMap;

use bytes::Bytes;
use outrigger_wire::common::v1::{Etag, StateItem};
use outrigger_wire::runtime::v1::{
    DeleteBulkStateRequest, DeleteStateRequest, ExecuteStateTransactionRequest, GetBulkStateRequest,
    GetBulkStateResponse, GetMetadataResponse, GetStateRequest, GetStateResponse, QueryStateRequest,
    SaveStateRequest, TransactionalStateOperation,
};
use prost::Message;
use serde_json::json;
use tonic::Code;

use crate::common::grpc::Outcome;
use crate::common::{Net, Node, get, grpc, post, request};

const DAPR: &str = "/dapr.proto.runtime.v1.Dapr";

/// A component resource; `metadata` as flow mappings.
fn component(name: &str, kind: &str, rest: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
         version: v1\n{rest}"
    )
}

async fn with_memory() -> Node {
    let net = Net::plain();
    net.sidecar("me")
        .resource(&component("mem", "state.in-memory", ""))
        .start()
        .await
}

async fn call(node: &Node, method: &str, message: &impl Message) -> Outcome {
    grpc::unary(node.ports.grpc, &format!("{DAPR}/{method}"), &[], message).await
}

fn item(key: &str, value: &'static str) -> StateItem {
    StateItem {
        key: key.to_owned(),
        value: value.into(),
        ..StateItem::default()
    }
}

#[tokio::test]
async fn saves_reads_and_deletes_value() {
    let node = with_memory().await;
    assert_eq!(node.ask(get("/v1.0/state/mem/k")).await.status, 204);
    let saved = node
        .ask(post("/v1.0/state/mem", r#"[{"KEY":"k","value":{"a":1}}]"#))
        .await;
    assert_eq!((saved.status.as_u16(), saved.text()), (204, ""));
    let answer = node.ask(get("/v1.0/state/mem/k")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, r#"{"a":1}"#));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let etag = answer.header("etag").unwrap().to_owned();

    let wrong = request("DELETE", "/v1.0/state/mem/k", &["if-match: other"], "");
    let message = node.ask(wrong).await.error(409, "ERR_STATE_DELETE");
    assert!(
        message
            .starts_with("failed deleting state with key k: possible etag mismatch. error from state store: state etag not match for key="),
        "{message}"
    );
    let right = request("DELETE", "/v1.0/state/mem/k", &[&format!("if-match: {etag}")], "");
    assert_eq!(node.ask(right).await.status, 204);
    assert_eq!(node.ask(get("/v1.0/state/mem/k")).await.status, 204);
    let counts = async |operation, success, value| {
        let labels = [operation, success, "component=\"mem\""];
        node.counts("dapr_component_state_count", &labels, value).await;
    };
    counts("operation=\"get\"", "success=\"true\"", 3.0).await;
    counts("operation=\"delete\"", "success=\"false\"", 1.0).await;
}

#[tokio::test]
async fn apis_share_values() {
    let node = with_memory().await;
    let save = SaveStateRequest {
        store_name: "mem".into(),
        states: vec![item("a", "raw bytes"), item("b", "[1]")],
    };
    call(&node, "SaveState", &save).await.message::<()>();
    let answer = node.ask(get("/v1.0/state/mem/a")).await;
    assert_eq!(answer.text(), "raw bytes");
    let body = r#"{"keys":["a","b","none"],"parallelism":2}"#;
    let all = node.ask(post("/v1.0/state/mem/bulk", body)).await.json();
    assert!(all[0]["error"].as_str().unwrap().contains("not JSON"), "{all}");
    assert_eq!(all[1]["data"], json!([1]));
    assert_eq!(all[2], json!({"key": "none"}));
    let wanted = GetBulkStateRequest {
        store_name: "mem".into(),
        keys: vec!["a".into(), "none".into()],
        ..GetBulkStateRequest::default()
    };
    let all: GetBulkStateResponse = call(&node, "GetBulkState", &wanted).await.message();
    assert_eq!(
        (all.items[0].key.as_str(), &all.items[0].data[..]),
        ("a", &b"raw bytes"[..])
    );
    assert_eq!((all.items[1].data.len(), all.items[1].error.as_str()), (0, ""));

    let delete = DeleteBulkStateRequest {
        store_name: "mem".into(),
        states: vec![item("a", ""), item("b", "")],
    };
    call(&node, "DeleteBulkState", &delete).await.message::<()>();
    let wanted = GetStateRequest {
        store_name: "mem".into(),
        key: "a".into(),
        ..GetStateRequest::default()
    };
    let found: GetStateResponse = call(&node, "GetState", &wanted).await.message();
    assert_eq!(found, GetStateResponse::default());
}

#[tokio::test]
async fn transactions_are_atomic() {
    let node = with_memory().await;
    let body = r#"{"operations":[{"request":{"key":"a","value":1},"operation":"upsert"},
        {"operation":"upsert","request":{"key":"b","value":"x"}},
        {"operation":"delete","request":{"key":"b"}}]}"#;
    let url = "/v1.0/state/mem/transaction";
    assert_eq!(node.ask(post(url, body)).await.status, 204);
    assert_eq!(node.ask(get("/v1.0/state/mem/a")).await.text(), "1");
    assert_eq!(node.ask(get("/v1.0/state/mem/b")).await.status, 204);
    let body = r#"{"operations":[{"operation":"upsert","request":{"key":"c","value":1}},
        {"operation":"delete","request":{"key":"a","etag":"wrong"}}]}"#;
    let message = node
        .ask(post(url, body))
        .await
        .error(500, "ERR_STATE_TRANSACTION");
    assert!(
        message.starts_with("error while executing state transaction: possible etag mismatch"),
        "{message}"
    );
    assert_eq!(node.ask(get("/v1.0/state/mem/c")).await.status, 204);
    let body = r#"{"operations":[{"operation":"rename","request":{"key":"c"}}]}"#;
    let message = node
        .ask(post(url, body))
        .await
        .error(400, "ERR_NOT_SUPPORTED_STATE_OPERATION");
    assert_eq!(message, "operation type rename not supported");
    let unknown = ExecuteStateTransactionRequest {
        store_name: "mem".into(),
        operations: vec![TransactionalStateOperation {
            operation_type: "rename".into(),
            request: Some(item("c", "")),
        }],
        metadata: HashMap::new(),
    };
    let outcome = call(&node, "ExecuteStateTransaction", &unknown).await;
    assert_eq!(outcome.status.code(), Code::Unimplemented);
    assert_eq!(outcome.error_info().reason, "ERR_NOT_SUPPORTED_STATE_OPERATION");
}

#[tokio::test]
async fn bad_state_requests_have_contract_codes() {
    let node = with_memory().await;
    for body in [
        "",
        "{}",
        "foobar",
        "[{}]",
        r#"[{"key":"a","value":1},]"#,
        r#"[{"key":"a","value":1,"etag":123}]"#,
        r#"[{"key":"a||b","value":1}]"#,
    ] {
        let answer = node.ask(post("/v1.0/state/mem", body)).await;
        answer.error(400, "ERR_MALFORMED_REQUEST");
    }
    let answer = node.ask(get("/v1.0/state/other/k")).await;
    let message = answer.error(400, "ERR_STATE_STORE_NOT_FOUND");
    assert_eq!(message, "state store other is not found");
    let start =
        r#"{"errorCode":"ERR_STATE_STORE_NOT_FOUND","message":"state store other is not found","details":["#;
    assert!(
        answer.text().starts_with(start),
        "tools match the text: {}",
        answer.text()
    );
    assert_eq!(
        answer.json()["details"],
        json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "dapr.io",
            "reason": "DAPR_STATE_NOT_FOUND", "metadata": {"appID": "me"}}])
    );
    let illegal = DeleteStateRequest {
        store_name: "mem".into(),
        key: "a||b".into(),
        etag: Some(Etag { value: "1".into() }),
        ..DeleteStateRequest::default()
    };
    let outcome = call(&node, "DeleteState", &illegal).await;
    assert_eq!(outcome.status.code(), Code::InvalidArgument);
    assert_eq!(
        outcome.status.message(),
        "input key/keyPrefix 'a||b' can't contain '||'"
    );
    assert_eq!(outcome.details().len(), 3);
    let query = QueryStateRequest {
        store_name: "mem".into(),
        query: "{}".into(),
        ..QueryStateRequest::default()
    };
    let outcome = call(&node, "QueryStateAlpha1", &query).await;
    assert_eq!(outcome.status.message(), "state store does not support querying");
    let answer = node.ask(post("/v1.0-alpha1/state/mem/query", "{}")).await;
    answer.error(500, "ERR_STATE_STORE_NOT_SUPPORTED");
    let bare = Net::plain().sidecar("bare").start().await;
    let answer = bare.ask(post("/v1.0/state/mem", "")).await;
    let message = answer.error(500, "ERR_STATE_STORE_NOT_CONFIGURED");
    assert_eq!(message, "state store mem is not configured");
}

/// A value of the in-memory store as text.
async fn stored(node: &Node, escaped_key: &str) -> String {
    let answer = node.ask(get(&format!("/v1.0/state/mem/{escaped_key}"))).await;
    assert_eq!(answer.status, 200, "{escaped_key}");
    answer.text().to_owned()
}

#[tokio::test]
async fn parses_bodies_like_go() {
    let node = with_memory().await;
    for (path, status, text) in [
        ("/v1.0/state/mem", 204, ""),
        ("/v1.0/state/mem/transaction", 204, ""),
        ("/v1.0/state/mem/bulk", 200, "[]"),
    ] {
        let answer = node.ask(post(path, "null")).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (status, text), "{path}");
    }
    // An unpaired surrogate, as written by JavaScript, and a byte that is not UTF-8: in values, keys and
    // member names.
    for (body, key) in [
        (&br#"[{"key":"v","value":"a\ud800b"}]"#[..], "v"),
        (
            br#"[{"key":"k\udfff","value":{"\ud83d":["\ude00",1]}}]"#,
            "k%EF%BF%BD",
        ),
        (b"[{\"key\":\"b\",\"value\":\"\xff\"}]", "b"),
    ] {
        let saved = node.ask(post("/v1.0/state/mem", Bytes::from_static(body))).await;
        assert_eq!(saved.status, 204, "{}", saved.text());
        assert!(stored(&node, key).await.contains('\u{fffd}'), "{key}");
    }
    assert_eq!(
        stored(&node, "k%EF%BF%BD").await,
        "{\"\u{fffd}\":[\"\u{fffd}\",1]}"
    );
    let steps = r#"{"operations":[{"operation":"upsert","request":{"key":"t","value":"\udc00"}}]}"#;
    let done = node.ask(post("/v1.0/state/mem/transaction", steps)).await;
    assert_eq!(done.status, 204, "{}", done.text());
    assert_eq!(stored(&node, "t").await, "\"\u{fffd}\"");
}

#[tokio::test]
async fn refuses_out_of_range_numbers_before_write() {
    let node = with_memory().await;
    for (path, body) in [
        (
            "",
            r#"[{"key":"first","value":1},{"key":"k","value":{"a":[1E400]}}]"#,
        ),
        (
            "/transaction",
            r#"{"operations":[{"operation":"upsert","request":{"key":"first","value":-1e999}}]}"#,
        ),
    ] {
        let answer = node.ask(post(&format!("/v1.0/state/mem{path}"), body)).await;
        let message = answer.error(400, "ERR_MALFORMED_REQUEST");
        assert!(message.contains("out of range"), "{message}");
    }
    assert_eq!(node.ask(get("/v1.0/state/mem/first")).await.status, 204);
}

#[tokio::test]
async fn memory_store_accepts_any_ttl() {
    let node = with_memory().await;
    let body = r#"[{"key":"k","value":1,"metadata":{"ttlInSeconds":"99999999999"}}]"#;
    assert_eq!(node.ask(post("/v1.0/state/mem", body)).await.status, 204);
    let answer = node.ask(get("/v1.0/state/mem/k")).await;
    let expires = answer.header("metadata.ttlexpiretime").unwrap();
    assert!(
        expires.starts_with("51") || expires.starts_with("52"),
        "{expires}"
    );
}

#[tokio::test]
async fn stores_large_values() {
    let node = with_memory().await;
    let long = "x<é".repeat(100_000);
    let large = json!([
        {"key": "large", "value": {"b": long, "a": 1.0}},
        {"key": "small", "value": {"b": "x<é", "a": 1.0}},
    ]);
    let saved = node.ask(post("/v1.0/state/mem", large.to_string())).await;
    assert_eq!(saved.status, 204, "{}", saved.text());
    assert_eq!(stored(&node, "small").await, r#"{"a":1,"b":"x\u003cé"}"#);
    let expected = format!(r#"{{"a":1,"b":"{}"}}"#, r"x\u003cé".repeat(100_000));
    assert!(stored(&node, "large").await == expected);
    let bulk = node
        .ask(post("/v1.0/state/mem/bulk", r#"{"keys":["large","absent"]}"#))
        .await;
    assert_eq!(bulk.json()[0]["data"]["b"].as_str(), Some(long.as_str()));
    assert_eq!(bulk.json()[1], json!({"key": "absent"}));
}

#[tokio::test]
async fn encrypts_stored_values() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = folder.path().join("secrets.json");
    std::fs::write(&secrets, r#"{"key":"000102030405060708090a0b0c0d0e0f"}"#).unwrap();
    let database = folder.path().join("state.db");
    let store = |name: &str, key: &str| {
        let rest = format!(
            "  metadata:\n  - name: connectionString\n    value: {}\n  - name: keyPrefix\n    value: none\n{key}",
            database.display()
        );
        component(name, "state.sqlite", &rest)
    };
    let key =
        "  - name: primaryEncryptionKey\n    secretKeyRef:\n      name: key\nauth:\n  secretStore: vault\n";
    let vault = format!(
        "  metadata:\n  - name: secretsFile\n    value: {}\n",
        secrets.display()
    );
    let net = Net::plain();
    // The store is listed before the secret store it depends on.
    let node = net
        .sidecar("me")
        .resource(&store("safe", key))
        .resource(&component("vault", "secretstores.local.file", &vault))
        .start()
        .await;
    let save = post(
        "/v1.0/state/safe",
        r#"[{"key":"a","value":"hush"},{"key":"b","value":{"n":1}}]"#,
    );
    assert_eq!(node.ask(save).await.status, 204);
    assert_eq!(node.ask(get("/v1.0/state/safe/a")).await.text(), "hush");
    assert_eq!(node.ask(get("/v1.0/state/safe/b")).await.text(), r#"{"n":1}"#);
    let answer = node.ask(get("/v1.0/metadata")).await.json();
    assert_eq!(answer["components"].as_array().unwrap().len(), 2);
    node.stop().await.unwrap();
    let open = net.sidecar("me").resource(&store("open", "")).start().await;
    let stored = open.ask(get("/v1.0/state/open/a")).await;
    assert!(
        !stored.text().contains("hush") && !stored.text().is_empty(),
        "{}",
        stored.text()
    );
}

#[tokio::test]
async fn lists_stores_with_capabilities() {
    let node = with_memory().await;
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    let listed = &metadata["components"][0];
    assert_eq!(listed["name"], "mem");
    assert_eq!(listed["type"], "state.in-memory");
    assert_eq!(listed["version"], "v1");
    let capabilities = listed["capabilities"].as_array().unwrap();
    for capability in ["ETAG", "TRANSACTIONAL", "TTL", "ACTOR"] {
        assert!(capabilities.contains(&json!(capability)), "{capabilities:?}");
    }
    let over_grpc: GetMetadataResponse = call(&node, "GetMetadata", &()).await.message();
    assert_eq!(over_grpc.registered_components[0].name, "mem");
}

#[tokio::test]
async fn reports_component_that_cannot_start() {
    let net = Net::plain();
    let unknown = component("odd", "state.nosuch", "");
    let error = net
        .sidecar("me")
        .resource(&unknown)
        .try_launch()
        .await
        .err()
        .expect("no such store")
        .to_string();
    // Its error is logged once.
    assert_eq!(
        error,
        "component odd (state.nosuch/v1) did not start; its error is logged above"
    );
    let node = net
        .sidecar("me")
        .resource(&component("odd", "state.nosuch", "  ignoreErrors: true\n"))
        .resource(&component("mem", "state.in-memory", ""))
        .start()
        .await;
    assert_eq!(node.ask(get("/v1.0/state/mem/k")).await.status, 204);
    node.ask(get("/v1.0/state/odd/k"))
        .await
        .error(400, "ERR_STATE_STORE_NOT_FOUND");
}

#[tokio::test]
async fn refuses_oversized_bodies_per_route() {
    let net = Net::plain();
    let plan = net.sidecar("me").flag("--max-body-size=1000");
    let node = plan
        .resource(&component("mem", "state.in-memory", ""))
        .start()
        .await;
    let large = || json!([{"key": "k", "value": "x".repeat(2000)}]).to_string();
    for (path, code, words) in [
        ("/v1.0/state/mem", "ERR_MALFORMED_REQUEST", ""),
        (
            "/v1.0/state/mem/bulk",
            "ERR_MALFORMED_REQUEST",
            "failed deserializing HTTP body: ",
        ),
        (
            "/v1.0/state/mem/transaction",
            "ERR_MALFORMED_REQUEST",
            "failed deserializing HTTP body: ",
        ),
        (
            "/v1.0-alpha1/state/mem/query",
            "ERR_BODY_READ",
            "failed to read request body: ",
        ),
    ] {
        let message = node.ask(post(path, large())).await.error(400, code);
        assert!(
            message.starts_with(words) && message.contains("too large"),
            "{message}"
        );
    }
    let save = SaveStateRequest {
        store_name: "mem".into(),
        states: vec![StateItem {
            key: "k".into(),
            value: vec![b'x'; 2000].into(),
            ..StateItem::default()
        }],
    };
    let outcome = call(&node, "SaveState", &save).await;
    assert_eq!(
        outcome.status.code(),
        Code::ResourceExhausted,
        "{:?}",
        outcome.status
    );
    let text = outcome.status.message();
    assert!(
        text.starts_with("grpc: received message larger than max ("),
        "{text}"
    );
    assert_eq!(node.ask(get("/v1.0/state/mem/k")).await.status, 204);
}

#[tokio::test]
async fn limits_bulk_get_without_message_limit() {
    let net = Net::plain();
    let plan = net.sidecar("me").flag("--max-body-size=0");
    let plan = plan.resource(&component("mem", "state.in-memory", ""));
    let node = plan.start().await;
    let save = SaveStateRequest {
        store_name: "mem".into(),
        states: vec![StateItem {
            key: "k".into(),
            value: vec![b'x'; 5 << 20].into(),
            ..StateItem::default()
        }],
    };
    let outcome = call(&node, "SaveState", &save).await;
    assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
    let bulk = |times| GetBulkStateRequest {
        store_name: "mem".into(),
        keys: vec!["k".to_owned(); times],
        ..GetBulkStateRequest::default()
    };
    // More than the default message limit, and 65 MiB.
    for (times, code) in [(1, Code::Ok), (13, Code::ResourceExhausted)] {
        let outcome = call(&node, "GetBulkState", &bulk(times)).await;
        assert_eq!(outcome.status.code(), code, "{times}: {:?}", outcome.status);
    }
}

#[tokio::test]
async fn limits_bulk_get_response() {
    let net = Net::plain();
    let plan = net.sidecar("me").flag("--max-body-size=3000000");
    let node = plan
        .resource(&component("mem", "state.in-memory", ""))
        .start()
        .await;
    // Two million bytes with its quotes: 33 are less than 64 MiB, and 34 are more.
    let value = "x".repeat(2_000_000 - 2);
    let saved = node
        .ask(post(
            "/v1.0/state/mem",
            json!([{"key": "k", "value": value}]).to_string(),
        ))
        .await;
    assert_eq!(saved.status, 204, "{}", saved.text());
    let ask = |times| {
        post(
            "/v1.0/state/mem/bulk",
            json!({"keys": vec!["k"; times]}).to_string(),
        )
    };
    let answer = node.ask(ask(33)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().len() > 33 * 2_000_000);
    let message = node.ask(ask(34)).await.error(400, "ERR_STATE_BULK_GET");
    assert_eq!(
        message,
        "the values of the bulk get exceed the limit of 67108864 bytes: request fewer keys at once"
    );

    // Over gRPC the limit is that of a message: for the values, or for the rest of the response.
    let bulk = |keys: Vec<String>| GetBulkStateRequest {
        store_name: "mem".into(),
        keys,
        ..GetBulkStateRequest::default()
    };
    let outcome = call(&node, "GetBulkState", &bulk(vec!["k".to_owned()])).await;
    assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
    for (keys, words) in [
        (
            vec!["k".to_owned(); 2],
            "the values of the bulk get exceed the limit of 3000000 bytes",
        ),
        (
            vec!["k".to_owned(), "absent".repeat(200_000)],
            "grpc: trying to send message larger than max (32",
        ),
    ] {
        let outcome = call(&node, "GetBulkState", &bulk(keys)).await;
        assert_eq!(outcome.status.code(), Code::ResourceExhausted, "{words}");
        let text = outcome.status.message();
        assert!(text.starts_with(words), "{text}");
    }
    let large = json!({"keys": vec![""; 1000], "metadata": {"x": "x".repeat(100_000)}}).to_string();
    let message = node
        .ask(post("/v1.0/state/mem/bulk", large))
        .await
        .error(400, "ERR_STATE_BULK_GET");
    assert!(
        message.starts_with("the metadata of the request have 100001 bytes, which for 1000 items is more"),
        "{message}"
    );
}
