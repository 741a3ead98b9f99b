//! The registration of the webhook in the cluster: it has to say whom the API server trusts.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_accept::health::Part;
use outrigger_identity::TrustAnchors;
use outrigger_kube::{ApiError, Client, Kind, Patch};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const NAME: &str = "dapr-sidecar-injector";
/// Between two attempts.
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the registration right, now and whenever the trust anchors change. Ready once it was right.
pub(crate) async fn keep(client: Client, anchors: TrustAnchors, ready: Part, stop: CancellationToken) {
    let keep = async {
        let mut changes = anchors.subscribe();
        loop {
            let bundle = changes.borrow_and_update().pem().to_owned();
            match register(&client, &bundle).await {
                Ok(()) => {
                    tracing::info!(target: "dapr.injector", "the webhook {NAME} names the current trust anchors");
                    ready.set(true);
                    if changes.changed().await.is_err() {
                        return std::future::pending().await;
                    }
                }
                Err(error) => {
                    tracing::error!(
                        target: "dapr.injector",
                        "cannot register the trust anchors with the webhook {NAME}: {error}; pods get no sidecar until then"
                    );
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    stop.run_until_cancelled(keep).await;
}

async fn register(client: &Client, bundle: &str) -> Result<(), ApiError> {
    let path = "/webhooks/0/clientConfig/caBundle";
    let patch = json!([{"op": "add", "path": path, "value": STANDARD.encode(bundle)}]);
    client
        .patch(Kind::MUTATING_WEBHOOKS, None, NAME, &Patch::Json(patch))
        .await
}

#[cfg(test)]
mod tests {
    use outrigger_kube::testing::Server;

    use super::*;

    const ADDRESS: &str =
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/dapr-sidecar-injector";

    #[tokio::test]
    async fn the_registration_names_the_trust_anchors() {
        let server = Server::start().await;
        assert!(register(&server.client(), "x").await.unwrap_err().is_not_found());
        server.put(
            ADDRESS,
            json!({"metadata": {"name": NAME}, "webhooks": [{"clientConfig": {"service": {}}}]}),
        );
        register(&server.client(), "anchors").await.unwrap();
        let config = server.object(ADDRESS).unwrap()["webhooks"][0]["clientConfig"].clone();
        assert_eq!(config["caBundle"], STANDARD.encode("anchors"));
    }
}
