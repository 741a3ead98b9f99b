//! Secrets of the cluster, used by components and read by apps.

use super::*;

/// A Kubernetes API with the Secrets `db` (in two namespaces), `hidden`, and one without read access; and a
/// kubeconfig.
async fn cluster_with_secrets() -> (Server, tempfile::TempDir) {
    let api = Server::start().await;
    let at = |namespace: &str, name: &str| format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    for (namespace, name, value) in [
        ("shop", "db", "c2VzYW1l"),
        ("other", "db", "b3RoZXI="),
        ("shop", "hidden", "eA=="),
    ] {
        let secret = json!({"metadata": {"name": name, "namespace": namespace}, "data": {"password": value}});
        api.put(&at(namespace, name), secret);
    }
    let refused = json!({"kind": "Status", "code": 403, "message": "secrets \"far\" is forbidden"});
    api.fix(&at("shop", "far"), http::StatusCode::FORBIDDEN, refused);
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n",
        api.address()
    );
    std::fs::write(folder.path().join("kubeconfig"), text).unwrap();
    (api, folder)
}

#[tokio::test]
async fn cluster_secrets_need_no_component() {
    let net = Net::secure().await;
    let mut operator = Process::start(&net, "dapr-operator").await;
    let mut settings = hot_reload();
    settings["spec"]["secrets"] = json!({"scopes": [{"storeName": "kubernetes", "defaultAccess": "allow", "deniedSecrets": ["hidden"]}]});
    *operator.cluster.configuration.lock().unwrap() = settings;
    let (api, folder) = cluster_with_secrets().await;
    // A separate process, because the client of the API reads the environment.
    let plan = operator.in_cluster(&net).configuration("settings");
    let plan = plan
        .env("NAMESPACE", "shop")
        .env("KUBECONFIG", folder.path().join("kubeconfig").to_str().unwrap());
    let node = plan.spawn().await;
    let ask = async |path: &str| {
        let answer = node.try_ask(get(&format!("/v1.0/{path}"))).await.unwrap();
        (answer.status.as_u16(), answer.json())
    };
    assert!(
        api.requests("GET", "/secrets").is_empty(),
        "nothing is asked at the start"
    );
    let (_, answer) = ask("metadata").await;
    let component = json!({"name": "kubernetes", "type": "secretstores.kubernetes", "version": "v1"});
    assert_eq!(answer["components"], json!([component]));

    let secret = ask("secrets/kubernetes/db").await;
    assert_eq!(secret, (200, json!({"password": "sesame"})));
    let secret = ask("secrets/kubernetes/db?metadata.namespace=other").await;
    assert_eq!(secret, (200, json!({"password": "other"})));
    assert_eq!(
        ask("secrets/kubernetes/bulk").await,
        (200, json!({"db": {"password": "sesame"}}))
    );
    let (status, answer) = ask("secrets/kubernetes/hidden").await;
    assert_eq!(
        (status, &answer["errorCode"]),
        (403, &json!("ERR_PERMISSION_DENIED"))
    );
    let (status, answer) = ask("secrets/kubernetes/far").await;
    assert_eq!((status, &answer["errorCode"]), (500, &json!("ERR_SECRET_GET")));
    let text = answer["message"].as_str().unwrap();
    for part in [
        "the Secret far in the namespace shop",
        "get secrets",
        "is forbidden",
    ] {
        assert!(text.contains(part), "{text}");
    }

    // Updates from the operator, and its list after a restart, do not affect it.
    let names = async || -> Vec<String> {
        let (_, answer) = ask("metadata").await;
        let all = answer["components"].as_array().into_iter().flatten();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    eventually(async || !operator.cluster.component_watchers.lock().unwrap().is_empty()).await;
    operator.tell(Created, &memory("first"));
    eventually(async || names().await == ["kubernetes", "first"]).await;
    operator.kill().await;
    operator.put(&memory("second"));
    operator.restart().await;
    eventually(async || names().await == ["kubernetes", "second"]).await;
    assert_eq!(ask("secrets/kubernetes/db").await.0, 200);
}
