//! The registration of the webhook in the cluster, which must name the CA that the API server trusts.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_controlplane::health::Part;
use outrigger_identity::TrustAnchors;
use outrigger_kube::{ApiError, Client, Kind, Patch};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const NAME: &str = "dapr-sidecar-injector";
/// Pause between attempts.
const RETRY: Duration = Duration::from_secs(5);
/// Interval of rewrites. A recreated registration lacks the anchors, so pods get no sidecar. Reading it first
/// would require another right; a rewrite without changes triggers no event.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(300);

/// Writes the registration now, whenever the trust anchors change, and periodically. Ready once it was
/// written.
pub(crate) async fn maintain(client: Client, anchors: TrustAnchors, ready: Part, stop: CancellationToken) {
    let maintain = async {
        let mut changes = anchors.subscribe();
        // The registered bundle, as far as known.
        let mut registered = None;
        loop {
            let bundle = changes.borrow_and_update().pem().to_owned();
            match register(&client, &bundle).await {
                Ok(()) => {
                    if registered.as_ref() != Some(&bundle) {
                        tracing::info!(target: "dapr.injector", "the webhook {NAME} names the current trust anchors");
                        registered = Some(bundle);
                    }
                    ready.set(true);
                }
                // Most likely unchanged.
                Err(error) if registered.as_ref() == Some(&bundle) && !error.is_not_found() => {
                    tracing::warn!(
                        target: "dapr.injector",
                        "cannot renew the webhook {NAME}, retrying in {} s: {error}", RENEWAL_INTERVAL.as_secs()
                    );
                }
                Err(error) => {
                    registered = None;
                    tracing::error!(
                        target: "dapr.injector",
                        "cannot register the trust anchors with the webhook {NAME}, so pods get no sidecar: {error}"
                    );
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            if let Ok(Err(_)) = tokio::time::timeout(RENEWAL_INTERVAL, changes.changed()).await {
                return std::future::pending().await;
            }
        }
    };
    stop.run_until_cancelled(maintain).await;
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
    use outrigger_controlplane::health::Health;
    use outrigger_identity::TrustBundle;
    use outrigger_identity::testing::{Algorithm, Authority};
    use outrigger_kube::testing::Server;

    use super::*;

    const ADDRESS: &str =
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/dapr-sidecar-injector";

    /// Excludes the control plane.
    fn selector() -> serde_json::Value {
        json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["dapr-sidecar-injector"]}]})
    }

    /// As created by the chart.
    fn made(server: &Server) {
        server.put(
            ADDRESS,
            json!({"metadata": {"name": NAME}, "webhooks": [{"clientConfig": {"service": {}}, "objectSelector": selector()}]}),
        );
    }

    fn named(server: &Server) -> Option<String> {
        let config = &server.object(ADDRESS)?["webhooks"][0]["clientConfig"];
        config["caBundle"].as_str().map(str::to_owned)
    }

    #[tokio::test]
    async fn registers_trust_anchors() {
        let server = Server::start().await;
        assert!(register(&server.client(), "x").await.unwrap_err().is_not_found());
        made(&server);
        register(&server.client(), "anchors").await.unwrap();
        assert_eq!(named(&server), Some(STANDARD.encode("anchors")));
        let kept = server.object(ADDRESS).unwrap()["webhooks"][0]["objectSelector"].clone();
        assert_eq!(kept, selector(), "whom the chart leaves out");
    }

    #[tokio::test(start_paused = true)]
    async fn registers_again_after_recreation() {
        let server = Server::start().await;
        made(&server);
        let pem = Authority::new("td", Algorithm::P256).root_pem();
        let anchors = TrustAnchors::new(TrustBundle::from_pem(pem.as_bytes()).unwrap());
        let (ready, stop) = (Health::default().part("webhook"), CancellationToken::new());
        let keeping = tokio::spawn(maintain(server.client(), anchors, ready, stop.clone()));
        server.asked("PATCH", NAME, 1).await;
        assert_eq!(named(&server), Some(STANDARD.encode(&pem)));
        made(&server);
        assert_eq!(named(&server), None);
        tokio::time::sleep(RENEWAL_INTERVAL + RETRY).await;
        assert_eq!(named(&server), Some(STANDARD.encode(&pem)));
        // It may be missing for a while.
        server.delete(ADDRESS);
        tokio::time::sleep(RENEWAL_INTERVAL).await;
        made(&server);
        tokio::time::sleep(RETRY * 2).await;
        assert_eq!(named(&server), Some(STANDARD.encode(&pem)));
        let calls = server.requests("PATCH", NAME).len();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(server.requests("PATCH", NAME).len() - calls <= 12);
        stop.cancel();
        keeping.await.unwrap();
    }
}
