//! The secrets API over both protocols, and the scopes that limit it.

use std::collections::HashMap;

use outrigger_wire::runtime::v1::{
    GetBulkSecretRequest, GetBulkSecretResponse, GetSecretRequest, GetSecretResponse,
};
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

use crate::common::{Net, Node, get, grpc};

const SCOPES: &str = "  secrets:\n    scopes:\n    - storeName: vault\n      deniedSecrets: [hidden]\n";

async fn with_vault(spec: &str) -> (Node, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets.json");
    std::fs::write(&file, r#"{"open":"sesame","hidden":"x","a/b":"slash"}"#).unwrap();
    let yaml = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: vault\nspec:\n  \
         type: secretstores.local.file\n  version: v1\n  metadata:\n  - name: secretsFile\n    value: {}\n",
        file.display()
    );
    let node = Net::plain()
        .sidecar("me")
        .spec(spec)
        .resource(&yaml)
        .start()
        .await;
    (node, folder)
}

#[tokio::test]
async fn reads_one_or_all_secrets() {
    let (node, _folder) = with_vault("").await;
    let answer = node.ask(get("/v1.0/secrets/vault/open")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()),
        (200, json!({"open": "sesame"}))
    );
    let answer = node.ask(get("/v1.0/secrets/vault/a%2Fb")).await;
    assert_eq!(answer.json(), json!({"a/b": "slash"}));
    let all = node.ask(get("/v1.0/secrets/vault/bulk")).await.json();
    assert_eq!(all["hidden"], json!({"hidden": "x"}));
    assert_eq!(all.as_object().unwrap().len(), 3);
    let request = GetSecretRequest {
        store_name: "vault".into(),
        key: "open".into(),
        metadata: HashMap::new(),
    };
    let method = "/dapr.proto.runtime.v1.Dapr/GetSecret";
    let outcome = grpc::unary(node.ports.grpc, method, &[], &request).await;
    assert_eq!(outcome.message::<GetSecretResponse>().data["open"], "sesame");
    let labels = ["component=\"vault\"", "operation=\"get\"", "success=\"true\""];
    node.counts("dapr_component_secret_count", &labels, 3.0).await;
}

#[tokio::test]
async fn applies_scopes_to_both_apis() {
    let (node, _folder) = with_vault(SCOPES).await;
    let message = node
        .ask(get("/v1.0/secrets/vault/hidden"))
        .await
        .error(403, "ERR_PERMISSION_DENIED");
    assert_eq!(message, r#"access denied by policy to get "hidden" from "vault""#);
    let all = node.ask(get("/v1.0/secrets/vault/bulk")).await.json();
    assert_eq!(all.as_object().unwrap().len(), 2, "{all}");
    let request = GetBulkSecretRequest {
        store_name: "vault".into(),
        metadata: HashMap::new(),
    };
    let method = "/dapr.proto.runtime.v1.Dapr/GetBulkSecret";
    let outcome = grpc::unary(node.ports.grpc, method, &[], &request).await;
    let all: GetBulkSecretResponse = outcome.message();
    assert!(!all.data.contains_key("hidden"));
    let request = GetSecretRequest {
        store_name: "vault".into(),
        key: "hidden".into(),
        metadata: HashMap::new(),
    };
    let method = "/dapr.proto.runtime.v1.Dapr/GetSecret";
    let outcome = grpc::unary(node.ports.grpc, method, &[], &request).await;
    assert_eq!(outcome.status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn missing_secrets_have_contract_codes() {
    let (node, _folder) = with_vault("").await;
    let message = node
        .ask(get("/v1.0/secrets/other/k"))
        .await
        .error(401, "ERR_SECRET_STORE_NOT_FOUND");
    assert_eq!(message, "failed finding secret store with key other");
    let message = node
        .ask(get("/v1.0/secrets/vault/missing"))
        .await
        .error(500, "ERR_SECRET_GET");
    assert!(
        message.starts_with("failed getting secret with key missing from secret store vault: "),
        "{message}"
    );
    let bare = Net::plain().sidecar("bare").start().await;
    bare.ask(get("/v1.0/secrets/vault/k"))
        .await
        .error(500, "ERR_SECRET_STORES_NOT_CONFIGURED");
}
