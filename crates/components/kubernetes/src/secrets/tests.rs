use outrigger_kube::testing::Server;
use serde_json::{Value, json};

use super::*;

fn at(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}")
}

fn secret(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

/// A store for the pods of a namespace.
fn of(server: &Server, namespace: Option<&str>, most: usize) -> Cluster {
    Cluster {
        client: server.client(),
        namespace: namespace.map(str::to_owned),
        most,
    }
}

fn inside(namespace: &str) -> Pairs {
    Pairs::from([("namespace".to_owned(), namespace.to_owned())])
}

/// The API server's answer without permission.
fn forbidden() -> Value {
    json!({"kind": "Status", "code": 403, "reason": "Forbidden",
           "message": "secrets is forbidden: User \"system:serviceaccount:shop:default\" cannot do that"})
}

#[tokio::test]
async fn request_namespace_overrides_pods() {
    let server = Server::start().await;
    server.put(&at("shop", "db"), secret("db", json!({"password": "c2VzYW1l"})));
    server.put(&at("other", "db"), secret("db", json!({"password": "eA=="})));
    let store = of(&server, Some("shop"), MAX_ALL);
    let password = |found: Result<Pairs>| found.unwrap()["password"].clone();
    assert_eq!(password(store.get("db", &Pairs::new()).await), "sesame");
    assert_eq!(password(store.get("db", &inside("")).await), "sesame");
    assert_eq!(password(store.get("db", &inside("other")).await), "x");
    let nowhere = of(&server, None, MAX_ALL);
    let error = nowhere.get("db", &Pairs::new()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest);
    assert!(error.to_string().contains("metadata.namespace"), "{error}");
    let error = nowhere.bulk_get(&Pairs::new()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest);
}

#[tokio::test]
async fn pod_namespace_overrides_default() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                contexts: [{name: c, context: {cluster: c, user: u}}]\n\
                clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    for (own, default, expected) in [
        (Some("own"), Some("default"), Some("own")),
        (Some(""), Some("default"), Some("default")),
        (None, Some("default"), Some("default")),
        (None, Some(""), None),
        (None, None, None),
    ] {
        let given = [("kubeconfigPath", Some(file)), ("defaultNamespace", default)];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        let metadata = Metadata::new("store", given).unwrap();
        let store = Cluster::open(&metadata, own.map(str::to_owned)).await.unwrap();
        assert_eq!(store.namespace.as_deref(), expected, "{own:?} {default:?}");
    }
    let missing = [("kubeconfigPath".to_owned(), "/nowhere".to_owned())];
    let metadata = Metadata::new("store", missing).unwrap();
    let error = Cluster::open(&metadata, None).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Configuration);
    assert!(
        error.to_string().starts_with("kubeconfigPath /nowhere: "),
        "{error}"
    );
}

#[tokio::test]
async fn escapes_names_in_path() {
    let server = Server::start().await;
    server.put(&at("other", "db"), secret("db", json!({"a": "eA=="})));
    let store = of(&server, Some("shop"), MAX_ALL);
    let error = store
        .get("../../other/secrets/db", &Pairs::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    for namespace in ["other/secrets", "..", "other?x="] {
        let error = store.get("db", &inside(namespace)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
        let error = store.bulk_get(&inside(namespace)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    }
    assert!(server.requests("GET", "").is_empty(), "nothing was asked");
}

#[tokio::test]
async fn missing_permission_names_secret_and_namespace() {
    let server = Server::start().await;
    server.fix(&at("shop", "db"), StatusCode::FORBIDDEN, forbidden());
    server.fix(
        "/api/v1/namespaces/shop/secrets",
        StatusCode::FORBIDDEN,
        forbidden(),
    );
    let store = of(&server, Some("shop"), MAX_ALL);
    let error = store.get("db", &Pairs::new()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    let text = error.to_string();
    for part in [
        "the Secret db in the namespace shop",
        "get secrets in the namespace shop",
        "system:serviceaccount:shop:default",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let error = store.bulk_get(&Pairs::new()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    let text = error.to_string();
    assert!(text.contains("list secrets in the namespace shop"), "{text}");
}

#[tokio::test]
async fn distinguishes_absent_from_unreachable() {
    let server = Server::start().await;
    let store = of(&server, Some("shop"), MAX_ALL);
    let error = store.get("db", &Pairs::new()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(
        error.to_string().contains("the Secret db in the namespace shop"),
        "{error}"
    );
    assert!(store.bulk_get(&Pairs::new()).await.unwrap().is_empty());
    server.down(true);
    for error in [
        store.get("db", &Pairs::new()).await.unwrap_err(),
        store.bulk_get(&Pairs::new()).await.unwrap_err(),
    ] {
        assert!(error.retryable(), "{error:?}");
    }
}

#[tokio::test]
async fn decodes_values_to_text() {
    let server = Server::start().await;
    let store = of(&server, Some("shop"), MAX_ALL);
    server.put(
        &at("shop", "mixed"),
        secret("mixed", json!({"text": "w6Q=", "bytes": "/2E=", "none": ""})),
    );
    let found = store.get("mixed", &Pairs::new()).await.unwrap();
    let expected = [("text", "ä"), ("bytes", "\u{fffd}a"), ("none", "")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(found, Pairs::from(expected));
    server.put(&at("shop", "empty"), json!({"metadata": {"name": "empty"}}));
    assert_eq!(store.get("empty", &Pairs::new()).await.unwrap(), Pairs::new());
    server.put(&at("shop", "broken"), secret("broken", json!({"key": "?"})));
    let error = store.get("broken", &Pairs::new()).await.unwrap_err();
    assert!(error.to_string().contains("key is not in base64"), "{error}");
}

#[tokio::test]
async fn bounds_bulk_response() {
    let server = Server::start().await;
    for number in 0..20 {
        let name = format!("s{number}");
        let long = "YWFh".repeat(20_000);
        server.put(&at("shop", &name), secret(&name, json!({"a": long})));
    }
    server.put(&at("other", "x"), secret("x", json!({})));
    let all = async |most| of(&server, Some("shop"), most).bulk_get(&Pairs::new()).await;
    let found = all(2 << 20).await.unwrap();
    assert_eq!((found.len(), found["s7"]["a"].len()), (20, 60_000));
    assert_eq!(
        all(1 << 20).await.unwrap_err().to_string(),
        "all Secrets in the namespace shop have more than 1 MiB: get them one by one"
    );
}
