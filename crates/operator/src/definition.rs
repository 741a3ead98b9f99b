//! The definition of subscriptions in the cluster: it has to say whom the API server trusts when it asks for a
//! conversion.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_accept::health::Part;
use outrigger_identity::TrustAnchors;
use outrigger_kube::{ApiError, Client, Kind, Patch};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const LOG: &str = "dapr.operator";
const NAME: &str = "subscriptions.dapr.io";
/// Between two attempts.
const RETRY: Duration = Duration::from_secs(5);

/// Why the definition does not say it.
#[derive(Debug, thiserror::Error)]
enum DefinitionError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(
        "it has no webhook for conversions (spec.conversion.webhook.clientConfig): install the definitions of the chart"
    )]
    NoWebhook,
}

/// Keeps the definition right, now and whenever the trust anchors change. Ready once it was right.
pub(crate) async fn keep(
    client: Client,
    namespace: String,
    anchors: TrustAnchors,
    ready: Part,
    stop: CancellationToken,
) {
    let keep = async {
        let mut changes = anchors.subscribe();
        loop {
            let bundle = changes.borrow_and_update().pem().to_owned();
            match correct(&client, &namespace, &bundle).await {
                Ok(()) => {
                    ready.set(true);
                    if changes.changed().await.is_err() {
                        return std::future::pending().await;
                    }
                }
                Err(error) => {
                    tracing::error!(target: LOG, "cannot correct the definition {NAME}: {error}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    stop.run_until_cancelled(keep).await;
}

async fn correct(client: &Client, namespace: &str, bundle: &str) -> Result<(), DefinitionError> {
    let definition: Value = client.get(Kind::CUSTOM_RESOURCE_DEFINITIONS, None, NAME).await?;
    let bundle = STANDARD.encode(bundle);
    if let Some(patch) = patch(&definition, namespace, &bundle)? {
        client
            .patch(Kind::CUSTOM_RESOURCE_DEFINITIONS, None, NAME, &Patch::Json(patch))
            .await?;
        tracing::info!(target: LOG, "the definition {NAME} names this operator and the current trust anchors");
    }
    Ok(())
}

/// What has to change; nothing when it is right.
fn patch(definition: &Value, namespace: &str, bundle: &str) -> Result<Option<Value>, DefinitionError> {
    let place = "/spec/conversion/webhook/clientConfig";
    let config = definition.pointer(place).filter(|config| config.is_object());
    let config = config.ok_or(DefinitionError::NoWebhook)?;
    if config["service"]["namespace"] == namespace && config["caBundle"] == bundle {
        return Ok(None);
    }
    let service = match config["service"].is_object() {
        true => json!({"op": "add", "path": format!("{place}/service/namespace"), "value": namespace}),
        false => json!({"op": "add", "path": format!("{place}/service"),
            "value": {"namespace": namespace, "name": "dapr-webhook", "path": "/convert"}}),
    };
    let bundle = json!({"op": "add", "path": format!("{place}/caBundle"), "value": bundle});
    Ok(Some(json!([service, bundle])))
}

#[cfg(test)]
mod tests {
    use outrigger_kube::testing::Server;

    use super::*;

    const ADDRESS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/subscriptions.dapr.io";

    #[tokio::test]
    async fn the_definition_is_corrected_once() {
        let server = Server::start().await;
        server.put(
            ADDRESS,
            json!({"metadata": {"name": NAME}, "spec": {"conversion": {"webhook": {"clientConfig": {
            "service": {"name": "dapr-webhook", "namespace": "replaceme", "path": "/convert"}}}}}}),
        );
        let client = server.client();
        correct(&client, "dapr-system", "anchors").await.unwrap();
        correct(&client, "dapr-system", "anchors").await.unwrap();
        assert_eq!(server.requests("PATCH", ADDRESS).len(), 1);
        let config = &server.object(ADDRESS).unwrap()["spec"]["conversion"]["webhook"]["clientConfig"];
        assert_eq!(config["service"]["namespace"], "dapr-system");
        assert_eq!(config["service"]["name"], "dapr-webhook");
        assert_eq!(config["caBundle"], STANDARD.encode("anchors"));
        correct(&client, "dapr-system", "others").await.unwrap();
        assert_eq!(server.requests("PATCH", ADDRESS).len(), 2, "other anchors");
    }

    #[test]
    fn a_definition_without_a_webhook_is_an_error() {
        let error = patch(&json!({"spec": {"conversion": {"strategy": "None"}}}), "ns", "x").unwrap_err();
        assert!(error.to_string().contains("clientConfig"), "{error}");
        let bare = json!({"spec": {"conversion": {"webhook": {"clientConfig": {}}}}});
        let patch = patch(&bare, "ns", "x").unwrap().unwrap();
        assert_eq!(patch[0]["value"]["name"], "dapr-webhook");
    }
}
