//! The secret store against an API server found through a kubeconfig.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;

use outrigger_component::Pairs;
use outrigger_component_conformance::{self as conformance, ExpectedSecrets};
use outrigger_components_testing::Components;
use outrigger_kube::testing::Server;
use serde_json::json;

fn pairs(pairs: &[(&str, &str)]) -> Pairs {
    let owned = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    owned.collect()
}

#[tokio::test]
async fn kubernetes_passes_conformance() {
    let server = Server::start().await;
    // In a pod, its own namespace is the default.
    let namespace = std::env::var("NAMESPACE").unwrap_or_else(|_| "shop".to_owned());
    let put = |namespace: &str, name: &str, data: serde_json::Value| {
        let address = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        server.put(
            &address,
            json!({"metadata": {"name": name, "namespace": namespace}, "data": data}),
        );
    };
    put(&namespace, "db", json!({"user": "bWU=", "password": "c2VzYW1l"}));
    put(&namespace, "empty", json!({}));
    put("another", "theirs", json!({"a": "eA=="}));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n",
        server.address()
    );
    std::fs::write(&file, text).unwrap();
    let store = Components::of(outrigger_components_kubernetes::add)
        .secrets(
            "secretstores.kubernetes",
            "v1",
            &[
                ("kubeconfigPath", file.to_str().unwrap()),
                ("defaultNamespace", "shop"),
            ],
        )
        .await
        .unwrap();
    assert!(
        server.requests("GET", "").is_empty(),
        "nothing is asked at the start"
    );
    assert!(store.features().is_empty());
    let expected = ExpectedSecrets {
        present: HashMap::from([
            ("db".to_owned(), pairs(&[("user", "me"), ("password", "sesame")])),
            ("empty".to_owned(), Pairs::new()),
        ]),
        hidden: vec!["theirs".to_owned(), "none".to_owned()],
    };
    conformance::secrets(&store, &expected).await;
}
