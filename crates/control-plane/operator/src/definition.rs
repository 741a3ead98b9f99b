//! The CustomResourceDefinition of subscriptions, which must name the CA that the API server trusts for
//! conversions.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_backoff::Backoff;
use outrigger_controlplane::health::Part;
use outrigger_identity::TrustAnchors;
use outrigger_kube::{ApiError, Client, Kind, Meta, Patch, Reflector, Scope, Watched};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const LOG: &str = "dapr.operator";
const NAME: &str = "subscriptions.dapr.io";
/// Selects this definition only: the operator has no right to watch others.
const QUERY: &str = "fieldSelector=metadata.name%3Dsubscriptions.dapr.io";
/// Pause between attempts.
const RETRY: Duration = Duration::from_secs(5);

/// Maximum pause before a repeated correction, and how long a correction is remembered.
const CONFLICT_WINDOW: Duration = Duration::from_secs(300);

/// Why the definition cannot be corrected.
#[derive(Debug, thiserror::Error)]
enum DefinitionError {
    #[error(transparent)]
    Api(ApiError),
    #[error(
        "{0}; grant the operator's service account get, list, watch and patch on customresourcedefinitions \
         subscriptions.dapr.io, or, if its rights are limited to a namespace, disable the webhook with \
         ENABLE_WEBHOOKS=false"
    )]
    Forbidden(ApiError),
    #[error(
        "it has no conversion webhook (spec.conversion.webhook.clientConfig): install the definitions of the chart"
    )]
    NoWebhook,
}

impl From<ApiError> for DefinitionError {
    fn from(error: ApiError) -> Self {
        match error.is_forbidden() {
            true => Self::Forbidden(error),
            false => Self::Api(error),
        }
    }
}

/// The conversion settings of the definition.
#[derive(Debug, PartialEq)]
struct Conversion(Value);

impl Watched for Conversion {
    const KIND: Kind = Kind::CUSTOM_RESOURCE_DEFINITIONS;

    fn read(_: &Meta, mut object: Value) -> Result<Option<Self>, String> {
        Ok(Some(Self(object["spec"]["conversion"].take())))
    }
}

/// Corrects the definition now, whenever the trust anchors change, and when it is installed again. Ready once
/// it was correct.
pub(crate) async fn maintain(
    client: Client,
    namespace: String,
    anchors: TrustAnchors,
    ready: Part,
    stop: CancellationToken,
) {
    let scope = Scope {
        namespace: None,
        query: QUERY.to_owned(),
    };
    let reflector = Reflector::<Conversion>::new(client.clone(), scope);
    let mut installed = reflector.store().follow();
    let corrected = Notify::new();
    let follow = async {
        // Until then the API does not answer, or the definition is missing.
        corrected.notified().await;
        reflector.run(stop.clone()).await;
    };
    let maintain = async {
        let mut changes = anchors.subscribe();
        let mut dispute = CorrectionBackoff::default();
        loop {
            let bundle = changes.borrow_and_update().pem().to_owned();
            match correct(&client, &namespace, &bundle).await {
                Ok(changed) => {
                    ready.set(true);
                    corrected.notify_one();
                    if changed && let Some(pause) = dispute.changed(Instant::now()) {
                        tokio::time::sleep(pause).await;
                    }
                    tokio::select! {
                        Ok(()) = changes.changed() => {}
                        // Its own change is reported too, and has no effect.
                        Ok(_) | Err(RecvError::Lagged(_)) = installed.recv() => {}
                        else => return std::future::pending::<()>().await,
                    }
                }
                Err(error) => {
                    tracing::error!(target: LOG, "cannot correct the definition {NAME}: {error}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    stop.run_until_cancelled(Box::pin(async { tokio::join!(maintain, follow) }))
        .await;
}

/// Backs off if another operator, with other trust anchors, keeps changing the definition back.
struct CorrectionBackoff {
    pauses: Backoff,
    last: Option<Instant>,
}

impl Default for CorrectionBackoff {
    fn default() -> Self {
        Self {
            pauses: Backoff::new(RETRY, CONFLICT_WINDOW).jittered(),
            last: None,
        }
    }
}

impl CorrectionBackoff {
    /// Records a correction at `now`; returns how long to wait before the next one, if there was a recent
    /// one.
    fn changed(&mut self, now: Instant) -> Option<Duration> {
        let last = self.last.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < CONFLICT_WINDOW) {
            return Some(self.pauses.pause());
        }
        self.pauses.reset();
        None
    }
}

/// Corrects the definition; returns whether it was wrong.
async fn correct(client: &Client, namespace: &str, bundle: &str) -> Result<bool, DefinitionError> {
    let definition: Value = client.get(Kind::CUSTOM_RESOURCE_DEFINITIONS, None, NAME).await?;
    let bundle = STANDARD.encode(bundle);
    let Some(patch) = patch(&definition, namespace, &bundle)? else {
        return Ok(false);
    };
    client
        .patch(Kind::CUSTOM_RESOURCE_DEFINITIONS, None, NAME, &Patch::Json(patch))
        .await?;
    tracing::info!(target: LOG, "the definition {NAME} names this operator and the current trust anchors");
    Ok(true)
}

/// The patch for the definition; `None` if it is correct.
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
    use outrigger_controlplane::health::Health;
    use outrigger_identity::testing::{Algorithm, Authority};
    use outrigger_kube::testing::Server;

    use super::*;

    const ADDRESS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/subscriptions.dapr.io";

    /// As installed by the chart.
    fn definition() -> Value {
        json!({"metadata": {"name": NAME}, "spec": {"conversion": {"webhook": {"clientConfig": {
            "service": {"name": "dapr-webhook", "namespace": "replaceme", "path": "/convert"}}}}}})
    }

    #[tokio::test]
    async fn corrects_reinstalled_definition() {
        let server = Server::start().await;
        server.put(ADDRESS, definition());
        let anchors = TrustAnchors::new(Authority::new("td", Algorithm::P256).bundle());
        let ready = Health::default().part("operator-webhook");
        let stop = CancellationToken::new();
        let keeping = maintain(
            server.client(),
            "dapr-system".to_owned(),
            anchors,
            ready,
            stop.clone(),
        );
        let keeping = tokio::spawn(keeping);
        server.asked("PATCH", ADDRESS, 1).await;
        server.asked("WATCH", "/customresourcedefinitions", 1).await;
        server.put(ADDRESS, definition());
        server.asked("PATCH", ADDRESS, 2).await;
        stop.cancel();
        keeping.await.unwrap();
    }

    #[tokio::test]
    async fn corrects_definition_once() {
        let server = Server::start().await;
        server.put(ADDRESS, definition());
        let client = server.client();
        assert!(correct(&client, "dapr-system", "anchors").await.unwrap());
        assert!(!correct(&client, "dapr-system", "anchors").await.unwrap());
        assert_eq!(server.requests("PATCH", ADDRESS).len(), 1);
        let config = &server.object(ADDRESS).unwrap()["spec"]["conversion"]["webhook"]["clientConfig"];
        assert_eq!(config["service"]["namespace"], "dapr-system");
        assert_eq!(config["service"]["name"], "dapr-webhook");
        assert_eq!(config["caBundle"], STANDARD.encode("anchors"));
        assert!(correct(&client, "dapr-system", "others").await.unwrap());
        assert_eq!(server.requests("PATCH", ADDRESS).len(), 2, "other anchors");
    }

    #[test]
    fn backs_off_on_competing_corrections() {
        let (mut dispute, begun) = (CorrectionBackoff::default(), Instant::now());
        assert_eq!(dispute.changed(begun), None, "nobody changed it back");
        let second = dispute.changed(begun + RETRY).unwrap();
        assert!(RETRY / 2 <= second && second <= RETRY, "{second:?}");
        let third = dispute.changed(begun + RETRY * 2).unwrap();
        assert!(RETRY <= third && third <= RETRY * 2, "{third:?}");
        assert_eq!(
            dispute.changed(begun + CONFLICT_WINDOW * 2),
            None,
            "the dispute is over"
        );
    }

    #[tokio::test]
    async fn missing_right_names_remedy() {
        let server = Server::start().await;
        server.fix(ADDRESS, 403_u16.try_into().unwrap(), json!({"kind": "Status"}));
        let error = correct(&server.client(), "dapr-system", "anchors")
            .await
            .unwrap_err();
        assert!(error.to_string().contains("ENABLE_WEBHOOKS=false"), "{error}");
    }

    #[test]
    fn refuses_definition_without_webhook() {
        let error = patch(&json!({"spec": {"conversion": {"strategy": "None"}}}), "ns", "x").unwrap_err();
        assert!(error.to_string().contains("clientConfig"), "{error}");
        let bare = json!({"spec": {"conversion": {"webhook": {"clientConfig": {}}}}});
        let patch = patch(&bare, "ns", "x").unwrap().unwrap();
        assert_eq!(patch[0]["value"]["name"], "dapr-webhook");
    }
}
